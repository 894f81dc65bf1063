"""The byte format of serializer snapshots, and how a type declares its own.

A snapshot (``TypeSerializerSnapshot.writeVersionedSnapshot``) is utf class, i32 version and a
body. The body of a ``SimpleTypeSerializerSnapshot`` is empty. A ``CompositeTypeSerializerSnapshot``
has its own part and the nested snapshots (``NestedSerializersSnapshotDelegate``).

A type declares a :class:`SnapshotForm` for each of its snapshot classes: the members of the type
in the order of the bytes, each with a :class:`Member` that reads and writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from statestore.interop.flink.metadata.java_binary import (
    Reader,
    i8,
    i32,
    i64,
    read_java_object,
    utf,
)
from statestore.interop.flink.metadata.versions import unsupported_version

FLINK = "org.apache.flink."
BASE = f"{FLINK}api.common.typeutils.base."
RUNTIME = f"{FLINK}api.java.typeutils.runtime."
TABLE = f"{FLINK}table.runtime.typeutils."
DATAVIEW = f"{FLINK}table.dataview."
SCALA = f"{FLINK}api.scala.typeutils."

_COMPOSITE, _NESTED = 911108, 1333245
"""The magic numbers of a composite snapshot, and of nested snapshots."""

_COMPOSITE_VERSION = 3
_SIMPLE_VERSION, _SIMPLE_VERSION_OF_1_7 = 3, 2
_OPTIONAL_MAP = 0x4F2C69A3D70


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Reads the body of a serializer snapshot, from the position of its ``reader``.

    ``version`` is the version of the snapshot's class. ``read_nested`` reads a snapshot of any
    type. ``members`` are the members of the type that were read before.
    """

    reader: Reader
    version: int
    read_nested: Callable[[Reader], Any]
    members: dict[str, Any] = field(default_factory=dict)

    def nested(self) -> Any:
        """Read the type of one snapshot that is part of the body."""
        return self.read_nested(self.reader)

    def framed(self, frame: Reader) -> Any:
        """Read the type of the snapshot that fills ``frame``, a reader of a part of the body."""
        flink_type = self.read_nested(frame)
        frame.end("a framed snapshot")
        return flink_type

    def parts(self, count: int | None = None) -> tuple[Any, ...]:
        """Read the types of nested snapshots; ``count`` is their expected number."""
        reader = self.reader
        reader.expect(_NESTED, "the magic number of nested snapshots")
        reader.expect(1, "the version of nested snapshots")
        actual = reader.count(6, "nested snapshots")
        if count is not None and actual != count:
            raise reader.error(
                f"found {actual} nested snapshots, not {count}", position=reader.position - 4
            )
        return tuple(self.nested() for _ in range(actual))

    def fields(self) -> tuple[Any, ...]:
        """Read the types of the fields of a tuple or row.

        Values that consist of nothing but their fields need one. Without any field, an unlimited
        number of values would take no bytes. A ``Tuple0`` is not affected: its own serializer
        writes a byte.
        """
        begin, fields = self.reader.position, self.parts()
        if not fields and not self.members.get("has_kind"):
            raise self.reader.error("a tuple or row has no fields", position=begin)
        return fields

    def with_outer_version(self) -> SnapshotReader:
        """Read the header of ``CompositeTypeSerializerSnapshot``, with the class's version."""
        if self.version < _COMPOSITE_VERSION:  # Flink before 1.8 wrote no header
            return self
        self.reader.expect(_COMPOSITE, "the magic number of a composite snapshot")
        return replace(self, version=self.reader.i32())

    def expect_simple(self, class_name: str) -> None:
        """Read the body of ``SimpleTypeSerializerSnapshot``, which is empty since Flink 1.8.

        Raises FormatVersionError for a version of ``class_name`` that Flink 1.6 or before wrote.
        """
        if self.version == _SIMPLE_VERSION_OF_1_7:
            self.reader.utf()  # the serializer's class name
        elif self.version != _SIMPLE_VERSION:
            what = f"a serializer snapshot {class_name.rpartition('.')[2]}"
            raise unsupported_version(self.reader.name, what, self.version)

    def is_plain_composite(self) -> bool:
        """Whether an unsupported class has only nested snapshots and no part of its own."""
        reader = self.reader
        begin = reader.position
        if self.version < _COMPOSITE_VERSION or reader.remaining < 12:
            return False
        header = reader.i32(), reader.i32(), reader.i32()
        reader.position = begin
        return (header[0], header[2]) == (_COMPOSITE, _NESTED)


@dataclass(frozen=True, slots=True)
class Member:
    """How a member of a type is read from a snapshot, and written into it."""

    read: Callable[[SnapshotReader], Any]
    encode: Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class SnapshotForm:
    """A snapshot of a type: its class and version, and the members in the order of the bytes.

    ``parts`` are members whose snapshots follow as nested snapshots. ``constants`` are the members
    of the types that have this snapshot, whose bytes do not contain them. ``version`` is None if it
    is a member of the type. ``make`` makes the type of the members.
    """

    class_name: str
    version: int | None
    members: Mapping[str, Member]
    parts: tuple[str, ...]
    constants: Mapping[str, Any]
    is_composite: bool
    make: Callable[..., Any] | None = None

    def describes(self, flink_type: Any) -> bool:
        """Return whether a type has this snapshot."""
        return all(getattr(flink_type, name) == value for name, value in self.constants.items())

    def encode(self, flink_type: Any) -> bytes:
        """Return the snapshot of a type."""
        version = flink_type.version if self.version is None else self.version
        head = utf(self.class_name)
        if self.is_composite:
            head += i32(_COMPOSITE_VERSION) + i32(_COMPOSITE)
        encoded = [
            member.encode(getattr(flink_type, name)) for name, member in self.members.items()
        ]
        if self.parts:
            encoded.append(encode_parts(getattr(flink_type, name) for name in self.parts))
        return b"".join([head, i32(version), *encoded])

    def read(self, snapshot: SnapshotReader, make: Callable[..., Any]) -> Any:
        """Return the type of a snapshot; ``make`` is the class of the types.

        Raises:
            DamagedFileError: if the bytes do not follow the format.
            FormatVersionError: for a version of the class that cannot be read.
        """
        if self.is_composite:
            snapshot = snapshot.with_outer_version()
        elif not self.members and not self.parts:
            snapshot.expect_simple(self.class_name)
        for name, member in self.members.items():
            snapshot.members[name] = member.read(snapshot)
        if self.parts:
            snapshot.members.update(zip(self.parts, snapshot.parts(len(self.parts)), strict=True))
        return (self.make or make)(**{**self.constants, **snapshot.members})


def simple(class_name: str, /, **constants: Any) -> SnapshotForm:
    """Return the form of a snapshot without a body."""
    return SnapshotForm(class_name, _SIMPLE_VERSION, {}, (), constants, is_composite=False)


def composite(
    class_name: str,
    version: int,
    /,
    members: Mapping[str, Member] | None = None,
    parts: tuple[str, ...] = (),
    make: Callable[..., Any] | None = None,
    **constants: Any,
) -> SnapshotForm:
    """Return the form of a ``CompositeTypeSerializerSnapshot``."""
    return SnapshotForm(
        class_name, version, members or {}, parts, constants, is_composite=True, make=make
    )


def plain(
    class_name: str,
    version: int | None,
    /,
    members: Mapping[str, Member],
    parts: tuple[str, ...] = (),
    make: Callable[..., Any] | None = None,
    **constants: Any,
) -> SnapshotForm:
    """Return the form of a snapshot whose body has nothing but the members and parts."""
    return SnapshotForm(
        class_name, version, members, parts, constants, is_composite=False, make=make
    )


def encode_parts(parts: Iterable[Any]) -> bytes:
    """Encode the snapshots of types as nested snapshots."""
    snapshots = [part.snapshot() for part in parts]
    return i32(_NESTED) + i32(1) + i32(len(snapshots)) + b"".join(snapshots)


TEXT = Member(lambda snapshot: snapshot.reader.utf(), utf)
FLAG = Member(lambda snapshot: snapshot.reader.bool(), i8)
INT = Member(lambda snapshot: snapshot.reader.i32(), i32)
VERSION = Member(lambda snapshot: snapshot.version, lambda _: b"")
"""The version of the snapshot, which is written before the members."""

SNAPSHOT = Member(lambda snapshot: snapshot.nested(), lambda part: part.snapshot())
"""The snapshot of a type, not among the nested snapshots."""

FIELDS = Member(lambda snapshot: snapshot.fields(), encode_parts)
"""The nested snapshots of all fields."""


def flag_since(version: int, implied: int | None = None) -> Member:
    """Return a flag that is written since a version of the class.

    Before that, it was true in the version ``implied`` alone.
    """

    def read(snapshot: SnapshotReader) -> bool:
        return (
            snapshot.reader.bool() if snapshot.version >= version else snapshot.version == implied
        )

    return Member(read, i8)


def bytes_member(skip: Callable[[Reader], object]) -> Member:
    """Return a member that keeps the bytes that ``skip`` advances past."""

    def read(snapshot: SnapshotReader) -> bytes:
        begin = snapshot.reader.position
        skip(snapshot.reader)
        return bytes(snapshot.reader.data[begin : snapshot.reader.position])

    return Member(read, lambda raw: raw)


JAVA_OBJECT = bytes_member(read_java_object)
"""An object that Java serialized, as its bytes."""


def counted_member(
    read: Callable[[Reader], Any], encode: Callable[[Any], bytes], least: int, what: str
) -> Member:
    """Return a member of several items after their number, each of at least ``least`` bytes."""
    return Member(
        lambda snapshot: tuple(
            read(snapshot.reader) for _ in range(snapshot.reader.count(least, what))
        ),
        lambda items: i32(len(items)) + b"".join(map(encode, items)),
    )


def inner_class(package: str, serializer: str) -> str:
    """Return the name of the snapshot class that is nested in a serializer's class."""
    return f"{package}{serializer}${serializer}Snapshot"


def encode_optional_map(entries: Sequence[tuple[str, bytes, bytes | None]]) -> bytes:
    """Encode a map like ``LinkedOptionalMapSerializer``."""
    parts = [i64(_OPTIONAL_MAP), i32(len(entries))]
    for name, key, value in entries:
        parts += [utf(name), i8(1), i32(len(key)), key]
        parts += [i8(0)] if value is None else [i8(1), i32(len(value)), value]
    return b"".join(parts)


def read_optional_map(reader: Reader) -> list[tuple[str, Reader | None, Reader | None]]:
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
