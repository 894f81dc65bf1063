"""Snapshots of serializers: the bytes with which a savepoint describes the types of its state.

``TypeSerializerSnapshotSerializationUtil`` writes i32 2 before each snapshot. The rest follows
``TypeSerializerSnapshot.writeVersionedSnapshot``: utf class, i32 version, and a body. The body of
a ``SimpleTypeSerializerSnapshot`` is empty. A ``CompositeTypeSerializerSnapshot`` has its own part
and the nested snapshots (``NestedSerializersSnapshotDelegate``).

The snapshot of an unsupported class has no recognizable end, so nothing after it can be parsed.
Such a class is an UnsupportedTypeError that names the class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink_savepoints.metadata.java_binary import Reader, i8, i32, i64, utf
from statestore.interop.flink_savepoints.metadata.java_objects import read_java_object
from statestore.interop.flink_savepoints.metadata.logical_types import read_logical_type
from statestore.interop.flink_savepoints.types.flink_types import (
    ArrayType,
    BinaryRowType,
    EitherType,
    EnumType,
    ExternalType,
    FlinkType,
    KryoType,
    ListType,
    MapType,
    NullableType,
    PojoField,
    PojoType,
    PresentType,
    PythonType,
    RawType,
    RowDataType,
    RowType,
    Scalar,
    SqlScalar,
    Subclass,
    TimerType,
    TtlAwareType,
    TtlType,
    TupleType,
    UnknownType,
)

__all__ = ["SerializerSnapshot", "read_snapshot", "snapshot_bytes"]

_PROXY = 2
_COMPOSITE, _NESTED = 911108, 1333245
_SIMPLE_VERSION, _COMPOSITE_VERSION = 3, 3
_OPTIONAL_MAP = 0x4F2C69A3D70
_LONGEST_PADDING = 1 << 16  # a null takes as many bytes as a value of a fixed length

_FLINK = "org.apache.flink."
_BASE = f"{_FLINK}api.common.typeutils.base."
_RUNTIME = f"{_FLINK}api.java.typeutils.runtime."
_TABLE = f"{_FLINK}table.runtime.typeutils."
_DATAVIEW = f"{_FLINK}table.dataview."
_WINDOWS = f"{_FLINK}streaming.api.windowing.windows."
_SQL_WINDOWS = f"{_FLINK}table.runtime.operators.window."


def _inner(package: str, serializer: str) -> str:
    return f"{package}{serializer}${serializer}Snapshot"


_SIMPLE = {
    **{
        name: _inner(_BASE, f"{serializer}Serializer")
        for name, serializer in {
            "Boolean": "Boolean", "Byte": "Byte", "Short": "Short", "Integer": "Int",
            "Long": "Long", "Float": "Float", "Double": "Double", "Character": "Char",
            "String": "String", "BigDecimal": "BigDec", "BigInteger": "BigInt", "Date": "Date",
            "SqlDate": "SqlDate", "SqlTime": "SqlTime", "SqlTimestamp": "SqlTimestamp",
            "LocalDate": "LocalDate", "LocalTime": "LocalTime", "Instant": "Instant",
            "LocalDateTime": "LocalDateTime", "Void": "Void",
        }.items()
    },
    **{
        f"{name}[]": _inner(f"{_BASE}array.", f"{serializer}ArraySerializer")
        for name, serializer in {
            "boolean": "BooleanPrimitive", "byte": "BytePrimitive", "short": "ShortPrimitive",
            "int": "IntPrimitive", "long": "LongPrimitive", "float": "FloatPrimitive",
            "double": "DoublePrimitive", "char": "CharPrimitive", "String": "String",
        }.items()
    },
    "VoidNamespace": _inner(f"{_FLINK}runtime.state.", "VoidNamespaceSerializer"),
    "TimeWindow": f"{_WINDOWS}TimeWindow$Serializer$TimeWindowSerializerSnapshot",
    "GlobalWindow": f"{_WINDOWS}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot",
    "SqlTimeWindow": f"{_SQL_WINDOWS}TimeWindow$Serializer$TimeWindowSerializerSnapshot",
    "CountWindow": f"{_SQL_WINDOWS}CountWindow$Serializer$CountWindowSerializerSnapshot",
    "SqlGlobalWindow": f"{_SQL_WINDOWS}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot",
    "StringData": _inner(_TABLE, "StringDataSerializer"),
    "Null": _inner(_DATAVIEW, "NullSerializer"),
    "Tuple0": f"{_RUNTIME}Tuple0SerializerSnapshot",
    "SortedLong": _inner(f"{_FLINK}table.runtime.operators.sink.", "SortedLongSerializer"),
    "ByteArrayWrapper": _inner(f"{_FLINK}streaming.api.utils.", "ByteArrayWrapperSerializer"),
}  # fmt: skip
_SIMPLE_NAMES = {class_name: name for name, class_name in _SIMPLE.items()}

_TUPLE = f"{_RUNTIME}TupleSerializerSnapshot"
_ROW = _inner(_RUNTIME, "RowSerializer")
_LISTS = {
    "List": f"{_BASE}ListSerializerSnapshot",
    "ArrayList": f"{_FLINK}runtime.state.ArrayListSerializerSnapshot",
    "Set": f"{_BASE}SetSerializerSnapshot",
    "LinkedList": _inner(_TABLE, "LinkedListSerializer"),
}
_MAPS = {
    "Map": f"{_BASE}MapSerializerSnapshot",
    "SortedMap": f"{_TABLE}SortedMapSerializerSnapshot",
    "NullAwareMap": f"{_DATAVIEW}NullAwareMapSerializerSnapshot",
}
_ARRAY = f"{_BASE}GenericArraySerializerSnapshot"
_EITHERS = {
    "Either": f"{_RUNTIME}JavaEitherSerializerSnapshot",
    "TaggedUnion": f"{_FLINK}streaming.api.datastream.CoGroupedStreams$UnionSerializerSnapshot",
}
_JOIN = f"{_FLINK}streaming.api.operators.co.IntervalJoinOperator$BufferEntry"
_JOINED = f"{_JOIN}SerializerSnapshot"
_NULLABLE = _inner(_RUNTIME, "NullableSerializer")
_TTL = f"{_FLINK}runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot"
_TTL_AWARE = f"{_FLINK}runtime.state.ttl.TtlAwareSerializerSnapshot"
_TIMER = f"{_FLINK}streaming.api.operators.TimerSerializerSnapshot"
_POJO = f"{_RUNTIME}PojoSerializerSnapshot"
_ENUM = _inner(_BASE, "EnumSerializer")
_KRYO = f"{_RUNTIME}kryo.KryoSerializerSnapshot"
_ROW_DATA = _inner(_TABLE, "RowDataSerializer")
_BINARY_ROW = _inner(_TABLE, "BinaryRowDataSerializer")
_EXTERNAL = _inner(_TABLE, "ExternalSerializer")
_RAW = _inner(_TABLE, "RawValueDataSerializer")
_SQL_SCALARS = {
    "DecimalData": f"{_TABLE}DecimalDataSerializer$DecimalSerializerSnapshot",
    "TimestampData": _inner(_TABLE, "TimestampDataSerializer"),
    "ArrayData": _inner(_TABLE, "ArrayDataSerializer"),
    "MapData": _inner(_TABLE, "MapDataSerializer"),
}


@dataclass(frozen=True, slots=True)
class SerializerSnapshot:
    """A type, and the snapshot bytes that describe it, starting with the class's name."""

    kind: FlinkType
    raw: bytes


def read_snapshot(reader: Reader) -> SerializerSnapshot:
    """Return the serializer snapshot that begins here, and advance past it.

    Raises:
        UnsupportedTypeError: for an unsupported class, or an unsupported version of a class.
        DamagedFileError: if the bytes do not follow Flink's format.
    """
    version = reader.i32()
    if version != _PROXY:
        raise reader.damaged(
            f"a serializer snapshot has version {version} instead of {_PROXY}, the only one "
            "that Flink 1.17 and later support",
            at=reader.at - 4,
        )
    begin = reader.at
    kind = _versioned(reader)
    return SerializerSnapshot(kind, bytes(reader.data[begin : reader.at]))


def snapshot_bytes(kind: FlinkType) -> bytes:
    """Return a type's serializer snapshot as Flink 2 writes it, starting with the class name."""
    match kind:
        case Scalar(name):
            return utf(_SIMPLE[name]) + i32(_SIMPLE_VERSION)
        case TupleType(class_name, fields) if class_name == _JOIN:
            return _composite(_JOINED, 1, b"", fields[1])
        case TupleType(class_name, fields):
            return _composite(_TUPLE, 2, utf(class_name), *fields)
        case RowType(fields, has_kind):
            return _composite(_ROW, 4, i8(has_kind), *fields)
        case ListType(element, "LinkedList"):
            return _composite(_LISTS["LinkedList"], 3, i8(True), element)
        case ListType(element, form):
            return _composite(_LISTS[form], 1, b"", element)
        case MapType(key, value, "SortedMap", comparator):
            return utf(_MAPS["SortedMap"]) + i32(3) + comparator + _nested(key, value)
        case MapType(key, value, map_form):
            return _composite(_MAPS[map_form], 1, b"", key, value)
        case ArrayType(class_name, element):
            return _composite(_ARRAY, 1, utf(class_name), element)
        case EitherType(left, right, either_form):
            return _composite(_EITHERS[either_form], 1, b"", left, right)
        case NullableType(value, padding):
            return _composite(_NULLABLE, 2, i32(padding), value)
        case TtlType(value):
            return _composite(_TTL, 2, b"", Scalar("Long"), value)
        case TtlAwareType(value, has_ttl):
            return utf(_TTL_AWARE) + i32(1) + i8(has_ttl) + snapshot_bytes(value)
        case TimerType(key, namespace):
            return _composite(_TIMER, 2, b"", key, namespace)
        case PojoType():
            return utf(_POJO) + i32(2) + _pojo_body(kind)
        case EnumType(class_name, constants):
            names = b"".join(map(utf, constants))
            return utf(_ENUM) + i32(3) + utf(class_name) + i32(len(constants)) + names
        case KryoType(class_name, body):
            return utf(_KRYO) + i32(2) + utf(class_name) + body
        case UnknownType(class_name, body):
            return utf(class_name) + body
        case PresentType() | PythonType():
            raise AssertionError("a nested value has no snapshot of its own")
        case RowDataType() | BinaryRowType() | SqlScalar() | ExternalType() | RawType():
            return _sql_bytes(kind)


def _sql_bytes(kind: RowDataType | BinaryRowType | SqlScalar | ExternalType | RawType) -> bytes:
    match kind:
        case RowDataType(columns, fields):
            java = b"".join(column.java for column in columns)
            return utf(_ROW_DATA) + i32(3) + i32(len(columns)) + java + _nested(*fields)
        case BinaryRowType(count):
            return utf(_BINARY_ROW) + i32(3) + i32(count)
        case SqlScalar(name, version, body):
            return utf(_SQL_SCALARS[name]) + i32(version) + body
        case ExternalType(outer, value):
            return _composite(_EXTERNAL, 1, outer, value)
        case RawType(value):
            return _composite(_RAW, 0, b"", value)


def _composite(class_name: str, version: int, outer: bytes, *parts: FlinkType) -> bytes:
    head = utf(class_name) + i32(_COMPOSITE_VERSION) + i32(_COMPOSITE) + i32(version)
    return head + outer + _nested(*parts)


def _nested(*parts: FlinkType) -> bytes:
    return i32(_NESTED) + i32(1) + i32(len(parts)) + b"".join(map(snapshot_bytes, parts))


def _pojo_body(kind: PojoType) -> bytes:
    fields = [
        (field.name, utf(field.declared_by) + utf(field.name), snapshot_bytes(field.value))
        for field in kind.fields
    ]
    parts = [utf(kind.class_name), _optional_map(fields)]
    for classes in (kind.registered, kind.others):
        entries = [
            (
                one.class_name,
                b"",
                None if one.value is None else snapshot_bytes(one.value),
            )
            for one in classes
        ]
        parts.append(_optional_map(entries))
    return b"".join(parts)


def _optional_map(entries: Sequence[tuple[str, bytes, bytes | None]]) -> bytes:
    """Encode a map like ``LinkedOptionalMapSerializer``."""
    parts = [i64(_OPTIONAL_MAP), i32(len(entries))]
    for name, key, value in entries:
        parts += [utf(name), i8(1), i32(len(key)), key]
        parts += [i8(0)] if value is None else [i8(1), i32(len(value)), value]
    return b"".join(parts)


def _versioned(reader: Reader) -> FlinkType:
    with reader.nested("serializer snapshots"):
        return _one_versioned(reader)


def _one_versioned(reader: Reader) -> FlinkType:
    begin = reader.at
    class_name, version = reader.utf(), reader.i32()
    if name := _SIMPLE_NAMES.get(class_name):
        return Scalar(name)
    read = _READERS.get(class_name)
    if read is None and _is_plain_composite(reader, version):
        middle = reader.at
        _outer(reader, version)
        _parts(reader)
        return UnknownType(class_name, i32(version) + bytes(reader.data[middle : reader.at]))
    if read is None:
        raise UnsupportedTypeError(
            f"{reader.name} has state with the unknown serializer {class_name!r} at byte "
            f"{reader.base + begin}: the length of its snapshot is unknown, so nothing of "
            "this operator can be read"
        )
    return read(reader, version)


def _is_plain_composite(reader: Reader, version: int) -> bool:
    """Return whether an unsupported class has only nested snapshots and no part of its own."""
    begin = reader.at
    if version < _COMPOSITE_VERSION or reader.left < 12:
        return False
    found = reader.i32(), reader.i32(), reader.i32()
    reader.at = begin
    return (found[0], found[2]) == (_COMPOSITE, _NESTED)


def _parts(reader: Reader, count: int | None = None) -> tuple[FlinkType, ...]:
    """Read nested snapshots (``NestedSerializersSnapshotDelegate``)."""
    reader.expect(_NESTED, "the magic number of nested snapshots")
    reader.expect(1, "the version of nested snapshots")
    found = reader.count(6, "nested snapshots")
    if count is not None and found != count:
        raise reader.damaged(f"found {found} nested snapshots, not {count}", at=reader.at - 4)
    return tuple(_versioned(reader) for _ in range(found))


def _part(reader: Reader) -> FlinkType:
    return _parts(reader, 1)[0]


def _pair(reader: Reader) -> tuple[FlinkType, FlinkType]:
    first, second = _parts(reader, 2)
    return first, second


def _outer(reader: Reader, version: int) -> int:
    """Read the header of ``CompositeTypeSerializerSnapshot``; return the version of the class."""
    if version < 3:  # Flink before 1.8 wrote no header
        return version
    reader.expect(_COMPOSITE, "the magic number of a composite snapshot")
    return reader.i32()


def _tuple(reader: Reader, version: int) -> FlinkType:
    _outer(reader, version)
    return TupleType(reader.utf(), _fields(reader))


def _fields(reader: Reader) -> tuple[FlinkType, ...]:
    """Read the fields of a type whose values consist of nothing but its fields.

    Without any field, an unlimited number of values would take no bytes. A ``Tuple0`` is not
    affected: its own serializer writes a byte.
    """
    begin, found = reader.at, _parts(reader)
    if not found:
        raise reader.damaged("a tuple or row has no fields", at=begin)
    return found


def _row(reader: Reader, version: int) -> FlinkType:
    outer = _outer(reader, version)
    has_kind = reader.bool() if outer >= 4 else outer == 3
    return RowType(_parts(reader) if has_kind else _fields(reader), has_kind)


def _list(reader: Reader, version: int) -> FlinkType:
    _outer(reader, version)
    return ListType(_part(reader))


def _array_list(reader: Reader, version: int) -> FlinkType:
    _outer(reader, version)
    return ListType(_part(reader), "ArrayList")


def _set(reader: Reader, version: int) -> FlinkType:
    _outer(reader, version)
    return ListType(_part(reader), "Set")


def _linked_list(reader: Reader, version: int) -> FlinkType:
    outer = _outer(reader, version)
    has_mask = reader.bool() if outer >= 3 else outer == 2
    return ListType(_part(reader), "LinkedList" if has_mask else "List")


def _map(reader: Reader, version: int) -> FlinkType:
    _outer(reader, version)
    return MapType(*_pair(reader))


def _sorted_map(reader: Reader, version: int) -> FlinkType:
    begin = reader.at
    read_java_object(reader)
    comparator = bytes(reader.data[begin : reader.at])
    return MapType(*_pair(reader), "SortedMap", comparator)


def _null_aware_map(reader: Reader, version: int) -> FlinkType:
    _outer(reader, version)
    return MapType(*_pair(reader), "NullAwareMap")


def _view(reader: Reader, version: int) -> FlinkType:
    """Read a ``ListView`` or ``MapView``, which has the layout of the list or map in it."""
    _outer(reader, version)
    return _part(reader)


def _union(reader: Reader, version: int) -> FlinkType:
    _outer(reader, version)
    return EitherType(*_pair(reader), "TaggedUnion")


def _join_entry(reader: Reader, version: int) -> FlinkType:
    """Read ``IntervalJoinOperator.BufferEntry``: a flag that it was joined, and the element."""
    _outer(reader, version)
    return TupleType(_JOIN, (Scalar("Boolean"), _part(reader)))


def _array(reader: Reader, version: int) -> FlinkType:
    _outer(reader, version)
    return ArrayType(reader.utf(), _part(reader))


def _either(reader: Reader, version: int) -> FlinkType:
    _outer(reader, version)
    return EitherType(*_pair(reader))


def _nullable(reader: Reader, version: int) -> FlinkType:
    _outer(reader, version)
    begin = reader.at
    padding = reader.i32()
    if not 0 <= padding <= _LONGEST_PADDING:
        raise reader.damaged(f"a null is followed by {padding} bytes", at=begin)
    return NullableType(_part(reader), padding)


def _ttl(reader: Reader, version: int) -> FlinkType:
    _outer(reader, version)
    begin = reader.at
    stamp, value = _parts(reader, 2)
    if stamp != Scalar("Long"):
        raise reader.damaged("the last-access time is not a Long", at=begin)
    return TtlType(value)


def _ttl_aware(reader: Reader, version: int) -> FlinkType:
    has_ttl = reader.bool()
    return TtlAwareType(_versioned(reader), has_ttl)


def _timer(reader: Reader, version: int) -> FlinkType:
    _outer(reader, version)
    return TimerType(*_pair(reader))


def _enum(reader: Reader, version: int) -> FlinkType:
    class_name = reader.utf()
    constants = tuple(reader.utf() for _ in range(reader.count(2, "constants")))
    return EnumType(class_name, constants)


def _kryo(reader: Reader, version: int) -> FlinkType:
    """Skip three maps, whose entries have lengths (``KryoSerializerSnapshotData``)."""
    class_name = reader.utf()
    begin = reader.at
    for _ in range(3):
        for _ in _entries(reader):
            pass
    return KryoType(class_name, bytes(reader.data[begin : reader.at]))


def _entries(reader: Reader) -> list[tuple[str, Reader | None, Reader | None]]:
    """Read a map of ``LinkedOptionalMapSerializer``: names, with framed keys and values."""
    begin = reader.at
    if reader.i64() != _OPTIONAL_MAP:
        raise reader.damaged("the magic number of a serializer map is wrong", at=begin)
    count = reader.count(4, "serializers")
    return [(reader.utf(), _frame(reader), _frame(reader)) for _ in range(count)]


def _frame(reader: Reader) -> Reader | None:
    if not reader.bool():
        return None
    return reader.part(reader.i32())


def _pojo(reader: Reader, version: int) -> FlinkType:
    """Read ``PojoSerializerSnapshotData``: the fields, and the two lists of subclasses."""
    class_name = reader.utf()
    fields = []
    for name, key, value in _entries(reader):
        if key is None or value is None:
            raise UnsupportedTypeError(
                f"{reader.name} has the POJO {class_name}, whose field {name!r} its job did "
                "not find, so its values cannot be read"
            )
        declared_by = key.utf()
        key.utf()
        fields.append(PojoField(name, declared_by, _framed(value)))
    return PojoType(class_name, tuple(fields), _classes(reader), _classes(reader))


def _classes(reader: Reader) -> tuple[Subclass, ...]:
    return tuple(
        Subclass(name, None if value is None else _framed(value))
        for name, _, value in _entries(reader)
    )


def _framed(reader: Reader) -> FlinkType:
    kind = _versioned(reader)
    reader.end("a framed snapshot")
    return kind


def _row_data(reader: Reader, version: int) -> FlinkType:
    columns = tuple(read_logical_type(reader) for _ in range(reader.count(4, "columns")))
    return RowDataType(columns, _parts(reader, len(columns)))


def _binary_row(reader: Reader, version: int) -> FlinkType:
    return BinaryRowType(reader.i32())


def _external(reader: Reader, version: int) -> FlinkType:
    """Read ``ExternalSerializer``: a Java ``DataType``, and a flag for internal input."""
    _outer(reader, version)
    begin = reader.at
    read_java_object(reader)
    reader.bool()
    return ExternalType(bytes(reader.data[begin : reader.at]), _part(reader))


def _raw_value(reader: Reader, version: int) -> FlinkType:
    _outer(reader, version)
    return RawType(_part(reader))


def _sql_scalar(name: str, numbers: int, objects: int) -> Callable[[Reader, int], FlinkType]:
    def read(reader: Reader, version: int) -> FlinkType:
        begin = reader.at
        reader.take(4 * numbers)
        for _ in range(objects):
            read_java_object(reader)
        return SqlScalar(name, version, bytes(reader.data[begin : reader.at]))

    return read


_READERS: dict[str, Callable[[Reader, int], FlinkType]] = {
    _TUPLE: _tuple,
    _ROW: _row,
    _LISTS["List"]: _list,
    _LISTS["ArrayList"]: _array_list,
    _LISTS["Set"]: _set,
    _LISTS["LinkedList"]: _linked_list,
    _MAPS["Map"]: _map,
    _MAPS["SortedMap"]: _sorted_map,
    _MAPS["NullAwareMap"]: _null_aware_map,
    f"{_DATAVIEW}ListViewSerializerSnapshot": _view,
    f"{_DATAVIEW}MapViewSerializerSnapshot": _view,
    _EITHERS["TaggedUnion"]: _union,
    _JOINED: _join_entry,
    _ARRAY: _array,
    _EITHERS["Either"]: _either,
    _NULLABLE: _nullable,
    _TTL: _ttl,
    _TTL_AWARE: _ttl_aware,
    _TIMER: _timer,
    _POJO: _pojo,
    _ENUM: _enum,
    _KRYO: _kryo,
    _ROW_DATA: _row_data,
    _BINARY_ROW: _binary_row,
    _EXTERNAL: _external,
    _RAW: _raw_value,
    _SQL_SCALARS["DecimalData"]: _sql_scalar("DecimalData", 2, 0),
    _SQL_SCALARS["TimestampData"]: _sql_scalar("TimestampData", 1, 0),
    _SQL_SCALARS["ArrayData"]: _sql_scalar("ArrayData", 0, 2),
    _SQL_SCALARS["MapData"]: _sql_scalar("MapData", 0, 4),
}
