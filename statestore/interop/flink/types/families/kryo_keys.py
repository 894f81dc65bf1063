"""Keys that Kryo serializes, if all of them are of one simple class, such as ``Long``.

The snapshot often names no class but ``java.lang.Object``; each key names its class by a number.
Flink 1 has Kryo 2, and Flink 2 has Kryo 5. They differ in the byte order of numbers of a fixed
width, and in the longest text that is written as plain ASCII.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES
from statestore.interop.flink.types.encode import refuse_nulls
from statestore.interop.flink.types.families.base import FlinkType, SnapshotReaders
from statestore.interop.flink.types.families.key_hash import KeyHash
from statestore.interop.flink.types.families.kryo import FIRST_NUMBER, KryoType, skip_kryo
from statestore.interop.flink.types.families.scalar import SCALARS
from statestore.interop.flink.types.families.undecoded import read_slices
from statestore.interop.flink.types.kryo_bytes import (
    encode_number,
    encode_text,
    from_code_units,
    read_number,
    read_text,
    to_code_units,
)
from statestore.interop.flink.types.kryo_objects import KRYO_2, KRYO_5
from statestore.interop.flink.types.value_lengths import Skip

_VERSION = " of Kryo "
_NEW_OBJECT = b"\1"
_LONGEST_ASCII = {KRYO_2: 63, KRYO_5: 32}

_Decode = Callable[[bytes], Any]
_Encode = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class KryoKeyType(FlinkType):
    """Keys of the simple class ``simple``, as the version ``kryo`` of Kryo writes them.

    ``class_name`` and ``body`` are the snapshot, as in :class:`KryoType`.
    """

    class_name: str
    body: bytes
    simple: str
    kryo: int

    @classmethod
    def parse(cls, kryo_type: KryoType, text: str) -> KryoKeyType:
        """Return the type of keys whose class an import recorded."""
        simple, _, version = text.partition(_VERSION)
        return cls(kryo_type.class_name, kryo_type.body, simple, int(version or KRYO_2))

    @property
    def text(self) -> str:
        """The class of the keys, as an import records it: ``Long``, or ``Short of Kryo 5``."""
        return self.simple if self.kryo == KRYO_2 else f"{self.simple}{_VERSION}{self.kryo}"

    @property
    def has_byte_order(self) -> bool:
        """Whether the versions of Kryo read different values from the same bytes."""
        return self.simple in _ORDERED

    def _java_name(self) -> str:
        return f"Kryo<{self.simple}>"

    def _arrow_type(self) -> pa.DataType:
        return SCALARS[self.simple].arrow

    def _skipper(self) -> Skip:
        return skip_kryo

    def _read(self, cursor: Cursor) -> pa.Array:
        raw = read_slices(cursor, skip_kryo)
        number, decode, _ = _find_codec(self.simple, self.kryo)
        try:
            values = [_decode_key(key, number, decode) for key in raw.to_pylist()]
            column = pa.array(values, self.arrow_type())
            is_exact = self.write(column).equals(raw.cast(BYTES))
        except (ValueError, IndexError, struct.error, DamagedFileError) as error:
            raise UnsupportedTypeError(f"a key is not a {self.text}: {error}") from error
        if not is_exact:
            raise UnsupportedTypeError(f"a key is a {self.text} in another form")
        return column

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        number, _, encode = _find_codec(self.simple, self.kryo)
        head = bytes([number + FIRST_NUMBER])
        return pa.array([head + encode(value) for value in array.to_pylist()], BYTES)

    def _key_hash(self) -> KeyHash | None:
        return SCALARS[self.simple].key_hash

    def _snapshot(self) -> bytes:
        return KryoType(self.class_name, self.body).snapshot()

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {}


def kryo_key_types(kryo_type: KryoType, key: bytes) -> tuple[KryoKeyType, ...]:
    """Return the types that all keys may have if one of them is ``key``, the likeliest first.

    It is empty if the class of the key is not a simple one.
    """
    return tuple(
        KryoKeyType(kryo_type.class_name, kryo_type.body, simple, version)
        for simple, number in KRYO_NUMBERS.items()
        for version in ((KRYO_2, KRYO_5) if simple in (*_ORDERED, "String") else (KRYO_2,))
        if key[:1] == bytes([number + FIRST_NUMBER])
    )


def _decode_key(key: bytes, number: int, decode: _Decode) -> Any:
    if key[0] != number + FIRST_NUMBER:
        raise ValueError(f"its class has the number {key[0] - FIRST_NUMBER}")
    return decode(key[1:])


def _find_codec(simple: str, version: int) -> tuple[int, _Decode, _Encode]:
    """Return the number of a class, and how its values are decoded and encoded."""
    number = KRYO_NUMBERS[simple]
    if simple in ("Integer", "Long"):
        return number, _decode_zigzag, _encode_zigzag
    if simple == "String":
        longest = _LONGEST_ASCII[version]
        return (
            number,
            _decode_text,
            lambda text: _NEW_OBJECT + encode_text(to_code_units(text), longest),
        )
    order = ">" if version == KRYO_2 else "<"
    packed = struct.Struct(order + _FORMATS[simple])
    return number, lambda data: packed.unpack(data)[0], packed.pack


def decode_kryo_5(simple: str, data: bytes) -> Any:
    """Decode a value of a simple class other than ``String`` from the bytes that Kryo 5 writes."""
    return _find_codec(simple, KRYO_5)[1](data)


def _encode_zigzag(value: int) -> bytes:
    return encode_number(value << 1 if value >= 0 else ~value << 1 | 1)


def _decode_zigzag(data: bytes) -> int:
    zigzag = read_number(Reader(data, "a key"))
    return zigzag >> 1 ^ -(zigzag & 1)


def _decode_text(data: bytes) -> str:
    text = read_text(Reader(data[len(_NEW_OBJECT) :], "a key"))
    if text is None:
        raise ValueError("it is null")
    return from_code_units(text)


KRYO_NUMBERS = {
    "Integer": 0,
    "String": 1,
    "Float": 2,
    "Boolean": 3,
    "Byte": 4,
    "Character": 5,
    "Short": 6,
    "Long": 7,
    "Double": 8,
}
"""The simple classes, by the numbers with which Kryo registers them."""

_ORDERED = ("Float", "Character", "Short", "Double")
_FORMATS = {
    "Float": "f",
    "Boolean": "?",
    "Byte": "b",
    "Character": "H",
    "Short": "h",
    "Double": "d",
}
