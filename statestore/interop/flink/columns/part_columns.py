"""The columns of one part of a state's rows: its keys, namespaces, map keys or values.

A tuple, a row, a POJO and a SQL row have a column for each field. Other types have one column. A
type that a store's column cannot hold is converted:

- A character becomes its code unit.
- A time of day becomes nanoseconds.
- A ``java.util.Date`` becomes a timestamp, or milliseconds in a key.
- An ``Instant`` or ``LocalDateTime`` in a key becomes nanoseconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.logical_types import LogicalType
from statestore.interop.flink.types.arrow_types import INSTANT, to_nanos
from statestore.interop.flink.types.flink_types import (
    AvroType,
    CaseClassType,
    CepType,
    EitherType,
    FlinkType,
    PojoType,
    PythonType,
    RowDataType,
    RowType,
    Scalar,
    StreamElementType,
    TupleType,
)

_FLAT = (
    *(TupleType, CaseClassType, RowType, RowDataType, PojoType, EitherType),
    StreamElementType,
)
_ROW_KIND, _CLASS = "row_kind", "class"
_LTZ = "TIMESTAMP_WITH_LOCAL_TIME_ZONE"

# The hashed types of keys of Flink SQL, by their names.
_SQL = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "STRING"),
    *("BYTES", "CHAR", "VARCHAR", "BINARY", "VARBINARY", "DECIMAL", "TIME", "TIMESTAMP"),
    "TIMESTAMP_LTZ",
)
_EXACT_DIGITS = 6
_NANOS = 1_000_000_000


@dataclass(frozen=True)
class PartColumns:
    """The columns of one part of a row; if ``flink_type`` is None, the part is undecoded bytes."""

    flink_type: FlinkType | None
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
            return [_to_stored(array, self.stored[0])]
        if array.null_count:
            raise UnsupportedTypeError(
                f"an object of {self._title} is null, but its fields are not"
            )
        columns = []
        for field, stored in zip(self.fields, self.stored, strict=True):
            index = array.type.get_field_index(field.name)
            if index >= 0:
                column = array.field(index)
            elif field.name == _CLASS and isinstance(self.flink_type, PojoType):
                column = pa.repeat(pa.scalar(self.flink_type.class_name), len(array))
            else:
                column = pa.nulls(len(array), stored)
            columns.append(_to_stored(column, stored))
        return columns

    def with_stored_types(self, schema: pa.Schema) -> PartColumns:
        """Return the part with the types that its columns have in ``schema``."""
        return replace(self, stored=tuple(schema.field(name).type for name in self.names))

    def with_type(self, flink_type: FlinkType) -> PartColumns:
        """Return the part with another type, which has as many columns."""
        other = part_columns(flink_type, flat=self.is_flat)
        stored = (
            own if field.type == before.type else new
            for field, before, own, new in zip(
                other.fields, self.fields, self.stored, other.stored, strict=True
            )
        )
        return replace(other, stored=tuple(stored), names=self.names)

    def with_stored_zones(self, schema: pa.Schema) -> PartColumns:
        """Return the part with a column's type in ``schema`` if only time zones differ."""
        stored = tuple(
            schema.field(name).type
            if name in schema.names
            and _without_zones(schema.field(name).type) == _without_zones(own)
            else own
            for name, own in zip(self.names, self.stored, strict=True)
        )
        return replace(self, stored=stored)

    def array(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the values of the part in the form in which Flink's bytes are decoded.

        Raises InvalidArgumentError for a value that the type of Flink cannot hold, with its column.
        """
        columns = [
            _convert_stored(rows.column(name), field.type, name)
            for name, field in zip(self.names, self.fields, strict=True)
        ]
        if self.flink_type is None or not self.is_flat:
            return columns[0] if columns else pa.nulls(rows.num_rows)
        whole = self.flink_type.arrow_type()
        if not isinstance(self.flink_type, Scalar) and len(self.fields) < whole.num_fields:
            insert = pa.array(np.zeros(rows.num_rows, np.int8))  # the row kind of keys is INSERT
            columns = [insert, *columns]
        return pa.StructArray.from_arrays(columns, fields=list(whole))

    @property
    def text(self) -> str:
        """The fields with their types, as one line."""
        return ", ".join(f"{field.name} {field.type}".lstrip() for field in self.fields)

    @property
    def _title(self) -> str:
        return "bytes" if self.flink_type is None else self.flink_type.java_name


def _to_stored(array: pa.Array, stored: pa.DataType) -> pa.Array:
    if array.type == stored:
        return array
    if array.type == INSTANT:
        return to_nanos(array)
    if pa.types.is_struct(stored):
        fields = [
            _to_stored(*pair) for pair in zip(array.flatten(), _field_types(stored), strict=True)
        ]
        return pa.StructArray.from_arrays(fields, fields=list(stored), mask=_null_mask(array))
    if pa.types.is_list(stored):
        return _replace_items(array, _to_stored(array.values, stored.value_type))
    try:
        if pa.types.is_time32(array.type):
            array = array.cast(pa.time64("ns"))
        return array.cast(stored)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise UnsupportedTypeError(
            f"a value of {array.type} has no column form ({str(error).splitlines()[0]})"
        ) from error


def _without_zones(data_type: pa.DataType) -> pa.DataType:
    """Return a type in which no timestamp has a time zone."""
    types = pa.types
    if types.is_timestamp(data_type):
        return pa.timestamp(data_type.unit)
    if types.is_struct(data_type):
        return pa.struct([field.with_type(_without_zones(field.type)) for field in data_type])
    if types.is_map(data_type):
        return pa.map_(_without_zones(data_type.key_type), _without_zones(data_type.item_type))
    if types.is_list(data_type):
        return pa.list_(_without_zones(data_type.value_type))
    return data_type


def _field_types(struct_type: pa.StructType) -> list[pa.DataType]:
    return [field.type for field in struct_type]


def _replace_items(array: pa.Array, items: pa.Array) -> pa.Array:
    """Return lists with the same number of other items."""
    offsets = pa.array(array.offsets.to_numpy(), pa.int32())  # Arrow takes no slice with a mask
    return pa.ListArray.from_arrays(offsets, items, mask=_null_mask(array))


def _null_mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _to_instants(array: pa.Array) -> pa.Array:
    nanos = array.fill_null(0).to_numpy(zero_copy_only=False)
    parts = [pa.array(nanos // _NANOS), pa.array((nanos % _NANOS).astype(np.int32))]
    return pa.StructArray.from_arrays(parts, fields=list(INSTANT), mask=_null_mask(array))


def _convert_stored(array: pa.Array, data_type: pa.DataType, name: str) -> pa.Array:
    """Convert a stored column; InvalidArgumentError names the first value that does not fit.

    The store's types are wider than some of Flink's: a character is a whole number, and a time has
    microseconds.
    """
    try:
        return _from_stored(array, data_type)
    except pa.ArrowInvalid as error:
        place = _find_refused(array, data_type)
        raise InvalidArgumentError(
            f"the column {name!r} has the value {array[place]}, which Flink's type cannot hold "
            f"({str(error).splitlines()[0]}): edit the value"
        ) from error


def _find_refused(array: pa.Array, data_type: pa.DataType) -> int:
    """Return the place of the first value that cannot be converted; there must be one."""
    begin, end = 0, len(array)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            _from_stored(array.slice(begin, middle - begin), data_type)
        except pa.ArrowInvalid:
            end = middle
        else:
            begin = middle
    return begin


def _from_stored(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    if array.type == data_type:
        return array
    if data_type == INSTANT:
        return _to_instants(array)
    if pa.types.is_struct(data_type):
        fields = [
            _from_stored(*pair)
            for pair in zip(array.flatten(), _field_types(data_type), strict=True)
        ]
        return pa.StructArray.from_arrays(fields, fields=list(data_type), mask=_null_mask(array))
    if pa.types.is_list(data_type):
        if len(array.flatten()) < len(array.values):  # a slice, with the items of other rows
            array = array.take(pa.array(np.arange(len(array))))
        return _replace_items(array, _from_stored(array.values, data_type.value_type))
    if pa.types.is_null(data_type):
        return pa.nulls(len(array))
    if pa.types.is_time32(data_type):
        array = array.cast(pa.time64("ns"))
    return array.cast(data_type)


def _stored_type(data_type: pa.DataType, *, is_key: bool) -> pa.DataType:
    """Return the store's column type for all values of a type, except far timestamps."""
    types = pa.types
    if data_type == INSTANT and is_key:
        return pa.int64()
    if types.is_uint16(data_type):
        return pa.int32()
    if types.is_time(data_type):
        return pa.int64()
    if types.is_timestamp(data_type):
        if data_type.tz and is_key:
            return pa.int64()
        return pa.timestamp("us", data_type.tz)
    if types.is_null(data_type):
        return pa.int8()
    if types.is_map(data_type):
        inner = (
            _stored_type(field, is_key=is_key)
            for field in (data_type.key_type, data_type.item_type)
        )
        return pa.map_(*inner)
    if types.is_list(data_type):
        return pa.list_(_stored_type(data_type.value_type, is_key=is_key))
    if types.is_struct(data_type):
        return pa.struct(
            [pa.field(field.name, _stored_type(field.type, is_key=is_key)) for field in data_type]
        )
    return data_type


def key_types(flink_type: FlinkType, hash_scheme: str) -> tuple[str, ...]:
    """Return the hashed types of a key's columns: one per field for tuples and SQL rows.

    ``hash_scheme`` is the scheme of the store. Raises UnsupportedTypeError for a type that cannot
    be hashed as columns, or whose hash only the job can compute.
    """
    names: list[str | None]
    if isinstance(flink_type, RowDataType):
        names = [_sql_name(column) for column in flink_type.columns]
    elif isinstance(flink_type, TupleType):
        names = [field.column_key_type for field in flink_type.fields]
    elif flink_type == Scalar("byte[]") and hash_scheme == "pyflink":  # hashed by content in a Row
        names = ["byte[]"]
    else:
        names = [flink_type.column_key_type]
    known = tuple(name for name in names if name is not None)
    if len(known) < len(names):
        raise UnsupportedTypeError(f"no column type is hashed like keys of {flink_type.java_name}")
    return known


def _sql_name(column: LogicalType) -> str | None:
    text = column.text.removesuffix(" NOT NULL")
    is_known = text.partition("(")[0] in _SQL
    is_fine = column.root.startswith("TIMESTAMP") and column.precision > _EXACT_DIGITS
    return text if is_known and not is_fine else None


def _has_fields(flink_type: FlinkType) -> bool:
    """Return whether each field of a type becomes a column."""
    return (
        flink_type.is_record
        if isinstance(flink_type, AvroType | CepType)
        else isinstance(flink_type, _FLAT)
    )


def part_columns(
    flink_type: FlinkType | None, *, is_key: bool = False, flat: bool = True
) -> PartColumns:
    """Return the columns of a part, without names; None means undecoded bytes.

    Args:
        flink_type: the part's type.
        is_key: whether the part is the hashed key, which needs the column types of the hash.
        flat: whether its fields become separate columns.

    Returns:
        The columns.

    Raises:
        UnsupportedTypeError: for a type without a column type.
    """
    if flink_type is None:
        return PartColumns(None, (pa.field("", pa.binary()),), (pa.binary(),), False)
    whole = flink_type.arrow_type()
    if pa.types.is_null(whole) and not is_key:
        return PartColumns(flink_type, (), (), False)
    is_window = isinstance(flink_type, Scalar) and flink_type.name in (
        "TimeWindow",
        "SqlTimeWindow",
    )
    is_row_key = is_key and isinstance(flink_type, RowType)
    is_flat = _has_fields(flink_type.value if isinstance(flink_type, PythonType) else flink_type)
    flat = flat and is_flat and not (isinstance(flink_type, PythonType) and flink_type.many)
    if is_row_key:  # must stay one column, because a Row hashes differently; its kind is INSERT
        whole = pa.struct([field for field in whole if field.name != _ROW_KIND])
    if is_row_key or not (is_window or flat):
        field = pa.field("", whole)
        return PartColumns(flink_type, (field,), (_stored_type(whole, is_key=is_key),), False)
    fields = [field for field in whole if not (is_key and field.name == _ROW_KIND)]
    stored = [_stored_type(field.type, is_key=is_key) for field in fields]
    if isinstance(flink_type, RowDataType):
        first = len(fields) - len(flink_type.columns)
        for index, column in enumerate(flink_type.columns, first):
            if column.root == _LTZ and pa.types.is_timestamp(fields[index].type):
                stored[index] = pa.timestamp("us", "UTC")
    return PartColumns(flink_type, tuple(fields), tuple(stored), True)
