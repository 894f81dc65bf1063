"""The sources of a query change while its location is written anew."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.spark import SparkTarget, repartition_location
from statestore.interop.spark.import_record import QueryRecord
from statestore.interop.spark.query_settings import SOURCE_NAMES
from statestore.interop.spark.source_changes import change_sources, write_positions
from tests.interop.spark.queries import UNFINISHED
from tests.interop.spark.test_named_sources import Named

ENDS = ('{"a":1}', '{"logOffset":2}', "-")
NUMBERED_LOG = "v1"


def record_of(*lines: str, version: str = "v1", folders: tuple[str, ...] = ()) -> QueryRecord:
    """Return a record with one entry of the offset log."""
    entry = "\n".join([version, '{"conf":{}}', *lines]).encode()
    sources = [(f"sources/{folder}/0", folder.encode()) for folder in folders]
    logs = (("metadata", b"{}"), ("offsets/4", entry), ("commits/4", b"v1\n{}"), *sources)
    return QueryRecord("q", 4, "/old", lines, (), logs)


def lines_of(record: QueryRecord) -> list[str]:
    return dict(record.logs)["offsets/4"].decode().split("\n")


def test_nothing_changes_by_default() -> None:
    record = record_of(*ENDS)
    assert change_sources(record, SparkTarget()) is record


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_numbers_are_permuted(order: tuple[int, ...]) -> None:
    record = record_of(*ENDS, folders=("0", "1"))
    renamed = {str(old): str(new) for old, new in enumerate(order)}
    changed = change_sources(record, SparkTarget(renamed_sources=renamed))
    version, metadata, *ends = lines_of(changed)
    assert (version, metadata) == (NUMBERED_LOG, '{"conf":{}}')
    assert [ends[new] for new in order] == [*ENDS]
    assert changed.ends == tuple(ends)
    logs = dict(changed.logs)
    assert [logs[f"sources/{order[old]}/0"] for old in range(2)] == [b"0", b"1"]


@pytest.mark.parametrize(
    ("renamed", "added", "ends"),
    [
        ({"1": None}, (), [ENDS[0], ENDS[2]]),
        ({"0": None, "1": None}, (), [ENDS[2]]),
        ({}, ("0",), ["-", *ENDS]),
        ({}, ("1", "3"), [ENDS[0], "-", ENDS[1], "-", ENDS[2]]),
        ({"0": "2"}, (), [ENDS[1], ENDS[2], ENDS[0]]),
        ({"0": None}, ("2",), [ENDS[1], ENDS[2], "-"]),
    ],
)
def test_numbers_follow_the_old_order(
    renamed: dict[str, str | None], added: tuple[str, ...], ends: list[str]
) -> None:
    changed = change_sources(
        record_of(*ENDS), SparkTarget(renamed_sources=renamed, added_sources=added)
    )
    assert lines_of(changed)[2:] == ends


def test_sources_get_names() -> None:
    record = record_of(*ENDS, folders=("0", "1"))
    names: dict[str, str | None] = {"0": "orders", "1": "returns", "2": None}
    changed = change_sources(record, SparkTarget(renamed_sources=names, added_sources=("late",)))
    conf = f'{{"conf":{{"{SOURCE_NAMES}":"true"}}}}'
    assert lines_of(changed) == ["v2", conf, f"orders:{ENDS[0]}", f"returns:{ENDS[1]}"]
    assert changed.positions == {"orders": ENDS[0], "returns": ENDS[1]}
    assert {"sources/orders/0", "sources/returns/0"} <= dict(changed.logs).keys()


def test_named_sources_are_renamed_and_removed() -> None:
    record = record_of(f"orders:{ENDS[0]}", f"returns:{ENDS[1]}", version="v2")
    changed = change_sources(
        record, SparkTarget(renamed_sources={"orders": "purchases", "returns": None})
    )
    assert lines_of(changed)[2:] == [f"purchases:{ENDS[0]}"]


@pytest.mark.parametrize(
    ("renamed", "added", "message"),
    [
        ({"3": "0"}, (), "has no source '3'; it has 0, 1, 2"),
        ({"0": "orders"}, (), "either all sources have names, or none"),
        ({"0": "a", "1": "a", "2": "b"}, (), "two sources would have the name 'a'"),
        ({"0": "5"}, (), "the numbers 0, 1, 5"),
        ({}, ("7",), "the numbers 0, 1, 2, 7"),
        ({"0": None, "1": None, "2": None}, (), "all sources are removed"),
        ({"0": "a/b", "1": "c", "2": "d"}, (), "'a/b' is not a valid name"),
    ],
)
def test_wrong_changes_are_refused(
    renamed: dict[str, str | None], added: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        change_sources(record_of(*ENDS), SparkTarget(renamed_sources=renamed, added_sources=added))


def test_a_source_that_is_read_twice_is_refused() -> None:
    record = record_of(ENDS[1], ENDS[1], folders=("0",))
    with pytest.raises(UnsupportedTypeError, match="reads source 0 twice"):
        change_sources(record, SparkTarget(renamed_sources={"0": "1", "1": "0"}))


KAFKA, OTHER = '{"a":{"0":5,"1":7}}', '{"b":{"0":9}}'


def positioned(
    record: QueryRecord, *offsets: tuple[str, Any, Any], names: tuple[str, ...] = ()
) -> QueryRecord:
    """Return a record as a checkpoint has it, with other Kafka offsets."""
    ends = tuple(line.partition(":")[2] if names else line for line in record.ends)
    elements = [dict(zip(("topic", "partition", "offset"), each, strict=True)) for each in offsets]
    return replace(record, ends=ends, names=names, offsets=elements)


@pytest.mark.parametrize(
    ("lines", "names", "offsets", "changed"),
    [
        ((KAFKA,), (), [("a", 0, 6), ("a", 1, 7)], ['{"a":{"0":6,"1":7}}']),
        ((KAFKA,), (), [("a", 1, 7)], ['{"a":{"1":7}}']),
        ((KAFKA, "-"), (), [("a", 0, 5), ("a", 2, 0)], ['{"a":{"0":5,"2":0}}', "-"]),
        ((ENDS[1], KAFKA), (), [("old.a", 0, 1)], [ENDS[1], '{"old.a":{"0":1}}']),
        ((KAFKA, OTHER), (), [("a", 0, 1), ("b", 0, 9)], ['{"a":{"0":1}}', OTHER]),
        ((f"y:{OTHER}", f"x:{KAFKA}"), ("y", "x"), [("a", 0, 1), ("b", 0, 2)],
         ['y:{"b":{"0":2}}', 'x:{"a":{"0":1}}']),
        ((KAFKA,), (), [("a", 1, 7), ("a", 0, 5)], [KAFKA]),
        ((KAFKA, KAFKA.replace("7", "8")), (), [("a", 0, 5), ("a", 1, 7), ("a", 0, 5), ("a", 1, 8)],
         [KAFKA, KAFKA.replace("7", "8")]),
    ],
)  # fmt: skip
def test_changed_offsets_are_the_positions_of_the_log(
    lines: tuple[str, ...],
    names: tuple[str, ...],
    offsets: list[tuple[str, int, int]],
    changed: list[str],
) -> None:
    """Moved, deleted, added and renamed partitions, of one source among others."""
    record = record_of(*lines, version="v2" if names else "v1", folders=("0",))
    written = write_positions(positioned(record, *offsets, names=names))
    assert lines_of(written)[2:] == changed
    assert written.ends == tuple(line.partition(":")[2] if names else line for line in changed)
    others = (name for name, _ in record.logs if name != "offsets/4")
    assert all(dict(written.logs)[name] == dict(record.logs)[name] for name in others)


@pytest.mark.parametrize(
    ("lines", "offsets", "said"),
    [
        ((KAFKA,), [], "no offset is left"),
        ((KAFKA,), [("a", 0, -5), ("a", 1, 7)], "partition 0: offset must be an integer in 0..9"),
        ((KAFKA,), [("a", 0, -1), ("a", 1, 7)], "offset must be an integer in 0..9.*not -1"),
        ((KAFKA,), [("a", 0, None), ("a", 1, 7)], "offset must be an integer in 0..9.*not None"),
        ((KAFKA,), [("a", None, 5), ("a", 1, 7)], "partition must be an integer in 0..2.*None"),
        ((KAFKA,), [("a", 0, 5), ("a", 0, 6)], "topic 'a' partition 0 has two offsets, 5 and 6"),
        ((ENDS[1],), [("a", 0, 5)], "unknown which source reads topic 'a', because 0 sources"),
        ((KAFKA, OTHER), [("a", 0, 5), ("c", 0, 1)], "unknown which source reads topic 'c'"),
        ((KAFKA, KAFKA), [("a", 0, 6)], "which source reads topic 'a', because 2 sources"),
        ((KAFKA, OTHER), [("a", 0, 6)], "has no offset of b, so it is unknown where source 1"),
    ],
)
def test_offsets_that_cannot_be_written_are_refused(
    lines: tuple[str, ...], offsets: list[tuple[str, Any, Any]], said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"state 'offsets' of operator 'query'.*{said}"):
        write_positions(positioned(record_of(*lines), *offsets))


def test_other_views_of_the_log_cannot_be_changed() -> None:
    """A planned micro-batch begins at the old offsets, and positions and names are copies."""
    record = record_of(f"x:{KAFKA}", version="v2")
    moved = positioned(record, ("a", 0, 1), names=("x",))
    planned = replace(moved, logs=(*moved.logs, ("offsets/5", b"v2")))
    with pytest.raises(InvalidArgumentError, match="micro-batch 5 is already planned from the old"):
        write_positions(planned)
    for changed in (replace(moved, ends=(OTHER,)), replace(moved, names=("y",))):
        with pytest.raises(InvalidArgumentError, match=r"'positions' and 'source-names' .* differ"):
            write_positions(changed)
    assert write_positions(replace(planned, offsets=None)).logs == planned.logs


def move(world: Named, target: SparkTarget) -> None:
    before, after = str(world.folder / "before"), str(world.folder / "after")
    repartition_location(world.spark, before, after, partitions=2, target=target)


@pytest.mark.long
def test_a_numbered_query_continues_without_one_source_and_with_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    """``late`` comes first in the new plan, and ``orders`` is gone."""
    world = Named(spark, tmp_path, is_named=False)
    for source, users in (("orders", "uv"), ("returns", "ux"), ("orders", "uy")):
        world.add(source, users)
    log = {"spark.sql.streaming.offsetLog.formatVersion": "1", UNFINISHED: "true"}
    world.run("before", conf=log)
    move(world, SparkTarget(renamed_sources={"0": None}, added_sources=("0",)))
    world.add("orders", "u")
    world.add("returns", "uz")
    world.add("late", "ua")
    assert world.run("after", "late", "returns", partitions=2, conf=log) == {
        2: ['{"user":"a","count":1}', '{"user":"u","count":5}', '{"user":"z","count":1}']
    }


@pytest.mark.long
def test_a_named_query_continues_with_renamed_sources(spark: SparkSession, tmp_path: Path) -> None:
    world = Named(spark, tmp_path, folders={"purchases": "orders"})
    for source, users in (("orders", "uv"), ("returns", "ux")):
        world.add(source, users)
    world.run("before")
    move(world, SparkTarget(renamed_sources={"orders": "purchases", "returns": None}))
    world.add("orders", "uz")
    world.add("returns", "u")
    assert world.run("after", "purchases", partitions=2) == {
        1: ['{"user":"u","count":3}', '{"user":"z","count":1}']
    }


@pytest.mark.long
def test_a_query_without_names_gets_them(spark: SparkSession, tmp_path: Path) -> None:
    """Version 1 of the offset log becomes version 2."""
    world = Named(spark, tmp_path, is_named=False)
    for source, users in (("orders", "uv"), ("returns", "ux")):
        world.add(source, users)
    log = {"spark.sql.streaming.offsetLog.formatVersion": "1", UNFINISHED: "true"}
    world.run("before", conf=log)
    move(world, SparkTarget(renamed_sources={"0": "orders", "1": "returns"}))
    world.is_named = True
    world.add("returns", "uz")
    assert world.run("after", "returns", "orders", partitions=2) == {
        1: ['{"user":"u","count":3}', '{"user":"z","count":1}']
    }
