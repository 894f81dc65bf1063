"""The end of an object that Java serialized, of any class.

The bytes are from a program that writes each object with ``ObjectOutputStream``.
"""

from __future__ import annotations

import pytest

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import (
    JAVA_STREAM,
    Reader,
    i32,
    skip_java_object,
    utf,
)
from statestore.interop.flink.types.byte_cursor import Spans
from statestore.interop.flink.types.column_bytes import decode_values
from statestore.interop.flink.types.internal_types import JavaObjectType
from statestore.interop.flink.types.java_types import Scalar, TupleType

OBJECTS = {
    "null": "aced000570",
    "text": "aced000574000474657874",
    "text that ends with half a character": "aced000574000461eda080",
    "number": (
        "aced0005737200116a6176612e6c616e672e496e746567657212e2a0a4f781873802000149000576616c"
        "7565787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b020000787000000005"
    ),
    "constant with a body": (
        "aced00057e7200094a6f6224436f6c6f7200000000000000001200007872000e6a6176612e6c616e672e"
        "456e756d00000000000000001200007870740003524544"
    ),
    "record": (
        "aced0005737200094a6f6224506f696e740000000000000000020002490001784c0001797400124c6a61"
        "76612f6c616e672f537472696e673b78700000000174000179"
    ),
    "nested arrays": (
        "aced0005757200035b5b4917f7e44f198f893c020000787000000002757200025b494dba602676eab2a5"
        "02000078700000000200000001000000027571007e00020000000100000003"
    ),
    "array that holds itself": (
        "aced0005757200135b4c6a6176612e6c616e672e4f626a6563743b90ce589f1073296c02000078700000"
        "000271007e000171007e0001"
    ),
    "class": "aced0005767200106a6176612e6c616e672e537472696e67a0f0a4387a3bb3420200007870",
    "class with a write method": (
        "aced0005737200074a6f62244f776e6b40b9eec464eee7030002440001645b00026f737400135b4c6a61"
        "76612f6c616e672f4f626a6563743b78704000000000000000757200135b4c6a6176612e6c616e672e4f"
        "626a6563743b90ce589f1073296c020000787000000004737200116a6176612e6c616e672e496e746567"
        "657212e2a0a4f781873802000149000576616c7565787200106a6176612e6c616e672e4e756d62657286"
        "ac951d0b94e08b0200007870000000017400017870757200025b494dba602676eab2a502000078700000"
        "000200000001000000027707000568656c6c6f7372000e6a6176612e7574696c2e44617465686a81014b"
        "597419030000787077080000000000000001787708000000000000000378"
    ),
    "list of many classes": (
        "aced0005737200136a6176612e7574696c2e41727261794c6973747881d21d99c7619d03000149000473"
        "697a65787000000009770400000009737200116a6176612e6c616e672e496e746567657212e2a0a4f781"
        "873802000149000576616c7565787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b02"
        "000078700000000174000161737200106a6176612e6c616e672e446f75626c6580b3c24a296bfb040200"
        "0144000576616c75657871007e00034004000000000000737200116a6176612e6c616e672e426f6f6c65"
        "616ecd207280d59cfaee0200015a000576616c7565787001737200136a6176612e6c616e672e43686172"
        "6163746572348b47d96b1a267802000143000576616c7565787000637372000e6a6176612e6c616e672e"
        "427974659c4e6084ee50f51c02000142000576616c75657871007e0003017372000f6a6176612e6c616e"
        "672e53686f7274684d37133460da5202000153000576616c75657871007e000300027372000e6a617661"
        "2e6c616e672e4c6f6e673b8be490cc8f23df0200014a000576616c75657871007e000300000000000000"
        "037372000f6a6176612e6c616e672e466c6f6174daedc9a2db3cf0ec02000146000576616c7565787100"
        "7e00034080000078"
    ),
    "proxy": (
        "aced0005737d0000000200126a6176612e6c616e672e52756e6e61626c6500146a6176612e6c616e672e"
        "436f6d70617261626c65787200176a6176612e6c616e672e7265666c6563742e50726f7879e127da20cc"
        "1043cb0200014c0001687400254c6a6176612f6c616e672f7265666c6563742f496e766f636174696f6e"
        "48616e646c65723b7870737200054a6f62244864b1ce5de21c6b030200007870"
    ),
}

DESCRIPTION = b"sr" + utf("Job$Chain") + bytes(8)
"""The beginning of an object, up to the number of the class's version."""


def make_chain(length: int) -> bytes:
    """Return an object that refers to another one of its class, and so on."""
    first = DESCRIPTION + b"\2\0\1L" + utf("next") + b"t" + utf("LJob$Chain;") + b"xp"
    again = b"sq" + i32(0x7E0000)
    return JAVA_STREAM + first + (length - 1) * again + b"p"


@pytest.mark.parametrize("text", OBJECTS.values(), ids=OBJECTS)
def test_the_end_of_an_object_is_known(text: str) -> None:
    data = bytes.fromhex(text)
    reader = Reader(data + b"rest", "f")
    skip_java_object(reader)
    assert reader.position == len(data)


@pytest.mark.parametrize("text", OBJECTS.values(), ids=OBJECTS)
def test_a_cut_object_is_damage(text: str) -> None:
    data = bytes.fromhex(text)
    for cut in range(len(data)):
        with pytest.raises(DamagedFileError):
            skip_java_object(Reader(data[:cut], "f"))


def test_long_blocks_and_texts_are_skipped() -> None:
    block = b"z" + i32(2000) + bytes(2000)
    text = b"|" + (70_000).to_bytes(8, "big") + 70_000 * b"x"
    own = DESCRIPTION + b"\x0c\0\0xp" + block + text + b"x"  # externalizable, in blocks
    reader = Reader(JAVA_STREAM + own + b"rest", "f")
    skip_java_object(reader)
    assert reader.remaining == 4


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (JAVA_STREAM + DESCRIPTION + b"\4\0\0xp\1\2", "a value of Job$Chain in that class's own"),
        (JAVA_STREAM + b"{" + b"p", "an exception that ended the writing of an object"),
        (make_chain(100), "objects nested more than 100 levels deep"),
    ],
    ids=["own format", "exception", "deep"],
)
def test_an_object_without_a_known_end_is_named(data: bytes, what: str) -> None:
    with pytest.raises(UnsupportedTypeError) as error:
        skip_java_object(Reader(data, "f"))
    assert f"f has {what}" in str(error.value)
    assert "so the end of the Java object is unknown" in str(error.value)


def test_a_chain_of_some_objects_is_skipped() -> None:
    reader = Reader(make_chain(90) + b"rest", "f")
    skip_java_object(reader)
    assert reader.remaining == 4


@pytest.mark.parametrize("data", [b"text", JAVA_STREAM + b"\x10", JAVA_STREAM + b"q\0\x7e\0\0"])
def test_other_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(DamagedFileError):
        skip_java_object(Reader(data, "f"))


def test_an_object_stays_bytes_beside_a_field_with_a_column() -> None:
    flink_type = TupleType("Tuple2", (JavaObjectType(), Scalar("Boolean")))
    streams = [bytes.fromhex(text) for text in OBJECTS.values()]
    spans = Spans.from_values([stream + b"\1" for stream in streams], "f")
    column = decode_values(flink_type, spans)
    assert column.field(0).to_pylist() == streams
    assert column.field(1).to_pylist() == [True] * len(streams)
    assert flink_type.write(column).to_pylist() == spans.arrow().to_pylist()
