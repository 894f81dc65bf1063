"""Serializer snapshots survive a round trip, and unknown ones are not guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import DamagedFileError, FormatVersionError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, i32, utf
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.java_types import NullableType, Scalar, TupleType
from statestore.interop.flink.types.kryo import KryoType
from statestore.interop.flink.types.serializer_snapshots import read_snapshot
from tests.interop.flink.kinds import kinds


@given(kinds)
def test_a_generated_snapshot_survives_a_round_trip(kind: FlinkType) -> None:
    raw = kind.snapshot()
    reader = Reader(i32(2) + raw + b"more", "state")
    found = read_snapshot(reader)
    assert (found.flink_type, found.raw, reader.remaining) == (kind, raw, 4)
    assert kind.java_name


@given(kinds, st.data())
def test_a_truncated_snapshot_is_damaged(kind: FlinkType, data: st.DataObject) -> None:
    raw = i32(2) + kind.snapshot()
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(DamagedFileError):
        read_snapshot(Reader(raw[:cut], "state"))


@given(kinds, st.data())
def test_a_flipped_byte_gives_another_type_or_a_typed_error(
    kind: FlinkType, data: st.DataObject
) -> None:
    raw = bytearray(i32(2) + kind.snapshot())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        found = read_snapshot(Reader(bytes(raw), "state"))
    except (DamagedFileError, FormatVersionError, UnsupportedTypeError):
        return
    assert found.flink_type.java_name


def test_an_unknown_class_is_named() -> None:
    raw = i32(2) + utf("com.acme.OwnSnapshot") + i32(1)
    with pytest.raises(UnsupportedTypeError, match=r"'com\.acme\.OwnSnapshot' at byte 4"):
        read_snapshot(Reader(raw, "state"))


def test_a_snapshot_of_a_simple_type_equals_flinks() -> None:
    name = "org.apache.flink.api.common.typeutils.base.LongSerializer$LongSerializerSnapshot"
    assert Scalar("Long").snapshot() == utf(name) + i32(3)


def test_kryo_is_skipped() -> None:
    empty = bytes.fromhex("000004f2c69a3d7000000000")
    one = bytes.fromhex("000004f2c69a3d70") + i32(1) + utf("a") + b"\1" + i32(2) + b"xy" + b"\0"
    kind = KryoType("a.B", empty + one + empty)
    reader = Reader(i32(2) + kind.snapshot(), "state")
    assert read_snapshot(reader).flink_type == kind
    assert reader.remaining == 0


def test_only_tuples_of_fixed_fields_have_a_width() -> None:
    longs = TupleType("Tuple2", (Scalar("Long"), Scalar("Integer")))
    assert longs.serializer_length == 12
    assert TupleType("Tuple2", (Scalar("Long"), Scalar("String"))).serializer_length is None
    assert NullableType(Scalar("Long"), 8).serializer_length == 9
    assert NullableType(Scalar("Long")).serializer_length is None
