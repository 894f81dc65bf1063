"""A snapshot commits all of its states or none, and refuses rows that could not be restored."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore.errors import (
    CommitConflictError,
    DamagedFileError,
    DuplicateKeyError,
    InvalidArgumentError,
    MissingFileError,
    StateStoreError,
    StorageError,
)
from statestore.storage import LocalStorage
from statestore.store import StateStore
from tests.snapshot.test_state_request import ROWS, files, take

# --- One commit -----------------------------------------------------------------------------------


def test_states_and_offsets_become_visible_together(store: StateStore) -> None:
    """I4: none of them before the block ends, all of them after it."""
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "n", ROWS, key="k")
        checkpoint.write_union("source", "offsets", [[{"p": 0}], [{"p": 1}]])
        assert store.checkpoints() == ()
        for known in ("id", "manifest"):
            with pytest.raises(InvalidArgumentError, match="when its 'with' block ends"):
                getattr(checkpoint, known)
    assert checkpoint.id == 1
    assert store.checkpoints() == (1,)
    assert store.checkpoint().manifest == checkpoint.manifest
    assert (checkpoint.manifest.parallelism, checkpoint.manifest.uids) == (2, ("source", "u"))


@pytest.mark.parametrize("sort", ["keyed", "operator"])
@pytest.mark.parametrize("damage", ["cut short", "longer", "gone"])
def test_a_file_with_the_wrong_size_stops_the_commit(
    store: StateStore, sort: str, damage: str
) -> None:
    """I5: its size is checked before the manifest is put; the error names the file."""
    writer = store.snapshot(parallelism=1)

    def commit() -> None:
        with writer as checkpoint:
            checkpoint.write_keyed("u", "n", ROWS, key="k")
            checkpoint.write_union("u", "offsets", [[{"p": 0}]])
            file = sorted(Path(store.url, "operators/u", sort).rglob("*.parquet"))[-1]
            raw = file.read_bytes()
            file.unlink()
            if damage != "gone":
                file.write_bytes(raw[:-1] if damage == "cut short" else raw + b"\0")

    error = MissingFileError if damage == "gone" else DamagedFileError
    with pytest.raises(error, match=rf"operators/u/{sort}/.*\.parquet"):
        commit()
    assert store.checkpoints() == ()
    assert files(store) == []


def test_every_referenced_file_has_the_recorded_size_and_digest(store: StateStore) -> None:
    """I5: and there are no other files."""
    take(store)
    manifest = store.checkpoint().manifest
    named = {f"{e.table.path}/{h.path}": h for e in manifest.entries for h in e.handles}
    assert sorted(name.rpartition("/")[2] for name in named) == files(store)
    for name, handle in named.items():
        assert Path(store.url, name).stat().st_size == handle.size_bytes


@pytest.mark.parametrize("error", [RuntimeError("job"), KeyboardInterrupt(), SystemExit(1)])
def test_a_job_that_raises_leaves_no_files(store: StateStore, error: BaseException) -> None:
    """I4, I10: its files are deleted, the last checkpoint stays, and the job's error is raised."""
    take(store)
    before = files(store)
    with pytest.raises(type(error)) as caught, store.snapshot(parallelism=2) as checkpoint:  # noqa: PT012
        checkpoint.write_keyed("u", "n", ROWS, key="k")
        checkpoint.write_broadcast("u", "rules", [{"r": 1}])
        assert len(files(store)) > len(before)
        raise error
    assert caught.value is error
    assert files(store) == before
    assert store.checkpoints() == (1,)
    assert store.restore(parallelism=1).keyed("u", "n").to_arrow(0).num_rows == 3
    assert take(store) is not None
    assert store.checkpoints() == (1, 2)


def test_a_refused_state_can_be_omitted(store: StateStore) -> None:
    """The job can catch the error and continue with the other states."""
    with store.snapshot(parallelism=1) as checkpoint:
        with pytest.raises(DuplicateKeyError):
            checkpoint.write_keyed("u", "twice", [{"k": 1}, {"k": 1}], key="k")
        checkpoint.write_keyed("u", "n", ROWS, key="k")
    assert [entry.state.name for entry in store.checkpoint().manifest.entries] == ["n"]


def test_one_of_two_concurrent_writers_commits(store: StateStore) -> None:
    """I4, I6: the other one's files are deleted, and its next attempt has a new id."""
    first, second = store.snapshot(parallelism=1), store.snapshot(parallelism=1)
    with pytest.raises(CommitConflictError, match=r"checkpoint 1 .*Take the snapshot again"):  # noqa: PT012, SIM117
        with second:
            second.write_keyed("u", "n", ROWS, key="k")
            with first:
                first.write_keyed("u", "n", ROWS, key="k")
    assert len(files(store)) == len(store.checkpoint().manifest.keyed[0].handles)
    assert store.restore(parallelism=1).keyed("u", "n").to_arrow(0).num_rows == 3
    take(store)
    assert store.checkpoints() == (1, 2)


def test_files_of_a_possibly_successful_commit_are_kept(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5, I10: the manifest was put, but the response was lost; its files must exist."""
    put = LocalStorage.put_if_absent

    def lost(self: LocalStorage, name: str, data: bytes) -> bool:
        put(self, name, data)
        raise StorageError("the network is down")

    with store.snapshot(parallelism=1) as checkpoint:
        pass
    with pytest.raises(StorageError), store.snapshot(parallelism=1) as checkpoint:  # noqa: PT012
        checkpoint.write_keyed("u", "n", ROWS, key="k")
        monkeypatch.setattr(LocalStorage, "put_if_absent", lost)
    assert store.checkpoints() == (1, 2)
    assert store.restore(parallelism=1).keyed("u", "n").to_arrow(0).num_rows == 3


def test_an_error_during_the_clean_up_does_not_hide_the_jobs_error(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It becomes a note, one for each file that could not be deleted."""

    def failing(self: LocalStorage, name: str) -> None:
        raise StorageError(f"cannot delete {name}")

    with pytest.raises(RuntimeError, match="job") as caught, store.snapshot(parallelism=1) as c:  # noqa: PT012
        entry = c.write_keyed("u", "n", ROWS, key="k")
        monkeypatch.setattr(LocalStorage, "delete", failing)
        raise RuntimeError("job")
    assert len(caught.value.__notes__) == len(entry.handles)


def test_a_writer_can_be_used_once(store: StateStore) -> None:
    """Its block and its methods cannot be used again, and its commit stays."""
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", ROWS, key="k")
    with pytest.raises(InvalidArgumentError, match="take another snapshot"):
        checkpoint.write_keyed("u", "other", ROWS, key="k")
    with pytest.raises(InvalidArgumentError, match="take another snapshot"):
        checkpoint.write_union("u", "other", [[]])
    with pytest.raises(InvalidArgumentError, match="take another snapshot"), checkpoint:
        raise AssertionError
    assert store.restore(parallelism=1).keyed("u", "n").to_arrow(0).num_rows == 3


def test_a_full_disk_leaves_nothing(store: StateStore) -> None:
    """The error names the file, and no part of the file is left."""
    take(store, pa.table({"k": [1]}))
    before = files(store)
    big = pa.table({"k": [1], "v": [os.urandom(9000)]})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StorageError, match=r"cannot write .*\.parquet"):
            take_other(store, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(store) == before


def take_other(store: StateStore, rows: Any) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "other", rows, key="k")


# --- the store ------------------------------------------------------------------------------------


def test_a_store_is_not_created_in_a_foreign_folder(tmp_path: Path) -> None:
    """This also holds for a file; the existing files are unchanged."""
    (tmp_path / "thesis.txt").write_text("x")
    for place in (tmp_path, tmp_path / "thesis.txt"):
        store = StateStore.open(str(place), table_format="parquet")
        with pytest.raises(StateStoreError, match="not a store"):
            store.snapshot(parallelism=1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_table_format_must_be_delta_or_parquet(tmp_path: Path) -> None:
    """If delta-rs would write to another place, no Delta table is created."""
    with pytest.raises(
        InvalidArgumentError, match="'iceberg'; the table formats are delta and parquet"
    ):
        StateStore.open(str(tmp_path), table_format="iceberg")
    with pytest.raises(InvalidArgumentError, match="table_format='parquet'"):
        StateStore.open(str(tmp_path / "a%2Fb")).snapshot(parallelism=1)
    assert [*tmp_path.iterdir()] == []


def test_the_writer_and_the_times_are_recorded(store: StateStore) -> None:
    """Each attempt has a token of its own."""
    take(store)
    take(store)
    first, second = (store.checkpoint(checkpoint).manifest for checkpoint in (1, 2))
    assert first.started_at_ms <= first.created_at_ms <= second.started_at_ms
    assert first.writer.token != second.writer.token
    assert first.writer.name == second.writer.name
    assert first.store_id == second.store_id
