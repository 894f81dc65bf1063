"""A Delta table's log is written without a JVM, and without a look into what was just written."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from statestore import Acknowledgement, StateStore, key_group_of
from statestore.errors import InvalidArgumentError
from statestore.files.statistics import file_statistics, statistics_columns
from statestore.format.manifest import Entry
from statestore.testing.counting import CountingStorage


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore.over(CountingStorage(str(tmp_path / "store")))


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
    """And the log has the bounds of each footer."""
    for first in (0, 100):
        with store.snapshot(parallelism=2) as checkpoint:
            options: dict[str, Any] = {"key": "k", "max_parallelism": 16, "layout": layout}
            checkpoint.map("u", "s", rows(first), map_key="m", **options)
            checkpoint.union("u", "offsets", [[{"n": 1}], [{"n": 2}]])
    storage = store.parts.storage
    assert isinstance(storage, CountingStorage)
    assert not [name for name in storage.opened if name.endswith(".parquet")]
    for entry in store.manifest().entries:
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
def test_what_other_processes_wrote_is_not_opened_either(
    store: StateStore, sent: Callable[[Acknowledgement], Acknowledgement]
) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        schema = rows().schema
        writer = checkpoint.declare("u", "s", schema, key="k", max_parallelism=16)
        for subtask in range(2):
            mine = writer.subtask(subtask)
            own = [row for row in rows().to_pylist() if group_of(row) in mine.key_groups]
            checkpoint.acknowledge(sent(mine.write(own)))
    storage = store.parts.storage
    assert isinstance(storage, CountingStorage)
    assert not [name for name in storage.opened if name.endswith(".parquet")]
    (entry,) = store.manifest().keyed
    assert all(one["minValues"] for one in logged(store, entry).values())


def test_files_that_a_checkpoint_names_again_have_bounds_too(
    store: StateStore, tmp_path: Path
) -> None:
    """Of a copy nobody has just written the files: their footers are read."""
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.keyed("u", "s", rows(), key="k", max_parallelism=16)
    store.maintenance.copy("latest", str(tmp_path / "copy"))
    target = StateStore.open(str(tmp_path / "copy"))
    (entry,) = target.manifest().keyed
    assert all(one["minValues"] for one in logged(target, entry).values())


@pytest.mark.parametrize("name", ["a b", "é", "a#b?c", "50% of it", "100%zz"])
def test_a_table_lies_where_its_store_does(tmp_path: Path, name: str) -> None:
    store = StateStore.open(str(tmp_path / name))
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.keyed("u", "s", rows(), key="k", max_parallelism=4)
    (entry,) = store.manifest().keyed
    assert (tmp_path / name / entry.table.path / "_delta_log" / f"{0:020}.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_where_delta_rs_would_write_elsewhere_no_table_is_begun(tmp_path: Path) -> None:
    """A path with a percent sign and two digits is another one to it."""
    store = StateStore.open(str(tmp_path / "a%20b"))
    with pytest.raises(InvalidArgumentError, match="table_format='parquet'"):
        store.snapshot(parallelism=1)
    assert [*tmp_path.iterdir()] == []


def test_the_history_of_a_table_says_which_checkpoint_it_shows(store: StateStore) -> None:
    """Also while the state has changes, of which the table has nothing."""
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.keyed("u", "s", rows().select(["k", "v"]), key="k", max_parallelism=16)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.keyed("u", "s", rows(50).select(["k", "v"]), key="k", max_parallelism=16)
    with store.snapshot(parallelism=2) as checkpoint:
        entry = checkpoint.changes("u", "s", deletes=rows(50).select(["k"]).slice(0, 1))
    table = DeltaTable(f"{store.url}/{entry.table.path}")
    said = [commit["userMetadata"] for commit in table.history()]
    assert said == ["statestore checkpoint 2", "statestore checkpoint 1"]
    assert table.to_pyarrow_table().num_rows == 200
    assert store.restore(parallelism=1).keyed("u", "s").to_arrow(0).read_all().num_rows == 199
