"""Long file lists are put once, referenced again while the files stay, and collected with them."""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

import pytest

from statestore import ParquetOptions, StateStore
from statestore.cli.output import page
from statestore.cli.verbs.collect import write_collected
from statestore.errors import MalformedManifestError, StorageError
from statestore.format.handles import list_of
from statestore.format.names import manifest_path
from statestore.maintenance.retention import tombstone
from statestore.snapshot.state_spec import Changes
from statestore.storage import LocalStorage, Storage
from statestore.testing.faults import CountingStorage, Fault, FaultKind, FaultyStorage, calls_of

LISTED = ParquetOptions(list_bytes=1)
UIDS = ("a", "b")


def over(storage: Storage) -> StateStore:
    return StateStore.open(storage, table_format="parquet", parquet=LISTED, compaction=None)


def opened(folder: Path) -> StateStore:
    return over(LocalStorage(str(folder)))


def write(store: StateStore, n: int, *uids: str) -> None:
    """Take a checkpoint that writes some operators and carries the others."""
    with store.snapshot(parallelism=2) as checkpoint:
        for uid in uids:
            rows = [{"k": f"key {i}", "n": n + i} for i in range(20)]
            checkpoint.write_keyed(
                uid, "counts", rows, key="k", max_parallelism=8, layout="partitioned"
            )
        checkpoint.carry_rest()


def rows_of(store: StateStore, uid: str, checkpoint: int | str = "latest") -> list[int]:
    state = store.restore(checkpoint=checkpoint, parallelism=3).keyed(uid, "counts")
    return sorted(row["n"] for i in range(3) for row in state.to_arrow(i).to_pylist())


def lists_of(store: StateStore, checkpoint: int | str = "latest") -> list[str]:
    """Return the lists of a checkpoint by operator; a base's list precedes those of its changes."""
    return [
        name
        for part in store.checkpoint(checkpoint).manifest.parts
        if (name := list_of(part.handles))
    ]


def on_disk(store: StateStore) -> set[str]:
    folder = Path(store.url)
    return {str(path.relative_to(folder)) for path in folder.glob("files/*")}


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """Checkpoint 1 has both operators; checkpoint 2 has written the second one again."""
    store = opened(tmp_path / "store")
    write(store, 0, *UIDS)
    write(store, 100, "b")
    return store


def test_a_list_is_referenced_again_while_the_files_stay(store: StateStore) -> None:
    """A checkpoint that only carries a state writes nothing but its manifest."""
    (a, b), (same, other) = lists_of(store, 1), lists_of(store, 2)
    assert a == same
    assert b != other
    assert on_disk(store) == {a, b, other}
    assert rows_of(store, "a") == [*range(20)]
    assert rows_of(store, "b", 1) == [*range(20)]
    assert rows_of(store, "b") == [*range(100, 120)]


def test_a_checkpoint_that_carries_all_states_reads_no_list(store: StateStore) -> None:
    """Listing and expiring read none of the shared lists either; a restore reads its own."""
    storage = CountingReads(store.url)
    again = over(storage)
    with again.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry_rest()
    assert [again.checkpoint(one).manifest.rows for one in again.checkpoints()] == [40] * 3
    again.maintenance.expire(retain=1, dry_run=True)
    both = {lists_of(store, 1)[1], lists_of(store)[1]}  # files that may be shared count once
    assert {name for name in storage.names if name.startswith("files/")} == both
    storage.names.clear()
    rows_of(again, "a")
    assert {n for n in storage.names if n.startswith("files/")} == {lists_of(store)[0]}


def test_the_previous_checkpoint_is_read_once(store: StateStore) -> None:
    """The checkpoint is named by its number or as the newest one, whichever states are used."""
    storage = CountingReads(store.url)
    writer = over(storage)
    writer.snapshot(parallelism=2).abandon()  # it claims, for which it checks the format version
    storage.names.clear()
    with writer.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("a", "counts", [{"k": "key 3", "n": 77}], base=2)
        checkpoint.carry_rest()
    assert [n for n in storage.names if n == manifest_path(2)] == [manifest_path(2)]


class CountingReads(CountingStorage):
    """A folder that records which documents are read."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.names: list[str] = []

    def read(self, name: str) -> bytes:
        """Record the name, and read."""
        self.names.append(name)
        return super().read(name)


def test_a_short_list_stays_in_the_manifest(tmp_path: Path) -> None:
    """In a store of the usual size, one document has everything."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    write(store, 0, "a")
    assert not lists_of(store)
    assert not on_disk(store)


def test_changes_have_a_separate_list(store: StateStore) -> None:
    """The base's list is referenced again, whichever layers are added."""
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes(
            "a", "counts", Changes([{"k": "key 3", "n": 77}], [{"k": "key 5"}])
        )
        checkpoint.carry_rest()
    base, layer, b = lists_of(store)
    assert [base, b] == lists_of(store, 2)
    assert layer in on_disk(store)
    left = [n for n in range(20) if n not in (3, 5)]
    assert rows_of(store, "a") == sorted([*left, 77])
    store.maintenance.compact(everything=True)
    assert base not in lists_of(store)
    assert rows_of(store, "a") == sorted([*left, 77])
    assert store.maintenance.verify("all", deep=True).is_intact


def test_lists_are_collected_with_the_last_checkpoint_that_references_them(
    store: StateStore,
) -> None:
    """I9: lists that a kept checkpoint references stay."""
    (a, b), (_, other) = lists_of(store, 1), lists_of(store, 2)
    expired = store.maintenance.expire(retain=1)
    collected = store.maintenance.gc(minimum_age="0")
    assert (expired.files, expired.size_bytes) == (
        collected.removed.files,
        collected.removed.size_bytes,
    )
    assert on_disk(store) == {a, other}
    # What is left after the lists are the files that ``statestore list`` counts.
    manifest, live, lists = store.checkpoint().manifest, collected.live, collected.live_lists
    assert (lists.files, live.files - lists.files) == (2, manifest.files)
    assert live.size_bytes - lists.size_bytes == manifest.size_bytes
    assert (collected.strays, collected.stray.files) == ((), 0)
    with StringIO() as text:
        write_collected(page(text), collected)
        assert " in 2 lists of files\n" in text.getvalue()
    assert b not in on_disk(store)
    assert store.maintenance.verify("all", deep=True).is_intact
    assert rows_of(store, "a") == [*range(20)]


@pytest.mark.slow
def test_a_copy_and_a_fork_have_their_own_lists(store: StateStore, tmp_path: Path) -> None:
    """Each of them stays readable after the other store is deleted."""
    store.maintenance.copy("latest", opened(tmp_path / "copy"))
    store.maintenance.copy("latest", str(tmp_path / "fork"), linked=True)
    for target in map(opened, (tmp_path / "copy", tmp_path / "fork")):
        assert not {*lists_of(target)} & {*lists_of(store)}
        assert {*lists_of(target)} == on_disk(target)
        assert rows_of(target, "b") == [*range(100, 120)]
        assert target.maintenance.verify(deep=True).is_intact


@pytest.mark.slow
def test_a_missing_or_damaged_list_is_named(store: StateStore) -> None:
    """A restore and ``verify`` name it, ``gc`` refuses, and other states are readable."""
    list_a, list_b = lists_of(store)
    path = Path(store.url, list_a)
    raw = path.read_bytes()
    for damaged in (None, raw[:-1], raw.replace(b"operators/a", b"operators/b")):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        with pytest.raises(MalformedManifestError, match=list_a):
            rows_of(store, "a")
        assert rows_of(store, "b") == [*range(100, 120)]
        found = store.maintenance.verify("all", deep=True)
        assert [(one.file, one.operator, one.checkpoint_id) for one in found.broken] == [
            (list_a, "a", 1),
            (list_a, "a", 2),
        ]
        assert (found.rows, found.strays) == (40, ())  # of the other state
        with pytest.raises(MalformedManifestError, match=list_a):
            store.maintenance.gc(minimum_age="0")
        path.write_bytes(raw)
    assert store.maintenance.verify("all", deep=True).is_intact
    assert list_b in on_disk(store)


@pytest.mark.parametrize("is_there", [True, False], ids=["list is there", "list is gone"])
def test_a_list_is_checked_after_the_previous_checkpoint_has_expired(
    store: StateStore, is_there: bool
) -> None:
    """I5: garbage collection may have deleted it."""
    checkpoint = store.snapshot(parallelism=2)
    list_a = lists_of(store)[0]

    def commit() -> None:
        with checkpoint:
            for uid in UIDS:
                checkpoint.carry(uid, "counts")
            for number in (1, 2):
                store.parts.catalog().expire(number, tombstone(number, "0", 0))
            if not is_there:
                Path(store.url, list_a).unlink()

    if is_there:
        commit()
        assert lists_of(store)[0] == list_a
        return
    with pytest.raises(MalformedManifestError, match=f"{list_a} of state .* is missing"):
        commit()
    assert store.checkpoints() == ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.ANSWER_LOST])
def test_lists_of_a_failed_checkpoint_are_deleted(
    store: StateStore, tmp_path: Path, kind: FaultKind
) -> None:
    """I10: whichever call fails; a checkpoint that may be visible is complete."""

    def take(storage: Storage) -> None:
        write(over(storage), 200, "b")

    def copied(name: str) -> LocalStorage:
        folder = tmp_path / name
        shutil.rmtree(folder, ignore_errors=True)
        return LocalStorage(str(shutil.copytree(store.url, folder)))

    before = on_disk(store)
    calls = calls_of(copied("counted"), take)
    puts = [call for call in calls if call.name.startswith("files/")]
    assert {call.operation for call in puts} == {"put_if_absent", "read"}
    for call in puts:
        if not Fault(call.number, kind).strikes(call):
            continue
        storage = copied("faulty")
        with pytest.raises(StorageError):
            take(FaultyStorage(storage, Fault(call.number, kind)))
        again = over(storage)
        assert again.checkpoints() == (1, 2)
        assert on_disk(again) == before
        write(again, 300, "b")
        assert rows_of(again, "b") == [*range(300, 320)]


def lose(store: StateStore, name: str) -> None:
    Path(store.url, name).unlink()


def test_a_state_with_a_lost_list_can_be_written_again(store: StateStore) -> None:
    """In full, or based on an older checkpoint; after the damaged ones expire, gc works again."""
    lose(store, lists_of(store)[1])
    with store.snapshot(parallelism=2) as checkpoint:
        rows = [{"k": f"key {i}", "n": i} for i in range(5)]
        checkpoint.write_changes_against("b", "counts", rows, base=1, key="k")
        checkpoint.carry_rest()
    assert rows_of(store, "b") == [*range(5)]
    lose(store, lists_of(store)[1])
    write(store, 300, "b")
    assert rows_of(store, "b") == [*range(300, 320)]
    store.maintenance.expire(retain=1)
    assert store.maintenance.gc(minimum_age="0").removed.files > 0
    assert rows_of(store, "a") == [*range(20)]
    assert store.maintenance.verify("all", deep=True).is_intact


@pytest.mark.parametrize("is_lost", [False, True], ids=["whole", "a list is lost"])
def test_a_recently_expired_checkpoint_protects_its_files_whichever_list_is_lost(
    tmp_path: Path, is_lost: bool
) -> None:
    """I9: a writer may reference files of the other states before its checkpoint is visible."""
    store = opened(tmp_path / "store")
    write(store, 0, *UIDS)
    write(store, 100, *UIDS)
    if is_lost:
        lose(store, lists_of(store, 1)[1])
    old = time.time() - 48 * 3600
    for path in Path(store.url).rglob("*.*"):
        os.utime(path, (old, old))
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry("a", "counts", base=1)
        checkpoint.write_keyed("b", "counts", [{"k": "x", "n": 1}], key="k", max_parallelism=8)
        store.maintenance.expire(retain=1)
        assert store.maintenance.gc(minimum_age="1d").removed.files == 0
    assert rows_of(store, "a") == [*range(20)]
    assert store.maintenance.verify(deep=True).is_intact


def test_an_unreadable_list_is_detected_before_a_table_is_published(tmp_path: Path) -> None:
    """A Delta log names each file; tables of other states get no unnecessary version."""
    store = StateStore.open(str(tmp_path / "store"), parquet=LISTED, compaction=None)
    write(store, 0, *UIDS)
    lose(store, lists_of(store)[1])
    logs = sorted(Path(store.url).rglob("_delta_log/*.json"))
    with pytest.raises(MalformedManifestError, match="of state 'counts' of operator 'b'"):
        write(store, 100, "a")
    assert sorted(Path(store.url).rglob("_delta_log/*.json")) == logs
    write(store, 100, *UIDS)
    assert rows_of(store, "b") == [*range(100, 120)]


def test_files_that_move_into_a_list_do_not_count_as_released(tmp_path: Path) -> None:
    """As in the first checkpoints of a release that writes lists."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet", compaction=None)
    write(store, 0, *UIDS)
    store = opened(tmp_path / "store")
    write(store, 100, "b")
    expired = store.maintenance.expire(retain=1)
    removed = store.maintenance.gc(minimum_age="0").removed
    assert (expired.files, expired.size_bytes) == (removed.files, removed.size_bytes)


class Meeting(CountingReads):
    """A storage that returns a list only once another one is being read too."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.here = threading.Barrier(2, timeout=120)

    def read(self, name: str) -> bytes:
        """Wait, and read."""
        if name.startswith("files/"):
            self.here.wait()
        return super().read(name)


def test_lists_are_read_concurrently_and_once_each(store: StateStore) -> None:
    """A read that stalls does not block other lists."""
    storage = Meeting(store.url)
    manifest = over(storage).parts.catalog().manifest(2)
    assert [len(tuple(entry.handles)) for entry in manifest.keyed] == [8, 8]
    assert sum(name.startswith("files/") for name in storage.names) == 2


def test_a_plan_of_one_state_does_not_wait_for_the_list_of_another(store: StateStore) -> None:
    """The same holds for restores in threads of one process."""
    storage = Meeting(store.url)
    plan = over(storage).plan(parallelism=3)
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(
            lambda operator: [subtask.rows for subtask in operator.subtasks], plan.operators
        )
        assert [sum(rows) for rows in found] == [20, 20]
    assert sum(name.startswith("files/") for name in storage.names) == 2


def test_a_plan_of_all_operators_reads_lists_concurrently(store: StateStore) -> None:
    """On an object store each list costs one request or more."""
    storage = Meeting(store.url)
    plan = over(storage).plan(parallelism=3)
    assert plan.files == sum(
        subtask.files for operator in plan.operators for subtask in operator.subtasks
    )
    assert sum(name.startswith("files/") for name in storage.names) == 2
