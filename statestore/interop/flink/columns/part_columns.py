"""The columns of one part of a state's rows: its keys, namespaces, map keys or values.

A tuple, a row, a POJO and a SQL row have a column for each field. Other types have one column. A
type that a store's column cannot hold is converted:

- A character becomes its code unit.
- A time of day becomes nanoseconds.
- A ``java.util.Date`` becomes a timestamp, or milliseconds in a key.
- An ``Instant`` or ``LocalDateTime`` in a key becomes nanoseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.columns.store_types import (
    NO_VALUE,
    Part,
    convert_column,
    insert_rows,
    no_columns,
    null_mask,
    split_seconds,
)
from statestore.interop.flink.metadata.logical_types import (
    INSTANT,
    KEY_ROOTS,
    LogicalType,
    to_nanos,
)
from statestore.interop.flink.types.avro import AvroType
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.internal_types import (
    CepType,
    PythonType,
    StreamElementType,
    UndecodedType,
)
from statestore.interop.flink.types.java_types import EitherType, RowType, Scalar, TupleType
from statestore.interop.flink.types.pojos import PojoType
from statestore.interop.flink.types.scala_types import CaseClassType
from statestore.interop.flink.types.sql_types import RowDataType

_FLAT = (
    *(TupleType, CaseClassType, RowType, RowDataType, PojoType, EitherType),
    StreamElementType,
)
_ROW_KIND, _CLASS = "row_kind", "class"

UNDECODED = UndecodedType(NO_VALUE)
"""The type of keys and values that stay bytes."""

_HASH_OF_NO_KEY = pa.scalar(-1404071217, pa.int32())
"""The only INT that Flink SQL hashes like a row without columns, so it is in its key group."""

_LTZ = "TIMESTAMP_WITH_LOCAL_TIME_ZONE"

_EXACT_DIGITS = 6
_NANOS = 1_000_000_000


def _to_stored(array: pa.Array, stored: pa.DataType) -> pa.Array:
    if array.type == stored:
        return array
    if array.type == INSTANT:
        return to_nanos(array)
    if pa.types.is_struct(stored):
        fields = [
            _to_stored(*pair) for pair in zip(array.flatten(), _field_types(stored), strict=True)
        ]
        return pa.StructArray.from_arrays(fields, fields=list(stored), mask=null_mask(array))
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
    return pa.ListArray.from_arrays(offsets, items, mask=null_mask(array))


def _from_stored(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    if array.type == data_type:
        return array
    if data_type == INSTANT:
        return split_seconds(array, _NANOS)
    if pa.types.is_struct(data_type):
        fields = [
            _from_stored(*pair)
            for pair in zip(array.flatten(), _field_types(data_type), strict=True)
        ]
        return pa.StructArray.from_arrays(fields, fields=list(data_type), mask=null_mask(array))
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
    is_known = text.partition("(")[0] in KEY_ROOTS
    is_fine = column.root.startswith("TIMESTAMP") and column.precision > _EXACT_DIGITS
    return text if is_known and not is_fine else None


def _has_fields(flink_type: FlinkType) -> bool:
    """Return whether each field of a type becomes a column."""
    return (
        flink_type.is_record
        if isinstance(flink_type, AvroType | CepType)
        else isinstance(flink_type, _FLAT)
    )


def part_columns(flink_type: FlinkType | None, *, is_key: bool = False, flat: bool = True) -> Part:
    """Return the columns of an imported part, with the names of its fields.

    Args:
        flink_type: the part's type; None means undecoded bytes.
        is_key: whether the part is the hashed key, which needs the column types of the hash.
        flat: whether its fields become separate columns.

    Returns:
        The columns.

    Raises:
        UnsupportedTypeError: for a type without a column type.
    """
    if flink_type is None:
        return _single_column(UNDECODED, pa.binary(), pa.binary())
    whole = flink_type.arrow_type()
    if pa.types.is_null(whole) and not is_key:
        return no_columns(flink_type)
    is_window = isinstance(flink_type, Scalar) and flink_type.name in (
        "TimeWindow",
        "SqlTimeWindow",
    )
    if is_key and isinstance(flink_type, RowType):
        return _row_key(flink_type)
    is_flat = _has_fields(flink_type.value if isinstance(flink_type, PythonType) else flink_type)
    flat = flat and is_flat and not (isinstance(flink_type, PythonType) and flink_type.many)
    if not (is_window or flat):
        return _single_column(flink_type, whole, _stored_type(whole, is_key=is_key))
    fields = [field for field in whole if not (is_key and field.name == _ROW_KIND)]
    if not fields:
        empty = pa.scalar({}, pa.struct([]))
        return replace(no_columns(flink_type), to_flink=lambda array: pa.repeat(empty, len(array)))
    stored = [_stored_type(field.type, is_key=is_key) for field in fields]
    if isinstance(flink_type, RowDataType):
        first = len(fields) - len(flink_type.columns)
        for index, column in enumerate(flink_type.columns, first):
            if column.root == _LTZ and pa.types.is_timestamp(fields[index].type):
                stored[index] = pa.timestamp("us", "UTC")
    return _flat_columns(flink_type, fields, stored)


def _single_column(flink_type: FlinkType, whole: pa.DataType, stored: pa.DataType) -> Part:
    fields = (pa.field("", whole),)
    return Part(
        stored, flink_type, partial(_from_stored, data_type=whole), _to_stored, fields=fields
    )


def _row_key(row_type: RowType) -> Part:
    """Return a row as one column, because a ``Row`` is hashed differently from its fields."""
    whole = pa.struct([field for field in row_type.arrow_type() if field.name != _ROW_KIND])
    single = _single_column(row_type, whole, _stored_type(whole, is_key=True))

    def from_flink(array: pa.Array, stored: pa.DataType) -> pa.Array:
        arrays = [array.field(field.name) for field in whole]
        return _to_stored(pa.StructArray.from_arrays(arrays, fields=list(whole)), stored)

    return replace(
        single,
        to_flink=lambda array: insert_rows(single.to_flink(array).flatten(), row_type),
        from_flink=from_flink,
    )


def _flat_columns(
    flink_type: FlinkType, fields: Sequence[pa.Field], types: Sequence[pa.DataType]
) -> Part:
    """Return a column for each field of a type that has ``fields`` and possibly a row kind."""
    whole = flink_type.arrow_type()
    names = [field.name for field in fields]
    struct = pa.struct([pa.field(*column) for column in zip(names, types, strict=True)])
    has_kind = not isinstance(flink_type, Scalar) and len(fields) < whole.num_fields

    def to_flink(array: pa.Array) -> pa.Array:
        columns = [
            convert_column(column, partial(_from_stored, data_type=field.type), given.name)
            for column, field, given in zip(array.flatten(), fields, array.type, strict=True)
        ]
        if has_kind:  # the row kind of keys is INSERT
            columns = [pa.array(np.zeros(len(array), np.int8)), *columns]
        return pa.StructArray.from_arrays(columns, fields=list(whole))

    def from_flink(array: pa.Array, stored: pa.DataType) -> pa.Array:
        if array.null_count:
            raise UnsupportedTypeError(
                f"an object of {flink_type.java_name} is null, but its fields are not"
            )
        columns = []
        for name, field in zip(names, stored, strict=True):
            index = array.type.get_field_index(name)
            if index >= 0:
                column = array.field(index)
            elif name == _CLASS and isinstance(flink_type, PojoType):
                column = pa.repeat(pa.scalar(flink_type.class_name), len(array))
            else:
                column = pa.nulls(len(array), field.type)
            columns.append(_to_stored(column, field.type))
        return pa.StructArray.from_arrays(columns, fields=list(stored))

    return Part(struct, flink_type, to_flink, from_flink, is_flat=True, fields=tuple(fields))


def empty_key_part(row_type: FlinkType, stored: pa.DataType, state: str) -> Part:
    """Return the key of rows of Flink SQL without columns: one value for all of them.

    ``state`` is the state's name in messages.
    """

    def to_flink(array: pa.Array) -> pa.Array:
        only = empty_key(array.type)
        other = next((key for key in pc.unique(array) if not key.equals(only)), None)
        if other is not None:
            raise InvalidArgumentError(
                f"state {state!r} has the key {other}, but its keys in Flink have no columns, so "
                f"the only key is {only}; delete the rows of the other key"
            )
        return pa.StructArray.from_arrays([pa.array(np.zeros(len(array), np.int8))], [_ROW_KIND])

    def from_flink(array: pa.Array, stored: pa.DataType) -> pa.Array:
        return pa.repeat(empty_key(stored), len(array))

    return Part(stored, row_type, to_flink, from_flink, fields=(pa.field("", stored),))


def empty_key(stored: pa.DataType) -> pa.Scalar:
    """Return the stored value of a key without columns; with one key group it is null."""
    return _HASH_OF_NO_KEY if stored == _HASH_OF_NO_KEY.type else pa.scalar(None, stored)


def with_type(part: Part, flink_type: FlinkType) -> Part:
    """Return an imported part with another type, which has as many columns."""
    other = part_columns(flink_type, flat=part.is_flat)
    types = (
        own if field.type == before.type else new
        for field, before, own, new in zip(
            other.fields, part.fields, part.types, other.types, strict=True
        )
    )
    return other.with_names(part.names).with_types(tuple(types))


def with_stored_zones(part: Part, schema: pa.Schema) -> Part:
    """Return a part with a column's type in ``schema`` if only time zones differ."""
    types = (
        schema.field(name).type
        if name in schema.names and _without_zones(schema.field(name).type) == _without_zones(own)
        else own
        for name, own in zip(part.names, part.types, strict=True)
    )
    return part.with_types(tuple(types))
