"""A lost entry of a Delta log is written again only if its content is known exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from statestore.errors import StorageError
from statestore.store import StateStore

pytestmark = pytest.mark.slow

VERSIONS = 3


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    made = StateStore.open(str(tmp_path / "store"), compaction=None)
    for number in range(1, VERSIONS + 1):
        take(made, number)
    return made


def take(store: StateStore, number: int) -> None:
    rows = [{"k": k, "n": number} for k in range(number, number + 3)]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=4)


def table_of(store: StateStore) -> Path:
    return Path(store.url, store.checkpoint().manifest.keyed_entry("u", "s").table.path)


def entry(store: StateStore, version: int, ending: str = "json") -> Path:
    return table_of(store) / "_delta_log" / f"{version:020}.{ending}"


def seen(store: StateStore, version: int | None = None) -> tuple[Any, ...]:
    """Return what another Delta reader finds at a version."""
    table = DeltaTable(table_of(store), version=version)
    return sorted(table.file_uris()), table.metadata().configuration, table.schema().to_json()


@pytest.mark.long_cases("lost2")
@pytest.mark.parametrize("lost", [(0,), pytest.param((1,), marks=pytest.mark.long), (0, 1)])
def test_a_lost_entry_is_written_again(
    spark: SparkSession, store: StateStore, lost: tuple[int, ...]
) -> None:
    """Every version is unchanged for every reader, and the next one can be written."""
    before = [seen(store, version) for version in range(VERSIONS)]
    table_id = DeltaTable(table_of(store)).metadata().id
    for version in lost:
        entry(store, version).unlink()
    with pytest.raises(StorageError, match="statestore repair"):
        take(store, 9)
    planned = StateStore.open(store.url).maintenance.repair(dry_run=True)
    assert not entry(store, lost[0]).exists()
    done = StateStore.open(store.url).maintenance.repair()
    assert (done.repaired, done.left) == (planned.repaired, ())
    assert [Path(one.file).name for one in done.repaired] == [f"{v:020}.json" for v in lost]
    assert [seen(store, version) for version in range(VERSIONS)] == before
    assert DeltaTable(table_of(store)).metadata().id == table_id
    take(store, 9)
    assert len(seen(store)[0]) == store.checkpoint().manifest.files
    assert spark.read.format("delta").load(str(table_of(store))).count() == 3
    assert StateStore.open(store.url).maintenance.repair().repaired == ()


def test_an_entry_that_is_not_known_exactly_is_left(store: StateStore) -> None:
    """The following entry does not match, and there is no checkpoint of that version."""
    entry(store, 1).unlink()
    after = entry(store, 2)
    kept = after.read_bytes()
    after.write_bytes(kept + b'\n{"remove":{"path":"other.parquet"}}\n')
    refuses(store)
    after.write_bytes(kept)
    store.maintenance.expire(retain=1)
    refuses(store)


@pytest.mark.long
def test_an_entry_that_changed_the_columns_is_written_again(
    spark: SparkSession, store: StateStore
) -> None:
    """This includes an entry for which Spark's Delta wrote a checksum file, which no longer
    matches.
    """
    rows = [{"k": k, "n": k, "more": "x"} for k in range(3)]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=4)
    take_again = [{"k": k, "n": k, "more": "y"} for k in range(3)]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", take_again, key="k", max_parallelism=4)
    before = [seen(store, version) for version in range(VERSIONS + 2)]
    entry(store, VERSIONS).unlink()
    entry(store, VERSIONS, "crc").write_text("{}")
    (done,) = store.maintenance.repair().repaired
    assert done.file.endswith(entry(store, VERSIONS).name)
    assert [seen(store, version) for version in range(VERSIONS + 2)] == before
    assert not entry(store, VERSIONS, "crc").exists()
    read = spark.read.format("delta").option("versionAsOf", VERSIONS).load(str(table_of(store)))
    assert {row["more"] for row in read.collect()} == {"x"}


def refuses(store: StateStore) -> None:
    done = StateStore.open(store.url).maintenance.repair()
    assert (done.repaired, [Path(one.file).name for one in done.left]) == (
        (),
        [entry(store, 1).name],
    )
    assert not entry(store, 1).exists()
