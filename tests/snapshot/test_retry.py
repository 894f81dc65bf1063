"""A snapshot under an id of the job's own: a retry writes once, and ids never go back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from statestore.errors import CommitConflictError, InvalidArgumentError, StateNotFoundError
from statestore.format.names import manifest_path, tombstone_path
from statestore.storage import LocalStorage
from tests.support.writers import ROWS, claims, opened, stored_files, take


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def test_a_retry_of_a_visible_id_writes_nothing(url: str) -> None:
    """I4: neither files nor a claim; its calls return what is stored, whatever it is given."""
    store = opened(url)
    with store.snapshot(parallelism=2, checkpoint_id=1) as first:
        first.keyed("u", "n", ROWS, key="k", max_parallelism=4)
        first.map("u", "m", ROWS, key="k", map_key="v")
        first.union("source", "offsets", [[{"p": 0}], [{"p": 1}]])
    assert not first.already_committed
    before = {path: path.stat().st_mtime_ns for path in Path(url).rglob("*")}
    with opened(url).snapshot(parallelism=3, checkpoint_id=1) as again:
        assert again.already_committed
        assert again.id == 1
        keyed = again.keyed("u", "n", object(), key="k")
        assert keyed == store.manifest().keyed_entry("u", "n")
        assert again.map("u", "m", object(), map_key="v", key="k").state.name == "m"
        assert again.union("source", "offsets", object()).counts == (1, 1)
        with pytest.raises(StateNotFoundError, match="no state 'other'"):
            again.keyed("u", "other", ROWS, key="k")
    assert again.manifest == store.manifest() == first.manifest
    assert {path: path.stat().st_mtime_ns for path in Path(url).rglob("*")} == before
    with pytest.raises(InvalidArgumentError, match="take another one"), again:
        raise AssertionError
    take(store, 2)


def test_what_a_retry_finds_is_durable_before_it_is_told(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: the attempt before may have died between the put and its sync."""
    take(opened(url), 1)
    synced: list[str] = []
    monkeypatch.setattr(LocalStorage, "sync", lambda self, names: synced.extend(names))
    take(opened(url), 1)
    assert synced == [manifest_path(1)]


def test_an_error_in_a_retry_changes_nothing(url: str) -> None:
    """I4: what an earlier attempt committed stays."""
    store = opened(url)
    take(store, 1)
    with pytest.raises(RuntimeError, match="job"), store.snapshot(parallelism=2, checkpoint_id=1):
        raise RuntimeError("job")
    assert store.restore().keyed("u", "n").get("a") == [{"k": "a", "v": 1}]


def test_a_failed_attempt_is_retried_under_its_id(url: str) -> None:
    """I6: the id was not used up, also when it left others out."""
    store = opened(url)
    for _ in range(2):
        with pytest.raises(RuntimeError), store.snapshot(parallelism=2, checkpoint_id=7):
            raise RuntimeError
    assert take(store, 7).id == 7
    assert take(store).id == 8
    assert store.checkpoints() == (7, 8)


def test_ids_may_leave_some_out_but_never_go_back(url: str) -> None:
    """I6: one that was passed over or has expired is refused, and replaces no writer."""
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
def test_what_is_no_id_is_refused(url: str, checkpoint_id: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"checkpoint.id"):
        opened(url).snapshot(parallelism=2, checkpoint_id=checkpoint_id)


def test_two_attempts_at_one_id_commit_it_once(url: str) -> None:
    """I4: the second to end is told who won, and its retry finds the winner's."""
    store = opened(url)
    first = store.snapshot(parallelism=2, checkpoint_id=1)
    take(store, 1)
    with pytest.raises(CommitConflictError, match=r"committed by writer \S+ \(.*generation 1\)"):  # noqa: SIM117
        with first:
            first.keyed("u", "n", ROWS, key="k")
    assert take(store, 1).already_committed


def test_an_attempt_below_a_newer_checkpoint_does_not_commit(url: str) -> None:
    """I6: ids grow in the order of commits, also when two attempts of one object overlap."""
    store = opened(url)
    slow = store.snapshot(parallelism=2)
    take(store, 5)
    with pytest.raises(CommitConflictError, match=r"checkpoint 5 .* was committed"), slow:
        slow.keyed("u", "n", ROWS, key="k")
    assert store.checkpoints() == (5,)


@pytest.mark.parametrize("greater", [False, True])
def test_of_two_snapshots_that_are_open_at_once_one_commits(url: str, greater: bool) -> None:
    """I4: the second one builds on a checkpoint that is not the newest any more."""
    store = opened(url)
    take(store)
    first = store.snapshot(parallelism=2)
    second = store.snapshot(parallelism=2, checkpoint_id=10 if greater else None)
    with first:
        first.changes("u", "n", pa.table({"k": ["c"], "v": [3]}))
        first.keyed("new", "state", ROWS, key="k")
    with pytest.raises(CommitConflictError, match=r"checkpoint 2 .* was committed by"):  # noqa: PT012, SIM117
        with second:
            second.changes("u", "n", pa.table({"k": ["d"], "v": [4]}))
            second.carry_rest()
    assert store.checkpoints() == (1, 2)
    assert take(store).id == (10 if greater else 3)  # an id that was announced is never passed


def test_snapshots_of_many_threads_lose_nothing(url: str) -> None:
    """I4: each thread repeats what conflicts, and all rows are there."""
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
                        checkpoint.changes("u", "n", row)
                    is_committed = True

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(threads)))
    stored = opened(url).restore(parallelism=1).keyed("u", "n").to_arrow(0).read_all()
    written = {f"{thread}-{number}" for thread in range(threads) for number in range(rounds)}
    assert set(stored.column("k").to_pylist()) == {"a", "b", *written}


def test_an_id_that_expired_meanwhile_is_not_committed(url: str) -> None:
    """I4, I6: the manifest's name is free, and yet nobody would ever see the checkpoint."""
    store = opened(url)
    checkpoint = store.snapshot(parallelism=2).__enter__()
    checkpoint.keyed("u", "n", ROWS, key="k")
    store.parts.storage.put_if_absent(tombstone_path(1), b"")
    with pytest.raises(CommitConflictError, match="has a tombstone"):
        checkpoint.__exit__(None, None, None)
    assert stored_files(url) == set()
    assert not Path(url, manifest_path(1)).exists()
    assert take(store).id == 2


def test_after_any_id_that_can_be_given_many_follow(url: str) -> None:
    """I6: a great one is refused before anything is claimed, and the greatest leaves room."""
    store = opened(url)
    take(store, 1)
    before = claims(url)
    for number in (9_999_999_999, 9_000_000_000):
        with pytest.raises(InvalidArgumentError, match="8,999,999,999 at most"):
            take(store, number)
    assert claims(url) == before
    seconds_since_1970 = 1_800_000_000
    for number in (seconds_since_1970, seconds_since_1970 + 60, 8_999_999_999):
        assert take(store, number).id == number
    assert take(store).id == 9_000_000_000
    assert take(store, 9_000_000_001).id == 9_000_000_001
    assert take(store, 9_000_000_001).already_committed
