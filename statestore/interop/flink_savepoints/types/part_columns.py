"""The columns of one part of a state's rows: its keys, namespaces, map keys or values.

A tuple, a row, a POJO and a SQL row have a column for each field. Other types have one column. A
type that a store's column cannot hold is converted:

- A character becomes its code unit.
- A time of day becomes nanoseconds.
- A ``java.util.Date`` becomes a timestamp, or milliseconds in a key.
- An ``Instant`` or ``LocalDateTime`` in a key becomes nanoseconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink_savepoints.types.arrow_types import INSTANT, arrow_type
from statestore.interop.flink_savepoints.types.flink_types import (
    EitherType,
    FlinkType,
    ListType,
    LogicalType,
    PojoType,
    PythonType,
    RowDataType,
    RowType,
    Scalar,
    TupleType,
    name_of,
)

__all__ = ["PartColumns", "key_types", "nanos_of", "part_columns"]

_FLAT = (TupleType, RowType, RowDataType, PojoType, EitherType)
_ROW_KIND, _CLASS = "row_kind", "class"
_LTZ = "TIMESTAMP_WITH_LOCAL_TIME_ZONE"

# The hashed types of keys, by their Java or SQL names. Dates are hashed as their milliseconds.
_PLAIN = (
    *("Boolean", "Byte", "Short", "Integer", "Long", "Float", "Double", "Character", "String"),
    *("BigInteger", "BigDecimal", "LocalDate", "LocalTime", "LocalDateTime", "Instant"),
)
_MILLIS = ("Date", "SqlDate", "SqlTime")
_SQL = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "STRING"),
    *("BYTES", "CHAR", "VARCHAR", "BINARY", "VARBINARY", "DECIMAL", "TIME", "TIMESTAMP"),
    "TIMESTAMP_LTZ",
)
_EXACT_DIGITS = 6
_NANOS = 1_000_000_000
_MOST_SECONDS = (1 << 63) // _NANOS


@dataclass(frozen=True)
class PartColumns:
    """The columns of one part of a row; if ``kind`` is None, the part is undecoded bytes."""

    kind: FlinkType | None
    fields: tuple[pa.Field, ...]
    stored: tuple[pa.DataType, ...]
    is_flat: bool
    names: tuple[str, ...] = ()

    def columns(self, array: pa.Array) -> list[pa.Array]:
        """Return the columns for the values of the part.

        Raises UnsupportedTypeError for a value that its column cannot hold.
        """
        if not self.fields:
            return []
        if not self.is_flat:
            return [_cast(array, self.stored[0])]
        if array.null_count:
            raise UnsupportedTypeError(
                f"an object of {self._title} is null, but its fields are not"
            )
        found = []
        for field, stored in zip(self.fields, self.stored, strict=True):
            at = array.type.get_field_index(field.name)
            if at >= 0:
                column = array.field(at)
            elif field.name == _CLASS and isinstance(self.kind, PojoType):
                column = pa.repeat(pa.scalar(self.kind.class_name), len(array))
            else:
                column = pa.nulls(len(array), stored)
            found.append(_cast(column, stored))
        return found

    def array(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the values of the part in the form in which Flink's bytes are decoded."""
        columns = [
            _uncast(rows.column(name), field.type)
            for name, field in zip(self.names, self.fields, strict=True)
        ]
        if self.kind is None or not self.is_flat:
            return columns[0] if columns else pa.nulls(rows.num_rows)
        whole = arrow_type(self.kind)
        if not isinstance(self.kind, Scalar) and len(self.fields) < whole.num_fields:
            insert = pa.array(np.zeros(rows.num_rows, np.int8))  # the row kind of keys is INSERT
            columns = [insert, *columns]
        return pa.StructArray.from_arrays(columns, fields=list(whole))

    @property
    def _title(self) -> str:
        return "bytes" if self.kind is None else name_of(self.kind)


def _cast(array: pa.Array, stored: pa.DataType) -> pa.Array:
    if array.type == stored:
        return array
    if array.type == INSTANT:
        return nanos_of(array)
    if pa.types.is_struct(stored):
        fields = [_cast(*one) for one in zip(array.flatten(), _types(stored), strict=True)]
        return pa.StructArray.from_arrays(fields, fields=list(stored), mask=_nulls(array))
    try:
        if pa.types.is_time32(array.type):
            array = array.cast(pa.time64("ns"))
        return array.cast(stored)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise UnsupportedTypeError(
            f"a value of {array.type} has no column form ({str(error).splitlines()[0]})"
        ) from error


def _types(kind: pa.StructType) -> list[pa.DataType]:
    return [field.type for field in kind]


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def nanos_of(array: pa.Array) -> pa.Array:
    """Convert seconds and nanoseconds to nanoseconds since 1970.

    Raises UnsupportedTypeError for a time that does not fit into 64 bits.
    """
    second, nano = (one.fill_null(0).to_numpy(zero_copy_only=False) for one in array.flatten())
    if bool(((second >= _MOST_SECONDS) | (second <= -_MOST_SECONDS)).any()):
        raise UnsupportedTypeError("a key is a timestamp more than 292 years away from 1970")
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(second * _NANOS + nano, pa.int64(), mask=nulls)


def _instants(array: pa.Array) -> pa.Array:
    nanos = array.fill_null(0).to_numpy(zero_copy_only=False)
    parts = [pa.array(nanos // _NANOS), pa.array((nanos % _NANOS).astype(np.int32))]
    return pa.StructArray.from_arrays(parts, fields=list(INSTANT), mask=_nulls(array))


def _uncast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if kind == INSTANT:
        return _instants(array)
    if pa.types.is_struct(kind):
        fields = [_uncast(*one) for one in zip(array.flatten(), _types(kind), strict=True)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=_nulls(array))
    if pa.types.is_null(kind):
        return pa.nulls(len(array))
    if pa.types.is_time32(kind):
        array = array.cast(pa.time64("ns"))
    return array.cast(kind)


def _stored(kind: pa.DataType, *, is_key: bool) -> pa.DataType:
    """Return the store's column type for all values of a type, except far timestamps."""
    types = pa.types
    if kind == INSTANT and is_key:
        return pa.int64()
    if types.is_uint16(kind):
        return pa.int32()
    if types.is_time(kind):
        return pa.int64()
    if types.is_timestamp(kind):
        if kind.tz and is_key:
            return pa.int64()
        return pa.timestamp("us", kind.tz)
    if types.is_null(kind):
        return pa.int8()
    if types.is_map(kind):
        inner = (_stored(one, is_key=is_key) for one in (kind.key_type, kind.item_type))
        return pa.map_(*inner)
    if types.is_list(kind):
        return pa.list_(_stored(kind.value_type, is_key=is_key))
    if types.is_struct(kind):
        return pa.struct([pa.field(one.name, _stored(one.type, is_key=is_key)) for one in kind])
    return kind


def key_types(kind: FlinkType, hash_scheme: str) -> tuple[str, ...]:
    """Return the hashed types of a key's columns: one per field for tuples and SQL rows.

    ``hash_scheme`` is the scheme of the store. Raises UnsupportedTypeError for a type that cannot
    be hashed as columns, or whose hash only the job can compute.
    """
    names: list[str | None]
    if isinstance(kind, RowDataType):
        names = [_sql_name(column) for column in kind.columns]
    elif isinstance(kind, TupleType):
        names = [_java_name(field) for field in kind.fields]
    elif kind == Scalar("byte[]") and hash_scheme == "pyflink":  # hashed by content in a Row
        names = ["byte[]"]
    else:
        names = [_java_name(kind)]
    known = tuple(name for name in names if name is not None)
    if len(known) < len(names):
        raise UnsupportedTypeError(f"no column type is hashed like keys of {name_of(kind)}")
    return known


def _java_name(kind: FlinkType) -> str | None:
    match kind:
        case Scalar(name) if name in _MILLIS:
            return "Long"
        case Scalar(name) if name in _PLAIN:
            return name
        case TupleType(_, fields) | RowType(fields):
            parts = [_java_name(field) for field in fields]
            known = [part for part in parts if part is not None]
            outer = "Row" if isinstance(kind, RowType) else f"Tuple{len(parts)}"
            return f"{outer}<{', '.join(known)}>" if len(known) == len(parts) else None
        case ListType(element, "List"):
            inner = _java_name(element)
            return None if inner is None else f"List<{inner}>"
        case _:
            return None


def _sql_name(column: LogicalType) -> str | None:
    text = column.text.removesuffix(" NOT NULL")
    is_known = text.partition("(")[0] in _SQL
    is_fine = column.root.startswith("TIMESTAMP") and column.precision > _EXACT_DIGITS
    return text if is_known and not is_fine else None


def part_columns(kind: FlinkType | None, *, is_key: bool = False, flat: bool = True) -> PartColumns:
    """Return the columns of a part, without names; None means undecoded bytes.

    Args:
        kind: the part's type.
        is_key: whether the part is the hashed key, which needs the column types of the hash.
        flat: whether its fields become separate columns.

    Returns:
        The columns.

    Raises:
        UnsupportedTypeError: for a type without a column type.
    """
    if kind is None:
        return PartColumns(None, (pa.field("", pa.binary()),), (pa.binary(),), False)
    whole = arrow_type(kind)
    if pa.types.is_null(whole) and not is_key:
        return PartColumns(kind, (), (), False)
    is_window = isinstance(kind, Scalar) and kind.name in ("TimeWindow", "SqlTimeWindow")
    is_row_key = is_key and isinstance(kind, RowType)
    is_flat = isinstance(kind.value if isinstance(kind, PythonType) else kind, _FLAT)
    flat = flat and is_flat and not (isinstance(kind, PythonType) and kind.many)
    if is_row_key:  # must stay one column, because a Row hashes differently; its kind is INSERT
        whole = pa.struct([one for one in whole if one.name != _ROW_KIND])
    if is_row_key or not (is_window or flat):
        field = pa.field("", whole)
        return PartColumns(kind, (field,), (_stored(whole, is_key=is_key),), False)
    fields = [one for one in whole if not (is_key and one.name == _ROW_KIND)]
    stored = [_stored(one.type, is_key=is_key) for one in fields]
    if isinstance(kind, RowDataType):
        first = len(fields) - len(kind.columns)
        for at, column in enumerate(kind.columns, first):
            if column.root == _LTZ and pa.types.is_timestamp(stored[at]):
                stored[at] = pa.timestamp("us", "UTC")
    return PartColumns(kind, tuple(fields), tuple(stored), True)
