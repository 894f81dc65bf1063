"""Threads write rows by key group, one range per thread: the result equals one thread's, or nothing
is written.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from statestore.engines.grouped_rows import GroupedRows, RowRange
from statestore.errors import DamagedFileError, StateStoreError, UnsupportedTypeError
from statestore.format.digest import combine
from statestore.format.handles import KeyedStateHandle
from statestore.format.state import KeyedState, Layout, StateKind
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
from statestore.keys.hashing import key_group_of
from statestore.parquet.keyed_writer import KeyedTarget
from statestore.parquet.writer import ParquetOptions
from statestore.rows.column_types import schema_of_arrow
from statestore.storage import LocalStorage

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
MOST = 20


def groups_of(most: int) -> dict[int, pa.Table]:
    """Return rows of every key group."""
    keys: dict[int, list[int]] = defaultdict(list)
    for key in range(40 * most):
        keys[key_group_of(key, max_parallelism=most)].append(key)
    return {
        group: pa.table([found, [f"value {key}" for key in found]], SCHEMA)
        for group, found in sorted(keys.items())
    }


def target_of(
    storage: LocalStorage, most: int = MOST, layout: Layout = Layout.PARTITIONED
) -> KeyedTarget:
    state = KeyedState(
        uid="u",
        name="n",
        kind=StateKind.VALUE,
        schema=schema_of_arrow(SCHEMA),
        key=("k",),
        key_types=("Long",),
        max_parallelism=most,
        hash_scheme="java",
        layout=layout,
    )
    options = ParquetOptions(run_bytes=1)  # one key group per run
    return KeyedTarget(storage, "t", 7, state, options)


def written(
    storage: LocalStorage,
    threads: int,
    *,
    most: int = MOST,
    layout: Layout = Layout.PARTITIONED,
    before: Callable[[int], None] = lambda group: None,
) -> tuple[KeyedStateHandle, ...]:
    """Write all rows with a thread for each range, at most one for each key group.

    The thread of a key group first calls ``before`` with it.
    """
    tables = groups_of(most)

    def groups(key_groups: KeyGroupRange) -> Iterator[tuple[int, pa.Table]]:
        for group in key_groups:
            before(group)
            yield group, tables[group]

    owners = KeyGroupAssignment(max_parallelism=most, parallelism=1)
    target = target_of(storage, most, layout)
    share = KeyGroupAssignment(max_parallelism=most, parallelism=min(threads, most))
    ranges = (share.range_of(number) for number in range(share.parallelism))
    rows = GroupedRows(SCHEMA, tuple(RowRange(own, groups(own)) for own in ranges))
    return rows.write(owners, target)


@pytest.mark.parametrize("layout", [Layout.PARTITIONED, Layout.RANGED])
@pytest.mark.parametrize("most", [1, 2, MOST])
def test_threads_write_what_one_thread_writes(most: int, layout: Layout, tmp_path: Path) -> None:
    found = {
        threads: written(
            LocalStorage(str(tmp_path / str(threads))), threads, most=most, layout=layout
        )
        for threads in (1, 2, 3, 64)
    }
    facts = set()
    for threads, handles in found.items():
        firsts = [handle.key_groups.first for handle in handles]
        assert firsts == sorted(firsts)
        files = {path.name for path in (tmp_path / str(threads)).rglob("*.parquet")}
        assert {Path(handle.path).name for handle in handles} == files
        assert sum(len(handle.key_groups) for handle in handles) == most
        if layout is Layout.RANGED:
            assert len(handles) == min(threads, most)
        digest = combine(handle.digest for handle in handles)
        facts.add((sum(handle.rows for handle in handles), digest))
    assert len(facts) == 1


def test_ranges_are_written_concurrently(storage: LocalStorage) -> None:
    both = threading.Barrier(2, timeout=120)

    def met(group: int) -> None:
        if group in (0, MOST // 2):
            both.wait()

    written(storage, 2, before=met)


class Readings:
    """Fails for some key groups, and records the requested ones."""

    def __init__(self, errors: dict[int, StateStoreError]) -> None:
        self.errors = errors
        self.asked: list[int] = []

    def __call__(self, group: int) -> None:
        self.asked.append(group)
        if group in self.errors:
            raise self.errors[group]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("at", [[0], [9], [10], [19], [3, 12], [8, 11], [9, 19], [0, 7, 14]])
def test_the_first_error_by_key_group_is_raised_and_nothing_is_left(
    at: list[int], threads: int, storage: LocalStorage
) -> None:
    kinds = (DamagedFileError, UnsupportedTypeError, DamagedFileError)
    errors = {group: kind(f"{group}") for group, kind in zip(at, kinds, strict=False)}
    with pytest.raises(StateStoreError) as caught:
        written(storage, threads, before=Readings(dict(errors)))
    assert caught.value is errors[at[0]]
    assert storage.listed("t") == ()


def test_ranges_after_a_failed_one_are_abandoned(storage: LocalStorage) -> None:
    failed, before_it = threading.Event(), threading.Event()
    asked: list[int] = []

    def read(group: int) -> None:
        asked.append(group)
        if group == 8:  # in the second of three ranges
            failed.set()
            raise DamagedFileError("8")
        if group == 15:  # in the third range, which waits until the second has failed
            assert before_it.wait(120)
        if group > 14:
            time.sleep(0.2)
        if group == 2:
            assert failed.wait(120)
        if group == 6:  # the first range runs to its end
            before_it.set()

    with pytest.raises(DamagedFileError, match="8"):
        written(storage, 3, before=read)
    assert set(range(7)) <= {*asked}
    assert 19 not in asked
    assert storage.listed("t") == ()


@pytest.mark.slow
def test_an_interrupt_waits_for_no_range(storage: LocalStorage) -> None:
    """Ctrl-C arrives in the thread that waits for the others."""
    asked: list[int] = []
    first_is_done, interrupted = threading.Event(), threading.Event()

    def read(group: int) -> None:
        asked.append(group)
        if group == 9:
            first_is_done.set()
        if group == 12:
            assert first_is_done.wait(120)
            signal.pthread_kill(waiting, signal.SIGINT)
        if group > 11:
            assert interrupted.wait(120)
            time.sleep(0.2)

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    waiting = threading.get_ident()
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            written(storage, 2, before=read)
    finally:
        signal.signal(signal.SIGINT, before)
    assert 19 not in asked
    assert storage.listed("t") == ()


def test_rows_of_another_range_are_refused(storage: LocalStorage) -> None:
    table = pa.table([[1], ["a"]], SCHEMA)
    group = key_group_of(1, max_parallelism=MOST)
    halves = KeyGroupRange(0, MOST // 2 - 1), KeyGroupRange(MOST // 2, MOST - 1)
    rows = GroupedRows(SCHEMA, tuple(RowRange(half, iter([(group, table)])) for half in halves))
    with pytest.raises(DamagedFileError, match="follow rows of key group"):
        rows.write(KeyGroupAssignment(max_parallelism=MOST, parallelism=1), target_of(storage))
    assert storage.listed("t") == ()
