"""Copy a checkpoint into another store: equal rows, verified bytes, and no file copied twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    DamagedFileError,
    InvalidArgumentError,
    MissingFileError,
    ParallelismError,
    SchemaMismatchError,
    StorageError,
)
from statestore.format.manifest import Manifest
from statestore.format.names import tombstone_path
from statestore.snapshot.pending_checkpoint import PendingCheckpoint
from statestore.storage import LocalStorage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import copy_of, over, steps, take, whole, with_every_call
from tests.support.damage import change_unread_byte, files_of, fill
from tests.support.forms import (
    Checkpoints,
    break_file,
    data_in,
    digest_of,
    names_of,
    newest_file,
    rows_of,
    state_of,
)
from tests.support.stores import opened

pytestmark = pytest.mark.slow

KILLED = """
import sys
from statestore.storage import LocalStorage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage
from tests.faults.cases import over
source, target, at = sys.argv[1:]
storage = FaultyStorage(LocalStorage(target), Fault(int(at), FaultKind.KILLED))
over(LocalStorage(source)).maintenance.copy("latest", over(storage))
"""


@pytest.fixture
def source(tmp_path: Path) -> StateStore:
    store = over(LocalStorage(str(tmp_path / "source")))
    take(store, 1)
    take(store, 2)
    return store


def named(manifest: Manifest) -> set[str]:
    return {f"{e.table.path}/{file.path}" for e in manifest.entries for file in e.handles}


def test_a_copy_is_committed_only_after_the_expected_checkpoint(
    source: StateStore, tmp_path: Path
) -> None:
    target = opened(tmp_path / "target")
    take(target, 1)
    take(target, 2)
    with pytest.raises(CommitConflictError, match="checkpoint 2"):
        source.maintenance.copy("latest", target, after=1)
    assert target.checkpoints() == (1, 2)
    assert source.maintenance.copy("latest", target, after=2).new_checkpoint_id == 3


def files_like(manifest: Manifest) -> list[tuple[str, int, str]]:
    """Return the path and content of the files."""
    return sorted(
        (f"{e.table.path}/{file.path}".rpartition("/")[0], file.size_bytes, file.sha256)
        for e in manifest.entries
        for file in e.handles
    )


def test_a_copy_is_the_checkpoint_under_the_next_id(source: StateStore, tmp_path: Path) -> None:
    target = opened(tmp_path / "target")
    take(target, 1)
    done = source.maintenance.copy(2, target)
    assert (done.checkpoint_id, done.new_checkpoint_id, done.found) == (2, 2, False)
    whole(target, 1)
    whole(target, 2)
    assert target.maintenance.verify("all", deep=True).is_intact
    old, new = source.checkpoint(2).manifest, target.checkpoint(2).manifest
    assert not named(old) & named(new)
    assert files_like(old) == files_like(new)
    assert [e.digest for e in old.entries] == [e.digest for e in new.entries]
    assert (done.copied_files, done.copied_bytes) == (old.files, old.size_bytes)
    origin = new.origin or {}
    told = (origin["command"], origin["store"], origin["checkpoint"])
    assert told == ("copy", old.store_id, 2)
    take(target, 3)
    assert target.checkpoints() == (1, 2, 3)


def test_every_kind_of_state_is_copied(tmp_path: Path) -> None:
    source = fill(tmp_path / "source")
    done = source.maintenance.copy("latest", str(tmp_path / "target"))
    target = opened(tmp_path / "target")
    assert target.checkpoints() == (done.new_checkpoint_id,) == (1,)
    report = target.maintenance.verify(deep=True)
    assert report.is_intact
    assert (report.rows, report.size_bytes) == (source.checkpoint().manifest.rows, done.size_bytes)


def test_the_same_checkpoint_is_not_copied_twice(source: StateStore, tmp_path: Path) -> None:
    target = opened(tmp_path / "target")
    first = source.maintenance.copy(1, target)
    take(target, 9)
    again = source.maintenance.copy(1, target)
    assert (again.new_checkpoint_id, again.found, again.copied_bytes) == (
        first.new_checkpoint_id,
        True,
        0,
    )
    assert target.checkpoints() == (1, 2)


def test_another_checkpoint_with_the_same_number_is_not_a_copy(
    source: StateStore, tmp_path: Path
) -> None:
    """A store that was copied as files and continues independently has other checkpoints."""
    twin = opened(copy_of(Path(source.url), tmp_path / "twin"))
    take(source, 3)
    take(twin, 4)
    target = opened(tmp_path / "target")
    first = source.maintenance.copy(3, target)
    one, other = (store.checkpoint(3).manifest.writer.token for store in (source, twin))
    for dry_run in (False, True):
        with pytest.raises(InvalidArgumentError, match="another checkpoint 3") as raised:
            twin.maintenance.copy(3, target, dry_run=dry_run)
        told = str(raised.value)
        assert all(word in told for word in (one, other, "Copy to another store", "expire"))
    assert target.checkpoints() == (first.new_checkpoint_id,)
    assert (
        twin.maintenance.copy(2, target).new_checkpoint_id
        == source.maintenance.copy(2, target).new_checkpoint_id
    )  # both stores have this file
    take(target, 9)
    target.maintenance.expire(retain=1)
    done = twin.maintenance.copy(3, target)
    assert not done.found
    assert digests(target, done.new_checkpoint_id) == digests(twin, 3) != digests(source, 3)


def digests(store: StateStore, number: int | None) -> list[int]:
    assert number is not None
    return [entry.digest for entry in store.checkpoint(number).manifest.entries]


def test_a_copy_of_an_older_release_is_recognized_by_its_time(
    source: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That release did not record the writer."""
    target = opened(tmp_path / "target")
    real = PendingCheckpoint.record

    def said(pending: PendingCheckpoint, origin: dict[str, Any]) -> None:
        real(pending, origin={name: value for name, value in origin.items() if name != "writer"})

    monkeypatch.setattr(PendingCheckpoint, "record", said)
    first = source.maintenance.copy(2, target)
    assert "writer" not in (target.checkpoint().manifest.origin or {})
    assert (
        source.maintenance.copy(2, target).found,
        source.maintenance.copy(2, target).new_checkpoint_id,
    ) == (
        True,
        first.new_checkpoint_id,
    )


def test_files_of_a_killed_copy_are_new_under_their_new_name(
    source: StateStore, tmp_path: Path
) -> None:
    """A garbage collection can delete the old name at any time without affecting the next copy."""
    folder = tmp_path / "target"
    calls = calls_of(
        LocalStorage(str(tmp_path / "c")), lambda s: source.maintenance.copy(2, over(s))
    )
    commit = max(call.number for call in calls if call.operation == "put_if_absent")
    killed(source, folder, commit - 1)
    target = opened(folder)
    left = data_in(target.url)
    assert left
    for name in left:
        os.utime(folder / name, (0, 0))
    assert source.maintenance.copy(2, target).copied_files == 0
    new = named(target.checkpoint().manifest)
    assert not new & left
    assert min((folder / name).stat().st_mtime for name in new) > time.time() - 3600
    for name in left:
        (folder / name).unlink()
    assert target.maintenance.verify("all", deep=True).is_intact


def test_only_files_that_the_target_lacks_are_copied(source: StateStore, tmp_path: Path) -> None:
    """The checkpoint shares files with one that was copied before."""
    target = opened(tmp_path / "target")
    source.maintenance.copy(2, target)
    edited = source.maintenance.edit("users", "totals", delete=["a"])
    planned = source.maintenance.copy("latest", target, dry_run=True)
    done = source.maintenance.copy("latest", target)
    assert done.copied_bytes == edited.size_bytes
    assert (planned.new_checkpoint_id, planned.copied_files) == (None, done.copied_files)
    assert done.copied_files == edited.files < done.files
    assert target.maintenance.verify("all", deep=True).is_intact


def test_a_savepoint_is_also_a_savepoint_in_the_target(source: StateStore, tmp_path: Path) -> None:
    target = opened(tmp_path / "target")
    source.maintenance.savepoint("before", 1)
    assert source.maintenance.copy("before", target).savepoint == "before"
    assert source.maintenance.copy("before", target, as_savepoint="january").found
    found = {
        savepoint.name: savepoint.checkpoint_id for savepoint in target.maintenance.savepoints()
    }
    assert found == {"before": 1, "january": 1}
    assert target.restore(checkpoint="before").checkpoint_id == 1
    with pytest.raises(InvalidArgumentError, match="already has a savepoint 'before'"):
        source.maintenance.copy(2, target, as_savepoint="before")
    assert target.checkpoints() == (1,)
    with pytest.raises(InvalidArgumentError, match="invalid savepoint name 'latest'"):
        source.maintenance.copy(2, target, as_savepoint="latest")
    with pytest.raises(CheckpointNotFoundError, match="no savepoint 'befor'"):
        source.maintenance.copy("befor", target)


def test_an_expired_savepoint_can_be_copied(source: StateStore, tmp_path: Path) -> None:
    source.maintenance.savepoint("before", 1)
    LocalStorage(source.url).put_if_absent(tombstone_path(1), b"{}")
    target = opened(tmp_path / "target")
    source.maintenance.copy("before", target)
    whole(target, 1)


def test_a_dry_run_writes_nothing(source: StateStore, tmp_path: Path) -> None:
    planned = source.maintenance.copy(1, str(tmp_path / "target"), dry_run=True)
    assert not (tmp_path / "target").exists()
    manifest = source.checkpoint(1).manifest
    assert (planned.copied_files, planned.copied_bytes) == (manifest.files, manifest.size_bytes)


def test_progress_is_in_bytes_and_reaches_the_total(source: StateStore, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    size = source.maintenance.copy(
        1, str(tmp_path / "t"), on_progress=lambda *two: heard.append(two)
    ).size_bytes
    assert heard[0] == (0, size)
    assert heard[-1] == (size, size)
    assert heard == sorted(heard)


def test_a_damaged_file_is_not_copied(tmp_path: Path) -> None:
    """I5: a damaged byte that no reader uses is found, and so is a missing file."""
    source = fill(tmp_path / "source")
    path = files_of(source, "map")[0]
    raw = path.read_bytes()
    change_unread_byte(path)
    target = opened(tmp_path / "target")
    with pytest.raises(DamagedFileError, match=path.name):
        source.maintenance.copy("latest", target)
    assert target.checkpoints() == ()
    assert not (Path(target.url) / path.relative_to(source.url)).exists()
    path.unlink()
    with pytest.raises(MissingFileError, match=path.name):
        source.maintenance.copy("latest", target)
    path.write_bytes(raw)
    source.maintenance.copy("latest", target)
    assert target.maintenance.verify(deep=True).is_intact


def test_a_damaged_file_of_the_target_is_neither_reused_nor_replaced(
    source: StateStore, tmp_path: Path
) -> None:
    target = opened(tmp_path / "target")
    source.maintenance.copy(2, target)
    source.maintenance.edit("users", "totals", delete=["a"])
    path = files_of(target, "routes")[0]
    raw = path.read_bytes()
    for damaged in (raw[:-1], raw[:-1] + b"?"):
        path.write_bytes(damaged)
        target.maintenance.expire(retain=1)
        source.maintenance.edit("users", "totals", put=[{"user": f"{damaged[-1]}", "n": 1}])
        new_id = source.maintenance.copy("latest", target).new_checkpoint_id
        assert new_id is not None
        assert path.read_bytes() == damaged
        assert path.name not in {
            Path(name).name for name in named(target.checkpoint(new_id).manifest)
        }
        assert target.maintenance.verify(new_id, deep=True).is_intact


def test_a_store_with_other_keys_is_refused(source: StateStore, tmp_path: Path) -> None:
    """I3."""
    wide, other = opened(tmp_path / "wide"), opened(tmp_path / "other")
    for target, groups, key in ((wide, 64, "user"), (other, 2, "who")):
        with target.snapshot(parallelism=2) as checkpoint:
            rows = [{key: "a", "n": 1}]
            checkpoint.write_keyed("users", "totals", rows, key=key, max_parallelism=groups)
    with pytest.raises(ParallelismError, match="max parallelism 64"):
        source.maintenance.copy(1, wide)
    with pytest.raises(SchemaMismatchError, match="who"):
        source.maintenance.copy(1, other)
    assert (wide.checkpoints(), other.checkpoints()) == ((1,), (1,))


def test_the_store_itself_is_refused(source: StateStore) -> None:
    with pytest.raises(InvalidArgumentError, match="is the store itself"):
        source.maintenance.copy(1, source.url)


def killed(source: StateStore, target: Path, at: int) -> None:
    words = [sys.executable, "-c", KILLED, source.url, str(target), str(at)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.slow
@with_every_call
def test_a_killed_copy_continues(source: StateStore, tmp_path: Path, every_call: bool) -> None:
    """I10: only files that were incomplete when it was killed are copied again."""
    counted = calls_of(
        LocalStorage(str(tmp_path / "counted")),
        lambda storage: source.maintenance.copy("latest", over(storage)),
    )
    writes = [call.number for call in counted if call.operation == "write"]
    size = source.checkpoint().manifest.size_bytes
    again: list[int] = []
    places = (writes[0], writes[len(writes) // 2], writes[-1], len(counted))
    for number, at in enumerate(places if every_call else places[1::2]):
        folder = tmp_path / f"target {number}"
        killed(source, folder, at)
        wanted = {path.read_bytes() for path in Path(source.url).rglob("0000000002-*.parquet")}
        wholly = sum(
            len(path.read_bytes())
            for path in folder.rglob("*.parquet")
            if path.read_bytes() in wanted
        )
        target = opened(folder)
        left = data_in(target.url)
        done = source.maintenance.copy("latest", target)
        assert done.found or not left & named(
            target.checkpoint(done.new_checkpoint_id or 0).manifest
        )
        assert done.copied_bytes == (0 if done.found else size - wholly)
        again.append(done.copied_bytes)
        whole_one(target, done.new_checkpoint_id)
    assert again == sorted(again, reverse=True)
    assert again[0] > again[-1] == 0


def whole_one(target: StateStore, number: int | None) -> None:
    """Assert that the copy of checkpoint 2 is intact, under another number."""
    assert target.checkpoints() == (number,)
    assert target.maintenance.verify("all", deep=True).is_intact
    target.maintenance.gc(minimum_age="0")
    assert target.maintenance.verify("all", deep=True).is_intact
    assert data_in(target.url) == named(target.checkpoint().manifest)


STOPPING = [FaultKind.ERROR, FaultKind.ANSWER_LOST, FaultKind.ANSWER_WRONG, FaultKind.TRUNCATED]


@pytest.mark.long_cases(
    "source-FaultKind.ANSWER_LOST-steps",
    "target-FaultKind.ERROR-steps",
    "source-FaultKind.ANSWER_WRONG-steps",
    "target-FaultKind.TRUNCATED-steps",
    "target-FaultKind.ANSWER_LOST-steps",
)
@pytest.mark.slow
@with_every_call
@pytest.mark.parametrize("kind", STOPPING)
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_copy_that_failed_at_any_call_can_be_run_again(
    source: StateStore, tmp_path: Path, kind: FaultKind, side: str, every_call: bool
) -> None:
    """I4, I5, I10: nothing is partially visible in the target, and the next run finishes."""
    base = opened(tmp_path / "base")
    take(base, 1)
    before = base.maintenance.verify("all", deep=True)
    assert before.is_intact

    def run(storage: Any, other: Path) -> None:
        if side == "source":
            over(storage).maintenance.copy("latest", opened(other), as_savepoint="kept")
        else:
            source.maintenance.copy("latest", over(storage), as_savepoint="kept")

    folder = Path(source.url) if side == "source" else copy_of(Path(base.url), tmp_path / "c")
    calls = calls_of(
        LocalStorage(str(folder)), lambda s: run(s, copy_of(Path(base.url), tmp_path / "o"))
    )
    struck = 0
    for call in steps(calls, every_call):
        if not Fault(call.number, kind).strikes(call) or call.operation == "sync":
            continue
        struck += 1
        target = copy_of(Path(base.url), tmp_path / "target")
        at = LocalStorage(source.url if side == "source" else str(target))
        try:
            run(FaultyStorage(at, Fault(call.number, kind)), target)
        except (StorageError, DamagedFileError, MissingFileError):
            whole(opened(target), 1)
        done = source.maintenance.copy("latest", opened(target), as_savepoint="kept")
        store = opened(target)
        assert store.checkpoints() == (1, done.new_checkpoint_id)
        assert store.maintenance.verify("all", deep=True).is_intact
        assert [savepoint.checkpoint_id for savepoint in store.maintenance.savepoints()] == [
            done.new_checkpoint_id
        ]
    assert struck or side == "source"


# --- every form of a state ------------------------------------------------------------------------


@pytest.fixture
def target(tmp_path: Path) -> StateStore:
    return StateStore.open(str(tmp_path / "target"), table_format="parquet", compaction=None)


def test_a_copy_has_all_files_and_rows(taken: Checkpoints, target: StateStore) -> None:
    done = taken.store.maintenance.copy(5, target)
    assert done.copied_files == done.files == len(names_of(taken.store))
    assert data_in(target.url) == names_of(target)
    assert not names_of(target) & names_of(taken.store)
    assert len(state_of(target).layers) == len(state_of(taken.store).layers)
    assert rows_of(target) == taken.rows
    assert digest_of(target) == digest_of(taken.store)
    assert target.maintenance.verify("all", True).is_intact


def test_copies_of_several_checkpoints_copy_each_file_once(
    taken: Checkpoints, target: StateStore
) -> None:
    copied = [taken.store.maintenance.copy(number, target).copied_files for number in taken.taken]
    seen = [set(), *(names_of(taken.store, number) for number in taken.taken)]
    assert copied == [len(after - before) for before, after in pairwise(seen)]
    assert sum(copied) == len(data_in(target.url)) == len(set().union(*seen))
    for number, rows in taken.taken.items():
        assert rows_of(target, number) == rows


def test_a_dry_run_counts_all_files(taken: Checkpoints, target: StateStore) -> None:
    planned = taken.store.maintenance.copy(5, target, dry_run=True)
    assert planned.copied_files == len(names_of(taken.store))


def test_an_interrupted_copy_continues(
    taken: Checkpoints, target: StateStore, tmp_path: Path
) -> None:
    """Files that were copied before the error are not copied again."""
    calls = calls_of(
        LocalStorage(str(tmp_path / "counted")),
        lambda storage: taken.store.maintenance.copy(5, over(storage)),
    )
    *_, last = (call.number for call in calls if call.operation == "close")
    faulty = over(FaultyStorage(LocalStorage(target.url), Fault(last, FaultKind.ERROR)))
    with pytest.raises(StorageError):
        taken.store.maintenance.copy(5, faulty)
    kept = data_in(target.url)
    assert kept
    done = taken.store.maintenance.copy(5, target)
    assert done.copied_files == done.files - len(kept)
    assert rows_of(target) == taken.rows


def test_a_damaged_file_of_any_form_is_not_copied(taken: Checkpoints, target: StateStore) -> None:
    name = newest_file(taken.store)
    break_file(taken.store, name)
    with pytest.raises(DamagedFileError, match=name):
        taken.store.maintenance.copy(5, target)
    assert target.checkpoints() == ()


def test_changes_continue_after_a_copy(taken: Checkpoints, target: StateStore) -> None:
    taken.store.maintenance.copy(5, target)
    with target.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes(
            "u",
            "s",
            [{"k": "late", "m": 1, "v": 2}],
            key="k",
            max_parallelism=16,
            kind="map",
            entry="m",
        )
    assert rows_of(target) == taken.rows | {("late", 1): 2}
