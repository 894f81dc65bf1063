"""State of Flink CEP, also of ``MATCH_RECOGNIZE``: partial matches, and the buffer of their events.

Each class has a fixed layout, which consists of layouts of other types: a record of named fields, a
list, or a value with a flag. A snapshot only names the class and the snapshots of its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import i8
from statestore.interop.flink.metadata.snapshot_format import FLINK, encode_simple
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.decode import build_struct
from statestore.interop.flink.types.encode import write_fields
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    WrapperType,
    encode_parts,
    generic_name,
    total_width,
)
from statestore.interop.flink.types.families.lists import ListType, PresentType
from statestore.interop.flink.types.families.scalar import Scalar
from statestore.interop.flink.types.value_lengths import Skip, make_sequence_skip

CepClass = Literal[
    "EventId", "DeweyNumber", "NodeId", "Lockable", "Edge", "Node", "NodeV1", "NFAState"
]

_CEP = f"{FLINK}cep.nfa."
_BUFFER = f"{_CEP}sharedbuffer."
_NODE_V1 = f"{_BUFFER}SharedBufferNode$SharedBufferNodeSerializer"
_SNAPSHOTS: dict[CepClass, str] = {
    "EventId": f"{_BUFFER}EventId$EventIdSerializer$EventIdSerializerSnapshot",
    "DeweyNumber": f"{_CEP}DeweyNumber$DeweyNumberSerializer$DeweyNumberSerializerSnapshot",
    "NodeId": f"{_BUFFER}NodeId$NodeIdSerializer$NodeIdSerializerSnapshot",
    "Lockable": f"{_BUFFER}LockableTypeSerializerSnapshot",
    "Edge": (
        f"{_BUFFER}SharedBufferEdge$SharedBufferEdgeSerializer$SharedBufferEdgeSerializerSnapshot"
    ),
    "Node": f"{_BUFFER}SharedBufferNodeSerializerSnapshotV2",
    "NodeV1": f"{_NODE_V1}$SharedBufferNodeSerializerSnapshot",
    "NFAState": f"{_CEP}NFAStateSerializerSnapshot",
}
_PART_COUNTS: dict[CepClass, int] = {
    "EventId": 0,
    "DeweyNumber": 0,
    "NodeId": 1,
    "Lockable": 1,
    "Edge": 2,
    "Node": 1,
    "NodeV1": 1,
    "NFAState": 3,
}
_INT, _LONG, _TEXT = Scalar("Integer"), Scalar("Long"), Scalar("String")
_FIRST_WITH_PREVIOUS_TIME = 2


@dataclass(frozen=True, slots=True)
class RecordType(FlinkType):
    """Named fields, one after another, in a class whose serializer defines their order."""

    names: tuple[str, ...]
    fields: tuple[FlinkType, ...]

    def _java_name(self) -> str:
        return generic_name("Record", *self.fields)

    def _serializer_length(self) -> int | None:
        return total_width([field.serializer_length for field in self.fields])

    def _fixed_width(self) -> int | None:
        return total_width([field.fixed_width for field in self.fields])

    def _column_count(self) -> int:
        return sum(field.column_count for field in self.fields)

    def _arrow_type(self) -> pa.DataType:
        columns = zip(self.names, self.fields, strict=True)
        return pa.struct([pa.field(name, field.arrow_type()) for name, field in columns])

    def _skipper(self) -> Skip:
        return make_sequence_skip(*(field.skipper() for field in self.fields))

    def _read(self, cursor: Cursor) -> pa.Array:
        return build_struct([field.read(cursor) for field in self.fields], self.arrow_type())

    def _write(self, array: pa.Array) -> pa.Array:
        return write_fields(array, self.fields)

    def _snapshot(self) -> bytes:
        raise UnsupportedTypeError(
            f"the serializer of its class writes the fields of {self.java_name}, so they have no "
            "snapshot"
        )

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {}


@dataclass(frozen=True, slots=True)
class CepType(WrapperType):
    """A class of Flink CEP.

    ``parts`` are the types whose snapshots its snapshot nests. ``has_previous_time`` is true if the
    matches of an ``NFAState`` have the time of the previous event, too. In ``NodeV1``, the first
    version of a buffer node, the edges have no reference counters.
    """

    name: CepClass
    parts: tuple[FlinkType, ...] = ()
    has_previous_time: bool = False

    @property
    def is_record(self) -> bool:
        """Whether a value consists of named fields."""
        return isinstance(self._wrapped, RecordType)

    @property
    def _wrapped(self) -> FlinkType:
        return _make_layout(self)

    def _java_name(self) -> str:
        if self.name == "Lockable":
            return generic_name(self.name, *self.parts)
        return {"Edge": "SharedBufferEdge", "Node": "SharedBufferNode"}.get(
            self.name.removesuffix("V1"), self.name
        )

    def _serializer_length(self) -> int | None:
        return self._wrapped.serializer_length if self.name == "EventId" else None

    def _snapshot(self) -> bytes:
        class_name = _SNAPSHOTS[self.name]
        if not _PART_COUNTS[self.name]:
            return encode_simple(class_name)
        if self.name == "NFAState" and self.has_previous_time:
            return encode_parts(class_name, 2, i8(True), *self.parts)
        return encode_parts(class_name, 1, b"", *self.parts)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {class_name: _make_parser(name) for name, class_name in _SNAPSHOTS.items()}


@lru_cache(maxsize=512)
def _make_layout(cep_type: CepType) -> FlinkType:
    """Return the layout of a class's values."""
    parts = cep_type.parts
    match cep_type.name:
        case "EventId":
            return _make_record(id=_INT, timestamp=_LONG)
        case "DeweyNumber":
            return ListType(_INT)
        case "NodeId":
            return PresentType(_make_record(event_id=parts[0], page_name=_TEXT))
        case "Lockable":
            return _make_record(ref_counter=_INT, element=parts[0])
        case "Edge":
            return _make_record(target=parts[0], version=parts[1])
        case "Node":
            return ListType(_make_record(ref_counter=_INT, edge=parts[0]))
        case "NodeV1":
            return parts[0]
        case "NFAState":
            matches = ListType(_make_match(*parts, has_previous_time=cep_type.has_previous_time))
            return _make_record(partial_matches=matches, completed_matches=matches)


def _make_match(
    version: FlinkType, node: FlinkType, event: FlinkType, *, has_previous_time: bool
) -> FlinkType:
    """Return the layout of a ``ComputationState``: the progress and the start time of a match."""
    previous_time = {"previous_timestamp": _LONG} if has_previous_time else {}
    return _make_record(
        state_name=_TEXT,
        previous_entry=node,
        version=version,
        start_timestamp=_LONG,
        **previous_time,
        start_event=PresentType(event),
    )


def _make_record(**fields: FlinkType) -> RecordType:
    return RecordType(tuple(fields), tuple(fields.values()))


def _make_parser(name: CepClass) -> Callable[[SnapshotReader], FlinkType]:
    def parse(snapshot: SnapshotReader) -> FlinkType:
        count = _PART_COUNTS[name]
        if not count:
            snapshot.simple_body(_SNAPSHOTS[name])
            return CepType(name)
        has_flag = snapshot.outer_version() >= _FIRST_WITH_PREVIOUS_TIME and name == "NFAState"
        has_previous_time = has_flag and snapshot.reader.bool()
        return CepType(name, snapshot.parts(count), has_previous_time)

    return parse
