"""The byte format of serializer snapshots, which all types share.

A snapshot (``TypeSerializerSnapshot.writeVersionedSnapshot``) is utf class, i32 version and a
body. The body of a ``SimpleTypeSerializerSnapshot`` is empty. A ``CompositeTypeSerializerSnapshot``
has its own part and the nested snapshots (``NestedSerializersSnapshotDelegate``).
"""

from __future__ import annotations

from collections.abc import Sequence

from statestore.interop.flink.metadata.java_binary import Reader, i8, i32, i64, utf

FLINK = "org.apache.flink."
BASE = f"{FLINK}api.common.typeutils.base."
RUNTIME = f"{FLINK}api.java.typeutils.runtime."
TABLE = f"{FLINK}table.runtime.typeutils."
DATAVIEW = f"{FLINK}table.dataview."
SCALA = f"{FLINK}api.scala.typeutils."

COMPOSITE, NESTED = 911108, 1333245
"""The magic numbers of a composite snapshot, and of nested snapshots."""

SIMPLE_VERSION = 3
"""The version of a snapshot without a body, since Flink 1.8."""

_COMPOSITE_VERSION = 3
_OPTIONAL_MAP = 0x4F2C69A3D70


def inner_class(package: str, serializer: str) -> str:
    """Return the name of the snapshot class that is nested in a serializer's class."""
    return f"{package}{serializer}${serializer}Snapshot"


def encode_simple(class_name: str) -> bytes:
    """Encode a snapshot without a body."""
    return utf(class_name) + i32(SIMPLE_VERSION)


def encode_composite(class_name: str, version: int, outer: bytes, *parts: bytes) -> bytes:
    """Encode a snapshot of its own part ``outer`` and the nested snapshots ``parts``."""
    head = utf(class_name) + i32(_COMPOSITE_VERSION) + i32(COMPOSITE) + i32(version)
    return head + outer + encode_nested(*parts)


def encode_nested(*parts: bytes) -> bytes:
    """Encode nested snapshots, each of which is already encoded."""
    return i32(NESTED) + i32(1) + i32(len(parts)) + b"".join(parts)


def encode_optional_map(entries: Sequence[tuple[str, bytes, bytes | None]]) -> bytes:
    """Encode a map like ``LinkedOptionalMapSerializer``."""
    parts = [i64(_OPTIONAL_MAP), i32(len(entries))]
    for name, key, value in entries:
        parts += [utf(name), i8(1), i32(len(key)), key]
        parts += [i8(0)] if value is None else [i8(1), i32(len(value)), value]
    return b"".join(parts)


def is_plain_composite(reader: Reader, version: int) -> bool:
    """Return whether an unsupported class has only nested snapshots and no part of its own."""
    begin = reader.position
    if version < _COMPOSITE_VERSION or reader.remaining < 12:
        return False
    header = reader.i32(), reader.i32(), reader.i32()
    reader.position = begin
    return (header[0], header[2]) == (COMPOSITE, NESTED)


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
