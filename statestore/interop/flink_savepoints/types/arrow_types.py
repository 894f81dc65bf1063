"""Map types of Flink to Arrow types, and refuse those whose values cannot be a column."""

from __future__ import annotations

import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink_savepoints.types.flink_types import (
    ArrayType,
    BinaryRowType,
    EitherType,
    EnumType,
    ExternalType,
    FlinkType,
    KryoType,
    ListType,
    LogicalType,
    MapType,
    NullableType,
    PojoType,
    PresentType,
    PythonType,
    RawType,
    RowDataType,
    RowType,
    Scalar,
    SqlScalar,
    TimerType,
    TtlAwareType,
    TtlType,
    TupleType,
    UnknownType,
    java_type_name,
)

__all__ = [
    "EXACT_IN_MILLIS",
    "INSTANT",
    "WINDOW",
    "arrow_type",
    "entry_types",
    "pojo_fields",
    "row_fields",
    "sql_type",
]

INSTANT = pa.struct([("second", pa.int64()), ("nano", pa.int32())])
"""A Java time in seconds and nanoseconds; no Arrow timestamp covers its full range."""

WINDOW = pa.struct([("start", pa.int64()), ("end", pa.int64())])
_CLASS = "class"
_MILLIS = pa.timestamp("ms", "UTC")

_SCALARS = {
    "Boolean": pa.bool_(), "Byte": pa.int8(), "Short": pa.int16(), "Integer": pa.int32(),
    "Long": pa.int64(), "Float": pa.float32(), "Double": pa.float64(), "Character": pa.uint16(),
    "String": pa.string(), "BigDecimal": pa.string(), "BigInteger": pa.string(),
    "StringData": pa.string(), "ByteArrayWrapper": pa.binary(), "PythonDate": pa.date32(),
    "PythonTime": pa.time32("ms"), "PythonTimestamp": pa.timestamp("ms"), "Date": _MILLIS,
    "SqlDate": _MILLIS, "SqlTime": _MILLIS, "SqlTimestamp": INSTANT, "Instant": INSTANT,
    "LocalDateTime": INSTANT, "SortedLong": pa.int64(),
    "LocalDate": pa.date32(), "LocalTime": pa.time64("ns"), "Void": pa.null(), "Null": pa.null(),
    "VoidNamespace": pa.null(), "GlobalWindow": pa.null(), "SqlGlobalWindow": pa.null(),
    "Tuple0": pa.null(), "TimeWindow": WINDOW, "SqlTimeWindow": WINDOW, "CountWindow": pa.int64(),
    "boolean[]": pa.list_(pa.bool_()), "byte[]": pa.binary(), "short[]": pa.list_(pa.int16()),
    "int[]": pa.list_(pa.int32()), "long[]": pa.list_(pa.int64()),
    "float[]": pa.list_(pa.float32()), "double[]": pa.list_(pa.float64()),
    "char[]": pa.list_(pa.uint16()), "String[]": pa.list_(pa.string()),
}  # fmt: skip
_SQL = {
    "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INTEGER": pa.int32(),
    "BIGINT": pa.int64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "DATE": pa.date32(),
    "TIME_WITHOUT_TIME_ZONE": pa.time32("ms"), "CHAR": pa.string(), "VARCHAR": pa.string(),
    "BINARY": pa.binary(), "VARBINARY": pa.binary(), "INTERVAL_YEAR_MONTH": pa.int32(),
    "INTERVAL_DAY_TIME": pa.int64(), "RAW": pa.binary(),
}  # fmt: skip
EXACT_IN_MILLIS = 3
"""The highest number of fractional digits that Flink SQL stores as milliseconds alone."""
_EXACT_IN_MICROS = 6


def arrow_type(flink_type: FlinkType) -> pa.DataType:
    """Return the Arrow type of a column of this type's values.

    BigDecimal and BigInteger become text in the notation of Java and Python, because the scale
    differs between values and an Arrow decimal has one scale. The fields of tuples and rows are
    ``f0``, ``f1``, …

    Raises:
        UnsupportedTypeError: for a type whose values cannot be read, or cannot be a column.
    """
    match flink_type:
        case Scalar(name):
            return _SCALARS[name]
        case TupleType(_, fields):
            return pa.struct(_number_fields(fields))
        case RowType(fields, has_kind):
            first = [pa.field("row_kind", pa.int8())] if has_kind else []
            return pa.struct(first + _number_fields(fields))
        case ListType(element) | ArrayType(_, element):
            return pa.list_(arrow_type(element))
        case MapType(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case EitherType(left, right):
            sides = {"is_left": pa.bool_(), "left": arrow_type(left), "right": arrow_type(right)}
            return pa.struct(sides)
        case RawType():
            return pa.binary()
        case NullableType(value) | PresentType(value):
            return arrow_type(value)
        case PythonType(value, many):
            return pa.list_(arrow_type(value)) if many else arrow_type(value)
        case TtlAwareType(value) | ExternalType(_, value):
            return arrow_type(value)
        case TtlType(value):
            return pa.struct({"last_access": pa.int64(), "value": arrow_type(value)})
        case TimerType(key, namespace):
            parts = {"key": arrow_type(key), "namespace": arrow_type(namespace)}
            return pa.struct({"time": pa.int64(), **parts})
        case PojoType():
            return pa.struct(pojo_fields(flink_type))
        case EnumType():
            return pa.string()
        case RowDataType(columns):
            return pa.struct(row_fields(columns))
        case KryoType() | BinaryRowType() | SqlScalar() | UnknownType():
            raise UnsupportedTypeError(
                f"values of {java_type_name(flink_type)} can only be read as bytes"
            )
    raise AssertionError(flink_type)


def _number_fields(fields: tuple[FlinkType, ...]) -> list[pa.Field]:
    return [
        pa.field(f"f{index}", arrow_type(field_type)) for index, field_type in enumerate(fields)
    ]


def pojo_fields(pojo: PojoType) -> list[pa.Field]:
    """Return the fields of a POJO's column.

    If it has subclasses, the column has the fields of all of them. The first field, ``class``,
    then names the class, and with it the fields that are set.
    """
    field_types = {pojo_field.name: arrow_type(pojo_field.value) for pojo_field in pojo.fields}
    subclasses = (*pojo.registered, *pojo.others)
    if not subclasses:
        return [pa.field(name, data_type) for name, data_type in field_types.items()]
    if _CLASS in field_types:
        raise UnsupportedTypeError(
            f"{pojo.class_name} has subclasses and a field named 'class', which conflict"
        )
    for subclass in subclasses:
        if not isinstance(subclass.value, PojoType):
            raise UnsupportedTypeError(
                f"{subclass.class_name}, a subclass of {pojo.class_name}, is not a POJO"
            )
        if subclass.value.registered or subclass.value.others:
            raise UnsupportedTypeError(f"{subclass.class_name} has subclasses of its own")
        for field in subclass.value.fields:
            data_type = arrow_type(field.value)
            if field_types.setdefault(field.name, data_type) != data_type:
                raise UnsupportedTypeError(
                    f"subclasses of {pojo.class_name} have fields {field.name!r} of different types"
                )
    return [pa.field(_CLASS, pa.string()), *(pa.field(*item) for item in field_types.items())]


def row_fields(columns: tuple[LogicalType, ...]) -> list[pa.Field]:
    """Return the fields of a Flink SQL row: its row kind, and its numbered columns."""
    named = [pa.field(f"f{index}", sql_type(column)) for index, column in enumerate(columns)]
    return [pa.field("row_kind", pa.int8()), *named]


def entry_types(column: LogicalType) -> tuple[LogicalType, LogicalType]:
    """Return the key and value types of a map; the values of a multiset are counts."""
    key, *value = column.children
    return key, value[0] if value else LogicalType("INT NOT NULL", b"", "INTEGER")


def sql_type(column: LogicalType) -> pa.DataType:
    """Return the Arrow type of a Flink SQL column; UnsupportedTypeError if it has none."""
    if column.root == "ROW":
        return pa.struct(row_fields(column.children))
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
        return pa.timestamp("ms" if column.precision <= EXACT_IN_MILLIS else "us")
    data_type = _SQL.get(column.root)
    if data_type is None:
        raise UnsupportedTypeError(f"values of {column.text} can only be read as bytes")
    return data_type
