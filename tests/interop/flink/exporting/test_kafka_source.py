"""Offsets of a table become the state of a KafkaSource, which real Flink continues from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import (
    InvalidArgumentError,
    SchemaMismatchError,
    StateStoreError,
    UnsupportedTypeError,
)
from statestore.interop.flink import export_savepoint, import_savepoint, open_savepoint
from statestore.interop.flink.exporting.kafka_source import _assigned_partitions
from statestore.interop.flink.importing.import_record import SavepointRecord
from statestore.interop.flink.metadata.handles import OperatorHandles
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.metadata.metadata_file import read_metadata
from statestore.interop.flink.options import FlinkTarget
from statestore.interop.flink.read.operator_state import KafkaSplit, kafka_split_bytes, kafka_splits
from tests.interop.flink.goldens import Golden
from tests.interop.flink.test_real_flink import HEAP, NEWEST, OLDER, read
from tests.servers.flink import flink_with_kafka
from tests.servers.kafka import kafka_broker
from tests.services.kafka_topics import Topics

TARGET = FlinkTarget(types={"kafka/offsets": "KafkaSource"})
OFFSETS = pa.table(
    {"topic": ["orders"] * 2, "partition": pa.array([0, 1], pa.int32()), "offset": [50, 30]}
)


def store_of(folder: Path, offsets: pa.Table, mode: str = "union") -> StateStore:
    store = StateStore.open(str(folder), table_format="parquet")
    store.bootstrap("kafka", "offsets", offsets, mode=mode)
    return store


@pytest.mark.parametrize("mode", ["union", "split"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_readers_and_the_coordinator_have_the_partitions(
    mode: str, parallelism: int, tmp_path: Path
) -> None:
    """Each partition is in one split, however the table is stored."""
    place = tmp_path / "to"
    store = store_of(tmp_path / "store", OFFSETS, mode)
    export_savepoint(store, str(place), target=TARGET, parallelism=parallelism)
    operator = open_savepoint(str(place)).operator("kafka")
    splits = [
        split
        for elements in operator.operator_state()
        for split in kafka_splits(elements.values(), "the splits")
    ]
    assert {elements.info.name for elements in operator.operator_state()} == {"SourceReaderState"}
    found = sorted((split.topic, split.partition, split.offset) for split in splits)
    assert found == [("orders", 0, 50), ("orders", 1, 30)]
    assert {split.stop for split in splits} == {-(1 << 63)}
    (metadata,) = read_metadata((place / "_metadata").read_bytes(), "it").operators
    assert metadata.coordinator is not None
    reader = Reader(metadata.coordinator.data, "the coordinator")
    assert (reader.i32(), reader.i32(), reader.i32()) == (1, 1, reader.remaining)
    partitions = [(reader.utf(), reader.i32()) for _ in range(reader.i32())]
    assert (sorted(partitions), reader.remaining) == ([("orders", 0), ("orders", 1)], 0)


@pytest.mark.parametrize(
    ("offsets", "kind", "said"),
    [
        (OFFSETS.drop_columns(["offset"]), SchemaMismatchError,
         "the column 'offset' (long) of KafkaSource is missing"),
        (OFFSETS.append_column("stop", OFFSETS["offset"]), SchemaMismatchError,
         "the column 'stop' is not part of KafkaSource: topic, partition, offset"),
        (OFFSETS.set_column(2, "offset", pa.array(["5", "6"])), SchemaMismatchError,
         "the column 'offset' is string, but KafkaSource has long"),
        (OFFSETS.set_column(2, "offset", pa.array([5, None])), InvalidArgumentError,
         "has a null in the offsets: {'topic': 'orders', 'partition': 1, 'offset': None}"),
        (OFFSETS.set_column(2, "offset", pa.array([5, -2])), InvalidArgumentError,
         "leave out partitions that the source should find itself"),
        (OFFSETS.set_column(1, "partition", pa.array([1, 1])), InvalidArgumentError,
         "has two offsets of partition 1 of topic 'orders'"),
    ],
)  # fmt: skip
def test_offsets_that_no_source_has_are_refused(
    offsets: pa.Table, kind: type[StateStoreError], said: str, tmp_path: Path
) -> None:
    store = store_of(tmp_path / "store", offsets)
    with pytest.raises(kind) as caught:
        export_savepoint(store, str(tmp_path / "to"), target=TARGET)
    assert said in str(caught.value)
    assert not any((tmp_path / "to").glob("**/*"))


def test_a_source_has_no_other_state_and_no_broadcast_state(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", OFFSETS)
    store.bootstrap("kafka", "totals", pa.table({"k": [1]}), key="k")
    with pytest.raises(UnsupportedTypeError, match="has no other state in Flink, but the operator"):
        export_savepoint(store, str(tmp_path / "to"), target=TARGET)
    store = store_of(tmp_path / "broadcast", OFFSETS, "broadcast")
    with pytest.raises(SchemaMismatchError, match="the splits of a source are no broadcast state"):
        export_savepoint(store, str(tmp_path / "to"), target=TARGET)
    store = StateStore.open(str(tmp_path / "keyed"), table_format="parquet")
    store.bootstrap("kafka", "offsets", OFFSETS, key="topic", namespace="partition")
    with pytest.raises(SchemaMismatchError, match="KafkaSource is operator state"):
        export_savepoint(store, str(tmp_path / "to"), target=TARGET)


def test_offsets_can_be_data_of_the_job(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", OFFSETS)
    with pytest.raises(
        UnsupportedTypeError, match="pass --java-type kafka/offsets=KafkaSource; if they"
    ):
        export_savepoint(store, str(tmp_path / "to"))
    target = FlinkTarget(types={"kafka/offsets": "List<Row>"})
    done = export_savepoint(store, str(tmp_path / "to"), target=target)
    assert done.operators[0].states[0].value_type == "Row<String, Integer, Long>"


@pytest.mark.flink
@pytest.mark.long
@pytest.mark.services
@pytest.mark.parametrize("version", [NEWEST, OLDER])
def test_a_source_continues_at_the_offsets_of_a_table(version: str, tmp_path: Path) -> None:
    """At another parallelism; a partition that is not in the table is read from its start."""
    place = str(tmp_path / "to")
    export_savepoint(store_of(tmp_path / "store", OFFSETS), place, target=TARGET)
    with kafka_broker(tmp_path / "broker") as broker:
        topics = Topics(broker.bootstrap)
        topics.make(3, name="orders")
        topics.fill("orders", {0: map(str, range(60)), 1: map(str, range(35)), 2: ["first"]})
        rows = tmp_path / "rows.jsonl"
        step: dict[str, Any] = {"do": "savepoint", "from": place, "to": str(tmp_path)}
        step |= {"events": "16", "bootstrap": broker.bootstrap, "topic": "orders"}
        step |= {"results": str(rows), "parallelism": "3", "format": "CANONICAL"}
        (later,) = flink_with_kafka(version).run([step | HEAP])
    found = [one["result"]["row"]["row"] for one in read(rows)]
    new = [[0, at, str(at)] for at in range(50, 60)] + [[1, at, str(at)] for at in range(30, 35)]
    assert sorted(found) == [*new, [2, 0, "first"]]
    splits = {
        (split.partition, split.offset)
        for elements in open_savepoint(later).operator("kafka").operator_state()
        for split in kafka_splits(elements.values(), "the splits")
    }
    assert splits == {(0, 60), (1, 35), (2, 1)}


def done_metadata(place: str) -> tuple[OperatorHandles, ...]:
    return read_metadata((Path(place) / "_metadata").read_bytes(), place).operators


def offset(partition: int, at: int | None, topic: str = "orders") -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "offset": at}


def exported_splits(place: str) -> list[tuple[str, int, int]]:
    """Return the splits; assert that the coordinator has assigned exactly these partitions."""
    operator = open_savepoint(place).operator("kafka")
    splits = [
        split for one in operator.operator_state() for split in kafka_splits(one.values(), "splits")
    ]
    assert {split.stop for split in splits} == {-(1 << 63)}
    (metadata,) = (one for one in done_metadata(place) if one.coordinator is not None)
    assert metadata.coordinator is not None
    reader = Reader(metadata.coordinator.data, "the coordinator")
    assert (reader.i32(), reader.i32(), reader.i32()) == (1, 1, reader.remaining)
    partitions = [(reader.utf(), reader.i32()) for _ in range(reader.i32())]
    assert sorted(partitions) == sorted((split.topic, split.partition) for split in splits)
    return sorted((split.topic, split.partition, split.offset) for split in splits)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(
    ("lists", "splits"),
    [
        ([[offset(0, 50)]], [("orders", 0, 50), ("orders", 2, -2)]),
        (
            [[offset(0, 50), offset(9, 1)], [offset(1, 30)]],
            [("orders", 0, 50), ("orders", 1, 30), ("orders", 2, -2), ("orders", 9, 1)],
        ),
        (
            [[offset(0, 7, "old.orders"), offset(1, 8, "old.orders")]],
            [("old.orders", 0, 7), ("old.orders", 1, 8)],
        ),
        ([[offset(0, 50), offset(1, 30), offset(2, 4)]], None),
        ([[offset(0, 50)], [offset(1, 30), offset(0, 50)]], None),
    ],
)
def test_partitions_of_the_offsets_are_those_of_the_source(
    lists: list[list[dict[str, Any]]],
    splits: list[tuple[str, int, int]] | None,
    parallelism: int,
    tmp_path: Path,
) -> None:
    """Partitions are removed, added and renamed, in the splits and in the coordinator.

    An unread partition keeps its split, unless its topic is gone.
    Without ``splits`` no partition is new or gone, so the coordinator stays as it was.
    """
    store = imported_kafka(tmp_path)
    with store.snapshot(parallelism=len(lists)) as checkpoint:
        checkpoint.write_union("kafka", "offsets", lists)
        checkpoint.carry_rest()
    done = export_savepoint(store, str(tmp_path / "to"), parallelism=parallelism)
    if splits is not None:
        assert exported_splits(done.savepoint) == splits
        return
    (coordinator,) = (one.coordinator for one in done_metadata(done.savepoint) if one.coordinator)
    assert coordinator.data == next(
        one.coordinator for one in SavepointRecord.of(store.restore()).operators if one.coordinator
    )


def imported_kafka(tmp_path: Path) -> StateStore:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    import_savepoint(str(Golden("2.3_kafka").unpack(tmp_path / "from")), store)
    return store


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ([offset(0, -5), offset(1, 30)], "offset must be an integer in 0..9223372036854775807"),
        ([offset(0, -2), offset(1, 30)], "not -2"),
        ([offset(0, None), offset(1, 30)], "partition 0: offset must be an integer"),
        ([offset(0, 50), offset(0, 51)], "topic 'orders' partition 0 has two offsets, 50 and 51"),
        ([], "no offset is left"),
    ],
)
def test_offsets_that_kafka_does_not_have_are_refused(
    offsets: list[dict[str, Any]], said: str, tmp_path: Path
) -> None:
    store = imported_kafka(tmp_path)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_union("kafka", "offsets", [offsets])
        checkpoint.carry_rest()
    with pytest.raises(InvalidArgumentError, match="the offsets of split state") as caught:
        export_savepoint(store, str(tmp_path / "to"))
    assert said in str(caught.value)
    assert not list((tmp_path / "to").glob("*"))


def test_changed_splits_must_agree_with_the_offsets(tmp_path: Path) -> None:
    """Otherwise the old offsets would undo the change of the splits."""
    store = imported_kafka(tmp_path)
    splits = [split_bytes(partition, 99) for partition in range(2)]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_split("kafka", "SourceReaderState", [splits])
        checkpoint.carry_rest()
    with pytest.raises(InvalidArgumentError, match="were changed since the import, and contradict"):
        export_savepoint(store, str(tmp_path / "refused"))
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_union("kafka", "offsets", [[offset(0, 99), offset(1, 99)]])
        checkpoint.carry_rest()
    done = export_savepoint(store, str(tmp_path / "to"))
    (elements,) = open_savepoint(done.savepoint).operator("kafka").operator_state()
    assert {split.offset for split in kafka_splits(elements.values(), "splits")} == {99}


def split_bytes(partition: int, at: int) -> dict[str, bytes]:
    return {"value": kafka_split_bytes(KafkaSplit("orders", partition, at, -(1 << 63)))}


@pytest.mark.parametrize(
    ("form", "is_known"),
    [
        ("0000000100000001{length}00000001{place}", True),
        ("0000000100000002{length}00000001{place}0000000001", True),
        ("0000000100000002{length}00000001{place}0000000101", False),
        ("0000000100000002{length}00000001{place}0000000000", False),
        ("0000000100000003{length}00000001000000000000001c{place}{offsets}0000000001", True),
        ("0000000100000003{length}00000001000000000000001c{place}{offsets}0000000201", False),
        ("0000000100000004{length}00000001{place}", False),
        ("0000000100000000{length}00000001{place}", False),
    ],
)
def test_only_known_versions_of_a_coordinator_are_read(form: str, is_known: bool) -> None:
    """Partitions that are not assigned, or were removed before, cannot be written as assigned."""
    place, offsets = "00066f726465727300000004", "fffffffffffffffe8000000000000000"
    head, body = form.format(length="{}", place=place, offsets=offsets).split("{}")
    data = bytes.fromhex(f"{head}{len(body) // 2:08x}{body}")
    assert _assigned_partitions(data, "it") == ({("orders", 4)} if is_known else None)


def test_a_changed_parallelism_is_no_change_of_the_splits(tmp_path: Path) -> None:
    store = imported_kafka(tmp_path)
    with store.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_union("kafka", "offsets", [[], [offset(0, 60)], [offset(1, 30)]])
        checkpoint.carry_rest()
    done = export_savepoint(store, str(tmp_path / "to"))
    splits = [
        (split.partition, split.offset)
        for elements in open_savepoint(done.savepoint).operator("kafka").operator_state()
        for split in kafka_splits(elements.values(), "splits")
    ]
    assert sorted(splits) == [(0, 60), (1, 30), (2, -2)]
