"""A rule decides which differences between rows count, and everything else stays as without it."""

from __future__ import annotations

import tempfile
from math import isnan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.errors import InvalidArgumentError
from statestore.maintenance.diff_report import StateDifference
from statestore.maintenance.diff_rule import DiffRule
from tests.support.examples import examples

pytestmark = pytest.mark.slow

Row = tuple[float | None, str]
Rows = dict[str, Row]


def take(
    folder: Path, rows: Rows, *, groups: int = 8, columns: tuple[str, ...] = ("x", "t")
) -> int:
    kinds = {"x": pa.float64(), "t": pa.string()}
    values = {
        name: pa.array([row[i] for row in rows.values()], kinds[name])
        for i, name in enumerate(kinds)
    }
    table = pa.table(
        {"k": pa.array([*rows], pa.string()), **{name: values[name] for name in columns}}
    )
    store = StateStore.open(str(folder), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", table, key="k", max_parallelism=groups)
    return checkpoint.id


def compare(folder: Path, old: Rows, new: Rows, rule: DiffRule, **options: Any) -> StateDifference:
    take(folder / "a", old)
    take(folder / "b", new, **options)
    a, b = (StateStore.open(str(folder / side)) for side in "ab")
    (state,) = a.inspect.diff("latest", b.checkpoint(), rule=rule).states
    return state


def counts(state: StateDifference) -> tuple[int, int, int]:
    return state.added, state.removed, state.changed


def is_close(old: float | None, new: float | None, tolerance: float | None) -> bool:
    if old is None or new is None:
        return old is new
    if isnan(old) or isnan(new):
        return isnan(old) and isnan(new)
    return repr(old) == repr(new) or (tolerance is not None and abs(old - new) <= tolerance)


numbers = st.sampled_from([None, 0.0, -0.0, 1.0, 1.25, 1.5, 3.0, float("nan"), float("inf")])
contents = st.dictionaries(
    st.sampled_from([f"k{i}" for i in range(12)]), st.tuples(numbers, st.sampled_from("ab"))
)


@examples(30)
@given(
    contents,
    contents,
    st.sampled_from([None, 0.0, 0.25, 1.0]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([8, 5]),
)
def test_rows_are_counted_as_the_rule_says(
    old: Rows, new: Rows, tolerance: float | None, ignores: bool, filters: bool, groups: int
) -> None:
    """The sides may have other key groups, in which case all rows are sorted and compared."""
    rule = DiffRule(
        ignore=("t",) if ignores else (),
        tolerance={} if tolerance is None else {"x": tolerance},
        where="t = 'a'" if filters else None,
    )

    def counts_of(row: Row | None) -> bool:
        return row is not None and (not filters or row[1] == "a")

    changed = [
        key
        for key in old.keys() & new.keys()
        if (counts_of(old[key]) or counts_of(new[key]))
        and not (
            is_close(old[key][0], new[key][0], tolerance)
            and (ignores or old[key][1] == new[key][1])
        )
    ]
    added = [key for key in new.keys() - old.keys() if counts_of(new[key])]
    removed = [key for key in old.keys() - new.keys() if counts_of(old[key])]
    with tempfile.TemporaryDirectory() as folder:
        state = compare(Path(folder), old, new, rule, groups=groups)
    assert counts(state) == (len(added), len(removed), len(changed))
    shown = {(example.change, example.identity["k"]) for example in state.examples}
    expected = {("added", k) for k in added} | {("removed", k) for k in removed}
    expected |= {("changed", k) for k in changed}
    assert shown <= expected
    assert bool(shown) == bool(expected)


def test_an_ignored_column_may_be_on_one_side_only(tmp_path: Path) -> None:
    rows: Rows = {f"k{i}": (float(i), "a") for i in range(20)}
    state = compare(tmp_path, rows, rows, DiffRule(ignore=("t",)), columns=("x",))
    assert not state.differs
    assert state.key_groups_differing == 0
    assert compare(tmp_path / "all", rows, rows, DiffRule(), columns=("x",)).differs


def test_integers_of_other_widths_and_decimals_have_a_tolerance(tmp_path: Path) -> None:
    def state_of(side: str, kind: pa.DataType, values: list[int]) -> StateStore:
        store = StateStore.open(str(tmp_path / side), table_format="parquet")
        table = pa.table({"k": ["a", "b"], "x": pa.array(values).cast(kind)})
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "s", table, key="k", max_parallelism=2)
        return store

    a, b = state_of("a", pa.int32(), [1, 5]), state_of("b", pa.int64(), [2, 9])
    (state,) = a.inspect.diff("latest", b.checkpoint(), rule=DiffRule(tolerance={"x": 1})).states
    assert counts(state) == (0, 0, 1)
    c, d = state_of("c", pa.decimal128(38, 0), [2, 5]), state_of("d", pa.decimal128(38, 0), [1, 7])
    (state,) = c.inspect.diff("latest", d.checkpoint(), rule=DiffRule(tolerance={"x": 1})).states
    assert counts(state) == (0, 0, 1)
    large = 2**53
    e = state_of("e", pa.int64(), [large, -(2**63)])
    f = state_of("f", pa.int64(), [large + 1, 2**63 - 1])
    (state,) = e.inspect.diff("latest", f.checkpoint(), rule=DiffRule(tolerance={"x": 0.5})).states
    assert counts(state) == (0, 0, 2)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (DiffRule(ignore=("y",)), "no compared state has a column 'y'; the columns are t, x"),
        (DiffRule(ignore=("k",)), "column 'k' identifies the rows of .*: it is always compared"),
        (DiffRule(tolerance={"t": 1}), "'t' of .* is string: only numbers have a tolerance"),
    ],
)
def test_columns_that_cannot_be_meant_are_refused(
    rule: DiffRule, problem: str, tmp_path: Path
) -> None:
    take(tmp_path, {"a": (1.0, "t")})
    manifest = StateStore.open(str(tmp_path)).checkpoint().manifest
    with pytest.raises(InvalidArgumentError, match=problem):
        rule.check(entry.state for entry in manifest.keyed)


@pytest.mark.parametrize("amount", [-1.0, float("nan")])
def test_a_tolerance_without_a_meaning_is_refused(amount: float) -> None:
    with pytest.raises(InvalidArgumentError, match="must be 0 or more"):
        DiffRule(tolerance={"x": amount})


def test_a_wrong_condition_is_named(tmp_path: Path) -> None:
    rule = DiffRule(where="y > 1")
    with pytest.raises(InvalidArgumentError, match=r"cannot evaluate 'y > 1' for the rows of .*y"):
        compare(tmp_path, {"a": (1.0, "t")}, {"a": (2.0, "t")}, rule)
