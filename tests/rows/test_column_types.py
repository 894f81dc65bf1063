"""Convert column types between Arrow and the manifest's notation."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given

from statestore.errors import UnsupportedTypeError
from statestore.format.schema import Schema, type_text
from statestore.rows.column_types import arrow_schema, arrow_type, schema_of_arrow
from tests.support.key_values import schemas


@given(schemas)
def test_a_stored_schema_survives_a_round_trip_through_arrow(schema: Schema) -> None:
    """This includes every nested type."""
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
def test_types_of_other_dataframes_have_a_stored_type(kind: pa.DataType, stored: str) -> None:
    """Polars, pandas and DuckDB have their own types for the same values."""
    [field] = schema_of_arrow(pa.schema([("c", kind)])).fields
    assert type_text(field.type) == stored
    empty = pa.array([], kind).cast(arrow_type(field.type))
    assert empty.type == arrow_type(field.type)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (pa.uint8(), "signed"),
        (pa.uint64(), "signed"),
        (pa.time32("ms"), "nanoseconds"),
        (pa.time64("us"), "nanoseconds"),
        (pa.duration("us"), "nanoseconds"),
        (pa.null(), "the column has only nulls; give it a type"),
        (pa.float16(), "cast it"),
        (pa.date64(), "cast it"),
        (pa.decimal256(40, 2), "cast it"),
        (pa.decimal128(5, -2), "cast it"),
        (pa.month_day_nano_interval(), "cast it"),
        (pa.struct([]), "a struct must have fields"),
        (pa.struct([("a", pa.int64()), ("A", pa.int64())]), "must differ in more than case"),
        (pa.list_(pa.uint8()), "signed"),
        (
            pa.struct([("a", pa.map_(pa.string(), pa.null()))]),
            "the column has only nulls; give it a type",
        ),
    ],
)
def test_a_type_that_delta_lacks_is_refused_with_advice(kind: pa.DataType, advice: str) -> None:
    """The message names the column, also for a deeply nested type."""
    with pytest.raises(UnsupportedTypeError, match=f"column 'c' .*{advice}"):
        schema_of_arrow(pa.schema([("c", kind)]))
