"""A lost entry of a Delta log is put again where it is known to the last file, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from statestore.errors import StorageError
from statestore.store import StateStore

VERSIONS = 3


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path) -> StateStore:
    made = StateStore.open(str(tmp_path / "store"), spark=spark, compaction=None)
    for number in range(1, VERSIONS + 1):
        take(made, number)
    return made


def take(store: StateStore, number: int) -> None:
    rows = [{"k": k, "n": number} for k in range(number, number + 3)]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.keyed("u", "s", rows, key="k", max_parallelism=4)


def table_of(store: StateStore) -> Path:
    return Path(store.url, store.manifest().keyed_entry("u", "s").table.path)


def entry(store: StateStore, version: int, ending: str = "json") -> Path:
    return table_of(store) / "_delta_log" / f"{version:020}.{ending}"


def seen(store: StateStore, version: int | None = None) -> tuple[Any, ...]:
    """What another reader of Delta finds at a version."""
    table = DeltaTable(table_of(store), version=version)
    return sorted(table.file_uris()), table.metadata().id, table.schema().to_json()


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)])
def test_a_lost_entry_is_put_again(
    spark: SparkSession, store: StateStore, lost: tuple[int, ...]
) -> None:
    """Every version is as it was for every reader, and Spark writes the next one."""
    before = [seen(store, version) for version in range(VERSIONS)]
    for version in lost:
        entry(store, version).unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    with pytest.raises(StorageError, match="statestore repair"):
        take(store, 9)
    planned = StateStore.open(store.url).maintenance.repair(dry_run=True)
    assert not entry(store, lost[0]).exists()
    done = StateStore.open(store.url).maintenance.repair()  # without Spark
    assert (done.repaired, done.left) == (planned.repaired, ())
    assert [Path(one.file).name for one in done.repaired] == [f"{v:020}.json" for v in lost]
    assert [seen(store, version) for version in range(VERSIONS)] == before
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    take(store, 9)
    assert len(seen(store)[0]) == store.manifest().files
    assert spark.read.format("delta").load(str(table_of(store))).count() == 3
    assert StateStore.open(store.url).maintenance.repair().repaired == ()


def test_what_is_not_known_exactly_is_left(store: StateStore) -> None:
    """No checkpoint of that version, no checksum file, another one, an entry that does not fit."""
    entry(store, 1).unlink()
    checksum = entry(store, 1, "crc")
    whole = checksum.read_bytes()
    for raw in (b"?", json.dumps(json.loads(whole) | {"numFiles": 77}).encode()):
        checksum.write_bytes(raw)
        refuses(store)
    checksum.unlink()
    refuses(store)
    checksum.write_bytes(whole)
    after = entry(store, 2)
    kept = after.read_bytes()
    after.write_bytes(kept + b'{"remove":{"path":"other.parquet"}}\n')
    refuses(store)
    after.write_bytes(kept)
    store.maintenance.expire(retain=1)
    refuses(store)


def refuses(store: StateStore) -> None:
    done = StateStore.open(store.url).maintenance.repair()
    assert (done.repaired, [Path(one.file).name for one in done.left]) == (
        (),
        [entry(store, 1).name],
    )
    assert not entry(store, 1).exists()
