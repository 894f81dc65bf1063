"""What was written is what every subtask gets, at every parallelism, through Arrow and Parquet."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.model.keygroups import KeyGroupAssignment
from statestore.model.paths import KEY_GROUP
from statestore.store import StateStore
from statestore.table.digest import rows_digest
from statestore.testing.reference import ReferenceKeyed, canonical
from tests.counting import CountingStorage
from tests.strategies import KeyedCase, keyed_cases, parallelisms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.commands.restore import RestoredKeyedState

UID, NAME = "an-operator", "a state"


def multiset(rows: Iterable[Any]) -> Counter[Any]:
    return Counter(map(canonical, rows))


def restored(state: RestoredKeyedState) -> list[pa.Table]:
    """Every subtask's rows, columns in order of name."""
    subtasks = range(state.assignment.parallelism)
    return [state.subtask(subtask).read_all() for subtask in subtasks]


def check(state: RestoredKeyedState, oracle: ReferenceKeyed) -> None:
    """Compare every subtask with the oracle, by value, by digest and by order."""
    tables = restored(state)
    for subtask, table in enumerate(tables):
        expected = oracle.subtask(subtask, state.assignment.parallelism)
        assert multiset(table.to_pylist()) == multiset(expected)
        groups = table.column(KEY_GROUP).to_pylist()
        assert all(left <= right for left, right in pairwise(groups))
    rows = pa.concat_tables(tables).drop_columns([KEY_GROUP])
    assert rows_digest(rows) == state.digest == oracle.digest


@settings(max_examples=60)
@given(st.data(), keyed_cases())
def test_restore_conserves_rows_at_every_parallelism(data: st.DataObject, case: KeyedCase) -> None:
    """I1, I2, I7: any state of any kind, written at p, then at p' from what p' restored, at p''."""
    first, second, third = (data.draw(parallelisms(case.max_parallelism)) for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        store = StateStore.open(folder, table_format="parquet")
        with store.snapshot(parallelism=first) as checkpoint:
            entry = case.write(checkpoint, UID, NAME)
        oracle = ReferenceKeyed(entry.state, tuple(case.rows.to_pylist()))
        state = store.restore(parallelism=second).keyed(UID, NAME)
        check(state, oracle)

        rows = pa.concat_tables(restored(state)).drop_columns([KEY_GROUP])
        order = data.draw(st.permutations(range(len(rows))))
        with store.snapshot(parallelism=second) as checkpoint:
            again = case.write(checkpoint, UID, NAME, rows.take(pa.array(order, pa.int64())))
        assert again.state == entry.state
        assert {h.key_groups: h.digest for h in again.handles} == {
            h.key_groups: h.digest for h in entry.handles
        }
        check(store.restore(parallelism=third).keyed(UID, NAME), oracle)


@settings(max_examples=25)
@given(st.data(), keyed_cases())
def test_a_subtask_opens_files_of_its_own_key_groups_once(
    data: st.DataObject, case: KeyedCase
) -> None:
    """I8: counted on the storage; a subtask without rows opens nothing."""
    parallelism = data.draw(parallelisms(case.max_parallelism))
    assignment = KeyGroupAssignment(
        max_parallelism=case.max_parallelism, parallelism=parallelism
    )
    with tempfile.TemporaryDirectory() as folder:
        storage = CountingStorage(folder)
        store = StateStore(storage, None, "parquet")
        with store.snapshot(parallelism=1) as checkpoint:
            entry = case.write(checkpoint, UID, NAME)
        state = store.restore(parallelism=parallelism).keyed(UID, NAME)
        assert not storage.opened
        for subtask, own in enumerate(assignment.ranges()):
            storage.opened.clear()
            state.subtask(subtask).read_all()
            meeting = [h for h in entry.handles if h.key_groups.intersect(own)]
            assert storage.opened == {f"{entry.table.path}/{h.path}": 1 for h in meeting}


@settings(max_examples=25)
@given(st.data(), keyed_cases())
def test_get_equals_filtering_all_rows(data: st.DataObject, case: KeyedCase) -> None:
    """Every stored key, and one that is not, from at most one file (I8)."""
    with tempfile.TemporaryDirectory() as folder:
        storage = CountingStorage(folder)
        store = StateStore(storage, None, "parquet")
        with store.snapshot(parallelism=1) as checkpoint:
            entry = case.write(checkpoint, UID, NAME)
        oracle = ReferenceKeyed(entry.state, tuple(case.rows.to_pylist()))
        state = store.restore().keyed(UID, NAME)
        for row in oracle.rows:
            storage.opened.clear()
            key = tuple(row[name] for name in case.key)
            found = state.get(key[0] if len(key) == 1 else key)
            assert multiset(found) == multiset(oracle.get(key))
            assert storage.opened.total() == 1
