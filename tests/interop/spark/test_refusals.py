"""Unsupported imports and exports are refused by name, before anything is written."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    DamagedFileError,
    FormatVersionError,
    InvalidArgumentError,
    LeftOutStateError,
    MissingFileError,
    SchemaMismatchError,
    StateNotFoundError,
    StateStoreError,
    UnsupportedTypeError,
)
from statestore.interop.spark.export_state import export_checkpoint
from statestore.interop.spark.import_state import import_checkpoint
from statestore.interop.spark.location import UNFINISHED
from statestore.interop.spark.query_settings import SparkTarget
from tests.interop.spark.queries import BOTH, QUERIES, Query, events, run
from tests.support.stores import file_bytes

AGGREGATION = "spark.sql.streaming.aggregation.stateFormatVersion"
JOIN = "spark.sql.streaming.join.stateFormatVersion"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
OTHER_KEY = Query("agg", "update", lambda rows: rows.groupBy("small", "k").count())
OTHER_PLAN = Query("agg", "update", lambda rows: rows.distinct().groupBy("k").count())
ARRAY_KEY = Query(
    "array",
    "update",
    lambda rows: rows.selectExpr("array(k, 'x') as ks").groupBy("ks").count(),
)


@dataclass(frozen=True)
class Kept:
    """Checkpoint locations of queries after three micro-batches, by provider. Tests copy them."""

    folder: Path
    hdfs: Path
    rocksdb: Path
    store: Path
    spark: SparkSession

    def copy(self, to: Path, provider: str = "hdfs") -> Path:
        shutil.copytree(self.folder / provider, to)
        return to

    def new_store(self, path: Path) -> StateStore:
        return StateStore.open(str(path), spark=self.spark, layout="auto")

    def run(self, query: Query, location: Path, provider: str = "hdfs") -> None:
        run(
            self.spark,
            query,
            source=self.folder / "events",
            location=str(location),
            provider=provider,
            partitions=2,
        )


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    folder = tmp_path_factory.mktemp("refusals")
    found = Kept(folder, folder / "hdfs", folder / "rocksdb", folder / "store", spark)
    events(folder / "events", 0, 3)
    for provider in BOTH:
        found.run(QUERIES["agg"], folder / provider, provider)
    import_checkpoint(spark, str(found.hdfs), found.new_store(found.store))
    return found


def edit(path: Path, change: Callable[[str], str]) -> None:
    """Change a file of Spark's, and delete its checksum file."""
    text = path.read_text()
    changed = change(text)
    assert changed != text
    path.write_text(changed)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def conf(name: str, value: str) -> Callable[[str], str]:
    """Return a function that changes a setting in an offsets file."""

    def change(text: str) -> str:
        version, settings, *ends = text.split("\n")
        document = json.loads(settings)
        document["conf"][name] = value
        return "\n".join([version, json.dumps(document), *ends])

    return change


def named(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


def half(text: str) -> str:
    return text[: len(text) // 2]


METADATA = "state/0/_metadata/metadata"
BROKEN: dict[str, tuple[str, Callable[[str], str], type[StateStoreError], list[str]]] = {
    "operator": (
        METADATA,
        named("stateStoreSave", "newOperator"),
        UnsupportedTypeError,
        ["operator 0", "newOperator", "stateStoreSave"],
    ),
    "aggregation-9": (
        "offsets/2",
        conf(AGGREGATION, "9"),
        UnsupportedTypeError,
        ["operator 0", "format 9", AGGREGATION],
    ),
    "provider": (
        "offsets/2",
        conf(PROVIDER, "com.example.Mine"),
        UnsupportedTypeError,
        ["operator 0", "com.example.Mine"],
    ),
    "encoding": ("offsets/2", conf(ENCODING, "avro"), UnsupportedTypeError, [ENCODING, "avro"]),
    "offsets-version": ("offsets/2", named("v1", "v7"), FormatVersionError, ["offsets/2", "v7"]),
    "offsets-of-names": (
        "offsets/2",
        named("v1", "v2"),
        DamagedFileError,
        ["offsets/2", "not in Spark's format"],
    ),
    "commits-version": ("commits/2", named("v1", "v7"), FormatVersionError, ["commits/2", "v7"]),
    "metadata-version": (METADATA, named("v1", "v7"), FormatVersionError, [METADATA, "v7"]),
    "offsets-cut": ("offsets/2", half, DamagedFileError, ["offsets/2"]),
    "offsets-line": (
        "offsets/2",
        lambda text: "\n".join(text.split("\n")[:2]),
        DamagedFileError,
        ["offsets/2", "source"],
    ),
    "offsets-end": ("offsets/2", lambda text: text[:-4], DamagedFileError, ["offsets/2"]),
    "offsets-before": ("offsets/1", half, DamagedFileError, ["offsets/1"]),
    "offsets-empty": ("offsets/2", lambda _: "", DamagedFileError, ["offsets/2"]),
    "offsets-list": (
        "offsets/2",
        lambda _: "v1\n[1]\n{}",
        DamagedFileError,
        ["offsets/2"],
    ),
    "commits-cut": ("commits/2", lambda text: text[:-5], DamagedFileError, ["commits/2"]),
    "metadata-cut": (METADATA, half, DamagedFileError, [METADATA]),
    "no-stores": (
        METADATA,
        lambda text: text[: text.index('"stateStoreInfo"')] + '"stateStoreInfo":[]}',
        DamagedFileError,
        [METADATA],
    ),
    "store": (METADATA, named('"default"', '"other"'), DamagedFileError, ["operator 0", "other"]),
    "partitions-0": (
        METADATA,
        named('"numPartitions":2', '"numPartitions":0'),
        DamagedFileError,
        [METADATA],
    ),
    "query-cut": ("metadata", half, DamagedFileError, ["metadata"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_invalid_location_is_refused(kept: Kept, tmp_path: Path, case: str) -> None:
    file, change, error, parts = BROKEN[case]
    location = kept.copy(tmp_path / "location")
    edit(location / file, change)
    refuses(kept, tmp_path, location, error, parts)


def refuses(
    kept: Kept,
    folder: Path,
    location: Path,
    error: type[StateStoreError],
    parts: list[str],
    **options: Any,
) -> None:
    """Assert that an import fails with an error with all parts, and that no checkpoint is made."""
    store = folder / "refused"
    with pytest.raises(error) as caught:
        import_checkpoint(kept.spark, str(location), kept.new_store(store), **options)
    text = str(caught.value)
    assert [part for part in parts if part not in text] == [], text
    assert len(text) < 1000
    assert not store.exists() or not [*store.rglob("checkpoints/*.json")]


def lose(pattern: str) -> Callable[[Path], None]:
    def change(location: Path) -> None:
        found = [path for path in location.glob(pattern) if path.name[0] != "."]
        assert found
        for path in found:
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    return change


LOST: dict[str, tuple[str, str, type[StateStoreError], list[str]]] = {
    "query": ("hdfs", "metadata", InvalidArgumentError, ["metadata", "checkpointLocation"]),
    "commits": ("hdfs", "commits/*", InvalidArgumentError, ["completed"]),
    "offsets": ("hdfs", "offsets/2", MissingFileError, ["offsets/2"]),
    "offsets-before": ("hdfs", "offsets/1", MissingFileError, ["offsets/1"]),
    "schema": ("hdfs", "state/0/0/_metadata/*", DamagedFileError, ["operator 0", "default"]),
    "delta": ("hdfs", "state/0/1/2.delta", DamagedFileError, ["micro-batch 2"]),
    "zip": ("rocksdb", "state/0/1/*.zip", DamagedFileError, ["micro-batch 2"]),
    "sources": ("hdfs", "sources/0/1", MissingFileError, ["sources/0/1"]),
}


@pytest.mark.parametrize("case", LOST)
def test_a_location_without_a_file_is_refused(kept: Kept, tmp_path: Path, case: str) -> None:
    provider, pattern, error, parts = LOST[case]
    location = kept.copy(tmp_path / "location", provider)
    lose(pattern)(location)
    refuses(kept, tmp_path, location, error, parts)


@pytest.mark.long_cases("zip-True")
@pytest.mark.parametrize(
    ("case", "keeps"),
    [
        pytest.param("delta", False, marks=pytest.mark.long),
        pytest.param("zip", False, marks=pytest.mark.long),
        ("zip", True),
    ],
)
def test_a_large_state_file_is_refused_and_not_read(
    kept: Kept, tmp_path: Path, case: str, keeps: bool
) -> None:
    """The file of 5 GB is sparse and is not read. It is refused as fast as any other file."""
    provider, pattern, error, parts = LOST[case]
    location = kept.copy(tmp_path / "location", provider)
    for file in location.glob(pattern):
        if not keeps:
            file.write_bytes(b"")
        os.truncate(file, 5 << 30)
    begun = time.monotonic()
    refuses(kept, tmp_path, location, error, parts)
    assert time.monotonic() - begun < 120


def test_a_micro_batch_that_is_not_kept(kept: Kept, tmp_path: Path) -> None:
    refuses(kept, tmp_path, kept.hdfs, InvalidArgumentError, ["9", "0 to 2"], batch=9)
    refuses(kept, tmp_path, kept.hdfs, InvalidArgumentError, ["-1", "0 to 2"], batch=-1)


def test_a_folder_that_is_not_a_location(kept: Kept, tmp_path: Path) -> None:
    refuses(kept, tmp_path, tmp_path / "none", InvalidArgumentError, ["checkpointLocation"])


def test_a_join_of_another_format_is_refused(kept: Kept, tmp_path: Path) -> None:
    location = kept.copy(tmp_path / "location")
    edit(location / METADATA, named("stateStoreSave", "symmetricHashJoin"))
    edit(location / "offsets/2", conf(JOIN, "5"))
    refuses(kept, tmp_path, location, UnsupportedTypeError, ["format 5", JOIN])


def test_a_join_with_a_store_that_is_not_known(kept: Kept, tmp_path: Path) -> None:
    location = kept.copy(tmp_path / "location")
    edit(location / METADATA, named("stateStoreSave", "sessionWindowStateStoreSaveExec"))
    refuses(kept, tmp_path, location, DamagedFileError, ["operator 0", "sessionStartTime"])


def test_a_session_of_spark_connect_is_refused(kept: Kept, tmp_path: Path) -> None:
    sources = SimpleNamespace(register=lambda source: None)
    members = {"__module__": "pyspark.sql.connect.session", "dataSource": sources}
    made = type("SparkSession", (), members)()
    target = tmp_path / "target"
    with pytest.raises(InvalidArgumentError, match="Spark Connect"):
        import_checkpoint(made, str(kept.hdfs), kept.new_store(tmp_path / "store"))
    for provider in ("hdfs", "rocksdb"):
        with pytest.raises(InvalidArgumentError, match="Spark Connect"):
            exports(kept, target, spark=made, provider=provider)
    assert not (tmp_path / "store").exists()
    assert not target.exists()


def exports(
    kept: Kept,
    target: Path,
    *,
    spark: SparkSession | None = None,
    partitions: int = 3,
    provider: Any = None,
    store: Path | None = None,
    **options: Any,
) -> None:
    export_checkpoint(
        StateStore.open(str(store or kept.store), spark=spark or kept.spark, layout="auto"),
        str(target),
        partitions=partitions,
        target=SparkTarget(provider=provider),
        **options,
    )


@pytest.mark.parametrize("partitions", [0, -1, 2.5, True, 2**31])
def test_invalid_numbers_of_partitions(kept: Kept, tmp_path: Path, partitions: int) -> None:
    with pytest.raises(InvalidArgumentError, match="partition"):
        exports(kept, tmp_path / "target", partitions=partitions)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("provider", ["leveldb", "", "RocksDB"])
def test_an_unknown_provider_is_refused(kept: Kept, tmp_path: Path, provider: str) -> None:
    with pytest.raises(InvalidArgumentError, match="hdfs or rocksdb"):
        exports(kept, tmp_path / "target", provider=provider)
    assert not (tmp_path / "target").exists()


def test_an_export_of_a_missing_checkpoint_writes_nothing(kept: Kept, tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="7"):
        exports(kept, tmp_path / "target", checkpoint=7)
    assert not (tmp_path / "target").exists()


def test_a_store_with_states_of_its_own(kept: Kept, tmp_path: Path) -> None:
    store = kept.new_store(tmp_path / "store")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("users", "totals", kept.spark.range(3), key="id", max_parallelism=2)
    for refused in (
        lambda: exports(kept, tmp_path / "target", store=tmp_path / "store"),
        lambda: import_checkpoint(kept.spark, str(kept.hdfs), store),
    ):
        with pytest.raises(InvalidArgumentError, match="not imported from a Spark query"):
            refused()
    assert store.checkpoints() == (1,)
    assert not (tmp_path / "target").exists()


def test_a_target_that_has_a_query(kept: Kept, tmp_path: Path) -> None:
    location = kept.copy(tmp_path / "location")
    before = file_bytes(location)
    for target in (location, location / "state", location / "state" / "0" / "0"):
        with pytest.raises(InvalidArgumentError, match="not empty"):
            exports(kept, target)
    assert file_bytes(location) == before


@pytest.mark.parametrize("inside", ["state/0/7", "state/new", "new"])
def test_a_target_within_a_location_or_a_store_is_refused(kept: Kept, inside: str) -> None:
    for folder in (kept.hdfs, kept.store):
        before = file_bytes(folder)
        with pytest.raises(InvalidArgumentError, match="is inside"):
            exports(kept, folder / inside)
        assert file_bytes(folder) == before


def test_a_target_that_another_export_writes(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "4").write_bytes(UNFINISHED)
    with pytest.raises(CommitConflictError, match="another export"):
        exports(kept, tmp_path)


def test_an_export_that_did_not_finish_is_not_imported(kept: Kept, tmp_path: Path) -> None:
    location = kept.copy(tmp_path / "location")
    (location / "offsets" / "4").write_bytes(UNFINISHED)
    refuses(kept, tmp_path, location, InvalidArgumentError, ["did not finish"])


def test_another_query_and_earlier_micro_batches(kept: Kept, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(kept.store, store)
    with pytest.raises(InvalidArgumentError, match=r"query .* into a separate store"):
        import_checkpoint(kept.spark, str(kept.rocksdb), kept.new_store(store))
    with pytest.raises(InvalidArgumentError, match=r"micro-batch 2 .* later than 1"):
        import_checkpoint(kept.spark, str(kept.hdfs), kept.new_store(store), batch=1)
    assert kept.new_store(store).checkpoints() == (1,)


@pytest.mark.long
@pytest.mark.parametrize("query", [OTHER_KEY, OTHER_PLAN], ids=["key", "plan"])
def test_a_query_that_changed_between_two_imports(kept: Kept, tmp_path: Path, query: Query) -> None:
    store, location = tmp_path / "store", tmp_path / "location"
    shutil.copytree(kept.store, store)
    events(kept.folder / "events", 3, 4)
    kept.run(query, location)
    shutil.copy(kept.hdfs / "metadata", location / "metadata")  # makes it look like the same query
    (location / ".metadata.crc").unlink()
    with pytest.raises(SchemaMismatchError, match=r"operator .*-\d.*separate store"):
        import_checkpoint(kept.spark, str(location), kept.new_store(store))
    assert kept.new_store(store).checkpoints() == (1,)


@pytest.mark.long
def test_state_that_is_kept_as_bytes_and_was_edited(kept: Kept, tmp_path: Path) -> None:
    kept.run(ARRAY_KEY, tmp_path / "location")
    store = kept.new_store(tmp_path / "store")
    record = import_checkpoint(kept.spark, str(tmp_path / "location"), store).record
    assert not record.stores[0].columns.is_typed
    exports(kept, tmp_path / "whole", store=tmp_path / "store", dry_run=True)
    before = store.restore().keyed("stateStoreSave-0", "default")
    rows = before.to_spark().drop("key_group").limit(3)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry_rest()
        checkpoint.write_keyed("stateStoreSave-0", "default", rows, key=["key_bytes"])
    for provider in ("hdfs", "rocksdb"):
        with pytest.raises(UnsupportedTypeError, match=r"stateStoreSave-0.*array<string>"):
            exports(kept, tmp_path / "edited", store=tmp_path / "store", provider=provider)
    assert not (tmp_path / "edited").exists()


def test_states_outside_the_query_are_not_lost_silently(kept: Kept, tmp_path: Path) -> None:
    """I16: the location would lack them, so the export requires their names."""
    shutil.copytree(kept.store, tmp_path / "store")
    store = kept.new_store(tmp_path / "store")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("mine", "notes", [{"k": 1, "v": 2}], key="k")
        checkpoint.carry_rest()
    arguments = (store, str(tmp_path / "to"))
    with pytest.raises(LeftOutStateError, match=r"mine/notes .*--leave-out 'mine/notes'"):
        export_checkpoint(*arguments, partitions=3)
    with pytest.raises(StateNotFoundError, match=r"'mine/note' cannot be left out.*mine/notes"):
        export_checkpoint(*arguments, partitions=3, leave_out=["mine/note"])
    assert not (tmp_path / "to").exists()
    done = export_checkpoint(*arguments, partitions=3, leave_out=["mine"], dry_run=True)
    assert [one.label for one in done.left_out] == ["mine/notes"]


def test_state_lost_by_a_salvage_is_not_lost_silently(kept: Kept, tmp_path: Path) -> None:
    shutil.copytree(kept.store, tmp_path / "store")
    store = kept.new_store(tmp_path / "store")
    entry = store.checkpoint().manifest.keyed[0]
    file = tmp_path / "store" / entry.table.name_of(entry.handles[0])
    file.write_bytes(file.read_bytes()[:-9])
    store.maintenance.salvage("latest")
    assert store.checkpoint().manifest.left_out
    with pytest.raises(LeftOutStateError, match=r"stateStoreSave-0/default:\d+-\d+ \("):
        export_checkpoint(store, str(tmp_path / "to"), partitions=3)
    done = export_checkpoint(
        store,
        str(tmp_path / "to"),
        partitions=3,
        leave_out=["stateStoreSave-0"],
        dry_run=True,
    )
    assert done.left_out == store.checkpoint().manifest.left_out
