"""Rows, keys, deletes and elements from callers are stored exactly, or refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.errors import InvalidArgumentError, SchemaMismatchError, StateStoreError
from statestore.rows.column_types import arrow_schema
from tests.support.examples import examples
from tests.support.options import changes_in
from tests.support.stores import rows_in
from tests.support.strategies import KEY_KINDS

FAR = 2**58
"""Microseconds from 1970 to the year 11103, which Python cannot represent."""


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore.open(str(tmp_path / "s"), table_format="parquet", compaction=None)


def put(store: StateStore, rows: Any, **options: Any) -> None:
    asked: dict[str, Any] = {"key": "k", "max_parallelism": 8} | options
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "n", rows, **asked)


def change(store: StateStore, **changes: Any) -> None:
    options: dict[str, Any] = {}
    state = store.checkpoint().manifest.keyed_entry("u", "n").state
    if state.entry:
        options = {"kind": state.kind, "entry": state.entry, "namespace": state.namespace}
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "n", changes_in(changes), key="k", **changes, **options)


# --- Deletes of whole keys and of single entries --------------------------------------------------

entries = st.tuples(st.sampled_from("abc"), st.sampled_from([None, 1, 2]), st.sampled_from("xyz"))


@pytest.mark.slow
@examples(60)
@given(st.sets(entries), st.lists(st.tuples(entries, st.integers(1, 3)), min_size=1, max_size=5))
def test_deletes_can_mix_keys_namespaces_and_entries(
    tmp_path_factory: pytest.TempPathFactory,
    there: set[tuple[Any, ...]],
    gone: list[tuple[tuple[Any, ...], int]],
) -> None:
    """Each dictionary is interpreted independently of the others; null is a value."""
    store = StateStore.open(str(tmp_path_factory.mktemp("s")), table_format="parquet")
    names = ["k", "ns", "e"]
    kinds = [pa.string(), pa.int64(), pa.string()]
    columns = [pa.array([one[at] for one in there], kinds[at]) for at in range(3)]
    put(store, pa.table(columns, names=names), kind="map", namespace="ns", entry="e")
    deletes = [dict(zip(names[:width], entry, strict=False)) for entry, width in gone]
    change(store, deletes=deletes)
    left = {
        entry for entry in there if not any(entry[:width] == other[:width] for other, width in gone)
    }
    assert {tuple(row.values()) for row in rows_in(store, state="n")} == left
    assert len(rows_in(store, state="n")) == len(left)


def test_a_delete_of_a_partial_entry_is_refused_with_its_row(store: StateStore) -> None:
    put(store, pa.table({"k": ["a"], "e": ["x"]}), kind="map", entry="e")
    with pytest.raises(InvalidArgumentError, match=r"row 1 of the deletes of state 'n' .* \(e\)"):
        change(store, deletes=[{"k": "a"}, {"e": "x"}])


# --- One rule for keys in every form --------------------------------------------------------------

KEYS = [
    *(kind for kind in KEY_KINDS if not pa.types.is_floating(kind.type)),
    *(kind for kind in KEY_KINDS if pa.types.is_floating(kind.type)),
]
given_keys = st.sampled_from(KEYS).flatmap(lambda kind: st.tuples(st.just(kind.type), kind.values))


def answer(ask: Callable[[], Any]) -> Any:
    """Return the result, or that the key is refused."""
    try:
        return ask()
    except InvalidArgumentError:
        return "refused"


@pytest.mark.slow
@examples(80)
@given(st.sampled_from(KEYS), st.data())
def test_lookups_and_deletes_interpret_a_key_alike(
    tmp_path_factory: pytest.TempPathFactory, kind: Any, data: st.DataObject
) -> None:
    """As a value, in a dictionary, and in a column with its own type: all agree."""
    store = StateStore.open(str(tmp_path_factory.mktemp("s")), table_format="parquet")
    value = data.draw(kind.values)
    put(store, pa.table({"k": pa.array([value], kind.type), "v": [1]}))
    near = st.sampled_from([value, True, False, 7, 1e300, 0.5, 2, date(2026, 1, 31)])
    of_type, wanted = data.draw(
        given_keys | near.map(lambda one: (pa.scalar(one).type, one)), label="wanted"
    )
    column = pa.array([wanted], of_type)
    # NaN and 32-bit floats are covered by the tests with columns
    assume(column.to_pylist() == [wanted])
    state = store.restore(parallelism=1).keyed("u", "n")
    by_value = answer(lambda: len(state.get(wanted)))
    assert answer(lambda: state.lookup([{"k": wanted}]).num_rows) == by_value
    assert answer(lambda: len(state.lazy(0).get(wanted))) == by_value
    by_column = answer(lambda: state.lookup(pa.table({"k": column})).num_rows)
    if by_column != by_value:  # a column has a type, which may differ from the key's type
        assert by_column == "refused"
    for deletes, found in (([{"k": wanted}], by_value), (pa.table({"k": column}), by_column)):
        if answer(partial(change, store, deletes=deletes)) == "refused":
            assert found == "refused"
        else:
            assert len(rows_in(store, state="n")) == 1 - found
            change(store, upserts=pa.table({"k": pa.array([value], kind.type), "v": [1]}))


@pytest.mark.parametrize(
    ("key", "kind", "deleted"),
    [
        (date(2026, 1, 31), pa.date32(), pa.array([datetime(2026, 1, 31, 12)])),
        (True, pa.bool_(), pa.array([7])),
        (float("inf"), pa.float32(), pa.array([1e300])),
        (0.0, pa.float32(), pa.array([1e-300])),
        (1, pa.int64(), pa.array([1.5])),
        (1, pa.int64(), pa.array(["1"])),
    ],
    ids=str,
)
def test_no_key_is_deleted_by_a_different_value(
    store: StateStore, key: Any, kind: pa.DataType, deleted: pa.Array
) -> None:
    """The cast would change the value into the key."""
    put(store, pa.table({"k": pa.array([key], kind), "v": [1]}))
    for ask in (
        lambda: change(store, deletes=pa.table({"k": deleted})),
        lambda: change(store, deletes=[{"k": deleted[0].as_py()}]),
        lambda: store.restore(parallelism=1).keyed("u", "n").lookup(pa.table({"k": deleted})),
        lambda: store.maintenance.edit("u", "n", delete=[deleted[0].as_py()]),
    ):
        with pytest.raises(InvalidArgumentError, match="'k'"):
            ask()
    assert len(rows_in(store, state="n")) == 1


# --- Lossless conversion of dictionaries ----------------------------------------------------------

WRONG = [("n", 10.7), ("s", {"a": 1.5}), ("l", [1, 1.9]), ("d", datetime(2026, 1, 31, 12))]
TYPED = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.int64()),
        ("s", pa.struct([("a", pa.int64())])),
        ("l", pa.list_(pa.int64())),
        ("d", pa.date32()),
    ]
)
GOOD: dict[str, Any] = {"k": "a", "n": 1, "s": {"a": 1}, "l": [1], "d": date(2026, 1, 31)}


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_every_call_refuses_a_lossy_cast(store: StateStore, name: str, value: Any) -> None:
    """In upserts, comparisons, edits, subtasks and elements; nothing is stored."""
    put(store, pa.Table.from_pylist([GOOD], TYPED))
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.carry("u", "n")
        checkpoint.write_union("source", "offsets", [[GOOD]])
    rows = [GOOD, GOOD | {"k": "b", name: value}]

    def compared() -> None:
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes_against("u", "n", rows, key="k")

    def by_subtask() -> None:
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.declare_keyed("u", "new", TYPED, key="k").subtask(0).write(rows)

    def elements() -> None:
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_union("source", "offsets", [rows])

    for ask in (
        lambda: change(store, upserts=rows),
        compared,
        by_subtask,
        elements,
        lambda: store.maintenance.edit("u", "n", put=rows),
        lambda: store.maintenance.edit("u", "n", rows=rows),
    ):
        place = "element 1 of subtask 0" if ask is elements else "row 1"
        with pytest.raises((InvalidArgumentError, SchemaMismatchError)) as caught:
            ask()
        for part in (place, "state '", "of operator '", f"the column '{name}", repr(value)):
            assert part in str(caught.value) or part == repr(value)
    assert store.checkpoints() == (1, 2)


def test_a_condition_matches_no_different_value(store: StateStore) -> None:
    """1.5 does not match any partition; 1.0 matches partition 1."""
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_union("source", "offsets", [[{"p": 1}, {"p": 2}]])
    offsets = store.restore(parallelism=1).operator_state("source", "offsets")
    assert offsets.subtask(0, where={"p": [1.0]}) == [{"p": 1}]
    with pytest.raises(InvalidArgumentError, match=r"where=.*'p'.* has 1\.5"):
        offsets.subtask(0, where={"p": [1.5]})


SQL = [
    ("SELECT k, TIMESTAMP '2026-01-31 12:00:00' AS d, b, f, n FROM state", "'d'"),
    ("SELECT k, d, 7 AS b, f, n FROM state", "'b'"),
    ("SELECT k, d, b, 0.1::DOUBLE AS f, n FROM state", "'f'"),
    ("SELECT k, d, b, f, 1.5 AS n FROM state", "'n'"),
    ("SELECT k, d, b, f, '1' AS n FROM state", "'n'"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("sql", "column"), SQL)
def test_a_result_of_sql_is_stored_exactly(store: StateStore, sql: str, column: str) -> None:
    """Otherwise it is refused: the expression must have the right type."""
    pytest.importorskip("duckdb")
    floats = pa.array([1.0], pa.float32())
    put(store, pa.table({"k": ["a"], "d": [date(2026, 1, 31)], "b": [True], "f": floats, "n": [1]}))
    with pytest.raises(SchemaMismatchError, match=f"{column}.*cast it in the query"):
        store.maintenance.edit("u", "n", sql=sql)
    store.maintenance.edit(
        "u", "n", sql="SELECT k, d, b, f, sum(n) + 1 AS n FROM state GROUP BY ALL"
    )
    assert rows_in(store, state="n")[0]["n"] == 2


# --- Data frames ----------------------------------------------------------------------------------


def test_nan_and_missing_values_of_pandas_are_distinguished(store: StateStore) -> None:
    """The column's type decides: floats have NaN, and other types have a marker for null."""
    nan = float("nan")
    frame = pd.DataFrame(
        {
            "k": ["a", "b"],
            "f": [1.5, nan],
            "f32": np.array([nan, 1], np.float32),
            "nullable": pd.array([1.5, None], "Float64"),
            "n": pd.array([1, None], "Int64"),
            "text": ["x", nan],
            "at": pd.to_datetime(["2026-01-31", None]),
        }
    )
    put(store, frame)
    first, second = sorted(rows_in(store, state="n"), key=lambda row: str(row["k"]))
    assert repr(first) == repr(
        {
            "k": "a", "f": 1.5, "f32": nan, "nullable": 1.5, "n": 1, "text": "x",
            "at": datetime(2026, 1, 31),
        }
    )  # fmt: skip
    assert repr(second) == repr(
        {"k": "b", "f": nan, "f32": 1.0, "nullable": None, "n": None, "text": None, "at": None}
    )


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            pd.DataFrame({"k": ["a"]}, index=["x"]),
            r"'n' of operator 'u' .* frame.reset_index\(drop",
        ),
        (pd.DataFrame({"k": ["a", "b"]}).query("k == 'b'"), "reset_index"),
        (pd.DataFrame({"k": ["a"], "v": [1]}).set_index("v"), "named 'v'"),
        (pd.DataFrame({"k": ["a"]}, index=pd.RangeIndex(1, name="id")), "named 'id'"),
        (pd.DataFrame([["a", 1]], columns=["k", "k"]), "two columns of .*'n' .* named 'k'"),
        (pd.DataFrame([["a", 1]], columns=["k", 2]), "strings"),
        (
            pd.DataFrame({"k": ["a", 1]}),
            "'k' do not have one type: row 1 of state 'n' of operator 'u'",
        ),
        (pd.DataFrame({"k": ["a"], "v": [pd.Timestamp(1)]}), "row 0 of state 'n' .* 'v'.* 1 ns"),
        (pa.table([["a"], [1]], names=["k", "k"]), "two columns .* named 'k'"),
    ],
)
def test_a_frame_that_is_not_a_table_is_refused(
    store: StateStore, frame: Any, message: str
) -> None:
    """The error has a remedy."""
    with pytest.raises(InvalidArgumentError, match=message):
        put(store, frame)
    assert store.checkpoints() == ()


def test_a_slice_of_a_pandas_frame_has_row_numbers(store: StateStore) -> None:
    frame = pd.DataFrame({"k": ["a", "b", "c"]})
    put(store, frame.iloc[1:])
    assert sorted(row["k"] for row in rows_in(store, state="n")) == ["b", "c"]
    assert list(rows_in(store, state="n")[0]) == ["k"]


def test_polars_categories_are_stored_as_text(store: StateStore) -> None:
    frame = pl.DataFrame(
        {"k": ["a", "b"], "v": ["x", None]}, schema={"k": pl.Enum(["a", "b"]), "v": pl.Categorical}
    )
    put(store, frame)
    state = store.restore(parallelism=1).keyed("u", "n")
    assert state.get("a") == [{"k": "a", "v": "x"}]
    assert state.lookup(frame.select("k")).num_rows == 2
    change(store, deletes=frame.select("k").head(1))
    assert [row["k"] for row in rows_in(store, state="n")] == ["b"]


def test_elements_in_a_frame_keep_their_types(store: StateStore) -> None:
    """Widths, nanoseconds, and times outside Python's range; lossy conversions are refused."""
    far = pa.array([FAR], pa.int64()).view(pa.timestamp("us"))
    frame = pa.table({"n": pa.array([1], pa.int32()), "at": far})
    with store.snapshot(parallelism=1) as checkpoint:
        entry = checkpoint.write_split("u", "e", frame)
        nanos = pd.DataFrame({"at": [pd.Timestamp(2000)]})
        checkpoint.write_split("u", "whole", nanos)
    assert str(entry.state.schema) == "n integer, at timestamp_ntz"
    restored = store.restore(parallelism=1)
    at = datetime(1970, 1, 1, 0, 0, 0, 2)
    assert restored.operator_state("u", "whole").subtask(0) == [{"at": at}]
    with pytest.raises(InvalidArgumentError, match=r"split state 'e' .* timestamp in 'at'"):
        restored.operator_state("u", "e").subtask(0)
    with (
        pytest.raises(InvalidArgumentError, match=r"row 0 of split state 'f' .* 1 ns"),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_split("u", "f", pd.DataFrame({"at": [pd.Timestamp(2001)]}))


placed = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=8)


@examples(40)
@given(placed)
def test_elements_in_a_frame_have_the_given_positions(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[int, int]]
) -> None:
    """Sorted by subtask, then position, then row."""
    store = StateStore.open(str(tmp_path_factory.mktemp("s")), table_format="parquet")
    numbers = [pa.array([place[at] for place in places], pa.int64()) for at in range(2)]
    rows = pa.table(
        [*numbers, pa.array(range(len(places)), pa.int64())], ["subtask", "position", "v"]
    )
    with store.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_split("u", "e", rows)
    wanted: list[list[dict[str, Any]]] = [[], [], []]
    for number, (subtask, _) in sorted(enumerate(places), key=lambda one: (*one[1], one[0])):
        wanted[subtask].append({"v": number})
    assert store.restore(parallelism=3).operator_state("u", "e").per_old_subtask() == wanted


# --- Times that Python cannot represent -----------------------------------------------------------


def test_times_outside_pythons_range_are_named_or_shown(store: StateStore) -> None:
    """Arrow can represent them: dictionaries raise an error, and displays show text."""
    far = pa.array([FAR], pa.int64()).view(pa.timestamp("us"))
    put(store, pa.table({"k": ["a"], "at": far, "n": [1]}))
    put(store, pa.table({"k": ["a"], "at": far, "n": [2]}))
    state = store.restore(parallelism=1).keyed("u", "n")
    for ask in (
        lambda: state.get("a"),
        lambda: state.lazy(0).get("a"),
        lambda: store.inspect.history("a", "u", "n"),
    ):
        with pytest.raises(StateStoreError, match="timestamp in 'at' outside"):
            ask()
    assert state.lookup([{"k": "a"}]).column("at").cast(pa.int64()).to_pylist() == [FAR]
    [example] = store.inspect.diff(1, 2).states[0].examples
    assert example.a is not None
    assert example.a["at"] == "11103-08-29 17:22:31.711744"


# --- Dictionaries with stored types ---------------------------------------------------------------


def test_dictionaries_get_the_stored_types_if_these_fit(store: StateStore) -> None:
    columns = {"k": pa.int32(), "n": pa.decimal128(18, 18), "d": pa.float64(), "none": pa.int16()}
    rows = pa.table([[1], [Decimal(0)], [1.5], [1]], schema=pa.schema(list(columns.items())))
    put(store, rows)
    given = [{"k": 7, "n": Decimal("0.5"), "d": 2, "none": None}]
    put(store, given)
    assert rows_in(store, state="n") == given
    assert (
        arrow_schema(store.checkpoint().manifest.keyed_entry("u", "n").state.schema) == rows.schema
    )


def test_dictionaries_that_do_not_fit_the_stored_types_get_wider_ones(store: StateStore) -> None:
    put(store, pa.table({"k": ["a"], "n": pa.array([1], pa.int32()), "old": [1]}))
    put(store, [{"k": "a", "n": 2**40, "new": 3}], renamed={"old": "new"})
    assert rows_in(store, state="n") == [{"k": "a", "n": 2**40, "new": 3}]
    with pytest.raises(SchemaMismatchError, match=r"row 0 .* has 1 in the column 'k' of type st"):
        put(store, [{"k": 1, "n": 1, "new": 1}])


@pytest.mark.parametrize("argument", ["deletes", "cleared", "upserts"])
def test_a_key_that_pandas_may_have_rounded_changes_no_other_key(
    store: StateStore, argument: str
) -> None:
    """pandas makes 2**53 of 2**53 + 1 in a column of floats, which another key may be."""
    put(store, pa.table({"k": [2**53, 7]}))
    with pytest.raises(SchemaMismatchError, match=r"row 1 .* 9007199254740992\.0 .*rounded"):
        change(store, **{argument: pd.DataFrame({"k": [7.0, 2.0**53]})})
    change(store, **{argument: pd.DataFrame({"k": [7.0]})})
    kept = [2**53] if argument != "upserts" else [7, 2**53]
    rows = store.restore().keyed("u", "n").to_arrow()
    assert sorted(rows["k"].to_pylist()) == kept


def test_a_lookup_of_a_rounded_key_finds_no_other_key(store: StateStore) -> None:
    put(store, pa.table({"k": [2**53, 7]}))
    keyed = store.restore(parallelism=1).keyed("u", "n")
    assert keyed.lookup(pd.DataFrame({"k": [7.0]}))["k"].to_pylist() == [7]
    with pytest.raises(InvalidArgumentError, match=r"row 0 of the keys .* 'k' .*rounded"):
        keyed.lookup(pd.DataFrame({"k": [2.0**53]}))
