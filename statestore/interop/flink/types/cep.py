"""State of Flink CEP, also of ``MATCH_RECOGNIZE``: partial matches, and the buffer of their events.

Each class has a fixed layout. A snapshot only names the class and the snapshots of its parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from statestore.interop.flink.metadata.snapshot_format import (
    FLINK,
    Member,
    SnapshotForm,
    composite,
    encode_parts,
    flag_since,
    simple,
)
from statestore.interop.flink.types.base import FlinkType, Layout, generic_name
from statestore.interop.flink.types.java_types import present
from statestore.interop.flink.types.layouts import Counted, Struct
from statestore.interop.flink.types.scalars import Scalar

CepClass = Literal[
    "EventId", "DeweyNumber", "NodeId", "Lockable", "Edge", "Node", "NodeV1", "NFAState"
]

_CEP = f"{FLINK}cep.nfa."
_BUFFER = f"{_CEP}sharedbuffer."
_NODE_V1 = f"{_BUFFER}SharedBufferNode$SharedBufferNodeSerializer"
_INT, _LONG, _TEXT = Scalar("Integer"), Scalar("Long"), Scalar("String")


def _form(name: CepClass, class_name: str, count: int, version: int = 1) -> SnapshotForm:
    """Return the snapshot of a class that consists of ``count`` other types."""
    parts = Member(lambda snapshot: snapshot.parts(count), encode_parts)
    return composite(class_name, version, {"parts": parts}, name=name)


_MATCHES = f"{_CEP}NFAStateSerializerSnapshot"
_MATCH_PARTS = Member(lambda snapshot: snapshot.parts(3), encode_parts)


@dataclass(frozen=True, slots=True)
class CepType(FlinkType):
    """A class of Flink CEP.

    ``parts`` are the types whose snapshots its snapshot nests. ``has_previous_time`` is true if the
    matches of an ``NFAState`` have the time of the previous event, too. In ``NodeV1``, the first
    version of a buffer node, the edges have no reference counters.
    """

    name: CepClass
    parts: tuple[FlinkType, ...] = ()
    has_previous_time: bool = False

    snapshots = (
        simple(f"{_BUFFER}EventId$EventIdSerializer$EventIdSerializerSnapshot", name="EventId"),
        simple(
            f"{_CEP}DeweyNumber$DeweyNumberSerializer$DeweyNumberSerializerSnapshot",
            name="DeweyNumber",
        ),
        _form("NodeId", f"{_BUFFER}NodeId$NodeIdSerializer$NodeIdSerializerSnapshot", 1),
        _form("Lockable", f"{_BUFFER}LockableTypeSerializerSnapshot", 1),
        _form(
            "Edge",
            f"{_BUFFER}SharedBufferEdge$SharedBufferEdgeSerializer"
            "$SharedBufferEdgeSerializerSnapshot",
            2,
        ),
        _form("Node", f"{_BUFFER}SharedBufferNodeSerializerSnapshotV2", 1),
        _form("NodeV1", f"{_NODE_V1}$SharedBufferNodeSerializerSnapshot", 1),
        composite(
            _MATCHES,
            2,
            {"has_previous_time": flag_since(2), "parts": _MATCH_PARTS},
            name="NFAState",
            has_previous_time=True,
        ),
        composite(_MATCHES, 1, {"parts": _MATCH_PARTS}, name="NFAState", has_previous_time=False),
    )

    @property
    def is_record(self) -> bool:
        """Whether a value consists of named fields."""
        return isinstance(self.layout, Struct)

    def _java_name(self) -> str:
        if self.name == "Lockable":
            return generic_name(self.name, *self.parts)
        return {"Edge": "SharedBufferEdge", "Node": "SharedBufferNode"}.get(
            self.name.removesuffix("V1"), self.name
        )

    def _serializer_length(self) -> int | None:
        return self.fixed_width if self.name == "EventId" else None

    def _make_layout(self) -> Layout:
        parts = self.parts
        match self.name:
            case "EventId":
                return _make_record(id=_INT, timestamp=_LONG)
            case "DeweyNumber":
                return Counted(_INT)
            case "NodeId":
                return present(_make_record(event_id=parts[0], page_name=_TEXT))
            case "Lockable":
                return _make_record(ref_counter=_INT, element=parts[0])
            case "Edge":
                return _make_record(target=parts[0], version=parts[1])
            case "Node":
                return Counted(_make_record(ref_counter=_INT, edge=parts[0]))
            case "NodeV1":
                return parts[0]
            case "NFAState":
                matches = Counted(_make_match(*parts, has_previous_time=self.has_previous_time))
                return _make_record(partial_matches=matches, completed_matches=matches)


def _make_match(version: Layout, node: Layout, event: Layout, *, has_previous_time: bool) -> Layout:
    """Return the layout of a ``ComputationState``: the progress and the start time of a match."""
    previous_time = {"previous_timestamp": _LONG} if has_previous_time else {}
    return _make_record(
        state_name=_TEXT,
        previous_entry=node,
        version=version,
        start_timestamp=_LONG,
        **previous_time,
        start_event=present(event),
    )


def _make_record(**fields: Layout) -> Struct:
    return Struct(tuple(fields), tuple(fields.values()))
