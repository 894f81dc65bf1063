"""A Delta log stays short: its checkpoints name the current files, and unneeded entries are
deleted.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.delta.log_cleanup import INTERVAL, LogFile, add_checkpoint, log_file, unneeded_files
from statestore.storage import Listed, LocalStorage

pytestmark = pytest.mark.slow

FOLDER = "operators/u/keyed/s"


def rows(number: int) -> pa.Table:
    return pa.table({"k": [f"user-{n}" for n in range(40)], "v": [number] * 40})


def snapshots(store: StateStore, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("u", "s", rows(number), key="k", max_parallelism=8)


def log(store: StateStore) -> dict[str, Path]:
    return {path.name: path for path in Path(store.url, FOLDER, "_delta_log").iterdir()}


def versions(store: StateStore, ending: str) -> list[int]:
    return sorted(int(name[:20]) for name in log(store) if name.endswith(f".{ending}"))


def shown(store: StateStore) -> set[int]:
    """Return the values that readers see in the newest version."""
    url = str(Path(store.url, FOLDER))
    found = [
        DeltaTable(url).to_pyarrow_table().column("v").to_pylist(),
        pl.read_delta(url)["v"].to_list(),
    ]
    assert [len(values) for values in found] == [40, 40]
    return {value for values in found for value in values}


def aged(*paths: Path) -> None:
    """Make files 30 hours older."""
    then = time.time() - 30 * 3600
    for path in paths:
        os.utime(path, (then, then))


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore.open(str(tmp_path / "store"), table_format="delta")


def test_its_checkpoints_name_no_file_that_was_removed(store: StateStore) -> None:
    snapshots(store, 3 * INTERVAL + 2)
    assert versions(store, "checkpoint.parquet") == [INTERVAL, 2 * INTERVAL, 3 * INTERVAL]
    sizes = []
    for version in versions(store, "checkpoint.parquet"):
        actions = pq.read_table(log(store)[f"{version:020}.checkpoint.parquet"])
        assert actions.column("remove").null_count == len(actions)
        files = [add["path"] for add in actions.column("add").to_pylist() if add]
        entry = store.checkpoint(version + 1).manifest.keyed[0]
        assert entry.table.version == version
        assert sorted(files) == sorted(handle.path for handle in entry.handles)
        sizes.append(len(actions))
    assert len(set(sizes)) == 1
    last = json.loads(log(store)["_last_checkpoint"].read_text())
    assert (last["version"], last["size"]) == (3 * INTERVAL, sizes[-1])
    assert shown(store) == {3 * INTERVAL + 2}


def test_a_checkpoint_replaces_the_entries_before_it(store: StateStore) -> None:
    """This also holds if readers get no hint to it, as after a crash between the two PUTs."""
    snapshots(store, INTERVAL + 3)
    for name, path in log(store).items():
        if name < f"{INTERVAL:020}.checkpoint":
            path.unlink()
    assert shown(store) == {INTERVAL + 3}
    log(store)["_last_checkpoint"].unlink()
    assert shown(store) == {INTERVAL + 3}
    snapshots(store, 1, first=INTERVAL + 4)
    assert shown(store) == {INTERVAL + 4}


def test_gc_deletes_the_entries_that_no_kept_checkpoint_needs(store: StateStore) -> None:
    snapshots(store, 3 * INTERVAL + 2)
    store.maintenance.savepoint("old", INTERVAL + 5)
    store.maintenance.expire(retain=3)
    done = store.maintenance.gc(minimum_age="0")
    # The savepoint names version INTERVAL + 4.
    assert versions(store, "json") == list(range(INTERVAL, 3 * INTERVAL + 2))
    assert done.log_files.files == INTERVAL
    store.maintenance.delete_savepoint("old")
    store.maintenance.expire(retain=3)
    store.maintenance.gc(minimum_age="0")
    # The oldest kept checkpoint names version 3 * INTERVAL - 1.
    assert versions(store, "json") == list(range(2 * INTERVAL, 3 * INTERVAL + 2))
    assert versions(store, "checkpoint.parquet") == [2 * INTERVAL, 3 * INTERVAL]
    assert shown(store) == {3 * INTERVAL + 2}
    assert store.maintenance.verify().is_intact
    snapshots(store, INTERVAL)
    assert shown(store) == {INTERVAL}
    assert store.maintenance.gc(minimum_age="0").log_files.files == 0


@pytest.mark.long
def test_readers_skip_an_outdated_hint(store: StateStore, spark: SparkSession) -> None:
    """A writer that stalls for a day between its two PUTs leaves an outdated hint."""
    snapshots(store, 2 * INTERVAL + 2)
    store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age="0")
    assert versions(store, "checkpoint.parquet") == [2 * INTERVAL]
    for hint in (f'{{"version": {INTERVAL}, "size": 9}}', None):
        last = log(store)["_last_checkpoint"]
        last.unlink()
        if hint:
            last.write_text(hint)
        assert shown(store) == {2 * INTERVAL + 2}
        read = spark.read.format("delta").load(str(Path(store.url, FOLDER)))
        assert {row.v for row in read.collect()} == {2 * INTERVAL + 2}
    snapshots(store, 1, first=2 * INTERVAL + 3)
    assert shown(store) == {2 * INTERVAL + 3}


def test_recent_entries_stay(store: StateStore) -> None:
    snapshots(store, 2 * INTERVAL + 2)
    store.maintenance.expire(retain=1)
    before = sorted(log(store))
    assert store.maintenance.gc().log_files.files == 0
    assert store.maintenance.gc(minimum_age="0", dry_run=True).log_files.files > 0
    assert sorted(log(store)) == before
    entries = [path for name, path in log(store).items() if name < f"{INTERVAL:020}.checkpoint"]
    aged(*entries)
    # Checkpoints that have just expired name these entries.
    assert store.maintenance.gc().log_files.files == 0
    aged(*Path(store.url, "checkpoints").iterdir())
    # The log checkpoint that would replace them is new, so some readers may not use it yet.
    assert store.maintenance.gc().log_files.files == 0
    aged(log(store)[f"{INTERVAL:020}.checkpoint.parquet"])
    assert store.maintenance.gc().log_files.files == INTERVAL
    assert shown(store) == {2 * INTERVAL + 2}


def test_nothing_is_deleted_if_readers_get_no_hint_to_a_checkpoint(store: StateStore) -> None:
    snapshots(store, INTERVAL + 3)
    store.maintenance.expire(retain=1)
    last = log(store)["_last_checkpoint"]
    for text in ('{"version": 3}', "{", "[]"):
        last.write_text(text)
        assert store.maintenance.gc(minimum_age="0").log_files.files == 0
    last.unlink()
    assert store.maintenance.gc(minimum_age="0").log_files.files == 0


def test_vacuum_with_default_settings_deletes_no_kept_file(store: StateStore) -> None:
    """VACUUM succeeds although no checkpoint of the log names the removed files."""
    snapshots(store, INTERVAL + 3)
    store.maintenance.expire(retain=INTERVAL)
    store.maintenance.gc(minimum_age="0")
    table = DeltaTable(str(Path(store.url, FOLDER)))
    assert table.vacuum(dry_run=False) == []
    assert table.vacuum(dry_run=False, full=True) == []
    assert store.maintenance.verify().is_intact


def test_a_foreign_table_below_the_store_is_left_alone(store: StateStore) -> None:
    snapshots(store, 2)
    theirs = Path(store.url, "reports")
    for number in range(12):
        write_deltalake(theirs, rows(number), mode="overwrite")
        if number == 10:
            DeltaTable(theirs).create_checkpoint()
    before = sorted(theirs.rglob("*"))
    assert store.maintenance.gc(minimum_age="0").log_files.files == 0
    assert sorted(theirs.rglob("*")) == before


def test_a_log_with_multi_part_checkpoints_is_left_to_its_writer(store: StateStore) -> None:
    """Spark writes such checkpoints if it is configured to. The next snapshots still succeed."""
    snapshots(store, INTERVAL + 2)
    name = f"{INTERVAL:020}.checkpoint"
    log(store)[f"{name}.parquet"].rename(
        Path(store.url, FOLDER, "_delta_log", f"{name}.0000000001.0000000001.parquet")
    )
    log(store)["_last_checkpoint"].write_text(f'{{"version":{INTERVAL},"size":9,"parts":1}}')
    for version in range(3):  # all readers need that checkpoint
        log(store)[f"{version:020}.json"].unlink()
    snapshots(store, INTERVAL + 2, first=INTERVAL + 3)
    assert versions(store, "checkpoint.parquet") == []
    assert shown(store) == {2 * INTERVAL + 4}


def test_a_log_checkpoint_describes_the_loaded_version(store: StateStore) -> None:
    """Another writer has meanwhile added versions."""
    snapshots(store, INTERVAL + 1)
    url = str(Path(store.url, FOLDER))
    loaded = DeltaTable(url)
    assert loaded.version() == INTERVAL
    snapshots(store, 2, first=INTERVAL + 2)
    wanted = log(store)[f"{INTERVAL:020}.checkpoint.parquet"]
    by_the_writer = pq.read_table(wanted)
    wanted.unlink()
    add_checkpoint(LocalStorage(store.url), FOLDER, loaded)
    assert pq.read_table(wanted).column("add").to_pylist() == (
        by_the_writer.column("add").to_pylist()
    )
    assert shown(store) == {INTERVAL + 3}


def test_log_files_are_recognized_by_name() -> None:
    log = f"{FOLDER}/_delta_log"
    name = f"{7:020}"
    assert log_file(f"{log}/{name}.json") == LogFile(FOLDER, 7, "entry")
    assert log_file(f"{log}/{name}.checkpoint.parquet") == LogFile(FOLDER, 7, "checkpoint")
    for checksum in (f"{name}.crc", f".{name}.json.crc", f".{name}.checkpoint.parquet.crc"):
        assert log_file(f"{log}/{checksum}") == LogFile(FOLDER, 7, "checksum")
    for other in (
        f"{log}/_last_checkpoint",
        f"{log}/{name}.checkpoint.0000000001.0000000002.parquet",
        f"{log}/{name}.0000000009.compacted.json",
        f"{FOLDER}/{name}.json",
        f"reports/_delta_log/{name}.json",
    ):
        assert log_file(other) is None


def test_a_table_without_a_kept_checkpoint_keeps_its_newest_version(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    log = f"{FOLDER}/_delta_log"
    storage.put_if_absent(f"{log}/_last_checkpoint", b'{"version": 20}')
    names = [f"{version:020}.{end}" for version in (9, 10, 20, 21) for end in ("json", "crc")]
    names += [f"{version:020}.checkpoint.parquet" for version in (10, 20, 30)]
    old = [Listed(f"{log}/{name}", 1, 0) for name in names]
    gone = {item.name.rpartition("/")[2] for item in unneeded_files(storage, old, {})}
    assert gone == {name for name in names if int(name[:20]) < 20}
