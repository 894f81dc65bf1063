"""Map columns of a store to types of Flink, and convert the values in both directions.

The type follows from the column's type: a timestamp is an ``Instant``, or a ``LocalDateTime`` if
it has no time zone. A decimal is a ``BigDecimal`` with the column's scale. A struct is a ``Row``. A
key has the Java type with which its state is hashed. The conversion back returns exactly the stored
column; an export uses it to verify the savepoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink_savepoints.metadata.java_binary import i32
from statestore.interop.flink_savepoints.metadata.logical_types import key_logical_type
from statestore.interop.flink_savepoints.types.arrow_types import INSTANT, row_fields
from statestore.interop.flink_savepoints.types.flink_types import (
    FlinkType,
    ListType,
    LogicalType,
    MapType,
    RowDataType,
    RowType,
    Scalar,
    SqlScalar,
    TupleType,
)
from statestore.keys.key_types import JavaType

__all__ = [
    "FlinkColumn",
    "as_millis",
    "from_millis",
    "joined",
    "key_column",
    "python_key",
    "sql_key",
    "value_column",
]

Conversion: TypeAlias = Callable[[pa.Array], pa.Array]

_MICROS, _NANOS = 1_000_000, 1_000_000_000
_PER_SECOND = {"s": 1, "ms": 1000, "us": _MICROS, "ns": _NANOS}
_TUPLE = "org.apache.flink.api.java.tuple.Tuple"
_MOST_FIELDS = 25
_PLAIN = {
    pa.bool_(): "Boolean", pa.int8(): "Byte", pa.int16(): "Short", pa.int32(): "Integer",
    pa.int64(): "Long", pa.float32(): "Float", pa.float64(): "Double", pa.string(): "String",
    pa.binary(): "byte[]", pa.date32(): "LocalDate",
}  # fmt: skip
_ARROW = {name: kind for kind, name in _PLAIN.items()}
_NUMBERS = ("Byte", "Short", "Integer", "Long")
_MILLIS = {"java.sql.Date": "SqlDate", "java.sql.Time": "SqlTime"}


@dataclass(frozen=True)
class FlinkColumn:
    """A store column as a type of Flink, with the conversions ``there`` and ``back``."""

    stored: pa.DataType
    kind: FlinkType
    there: Conversion
    back: Conversion


def value_column(stored: pa.DataType) -> FlinkColumn:
    """Return the Flink type for the values of a stored column.

    Raises UnsupportedTypeError if Flink has no serializer for it.
    """
    types = pa.types
    if stored in _PLAIN:
        return _same(stored, _PLAIN[stored])
    if types.is_timestamp(stored):
        name = "LocalDateTime" if stored.tz is None else "Instant"
        return FlinkColumn(stored, Scalar(name), _seconds, lambda array: _micros(array, stored))
    if types.is_decimal128(stored):
        return _as_text(stored, "BigDecimal")
    if types.is_struct(stored):
        parts = [value_column(field.type) for field in stored]
        return _row(stored, parts)
    if types.is_list(stored):
        element = value_column(stored.value_type)
        return _list(stored, element)
    if types.is_map(stored):
        return _map(stored, value_column(stored.key_type), value_column(stored.item_type))
    raise UnsupportedTypeError(f"Flink has no serializer for values of type {stored}")


def key_column(stored: pa.DataType, java: JavaType) -> FlinkColumn:
    """Return the Flink type of a key column, which is the type that the key is hashed as.

    Raises UnsupportedTypeError if Flink has no serializer for it.
    """
    name = java.name
    if _ARROW.get(name) == stored:
        return value_column(stored)
    if name in _NUMBERS and pa.types.is_integer(stored):
        return _cast(stored, name, _ARROW[name])
    if name == "Character":
        return _character(stored)
    if name == "BigInteger" and pa.types.is_decimal(stored):
        whole = pa.decimal128(38, 0)
        return FlinkColumn(
            stored,
            Scalar(name),
            lambda array: array.cast(whole).cast(pa.string()),
            lambda array: array.cast(whole).cast(stored),
        )
    if name == "BigInteger":
        return _as_text(stored, name)
    if name == "BigDecimal" and java.digits is not None:
        digits = pa.decimal128(38, java.digits[1])
        return FlinkColumn(
            stored,
            Scalar(name),
            lambda array: array.cast(digits).cast(pa.string()),
            lambda array: array.cast(digits).cast(stored),
        )
    if name == "LocalDate":
        return FlinkColumn(
            stored,
            Scalar(name),
            lambda array: array.cast(pa.int32()).cast(pa.date32()),
            lambda array: array.cast(pa.int32()).cast(stored),
        )
    return _time_key(stored, java)


def _time_key(stored: pa.DataType, java: JavaType) -> FlinkColumn:
    name = java.name
    is_timestamp = pa.types.is_timestamp(stored)
    if is_timestamp and name in ("Instant", "LocalDateTime"):
        return value_column(stored)
    if is_timestamp and name == "java.sql.Timestamp":
        return FlinkColumn(
            stored, Scalar("SqlTimestamp"), _seconds, lambda array: _micros(array, stored)
        )
    if name in ("Instant", "LocalDateTime", "java.sql.Timestamp"):
        per = 1000 if name == "java.sql.Timestamp" else _NANOS
        flink = "SqlTimestamp" if per == 1000 else name
        return FlinkColumn(
            stored,
            Scalar(flink),
            lambda array: _split(array.cast(pa.int64()), per),
            lambda array: _whole(array, per).cast(stored),
        )
    if name in _MILLIS:
        return _cast(stored, _MILLIS[name], pa.timestamp("ms", "UTC"))
    if name == "LocalTime":
        return _cast(stored, name, pa.time64("ns"))
    return _composite_key(stored, java)


def _composite_key(stored: pa.DataType, java: JavaType) -> FlinkColumn:
    parts = java.parts
    if parts is not None and pa.types.is_struct(stored) and java.name in ("Tuple", "Row"):
        inner = [key_column(one.type, part) for one, part in zip(stored, parts, strict=True)]
        return _row(stored, inner) if java.name == "Row" else _tuple(stored, inner)
    if parts is not None and pa.types.is_list(stored) and java.name == "List":
        return _list(stored, key_column(stored.value_type, parts[0]))
    raise UnsupportedTypeError(
        f"a key that is hashed as {java} is written by Kryo with classes that only the job has"
    )


def python_key(key: FlinkColumn) -> FlinkColumn:
    """Wrap a key in a ``Row``, as PyFlink does."""

    def there(array: pa.Array) -> pa.Array:
        insert = pa.array(np.zeros(len(array), np.int8))
        return pa.StructArray.from_arrays([insert, key.there(array)], ["row_kind", "f0"])

    return FlinkColumn(
        key.stored, RowType((key.kind,)), there, lambda array: key.back(array.field("f0"))
    )


def sql_key(names: Sequence[str], stored: Sequence[pa.DataType], sql: Sequence[str]) -> FlinkColumn:
    """Return key columns as a row of Flink SQL (``RowDataSerializer``), of their hashed types.

    In the store they are a struct, or a single column if there is only one.
    """
    columns = tuple(map(key_logical_type, sql))
    kind = RowDataType(columns, tuple(map(_sql_field, columns)), is_key=True)
    first, *fields = row_fields(columns)
    struct = pa.struct([pa.field(*one) for one in zip(names, stored, strict=True)])

    def there(array: pa.Array) -> pa.Array:
        given = array.flatten() if len(names) > 1 else [array]
        found = [_sql_cast(one, field.type) for one, field in zip(given, fields, strict=True)]
        insert = pa.array(np.zeros(len(array), np.int8))
        return pa.StructArray.from_arrays([insert, *found], fields=[first, *fields])

    def back(array: pa.Array) -> pa.Array:
        _, *given = array.flatten()
        found = [_sql_cast(one, wanted) for one, wanted in zip(given, stored, strict=True)]
        if len(names) == 1:
            return found[0]
        return pa.StructArray.from_arrays(found, fields=list(struct))

    return FlinkColumn(struct if len(names) > 1 else stored[0], kind, there, back)


_SQL_FIELDS = {
    "BOOLEAN": "Boolean", "TINYINT": "Byte", "SMALLINT": "Short", "INTEGER": "Integer",
    "BIGINT": "Long", "FLOAT": "Float", "DOUBLE": "Double", "DATE": "Integer",
    "TIME_WITHOUT_TIME_ZONE": "Integer", "CHAR": "StringData", "VARCHAR": "StringData",
    "BINARY": "byte[]", "VARBINARY": "byte[]",
}  # fmt: skip


def _sql_field(column: LogicalType) -> FlinkType:
    """Return the type of a row's field (``InternalSerializers``)."""
    if column.root == "DECIMAL":
        return SqlScalar("DecimalData", 3, i32(column.precision) + i32(column.scale))
    if column.root in _SQL_FIELDS:
        return Scalar(_SQL_FIELDS[column.root])
    return SqlScalar("TimestampData", 1, i32(column.precision))


def _sql_cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert a key column to another type with the same meaning.

    Between a time and a whole number, the number counts nanoseconds.
    """
    types, kind = pa.types, array.type
    if kind == wanted:
        return array
    if INSTANT in (kind, wanted):
        return _as_instant(array) if wanted == INSTANT else _from_instant(array, wanted)
    if types.is_date(kind) or types.is_date(wanted):
        return array.cast(pa.int32()).cast(wanted)
    if types.is_timestamp(kind) and types.is_timestamp(wanted):
        same = array.cast(pa.int64()).cast(pa.timestamp(kind.unit))
        return same.cast(pa.timestamp(wanted.unit)).cast(pa.int64()).cast(wanted)
    if types.is_temporal(kind) and types.is_integer(wanted):
        return array.cast(_in_nanos(kind)).cast(pa.int64()).cast(wanted)
    if types.is_temporal(wanted) and types.is_integer(kind):
        return array.cast(pa.int64()).cast(_in_nanos(wanted)).cast(wanted)
    return array.cast(wanted)


def _in_nanos(kind: pa.DataType) -> pa.DataType:
    return pa.time64("ns") if pa.types.is_time(kind) else pa.timestamp("ns")


def _as_instant(array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        return _split(array.cast(pa.int64()), _PER_SECOND[array.type.unit])
    return _split(array.cast(pa.int64()), _NANOS)


def _from_instant(array: pa.Array, stored: pa.DataType) -> pa.Array:
    per = _PER_SECOND[stored.unit] if pa.types.is_timestamp(stored) else _NANOS
    return _whole(array, per).cast(stored)


def joined(
    columns: Sequence[FlinkColumn], names: Sequence[str], *, as_tuple: bool = False
) -> FlinkColumn:
    """Combine several columns into one: a struct in the store, a ``Row`` or tuple in Flink.

    Raises UnsupportedTypeError for a tuple with more fields than Flink supports.
    """
    fields = zip(names, columns, strict=True)
    stored = pa.struct([pa.field(name, one.stored) for name, one in fields])
    return _tuple(stored, columns) if as_tuple else _row(stored, columns)


def as_millis(array: pa.Array) -> pa.Array:
    """Return times as milliseconds since 1970, from timestamps or from milliseconds.

    Raises UnsupportedTypeError for a time that is not a whole number of milliseconds.
    """
    if not pa.types.is_timestamp(array.type):
        return array.cast(pa.int64())
    try:
        return array.cast(pa.timestamp("ms", array.type.tz)).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise UnsupportedTypeError(f"Flink stores milliseconds here, and {error}") from error


def from_millis(array: pa.Array, stored: pa.DataType) -> pa.Array:
    """Convert milliseconds to the type of a stored time column."""
    if not pa.types.is_timestamp(stored):
        return array.cast(stored)
    return array.cast(pa.timestamp("ms", stored.tz)).cast(stored)


def _same(stored: pa.DataType, name: str) -> FlinkColumn:
    return FlinkColumn(stored, Scalar(name), lambda array: array, lambda array: array.cast(stored))


def _cast(stored: pa.DataType, name: str, arrow: pa.DataType) -> FlinkColumn:
    """Return the conversions for a whole number that Flink has as another type."""
    width: pa.DataType = pa.int64() if pa.types.is_temporal(arrow) else arrow
    return FlinkColumn(
        stored,
        Scalar(name),
        lambda array: array.cast(width).cast(arrow),
        lambda array: array.cast(width).cast(stored),
    )


def _as_text(stored: pa.DataType, name: str) -> FlinkColumn:
    return FlinkColumn(
        stored,
        Scalar(name),
        lambda array: array.cast(pa.string()),
        lambda array: array.cast(stored),
    )


def _character(stored: pa.DataType) -> FlinkColumn:
    if pa.types.is_integer(stored):
        return FlinkColumn(
            stored,
            Scalar("Character"),
            lambda array: array.cast(pa.uint16()),
            lambda array: array.cast(stored),
        )
    return FlinkColumn(
        stored,
        Scalar("Character"),
        lambda array: pa.array([ord(one) for one in array.to_pylist()], pa.uint16()),
        lambda array: pa.array([chr(one) for one in array.to_pylist()], pa.string()),
    )


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _split(whole: pa.Array, per: int) -> pa.Array:
    """Split whole numbers, with ``per`` units per second, into seconds and nanoseconds."""
    values = whole.fill_null(0).to_numpy(zero_copy_only=False)
    second, rest = np.divmod(values, per)
    nano = (rest * (_NANOS // per)).astype(np.int32)
    fields = [INSTANT.field(0), INSTANT.field(1)]
    parts = [pa.array(second), pa.array(nano)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=_nulls(whole))


def _whole(array: pa.Array, per: int) -> pa.Array:
    second, nano = array.flatten()
    return pc.add(pc.multiply(second, per), pc.divide(nano.cast(pa.int64()), _NANOS // per))


def _seconds(array: pa.Array) -> pa.Array:
    return _split(array.cast(pa.int64()), _MICROS)


def _micros(array: pa.Array, stored: pa.DataType) -> pa.Array:
    return _whole(array, _MICROS).cast(stored)


def _tuple(stored: pa.DataType, parts: Sequence[FlinkColumn]) -> FlinkColumn:
    if not 1 <= len(parts) <= _MOST_FIELDS:
        raise UnsupportedTypeError(f"Flink has no tuple of {len(parts)} fields")
    kind = TupleType(f"{_TUPLE}{len(parts)}", tuple(part.kind for part in parts))
    return FlinkColumn(
        stored,
        kind,
        lambda array: _fields_there(array, parts, ()),
        lambda array: _fields_back(array, parts, stored, 0),
    )


def _row(stored: pa.DataType, parts: Sequence[FlinkColumn]) -> FlinkColumn:
    kind = RowType(tuple(part.kind for part in parts))

    def there(array: pa.Array) -> pa.Array:
        insert = pa.array(np.zeros(len(array), np.int8))
        return _fields_there(array, parts, (("row_kind", insert),))

    return FlinkColumn(stored, kind, there, lambda array: _fields_back(array, parts, stored, 1))


def _fields_there(
    array: pa.Array, parts: Sequence[FlinkColumn], first: Sequence[tuple[str, pa.Array]]
) -> pa.Array:
    columns = [one.there(column) for one, column in zip(parts, array.flatten(), strict=True)]
    names = [*(name for name, _ in first), *(f"f{at}" for at in range(len(columns)))]
    return pa.StructArray.from_arrays(
        [*(column for _, column in first), *columns], names, mask=_nulls(array)
    )


def _fields_back(
    array: pa.Array, parts: Sequence[FlinkColumn], stored: pa.DataType, skipped: int
) -> pa.Array:
    columns = array.flatten()[skipped:]
    found = [one.back(column) for one, column in zip(parts, columns, strict=True)]
    return pa.StructArray.from_arrays(found, fields=list(stored), mask=_nulls(array))


def _edges(array: pa.Array) -> pa.Array:
    """Return the list offsets relative to the flattened elements, starting at 0."""
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    lengths = np.diff(offsets)
    if array.null_count:
        lengths = np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    return pa.array(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32))


def _list(stored: pa.DataType, element: FlinkColumn) -> FlinkColumn:
    def there(array: pa.Array) -> pa.Array:
        values = element.there(array.flatten())
        return pa.ListArray.from_arrays(_edges(array), values, mask=_nulls(array))

    def back(array: pa.Array) -> pa.Array:
        values = element.back(array.flatten())
        return pa.ListArray.from_arrays(_edges(array), values, type=stored, mask=_nulls(array))

    return FlinkColumn(stored, ListType(element.kind), there, back)


def _map(stored: pa.DataType, key: FlinkColumn, value: FlinkColumn) -> FlinkColumn:
    def changed(array: pa.Array, own_key: Conversion, own_value: Conversion, kind: Any) -> pa.Array:
        array = pc.take(array, pa.array(np.arange(len(array)))) if array.offset else array
        keys, items = own_key(array.keys), own_value(array.items)
        mask = _nulls(array)
        return pa.MapArray.from_arrays(array.offsets, keys, items, kind, mask=mask)

    return FlinkColumn(
        stored,
        MapType(key.kind, value.kind),
        lambda array: changed(array, key.there, value.there, None),
        lambda array: changed(array, key.back, value.back, stored),
    )
