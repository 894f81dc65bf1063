"""The types of Flink's serializers: a closed set of values, and what can be said of each.

A type is what a snapshot of its serializer says (:mod:`statestore.interop.flink.serializers`), and
decides how the bytes of a value lie (:mod:`statestore.interop.flink.values`).
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
    "name_of",
    "width_of",
]

WIDTHS = {
    "Boolean": 1, "Byte": 1, "Short": 2, "Integer": 4, "Long": 8, "Float": 4, "Double": 8,
    "Character": 2, "Date": 8, "SqlDate": 8, "SqlTime": 8, "SqlTimestamp": 12, "LocalDate": 6,
    "LocalTime": 7, "LocalDateTime": 13, "Instant": 12, "Void": 1, "Null": 1, "VoidNamespace": 0,
    "TimeWindow": 16, "SqlTimeWindow": 16, "CountWindow": 8, "GlobalWindow": 1,
    "SqlGlobalWindow": 1, "PythonDate": 4, "PythonTime": 4, "PythonTimestamp": 8,
    "SortedLong": 8,
}  # fmt: skip
"""What ``getLength`` of a serializer says, of those whose values all have as many bytes.

A ``VoidNamespace`` says 0, and writes one byte.
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
    """A ``Row``; ``has_kind`` says that its values begin with their ``RowKind`` among the nulls."""

    fields: tuple[FlinkType, ...]
    has_kind: bool = True


@dataclass(frozen=True, slots=True)
class ListType:
    """A ``List`` or ``Set``; an ``ArrayList`` is how the hashmap backend keeps a list state.

    The ``LinkedList`` of Flink SQL says with a bit of each element whether it is null.
    """

    element: FlinkType
    form: Literal["List", "ArrayList", "Set", "LinkedList"] = "List"


@dataclass(frozen=True, slots=True)
class MapType:
    """A ``Map``; of the ``SortedMap`` of Flink SQL ``outer`` is the comparator, as Java has it.

    The ``NullAwareMap`` of Flink SQL can have a null key.
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
    """``Either``: one of two; ``TaggedUnion`` is that of two streams that are joined by windows."""

    left: FlinkType
    right: FlinkType
    form: Literal["Either", "TaggedUnion"] = "Either"


@dataclass(frozen=True, slots=True)
class NullableType:
    """What may be null; a null is followed by ``padding`` bytes."""

    value: FlinkType
    padding: int = 0


@dataclass(frozen=True, slots=True)
class PresentType:
    """An element of an array of objects, behind a flag that says it is there."""

    value: FlinkType


@dataclass(frozen=True, slots=True)
class TtlType:
    """A value and when it was last accessed, in milliseconds since 1970."""

    value: FlinkType


@dataclass(frozen=True, slots=True)
class TtlAwareType:
    """The element of a list or the value of a map that may have a time to live."""

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
    """A subclass of a POJO; the type is None where the job had no serializer of it."""

    class_name: str
    value: FlinkType | None


@dataclass(frozen=True, slots=True)
class PojoType:
    """A POJO: its fields, the subclasses that the job registered, and those it met."""

    class_name: str
    fields: tuple[PojoField, ...]
    registered: tuple[Subclass, ...] = ()
    others: tuple[Subclass, ...] = ()


@dataclass(frozen=True, slots=True)
class EnumType:
    """An enum; a value is the place of its constant."""

    class_name: str
    constants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KryoType:
    """A class that Kryo serializes. ``body`` is its snapshot; its values are bytes alone."""

    class_name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class UnknownType:
    """A class that is not known, whose snapshot is known to end; its values are bytes alone."""

    class_name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class LogicalType:
    """A type of Flink SQL, in SQL's words; ``java`` is what Java serialized."""

    text: str
    java: bytes
    root: str
    precision: int = 0
    scale: int = 0
    children: tuple[LogicalType, ...] = ()


@dataclass(frozen=True, slots=True)
class RowDataType:
    """A row of Flink SQL; its columns have no names.

    A key is written by the planner's projection, in which a null keeps the bytes of a long value.
    """

    columns: tuple[LogicalType, ...]
    fields: tuple[FlinkType, ...]
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class BinaryRowType:
    """A row of Flink SQL of which only the number of columns is known."""

    columns: int


@dataclass(frozen=True, slots=True)
class ExternalType:
    """A value of a function's, kept as Flink SQL's own data; ``outer`` is what Java serialized."""

    outer: bytes
    value: FlinkType


@dataclass(frozen=True, slots=True)
class RawType:
    """A value of another serializer behind its length, as Flink SQL keeps what it does not know."""

    value: FlinkType


@dataclass(frozen=True, slots=True)
class PythonType:
    """What PyFlink wrote as bytes, of the type that its user declares: one value, or several."""

    value: FlinkType
    many: bool = False


@dataclass(frozen=True, slots=True)
class SqlScalar:
    """A type of Flink SQL's data with a body of its own, which is kept: decimals, timestamps,
    arrays, maps.
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


def width_of(kind: FlinkType) -> int | None:
    """Return ``getLength`` of the type's serializer, None where values differ in length.

    A key and a namespace have length marks behind them only where both differ.
    """
    if isinstance(kind, Scalar):
        return WIDTHS.get(kind.name)
    if isinstance(kind, EnumType):
        return 4
    if isinstance(kind, TupleType):
        widths = [width_of(field) for field in kind.fields]
        known = [width for width in widths if width is not None]
        return sum(known) if len(known) == len(widths) else None
    if isinstance(kind, NullableType) and kind.padding:
        inner = width_of(kind.value)
        return None if inner is None else 1 + inner
    return None


def name_of(kind: FlinkType) -> str:
    """Return the type as Java writes it, shortly: ``Tuple2<String, Long>``."""
    match kind:
        case Scalar(name):
            return name
        case TupleType(class_name, fields):
            return _of(_short(class_name), *fields)
        case RowType(fields):
            return _of("Row", *fields)
        case ListType(element, form):
            return _of("List" if form == "ArrayList" else form, element)
        case MapType(key, value, map_form):
            return _of(map_form, key, value)
        case ArrayType(_, element):
            return f"{name_of(element)}[]"
        case EitherType(left, right, either_form):
            return _of(either_form, left, right)
        case NullableType(value):
            return _of("Nullable", value)
        case TtlType(value):
            return _of("Ttl", value)
        case RawType(value):
            return _of("Raw", value)
        case PythonType(value):
            return _of("Python", value)
        case TtlAwareType(value) | PresentType(value) | ExternalType(_, value):
            return name_of(value)
        case TimerType(key, namespace):
            return _of("Timer", key, namespace)
        case PojoType(class_name, pojo_fields):
            inner = ", ".join(f"{one.name} {name_of(one.value)}" for one in pojo_fields)
            return f"{_short(class_name)}({inner})"
        case EnumType(class_name) | UnknownType(class_name):
            return _short(class_name)
        case KryoType(class_name):
            return f"Kryo<{class_name}>"
        case RowDataType(columns):
            return f"RowData<{', '.join(column.text for column in columns)}>"
        case BinaryRowType(columns):
            return f"BinaryRowData<{columns}>"
        case SqlScalar(name):
            return name


def _of(name: str, *parts: FlinkType) -> str:
    return f"{name}<{', '.join(map(name_of, parts))}>"


def _short(class_name: str) -> str:
    return class_name.rpartition(".")[2]
