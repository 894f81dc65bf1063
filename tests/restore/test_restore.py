"""Every subtask restores the written rows at every parallelism, through Arrow and Parquet."""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import (
    CheckpointNotFoundError,
    DamagedFileError,
    InvalidArgumentError,
    MissingFileError,
    ParallelismError,
    StateNotFoundError,
    StoreNotFoundError,
)
from statestore.format.names import KEY_GROUP
from statestore.keys.groups import KeyGroupAssignment
from statestore.rows.digests import rows_digest
from statestore.store import StateStore
from statestore.testing.faults import CountingStorage
from statestore.testing.reference import (
    ReferenceCheckpoint,
    ReferenceKeyed,
    ReferenceOperator,
    canonical,
)
from tests.support.examples import examples
from tests.support.strategies import KeyedCase, element_lists, keyed_cases, parallelisms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore.restore.restored import RestoredKeyedState

pytestmark = pytest.mark.slow

UID, NAME = "an-operator", "a state"
ROWS = pa.table({"k": ["a", "b", "c"], "v": [1, 2, 3]})


def take(
    store: StateStore, rows: pa.Table = ROWS, parallelism: int = 2, layout: str = "auto"
) -> None:
    with store.snapshot(parallelism=parallelism) as checkpoint:
        checkpoint.write_keyed("u", "n", rows, key="k", layout=layout)


def multiset(rows: Iterable[Any]) -> Counter[Any]:
    return Counter(map(canonical, rows))


def every_subtask(state: RestoredKeyedState) -> list[pa.Table]:
    """Return every subtask's rows, with the columns sorted by name."""
    subtasks = range(state.assignment.parallelism)
    return [state.to_arrow(subtask) for subtask in subtasks]


def check(state: RestoredKeyedState, oracle: ReferenceKeyed) -> None:
    """Compare every subtask with the expected rows, by value, digest and order."""
    tables = every_subtask(state)
    for subtask, table in enumerate(tables):
        expected = oracle.subtask(subtask, state.assignment.parallelism)
        assert multiset(table.to_pylist()) == multiset(expected)
        groups = table.column(KEY_GROUP).to_pylist()
        assert all(left <= right for left, right in pairwise(groups))
    rows = pa.concat_tables(tables).drop_columns([KEY_GROUP])
    assert rows_digest(rows) == state.digest == oracle.digest


@examples(60)
@given(st.data(), keyed_cases())
def test_restore_conserves_rows_at_every_parallelism(data: st.DataObject, case: KeyedCase) -> None:
    """I1, I2, I7: states of every kind, restored and written at p', then restored at p''."""
    first, second, third = (data.draw(parallelisms(case.max_parallelism)) for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        store = StateStore.open(folder, table_format="parquet")
        with store.snapshot(parallelism=first) as checkpoint:
            entry = case.write(checkpoint, UID, NAME)
        oracle = ReferenceKeyed(entry.state, tuple(case.rows.to_pylist()))
        state = store.restore(parallelism=second).keyed(UID, NAME)
        check(state, oracle)

        rows = pa.concat_tables(every_subtask(state)).drop_columns([KEY_GROUP])
        order = data.draw(st.permutations(range(len(rows))))
        with store.snapshot(parallelism=second) as checkpoint:
            again = case.write(checkpoint, UID, NAME, rows.take(pa.array(order, pa.int64())))
        assert again.state == entry.state
        assert {h.key_groups: h.digest for h in again.handles} == {
            h.key_groups: h.digest for h in entry.handles
        }
        check(store.restore(parallelism=third).keyed(UID, NAME), oracle)


@examples(25)
@given(st.data(), keyed_cases())
def test_a_subtask_opens_files_of_its_own_key_groups_once(
    data: st.DataObject, case: KeyedCase
) -> None:
    """I8: the storage counts the opened files; a subtask without rows opens none."""
    parallelism = data.draw(parallelisms(case.max_parallelism))
    assignment = KeyGroupAssignment(max_parallelism=case.max_parallelism, parallelism=parallelism)
    with tempfile.TemporaryDirectory() as folder:
        storage = CountingStorage(folder)
        store = StateStore.open(storage, table_format="parquet", layout="partitioned")
        with store.snapshot(parallelism=1) as checkpoint:
            entry = case.write(checkpoint, UID, NAME)
        state = store.restore(parallelism=parallelism).keyed(UID, NAME)
        assert not storage.opened
        for subtask, own in enumerate(assignment.ranges()):
            storage.opened.clear()
            state.to_arrow(subtask)
            meeting = [h for h in entry.handles if h.key_groups.intersect(own)]
            assert storage.opened == {f"{entry.table.path}/{h.path}": 1 for h in meeting}


@examples(25)
@given(st.data(), keyed_cases())
def test_get_equals_filtering_all_rows(data: st.DataObject, case: KeyedCase) -> None:
    """Every stored key and one absent key, from at most one file (I8)."""
    with tempfile.TemporaryDirectory() as folder:
        storage = CountingStorage(folder)
        store = StateStore.open(storage, table_format="parquet")
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


# --- operator state -------------------------------------------------------------------------------


@examples(40)
@given(st.data(), st.integers(1, 5), st.integers(1, 7))
def test_operator_state_is_distributed_as_in_flink(data: st.DataObject, old: int, new: int) -> None:
    """I7, I11: split state once, union state in full to each, one broadcast copy to each."""
    lists = {name: data.draw(element_lists(old)) for name in ("split", "union", "other")}
    rules = data.draw(element_lists(1))[0]
    with tempfile.TemporaryDirectory() as folder:
        store = StateStore.open(folder, table_format="parquet")
        with store.snapshot(parallelism=old) as c:
            written = [
                c.write_split("u", "split", lists["split"]),
                c.write_union("u", "union", lists["union"]),
                c.write_broadcast("u", "rules", rules),
                c.write_split("u", "other", lists["other"]),
            ]
        lists["rules"] = [rules]
        oracle = ReferenceCheckpoint(
            old,
            operator={
                ("u", e.state.name): ReferenceOperator(
                    e.state, tuple(tuple(one) for one in lists[e.state.name])
                )
                for e in written
            },
        )
        restored = store.restore(parallelism=new)
        for name, given_lists in lists.items():
            state = restored.operator_state("u", name)
            assert state.per_old_subtask() == given_lists
            every = [list(oracle.elements("u", name, subtask, new)) for subtask in range(new)]
            assert [*state.subtasks()] == every
            assert state.count() == sum(map(len, every))
            for subtask, expected in enumerate(every):
                assert state.subtask(subtask) == expected
                assert state.subtask(subtask, where={"partition": [0, 1]}) == [
                    element for element in expected if element["partition"] in (0, 1)
                ]


# --- empty and sparse states ----------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 3, 128])
def test_an_empty_state_is_stored(store: StateStore, parallelism: int) -> None:
    """It has no file, keeps its columns and max parallelism, and can get rows later."""
    empty = pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], pa.list_(pa.string()))})
    with store.snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.write_keyed("u", "n", empty, key="k")
        checkpoint.write_union("u", "offsets", [[]])
    assert (entry.rows, entry.handles, entry.digest) == (0, (), 0)
    restored = store.restore(parallelism=parallelism)
    tables = every_subtask(restored.keyed("u", "n"))
    assert [table.num_rows for table in tables] == [0] * parallelism
    assert {tuple(table.schema.names) for table in tables} == {("key_group", "k", "v")}
    assert restored.keyed("u", "n").get(1) == []
    assert restored.operator_state("u", "offsets").subtask(parallelism - 1) == []
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", [{"k": 1, "v": ["x"]}], key="k")
        checkpoint.carry_rest()
    assert store.restore().keyed("u", "n").get(1) == [{"k": 1, "v": ["x"]}]


def test_a_checkpoint_without_states_is_valid(store: StateStore) -> None:
    """It reports that it has no states."""
    with store.snapshot(parallelism=3):
        pass
    restored = store.restore()
    assert (restored.checkpoint_id, restored.parallelism) == (1, 3)
    with pytest.raises(StateNotFoundError, match="it has none"):
        restored.keyed("u", "n")


def test_a_subtask_without_rows_reads_nothing(store: StateStore) -> None:
    """One key, 128 subtasks."""
    take(store, pa.table({"k": [1]}))
    sizes = [t.num_rows for t in every_subtask(store.restore(parallelism=128).keyed("u", "n"))]
    assert sorted(sizes) == [0] * 127 + [1]


# --- arguments ------------------------------------------------------------------------------------


def test_every_checkpoint_stays_readable(store: StateStore) -> None:
    """By number; by default the latest one, at the parallelism of its snapshot."""
    for rows in (2, 3):
        take(store, pa.table({"k": list(range(rows))}), parallelism=rows)
    for checkpoint, rows in ((1, 2), ("1", 2), (2, 3), ("latest", 3)):
        restored = store.restore(checkpoint=checkpoint)
        assert restored.parallelism == rows
        assert sum(t.num_rows for t in every_subtask(restored.keyed("u", "n"))) == rows


def test_a_missing_name_lists_those_that_exist(store: StateStore) -> None:
    """For a checkpoint, an operator, a state, and a state of the wrong sort."""
    take(store)
    with pytest.raises(
        CheckpointNotFoundError, match=r"no checkpoint 2 .*the store has the checkpoints 1"
    ):
        store.restore(checkpoint=2)
    restored = store.restore()
    with pytest.raises(StateNotFoundError, match=r"no operator 'x' in checkpoint 1; it has 'u'"):
        restored.keyed("x", "n")
    with pytest.raises(StateNotFoundError, match=r"no state 'x' in operator 'u'.*it has 'n'"):
        restored.keyed("u", "x")
    with pytest.raises(StateNotFoundError, match=r"is keyed state; .* read it with \.keyed"):
        restored.operator_state("u", "n")


@pytest.mark.parametrize("parallelism", [0, -1, 129, 32_769, True, 2.0, "2"])
def test_a_parallelism_that_does_not_fit_is_refused(store: StateStore, parallelism: Any) -> None:
    """Before a file is read; the error for too many subtasks names the operator."""
    take(store)
    with pytest.raises((ParallelismError, InvalidArgumentError), match="parallelism"):
        store.restore(parallelism=parallelism)
    with pytest.raises((ParallelismError, InvalidArgumentError), match="parallelism"):
        store.plan(parallelism=parallelism)


def test_a_max_parallelism_that_does_not_divide_is_refused(store: StateStore) -> None:
    """I3: the error has both numbers."""
    take(store)
    assert store.restore(max_parallelism=128).parallelism == 2
    with pytest.raises(ParallelismError, match=r"stored max parallelism 128 cannot be read as 200"):
        store.restore(max_parallelism=200)


@pytest.mark.parametrize("subtask", [-1, 2, True, "0", 0.0])
def test_a_subtask_that_does_not_exist_is_refused(store: StateStore, subtask: Any) -> None:
    """For keyed state and operator state."""
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "n", ROWS, key="k")
        checkpoint.write_union("u", "offsets", [[{"p": 1}], []])
    restored = store.restore()
    with pytest.raises(InvalidArgumentError, match="subtask"):
        restored.keyed("u", "n").to_batches(subtask)
    with pytest.raises(InvalidArgumentError, match="subtask"):
        restored.operator_state("u", "offsets").subtask(subtask)


def test_rows_can_be_read_as_pandas_and_polars_frames(store: StateStore) -> None:
    """With pandas and Polars each value stays the same, such as a long next to a null, or a NaN."""
    longs, doubles = pa.array([2**53 + 1, None, 3]), pa.array([float("nan"), None, 1.0])
    take(store, pa.table({"k": ["a", "b", "c"], "v": longs, "x": doubles}))
    keyed = store.restore(parallelism=2).keyed("u", "n")
    for subtask in range(2):
        rows = keyed.to_arrow(subtask)
        back = pa.Table.from_pandas(keyed.to_pandas(subtask), preserve_index=False)
        assert repr(back.to_pylist()) == repr(rows.to_pylist())
        assert repr(keyed.to_polars(subtask).to_arrow().to_pylist()) == repr(rows.to_pylist())


def test_to_spark_needs_spark(store: StateStore) -> None:
    """The message names the alternatives that need no Spark."""
    take(store)
    with pytest.raises(InvalidArgumentError, match=r"needs Spark: .*\.to_arrow\(0\)"):
        store.restore().keyed("u", "n").to_spark()


# --- damage ---------------------------------------------------------------------------------------


def test_a_missing_or_damaged_file_is_named_with_its_state(store: StateStore) -> None:
    """I7: the error names file, state, operator and key group; other subtasks stay readable."""
    take(store)
    take(store, layout="partitioned")
    entry = store.checkpoint().manifest.keyed[0]
    handle = entry.handles[0]
    path = Path(store.url, entry.table.path, handle.path)
    raw = path.read_bytes()
    state = store.restore(parallelism=128).keyed("u", "n")
    owner = handle.key_groups.first
    for damage, error in (
        (lambda: path.write_bytes(raw[:-10]), DamagedFileError),
        (lambda: path.write_bytes(bytes(len(raw))), DamagedFileError),
        (path.unlink, MissingFileError),
    ):
        damage()
        with pytest.raises(error, match=path.name) as caught:
            state.to_arrow(owner)
        assert caught.value.__notes__ == [
            f"while restoring state 'n' of operator 'u', key group {owner}"
        ]
    others = [i for i in range(128) if i != owner]
    assert sum(state.to_arrow(i).num_rows for i in others) == 2
    assert sum(t.num_rows for t in every_subtask(store.restore(checkpoint=1).keyed("u", "n"))) == 3


def test_a_missing_file_of_elements_is_named_with_its_state(store: StateStore) -> None:
    """As with keyed state."""
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_union("u", "offsets", [[{"p": 1}]])
    [path] = Path(store.url, "operators").rglob("*.parquet")
    path.unlink()
    with pytest.raises(MissingFileError, match=path.name) as caught:
        store.restore().operator_state("u", "offsets").subtask(0)
    assert caught.value.__notes__ == ["while reading union state 'offsets' of operator 'u'"]


def test_a_restore_from_a_missing_store_is_refused(store: StateStore) -> None:
    """A restore does not create a store."""
    for call in (store.restore, store.checkpoints, store.checkpoint):
        with pytest.raises(StoreNotFoundError, match=store.url):
            call()
    assert not Path(store.url).exists()


def test_restored_states_can_be_pickled(store: StateStore) -> None:
    """For example for another process, also after small layers of changes were read."""
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", pa.table({"k": ["a", "b"], "v": [1, 2]}), key="k")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("u", "s", pa.table({"k": ["b"], "v": [3]}))
    state = store.restore(parallelism=2).keyed("u", "s")
    read = [state.to_arrow(subtask) for subtask in range(2)]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        other = pickle.loads(pickle.dumps(state, protocol))
        assert [other.to_arrow(subtask) for subtask in range(2)] == read
