"""In every form, checkpoints differ like dictionaries, and shared files are not read."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest

from statestore.maintenance.diff_report import StateDifference
from statestore.store import StateStore
from tests.support.forms import FORMS, GROUPS, Checkpoints, Entries, Form, users

pytestmark = pytest.mark.slow

HOW: list[tuple[Form, str]] = [
    ("plain", "ranged"),
    ("layered", "ranged"),
    ("compacted", "partitioned"),
    ("compacted", "ranged"),
]


def difference(state: Checkpoints, a: int, b: int, keys: int = 1000) -> StateDifference:
    (found,) = state.store.inspect.diff(a, b, keys=keys).states
    return found


def expected(a: Entries, b: Entries) -> tuple[set[object], set[object], set[object]]:
    changed = {entry for entry in a.keys() & b.keys() if a[entry] != b[entry]}
    return set(b.keys() - a.keys()), set(a.keys() - b.keys()), set(changed)


def named(found: StateDifference, change: str) -> set[object]:
    return {
        (example.identity["k"], example.identity["m"])
        for example in found.examples
        if example.change == change
    }


def check(state: Checkpoints, a: int, b: int) -> StateDifference:
    found = difference(state, a, b)
    added, removed, changed = expected(state.taken[a], state.taken[b])
    assert (found.added, found.removed, found.changed) == (len(added), len(removed), len(changed))
    assert [named(found, change) for change in ("added", "removed", "changed")] == [
        added,
        removed,
        changed,
    ]
    assert found.differs == bool(added or removed or changed)
    assert found.key_groups_differing == len(found.key_groups)
    assert found.rows_a in (None, len(state.taken[a]))
    assert found.rows_b in (None, len(state.taken[b]))
    return found


@pytest.mark.long_cases("compacted-ranged", "plain-ranged")
@pytest.mark.parametrize(("form", "layout"), HOW)
def test_any_two_checkpoints_differ_like_dictionaries(
    tmp_path: Path, form: Form, layout: str
) -> None:
    draw = random.Random(HOW.index((form, layout)))
    state = Checkpoints(tmp_path, form, layout)
    state.full({(f"u{draw.randrange(30):03}", m): m for m in range(2) for _ in range(20)})
    for _ in range(4):
        some = [(f"u{draw.randrange(40):03}", draw.randrange(3)) for _ in range(6)]
        cleared = [f"u{draw.randrange(40):03}" for _ in range(2)]
        state.change({entry: draw.randrange(2) for entry in some}, cleared=set(cleared))
    state.full(state.rows)
    for a, b in combinations(state.taken, 2):
        check(state, *draw.sample((a, b), 2))
    last = max(state.taken)
    # The last one is full and has the rows of the one before.
    assert not difference(state, last - 1, last).differs


def test_only_changed_key_groups_are_read(tmp_path: Path) -> None:
    state = Checkpoints(tmp_path)
    state.full(users(2000), parallelism=1)
    one = state.change(users(400, value=1))
    two = state.change({("u001", 0): 9})
    state.opened()
    found = check(state, one, two)
    assert (found.key_groups_read, found.key_groups_differing) == (1, 1)
    assert (found.rows_a, found.rows_b) == (None, None)
    sides = state.store.inspect.diff(one, two)
    assert 0 < sides.b.read_bytes < sides.b.size_bytes / 2
    assert state.store.inspect.diff(one, one).b.read_bytes == 0


def test_changes_without_effect_are_read_and_are_not_a_difference(tmp_path: Path) -> None:
    state = Checkpoints(tmp_path)
    first = state.full(users(20))
    same = state.change({("u001", 0): 1}, cleared=["nobody"])
    found = check(state, first, same)
    assert found.key_groups_differing == 0
    assert found.key_groups_read in (1, 2)
    assert (found.rows_a, found.rows_b) == (20, 20)


@pytest.mark.parametrize("form", FORMS)
def test_emptied_key_groups_are_removed(tmp_path: Path, form: Form) -> None:
    state = Checkpoints(tmp_path, form)
    first = state.full(users(12))
    emptied = state.change(cleared=[f"u{i:03}" for i in range(12)])
    found = check(state, first, emptied)
    assert (found.removed, sum(group.removed for group in found.key_groups)) == (12, 12)
    again = state.change(users(3))
    check(state, emptied, again)
    check(state, again, emptied)


@pytest.mark.parametrize("form", FORMS)
def test_a_state_of_one_side_is_counted(tmp_path: Path, form: Form) -> None:
    state = Checkpoints(tmp_path / "a", form)
    state.full(users(12))
    state.change({("u001", 0): 5}, cleared=["u002"])
    with StateStore.open(state.storage, table_format="parquet").snapshot(parallelism=1) as other:
        other.drop("u", "s")
        other.write_keyed("x", "y", pa.table({"k": ["a"]}), key="k", max_parallelism=GROUPS)
    found = {one.state: one for one in state.store.inspect.diff(2, other.id).states}["s"]
    assert (found.only_in, found.removed, found.rows_a, found.rows_b) == ("a", 11, 11, 0)


@pytest.mark.parametrize("form", FORMS)
def test_sides_with_other_key_groups_are_compared_by_all_rows(tmp_path: Path, form: Form) -> None:
    one, two = Checkpoints(tmp_path / "a", form), Checkpoints(tmp_path / "b", form)
    one.full(users(12))
    one.change({("u001", 0): 5}, cleared=["u002"])
    rows = pa.table({"k": [k for k, _ in one.rows], "m": [m for _, m in one.rows]})
    rows = rows.append_column("v", pa.array(list(one.rows.values())))
    with two.store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed(
            "u", "s", rows, kind="map", key="k", entry="m", max_parallelism=GROUPS * 2
        )

    def found_between() -> StateDifference:
        (found,) = one.store.inspect.diff("latest", two.store.checkpoint()).states
        return found

    found = found_between()
    assert (found.added, found.removed, found.changed) == (0, 0, 0)
    one.change({("u001", 0): 6})
    found = found_between()
    assert (found.added, found.removed, found.changed) == (0, 0, 1)
