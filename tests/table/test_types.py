"""Column types between Arrow's notation and the manifest's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from statestore.errors import InvalidArgumentError, SchemaMismatchError, UnsupportedTypeError
from statestore.model.schema import Field, Schema, type_text
from statestore.table.types import arrow_schema, arrow_type, schema_of_arrow, table_of_dicts
from tests.model.values import schemas


@given(schemas)
def test_a_stored_schema_comes_back_from_arrow(schema: Schema) -> None:
    """With every nested type."""
    assert schema_of_arrow(arrow_schema(schema)) == schema


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary_view(), "binary"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.dictionary(pa.uint32(), pa.large_string()), "string"),
        (pa.large_list(pa.int64()), "array<long>"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.timestamp("ns", tz="Europe/Berlin"), "timestamp"),
        (pa.decimal128(38, 38), "decimal(38,38)"),
        (pa.struct([pa.field("a", pa.string_view(), nullable=False)]), "struct<a: string>"),
        (pa.map_(pa.large_string(), pa.list_(pa.bool_())), "map<string, array<boolean>>"),
    ],
)
def test_what_other_frames_hold_is_stored_as(kind: pa.DataType, stored: str) -> None:
    """Polars, pandas and DuckDB have types of their own for the same values."""
    [field] = schema_of_arrow(pa.schema([("c", kind)])).fields
    assert type_text(field.type) == stored
    empty = pa.array([], kind).cast(arrow_type(field.type))
    assert empty.type == arrow_type(field.type)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (pa.uint8(), "signed"),
        (pa.uint64(), "signed"),
        (pa.time32("ms"), "microseconds"),
        (pa.time64("us"), "microseconds"),
        (pa.duration("us"), "microseconds"),
        (pa.null(), "give the column a type"),
        (pa.float16(), "cast it"),
        (pa.date64(), "cast it"),
        (pa.decimal256(40, 2), "cast it"),
        (pa.decimal128(5, -2), "cast it"),
        (pa.month_day_nano_interval(), "cast it"),
        (pa.struct([]), "a struct has fields"),
        (pa.struct([("a", pa.int64()), ("A", pa.int64())]), "not in case alone"),
        (pa.list_(pa.uint8()), "signed"),
        (pa.struct([("a", pa.map_(pa.string(), pa.null()))]), "give the column a type"),
    ],
)
def test_a_type_that_delta_lacks_is_refused_with_advice(kind: pa.DataType, advice: str) -> None:
    """The message names the column, also where the type is deep inside."""
    with pytest.raises(UnsupportedTypeError, match=f"column 'c' .*{advice}"):
        schema_of_arrow(pa.schema([("c", kind)]))


def test_dictionaries_form_columns_of_every_name_that_one_has() -> None:
    """A name that a later row alone has is not lost; where a row lacks one, it is null."""
    rows: list[dict[str, Any]] = [{"a": 1}, {"b": "x"}, {}]
    assert table_of_dicts(rows, None).to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
        {"a": None, "b": None},
    ]


def test_dictionaries_take_the_types_of_a_schema() -> None:
    """Columns in its order; a name that it lacks is refused."""
    schema = Schema((Field("b", "string"), Field("a", "integer")))
    table = table_of_dicts([{"a": 1}], schema)
    assert table.schema == arrow_schema(schema)
    with pytest.raises(SchemaMismatchError, match=r"value of 'c', .* \(b string, a integer\)"):
        table_of_dicts([{"a": 1, "c": 2}], schema)


@pytest.mark.parametrize(
    "values", [[1, "x"], [2**63], ["\ud800"], [{"x": 1}, 1], [1.5, b"x"], [object()]]
)
def test_values_without_a_common_type_are_refused(values: list[Any]) -> None:
    """The message names the column."""
    with pytest.raises(InvalidArgumentError, match="values of 'a' do not form a column"):
        table_of_dicts([{"a": value} for value in values], None)


@pytest.mark.parametrize("value", [1.5, float("nan"), float("inf")])
def test_a_fraction_is_not_cut_off(value: float) -> None:
    """Arrow itself makes 1 of 1.5 when it is told that the column holds whole numbers."""
    schema = Schema((Field("a", "long"),))
    assert table_of_dicts([{"a": 2.0}], schema).to_pylist() == [{"a": 2}]
    with pytest.raises(InvalidArgumentError, match="no value of the column 'a'"):
        table_of_dicts([{"a": 1}, {"a": value}], schema)
