"""Convert column types between Arrow and the manifest's notation."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql.types import StructType

from statestore.errors import UnsupportedTypeError
from statestore.format.schema import Schema, type_text
from statestore.keys.arrow_types import arrow_type_text
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


def test_all_types_that_delta_lacks_are_named_at_once() -> None:
    schema = pa.schema([("a", pa.uint8()), ("b", pa.int64()), ("c", pa.time64("us"))])
    with pytest.raises(UnsupportedTypeError, match="2 columns of the table do not fit") as raised:
        schema_of_arrow(schema)
    _, *lines = str(raised.value).splitlines()
    assert [line.split()[:2] for line in lines] == [["column", "'a'"], ["column", "'c'"]]


DOCUMENTED: list[tuple[Any, pa.DataType]] = [
    ("text", pa.string()),
    (2**60, pa.int64()),
    (1, pa.int32()),
    (1, pa.int16()),
    (1, pa.int8()),
    (0.5, pa.float32()),
    (0.5, pa.float64()),
    (True, pa.bool_()),
    (b"x", pa.binary()),
    (date(2026, 1, 31), pa.date32()),
    (datetime(2026, 1, 31, tzinfo=UTC), pa.timestamp("us", "UTC")),
    (datetime(2026, 1, 31), pa.timestamp("us")),
    (Decimal("1.50"), pa.decimal128(10, 2)),
    ({"a": 1}, pa.struct([("a", pa.int64())])),
    ([1], pa.list_(pa.field("element", pa.int64()))),
    ([("x", 1)], pa.map_(pa.string(), pa.int64())),
]
ALSO: dict[str, list[pa.DataType]] = {
    "large_string": [pa.large_string()],
    "string_view": [pa.string_view()],
    "dictionary": [pa.dictionary(pa.int8(), pa.large_string())],
    "large_binary": [pa.large_binary()],
    "binary_view": [pa.binary_view()],
    "fixed_size_binary": [pa.binary(3)],
    "uuid": [pa.uuid()],
    "other units": [pa.timestamp(unit) for unit in ("s", "ms", "ns")],
    "other zones": [pa.timestamp("us", zone) for zone in ("Europe/Paris", "+01:00")],
    "large_list": [pa.large_list(pa.int64())],
}


def documented_types() -> list[list[str]]:
    """Return the cells of the table of types in the documentation."""
    page = Path(__file__).parents[2].joinpath("docs/stored.md").read_text(encoding="utf-8")
    section = page.partition("## Types\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]


@pytest.mark.slow
def test_the_documentation_has_the_name_of_each_type_in_each_system() -> None:
    expected = []
    for value, kind in DOCUMENTED:
        rows = pa.table({"c": pa.array([value], kind)})
        schema = schema_of_arrow(rows.schema)
        assert arrow_schema(schema).field(0).type == kind
        connection = duckdb.connect()
        connection.register("rows", rows)
        (answer,) = connection.execute("DESCRIBE SELECT c FROM rows").fetchall()
        (read,) = rows["c"].to_pylist()
        python = "list of pairs" if pa.types.is_map(kind) else type(read).__name__
        spark = StructType.fromJson(schema.to_json())["c"].dataType.simpleString()
        expected.append([type_text(schema.fields[0].type), str(kind), spark, answer[1], python])
        assert arrow_type_text(kind) == expected[-1][0]
    assert [cells[:5] for cells in documented_types()] == expected


def test_the_documentation_says_which_types_are_stored_as_another() -> None:
    named = [(cells[0], cells[5]) for cells in documented_types() if cells[5]]
    for stored, others in named:
        for other in re.sub(" of these", "", others).split(", "):
            for kind in ALSO[other]:
                is_local = stored == "timestamp_ntz" or not pa.types.is_timestamp(kind)
                of_zone = kind if is_local or kind.tz else pa.timestamp(kind.unit, "Asia/Tokyo")
                [field] = schema_of_arrow(pa.schema([("c", of_zone)])).fields
                assert type_text(field.type) == arrow_type_text(of_zone) == stored
    assert {other for _, others in named for other in others.split(", ")} == {
        "dictionary of these" if other == "dictionary" else other for other in ALSO
    }
