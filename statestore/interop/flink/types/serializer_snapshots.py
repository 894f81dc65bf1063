"""The registry of Flink's types, and the snapshots of serializers, from which types are parsed.

A snapshot is the bytes with which a savepoint describes a type of its state.

``TypeSerializerSnapshotSerializationUtil`` writes i32 2 before each snapshot. Each type declares
its snapshots, which are found by the name of the snapshot's class. The class of a type defines
everything else that depends on the type: its name, its Arrow type, and how values are skipped, read
and written.

The snapshot of an unsupported class has no recognizable end, so nothing after it can be parsed.
Such a class is an UnknownSnapshotError that names the class, unless the caller gives the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, i32
from statestore.interop.flink.metadata.snapshot_format import FLINK, SnapshotReader
from statestore.interop.flink.metadata.versions import too_old
from statestore.interop.flink.types import (
    avro,
    internal_types,
    java_types,
    kryo,
    pojos,
    scala_types,
    sql_types,
)
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.internal_types import UnknownType

TYPES: tuple[type[FlinkType], ...] = (
    java_types.Scalar,
    java_types.TupleType,
    java_types.RowType,
    java_types.ListType,
    java_types.ArrayType,
    java_types.MapType,
    java_types.EitherType,
    java_types.NullableType,
    java_types.EnumType,
    pojos.PojoType,
    avro.AvroType,
    scala_types.CaseClassType,
    scala_types.TraversableType,
    scala_types.ScalaEnumType,
    scala_types.OptionType,
    scala_types.TryType,
    sql_types.RowDataType,
    sql_types.BinaryRowType,
    sql_types.ExternalType,
    sql_types.RawType,
    sql_types.DecimalDataType,
    sql_types.TimestampDataType,
    sql_types.SqlCollection,
    internal_types.CepType,
    internal_types.TtlType,
    internal_types.TtlAwareType,
    internal_types.TimerType,
    internal_types.StreamElementType,
    internal_types.PythonType,
    internal_types.UndecodedType,
    internal_types.JavaObjectType,
    internal_types.UnknownType,
    kryo.KryoType,
)
"""All types. The types without parameters share the class ``Scalar``, and are in ``SCALARS``."""


BodyEnds = Mapping[int, int]
"""The end of each body of an unknown class, by the position where the body begins."""

NO_ENDS: BodyEnds = MappingProxyType({})

DAMAGED_CLASS = "it is damaged, or of a connector or release of Flink that statestore does not know"
"""What an unknown class under ``org.apache.flink`` means."""

_PROXY = 2
_OLD_SNAPSHOTS = (
    "ConfigSnapshot",  # the end of the class names of ``TypeSerializerConfigSnapshot``
    "ParameterlessTypeSerializerConfig",
)
_READERS: dict[str, Callable[[SnapshotReader], FlinkType]] = {}
for _type in TYPES:
    for _form in _type.snapshots:  # the first form of a class reads the snapshots of the others
        _READERS.setdefault(_form.class_name, partial(_form.read, make=_type))


@dataclass(frozen=True, slots=True)
class SerializerSnapshot:
    """A type, and the snapshot bytes that describe it, starting with the class's name."""

    flink_type: FlinkType
    raw: bytes


class UnknownSnapshotError(UnsupportedTypeError):
    """A snapshot of an unknown class, whose body begins at ``body`` and has an unknown end."""

    def __init__(self, message: str, class_name: str = "", body: int = 0) -> None:
        super().__init__(message)
        self.class_name = class_name
        self.body = body


def read_snapshot(reader: Reader, ends: BodyEnds = NO_ENDS) -> SerializerSnapshot:
    """Return the serializer snapshot that begins here, and advance past it.

    Args:
        reader: the bytes.
        ends: where the bodies of unknown classes end.

    Raises:
        UnsupportedTypeError: for an unsupported class, or an unsupported version of a class.
        DamagedFileError: if the bytes do not follow Flink's format.
    """
    reader.expect(_PROXY, "the version of a serializer snapshot")
    begin = reader.position
    flink_type = _read_nested_snapshot(reader, ends)
    return SerializerSnapshot(flink_type, bytes(reader.data[begin : reader.position]))


def read_bare_snapshot(reader: Reader) -> FlinkType:
    """Return the type of a snapshot without the number before it, and advance past it.

    Raises the errors of :func:`read_snapshot`.
    """
    return _read_nested_snapshot(reader, NO_ENDS)


def make_snapshot(flink_type: FlinkType) -> SerializerSnapshot:
    """Return the serializer snapshot of a type, as Flink 2 writes it."""
    return SerializerSnapshot(flink_type, flink_type.snapshot())


def _read_nested_snapshot(reader: Reader, ends: BodyEnds) -> FlinkType:
    with reader.nested("serializer snapshots"):
        return _read_versioned(reader, ends)


def _read_versioned(reader: Reader, ends: BodyEnds) -> FlinkType:
    begin = reader.position
    class_name, version = reader.utf(), reader.i32()
    snapshot = SnapshotReader(reader, version, partial(_read_nested_snapshot, ends=ends))
    read = _READERS.get(class_name)
    if read is not None:
        return read(snapshot)
    if snapshot.is_plain_composite():
        middle = reader.position
        snapshot.with_outer_version()
        snapshot.parts()
        return UnknownType(class_name, i32(version) + bytes(reader.data[middle : reader.position]))
    if class_name.endswith(_OLD_SNAPSHOTS):
        what = f"a serializer snapshot {class_name.rpartition('.')[2]}"
        raise too_old(reader.name, what, "1.7 or before")
    body = reader.base + reader.position
    if body in ends:
        return UnknownType(class_name, i32(version) + reader.bytes(ends[body] - body))
    hint = f"; {DAMAGED_CLASS}" if class_name.startswith(FLINK) else ""
    raise UnknownSnapshotError(
        f"{reader.name} has state with the unknown serializer {class_name!r} at byte "
        f"{reader.base + begin}: the length of its snapshot is unknown, so nothing of "
        f"this operator can be read{hint}",
        class_name,
        body,
    )
