"""Retention: every answer of Flink's classes, the end of a job, and further properties."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.retention import (
    ClaimMode,
    ExternalizedRetention,
    JobEnd,
    RetainedCheckpoint,
    Retention,
    SharedFiles,
    SnapshotKind,
    deletes_at_end,
    restored_kind,
)
from tests.support.vectors import cases

CASES = cases("checkpoints", "retention")
CHECKPOINT, SAVEPOINT, SYNC, UNCLAIMED = SnapshotKind

kinds = st.lists(st.sampled_from(SnapshotKind), max_size=25)


def after(limit: int, kinds: list[SnapshotKind]) -> Retention:
    """Return the retention after snapshots 1, 2, ... of these kinds, before any was deleted."""
    retention = Retention(limit)
    for number, kind in enumerate(kinds, 1):
        retention = retention.add(RetainedCheckpoint(number, kind)).retention
    return retention


def ids(snapshots: tuple[RetainedCheckpoint, ...]) -> list[int]:
    return [snapshot.checkpoint_id for snapshot in snapshots]


# --- Flink's answers ------------------------------------------------------------------------------


def test_the_vectors_are_all_here() -> None:
    assert len(CASES) + len(cases("checkpoints", "registry")) == len(cases("checkpoints")) == 82


@pytest.mark.parametrize("number", range(len(CASES)))
def test_checkpoints_are_kept_and_deleted_as_flink_does(number: int) -> None:
    case = CASES[number]
    if "error" in case:
        with pytest.raises(InvalidArgumentError, match="must be 1 or more"):
            Retention(case["in"]["retain"])
        return
    retention, deleted = Retention(case["in"]["retain"]), set[int]()
    for event, expected in zip(case["in"]["events"], case["out"], strict=True):
        retention, subsumed = retention.add(RetainedCheckpoint(event["id"], event["kind"]))
        retention, now = retention.discard()
        assert not deleted & set(now)
        deleted |= set(now)
        assert ids(retention.kept) == expected["retained"]
        assert max(subsumed, default=None) == expected["subsumed"]
        assert sorted(deleted) == expected["discarded"]


# --- While the job runs ---------------------------------------------------------------------------


@given(kinds, st.integers(1, 5))
def test_the_newest_snapshot_and_the_latest_checkpoint_are_kept(
    kinds: list[SnapshotKind], limit: int
) -> None:
    retention = Retention(limit)
    latest = None
    for number, kind in enumerate(kinds, 1):
        retention, subsumed = retention.add(RetainedCheckpoint(number, kind))
        latest = number if kind is CHECKPOINT else latest
        kept = ids(retention.kept)
        assert kept[-1] == number
        assert not set(kept) & set(subsumed)
        if kind is SYNC:
            latest = latest if latest in kept else None
        assert latest is None or latest in kept
        assert len(kept) <= max(limit, 2)


@given(kinds, st.integers(1, 5))
def test_only_dropped_checkpoints_older_than_all_kept_ones_are_deleted_and_once(
    kinds: list[SnapshotKind], limit: int
) -> None:
    retention, gone = Retention(limit), list[int]()
    for number, kind in enumerate(kinds, 1):
        retention, deleted = retention.add(RetainedCheckpoint(number, kind)).retention.discard()
        gone += deleted
        assert retention.discard().deleted == ()
        assert all(kinds[one - 1] is CHECKPOINT for one in gone)
        assert not set(gone) & set(ids(retention.kept))
        assert max(deleted, default=-1) < (retention.lowest or 0)
    assert len(gone) == len(set(gone))


def test_a_checkpoint_with_a_file_in_use_waits() -> None:
    retention = after(1, [CHECKPOINT, CHECKPOINT, CHECKPOINT])
    retention, deleted = retention.discard(in_use=[1])
    assert (deleted, ids(retention.waiting)) == ((2,), [1])
    assert retention.discard().deleted == (1,)


def test_retention_and_shared_files_release_by_the_same_mark() -> None:
    """The directory of a claimed native savepoint is deleted when none of its files is used."""
    registry = SharedFiles().use(1, {"a": "ha"}).registry
    registry = registry.restored(1, "CLAIM", native_savepoint=True)
    retention, gone = (
        Retention(1).add(RetainedCheckpoint(1, restored_kind("CLAIM"))).retention,
        list[Any](),
    )
    for number, files in ((2, {"a": None}), (3, {"b": "hb"})):
        registry = registry.use(number, files).registry
        retention = retention.add(RetainedCheckpoint(number)).retention
        assert retention.lowest == number
        registry, files_gone, in_use = registry.release(number)
        retention, checkpoints_gone = retention.discard(in_use)
        gone += [files_gone, checkpoints_gone]
    assert gone == [(), (), ("ha",), (1, 2)]


def test_nothing_is_deleted_while_only_savepoints_are_kept() -> None:
    retention = after(1, [CHECKPOINT, SYNC])
    assert (ids(retention.kept), retention.lowest) == ([2], None)
    assert retention.discard() == (retention, ())
    assert retention.add(RetainedCheckpoint(3)).retention.discard().deleted == (1,)


def test_adding_leaves_the_retention_before_it_as_it_was() -> None:
    before = after(2, [CHECKPOINT, CHECKPOINT])
    moved = before.add(RetainedCheckpoint(3)).retention
    assert (ids(before.kept), ids(moved.kept)) == ([1, 2], [2, 3])
    assert before.add(RetainedCheckpoint(3)).retention == moved == pickle.loads(pickle.dumps(moved))


def test_an_id_that_repeats_is_refused() -> None:
    retention = after(1, [CHECKPOINT, CHECKPOINT])
    for number in (1, 2):
        with pytest.raises(InvalidArgumentError, match=f"checkpoint {number} was already added"):
            retention.add(RetainedCheckpoint(number))


# --- The end of the job ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "deletes"),
    [
        ("NO_EXTERNALIZED_CHECKPOINTS", "finished cancelled failed suspended"),
        ("DELETE_ON_CANCELLATION", "finished cancelled suspended"),
        ("RETAIN_ON_CANCELLATION", "finished"),
    ],
)
def test_the_setting_and_the_end_of_the_job_determine_the_deletions(
    setting: str, deletes: str
) -> None:
    assert [end for end in JobEnd if deletes_at_end(setting, end)] == deletes.split()


def test_at_the_end_checkpoints_go_and_savepoints_stay() -> None:
    retention = after(3, [CHECKPOINT, CHECKPOINT, SAVEPOINT, CHECKPOINT])
    assert (ids(retention.kept), ids(retention.waiting)) == ([2, 3, 4], [1])
    kept, deleted, mark = retention.end("finished", "RETAIN_ON_CANCELLATION")
    assert (ids(kept), deleted, mark) == ([3], (1, 2, 4), 3)
    kept, deleted, mark = retention.end("cancelled", "RETAIN_ON_CANCELLATION", in_use=[1])
    assert (ids(kept), deleted, mark) == ([2, 3, 4], (), 2)


def test_a_job_without_savepoints_leaves_no_files() -> None:
    ended = after(1, [CHECKPOINT, CHECKPOINT]).end(
        JobEnd.FAILED, ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS
    )
    assert ended == ((), (1, 2), 2**63 - 1)


@given(kinds, st.integers(1, 5), st.sampled_from(JobEnd), st.sampled_from(ExternalizedRetention))
def test_remaining_snapshots_are_the_kept_ones_and_are_not_deleted(
    kinds: list[SnapshotKind], limit: int, how: JobEnd, setting: ExternalizedRetention
) -> None:
    retention = after(limit, kinds)
    ended = retention.end(how, setting)
    assert not set(ids(ended.kept)) & set(ended.deleted)
    assert all(kinds[one - 1] is CHECKPOINT for one in ended.deleted)
    if not deletes_at_end(setting, how):
        assert ended.kept == retention.kept
    else:
        assert all(not snapshot.is_checkpoint for snapshot in ended.kept)


# --- Arguments ------------------------------------------------------------------------------------


def test_a_restored_snapshot_is_the_jobs_own_only_when_claimed() -> None:
    assert [restored_kind(mode) for mode in ClaimMode] == [UNCLAIMED, CHECKPOINT, UNCLAIMED]
    assert [mode.deletes for mode in ClaimMode] == [False, True, False]


@pytest.mark.parametrize("limit", [0, -1])
def test_one_checkpoint_at_least_is_retained(limit: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"must be 1 or more, not {limit}"):
        Retention(limit)


@pytest.mark.parametrize("number", ["1", 1.0, True, None])
def test_an_id_and_a_limit_are_ints(number: Any) -> None:
    for make in (RetainedCheckpoint, Retention):
        with pytest.raises(InvalidArgumentError, match="must be an int"):
            make(number)


def test_a_negative_id_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="checkpoint id must be 0 or more, not -1"):
        RetainedCheckpoint(-1)


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidArgumentError, match="'sync_savepoint'"):
        RetainedCheckpoint(1, "backup")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="'RETAIN_ON_CANCELLATION'"):
        deletes_at_end("KEEP", "failed")
    with pytest.raises(InvalidArgumentError, match="'suspended'"):
        deletes_at_end("DELETE_ON_CANCELLATION", "lost")
    with pytest.raises(InvalidArgumentError, match="'LEGACY'"):
        restored_kind("MAYBE")
