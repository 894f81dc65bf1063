"""Every difference between two checkpoints is reported, and equal key groups are never read."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import Changes
from statestore.errors import (
    CheckpointNotFoundError,
    DamagedFileError,
    InvalidArgumentError,
    StateNotFoundError,
    StorageError,
)
from statestore.format.state import Layout
from statestore.jobgraph.graph import JobGraph
from statestore.layers.intact_key_groups import group_digests
from statestore.maintenance.diff_report import (
    CheckpointDifference,
    Example,
    Other,
    StateDifference,
)
from statestore.maintenance.diff_rows import ExampleSample, fair_shares
from statestore.parquet.writer import ParquetOptions
from statestore.storage import LocalStorage
from statestore.store import StateStore
from statestore.testing.faults import CountingStorage, Fault, FaultKind, FaultyStorage, calls_of
from tests.support.examples import examples

pytestmark = pytest.mark.slow

GROUPS = 16
Rows = dict[str, int]


def over(folder: Path, layout: str = "partitioned") -> StateStore:
    options = ParquetOptions(row_group_rows=16)
    storage = CountingStorage(str(folder))
    return StateStore.open(storage, table_format="parquet", layout=layout, parquet=options)


def take(store: StateStore, rows: Rows, **options: Any) -> int:
    layout = options.pop("layout", None)
    table = pa.table(
        {"user": pa.array([*rows], pa.string()), "n": pa.array([*rows.values()], pa.int64())}
    )
    with store.snapshot(parallelism=options.pop("parallelism", 1)) as checkpoint:
        options = {"max_parallelism": GROUPS} | options
        checkpoint.write_keyed("users", "totals", table, key="user", layout=layout, **options)
    return checkpoint.id


def users(first: int, stop: int, value: int = 0) -> Rows:
    return {f"u{i:03}": i + value for i in range(first, stop)}


def one(difference: CheckpointDifference) -> StateDifference:
    (state,) = difference.states
    return state


def counts(state: StateDifference) -> tuple[int, int, int]:
    return state.added, state.removed, state.changed


def opened(store: StateStore) -> Counter[str]:
    """Return how often each data file was opened."""
    storage = store.parts.storage
    assert isinstance(storage, CountingStorage)
    found = {n: k for n, k in storage.opened.items() if n.endswith(".parquet")}
    storage.opened.clear()
    return Counter(found)


# --- rows -----------------------------------------------------------------------------------------

contents = st.dictionaries(st.sampled_from([f"u{i}" for i in range(30)]), st.integers(0, 2))


@examples(40)
@given(contents, contents, st.sampled_from(Layout), st.sampled_from(Layout), st.integers(0, 40))
def test_rows_are_compared_like_dictionaries(
    a: Rows, b: Rows, layout_a: Layout, layout_b: Layout, keys: int
) -> None:
    """Counts, counts per key group and examples are right for all layouts."""
    with tempfile.TemporaryDirectory() as folder:
        store = over(Path(folder))
        take(store, a, layout=layout_a)
        take(store, b, layout=layout_b)
        state = one(store.inspect.diff(1, 2, keys=keys))
        added, removed = {*b} - {*a}, {*a} - {*b}
        changed = {user for user in {*a} & {*b} if a[user] != b[user]}
        assert counts(state) == (len(added), len(removed), len(changed))
        assert state.differs == (a != b)
        for index, name in enumerate(("added", "removed", "changed")):
            assert sum(getattr(g, name) for g in state.key_groups) == counts(state)[index]
        assert len(state.examples) == min(keys, sum(counts(state)))
        for example in state.examples:
            user = example.identity["user"]
            assert user in {"added": added, "removed": removed, "changed": changed}[example.change]
            assert example.a == (None if user in added else {"user": user, "n": a[user]})
            assert example.b == (None if user in removed else {"user": user, "n": b[user]})
            (row,) = (store.restore(checkpoint=2 if user in b else 1),)
            group = row.keyed("users", "totals").to_arrow(0).to_pylist()
            assert example.key_group in {r["key_group"] for r in group if r["user"] == user}


@pytest.mark.parametrize("layout_a", Layout)
@pytest.mark.parametrize("layout_b", Layout)
def test_equal_key_groups_are_never_read(tmp_path: Path, layout_a: str, layout_b: str) -> None:
    """I8: one changed key costs one key group of each side, for any layout."""
    store = over(tmp_path / "store")
    rows = users(0, 300)
    take(store, rows, layout=layout_a)
    take(store, rows | {"u007": -1}, layout=layout_b)
    opened(store)
    difference = store.inspect.diff(1, 2)
    state = one(difference)
    assert counts(state) == (0, 0, 1)
    assert (state.key_groups_differing, state.key_groups_read) == (1, 1)
    (group,) = state.key_groups
    read = opened(store)
    expected = Counter(
        f"{entry.table.path}/{handle.path}"
        for entry in (store.checkpoint(1).manifest.keyed[0], store.checkpoint(2).manifest.keyed[0])
        for handle in entry.handles
        if group.key_group in {g for g, _, _ in group_digests(handle)}
    )
    assert read == expected
    assert len(expected) == 2
    for side in (difference.a, difference.b):
        assert 0 < side.read_bytes < side.size_bytes * (1 / 2)


@pytest.mark.parametrize("layout_a", Layout)
@pytest.mark.parametrize("layout_b", Layout)
def test_equal_checkpoints_are_not_read(tmp_path: Path, layout_a: str, layout_b: str) -> None:
    store = over(tmp_path / "store")
    take(store, users(0, 300), layout=layout_a)
    take(store, users(0, 300), layout=layout_b)
    opened(store)
    difference = store.inspect.diff(1, 2)
    assert not difference.differs
    assert opened(store) == Counter()
    assert (difference.a.read_bytes, difference.b.read_bytes) == (0, 0)


def test_key_groups_of_one_side_are_counted_without_reading(tmp_path: Path) -> None:
    """Only examples are read."""
    store = over(tmp_path / "store")
    take(store, {"u001": 1})
    take(store, users(0, 300))
    opened(store)
    state = one(store.inspect.diff(1, 2, keys=0))
    assert (counts(state), state.key_groups_read) == ((299, 0, 0), 1)
    assert sum(opened(store).values()) == 2
    shown = one(store.inspect.diff(1, 2, keys=10_000))
    assert (shown.key_groups_read, len(shown.examples)) == (GROUPS, 299)
    assert counts(one(store.inspect.diff(2, 1, keys=5))) == (0, 299, 0)


@pytest.mark.parametrize("keys", [3, GROUPS, 40])
def test_examples_come_from_as_many_key_groups_as_possible(tmp_path: Path, keys: int) -> None:
    """Changed, added and removed rows, in key groups of both sides and of one side."""
    store = over(tmp_path / "store")
    take(store, users(0, 300))
    take(store, users(100, 400, 1))
    state = one(store.inspect.diff(1, 2, keys=keys))
    of_group = Counter(example.key_group for example in state.examples)
    assert sum(of_group.values()) == keys
    assert len(of_group) == min(keys, GROUPS)
    assert max(of_group.values()) - min(of_group.values()) <= 1
    groups = [example.key_group or 0 for example in state.examples]
    assert groups == sorted(groups)
    assert max(groups) > GROUPS / 2
    if keys == 40:
        assert {example.change for example in state.examples} == {"added", "removed", "changed"}
    alone = one(store.inspect.diff(1, 2, keys=0))
    assert (alone.examples, counts(alone)) == ((), counts(state))


def test_examples_of_other_key_groups_are_spread_too(tmp_path: Path) -> None:
    a, b = over(tmp_path / "a"), over(tmp_path / "b")
    take(a, users(0, 300))
    take(b, users(100, 400, 1), max_parallelism=5)
    state = one(a.inspect.diff(1, b.checkpoint(1), keys=12))
    of_change = Counter(example.change for example in state.examples)
    assert of_change == {"added": 4, "removed": 4, "changed": 4}
    assert (state.rows_a, state.rows_b) == (300, 300)


def test_the_rows_of_both_sides_are_counted_with_changes(tmp_path: Path) -> None:
    """By the read key groups, or as in the list if key groups with changes were not read."""
    storage = CountingStorage(str(tmp_path / "store"))
    store = StateStore.open(storage, table_format="parquet", compaction=None)
    take(store, users(0, 100))
    for changed in ({"u001": -1, "new": 1}, {f"u{i:03}": i + 7 for i in range(100)}):
        with store.snapshot(parallelism=1) as checkpoint:
            rows = [{"user": user, "n": n} for user, n in changed.items()]
            checkpoint.write_changes("users", "totals", Changes(rows, cleared=[{"user": "u099"}]))
    state = one(store.inspect.diff(2, 3))
    assert (state.rows_a, state.rows_b) == (100, 101)
    assert (state.file_rows_a, state.changed_rows_a) == (103, 3)
    same = one(store.inspect.diff(3, 3))
    assert (same.rows_a, same.file_rows_a) == (None, 100 + same.changed_rows_a)


def test_rows_that_only_changes_have_are_counted(tmp_path: Path) -> None:
    """Their key groups have no rows in the base, whose row count is not theirs."""
    storage = CountingStorage(str(tmp_path / "store"))
    store = StateStore.open(storage, table_format="parquet", compaction=None)
    take(store, {"u001": 1})
    with store.snapshot(parallelism=1) as checkpoint:
        rows = [{"user": user, "n": n} for user, n in users(2, 60).items()]
        checkpoint.write_changes("users", "totals", rows)
    difference = store.inspect.diff(1, 2)
    state = one(difference)
    assert (counts(state), state.key_groups_differing) == ((58, 0, 0), GROUPS)
    (row,) = difference.to_arrow().to_pylist()
    assert row == {
        "operator": "users",
        "state": "totals",
        "sort": "keyed",
        "rows_a": 1,
        "rows_b": 59,
        "only_in": None,
        "added": 58,
        "removed": 0,
        "changed": 0,
    }


shares = st.lists(st.integers(0, 30), max_size=12)


@given(shares, st.integers(0, 60))
def test_shares_are_fair(wanted: list[int], limit: int) -> None:
    given_shares = [*fair_shares(dict(enumerate(wanted)), limit).values()]
    assert sum(given_shares) == min(limit, sum(wanted))
    assert all(0 <= got <= most for got, most in zip(given_shares, wanted, strict=True))
    short = [got for got, most in zip(given_shares, wanted, strict=True) if got < most]
    assert all(max(given_shares) - got <= 1 for got in short)


@given(shares, st.integers(0, 12))
def test_a_sample_is_independent_of_the_order_of_key_groups(sizes: list[int], limit: int) -> None:
    """As if all examples were known at once."""
    groups = [group for group, size in enumerate(sizes) if size]
    chosen = []
    for order in (groups, groups[::-1]):
        sample = ExampleSample(limit, groups)
        for group in order:
            room = min(sample.room(group), sizes[group])
            sample.add(group, [example_of(group, number) for number in range(room)])
        chosen.append([(example.key_group, example.identity) for example in sample.examples()])
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == min(limit, sum(sizes))


def example_of(group: int, number: int) -> Example:
    return Example(change="added", key_group=group, identity={"k": number}, a=None, b={"k": number})


def test_identity_is_key_namespace_and_entry(tmp_path: Path) -> None:
    """A list element is identified by its position too, and floats are distinguished by
    their bits.
    """
    store = over(tmp_path / "store")
    for last in (float("nan"), -0.0):
        rows = [
            {"user": "a", "window": 1, "position": 0, "x": 0.0},
            {"user": "a", "window": 1, "position": 1, "x": float("nan")},
            {"user": "a", "window": 2, "position": 0, "x": 0.0 if last != last else -0.0},
        ]
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed(
                "users",
                "recent",
                rows,
                kind="list",
                entry="position",
                key="user",
                namespace="window",
            )
    state = one(store.inspect.diff(1, 2))
    assert counts(state) == (0, 0, 1)
    assert state.examples[0].identity == {"user": "a", "window": 2, "position": 0}


# --- other forms ----------------------------------------------------------------------------------


def test_another_max_parallelism_is_compared_by_identity(tmp_path: Path) -> None:
    """All rows are read, once. Key groups are not compared."""
    a, b = over(tmp_path / "a"), over(tmp_path / "b", "ranged")
    take(a, users(0, 100))
    take(b, users(10, 100) | {"u050": -1, "new": 1}, max_parallelism=5)
    opened(a)
    difference = a.inspect.diff(1, b.checkpoint(1), keys=100)
    state = one(difference)
    assert counts(state) == (1, 10, 1)
    assert (state.key_groups, state.key_groups_differing) == ((), None)
    assert Other("max parallelism", "16", "5") in state.others
    assert Counter(example.change for example in state.examples) == Counter(
        added=1, removed=10, changed=1
    )
    (changed,) = (e for e in state.examples if e.change == "changed")
    assert (changed.a, changed.b) == ({"user": "u050", "n": 50}, {"user": "u050", "n": -1})
    assert changed.key_group is None
    assert set(opened(a).values()) == {1}
    assert (difference.a.store, difference.b.store) == (a.url, b.url)


def test_equal_states_with_other_key_groups_are_not_read(tmp_path: Path) -> None:
    """Their digests depend only on the rows."""
    a, b = over(tmp_path / "a"), over(tmp_path / "b")
    take(a, users(0, 50))
    take(b, users(0, 50), max_parallelism=5)
    state = one(a.inspect.diff(1, b.checkpoint(1)))
    assert (counts(state), state.differs) == ((0, 0, 0), True)
    assert opened(a) == Counter()


def test_shared_columns_are_compared_if_the_columns_differ(tmp_path: Path) -> None:
    a, b = over(tmp_path / "a"), over(tmp_path / "b")
    for store, extra, value in ((a, "old", 1), (b, "new", 2)):
        rows = pa.table({"user": ["x", "y"], "n": [1, value], extra: [value, value]})
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("users", "totals", rows, key="user", max_parallelism=4)
    state = one(a.inspect.diff(1, b.checkpoint(1)))
    assert state.compared_columns == ("user", "n")
    assert counts(state) == (0, 0, 1)
    assert state.others == (
        Other("columns", "user string, n long, old long", "user string, n long, new long"),
    )


def test_states_with_different_identities_are_reported_as_not_compared(tmp_path: Path) -> None:
    a, b = over(tmp_path / "a"), over(tmp_path / "b")
    rows = pa.table({"user": ["x"], "window": [1]})
    with a.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("users", "totals", rows, key="user")
    with b.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("users", "totals", rows, key="user", namespace="window")
    state = one(a.inspect.diff(1, b.checkpoint(1)))
    assert state.not_compared == "rows are identified by (user) in a, but by (user, window) in b"
    assert (counts(state), state.differs) == ((0, 0, 0), True)


def test_states_of_one_side_parallelism_and_graph(tmp_path: Path) -> None:
    store = over(tmp_path / "store")
    take(store, users(0, 9))
    graph = JobGraph.from_toml(
        '[job]\nparallelism = 2\n[[operator]]\nname = "in"\nuid = "source"\n'
        '[[operator]]\nname = "x"\nuid = "users"\nmax_parallelism = 16\ninputs = ["in"]\n'
    )
    with store.snapshot(graph=graph) as checkpoint:
        checkpoint.carry_rest()
        checkpoint.write_split("source", "splits", [[{"s": 1}], []])
    difference = store.inspect.diff(1)
    assert difference.others == (Other("parallelism", "1", "2"),)
    assert difference.graph == (Other("job graph", None, "2 operators"),)
    added, same = difference.states
    assert (added.state, added.only_in, counts(added)) == ("splits", "b", (1, 0, 0))
    assert not same.differs
    back = store.inspect.diff(2, 1)
    assert (back.states[0].only_in, counts(back.states[0])) == ("a", (0, 1, 0))


# --- elements -------------------------------------------------------------------------------------


def offsets(store: StateStore, lists: list[list[int]]) -> None:
    with store.snapshot(parallelism=len(lists)) as checkpoint:
        checkpoint.write_union("source", "offsets", [[{"offset": o} for o in one] for one in lists])


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([[1, 2], [3]], [[1, 2], [3]], (0, 0, 0)),
        ([[1, 2], [3]], [[1, 5], [3]], (0, 0, 1)),
        ([[1, 2], [3]], [[1], [2, 4]], (1, 1, 0)),
        ([[1, 1], [1]], [[1, 1], [1, 1]], (1, 0, 0)),
        ([[1, 2, 3]], [[2, 3, 4]], (1, 1, 0)),
        ([[1, 2, 3]], [[3, 1, 2]], (0, 0, 0)),
        ([[1]], [[1, 1, 1]], (2, 0, 0)),
        ([[7, 8]], [[9, 9]], (0, 0, 2)),
    ],
)
def test_elements_are_compared_one_by_one(
    tmp_path: Path, a: list[list[int]], b: list[list[int]], expected: tuple[int, int, int]
) -> None:
    store = over(tmp_path / "store")
    offsets(store, a)
    offsets(store, b)
    state = one(store.inspect.diff(1, 2))
    assert counts(state) == expected
    assert state.differs == (a != b)
    assert len(state.examples) == sum(expected)
    if expected == (0, 0, 1):
        (example,) = state.examples
        assert (example.a, example.b) == ({"offset": 2}, {"offset": 5})
    if a == b:
        assert opened(store) == Counter()


# --- arguments ------------------------------------------------------------------------------------


def test_missing_names_are_reported_with_the_existing_ones(tmp_path: Path) -> None:
    store = over(tmp_path / "store")
    take(store, users(0, 9))
    take(store, users(0, 10))
    assert counts(one(store.inspect.diff(1, operator="users", state="totals"))) == (1, 0, 0)
    with pytest.raises(StateNotFoundError, match=r"'total' of operator 'users'.*'users' 'totals'"):
        store.inspect.diff(1, 2, operator="users", state="total")
    with pytest.raises(CheckpointNotFoundError, match="the store has the checkpoints 1, 2"):
        store.inspect.diff(1, 7)
    with pytest.raises(InvalidArgumentError, match="keys"):
        store.inspect.diff(1, 2, keys=-1)


def test_progress_is_reported_in_key_groups(tmp_path: Path) -> None:
    store = over(tmp_path / "store")
    take(store, users(0, 99))
    take(store, users(0, 99, 1))
    heard: list[tuple[int, int]] = []
    store.inspect.diff(1, 2, on_progress=lambda done, total: heard.append((done, total)))
    assert heard == [(done, GROUPS) for done in range(GROUPS + 1)]


def test_damage_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    store = over(tmp_path / "store")
    take(store, users(0, 9), max_parallelism=1)
    take(store, users(0, 10), max_parallelism=1)
    entry = store.checkpoint(2).manifest.keyed[0]
    file = Path(store.url, entry.table.path, entry.handles[0].path)
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(DamagedFileError, match=file.name):
        store.inspect.diff(1, 2)


@pytest.mark.parametrize("kind", [FaultKind.ERROR, FaultKind.DISCONNECTED, FaultKind.ANSWER_LOST])
def test_any_failed_call_is_a_storage_error(tmp_path: Path, kind: FaultKind) -> None:
    """I10: nothing is written, and the same command then returns the right result."""
    store = over(tmp_path / "store")
    take(store, users(0, 20), max_parallelism=2, layout="ranged")
    take(store, users(1, 20, 1), max_parallelism=2)
    local = LocalStorage(str(tmp_path / "store"))
    right = []
    calls = calls_of(local, lambda s: right.append(StateStore.open(s).inspect.diff(1, 2)))
    assert not {"put_if_absent", "open_write", "delete"} & {call.operation for call in calls}
    for call in calls:
        if call.operation == "close":  # everything was read before
            continue
        fault = Fault(call.number, kind, kind is FaultKind.DISCONNECTED)
        with pytest.raises(StorageError):
            StateStore.open(FaultyStorage(local, fault)).inspect.diff(1, 2)
    assert StateStore.open(local).inspect.diff(1, 2) == right[0]


def test_an_object_store_and_a_folder_are_compared(tmp_path: Path) -> None:
    """The object store is read by ranges, and its requests are counted."""
    local = over(tmp_path / "a")
    take(local, users(0, 300), layout="ranged")
    far = CountingStorage(str(tmp_path / "b"), streams=4)
    options = ParquetOptions(row_group_rows=16)
    remote = StateStore.open(far, table_format="parquet", layout="ranged", parquet=options)
    take(remote, users(0, 300) | {"u007": -1})
    before = far.bytes_read
    difference = local.inspect.diff(1, remote.checkpoint(1))
    assert counts(one(difference)) == (0, 0, 1)
    assert far.ranges
    data = far.bytes_read - before
    assert difference.b.read_bytes == data
