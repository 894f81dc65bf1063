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
from statestore.interop.flink_savepoints.metadata.old_versions import unsupported_version
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

__all__ = ["SerializerSnapshot", "read_bare_snapshot", "read_snapshot", "snapshot_bytes"]

_PROXY = 2
_COMPOSITE, _NESTED = 911108, 1333245
_SIMPLE_VERSION, _COMPOSITE_VERSION = 3, 3
_SIMPLE_VERSION_OF_1_7 = 2
_OLD_SNAPSHOT = "ConfigSnapshot"  # the end of the class names of ``TypeSerializerConfigSnapshot``
_SIMPLE_WRITTEN_BY = {1: "1.6 or before"}
_OPTIONAL_MAP = 0x4F2C69A3D70
_LONGEST_PADDING = 1 << 16  # a null takes as many bytes as a value of a fixed length

_FLINK = "org.apache.flink."
_BASE = f"{_FLINK}api.common.typeutils.base."
_RUNTIME = f"{_FLINK}api.java.typeutils.runtime."
_TABLE = f"{_FLINK}table.runtime.typeutils."
_DATAVIEW = f"{_FLINK}table.dataview."
_WINDOWS = f"{_FLINK}streaming.api.windowing.windows."
_SQL_WINDOWS = f"{_FLINK}table.runtime.operators.window."


def _inner_class(package: str, serializer: str) -> str:
    return f"{package}{serializer}${serializer}Snapshot"


_SIMPLE = {
    **{
        name: _inner_class(_BASE, f"{serializer}Serializer")
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
        f"{name}[]": _inner_class(f"{_BASE}array.", f"{serializer}ArraySerializer")
        for name, serializer in {
            "boolean": "BooleanPrimitive", "byte": "BytePrimitive", "short": "ShortPrimitive",
            "int": "IntPrimitive", "long": "LongPrimitive", "float": "FloatPrimitive",
            "double": "DoublePrimitive", "char": "CharPrimitive", "String": "String",
        }.items()
    },
    "VoidNamespace": _inner_class(f"{_FLINK}runtime.state.", "VoidNamespaceSerializer"),
    "TimeWindow": f"{_WINDOWS}TimeWindow$Serializer$TimeWindowSerializerSnapshot",
    "GlobalWindow": f"{_WINDOWS}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot",
    "SqlTimeWindow": f"{_SQL_WINDOWS}TimeWindow$Serializer$TimeWindowSerializerSnapshot",
    "CountWindow": f"{_SQL_WINDOWS}CountWindow$Serializer$CountWindowSerializerSnapshot",
    "SqlGlobalWindow": f"{_SQL_WINDOWS}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot",
    "StringData": _inner_class(_TABLE, "StringDataSerializer"),
    "Null": _inner_class(_DATAVIEW, "NullSerializer"),
    "Tuple0": f"{_RUNTIME}Tuple0SerializerSnapshot",
    "SortedLong": _inner_class(f"{_FLINK}table.runtime.operators.sink.", "SortedLongSerializer"),
    "ByteArrayWrapper": _inner_class(f"{_FLINK}streaming.api.utils.", "ByteArrayWrapperSerializer"),
}  # fmt: skip
_SIMPLE_NAMES = {class_name: name for name, class_name in _SIMPLE.items()}

_TUPLE = f"{_RUNTIME}TupleSerializerSnapshot"
_ROW = _inner_class(_RUNTIME, "RowSerializer")
_LISTS = {
    "List": f"{_BASE}ListSerializerSnapshot",
    "ArrayList": f"{_FLINK}runtime.state.ArrayListSerializerSnapshot",
    "Set": f"{_BASE}SetSerializerSnapshot",
    "LinkedList": _inner_class(_TABLE, "LinkedListSerializer"),
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
_NULLABLE = _inner_class(_RUNTIME, "NullableSerializer")
_TTL = f"{_FLINK}runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot"
_TTL_AWARE = f"{_FLINK}runtime.state.ttl.TtlAwareSerializerSnapshot"
_TIMER = f"{_FLINK}streaming.api.operators.TimerSerializerSnapshot"
_POJO = f"{_RUNTIME}PojoSerializerSnapshot"
_ENUM = _inner_class(_BASE, "EnumSerializer")
_KRYO = f"{_RUNTIME}kryo.KryoSerializerSnapshot"
_ROW_DATA = _inner_class(_TABLE, "RowDataSerializer")
_BINARY_ROW = _inner_class(_TABLE, "BinaryRowDataSerializer")
_EXTERNAL = _inner_class(_TABLE, "ExternalSerializer")
_RAW = _inner_class(_TABLE, "RawValueDataSerializer")
_SQL_SCALARS = {
    "DecimalData": f"{_TABLE}DecimalDataSerializer$DecimalSerializerSnapshot",
    "TimestampData": _inner_class(_TABLE, "TimestampDataSerializer"),
    "ArrayData": _inner_class(_TABLE, "ArrayDataSerializer"),
    "MapData": _inner_class(_TABLE, "MapDataSerializer"),
}


@dataclass(frozen=True, slots=True)
class SerializerSnapshot:
    """A type, and the snapshot bytes that describe it, starting with the class's name."""

    flink_type: FlinkType
    raw: bytes


def read_snapshot(reader: Reader) -> SerializerSnapshot:
    """Return the serializer snapshot that begins here, and advance past it.

    Raises:
        UnsupportedTypeError: for an unsupported class, or an unsupported version of a class.
        DamagedFileError: if the bytes do not follow Flink's format.
    """
    reader.expect(_PROXY, "the version of a serializer snapshot")
    begin = reader.position
    flink_type = _read_nested_snapshot(reader)
    return SerializerSnapshot(flink_type, bytes(reader.data[begin : reader.position]))


def read_bare_snapshot(reader: Reader) -> FlinkType:
    """Return the type of a snapshot without the number before it, and advance past it.

    Raises the errors of :func:`read_snapshot`.
    """
    return _read_nested_snapshot(reader)


def snapshot_bytes(flink_type: FlinkType) -> bytes:
    """Return a type's serializer snapshot as Flink 2 writes it, starting with the class name."""
    match flink_type:
        case Scalar(name):
            return utf(_SIMPLE[name]) + i32(_SIMPLE_VERSION)
        case TupleType(class_name, fields) if class_name == _JOIN:
            return _encode_composite(_JOINED, 1, b"", fields[1])
        case TupleType(class_name, fields):
            return _encode_composite(_TUPLE, 2, utf(class_name), *fields)
        case RowType(fields, has_kind):
            return _encode_composite(_ROW, 4, i8(has_kind), *fields)
        case ListType(element, "LinkedList"):
            return _encode_composite(_LISTS["LinkedList"], 3, i8(True), element)
        case ListType(element, form):
            return _encode_composite(_LISTS[form], 1, b"", element)
        case MapType(key, value, "SortedMap", comparator):
            return utf(_MAPS["SortedMap"]) + i32(3) + comparator + _encode_nested(key, value)
        case MapType(key, value, map_form):
            return _encode_composite(_MAPS[map_form], 1, b"", key, value)
        case ArrayType(class_name, element):
            return _encode_composite(_ARRAY, 1, utf(class_name), element)
        case EitherType(left, right, either_form):
            return _encode_composite(_EITHERS[either_form], 1, b"", left, right)
        case NullableType(value, padding):
            return _encode_composite(_NULLABLE, 2, i32(padding), value)
        case TtlType(value):
            return _encode_composite(_TTL, 2, b"", Scalar("Long"), value)
        case TtlAwareType(value, has_ttl):
            return utf(_TTL_AWARE) + i32(1) + i8(has_ttl) + snapshot_bytes(value)
        case TimerType(key, namespace):
            return _encode_composite(_TIMER, 2, b"", key, namespace)
        case PojoType():
            return utf(_POJO) + i32(2) + _encode_pojo(flink_type)
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
            return _encode_sql(flink_type)
    raise AssertionError(flink_type)


def _encode_sql(
    flink_type: RowDataType | BinaryRowType | SqlScalar | ExternalType | RawType,
) -> bytes:
    match flink_type:
        case RowDataType(columns, fields):
            java = b"".join(column.java for column in columns)
            return utf(_ROW_DATA) + i32(3) + i32(len(columns)) + java + _encode_nested(*fields)
        case BinaryRowType(count):
            return utf(_BINARY_ROW) + i32(3) + i32(count)
        case SqlScalar(name, version, body):
            return utf(_SQL_SCALARS[name]) + i32(version) + body
        case ExternalType(outer, value):
            return _encode_composite(_EXTERNAL, 1, outer, value)
        case RawType(value):
            return _encode_composite(_RAW, 0, b"", value)


def _encode_composite(class_name: str, version: int, outer: bytes, *parts: FlinkType) -> bytes:
    head = utf(class_name) + i32(_COMPOSITE_VERSION) + i32(_COMPOSITE) + i32(version)
    return head + outer + _encode_nested(*parts)


def _encode_nested(*parts: FlinkType) -> bytes:
    return i32(_NESTED) + i32(1) + i32(len(parts)) + b"".join(map(snapshot_bytes, parts))


def _encode_pojo(pojo: PojoType) -> bytes:
    fields = [
        (field.name, utf(field.declared_by) + utf(field.name), snapshot_bytes(field.value))
        for field in pojo.fields
    ]
    parts = [utf(pojo.class_name), _encode_optional_map(fields)]
    for classes in (pojo.registered, pojo.others):
        entries = [
            (
                subclass.class_name,
                b"",
                None if subclass.value is None else snapshot_bytes(subclass.value),
            )
            for subclass in classes
        ]
        parts.append(_encode_optional_map(entries))
    return b"".join(parts)


def _encode_optional_map(entries: Sequence[tuple[str, bytes, bytes | None]]) -> bytes:
    """Encode a map like ``LinkedOptionalMapSerializer``."""
    parts = [i64(_OPTIONAL_MAP), i32(len(entries))]
    for name, key, value in entries:
        parts += [utf(name), i8(1), i32(len(key)), key]
        parts += [i8(0)] if value is None else [i8(1), i32(len(value)), value]
    return b"".join(parts)


def _read_nested_snapshot(reader: Reader) -> FlinkType:
    with reader.nested("serializer snapshots"):
        return _read_versioned(reader)


def _read_versioned(reader: Reader) -> FlinkType:
    begin = reader.position
    class_name, version = reader.utf(), reader.i32()
    if name := _SIMPLE_NAMES.get(class_name):
        _read_simple(reader, class_name, version)
        return Scalar(name)
    read = _READERS.get(class_name)
    if read is None and _is_plain_composite(reader, version):
        middle = reader.position
        _read_outer_version(reader, version)
        _read_parts(reader)
        return UnknownType(class_name, i32(version) + bytes(reader.data[middle : reader.position]))
    if read is None and class_name.endswith(_OLD_SNAPSHOT):
        what = f"a serializer snapshot {class_name.rpartition('.')[2]}"
        raise unsupported_version(reader.name, what, version, {version: "1.7 or before"})
    if read is None:
        raise UnsupportedTypeError(
            f"{reader.name} has state with the unknown serializer {class_name!r} at byte "
            f"{reader.base + begin}: the length of its snapshot is unknown, so nothing of "
            "this operator can be read"
        )
    return read(reader, version)


def _read_simple(reader: Reader, class_name: str, version: int) -> None:
    """Read what follows the version of a ``SimpleTypeSerializerSnapshot``.

    Flink 1.7 wrote version 2, with the serializer's class name; later ones write nothing.
    """
    if version == _SIMPLE_VERSION_OF_1_7:
        reader.utf()
    elif version != _SIMPLE_VERSION:
        what = f"a serializer snapshot {class_name.rpartition('.')[2]}"
        raise unsupported_version(reader.name, what, version, _SIMPLE_WRITTEN_BY)


def _is_plain_composite(reader: Reader, version: int) -> bool:
    """Return whether an unsupported class has only nested snapshots and no part of its own."""
    begin = reader.position
    if version < _COMPOSITE_VERSION or reader.remaining < 12:
        return False
    header = reader.i32(), reader.i32(), reader.i32()
    reader.position = begin
    return (header[0], header[2]) == (_COMPOSITE, _NESTED)


def _read_parts(reader: Reader, count: int | None = None) -> tuple[FlinkType, ...]:
    """Read nested snapshots (``NestedSerializersSnapshotDelegate``)."""
    reader.expect(_NESTED, "the magic number of nested snapshots")
    reader.expect(1, "the version of nested snapshots")
    actual = reader.count(6, "nested snapshots")
    if count is not None and actual != count:
        raise reader.error(
            f"found {actual} nested snapshots, not {count}", position=reader.position - 4
        )
    return tuple(_read_nested_snapshot(reader) for _ in range(actual))


def _read_part(reader: Reader) -> FlinkType:
    return _read_parts(reader, 1)[0]


def _read_pair(reader: Reader) -> tuple[FlinkType, FlinkType]:
    first, second = _read_parts(reader, 2)
    return first, second


def _read_outer_version(reader: Reader, version: int) -> int:
    """Read the header of ``CompositeTypeSerializerSnapshot``; return the version of the class."""
    if version < 3:  # Flink before 1.8 wrote no header
        return version
    reader.expect(_COMPOSITE, "the magic number of a composite snapshot")
    return reader.i32()


def _read_tuple(reader: Reader, version: int) -> FlinkType:
    _read_outer_version(reader, version)
    return TupleType(reader.utf(), _read_fields(reader))


def _read_fields(reader: Reader) -> tuple[FlinkType, ...]:
    """Read the fields of a type whose values consist of nothing but its fields.

    Without any field, an unlimited number of values would take no bytes. A ``Tuple0`` is not
    affected: its own serializer writes a byte.
    """
    begin, fields = reader.position, _read_parts(reader)
    if not fields:
        raise reader.error("a tuple or row has no fields", position=begin)
    return fields


def _read_row(reader: Reader, version: int) -> FlinkType:
    outer = _read_outer_version(reader, version)
    has_kind = reader.bool() if outer >= 4 else outer == 3
    return RowType(_read_parts(reader) if has_kind else _read_fields(reader), has_kind)


def _read_list(reader: Reader, version: int) -> FlinkType:
    _read_outer_version(reader, version)
    return ListType(_read_part(reader))


def _read_array_list(reader: Reader, version: int) -> FlinkType:
    _read_outer_version(reader, version)
    return ListType(_read_part(reader), "ArrayList")


def _read_set(reader: Reader, version: int) -> FlinkType:
    _read_outer_version(reader, version)
    return ListType(_read_part(reader), "Set")


def _read_linked_list(reader: Reader, version: int) -> FlinkType:
    outer = _read_outer_version(reader, version)
    has_mask = reader.bool() if outer >= 3 else outer == 2
    return ListType(_read_part(reader), "LinkedList" if has_mask else "List")


def _read_map(reader: Reader, version: int) -> FlinkType:
    _read_outer_version(reader, version)
    return MapType(*_read_pair(reader))


def _read_sorted_map(reader: Reader, version: int) -> FlinkType:
    begin = reader.position
    read_java_object(reader)
    comparator = bytes(reader.data[begin : reader.position])
    return MapType(*_read_pair(reader), "SortedMap", comparator)


def _read_null_aware_map(reader: Reader, version: int) -> FlinkType:
    _read_outer_version(reader, version)
    return MapType(*_read_pair(reader), "NullAwareMap")


def _read_view(reader: Reader, version: int) -> FlinkType:
    """Read a ``ListView`` or ``MapView``, which has the layout of the list or map in it."""
    _read_outer_version(reader, version)
    return _read_part(reader)


def _read_union(reader: Reader, version: int) -> FlinkType:
    _read_outer_version(reader, version)
    return EitherType(*_read_pair(reader), "TaggedUnion")


def _read_join_entry(reader: Reader, version: int) -> FlinkType:
    """Read ``IntervalJoinOperator.BufferEntry``: a flag that it was joined, and the element."""
    _read_outer_version(reader, version)
    return TupleType(_JOIN, (Scalar("Boolean"), _read_part(reader)))


def _read_array(reader: Reader, version: int) -> FlinkType:
    _read_outer_version(reader, version)
    return ArrayType(reader.utf(), _read_part(reader))


def _read_either(reader: Reader, version: int) -> FlinkType:
    _read_outer_version(reader, version)
    return EitherType(*_read_pair(reader))


def _read_nullable(reader: Reader, version: int) -> FlinkType:
    _read_outer_version(reader, version)
    begin = reader.position
    padding = reader.i32()
    if not 0 <= padding <= _LONGEST_PADDING:
        raise reader.error(f"a null is followed by {padding} bytes", position=begin)
    return NullableType(_read_part(reader), padding)


def _read_ttl(reader: Reader, version: int) -> FlinkType:
    _read_outer_version(reader, version)
    begin = reader.position
    stamp, value = _read_parts(reader, 2)
    if stamp != Scalar("Long"):
        raise reader.error("the last-access time is not a Long", position=begin)
    return TtlType(value)


def _read_ttl_aware(reader: Reader, version: int) -> FlinkType:
    has_ttl = reader.bool()
    return TtlAwareType(_read_nested_snapshot(reader), has_ttl)


def _read_timer(reader: Reader, version: int) -> FlinkType:
    _read_outer_version(reader, version)
    return TimerType(*_read_pair(reader))


def _read_enum(reader: Reader, version: int) -> FlinkType:
    class_name = reader.utf()
    constants = tuple(reader.utf() for _ in range(reader.count(2, "constants")))
    return EnumType(class_name, constants)


def _read_kryo(reader: Reader, version: int) -> FlinkType:
    """Skip three maps, whose entries have lengths (``KryoSerializerSnapshotData``)."""
    class_name = reader.utf()
    begin = reader.position
    for _ in range(3):
        for _ in _read_entries(reader):
            pass
    return KryoType(class_name, bytes(reader.data[begin : reader.position]))


def _read_entries(reader: Reader) -> list[tuple[str, Reader | None, Reader | None]]:
    """Read a map of ``LinkedOptionalMapSerializer``: names, with framed keys and values."""
    begin = reader.position
    if reader.i64() != _OPTIONAL_MAP:
        raise reader.error("the magic number of a serializer map is wrong", position=begin)
    count = reader.count(4, "serializers")
    return [(reader.utf(), _read_frame(reader), _read_frame(reader)) for _ in range(count)]


def _read_frame(reader: Reader) -> Reader | None:
    if not reader.bool():
        return None
    return reader.part(reader.i32())


def _read_pojo(reader: Reader, version: int) -> FlinkType:
    """Read ``PojoSerializerSnapshotData``: the fields, and the two lists of subclasses."""
    class_name = reader.utf()
    fields = []
    for name, key, value in _read_entries(reader):
        if key is None or value is None:
            raise UnsupportedTypeError(
                f"{reader.name} has the POJO {class_name}, whose field {name!r} its job did "
                "not find, so its values cannot be read"
            )
        declared_by = key.utf()
        key.utf()
        fields.append(PojoField(name, declared_by, _read_framed_type(value)))
    return PojoType(class_name, tuple(fields), _read_subclasses(reader), _read_subclasses(reader))


def _read_subclasses(reader: Reader) -> tuple[Subclass, ...]:
    return tuple(
        Subclass(name, None if value is None else _read_framed_type(value))
        for name, _, value in _read_entries(reader)
    )


def _read_framed_type(reader: Reader) -> FlinkType:
    flink_type = _read_nested_snapshot(reader)
    reader.end("a framed snapshot")
    return flink_type


def _read_row_data(reader: Reader, version: int) -> FlinkType:
    columns = tuple(read_logical_type(reader) for _ in range(reader.count(4, "columns")))
    return RowDataType(columns, _read_parts(reader, len(columns)))


def _read_binary_row(reader: Reader, version: int) -> FlinkType:
    return BinaryRowType(reader.i32())


def _read_external(reader: Reader, version: int) -> FlinkType:
    """Read ``ExternalSerializer``: a Java ``DataType``, and a flag for internal input."""
    _read_outer_version(reader, version)
    begin = reader.position
    read_java_object(reader)
    reader.bool()
    return ExternalType(bytes(reader.data[begin : reader.position]), _read_part(reader))


def _read_raw_value(reader: Reader, version: int) -> FlinkType:
    _read_outer_version(reader, version)
    return RawType(_read_part(reader))


def _make_scalar_reader(
    name: str, numbers: int, objects: int
) -> Callable[[Reader, int], FlinkType]:
    def read(reader: Reader, version: int) -> FlinkType:
        begin = reader.position
        reader.take(4 * numbers)
        for _ in range(objects):
            read_java_object(reader)
        return SqlScalar(name, version, bytes(reader.data[begin : reader.position]))

    return read


_READERS: dict[str, Callable[[Reader, int], FlinkType]] = {
    _TUPLE: _read_tuple,
    _ROW: _read_row,
    _LISTS["List"]: _read_list,
    _LISTS["ArrayList"]: _read_array_list,
    _LISTS["Set"]: _read_set,
    _LISTS["LinkedList"]: _read_linked_list,
    _MAPS["Map"]: _read_map,
    _MAPS["SortedMap"]: _read_sorted_map,
    _MAPS["NullAwareMap"]: _read_null_aware_map,
    f"{_DATAVIEW}ListViewSerializerSnapshot": _read_view,
    f"{_DATAVIEW}MapViewSerializerSnapshot": _read_view,
    _EITHERS["TaggedUnion"]: _read_union,
    _JOINED: _read_join_entry,
    _ARRAY: _read_array,
    _EITHERS["Either"]: _read_either,
    _NULLABLE: _read_nullable,
    _TTL: _read_ttl,
    _TTL_AWARE: _read_ttl_aware,
    _TIMER: _read_timer,
    _POJO: _read_pojo,
    _ENUM: _read_enum,
    _KRYO: _read_kryo,
    _ROW_DATA: _read_row_data,
    _BINARY_ROW: _read_binary_row,
    _EXTERNAL: _read_external,
    _RAW: _read_raw_value,
    _SQL_SCALARS["DecimalData"]: _make_scalar_reader("DecimalData", 2, 0),
    _SQL_SCALARS["TimestampData"]: _make_scalar_reader("TimestampData", 1, 0),
    _SQL_SCALARS["ArrayData"]: _make_scalar_reader("ArrayData", 0, 2),
    _SQL_SCALARS["MapData"]: _make_scalar_reader("MapData", 0, 4),
}
