"""A Delta table's log is written without a JVM, and without reading the new data files."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from statestore import Acknowledgement, OperatorKey, StateStore, key_group_of
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import Entry
from statestore.parquet.statistics import file_statistics, statistics_columns
from statestore.snapshot.state_spec import Changes
from statestore.testing.faults import CountingStorage


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore.open(CountingStorage(str(tmp_path / "store")))


def rows(first: int = 0) -> pa.Table:
    numbers = range(first, first + 200)
    return pa.table({"k": [f"user-{n:03}" for n in numbers], "m": numbers, "v": numbers})


def group_of(row: dict[str, Any]) -> int:
    return key_group_of(row["k"], max_parallelism=16)


def logged(store: StateStore, entry: Entry) -> dict[str, Any]:
    """Return the statistics of the newest version's files, by path."""
    table = DeltaTable(f"{store.url}/{entry.table.path}")
    folder = Path(store.url, entry.table.path, "_delta_log")
    found = {}
    for version in range(table.version() + 1):
        for line in (folder / f"{version:020}.json").read_text().splitlines():
            if add := json.loads(line).get("add"):
                found[add["path"]] = json.loads(add["stats"])
    assert {Path(uri).name for uri in table.file_uris()} == {
        Path(handle.path).name for handle in entry.handles
    }
    return found


@pytest.mark.parametrize("layout", ["partitioned", "ranged"])
def test_a_snapshot_opens_no_file_to_publish_it(store: StateStore, layout: str) -> None:
    """The log has the bounds from each footer."""
    for first in (0, 100):
        with store.snapshot(parallelism=2) as checkpoint:
            options: dict[str, Any] = {"key": "k", "max_parallelism": 16, "layout": layout}
            checkpoint.write_keyed("u", "s", rows(first), kind="map", entry="m", **options)
            checkpoint.write_union("u", "offsets", [[{"n": 1}], [{"n": 2}]])
    storage = store.parts.storage
    assert isinstance(storage, CountingStorage)
    assert not [name for name in storage.opened if name.endswith(".parquet")]
    for entry in store.checkpoint().manifest.entries:
        found = logged(store, entry)
        for handle in entry.handles:
            metadata = pq.read_metadata(Path(store.url, entry.table.path, handle.path))
            expected = file_statistics(metadata, statistics_columns(entry.state))
            assert found[handle.path] == json.loads(expected)
            assert found[handle.path]["minValues"]


@pytest.mark.parametrize(
    "sent",
    [
        lambda answer: pickle.loads(pickle.dumps(answer)),
        lambda answer: Acknowledgement.from_json(answer.to_json()),
    ],
    ids=["pickle", "json"],
)
def test_files_of_other_processes_are_not_opened_either(
    store: StateStore, sent: Callable[[Acknowledgement], Acknowledgement]
) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        schema = rows().schema
        writer = checkpoint.declare_keyed("u", "s", schema, key="k", max_parallelism=16)
        for subtask in range(2):
            mine = writer.subtask(subtask)
            own = [row for row in rows().to_pylist() if group_of(row) in mine.key_groups]
            checkpoint.acknowledge(sent(mine.write(own)))
    storage = store.parts.storage
    assert isinstance(storage, CountingStorage)
    assert not [name for name in storage.opened if name.endswith(".parquet")]
    (entry,) = store.checkpoint().manifest.keyed
    assert all(one["minValues"] for one in logged(store, entry).values())


def test_reused_files_have_bounds_too(store: StateStore, tmp_path: Path) -> None:
    """Another store wrote a copy's files, so their footers are read."""
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", rows(), key="k", max_parallelism=16)
    store.maintenance.copy("latest", str(tmp_path / "copy"))
    target = StateStore.open(str(tmp_path / "copy"))
    (entry,) = target.checkpoint().manifest.keyed
    assert all(one["minValues"] for one in logged(target, entry).values())


@pytest.mark.parametrize("name", ["a b", "é", "a#b?c", "50% of it", "100%zz"])
def test_a_table_is_in_the_folder_of_its_store(tmp_path: Path, name: str) -> None:
    store = StateStore.open(str(tmp_path / name))
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows(), key="k", max_parallelism=4)
    (entry,) = store.checkpoint().manifest.keyed
    assert (tmp_path / name / entry.table.path / "_delta_log" / f"{0:020}.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_no_table_is_created_where_delta_rs_would_use_another_path(tmp_path: Path) -> None:
    """delta-rs reads a percent sign followed by two digits as a different path."""
    store = StateStore.open(str(tmp_path / "a%20b"))
    with pytest.raises(InvalidArgumentError, match="table_format='parquet'"):
        store.snapshot(parallelism=1)
    assert [*tmp_path.iterdir()] == []


def label_of(table: DeltaTable) -> int:
    """Return the checkpoint in a table's name and description."""
    metadata = table.metadata()
    number = int(metadata.name.rpartition(" ")[2])
    assert metadata.name == f"state 's' of operator 'u', checkpoint {number}"
    assert f"state 's' of operator 'u' as of checkpoint {number}. Changes" in metadata.description
    return number


def assert_shows(store: StateStore, checkpoint_id: int) -> None:
    """Compare the label, and the rows that DuckDB reads, with a checkpoint."""
    table = DeltaTable(f"{store.url}/operators/u/keyed/s")
    assert label_of(table) == checkpoint_id
    assert table.history(1)[0]["userMetadata"] == f"statestore checkpoint {checkpoint_id}"
    files = table.to_pyarrow_dataset()
    found = duckdb.sql("SELECT k, v FROM files ORDER BY k", connection=duckdb.connect())
    assert files is not None
    assert found is not None
    state = store.restore(checkpoint=checkpoint_id, parallelism=1).keyed("u", "s")
    restored = state.to_arrow(0).select(["k", "v"]).sort_by("k")
    assert found.to_arrow_table() == restored


@pytest.mark.slow
def test_a_table_names_the_checkpoint_that_it_shows(tmp_path: Path) -> None:
    """I5: also while the state has changes, which the table does not contain."""
    store = StateStore.open(str(tmp_path / "store"), compaction=None)
    for first in (0, 50):
        with store.snapshot(parallelism=2) as checkpoint:
            given = rows(first).select(["k", "v"])
            checkpoint.write_keyed("u", "s", given, key="k", max_parallelism=16)
    assert_shows(store, 2)
    before = DeltaTable(f"{store.url}/operators/u/keyed/s").version()
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "s", Changes(deletes=rows(50).select(["k"]).slice(0, 1)))
    assert_shows(store, 2)
    assert DeltaTable(f"{store.url}/operators/u/keyed/s").version() == before
    store.maintenance.compact(everything=True)
    assert_shows(store, 4)
    store.maintenance.edit("u", "s", put=[{"k": "new", "v": 1}])
    assert_shows(store, 5)
    store.maintenance.forget(OperatorKey("u", "new"), search=False)
    assert_shows(store, store.checkpoints()[-1])
    store.maintenance.copy("latest", str(tmp_path / "copy"))
    assert_shows(StateStore.open(str(tmp_path / "copy")), 1)


def test_a_repaired_entry_has_the_label_of_its_checkpoint(store: StateStore) -> None:
    for first in range(3):
        with store.snapshot(parallelism=2) as checkpoint:
            given = rows(first).select(["k", "v"])
            checkpoint.write_keyed("u", "s", given, key="k", max_parallelism=16)
    url = f"{store.url}/operators/u/keyed/s"
    Path(url, "_delta_log", f"{1:020}.json").unlink()
    assert store.maintenance.repair().repaired
    for version in range(3):
        assert label_of(DeltaTable(url, version=version)) == version + 1
    commits = [commit["userMetadata"] for commit in DeltaTable(url).history()]
    assert commits == [f"statestore checkpoint {number}" for number in (3, 2, 1)]
