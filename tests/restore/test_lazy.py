"""A lazy subtask reads one key group at a time, on request, and only its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore, key_group_of
from statestore.errors import DamagedFileError, InvalidArgumentError
from statestore.format.state import TimeToLive
from statestore.keys.groups import KeyGroupRange
from statestore.parquet.writer import ParquetOptions
from statestore.restore.restored import RestoredKeyedState
from statestore.snapshot.state_spec import Changes
from statestore.testing.faults import CountingStorage
from tests.support.damage import change_unread_byte
from tests.support.forms import RANGED_IN_EACH_RUN

MOST = 12
ROWS = {f"k{i}": i for i in range(600)}


class Counted:
    """A store that counts the data files opened and bytes read since the last call of ``read``."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.storage = CountingStorage(str(folder))
        options = ParquetOptions(row_group_rows=64)
        self.store = StateStore.open(
            self.storage, table_format="parquet", layout=layout, parquet=options, compaction=None
        )
        self.rows = dict(ROWS)
        with self.store.snapshot(parallelism=2) as checkpoint:
            rows = [{"k": k, "v": v} for k, v in ROWS.items()]
            checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=MOST)

    def change(self) -> None:
        with self.store.snapshot(parallelism=2) as checkpoint:
            new = [{"k": "k1", "v": -1}, {"k": "new", "v": 7}]
            checkpoint.write_changes("u", "s", Changes(new, [{"k": "k2"}]), key="k")
        self.rows |= {"k1": -1, "new": 7}
        del self.rows["k2"]

    def state(self, parallelism: int, **where: Any) -> RestoredKeyedState:
        found = self.store.restore(parallelism=parallelism, **where).keyed("u", "s")
        self.read()
        return found

    def read(self) -> tuple[int, int]:
        """Return how many data files were opened, and how many bytes were read."""
        opened = sum(n for name, n in self.storage.opened.items() if name.endswith(".parquet"))
        read = self.storage.bytes_read
        self.storage.opened.clear()
        self.storage.bytes_read = 0
        return opened, read


@pytest.fixture(params=RANGED_IN_EACH_RUN)
def counted(tmp_path: Path, request: pytest.FixtureRequest) -> Counted:
    return Counted(tmp_path, request.param)


def owned(counted: Counted, state: RestoredKeyedState, subtask: int, most: int) -> list[str]:
    own = state.assignment.range_of(subtask)
    return [key for key in counted.rows if key_group_of(key, max_parallelism=most) in own]


@pytest.mark.slow
@pytest.mark.parametrize(("most", "parallelism"), [(12, 3), (36, 5), (4, 3), (12, 1)])
def test_a_lookup_is_right_at_any_max_parallelism(
    counted: Counted, most: int, parallelism: int
) -> None:
    counted.change()
    state = counted.state(parallelism, max_parallelism=most)
    seen = 0
    for subtask in range(parallelism):
        lazy = state.lazy(subtask)
        assert lazy.key_groups == state.assignment.range_of(subtask)
        own = owned(counted, state, subtask, most)
        for key in own[::7]:
            assert lazy.get(key) == [{"k": key, "v": counted.rows[key]}]
        groups = {key_group_of(key, max_parallelism=most) for key in own[::7]}
        assert lazy.fetched == tuple(sorted(groups))
        for key in ("k1", "k2", "new", "nobody"):
            if key_group_of(key, max_parallelism=most) not in lazy.key_groups:
                with pytest.raises(InvalidArgumentError, match="this subtask owns"):
                    lazy.get(key)
                continue
            wanted = [{"k": key, "v": counted.rows[key]}] if key in counted.rows else []
            assert lazy.get(key) == wanted
            seen += 1
    assert seen == 4


def test_the_first_lookup_reads_one_key_group(counted: Counted) -> None:
    state = counted.state(1)
    state.to_arrow(0)
    files, whole = counted.read()
    lazy = state.lazy(0)
    assert (counted.read(), lazy.fetched) == ((0, 0), ())
    assert lazy.get("k5")
    opened, read = counted.read()
    assert opened == 1 <= files
    assert 0 < read < whole / 2
    assert lazy.fetched == (key_group_of("k5", max_parallelism=MOST),)
    same = [k for k in ROWS if key_group_of(k, max_parallelism=MOST) in lazy.fetched]
    assert all(lazy.get(key) for key in same)
    assert counted.read() == (0, 0)


def test_fetch_reads_the_requested_groups_that_it_owns(counted: Counted) -> None:
    lazy = counted.state(3).lazy(1)
    assert lazy.key_groups == KeyGroupRange(4, 7)
    assert lazy.fetch(KeyGroupRange(0, 5)) == 2
    assert lazy.fetched == (4, 5)
    assert lazy.fetch() == 4
    counted.read()
    assert lazy.fetch() == 4
    assert counted.read() == (0, 0)


def test_the_least_recently_used_group_is_evicted_first(counted: Counted) -> None:
    state = counted.state(1)
    of: dict[int, str] = {key_group_of(k, max_parallelism=MOST): k for k in ROWS}
    lazy = state.lazy(0)
    lazy.get(of[0])
    one = lazy._size
    lazy = state.lazy(0, limit_bytes=4 * one)
    for group in (0, 1, 2, 0, 3, 4):
        lazy.get(of[group])
        assert lazy._size == sum(held.size for held in lazy._held.values()) <= 4 * one
    assert 0 in lazy.fetched
    assert 1 not in lazy.fetched
    counted.read()
    assert lazy.get(of[0])
    assert counted.read() == (0, 0)
    assert lazy.get(of[1])
    assert counted.read()[0] == 1


@pytest.mark.parametrize(("most", "is_changed"), [(MOST, False), (MOST, True), (36, True)])
def test_a_key_group_larger_than_the_limit_is_not_cached(
    counted: Counted, most: int, is_changed: bool
) -> None:
    """Its keys are looked up in the files. With a limit of zero nothing is cached."""
    if is_changed:
        counted.change()
    state = counted.state(1, max_parallelism=most)
    one = state.lazy(0)
    one.fetch(KeyGroupRange(0, 0))
    for limit in (0, one._size - 1):
        lazy = state.lazy(0, limit_bytes=limit)
        of_group = [key for key in counted.rows if key_group_of(key, max_parallelism=most) == 0]
        for key in [*of_group[::9], of_group[0]]:
            assert lazy.get(key) == [{"k": key, "v": counted.rows[key]}]
        assert (lazy.fetched, lazy.fetch(KeyGroupRange(0, 0)), lazy._size) == ((), 0, 0)
        gone = [] if is_changed else [{"k": "k2", "v": 2}]
        assert lazy.get("k2") == gone
        assert lazy.get("nobody") == []


def test_an_invalid_key_is_refused(counted: Counted) -> None:
    lazy = counted.state(1).lazy(0)
    for wrong in (5, None, ("a", "b")):
        with pytest.raises(InvalidArgumentError):
            lazy.get(wrong)
    assert counted.read() == (0, 0)


def test_a_verifying_restore_also_verifies_lazy_reads(counted: Counted) -> None:
    state = counted.state(1, verify=True)
    entry = state.entry
    for handle in entry.handles:
        change_unread_byte(Path(counted.store.url, entry.table.path, handle.path))
    assert counted.state(1).lazy(0).get("k5")
    with pytest.raises(DamagedFileError):
        state.lazy(0).get("k5")


def test_expired_rows_are_not_found(store: StateStore) -> None:
    rows = [{"k": "a", "at": 0}, {"k": "b", "at": 100}]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed(
            "u", "s", rows, key="k", max_parallelism=4, ttl=TimeToLive("50ms", "at")
        )
    lazy = store.restore(parallelism=1, now_ms=120).keyed("u", "s").lazy(0)
    assert (lazy.get("a"), lazy.get("b")) == ([], [rows[1]])
