"""Convert Arrow columns to stored types: every value is equal afterwards, or it is refused."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given

from statestore.errors import InvalidArgumentError
from statestore.format.schema import PRIMITIVES, Schema, widens
from statestore.rows.column_types import arrow_schema, schema_of_arrow
from statestore.rows.fit_columns import fit_column, fit_table, fits_by_type
from tests.support.key_values import schemas


def column(values: list[Any], kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, kind)])


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        ([datetime(2026, 1, 31, 12)], pa.timestamp("us"), pa.date32()),
        ([datetime(2026, 1, 31)], pa.timestamp("us"), pa.date32()),
        ([date(2026, 1, 31)], pa.date32(), pa.timestamp("us")),
        ([7], pa.int64(), pa.bool_()),
        ([True], pa.bool_(), pa.int64()),
        ([1e300], pa.float64(), pa.float32()),
        ([1e-300], pa.float64(), pa.float32()),
        ([1.5], pa.float64(), pa.int64()),
        ([float("nan")], pa.float64(), pa.int64()),
        ([2**40], pa.int64(), pa.int32()),
        ([2**53 + 1], pa.int64(), pa.float64()),
        ([0.1], pa.float64(), pa.decimal128(10, 2)),
        ([Decimal("0.1")], pa.decimal128(10, 1), pa.float64()),
        ([Decimal("0.12")], pa.decimal128(10, 2), pa.decimal128(10, 1)),
        ([Decimal("1.5")], pa.decimal128(10, 1), pa.int64()),
        (["7"], pa.string(), pa.int64()),
        ([7], pa.int64(), pa.string()),
        (["x"], pa.string(), pa.binary()),
        ([1_000_001], pa.timestamp("ns"), pa.timestamp("us")),
        ([0], pa.timestamp("us"), pa.timestamp("us", "UTC")),
        ([0], pa.timestamp("us", "UTC"), pa.timestamp("us")),
        ([[1_000_001]], pa.list_(pa.timestamp("ns")), pa.list_(pa.timestamp("us"))),
        (
            [{"a": 1, "b": 2}],
            pa.struct([("a", pa.int64()), ("b", pa.int64())]),
            pa.struct([("a", pa.int64())]),
        ),
        (
            [{"a": 1}],
            pa.struct([("a", pa.int64())]),
            pa.struct([("a", pa.int64()), ("b", pa.int64())]),
        ),
        ([[("a", 1.5)]], pa.map_(pa.string(), pa.float64()), pa.map_(pa.string(), pa.int64())),
    ],
    ids=str,
)
def test_a_lossy_cast_is_refused(
    values: list[Any], source: pa.DataType, target: pa.DataType
) -> None:
    """The message names the column."""
    with pytest.raises(InvalidArgumentError, match=r"the column ['\"]c"):
        fit_column(column(values, source), target, name="c", subject="state 'n'")


@pytest.mark.parametrize(
    ("values", "source", "target", "stored"),
    [
        ([7], pa.int32(), pa.int64(), [7]),
        ([7], pa.int64(), pa.int32(), [7]),
        ([7], pa.uint64(), pa.int8(), [7]),
        ([2**60], pa.int64(), pa.float64(), [2.0**60]),
        ([1.5], pa.float64(), pa.float32(), [1.5]),
        ([2.0], pa.float64(), pa.int64(), [2]),
        ([300], pa.int64(), pa.decimal128(5, 2), [Decimal(300)]),
        ([1000], pa.timestamp("ns"), pa.timestamp("us"), [datetime(1970, 1, 1, 0, 0, 0, 1)]),
        ([None], pa.null(), pa.int64(), [None]),
        (["x", None], pa.dictionary(pa.int8(), pa.large_string()), pa.string(), ["x", None]),
        (["x"], pa.large_string(), pa.string(), ["x"]),
        ([b"x"], pa.binary(1), pa.binary(), [b"x"]),
        ([[1]], pa.large_list(pa.int32()), pa.list_(pa.int64()), [[1]]),
        ([[1]], pa.list_(pa.int32(), 1), pa.list_(pa.int64()), [[1]]),
        (
            [{"a": 1, "b": 2}, None],
            pa.struct([("a", pa.int8()), ("b", pa.int64())]),
            pa.struct([("b", pa.int64()), ("a", pa.int64())]),
            [{"b": 2, "a": 1}, None],
        ),
    ],
    ids=str,
)
def test_a_lossless_cast_is_accepted(
    values: list[Any], source: pa.DataType, target: pa.DataType, stored: list[Any]
) -> None:
    """This holds for any width of the type."""
    assert fit_column(column(values, source), target, name="c").to_pylist() == stored


def test_a_double_becomes_the_nearest_float_on_request() -> None:
    """A Python float is converted to the nearest value. A double that an expression computes is
    not.
    """
    doubles = column([0.1], pa.float64())
    assert fit_column(doubles, pa.float32(), name="c").cast(pa.float64()).to_pylist() != [0.1]
    with pytest.raises(InvalidArgumentError, match=r"'c' .* has type double instead of float"):
        fit_column(doubles, pa.float32(), name="c", nearest=False)


def test_polars_categories_are_text() -> None:
    """This holds at any depth, in slices, and with nulls."""
    frame = pl.DataFrame(
        {"c": ["a", None, "b"], "e": ["x", "y", None], "l": [["a"], None, ["b", "a"]]},
        schema={"c": pl.Categorical, "e": pl.Enum(["x", "y"]), "l": pl.List(pl.Categorical)},
    ).with_columns(pl.struct("c").alias("s"))
    rows = pa.table(frame)
    stored = schema_of_arrow(rows.schema)
    assert str(stored) == "c string, e string, l array<string>, s struct<c: string>"
    assert fit_table(rows, stored).to_pylist() == frame.to_dicts()
    assert fit_table(rows.slice(1), stored).to_pylist() == frame.to_dicts()[1:]


TYPES = (*sorted(PRIMITIVES), *(f"decimal({n},{n // 4})" for n in (1, 3, 5, 12, 20, 38)))


def test_casts_by_type_are_the_type_widenings() -> None:
    """There are two exceptions. A date becomes a different value, its midnight. A float holds every
    short, but Delta does not widen a short to it. Longs and decimals have rules of their own.
    """
    pairs = [*product(TYPES, repeat=2)]
    casts = {pair for pair in pairs if fits_by_type(*pair)}
    widenings = {pair for pair in pairs if widens(*pair)}
    assert widenings - casts == {("date", "timestamp_ntz")}
    assert {
        (source, target)
        for source, target in casts - widenings
        if source != "long" and "decimal" not in source + target
    } == {("byte", "float"), ("short", "float")}


@given(schemas)
def test_every_stored_schema_fits_itself(schema: Schema) -> None:
    """The columns stay the same."""
    rows = arrow_schema(schema).empty_table()
    assert fit_table(rows, schema) == rows
