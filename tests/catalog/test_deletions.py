"""What expire, gc and forget delete is recorded: by whom, when and why, but without keys."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statestore import OperatorKey, StateStore
from statestore.catalog import deletions
from statestore.catalog.deletions import Deletion, read_deletions, recorded, surplus_records
from statestore.errors import InvalidArgumentError, StorageError
from statestore.format.names import deletion_of, deletion_path
from statestore.storage import LocalStorage
from tests.support.stores import file_bytes

ROWS = [{"k": f"key-{number}", "n": number} for number in range(4)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with checkpoints 1 to 4, which "ann" uses."""
    monkeypatch.setenv("STATESTORE_ACTOR", "ann")
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet")
    for _ in range(4):
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "n", ROWS, key="k", max_parallelism=4)
    return tmp_path / "s"


def log_of(folder: Path) -> tuple[Deletion, ...]:
    return read_deletions(LocalStorage(str(folder)))


def test_each_command_records_what_it_deletes(folder: Path) -> None:
    store = StateStore.open(str(folder))
    expired = store.maintenance.expire(retain=2)
    done = store.maintenance.gc(minimum_age="0")
    forgotten = store.maintenance.forget(OperatorKey("u", "key-1"), search=False)
    first, second, third = log_of(folder)
    assert (first.command, first.actor, first.why) == ("expire", "ann", "retain 2")
    assert (first.checkpoints, first.first, first.last) == (2, 1, 2)
    assert (first.files, first.size_bytes) == (expired.files, expired.size_bytes)
    assert (second.command, second.why, second.checkpoints) == ("gc", "unused", 2)
    assert (second.files, second.size_bytes) == (done.removed.files, done.removed.size_bytes)
    assert (third.command, third.why) == ("forget", "replaced without a subject")
    assert third.checkpoints == len(forgotten.replaced) == 2
    states = [state for one in forgotten.replaced for state in one.states]
    assert third.files == sum(state.files for state in states)
    assert third.size_bytes == sum(state.size_bytes for state in states)
    assert not [name for name in file_bytes(folder) if "key-1" in name]


def test_nothing_is_recorded_if_nothing_is_deleted(folder: Path) -> None:
    store = StateStore.open(str(folder))
    store.maintenance.expire(retain=4)
    store.maintenance.expire(retain=1, dry_run=True)
    store.maintenance.gc()
    store.maintenance.forget(OperatorKey("u", "nobody"), search=False)
    assert log_of(folder) == ()


def test_a_search_for_a_subject_counts_a_record_as_a_file_without_values(folder: Path) -> None:
    """A release that does not know the records does so too."""
    store = StateStore.open(str(folder))
    done = store.maintenance.forget({"k": "key-2"}, gc=True)
    assert [one.command for one in log_of(folder)] == ["forget", "gc"]
    assert done.search is not None
    assert done.search.is_gone
    assert {path.stat().st_size for path in (folder / "deletions").iterdir()} == {0}


def test_a_record_is_there_before_the_first_deletion(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateStore.open(str(folder))
    store.maintenance.expire(retain=1)

    def die(self: LocalStorage, name: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete", die)
        with pytest.raises(KeyboardInterrupt):
            store.maintenance.gc(minimum_age="0")
    store.maintenance.gc(minimum_age="0")
    _, interrupted, repeated = log_of(folder)
    assert (interrupted.files, interrupted.checkpoints) == (repeated.files, 3)


def test_a_full_disk_delays_a_record_and_stops_no_deletion(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage, put, is_full = LocalStorage(str(folder)), LocalStorage.put_if_absent, iter([True])

    def failing(answers: Iterator[bool]) -> Callable[..., bool]:
        def put_if_room(self: LocalStorage, name: str, data: bytes) -> bool:
            if next(answers, False):
                full = StorageError("the disk is full")
                raise full from OSError(errno.ENOSPC, "No space left on device")
            return put(self, name, data)

        return put_if_room

    monkeypatch.setattr(LocalStorage, "put_if_absent", failing(is_full))
    with recorded(storage, "gc", "unused", [1], [10], 0):
        assert log_of(folder) == ()
    assert len(log_of(folder)) == 1
    monkeypatch.setattr(LocalStorage, "put_if_absent", failing(iter([True, True])))
    with caplog.at_level(logging.WARNING), recorded(storage, "gc", "unused", [1], [10], 0):
        pass
    assert len(log_of(folder)) == 1
    assert "gc is not recorded" in caplog.text


def test_a_store_that_takes_no_record_keeps_its_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateStore.open(str(folder))

    def refuse(self: LocalStorage, name: str, data: bytes) -> bool:
        raise StorageError("forbidden")

    monkeypatch.setattr(LocalStorage, "put_if_absent", refuse)
    with pytest.raises(StorageError, match="forbidden"):
        store.maintenance.expire(retain=1)
    assert store.checkpoints() == (1, 2, 3, 4)


def test_a_collection_keeps_the_newest_records_of_each_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletions, "KEPT_RECORDS", 2)
    store = StateStore.open(str(folder))
    store.maintenance.forget(OperatorKey("u", "key-1"), search=False)
    for _ in range(3):
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.carry_rest()
        store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age="0")
    assert [one.command for one in log_of(folder)] == ["forget", "expire", "expire", "gc"]
    (folder / "deletions" / "other").touch()
    assert surplus_records(["deletions/other"] * 9) == []
    assert len(log_of(folder)) == 4


@pytest.mark.parametrize("actor", ["ann", ".hidden", "a/b=c", "Ünal " * 40])
def test_any_actor_fits_into_a_name(actor: str) -> None:
    counts = (10**10, 1, 10**10 - 1, 10**10, 10**19 - 1)
    path = deletion_path(1, "forget", counts, actor, "older than 7d, retain 3", "0123abcd")
    assert len(path.encode()) <= 210
    found = deletion_of(path)
    assert found is not None
    assert found[:3] == (1, "forget", counts)
    assert actor.startswith(found[3])


def test_the_actor_is_the_variable_or_the_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def actor_of(store: StateStore) -> str | None:
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.carry_rest()
        return checkpoint.manifest.writer.actor

    store = StateStore.open(str(folder))
    assert actor_of(store) == "ann"
    monkeypatch.delenv("STATESTORE_ACTOR")
    monkeypatch.setenv("LOGNAME", "bob")
    assert actor_of(store) == "bob"
    for wrong in ("a\x1bb", "a" * 201):
        before = file_bytes(folder)
        monkeypatch.setenv("STATESTORE_ACTOR", wrong)
        with pytest.raises(InvalidArgumentError, match="set STATESTORE_ACTOR"):
            actor_of(store)
        with pytest.raises(InvalidArgumentError, match="set STATESTORE_ACTOR"):
            store.maintenance.expire(retain=1)
        assert file_bytes(folder) == before


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.delenv("STATESTORE_ACTOR")
    monkeypatch.setattr("getpass.getuser", nameless)
    store = StateStore.open(str(folder))
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.carry_rest()
    assert str(checkpoint.manifest.writer.actor).startswith("uid ")


def test_a_manifest_names_the_checkpoint_that_it_follows(folder: Path) -> None:
    store = StateStore.open(str(folder))
    follows = [store.checkpoint(number).manifest.follows for number in store.checkpoints()]
    assert follows == [None, 1, 2, 3]
    edited = store.maintenance.edit("u", "n", delete=["key-1"])
    manifest = store.checkpoint(edited.new_checkpoint_id or 0).manifest
    assert manifest.follows is None
    assert manifest.origin is not None
    assert manifest.origin["checkpoint"] == 4


@pytest.mark.parametrize(
    ("checkpoints", "first", "last", "text"),
    [(0, None, None, "none"), (1, 7, 7, "7"), (3, 1, 3, "1 to 3"), (3, 1, 9, "3 of 1 to 9")],
)
def test_checkpoints_are_a_span(
    checkpoints: int, first: int | None, last: int | None, text: str
) -> None:
    deletion = Deletion(
        deleted_at_ms=0,
        command="gc",
        actor="ann",
        why="unused",
        checkpoints=checkpoints,
        first=first,
        last=last,
        files=0,
        size_bytes=0,
    )
    assert deletion.numbers == text
