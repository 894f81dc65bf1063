"""Values that Kryo serializes with their class (``KryoSerializer``).

``writeClassAndObject`` writes the number of the class plus 2; 0 is a null, and 1 means that the
name of the class follows. Kryo registers the first numbers for simple types. The end of a value of
such a type is known. The end of an exception is known too, because it is a stream of Java's own
serialization. Values of other classes are written by serializers of the job. The end of a
collection is known if the version of Kryo that wrote it is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, i32, utf
from statestore.interop.flink.metadata.java_objects import JAVA_STREAM, skip_java_object
from statestore.interop.flink.metadata.snapshot_format import RUNTIME, read_optional_map
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES
from statestore.interop.flink.types.encode import refuse_nulls
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    nested_types,
    replace_parts,
)
from statestore.interop.flink.types.families.undecoded import read_slices
from statestore.interop.flink.types.kryo_bytes import read_text_bytes
from statestore.interop.flink.types.kryo_conversion import skip_kryo_value
from statestore.interop.flink.types.kryo_objects import KryoClasses
from statestore.interop.flink.types.value_lengths import Skip, make_fixed_skip

T = TypeVar("T")

FIRST_NUMBER = 2
"""The number of the first class that Kryo registers, as values have it."""

_KRYO = f"{RUNTIME}kryo.KryoSerializerSnapshot"
_UNSPECIFIED = 0  # the class has Kryo's own serializer
_NULL, _NAMED = 0, 1
_NEW_NAME, _NEW_OBJECT = 0, 1
_LONGEST_INT, _LONGEST_LONG = 5, 9
_LAST = 0x80


@dataclass(frozen=True, slots=True)
class KryoType(FlinkType):
    """A class that Kryo serializes; its values stay bytes.

    ``body`` is the rest of its snapshot. ``kryo`` is the version of Kryo that wrote the values. If
    it is None, only the ends of simple values are known.
    """

    class_name: str
    body: bytes
    kryo: int | None = None

    @property
    def classes(self) -> KryoClasses:
        """The classes that the job registered with Kryo (``KryoSerializerSnapshotData``)."""
        reader = Reader(self.body, "a snapshot of KryoSerializer")
        registrations = read_optional_map(reader)
        own = {name for name, _, value in registrations if _has_own_serializer(value)}
        for _ in range(2):  # default serializers, as objects and as classes
            own |= {name for name, _, _ in read_optional_map(reader)}
        return KryoClasses(tuple(name for name, _, _ in registrations), frozenset(own))

    def _java_name(self) -> str:
        return f"Kryo<{self.class_name}>"

    def _arrow_type(self) -> pa.DataType:
        return pa.binary()

    def _skipper(self) -> Skip:
        if self.kryo is None:
            return skip_kryo
        return partial(skip_kryo_value, classes=self.classes, kryo=self.kryo)

    def _read(self, cursor: Cursor) -> pa.Array:
        return read_slices(cursor, self.skipper())

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        return array.cast(BYTES)

    def _snapshot(self) -> bytes:
        return utf(_KRYO) + i32(2) + utf(self.class_name) + self.body

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_KRYO: _parse_kryo}


def find_kryo_part(part: object) -> str | None:
    """Return which part of a type, or of several types, stays bytes because Kryo wrote it."""
    names = (nested.java_name for nested in nested_types(part) if isinstance(nested, KryoType))
    name = next(names, None)
    return None if name is None else f"values of {name} can only be read as bytes"


def _has_own_serializer(registration: Reader | None) -> bool:
    """Return whether a registration has a serializer (``KryoRegistrationUtil``)."""
    if registration is None:  # the class was missing when the snapshot was written
        return True
    registration.utf()  # the class
    return registration.i32() != _UNSPECIFIED


def set_kryo(part: T, kryo: int) -> T:
    """Return a type, or a part of one, with the version of Kryo that wrote its values.

    A version that is already set does not change.
    """

    def set_version(nested: Any) -> KryoType | None:
        is_unset = isinstance(nested, KryoType) and nested.kryo is None
        return replace(nested, kryo=kryo) if is_unset else None

    return replace_parts(part, set_version)


def without_kryo_version(part: T) -> T:
    """Return a type, or a part of one, without Kryo's version, which its snapshot does not have."""

    def clear_version(nested: Any) -> KryoType | None:
        is_set = isinstance(nested, KryoType) and nested.kryo is not None
        return replace(nested, kryo=None) if is_set else None

    return replace_parts(part, clear_version)


def skip_kryo(reader: Reader) -> None:
    """Skip a value with its class; UnsupportedTypeError if its end is unknown."""
    number = reader.varint()
    if number == _NULL:
        return
    if number == _NAMED:
        _skip_named(reader)
        return
    skip = _SIMPLE.get(number - FIRST_NUMBER)
    if skip is None:
        raise _unknown_end(reader, f"the class with the number {number - FIRST_NUMBER}")
    skip(reader)


def _skip_named(reader: Reader) -> None:
    """Skip a value after the number that says that the name of its class follows."""
    if reader.varint() != _NEW_NAME:
        raise reader.error("Kryo refers to the name of a class that it has not written")
    name = (read_text_bytes(reader) or b"").decode("ascii", "replace")
    _expect_new_object(reader)
    if bytes(reader.data[reader.position : reader.position + len(JAVA_STREAM)]) != JAVA_STREAM:
        raise _unknown_end(reader, f"the class {name}")
    skip_java_object(reader)


def _unknown_end(reader: Reader, what: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"{reader.name} has a value of {what} at byte {reader.base + reader.position}, which the "
        "job's own Kryo serializer wrote, so its end is unknown: take a canonical savepoint, which "
        "has the length of each value"
    )


def _expect_new_object(reader: Reader) -> None:
    """Read the mark with which Kryo distinguishes an object from a reference to an earlier one."""
    if reader.varint() != _NEW_OBJECT:
        raise reader.error("Kryo refers to an object that it has not written")


def _make_varint_skip(longest: int) -> Skip:
    """Return a function for a number of 7 bits per byte; the last of 9 bytes has 8 bits."""

    def skip(reader: Reader) -> None:
        for count in range(1, longest + 1):
            is_last_of_long = count == _LONGEST_LONG
            if reader.u8() < _LAST or is_last_of_long:
                return
        raise reader.error("a variable-length number does not end")

    return skip


def _skip_string(reader: Reader) -> None:
    _expect_new_object(reader)
    read_text_bytes(reader)


_SIMPLE: Mapping[int, Skip] = {
    0: _make_varint_skip(_LONGEST_INT),  # int
    1: _skip_string,
    2: make_fixed_skip(4),  # float
    3: make_fixed_skip(1),  # boolean
    4: make_fixed_skip(1),  # byte
    5: make_fixed_skip(2),  # char
    6: make_fixed_skip(2),  # short
    7: _make_varint_skip(_LONGEST_LONG),  # long
    8: make_fixed_skip(8),  # double
    9: make_fixed_skip(0),  # void
}
"""The types that ``Kryo`` registers itself, by their numbers."""


def _parse_kryo(snapshot: SnapshotReader) -> FlinkType:
    """Skip three maps, whose entries have lengths (``KryoSerializerSnapshotData``)."""
    class_name = snapshot.reader.utf()
    begin = snapshot.reader.position
    for _ in range(3):
        read_optional_map(snapshot.reader)
    return KryoType(class_name, snapshot.bytes_since(begin))
