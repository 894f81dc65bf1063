"""The types of Flink's serializers, as a closed set of values.

A type is parsed from the snapshot of its serializer
(:mod:`statestore.interop.flink_savepoints.metadata.serializer_snapshots`). It determines the byte
layout of values (:mod:`statestore.interop.flink_savepoints.types.decode`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "WIDTHS",
    "ArrayType",
    "BinaryRowType",
    "EitherType",
    "EnumType",
    "ExternalType",
    "FlinkType",
    "KryoType",
    "ListType",
    "LogicalType",
    "MapType",
    "NullableType",
    "PojoField",
    "PojoType",
    "PresentType",
    "PythonType",
    "RawType",
    "RowDataType",
    "RowType",
    "Scalar",
    "SqlScalar",
    "Subclass",
    "TimerType",
    "TtlAwareType",
    "TtlType",
    "TupleType",
    "UnknownType",
    "java_type_name",
    "serializer_length",
]

WIDTHS = {
    "Boolean": 1, "Byte": 1, "Short": 2, "Integer": 4, "Long": 8, "Float": 4, "Double": 8,
    "Character": 2, "Date": 8, "SqlDate": 8, "SqlTime": 8, "SqlTimestamp": 12, "LocalDate": 6,
    "LocalTime": 7, "LocalDateTime": 13, "Instant": 12, "Void": 1, "Null": 1, "VoidNamespace": 0,
    "TimeWindow": 16, "SqlTimeWindow": 16, "CountWindow": 8, "GlobalWindow": 1,
    "SqlGlobalWindow": 1, "PythonDate": 4, "PythonTime": 4, "PythonTimestamp": 8,
    "SortedLong": 8,
}  # fmt: skip
"""``getLength`` of the serializers whose values all have the same length.

``VoidNamespace`` is an exception: its ``getLength`` is 0, but it writes one byte.
"""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type whose snapshot has no body, by its short name: ``Long``, ``String``, ``long[]``."""

    name: str


@dataclass(frozen=True, slots=True)
class TupleType:
    """A ``Tuple1`` to ``Tuple25``, or a Scala-free subclass of one."""

    class_name: str
    fields: tuple[FlinkType, ...]


@dataclass(frozen=True, slots=True)
class RowType:
    """A ``Row``; ``has_kind`` is true if the ``RowKind`` precedes the null bits of its values."""

    fields: tuple[FlinkType, ...]
    has_kind: bool = True


@dataclass(frozen=True, slots=True)
class ListType:
    """A ``List`` or ``Set``; the hashmap backend stores a list state as an ``ArrayList``.

    The ``LinkedList`` of Flink SQL has a null bit for each element.
    """

    element: FlinkType
    form: Literal["List", "ArrayList", "Set", "LinkedList"] = "List"


@dataclass(frozen=True, slots=True)
class MapType:
    """A ``Map``.

    For the ``SortedMap`` of Flink SQL, ``outer`` is its comparator as Java serialized it. The
    ``NullAwareMap`` of Flink SQL can have a null key.
    """

    key: FlinkType
    value: FlinkType
    form: Literal["Map", "SortedMap", "NullAwareMap"] = "Map"
    outer: bytes = b""


@dataclass(frozen=True, slots=True)
class ArrayType:
    """An array of objects."""

    class_name: str
    element: FlinkType


@dataclass(frozen=True, slots=True)
class EitherType:
    """An ``Either`` of two types; ``TaggedUnion`` is the form of a window join of two streams."""

    left: FlinkType
    right: FlinkType
    form: Literal["Either", "TaggedUnion"] = "Either"


@dataclass(frozen=True, slots=True)
class NullableType:
    """A nullable value; a null is followed by ``padding`` bytes."""

    value: FlinkType
    padding: int = 0


@dataclass(frozen=True, slots=True)
class PresentType:
    """An element of an array of objects, after a flag that it is not null."""

    value: FlinkType


@dataclass(frozen=True, slots=True)
class TtlType:
    """A value and the time of its last access, in milliseconds since 1970."""

    value: FlinkType


@dataclass(frozen=True, slots=True)
class TtlAwareType:
    """The element of a list or the value of a map, which may have a TTL."""

    value: FlinkType
    has_ttl: bool


@dataclass(frozen=True, slots=True)
class TimerType:
    """A timer of a key and a namespace."""

    key: FlinkType
    namespace: FlinkType


@dataclass(frozen=True, slots=True)
class PojoField:
    """A field of a POJO, and the class that declares it."""

    name: str
    declared_by: str
    value: FlinkType


@dataclass(frozen=True, slots=True)
class Subclass:
    """A subclass of a POJO; the type is None if the job had no serializer for it."""

    class_name: str
    value: FlinkType | None


@dataclass(frozen=True, slots=True)
class PojoType:
    """A POJO: its fields, its registered subclasses, and other subclasses that the job wrote."""

    class_name: str
    fields: tuple[PojoField, ...]
    registered: tuple[Subclass, ...] = ()
    others: tuple[Subclass, ...] = ()


@dataclass(frozen=True, slots=True)
class EnumType:
    """An enum; a value is the index of its constant."""

    class_name: str
    constants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KryoType:
    """A class that Kryo serializes. ``body`` is its snapshot; its values stay bytes."""

    class_name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class UnknownType:
    """An unsupported class whose snapshot has a known end; its values stay bytes."""

    class_name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class LogicalType:
    """A type of Flink SQL, in SQL syntax; ``java`` is its serialized Java object."""

    text: str
    java: bytes
    root: str
    precision: int = 0
    scale: int = 0
    children: tuple[LogicalType, ...] = ()


@dataclass(frozen=True, slots=True)
class RowDataType:
    """A row of Flink SQL; its columns have no names.

    The planner's projection writes keys. In a key, a null of a long type reserves the bytes of a
    value.
    """

    columns: tuple[LogicalType, ...]
    fields: tuple[FlinkType, ...]
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class BinaryRowType:
    """A row of Flink SQL with a known number of columns, but unknown types."""

    columns: int


@dataclass(frozen=True, slots=True)
class ExternalType:
    """A user function's value in Flink SQL's internal format; ``outer`` is the serialized type."""

    outer: bytes
    value: FlinkType


@dataclass(frozen=True, slots=True)
class RawType:
    """A value of another serializer with a length prefix, which Flink SQL treats as opaque."""

    value: FlinkType


@dataclass(frozen=True, slots=True)
class PythonType:
    """Bytes that PyFlink wrote, with the type that the user declares: one value, or several."""

    value: FlinkType
    many: bool = False


@dataclass(frozen=True, slots=True)
class SqlScalar:
    """A type of Flink SQL's internal data whose snapshot body is kept as it is.

    These are decimals, timestamps, arrays and maps.
    """

    name: str
    version: int
    body: bytes


FlinkType: TypeAlias = (
    Scalar
    | TupleType
    | RowType
    | ListType
    | MapType
    | ArrayType
    | EitherType
    | NullableType
    | PresentType
    | TtlType
    | TtlAwareType
    | TimerType
    | PojoType
    | EnumType
    | KryoType
    | UnknownType
    | RowDataType
    | BinaryRowType
    | ExternalType
    | RawType
    | PythonType
    | SqlScalar
)


def serializer_length(flink_type: FlinkType) -> int | None:
    """Return ``getLength`` of the type's serializer, or None if values differ in length.

    Length marks after a key and a namespace are needed only if both differ in length.
    """
    if isinstance(flink_type, Scalar):
        return WIDTHS.get(flink_type.name)
    if isinstance(flink_type, EnumType):
        return 4
    if isinstance(flink_type, TupleType):
        widths = [serializer_length(field) for field in flink_type.fields]
        known = [width for width in widths if width is not None]
        return sum(known) if len(known) == len(widths) else None
    if isinstance(flink_type, NullableType) and flink_type.padding:
        inner = serializer_length(flink_type.value)
        return None if inner is None else 1 + inner
    return None


def java_type_name(flink_type: FlinkType) -> str:
    """Return a short form of the Java type, such as ``Tuple2<String, Long>``."""
    match flink_type:
        case Scalar(name):
            return name
        case TupleType(class_name, fields):
            return _generic_name(_short_name(class_name), *fields)
        case RowType(fields):
            return _generic_name("Row", *fields)
        case ListType(element, form):
            return _generic_name("List" if form == "ArrayList" else form, element)
        case MapType(key, value, map_form):
            return _generic_name(map_form, key, value)
        case ArrayType(_, element):
            return f"{java_type_name(element)}[]"
        case EitherType(left, right, either_form):
            return _generic_name(either_form, left, right)
        case NullableType(value):
            return _generic_name("Nullable", value)
        case TtlType(value):
            return _generic_name("Ttl", value)
        case RawType(value):
            return _generic_name("Raw", value)
        case PythonType(value):
            return _generic_name("Python", value)
        case TtlAwareType(value) | PresentType(value) | ExternalType(_, value):
            return java_type_name(value)
        case TimerType(key, namespace):
            return _generic_name("Timer", key, namespace)
        case PojoType(class_name, pojo_fields):
            inner = ", ".join(
                f"{pojo_field.name} {java_type_name(pojo_field.value)}"
                for pojo_field in pojo_fields
            )
            return f"{_short_name(class_name)}({inner})"
        case EnumType(class_name) | UnknownType(class_name):
            return _short_name(class_name)
        case KryoType(class_name):
            return f"Kryo<{class_name}>"
        case RowDataType(columns):
            return f"RowData<{', '.join(column.text for column in columns)}>"
        case BinaryRowType(columns):
            return f"BinaryRowData<{columns}>"
        case SqlScalar(name):
            return name


def _generic_name(name: str, *parts: FlinkType) -> str:
    return f"{name}<{', '.join(map(java_type_name, parts))}>"


def _short_name(class_name: str) -> str:
    return class_name.rpartition(".")[2]
