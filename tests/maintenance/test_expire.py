"""All checkpoints except the newest expire: they become invisible, and all other files stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from statestore import StateStore
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    StorageError,
    StoreNotFoundError,
)
from statestore.format.names import manifest_path, tombstone_path
from statestore.storage import LocalStorage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import copy_of, over, take, whole
from tests.support.held import count_held
from tests.support.stores import file_bytes
from tests.support.vectors import cases

pytestmark = pytest.mark.slow

# A store's savepoints are no checkpoints, so only Flink's histories without savepoints apply.
FLINK: Final = [
    case
    for case in cases("checkpoints", "retention")
    if "out" in case and all(event["kind"] == "checkpoint" for event in case["in"]["events"])
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with checkpoints 1 to 4."""
    store = over(LocalStorage(str(tmp_path / "store")))
    for number in range(1, 5):
        take(store, number)
    return tmp_path / "store"


def store_in(folder: Path) -> StateStore:
    return over(LocalStorage(str(folder)))


def test_the_newest_checkpoints_and_their_files_stay(folder: Path) -> None:
    """I4, I6."""
    store = store_in(folder)
    before = file_bytes(folder)
    rows = {number: store.checkpoint(number).manifest for number in (1, 2)}
    done = store.maintenance.expire(retain=2)
    assert (done.expired, done.kept) == ((1, 2), (3, 4))
    assert done.files == sum(manifest.files for manifest in rows.values())
    assert done.size_bytes == sum(manifest.size_bytes for manifest in rows.values())
    assert store.checkpoints() == (3, 4)
    whole(store, 3)
    with pytest.raises(
        CheckpointNotFoundError, match=r"no checkpoint 2 in .*; the store has the checkpoints 3, 4"
    ):
        store.restore(checkpoint=2)
    assert before.items() <= file_bytes(folder).items()
    take(store, 5)
    assert store.checkpoints() == (3, 4, 5)


@pytest.mark.parametrize("case", FLINK, ids=lambda case: f"retain {case['in']['retain']}")
def test_flink_retains_the_same_checkpoints(tmp_path: Path, case: dict[str, Any]) -> None:
    store = over(LocalStorage(str(tmp_path / "store")))
    for event, expected in zip(case["in"]["events"], case["out"], strict=True):
        take(store, event["id"])
        done = store.maintenance.expire(retain=case["in"]["retain"])
        assert list(store.checkpoints()) == list(done.kept) == expected["retained"]
        assert max(done.expired, default=None) == expected["subsumed"]


def test_a_dry_run_changes_nothing(folder: Path) -> None:
    store = store_in(folder)
    planned = store.maintenance.expire(retain=1, dry_run=True)
    assert (planned.expired, planned.kept) == ((1, 2, 3), (4,))
    assert store.checkpoints() == (1, 2, 3, 4)
    done = store.maintenance.expire(retain=1)
    assert (done.expired, done.files, done.size_bytes) == (
        *(planned.expired, planned.files),
        planned.size_bytes,
    )
    again = store.maintenance.expire(retain=1)
    assert (again.expired, again.kept, again.files) == ((), (4,), 0)


def test_a_checkpoint_that_expires_during_a_read_is_read_to_the_end(folder: Path) -> None:
    store = store_in(folder)
    state = store.restore(checkpoint=1, parallelism=1).keyed("users", "totals")
    expected, reader = state.to_arrow(0), state.to_batches(0)
    assert len(expected) > 0
    store.maintenance.expire(retain=1)
    assert reader.read_all() == expected


def test_a_damaged_manifest_expires_like_any_other(folder: Path) -> None:
    (folder / manifest_path(2)).write_text("{")
    done = store_in(folder).maintenance.expire(retain=1)
    assert (done.expired, done.damaged) == ((1, 2, 3), (2,))
    assert store_in(folder).checkpoints() == (4,)


def test_a_damaged_checkpoint_is_not_counted_as_kept(folder: Path) -> None:
    """Even if it is new, no readable checkpoint expires because of it."""
    for number in (3, 4):
        (folder / manifest_path(number)).write_text("{")
    done = store_in(folder).maintenance.expire(retain=1)
    assert (done.expired, done.kept, done.damaged) == ((1,), (2, 3, 4), (3, 4))
    whole_again = store_in(folder)
    assert whole_again.checkpoints() == (2, 3, 4)
    assert whole_again.restore(checkpoint=2).checkpoint_id == 2
    (folder / manifest_path(2)).write_text("{")
    assert store_in(folder).maintenance.expire(retain=1).expired == ()


def test_a_concurrent_snapshot_succeeds(folder: Path) -> None:
    """Its writer looks in older checkpoints for states that the newest one lacks. They may have
    expired.
    """
    store = store_in(folder)
    take_only_users(store)
    with store.snapshot(parallelism=1) as checkpoint:
        store_in(folder).maintenance.expire(retain=1)
        checkpoint.write_union("source", "offsets", [[{"partition": 0, "offset": 9}]])
        checkpoint.drop("users", "totals")
    assert store.checkpoints() == (5, 6)


def take_only_users(store: StateStore) -> None:
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("users", "totals", [{"user": "a", "n": 1}], key="user")
        for entry in store.checkpoint().manifest.entries:
            if entry.state.name != "totals":
                checkpoint.drop(entry.state.uid, entry.state.name)


def test_one_manifest_is_in_memory_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_in(folder)
    for number in range(8):
        take(store, number)
    held = count_held(monkeypatch)
    store.maintenance.expire(retain=2)
    assert len(held) > 8
    assert max(held) <= 1


def test_a_tombstone_is_readable_text(folder: Path) -> None:
    store_in(folder).maintenance.expire(retain=3)
    text = (folder / tombstone_path(1)).read_text()
    assert '"format":"statestore-tombstone"' in text.replace(" ", "")
    assert '"checkpoint_id":1' in text.replace(" ", "")


@pytest.mark.parametrize("retain", [0, -1, True, 1.5, "3"])
def test_the_number_to_retain_is_checked(folder: Path, retain: int) -> None:
    with pytest.raises(InvalidArgumentError, match="retain"):
        store_in(folder).maintenance.expire(retain=retain)
    assert store_in(folder).checkpoints() == (1, 2, 3, 4)


def test_a_missing_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        store_in(tmp_path / "nowhere").maintenance.expire(retain=1)


@pytest.mark.long_cases("FaultKind.ANSWER_LOST", "FaultKind.ANSWER_WRONG")
@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.ANSWER_LOST, FaultKind.ANSWER_WRONG])
def test_an_expiry_that_failed_at_any_call_can_be_run_again(
    folder: Path, tmp_path: Path, kind: FaultKind
) -> None:
    """I10: the newest checkpoints are intact, the expired ones are the oldest, and a second run
    finishes.
    """
    counted = copy_of(folder, tmp_path / "counted")
    calls = calls_of(
        LocalStorage(str(counted)), lambda storage: over(storage).maintenance.expire(retain=2)
    )
    for call in calls:
        if not Fault(call.number, kind).strikes(call):
            continue
        copy = copy_of(folder, tmp_path / "copy")
        fault = Fault(call.number, kind)
        with pytest.raises(StorageError):
            over(FaultyStorage(LocalStorage(str(copy)), fault)).maintenance.expire(retain=2)
        assert store_in(copy).checkpoints() in ((1, 2, 3, 4), (2, 3, 4), (3, 4))
        whole(store_in(copy), 4)
        store_in(copy).maintenance.expire(retain=2)
        assert store_in(copy).checkpoints() == (3, 4)
