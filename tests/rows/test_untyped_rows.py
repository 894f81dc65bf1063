"""Dictionaries and pandas frames get the stored types, as far as these fit their values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.schema import Schema
from statestore.rows.column_types import schema_of_arrow
from statestore.rows.untyped_rows import frame_like, table_like

STORED = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.int32()),
        ("d", pa.decimal128(10, 2)),
        ("t", pa.timestamp("us", "UTC")),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("l", pa.list_(pa.field("element", pa.int32()))),
        ("s", pa.struct([("a", pa.int32())])),
        ("day", pa.date32()),
        ("b", pa.bool_()),
        ("empty", pa.int64()),
    ]
)
SCHEMA: Schema = schema_of_arrow(STORED)
ROWS: list[dict[str, Any]] = [
    {
        "k": "a",
        "n": 1,
        "d": Decimal("1.50"),
        "t": datetime(2026, 1, 31, tzinfo=UTC),
        "m": [("x", 1)],
        "l": [1, None],
        "s": {"a": None},
        "day": date(2026, 1, 31),
        "b": True,
        "empty": None,
    },
    dict.fromkeys(STORED.names) | {"k": "b"},
]

Convert = Callable[[list[dict[str, Any]]], pa.Table]


def by_dicts(rows: list[dict[str, Any]]) -> pa.Table:
    return table_like(rows, SCHEMA, ("k",), subject="state 'n'")


def by_frame(rows: list[dict[str, Any]]) -> pa.Table:
    return frame_like(pd.DataFrame(rows), SCHEMA, ("k",), subject="state 'n'")


both = pytest.mark.parametrize("convert", [by_dicts, by_frame])


def test_the_frame_of_a_table_becomes_the_same_table() -> None:
    """pandas has floats, objects and nanoseconds for these columns."""
    table = pa.Table.from_pylist(ROWS, STORED)
    again = frame_like(table.to_pandas(), SCHEMA, ("k",), subject="state 'n'")
    assert again.select(["n", "d", "m", "l", "s", "empty"]).schema.equals(
        table.select(["n", "d", "m", "l", "s", "empty"]).schema
    )
    assert again.to_pylist() == table.to_pylist()


@both
def test_a_column_of_wider_values_gets_the_wider_type(convert: Convert) -> None:
    table = convert([{"k": "a", "n": 2**40, "new": 1.5}])
    assert table.schema.field("n").type == pa.int64()
    assert table.schema.field("new").type == pa.float64()


@both
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("k", 1, "row 1 of state 'n' has 1 in the column 'k' of type string"),
        ("n", "x", "row 1 of state 'n' has 'x' in the column 'n' of type integer"),
        ("d", 1.1, r"row 1 .* 1\.1 in the column 'd' .*; pass Decimal\('1\.1'\)"),
        ("d", Decimal("1.123"), "row 1 .* 'd' of type decimal.* more decimal places"),
        ("t", "2026-01-31", "row 1 .* '2026-01-31' in the column 't' of type timestamp"),
    ],
)
def test_a_value_that_fits_no_allowed_type_is_named(
    convert: Convert, name: str, value: Any, message: str
) -> None:
    """The reason is the value's, and not the type that all values together would have."""
    rows = [ROWS[0], ROWS[0] | {"k": "b", name: value}]
    with pytest.raises(SchemaMismatchError, match=message) as raised:
        convert(rows)
    assert "widened" not in str(raised.value)


@both
def test_all_columns_that_do_not_fit_are_named_at_once(convert: Convert) -> None:
    rows = [ROWS[0] | {"n": "x", "d": 1.1, "b": "y"}]
    with pytest.raises(SchemaMismatchError, match=r"^3 columns of state 'n' do not fit:") as raised:
        convert(rows)
    _, *lines = str(raised.value).splitlines()
    assert [line.partition(" in the column ")[2][:3] for line in lines] == ["'n'", "'d'", "'b'"]


@pytest.mark.parametrize(
    ("series", "kind"),
    [
        (pd.Series([1.0, None]), pa.int32()),
        (pd.Series([1.5, None]), pa.float64()),
        (pd.Series([1, 2]), pa.int64()),
        (pd.Series([1, 2], dtype="int16"), pa.int32()),
        (pd.Series([None, None], dtype="object"), pa.int32()),
    ],
)
def test_a_series_keeps_a_wider_type_unless_it_may_be_integers(series: Any, kind: Any) -> None:
    frame = pd.DataFrame({"k": ["a", "b"], "n": series})
    table = frame_like(frame, SCHEMA, ("k",), subject="state 'n'")
    assert table.schema.field("n").type == kind
    assert [value for value in table["n"].to_pylist() if value == value] != []


def test_doubles_are_not_rounded_to_stored_floats() -> None:
    stored = schema_of_arrow(pa.schema([("k", pa.string()), ("f", pa.float32())]))
    frame = pd.DataFrame({"k": ["a"], "f": [0.1]})
    assert frame_like(frame, stored, ("k",), subject="s").schema.field("f").type == pa.float64()
    with pytest.raises(SchemaMismatchError, match="'f' of s has type double instead of float"):
        frame_like(frame, stored, ("k", "f"), subject="s")


def test_a_frame_with_an_index_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="reset_index"):
        frame_like(pd.DataFrame({"k": ["a"]}, index=["x"]), SCHEMA, ("k",), subject="state 'n'")


def test_large_floats_do_not_become_integers() -> None:
    """pandas may have rounded them, because of a missing value in the column."""
    frame = pd.DataFrame({"k": ["a", "b"], "empty": [2.0**60, None]})
    with pytest.raises(SchemaMismatchError, match="may have been rounded"):
        frame_like(frame, SCHEMA, ("k",), subject="state 'n'")
