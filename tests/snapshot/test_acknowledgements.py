"""Acknowledgements at the coordinator: which ones it accepts, refuses or deletes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from statestore import Acknowledgement, StateStore
from statestore.errors import CommitConflictError, InvalidArgumentError, MalformedManifestError
from tests.snapshot.test_subtask_writer import ROWS, WANTED, declare, restored, rows_of
from tests.support.stores import opened
from tests.support.writers import stored_files


def test_a_missing_acknowledgement_stops_the_commit(store: StateStore) -> None:
    """I4: the error names all missing subtasks, and the files of the others are deleted."""
    with (  # noqa: PT012
        pytest.raises(
            InvalidArgumentError, match=r"no acknowledgement from subtasks 0, 2 of 3 was received"
        ),
        store.snapshot(parallelism=3) as checkpoint,
    ):
        writer = declare(checkpoint)
        checkpoint.acknowledge(writer.subtask(1).write(rows_of(writer, 1)))
        assert stored_files(store.url) != set()
    assert store.checkpoints() == ()
    assert stored_files(store.url) == set()


def test_many_missing_acknowledgements_are_abbreviated(store: StateStore) -> None:
    """The error lists ten of them."""
    with (
        pytest.raises(InvalidArgumentError, match=r"0, 1, 2, .*, 9 and 6 more of 16 was received"),
        store.snapshot(parallelism=16) as checkpoint,
    ):
        declare(checkpoint)


def test_an_exception_deletes_acknowledged_files(store: StateStore) -> None:
    """I10: the job's own error is raised."""
    with pytest.raises(RuntimeError, match="job"), store.snapshot(parallelism=1) as checkpoint:  # noqa: PT012
        checkpoint.acknowledge(declare(checkpoint).subtask(0).write(ROWS))
        raise RuntimeError("job")
    assert stored_files(store.url) == set()
    assert store.checkpoints() == ()


def test_a_fenced_coordinator_does_not_commit(store: StateStore) -> None:
    """I6: its subtasks' files are deleted, but not the files of its successor."""
    with (  # noqa: PT012
        pytest.raises(CommitConflictError),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.acknowledge(declare(checkpoint).subtask(0).write(ROWS))
        with opened(store.url).snapshot(parallelism=1) as successor:
            successor.acknowledge(declare(successor).subtask(0).write(ROWS))
    (entry,) = opened(store.url).checkpoint().manifest.keyed
    assert stored_files(store.url) == {Path(handle.path).name for handle in entry.handles}
    assert restored(opened(store.url)) == WANTED


def test_the_first_of_two_acknowledgements_of_a_subtask_counts(store: StateStore) -> None:
    """I5, I10: a repeated one is accepted; another one's files are deleted, in any order."""
    with store.snapshot(parallelism=1) as checkpoint:
        writer = declare(checkpoint).subtask(0)
        first, second = writer.write(ROWS), writer.write(ROWS)
        assert checkpoint.acknowledge(first)
        assert checkpoint.acknowledge(Acknowledgement.from_json(first.to_json()))
        both = stored_files(store.url)
        assert not checkpoint.acknowledge(second)
        assert not checkpoint.acknowledge(second)
        left = stored_files(store.url)
        assert left == {Path(handle.path).name for handle in first.entry.handles}
        assert len(both) == 2 * len(left)
    assert restored(store) == WANTED
    assert not store.maintenance.verify().strays


def test_one_of_two_concurrent_acknowledgements_counts(store: StateStore) -> None:
    """Threads may pass them concurrently."""
    with store.snapshot(parallelism=1) as checkpoint:
        writer = declare(checkpoint).subtask(0)
        answers = [writer.write(ROWS) for _ in range(6)]
        with ThreadPoolExecutor(6) as pool:
            assert sum(pool.map(checkpoint.acknowledge, answers)) == 1
    assert restored(store) == WANTED
    assert not store.maintenance.verify().strays


def test_an_acknowledgement_of_another_attempt_is_refused(store: StateStore) -> None:
    """I4: its files are kept, because a checkpoint may reference them."""
    with store.snapshot(parallelism=1) as checkpoint:
        committed = declare(checkpoint).subtask(0).write(ROWS)
        checkpoint.acknowledge(committed)
    lost = declare(store.snapshot(parallelism=1).__enter__()).subtask(0).write(ROWS)
    other = opened(f"{store.url}-other")
    elsewhere = declare(other.snapshot(parallelism=1).__enter__()).subtask(0).write(ROWS)
    before = stored_files(store.url)
    with store.snapshot(parallelism=1) as checkpoint:
        writer = declare(checkpoint)
        for answer in (committed, lost, elsewhere):
            with pytest.raises(InvalidArgumentError, match=r"but this is .*checkpoint_id=2"):
                checkpoint.acknowledge(answer)
        assert stored_files(store.url) == before
        own = writer.subtask(0).write(ROWS)
        checkpoint.acknowledge(own)
    with pytest.raises(InvalidArgumentError, match="has already begun"):
        checkpoint.acknowledge(own)
    assert restored(store) == WANTED


def test_an_impossible_acknowledgement_is_refused(store: StateStore) -> None:
    """No file outside the subtask's own folder is committed or deleted, whoever sends it."""
    with store.snapshot(parallelism=2) as checkpoint:
        writer = declare(checkpoint)
        zero, one = (writer.subtask(i).write(rows_of(writer, i)) for i in range(2))
        handle = zero.entry.handles[0]
        outside = replace(handle, path="../../../statestore.json")
        older = replace(handle, path=handle.path.replace("0000000001-", "0000000009-"))
        state = replace(zero.entry.state, name="m")
        for wrong in (
            replace(zero, subtask=1),
            replace(zero, subtask=2),
            replace(zero, entry=replace(zero.entry, handles=(outside,))),
            replace(zero, entry=replace(zero.entry, handles=(older,))),
            replace(zero, entry=replace(zero.entry, state=state)),
            replace(zero, entry=replace(zero.entry, state=replace(state, name="n", key=("text",)))),
        ):
            with pytest.raises(InvalidArgumentError):
                checkpoint.acknowledge(wrong)
        assert checkpoint.acknowledge(zero)
        assert checkpoint.acknowledge(one)
    assert restored(store) == WANTED


def test_an_acknowledgement_that_was_damaged_in_transit_is_refused(store: StateStore) -> None:
    """Any flipped byte is detected: the document contains its own SHA-256."""
    raw = declare(store.snapshot(parallelism=1).__enter__()).subtask(0).write(ROWS).to_json()
    for at in range(0, len(raw), 97):
        with pytest.raises(MalformedManifestError):
            Acknowledgement.from_json(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])


def test_a_retry_of_a_committed_checkpoint_writes_nothing(store: StateStore) -> None:
    """Its subtasks do not even read their rows."""
    with store.snapshot(parallelism=2, checkpoint_id=5) as checkpoint:
        writer = declare(checkpoint)
        for subtask in range(2):
            checkpoint.acknowledge(writer.subtask(subtask).write(rows_of(writer, subtask)))
    before = stored_files(store.url)
    with store.snapshot(parallelism=3, checkpoint_id=5) as again:
        writer = declare(again)
        assert again.already_committed
        answers = [writer.subtask(subtask).write("not looked at") for subtask in range(3)]
        assert not any(map(again.acknowledge, answers))
    assert stored_files(store.url) == before
    assert restored(store) == WANTED
