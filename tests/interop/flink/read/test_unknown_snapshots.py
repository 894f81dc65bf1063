"""The end of a snapshot of an unknown class is found only if a single one fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import i32, utf
from statestore.interop.flink.read.canonical import KeyedHeader, StateInfo, header_bytes
from statestore.interop.flink.read.operator_parts import read_whole_header, read_whole_snapshot
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.internal_types import UnknownType
from statestore.interop.flink.types.java_types import ListType, Scalar
from statestore.interop.flink.types.serializer_snapshots import SerializerSnapshot
from tests.interop.flink.limits import in_time

LONG, TEXT, VOID = Scalar("Long"), Scalar("String"), Scalar("VoidNamespace")
NO_END = "the length of its snapshot is unknown"
bodies = st.binary(max_size=40).map(lambda tail: i32(1) + tail)


def own(body: bytes, name: str = "com.acme.OwnSnapshot") -> UnknownType:
    """Return a type of the job, whose snapshot has a version and then only the job knows what."""
    return UnknownType(name, body)


def snapshot(flink_type: FlinkType) -> SerializerSnapshot:
    return SerializerSnapshot(flink_type, flink_type.snapshot())


def header(key: FlinkType, *values: FlinkType) -> KeyedHeader:
    """Return a header with a state for each type of values."""
    states = tuple(
        StateInfo(
            f"state-{number}",
            "keyed",
            {"KEYED_STATE_TYPE": "VALUE"},
            {"NAMESPACE_SERIALIZER": snapshot(VOID), "VALUE_SERIALIZER": snapshot(value)},
        )
        for number, value in enumerate(values)
    )
    return KeyedHeader(False, snapshot(key), states)


@given(bodies)
def test_the_end_of_one_snapshot_is_found(body: bytes) -> None:
    for wanted in (header(TEXT, LONG, own(body), TEXT), header(own(body), LONG)):
        data = header_bytes(wanted)
        found = read_whole_header(data, "f")
        assert (found.key, found.states, found.length) == (wanted.key, wanted.states, len(data))


def test_the_ends_of_several_snapshots_are_found() -> None:
    first, second = own(i32(1) + b"first"), own(i32(7) + utf("second"), "Other")
    wanted = header(first, second, LONG, ListType(second), first)
    assert read_whole_header(header_bytes(wanted), "f").states == wanted.states


@given(bodies)
def test_the_snapshot_of_a_record_is_read_again(body: bytes) -> None:
    raw = ListType(own(body)).snapshot()
    assert read_whole_snapshot(i32(2) + raw, "f") == SerializerSnapshot(ListType(own(body)), raw)


def test_a_header_without_unknown_classes_is_read_as_before() -> None:
    wanted = header(TEXT, LONG)
    assert read_whole_header(header_bytes(wanted), "f").states == wanted.states


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_no_end_fits_a_header_that_stops_early(cut: int) -> None:
    data = header_bytes(header(TEXT, own(i32(1) + b"body"), LONG))
    with pytest.raises(UnsupportedTypeError, match=NO_END):
        read_whole_header(data[:-cut], "f")


def test_several_ends_are_not_guessed() -> None:
    """A body that has the beginning of the next snapshot in it can end before it, or after it."""
    inner = utf("VALUE_SERIALIZER") + i32(2) + utf("com.acme.Inner") + i32(1)
    twice = StateInfo(
        "state",
        "keyed",
        {"KEYED_STATE_TYPE": "VALUE"},
        {
            "NAMESPACE_SERIALIZER": snapshot(own(i32(1) + inner)),
            "VALUE_SERIALIZER": snapshot(own(i32(1), "com.acme.Inner")),
        },
    )
    data = header_bytes(KeyedHeader(False, snapshot(TEXT), (twice,)))
    with pytest.raises(UnsupportedTypeError, match=NO_END):
        read_whole_header(data, "f")


LEAD = header_bytes(header(TEXT)).removesuffix(b"\0\0")
UNKNOWN = i32(2) + utf("a.B") + i32(1)
STATE = utf("") + i32(0) + i32(0) + i32(60_000)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(LEAD + b"\0\1" + STATE + (utf("") + UNKNOWN) * 60_000, id="nested classes"),
        pytest.param(LEAD + b"\0\1" + STATE + utf("") + UNKNOWN + bytes(1_000_000), id="zeros"),
        pytest.param(
            LEAD + b"\0\x40" + (utf("") + i32(0) * 2 + i32(1) + utf("") + UNKNOWN) * 20_000,
            id="states",
        ),
        pytest.param(i32(6) + b"\0" + UNKNOWN + (b"\xff\xff" + b"\0\0" * 99) * 5_000, id="counts"),
        pytest.param(i32(6) + b"\0" + UNKNOWN + bytes(30 << 20), id="a long header"),
    ],
)
def test_the_cost_of_a_hostile_header_is_bounded(data: bytes) -> None:
    with in_time(), pytest.raises(UnsupportedTypeError, match=NO_END):
        read_whole_header(data, "f")
