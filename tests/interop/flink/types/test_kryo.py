"""The end of Kryo's values, and their bytes."""

from __future__ import annotations

import struct

import pytest

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.types.byte_cursor import Spans
from statestore.interop.flink.types.column_bytes import decode_values
from statestore.interop.flink.types.java_types import Scalar, TupleType
from statestore.interop.flink.types.kryo import KryoType

KRYO = KryoType("java.lang.Object", b"")
EXCEPTION = (
    b"\1\0java.lang.RuntimeExceptio\xee\1"  # a new name, whose last byte is marked; a new object
    b"\xac\xed\0\5sr\0\x1ajava.lang.RuntimeException\x9e_\6G\n4\x83\xe5\2\0\0xp"
)
VALUES = {
    "null": b"\0",
    "int": b"\2\xff\xff\xff\xff\x0f",
    "String of ASCII": b"\3\1some tex\xf4",
    "String of one character": b"\3\1\x82a",
    "empty String": b"\3\1\x81",
    "String of two bytes a character": b"\3\1\x83\xc3\xa9\xc3\xa9",
    "String of 70 characters": b"\3\1"
    + bytes([0xC0 | (71 & 0x3F), 71 >> 6])
    + 70 * b"\xe2\x82\xac",
    "float": b"\4" + struct.pack(">f", 1.5),
    "boolean": b"\5\1",
    "byte": b"\6\x7f",
    "char": b"\7\0a",
    "short": b"\x08\0\1",
    "long": b"\x09\6",
    "the least long": b"\x09" + 9 * b"\xff",
    "double": b"\x0a" + struct.pack(">d", 2.5),
    "void": b"\x0b",
    "exception": EXCEPTION,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_the_end_of_a_value_is_known(value: bytes) -> None:
    reader = Reader(value + b"rest", "f")
    KRYO.skipper()(reader)
    assert reader.position == len(value)


def test_a_field_stays_bytes_beside_fields_with_columns() -> None:
    flink_type = TupleType("Tuple2", (KRYO, Scalar("Boolean")))
    spans = Spans.from_values([value + b"\1" for value in VALUES.values()], "f")
    column = decode_values(flink_type, spans)
    assert column.field(0).to_pylist() == [*VALUES.values()]
    assert column.field(1).to_pylist() == [True] * len(VALUES)
    assert flink_type.write(column).to_pylist() == spans.arrow().to_pylist()


@pytest.mark.parametrize("value", [b"\x0c\1\2", b"\1\0a.\xc2\1\7\7\7\7\7"])
def test_a_class_of_the_job_has_no_known_end(value: bytes) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"its end is unknown: take a canonical savepo"):
        KRYO.skipper()(Reader(value, "f"))


@pytest.mark.parametrize(
    "value", [b"", b"\2\xff", b"\3\1som", b"\3\2", b"\1\1", b"\2" + 6 * b"\xff"]
)
def test_cut_or_impossible_bytes_are_damage(value: bytes) -> None:
    with pytest.raises(DamagedFileError):
        KRYO.skipper()(Reader(value, "f"))
