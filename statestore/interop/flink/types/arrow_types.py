"""Arrow types of times, of windows, and of the columns of Flink SQL."""

from __future__ import annotations

import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.logical_types import SQL_ROOTS, LogicalType

INSTANT = pa.struct([("second", pa.int64()), ("nano", pa.int32())])
"""A Java time in seconds and nanoseconds; no Arrow timestamp covers its full range."""

WINDOW = pa.struct([("start", pa.int64()), ("end", pa.int64())])

OUT_OF_LINE = ("RAW", "VARIANT", "BITMAP")
"""Types whose values stay bytes, and are never inside of a row's fixed part, even if short."""

EXACT_IN_MILLIS = 3
"""The highest number of fractional digits that Flink SQL stores as milliseconds alone."""
_EXACT_IN_MICROS = 6
_NANOS = 1_000_000_000
_MOST_SECONDS = (1 << 63) // _NANOS


def row_fields(columns: tuple[LogicalType, ...]) -> list[pa.Field]:
    """Return the fields of a Flink SQL row: its row kind, and its numbered columns."""
    named = [pa.field(f"f{index}", sql_type(column)) for index, column in enumerate(columns)]
    return [pa.field("row_kind", pa.int8()), *named]


def _structured_fields(structured: LogicalType) -> list[pa.Field]:
    """Return the fields of a structured type: its row kind, and its attributes by their names.

    The attributes are numbered if a name is not an identifier, or is used twice (ignoring case).
    """
    row_kind, *numbered = row_fields(structured.children)
    names = structured.names
    different = {row_kind.name, *(name.lower() for name in names)}
    if len(different) <= len(names) or not all(map(str.isidentifier, names)):
        return [row_kind, *numbered]
    named = [field.with_name(name) for field, name in zip(numbered, names, strict=True)]
    return [row_kind, *named]


def entry_types(column: LogicalType) -> tuple[LogicalType, LogicalType]:
    """Return the key and value types of a map; the values of a multiset are counts."""
    key, *value = column.children
    return key, value[0] if value else LogicalType("INT NOT NULL", b"", "INTEGER")


def sql_type(column: LogicalType) -> pa.DataType:
    """Return the Arrow type of a Flink SQL column; UnsupportedTypeError if it has none."""
    if column.root == "ROW":
        return pa.struct(row_fields(column.children))
    if column.root == "STRUCTURED_TYPE":
        return pa.struct(_structured_fields(column))
    if column.root == "ARRAY":
        return pa.list_(sql_type(column.children[0]))
    if column.root in ("MAP", "MULTISET"):
        key, value = entry_types(column)
        return pa.map_(sql_type(key), sql_type(value))
    if column.root == "DECIMAL":
        return pa.decimal128(column.precision, column.scale)
    if column.root in ("TIMESTAMP_WITHOUT_TIME_ZONE", "TIMESTAMP_WITH_LOCAL_TIME_ZONE"):
        if column.precision > _EXACT_IN_MICROS:
            return INSTANT
        zone = "UTC" if column.root == "TIMESTAMP_WITH_LOCAL_TIME_ZONE" else None
        return pa.timestamp("ms" if column.precision <= EXACT_IN_MILLIS else "us", zone)
    known = SQL_ROOTS.get(column.root)
    if known is None or not known.arrow:
        raise UnsupportedTypeError(f"values of {column.text} can only be read as bytes")
    return pa.type_for_alias(known.arrow)


def to_nanos(array: pa.Array) -> pa.Array:
    """Convert seconds and nanoseconds to nanoseconds since 1970.

    Raises UnsupportedTypeError for a time that does not fit into 64 bits.
    """
    second, nano = (part.fill_null(0).to_numpy(zero_copy_only=False) for part in array.flatten())
    if bool(((second >= _MOST_SECONDS) | (second <= -_MOST_SECONDS)).any()):
        raise UnsupportedTypeError("a key is a timestamp more than 292 years away from 1970")
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(second * _NANOS + nano, pa.int64(), mask=nulls)
