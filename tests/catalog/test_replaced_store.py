"""An open store notices that it was replaced by an older copy, before it writes (I6)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from statestore import Changes, OperatorKey, StateStore
from statestore.catalog.catalog import Catalog
from statestore.errors import CommitConflictError, StoreNotFoundError
from statestore.maintenance.store_context import StoreContext
from statestore.snapshot.subtask_writer import Acknowledgement
from statestore.snapshot.writer import CheckpointWriter
from tests.support.stores import file_bytes, keys_in, uncompacted


def take(store: StateStore, batch: int, checkpoint_id: int | None = None) -> bool:
    job = ("job", batch) if checkpoint_id is None else None
    with store.snapshot(parallelism=1, batch=job, checkpoint_id=checkpoint_id) as checkpoint:
        if batch == 1:
            checkpoint.write_keyed("o", "s", [{"k": 1}], key="k")
        else:
            checkpoint.write_changes("o", "s", Changes(upserts=[{"k": batch}]))
        return checkpoint.already_committed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a store, and next to it a backup of its first three batches."""
    store = uncompacted(tmp_path / "store")
    for batch in (1, 2, 3):
        take(store, batch)
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "backup", tmp_path / "store")
    return tmp_path / "store"


def put_back(folder: Path, name: str = "backup") -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name(name), folder)


WRITES: dict[str, Callable[[StateStore], object]] = {
    "the next batch": lambda store: take(store, 7),
    "a batch that was lost": lambda store: take(store, 6),
    "a batch that the backup has": lambda store: take(store, 3),
    "its own number": lambda store: take(store, 7, checkpoint_id=7),
    "a number that the backup has": lambda store: take(store, 3, checkpoint_id=3),
    "edit": lambda store: store.maintenance.edit("o", "s", put=[{"k": 9}]),
    "compact": lambda store: store.maintenance.compact(everything=True),
    "rekey": lambda store: store.maintenance.rekey("o", max_parallelism=64),
    "purge": lambda store: store.maintenance.forget(OperatorKey("o", 1), search=False),
}


@pytest.mark.parametrize("name", WRITES)
def test_an_idle_writer_does_not_write_to_a_backup(folder: Path, name: str) -> None:
    """Nothing changes in the store. A store that is opened again continues with the backup."""
    store = uncompacted(folder)
    for batch in (4, 5, 6):
        take(store, batch)
    put_back(folder)
    before = file_bytes(folder)
    for _ in range(2):
        with pytest.raises(CommitConflictError, match=r"checkpoint 6 .* newest one is 3"):
            WRITES[name](store)
    assert file_bytes(folder) == before
    again = uncompacted(folder)
    take(again, 4)
    assert keys_in(again, "o") == {1, 2, 3, 4}


def test_no_store_is_created_while_a_backup_is_put_back(folder: Path) -> None:
    store = uncompacted(folder)
    take(store, 4)
    shutil.rmtree(folder)
    with pytest.raises(StoreNotFoundError):
        take(store, 5)
    assert not folder.exists()


def test_a_store_that_another_thread_has_just_created_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did not exist when this thread looked for it."""
    store, look = uncompacted(tmp_path / "store"), StoreContext.catalog

    def look_too_early(_: StoreContext) -> Catalog:
        monkeypatch.setattr(StoreContext, "catalog", look)
        take(store, 1)
        raise StoreNotFoundError("no store")

    monkeypatch.setattr(StoreContext, "catalog", look_too_early)
    take(store, 2)
    assert keys_in(store, "o") == {1, 2}


def test_a_checkpoint_of_a_command_is_known_too(folder: Path, tmp_path: Path) -> None:
    """Also a copy that another object brought into the open store."""
    store = uncompacted(folder)
    store.maintenance.edit("o", "s", put=[{"k": 9}])
    put_back(folder)
    with pytest.raises(CommitConflictError, match="checkpoint 4 "):
        take(store, 4)
    other = uncompacted(tmp_path / "other")
    take(other, 1)
    shutil.copytree(tmp_path / "other", tmp_path / "old")
    uncompacted(folder).maintenance.copy("latest", other)
    put_back(tmp_path / "other", "old")
    with pytest.raises(CommitConflictError, match="checkpoint 2 "):
        take(other, 2)


def test_a_restored_checkpoint_is_known_too(folder: Path) -> None:
    """A job may build on the rows that it has restored, before its first commit."""
    take(uncompacted(folder), 4)
    job = uncompacted(folder)
    assert keys_in(job, "o") == {1, 2, 3, 4}
    put_back(folder)
    with pytest.raises(CommitConflictError, match="checkpoint 4 "):
        take(job, 5)
    assert keys_in(job, "o") == {1, 2, 3}  # reading is allowed


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_backup_under_a_snapshot_is_noticed_at_its_end(folder: Path, is_declared: bool) -> None:
    """Also by the coordinator of subtasks."""
    store = uncompacted(folder)
    take(store, 4)
    shutil.copytree(folder, folder.with_name("later"))
    take(store, 5)

    def write(checkpoint: CheckpointWriter) -> None:
        if is_declared:
            rows = pa.table({"k": [6]})
            writer = checkpoint.declare_keyed("o", "s", rows.schema, key="k")
            put_back(folder, "later")
            answer = writer.subtask(0).write(rows)
            assert checkpoint.acknowledge(Acknowledgement.from_json(answer.to_json()))
        else:
            put_back(folder, "later")
            checkpoint.write_keyed("o", "s", [{"k": 6}], key="k")

    with (
        pytest.raises(CommitConflictError, match=r"checkpoint 5 .* newest one is 4"),
        store.snapshot(parallelism=1, batch=("job", 6)) as checkpoint,
    ):
        write(checkpoint)
    assert keys_in(uncompacted(folder), "o") == {1, 2, 3, 4}


def test_another_store_in_the_same_place_is_noticed(folder: Path, tmp_path: Path) -> None:
    """Even if it has more checkpoints, and the same batches of the same job."""
    store = uncompacted(folder)
    take(store, 4)
    other = uncompacted(tmp_path / "backup2")
    for batch in (1, 2, 3, 4, 5):
        take(other, batch)
    put_back(folder, "backup2")
    for batch in (5, 6):
        with pytest.raises(CommitConflictError, match="is in the place of the store"):
            take(store, batch)


def test_a_background_compaction_does_not_hide_a_backup(folder: Path) -> None:
    store = StateStore.open(str(folder), table_format="parquet")
    for batch in range(4, 12):
        take(store, batch)
    put_back(folder)
    with pytest.raises(CommitConflictError, match="checkpoint 11 "):
        take(store, 12)
    assert keys_in(uncompacted(folder), "o") == {1, 2, 3}


def test_threads_of_a_writer_do_not_alarm_each_other(folder: Path) -> None:
    """A listing may begin before another thread's commit and end after it."""
    store, unexpected = uncompacted(folder), list[BaseException]()

    def write(thread: int) -> None:
        for number in range(8):
            try:
                with store.snapshot(parallelism=1) as checkpoint:
                    checkpoint.write_keyed(f"o{thread}", "s", [{"k": number}], key="k")
                    checkpoint.carry_rest()
            except CommitConflictError as error:
                if "no longer exists" in str(error):
                    unexpected.append(error)

    threads = [threading.Thread(target=write, args=[thread]) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert unexpected == []
