"""The bytes of Flink CEP's state."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import DamagedFileError, FormatVersionError
from statestore.interop.flink.metadata.java_binary import Reader, i32, i64, utf
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.byte_cursor import Spans
from statestore.interop.flink.types.column_bytes import decode_values
from statestore.interop.flink.types.internal_types import CepType
from statestore.interop.flink.types.java_types import ListType
from statestore.interop.flink.types.serializer_snapshots import read_snapshot

EVENT, DEWEY = CepType("EventId"), CepType("DeweyNumber")
NODE = CepType("NodeId", (EVENT,))
EDGE = CepType("Edge", (NODE, DEWEY))
INTS, LONGS = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def record(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(fields)


EVENTS = record(id=INTS, timestamp=LONGS)
NODES = st.none() | record(event_id=EVENTS, page_name=TEXTS)
VERSIONS = st.lists(INTS, max_size=4)
EDGES = record(target=NODES, version=VERSIONS)


def matches(**previous: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, Any]]:
    match = record(
        state_name=TEXTS,
        previous_entry=NODES,
        version=VERSIONS,
        start_timestamp=LONGS,
        **previous,
        start_event=st.none() | EVENTS,
    )
    some = st.lists(match, max_size=3)
    return record(partial_matches=some, completed_matches=some)


VALUES: dict[FlinkType, st.SearchStrategy[Any]] = {
    EVENT: EVENTS,
    DEWEY: VERSIONS,
    NODE: NODES,
    EDGE: EDGES,
    CepType("Lockable", (EDGE,)): record(ref_counter=INTS, element=EDGES),
    CepType("Node", (EDGE,)): st.lists(record(ref_counter=INTS, edge=EDGES), max_size=3),
    CepType("NodeV1", (ListType(EDGE),)): st.lists(EDGES, max_size=3),
    CepType("NFAState", (DEWEY, NODE, EVENT)): matches(),
    CepType("NFAState", (DEWEY, NODE, EVENT), True): matches(previous_timestamp=LONGS),
}


@pytest.mark.parametrize("flink_type", VALUES, ids=str)
@given(data=st.data())
def test_values_are_written_read_and_skipped(flink_type: FlinkType, data: Any) -> None:
    values = data.draw(st.lists(VALUES[flink_type], max_size=5))
    column = pa.array(values, flink_type.arrow_type())
    written = flink_type.write(column).to_pylist()
    assert decode_values(flink_type, Spans.from_values(written, "f")).to_pylist() == values
    reader, ends = Reader(b"".join(written), "f"), []
    for _ in written:
        begin = reader.position
        flink_type.skipper()(reader)
        ends.append(reader.position - begin)
    assert ends == list(map(len, written))


def test_the_bytes_of_a_match_are_flinks() -> None:
    event = i32(3) + i64(1000)
    node = b"\1" + event + b"\2a"
    match = b"\3ab" + node + i32(2) + i32(1) + i32(0) + i64(7) + i64(9) + b"\1" + event
    nfa = CepType("NFAState", (DEWEY, NODE, EVENT), has_previous_time=True)
    raw = i32(1) + match + i32(0)
    found = decode_values(nfa, Spans.from_values([raw], "f"))
    assert found.to_pylist() == [
        {
            "partial_matches": [
                {
                    "state_name": "ab",
                    "previous_entry": {
                        "event_id": {"id": 3, "timestamp": 1000},
                        "page_name": "a",
                    },
                    "version": [1, 0],
                    "start_timestamp": 7,
                    "previous_timestamp": 9,
                    "start_event": {"id": 3, "timestamp": 1000},
                }
            ],
            "completed_matches": [],
        }
    ]
    assert nfa.write(found).to_pylist() == [raw]


@pytest.mark.parametrize("raw", [b"\2", b"\1" + 11 * b"\0", struct.pack(">i", -1)])
def test_impossible_bytes_are_damage(raw: bytes) -> None:
    lists = CepType("Node", (EDGE,))
    with pytest.raises(DamagedFileError):
        decode_values(NODE if len(raw) != 4 else lists, Spans.from_values([raw], "f"))


def test_a_snapshot_of_an_old_flink_is_named() -> None:
    raw = i32(2) + EVENT.snapshot()[:-4] + i32(1)
    with pytest.raises(FormatVersionError, match=r"EventIdSerializerSnapshot of version 1, which"):
        read_snapshot(Reader(raw, "header"))
    named = i32(2) + EVENT.snapshot()[:-4] + i32(2) + utf("EventId$EventIdSerializer")
    assert read_snapshot(Reader(named, "header")).flink_type == EVENT


def test_a_wrong_number_of_parts_is_damage() -> None:
    raw = i32(2) + CepType("Edge", (NODE,)).snapshot()
    with pytest.raises(DamagedFileError, match="found 1 nested snapshots, not 2"):
        read_snapshot(Reader(raw, "header"))
