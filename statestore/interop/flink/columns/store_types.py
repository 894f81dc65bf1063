"""Columns of a store that are one value in Flink: their types, and the conversion of their values.

The type follows from the column's type: a timestamp is an ``Instant``, or a ``LocalDateTime`` if
it has no time zone. A decimal is a ``BigDecimal`` with the column's scale. A struct is a ``Row``. A
key has the Java type with which its state is hashed. The conversion back returns exactly the stored
column; an export uses it to verify the savepoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.logical_types import (
    INSTANT,
    SQL_ROOTS,
    LogicalType,
    key_logical_type,
    sql_type,
)
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.java_types import ListType, MapType, RowType, Scalar, TupleType
from statestore.interop.flink.types.sql_types import DecimalDataType, RowDataType, TimestampDataType
from statestore.keys.key_types import JavaType

NO_VALUE = Scalar("Void")
"""The type of values without columns."""

ToFlink: TypeAlias = Callable[[pa.Array], pa.Array]
FromFlink: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]
"""Converts values of Flink to a column of a type."""


@dataclass(frozen=True)
class Part:
    """Columns of a store that are one value in Flink, such as the key of a state.

    A field or element of such a value is also a part. It has no names.

    Attributes:
        stored: the type of the column. Several columns are a struct, and none are null.
        flink_type: the type of the value.
        to_flink: converts the column, or a struct of the columns.
        from_flink: converts values back to a column, or a struct of columns.
        names: the names of the columns.
        is_flat: whether the fields of ``stored`` are columns of their own.
        fields: for an imported value, the fields that are columns, with their types in Flink.
    """

    stored: pa.DataType
    flink_type: FlinkType
    to_flink: ToFlink
    from_flink: FromFlink
    names: tuple[str, ...] = ()
    is_flat: bool = False
    fields: tuple[pa.Field, ...] = ()

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        """The types of the columns."""
        if self.is_flat:
            return tuple(field.type for field in self.stored)
        return () if pa.types.is_null(self.stored) else (self.stored,)

    @property
    def text(self) -> str:
        """The fields with their types in Flink, as one line."""
        return ", ".join(f"{field.name} {field.type}".lstrip() for field in self.fields)

    def with_names(self, names: Sequence[str]) -> Part:
        """Return the part with names of its columns."""
        return replace(self, names=tuple(names)).with_types(self.types)

    def with_types(self, types: Sequence[pa.DataType]) -> Part:
        """Return the part with other types of its columns, which hold the same values."""
        if not self.is_flat:
            return replace(self, stored=types[0]) if types else self
        names = self.names or [field.name for field in self.stored]
        fields = [pa.field(*column) for column in zip(names, types, strict=True)]
        return replace(self, stored=pa.struct(fields))

    def values(self, rows: pa.Table | pa.RecordBatch) -> pa.Array:
        """Return the values of Flink in the columns of rows.

        Raises:
            InvalidArgumentError: for a value that the type of Flink cannot hold, with its column.
            UnsupportedTypeError: for a value that Flink cannot represent.
        """
        arrays = [single_chunk(rows.column(name)) for name in self.names]
        return self.join(arrays, rows.num_rows)

    def join(self, arrays: Sequence[pa.Array], count: int) -> pa.Array:
        """Join columns into ``count`` values of Flink; raises the errors of :meth:`values`."""
        if not arrays:
            return self.to_flink(pa.nulls(count))
        if self.is_flat:
            return self.to_flink(pa.StructArray.from_arrays(arrays, names=self.names))
        return convert_column(arrays[0], self.to_flink, self.names[0])

    def columns(self, values: pa.Array) -> dict[str, pa.Array]:
        """Return the columns for values of Flink, by name.

        Raises UnsupportedTypeError for a value that its column cannot hold.
        """
        return dict(zip(self.names, self.split(values), strict=True))

    def split(self, values: pa.Array) -> list[pa.Array]:
        """Split values of Flink into columns; raises the errors of :meth:`columns`."""
        converted = self.from_flink(values, self.stored)
        if not self.names:
            return []
        return converted.flatten() if self.is_flat else [converted]


def no_columns(flink_type: FlinkType = NO_VALUE) -> Part:
    """Return a part without columns, whose value is null."""
    return Part(pa.null(), flink_type, lambda array: array, lambda array, stored: array)


def single_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def convert_column(array: pa.Array, to_flink: ToFlink, name: str) -> pa.Array:
    """Convert a column; InvalidArgumentError names the first value that does not fit.

    The store's types are wider than some of Flink's: a character is a whole number, and a time has
    microseconds.
    """
    try:
        return to_flink(array)
    except pa.ArrowInvalid as error:
        place = _find_refused(array, to_flink)
        raise InvalidArgumentError(
            f"the column {name!r} has the value {array[place]}, which Flink's type cannot hold "
            f"({str(error).splitlines()[0]}): edit the value"
        ) from error


def _find_refused(array: pa.Array, to_flink: ToFlink) -> int:
    """Return the index of the first value that cannot be converted; at least one must fail."""
    begin, end = 0, len(array)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            to_flink(array.slice(begin, middle - begin))
        except pa.ArrowInvalid:
            end = middle
        else:
            begin = middle
    return begin


_MICROS, _NANOS = 1_000_000, 1_000_000_000
_PER_SECOND = {"s": 1, "ms": 1000, "us": _MICROS, "ns": _NANOS}
_TUPLE = "org.apache.flink.api.java.tuple.Tuple"
_MOST_FIELDS = 25
_PLAIN = {
    pa.bool_(): "Boolean", pa.int8(): "Byte", pa.int16(): "Short", pa.int32(): "Integer",
    pa.int64(): "Long", pa.float32(): "Float", pa.float64(): "Double", pa.string(): "String",
    pa.binary(): "byte[]", pa.date32(): "LocalDate",
}  # fmt: skip
_ARROW = {name: data_type for data_type, name in _PLAIN.items()}
_NUMBERS = ("Byte", "Short", "Integer", "Long")
_MILLIS = {"java.sql.Date": "SqlDate", "java.sql.Time": "SqlTime"}


def value_column(stored: pa.DataType) -> Part:
    """Return the Flink type for the values of a stored column.

    Raises UnsupportedTypeError if Flink has no serializer for it.
    """
    types = pa.types
    if stored in _PLAIN:
        return identity_column(stored, _PLAIN[stored])
    if types.is_timestamp(stored):
        name = "LocalDateTime" if stored.tz is None else "Instant"
        return Part(stored, Scalar(name), _split_micros, _join_micros)
    if types.is_decimal128(stored):
        return cast_column(stored, "BigDecimal", pa.string())
    if types.is_struct(stored):
        parts = [value_column(field.type) for field in stored]
        return row_column(stored, parts)
    if types.is_list(stored):
        element = value_column(stored.value_type)
        return list_column(stored, element)
    if types.is_map(stored):
        return map_column(stored, value_column(stored.key_type), value_column(stored.item_type))
    raise UnsupportedTypeError(f"Flink has no serializer for values of type {stored}")


def key_column(stored: pa.DataType, java: JavaType) -> Part:
    """Return the Flink type of a key column, which is the type that the key is hashed as.

    Raises UnsupportedTypeError if Flink has no serializer for it.
    """
    name = java.name
    if _ARROW.get(name) == stored:
        return value_column(stored)
    if name in _NUMBERS and pa.types.is_integer(stored):
        return cast_column(stored, name, _ARROW[name])
    if name == "Character":
        return _character_column(stored)
    if name == "BigInteger" and pa.types.is_decimal(stored):
        return cast_column(stored, name, pa.string(), via=pa.decimal128(38, 0))
    if name == "BigInteger":
        return cast_column(stored, name, pa.string())
    if name == "BigDecimal" and java.digits is not None:
        return cast_column(stored, name, pa.string(), via=pa.decimal128(38, java.digits[1]))
    if name == "LocalDate":
        return cast_column(stored, name, pa.date32(), via=pa.int32())
    return _time_key(stored, java)


def _time_key(stored: pa.DataType, java: JavaType) -> Part:
    name = java.name
    is_timestamp = pa.types.is_timestamp(stored)
    if is_timestamp and name in ("Instant", "LocalDateTime"):
        return value_column(stored)
    if is_timestamp and name == "java.sql.Timestamp":
        return Part(stored, Scalar("SqlTimestamp"), _split_micros, _join_micros)
    if name in ("Instant", "LocalDateTime", "java.sql.Timestamp"):
        per = 1000 if name == "java.sql.Timestamp" else _NANOS
        flink = "SqlTimestamp" if per == 1000 else name
        return Part(
            stored,
            Scalar(flink),
            lambda array: split_seconds(array.cast(pa.int64()), per),
            lambda array, stored: _join_seconds(array, per).cast(stored),
        )
    if name in _MILLIS:
        return cast_column(stored, _MILLIS[name], pa.timestamp("ms", "UTC"))
    if name == "LocalTime":
        return cast_column(stored, name, pa.time64("ns"))
    return _composite_key(stored, java)


def _composite_key(stored: pa.DataType, java: JavaType) -> Part:
    parts = java.parts
    if parts is not None and pa.types.is_struct(stored) and java.name in ("Tuple", "Row"):
        inner = [key_column(field.type, part) for field, part in zip(stored, parts, strict=True)]
        return row_column(stored, inner) if java.name == "Row" else tuple_column(stored, inner)
    if parts is not None and pa.types.is_list(stored) and java.name == "List":
        return list_column(stored, key_column(stored.value_type, parts[0]))
    if java.name == "NamedRow":
        raise UnsupportedTypeError(
            f"a key that is hashed as {java} cannot be restored: Flink hashes a Row by its names "
            "only until it has read the row back, and by position from then on. Hash it as Row"
        )
    raise UnsupportedTypeError(
        f"a key that is hashed as {java} is written by Kryo with classes that only the job has"
    )


def python_key(key: Part, row_type: RowType | None = None) -> Part:
    """Wrap a key in a ``Row``, as PyFlink does; by default in a row with a kind."""
    row = RowType((key.flink_type,)) if row_type is None else row_type

    def from_flink(array: pa.Array, stored: pa.DataType) -> pa.Array:
        inner = array.field("f0")
        if inner.null_count:
            raise UnsupportedTypeError("a PyFlink key is null, which has no key group")
        return key.from_flink(inner, stored)

    return replace(
        key,
        flink_type=row,
        to_flink=lambda array: insert_rows([key.to_flink(array)], row),
        from_flink=from_flink,
    )


def insert_rows(fields: Sequence[pa.Array], row_type: RowType) -> pa.Array:
    """Build rows from fields; rows of keys always have the kind INSERT, which is 0."""
    if row_type.has_kind:
        fields = [pa.array(np.zeros(len(fields[0]), np.int8)), *fields]
    return pa.StructArray.from_arrays(fields, fields=list(row_type.arrow_type()))


def sql_key(names: Sequence[str], stored: Sequence[pa.DataType], sql: Sequence[str]) -> Part:
    """Return key columns as a row of Flink SQL (``RowDataSerializer``), of their hashed types."""
    columns = tuple(map(key_logical_type, sql))
    parts = [
        sql_column(column, data_type).with_names((name,))
        for name, data_type, column in zip(names, stored, columns, strict=True)
    ]
    row_type = RowDataType(columns, tuple(part.flink_type for part in parts), is_key=True)
    return columns_part(row_type, parts, has_kind=True)


def sql_column(column: LogicalType, stored: pa.DataType) -> Part:
    """Return a column as a field of a row of Flink SQL; one of Arrow's type null is always null."""
    target, flink_type = sql_type(column), sql_field(column)
    if pa.types.is_null(stored):
        return replace(no_columns(flink_type), to_flink=lambda array: pa.nulls(len(array), target))
    return Part(stored, flink_type, lambda array: sql_cast(array, target), sql_cast)


def sql_field(column: LogicalType) -> FlinkType:
    """Return the type of a row's field (``InternalSerializers``)."""
    if column.root == "DECIMAL":
        return DecimalDataType(column.precision, column.scale)
    field = SQL_ROOTS[column.root].field
    return Scalar(field) if field else TimestampDataType(column.precision)


def sql_cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert a key column to another type with the same meaning.

    Between a time and a whole number, the number counts nanoseconds.
    """
    types, source = pa.types, array.type
    if source == target:
        return array
    if INSTANT in (source, target):
        return _to_instant(array) if target == INSTANT else _from_instant(array, target)
    if types.is_date(source) or types.is_date(target):
        return array.cast(pa.int32()).cast(target)
    if types.is_timestamp(source) and types.is_timestamp(target):
        same = array.cast(pa.int64()).cast(pa.timestamp(source.unit))
        return same.cast(pa.timestamp(target.unit)).cast(pa.int64()).cast(target)
    if types.is_temporal(source) and types.is_integer(target):
        return array.cast(_nanos_type(source)).cast(pa.int64()).cast(target)
    if types.is_temporal(target) and types.is_integer(source):
        return array.cast(pa.int64()).cast(_nanos_type(target)).cast(target)
    return array.cast(target)


def _nanos_type(data_type: pa.DataType) -> pa.DataType:
    return pa.time64("ns") if pa.types.is_time(data_type) else pa.timestamp("ns")


def _to_instant(array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        return split_seconds(array.cast(pa.int64()), _PER_SECOND[array.type.unit])
    return split_seconds(array.cast(pa.int64()), _NANOS)


def _from_instant(array: pa.Array, stored: pa.DataType) -> pa.Array:
    per = _PER_SECOND[stored.unit] if pa.types.is_timestamp(stored) else _NANOS
    return _join_seconds(array, per).cast(stored)


def combine_columns(columns: Sequence[Part], names: Sequence[str], *, as_tuple: bool) -> Part:
    """Return columns as one value; several columns become a ``Row``, or a tuple on request.

    Raises UnsupportedTypeError for a tuple with more fields than Flink supports.
    """
    if not columns:
        return no_columns()
    parts = [column.with_names((name,)) for name, column in zip(names, columns, strict=True)]
    if len(parts) == 1:
        return parts[0]
    whole = _tuple_type(parts) if as_tuple else _row_type(parts)
    return columns_part(whole, parts, has_kind=not as_tuple)


def cast_to(array: pa.Array, stored: pa.DataType) -> pa.Array:
    """Cast values of Flink to the type of their column."""
    return array.cast(stored)


def as_millis(array: pa.Array) -> pa.Array:
    """Return times as milliseconds since 1970, from timestamps or from milliseconds.

    Raises UnsupportedTypeError for a time that is not a whole number of milliseconds.
    """
    if not pa.types.is_timestamp(array.type):
        return array.cast(pa.int64())
    try:
        return array.cast(pa.timestamp("ms", array.type.tz)).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise UnsupportedTypeError(f"Flink stores this column in milliseconds: {error}") from error


def from_millis(array: pa.Array, stored: pa.DataType) -> pa.Array:
    """Convert milliseconds to the type of a stored time column."""
    if not pa.types.is_timestamp(stored):
        return array.cast(stored)
    return array.cast(pa.timestamp("ms", stored.tz)).cast(stored)


def identity_column(stored: pa.DataType, name: str) -> Part:
    """Return a column whose values are those of Flink's type ``name``."""
    return Part(stored, Scalar(name), lambda array: array, cast_to)


def cast_column(
    stored: pa.DataType, name: str, arrow: pa.DataType, via: pa.DataType | None = None
) -> Part:
    """Return the conversions of a column that Flink has as the type ``arrow``.

    Both directions cast to ``via`` first, by default to ``arrow``, or for times to whole numbers.
    """
    between: pa.DataType = via or (pa.int64() if pa.types.is_temporal(arrow) else arrow)
    return Part(
        stored,
        Scalar(name),
        lambda array: array.cast(between).cast(arrow),
        lambda array, stored: array.cast(between).cast(stored),
    )


def _character_column(stored: pa.DataType) -> Part:
    if pa.types.is_integer(stored):
        return cast_column(stored, "Character", pa.uint16())
    return Part(
        stored,
        Scalar("Character"),
        lambda array: pa.array([ord(character) for character in array.to_pylist()], pa.uint16()),
        lambda array, stored: pa.array([chr(code) for code in array.to_pylist()], stored),
    )


def null_mask(array: pa.Array) -> pa.Array | None:
    """Return which values of a column are null; None if there are none."""
    return array.is_null() if array.null_count else None


def split_seconds(whole: pa.Array, per: int) -> pa.Array:
    """Split whole numbers, with ``per`` units per second, into seconds and nanoseconds."""
    values = whole.fill_null(0).to_numpy(zero_copy_only=False)
    second, rest = np.divmod(values, per)
    nano = (rest * (_NANOS // per)).astype(np.int32)
    fields = [INSTANT.field(0), INSTANT.field(1)]
    parts = [pa.array(second), pa.array(nano)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=null_mask(whole))


def _join_seconds(array: pa.Array, per: int) -> pa.Array:
    second, nano = array.flatten()
    return pc.add(pc.multiply(second, per), pc.divide(nano.cast(pa.int64()), _NANOS // per))


def _split_micros(array: pa.Array) -> pa.Array:
    return split_seconds(array.cast(pa.int64()), _MICROS)


def _join_micros(array: pa.Array, stored: pa.DataType) -> pa.Array:
    return _join_seconds(array, _MICROS).cast(stored)


def tuple_column(stored: pa.DataType, parts: Sequence[Part]) -> Part:
    """Return a struct as a tuple; UnsupportedTypeError for more fields than Flink supports."""
    return struct_part(stored, _tuple_type(parts), parts)


def row_column(stored: pa.DataType, parts: Sequence[Part]) -> Part:
    """Return a struct as a ``Row``."""
    return struct_part(stored, _row_type(parts), parts, has_kind=True)


def _tuple_type(parts: Sequence[Part]) -> TupleType:
    if not 1 <= len(parts) <= _MOST_FIELDS:
        raise UnsupportedTypeError(f"Flink has no tuple of {len(parts)} fields")
    return TupleType(f"{_TUPLE}{len(parts)}", tuple(part.flink_type for part in parts))


def _row_type(parts: Sequence[Part]) -> RowType:
    return RowType(tuple(part.flink_type for part in parts))


def columns_part(flink_type: FlinkType, parts: Sequence[Part], *, has_kind: bool = False) -> Part:
    """Return the columns of all parts, which have names, as one value; see :func:`struct_part`."""
    names = tuple(name for part in parts for name in part.names)
    types = (data_type for part in parts for data_type in part.types)
    stored = pa.struct([pa.field(*column) for column in zip(names, types, strict=True)])
    whole = struct_part(stored, flink_type, parts, has_kind=has_kind)
    return replace(whole, names=names, is_flat=True)


def struct_part(
    stored: pa.DataType, flink_type: FlinkType, parts: Sequence[Part], *, has_kind: bool = False
) -> Part:
    """Return a struct as one value, which has a field in Flink for each part.

    Args:
        stored: the type of the struct. It has the columns of all parts, in their order.
        flink_type: the type of the value.
        parts: each has one column, several columns, or none.
        has_kind: whether the kind of a row, INSERT, precedes the fields in Flink.
    """
    names = [field.name for field in flink_type.arrow_type()]

    def to_flink(array: pa.Array) -> pa.Array:
        has_columns = pa.types.is_struct(array.type)
        columns = iter(array.flatten() if has_columns else ())
        fields = [pa.array(np.zeros(len(array), np.int8))] if has_kind else []
        for part in parts:
            own = list(islice(columns, len(part.types)))
            is_nested = own and not part.names
            fields.append(part.to_flink(*own) if is_nested else part.join(own, len(array)))
        mask = null_mask(array) if has_columns else None
        return pa.StructArray.from_arrays(fields, names, mask=mask)

    def from_flink(array: pa.Array, stored: pa.DataType) -> pa.Array:
        columns: list[pa.Array] = []
        targets = iter(stored)
        for part, values in zip(parts, array.flatten()[has_kind:], strict=True):
            own = list(islice(targets, len(part.types)))
            single = own[0].type if own else pa.null()
            converted = part.from_flink(values, pa.struct(own) if part.is_flat else single)
            columns += converted.flatten() if part.is_flat else [converted][: len(own)]
        return pa.StructArray.from_arrays(columns, fields=list(stored), mask=null_mask(array))

    return Part(stored, flink_type, to_flink, from_flink)


def _list_offsets(array: pa.Array) -> pa.Array:
    """Return the list offsets relative to the flattened elements, starting at 0."""
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    lengths = np.diff(offsets)
    if array.null_count:
        lengths = np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    return pa.array(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32))


def list_column(stored: pa.DataType, element: Part) -> Part:
    """Return the conversions between a stored list column and Flink's ``List``."""

    def to_flink(array: pa.Array) -> pa.Array:
        values = element.to_flink(array.flatten())
        return pa.ListArray.from_arrays(_list_offsets(array), values, mask=null_mask(array))

    def from_flink(array: pa.Array, stored: pa.DataType) -> pa.Array:
        values = element.from_flink(array.flatten(), stored.value_type)
        return pa.ListArray.from_arrays(
            _list_offsets(array), values, type=stored, mask=null_mask(array)
        )

    return Part(stored, ListType(element.flink_type), to_flink, from_flink)


def map_column(stored: pa.DataType, key: Part, value: Part) -> Part:
    """Return the conversions between a stored map column and Flink's ``Map``."""

    def to_flink(array: pa.Array) -> pa.Array:
        array = _without_offset(array)
        parts = key.to_flink(array.keys), value.to_flink(array.items)
        return pa.MapArray.from_arrays(array.offsets, *parts, mask=null_mask(array))

    def from_flink(array: pa.Array, stored: pa.DataType) -> pa.Array:
        array = _without_offset(array)
        keys = key.from_flink(array.keys, stored.key_type)
        items = value.from_flink(array.items, stored.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, stored, mask=null_mask(array))

    return Part(stored, MapType(key.flink_type, value.flink_type), to_flink, from_flink)


def _without_offset(array: pa.Array) -> pa.Array:
    return pc.take(array, pa.array(np.arange(len(array)))) if array.offset else array
