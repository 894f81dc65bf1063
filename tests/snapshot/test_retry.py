"""A snapshot with an id chosen by the job: a retry writes once, and ids never decrease."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from statestore.errors import CommitConflictError, InvalidArgumentError, StateNotFoundError
from statestore.format.names import manifest_path, tombstone_path
from statestore.snapshot.writer import CheckpointWriter
from statestore.storage import LocalStorage
from tests.support.stores import opened
from tests.support.writers import ROWS, claims, stored_files, take


def test_a_retry_of_a_visible_id_writes_nothing(url: str) -> None:
    """I4: neither files nor a claim; its calls return the stored entries for any rows."""
    store = opened(url)
    with store.snapshot(parallelism=2, checkpoint_id=1) as first:
        first.write_keyed("u", "n", ROWS, key="k", max_parallelism=4)
        first.write_keyed("u", "m", ROWS, kind="map", key="k", entry="v")
        first.write_union("source", "offsets", [[{"p": 0}], [{"p": 1}]])
    assert not first.already_committed
    before = {path: path.stat().st_mtime_ns for path in Path(url).rglob("*")}
    with opened(url).snapshot(parallelism=3, checkpoint_id=1) as again:
        assert again.already_committed
        assert again.id == 1
        keyed = again.write_keyed("u", "n", object(), key="k")
        assert keyed == store.checkpoint().manifest.keyed_entry("u", "n")
        assert (
            again.write_keyed("u", "m", object(), kind="map", entry="v", key="k").state.name == "m"
        )
        assert again.write_union("source", "offsets", object()).counts == (1, 1)
        with pytest.raises(StateNotFoundError, match="no state 'other'"):
            again.write_keyed("u", "other", ROWS, key="k")
    assert again.manifest == store.checkpoint().manifest == first.manifest
    assert {path: path.stat().st_mtime_ns for path in Path(url).rglob("*")} == before
    with pytest.raises(InvalidArgumentError, match="take another snapshot"), again:
        raise AssertionError
    take(store, 2)


KEYED: dict[str, Any] = {"key": "k", "max_parallelism": 4}


def acknowledged(writer: CheckpointWriter) -> bool:
    subtask = writer.declare_keyed("u", "declared", ROWS.schema, **KEYED).subtask(0)
    return writer.acknowledge(subtask.write(ROWS)) or writer.already_committed


CALLS: dict[str, Callable[[CheckpointWriter], Any]] = {
    "already_committed": lambda writer: None,  # these differ
    "manifest": lambda writer: None,
    "metrics": lambda writer: None,
    "id": lambda writer: None,
    "abandon": lambda writer: None,
    "planned": lambda writer: (writer.planned[0], writer.planned[1].release),
    "collected": lambda writer: writer.collected.checkpoint_id,
    "write_keyed": lambda writer: writer.write_keyed("u", "n", ROWS, **KEYED).state,
    "declare_keyed": acknowledged,
    "acknowledge": lambda writer: None,  # as above
    "write_changes": lambda writer: writer.write_changes("u", "c", ROWS, **KEYED).state,
    "write_changes_against": lambda writer: (
        writer.write_changes_against("u", "w", ROWS, **KEYED).state
    ),
    "write_split": lambda writer: writer.write_split("o", "s", [[{"p": 1}]]).counts,
    "write_union": lambda writer: writer.write_union("o", "u", [[{"p": 1}]]).counts,
    "write_broadcast": lambda writer: writer.write_broadcast("o", "b", [{"p": 1}]).counts,
    "carry": lambda writer: writer.carry("u", "old").state,
    "carry_rest": lambda writer: writer.carry_rest(),
    "drop": lambda writer: writer.drop("u", "none"),
    "left_out": lambda writer: writer.left_out(),
}


def test_a_retried_batch_answers_each_call_as_its_first_attempt(url: str) -> None:
    """The job does not know that its batch was committed, and calls what it called before."""
    assert {name for name in dir(CheckpointWriter) if not name.startswith("_")} == {*CALLS}
    take(opened(url), rows=ROWS)
    with opened(url).snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "old", ROWS, **KEYED)
        checkpoint.drop("u", "n")
    answers = []
    for attempt in range(2):
        with opened(url).snapshot(parallelism=1, batch=("job", 1)) as checkpoint:
            answers.append({name: call(checkpoint) for name, call in CALLS.items()})
        assert checkpoint.already_committed == bool(attempt)
        assert checkpoint.manifest == opened(url).checkpoint(3).manifest
        assert checkpoint.id == 3
    assert answers[0] == answers[1]
    assert opened(url).checkpoints() == (1, 2, 3)


def test_a_retry_syncs_the_checkpoint_that_it_finds(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: the earlier attempt may have died between the put and its sync."""
    take(opened(url), 1)
    synced: list[str] = []
    monkeypatch.setattr(LocalStorage, "sync", lambda self, names: synced.extend(names))
    take(opened(url), 1)
    assert synced == [manifest_path(1)]


def test_an_error_in_a_retry_changes_nothing(url: str) -> None:
    """I4: the commit of an earlier attempt stays."""
    store = opened(url)
    take(store, 1)
    with pytest.raises(RuntimeError, match="job"), store.snapshot(parallelism=2, checkpoint_id=1):
        raise RuntimeError("job")
    assert store.restore().keyed("u", "n").get("a") == [{"k": "a", "v": 1}]


def test_a_failed_attempt_is_retried_with_the_same_id(url: str) -> None:
    """I6: the id is still available, also if it skips others."""
    store = opened(url)
    for _ in range(2):
        with pytest.raises(RuntimeError), store.snapshot(parallelism=2, checkpoint_id=7):
            raise RuntimeError
    assert take(store, 7).id == 7
    assert take(store).id == 8
    assert store.checkpoints() == (7, 8)


def test_ids_can_have_gaps_but_never_decrease(url: str) -> None:
    """I6: an id that was skipped or has expired is refused, and replaces no writer."""
    store = opened(url)
    assert take(store, 3).id == 3
    assert take(store, 10).id == 10
    store.parts.storage.put_if_absent(tombstone_path(10), b"")
    before = len(claims(url))
    for checkpoint_id in (1, 9, 10):
        with pytest.raises(InvalidArgumentError, match="the next one is 11"):
            opened(url).snapshot(parallelism=2, checkpoint_id=checkpoint_id)
    assert len(claims(url)) == before
    assert take(store, 3).already_committed
    assert take(store).id == 11


@pytest.mark.parametrize("checkpoint_id", [0, -1, 10**10, True, 1.0, "1"])
def test_an_invalid_id_is_refused(url: str, checkpoint_id: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"checkpoint.id"):
        opened(url).snapshot(parallelism=2, checkpoint_id=checkpoint_id)


def test_two_attempts_with_one_id_commit_once(url: str) -> None:
    """I4: the second attempt to end gets an error with the winner, and its retry finds that one."""
    store = opened(url)
    first = store.snapshot(parallelism=2, checkpoint_id=1)
    take(store, 1)
    with pytest.raises(CommitConflictError, match=r"committed by writer \S+ \(.*generation 1\)"):  # noqa: SIM117
        with first:
            first.write_keyed("u", "n", ROWS, key="k")
    assert take(store, 1).already_committed


def test_an_attempt_below_a_newer_checkpoint_does_not_commit(url: str) -> None:
    """I6: ids grow in the order of commits, even if two attempts of one object overlap."""
    store = opened(url)
    slow = store.snapshot(parallelism=2)
    take(store, 5)
    with pytest.raises(CommitConflictError, match=r"checkpoint 5 .* was committed"), slow:
        slow.write_keyed("u", "n", ROWS, key="k")
    assert store.checkpoints() == (5,)


@pytest.mark.parametrize("greater", [False, True])
def test_one_of_two_concurrent_snapshots_commits(url: str, greater: bool) -> None:
    """I4: the base of the second one is not the newest checkpoint any more."""
    store = opened(url)
    take(store)
    first = store.snapshot(parallelism=2)
    second = store.snapshot(parallelism=2, checkpoint_id=10 if greater else None)
    with first:
        first.write_changes("u", "n", pa.table({"k": ["c"], "v": [3]}))
        first.write_keyed("new", "state", ROWS, key="k")
    with pytest.raises(CommitConflictError, match=r"checkpoint 2 .* was committed by"):  # noqa: PT012, SIM117
        with second:
            second.write_changes("u", "n", pa.table({"k": ["d"], "v": [4]}))
            second.carry_rest()
    assert store.checkpoints() == (1, 2)
    assert take(store).id == (10 if greater else 3)  # an announced id is never skipped


@pytest.mark.slow
def test_concurrent_snapshots_of_many_threads_lose_nothing(url: str) -> None:
    """I4: each thread retries after a conflict, and no row is lost."""
    store, threads, rounds = opened(url), 4, 5
    take(store)
    together = Barrier(threads)

    def write(thread: int) -> None:
        together.wait()
        for number in range(rounds):
            row, is_committed = pa.table({"k": [f"{thread}-{number}"], "v": [number]}), False
            while not is_committed:
                with suppress(CommitConflictError):
                    with store.snapshot(parallelism=2) as checkpoint:
                        checkpoint.write_changes("u", "n", row)
                    is_committed = True

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(threads)))
    stored = opened(url).restore(parallelism=1).keyed("u", "n").to_arrow(0)
    written = {f"{thread}-{number}" for thread in range(threads) for number in range(rounds)}
    assert set(stored.column("k").to_pylist()) == {"a", "b", *written}


def test_an_id_that_expired_meanwhile_is_not_committed(url: str) -> None:
    """I4, I6: the manifest's name is free, but the checkpoint would never be visible."""
    store = opened(url)
    checkpoint = store.snapshot(parallelism=2).__enter__()
    checkpoint.write_keyed("u", "n", ROWS, key="k")
    store.parts.storage.put_if_absent(tombstone_path(1), b"")
    with pytest.raises(CommitConflictError, match="has a tombstone"):
        checkpoint.__exit__(None, None, None)
    assert stored_files(url) == set()
    assert not Path(url, manifest_path(1)).exists()
    assert take(store).id == 2


def test_many_ids_can_follow_the_largest_allowed_one(url: str) -> None:
    """I6: a larger one is refused before any claim, and the largest leaves room for more."""
    store = opened(url)
    take(store, 1)
    before = claims(url)
    for number in (9_999_999_999, 9_000_000_000):
        with pytest.raises(InvalidArgumentError, match="at most 8,999,999,999"):
            take(store, number)
    assert claims(url) == before
    seconds_since_1970 = 1_800_000_000
    for number in (seconds_since_1970, seconds_since_1970 + 60, 8_999_999_999):
        assert take(store, number).id == number
    assert take(store).id == 9_000_000_000
    assert take(store, 9_000_000_001).id == 9_000_000_001
    assert take(store, 9_000_000_001).already_committed


def test_a_writer_finds_the_checkpoint_that_a_forked_process_has_committed(tmp_path: Path) -> None:
    """It has the writer's own claim, so only a listing finds it."""
    code = """
        import os, sys
        import pyarrow as pa
        from statestore import StateStore

        store = StateStore.open(sys.argv[1], table_format="parquet")

        def write(checkpoint, number):
            with checkpoint:
                checkpoint.write_keyed("o", "s", pa.table({"k": [number]}), key=["k"])

        write(store.snapshot(parallelism=1), 1)
        begun = store.snapshot(parallelism=1)
        child = os.fork()
        if child == 0:
            write(begun, 2)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        begun.abandon()
        write(store.snapshot(parallelism=1), 3)
        assert store.checkpoints() == (1, 2, 3)
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], check=True, timeout=60
    )
