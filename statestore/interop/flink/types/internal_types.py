"""Types of Flink's runtime: TTL, timers, elements of streams, bytes, and the state of Flink CEP.

The state of CEP, also of ``MATCH_RECOGNIZE``, has partial matches and the buffer of their events.
Each of its classes has a fixed layout. A snapshot only names the class and the snapshots of its
parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import skip_java_object, utf
from statestore.interop.flink.metadata.snapshot_format import (
    FLAG,
    FLINK,
    SNAPSHOT,
    Member,
    SnapshotForm,
    SnapshotReader,
    composite,
    encode_parts,
    flag_since,
    inner_class,
    plain,
    simple,
)
from statestore.interop.flink.types.base import (
    FlinkType,
    Layout,
    OpaqueType,
    generic_name,
    short_name,
)
from statestore.interop.flink.types.byte_cursor import (
    BYTES,
    Cursor,
    Skip,
    Spans,
    list_offsets,
    skip_sized,
)
from statestore.interop.flink.types.column_bytes import (
    join_runs,
    list_lengths,
    refuse_nulls,
    split_elements,
    write_sized,
)
from statestore.interop.flink.types.java_types import Scalar, present
from statestore.interop.flink.types.key_hash import GroupFunction
from statestore.interop.flink.types.layouts import Choice, Counted, Leaf, Struct, Tagged, Tags

_LONG = Scalar("Long")


def _read_ttl_value(snapshot: SnapshotReader) -> FlinkType:
    begin = snapshot.reader.position
    stamp, value = snapshot.parts(2)
    if stamp != _LONG:
        raise snapshot.reader.error("the last-access time is not a Long", position=begin)
    assert isinstance(value, FlinkType), "a snapshot describes a type"
    return value


@dataclass(frozen=True, slots=True)
class TtlType(FlinkType):
    """A value and the time of its last access, in milliseconds since 1970."""

    value: FlinkType

    # The second is of ForSt's states, and of the same form.
    snapshots = tuple(
        composite(
            f"{FLINK}runtime.state.{package}.TtlStateFactory$TtlSerializerSnapshot",
            2,
            {"value": Member(_read_ttl_value, lambda value: encode_parts((_LONG, value)))},
        )
        for package in ("ttl", "v2.ttl")
    )

    def _make_layout(self) -> Layout:
        return Struct(("last_access", "value"), (_LONG, self.value))


@dataclass(frozen=True, slots=True)
class TtlAwareType(FlinkType):
    """The element of a list or the value of a map, which may have a TTL."""

    value: FlinkType
    has_ttl: bool

    snapshots = (
        plain(
            f"{FLINK}runtime.state.ttl.TtlAwareSerializerSnapshot",
            1,
            {"has_ttl": FLAG, "value": SNAPSHOT},
        ),
    )

    def _java_name(self) -> str:
        return self.value.java_name

    def _make_layout(self) -> Layout:
        return self.value


@dataclass(frozen=True, slots=True)
class TimerType(FlinkType):
    """A timer of a key and a namespace.

    The time has its sign bit flipped, so that bytes sort by time (``TimerSerializer``).
    """

    key: FlinkType
    namespace: FlinkType

    snapshots = (
        composite(
            f"{FLINK}streaming.api.operators.TimerSerializerSnapshot",
            2,
            parts=("key", "namespace"),
        ),
    )

    def _make_layout(self) -> Layout:
        time = Scalar("SortedLong")
        return Struct(("time", "key", "namespace"), (time, self.key, self.namespace))


_TIMED, _UNTIMED, _WATERMARK = range(3)
_ELEMENTS = Tags(
    _TIMED,
    _WATERMARK,
    problem="a stream element of kind {} is neither a record nor a watermark: leave the state out",
    is_known=True,
)


@dataclass(frozen=True, slots=True)
class StreamElementType(FlinkType):
    """A record of a stream, with or without a time, or a watermark, a time without a value.

    Operators that call other services keep their pending records in this form.
    """

    value: FlinkType

    snapshots = (
        composite(
            inner_class(f"{FLINK}streaming.runtime.streamrecord.", "StreamElementSerializer"),
            2,
            parts=("value",),
        ),
    )

    def _make_layout(self) -> Layout:
        time = Choice("timestamp", _LONG, (_TIMED, _WATERMARK))
        return Tagged(_ELEMENTS, (time, Choice("value", self.value, (_TIMED, _UNTIMED))))


@dataclass(frozen=True, slots=True)
class PythonType(FlinkType):
    """Bytes that PyFlink wrote, with the type that the user declares: one value, or several."""

    value: FlinkType
    many: bool = False

    def _make_layout(self) -> Layout:
        inner = self.value.arrow_type()
        if self.many:
            return Leaf(pa.list_(inner), skip_sized, self._read_list, self._write_list)
        return Leaf(inner, skip_sized, self._read_value, self._write_value)

    def _read_value(self, cursor: Cursor) -> pa.Array:
        inner = _take_sized(cursor)
        values = self.value.read(inner)
        inner.refuse(inner.position != inner.end, "unexpected bytes follow a value")
        return values

    def _read_list(self, cursor: Cursor) -> pa.Array:
        inner = _take_sized(cursor)
        starts, counts = split_elements(self.value, inner, between=0)
        values = self.value.read(Cursor(cursor.spans, starts, np.repeat(inner.end, counts)))
        return pa.ListArray.from_arrays(list_offsets(counts), values)

    def _write_value(self, array: pa.Array) -> pa.Array:
        return write_sized(self.value.write(array))

    def _write_list(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        return write_sized(join_runs(self.value.write(array.flatten()), list_lengths(array)))


def _take_sized(cursor: Cursor) -> Cursor:
    """Return a cursor over the bytes after their length, and advance past them."""
    lengths = cursor.counts(1)
    inner = Cursor(cursor.spans, cursor.position, cursor.position + lengths)
    cursor.position = inner.end
    return inner


@dataclass(frozen=True, slots=True)
class JavaObjectType(FlinkType):
    """An object of any class that is ``Serializable``, as a stream of Java's serialization.

    Elements of operator state have this type if the job declares none. The column has the bytes of
    the stream, also for a text or a number: the snapshot does not tell the class, which can differ
    between elements. The bytes are exported unchanged.
    """

    snapshots = (simple(inner_class(f"{FLINK}runtime.state.", "JavaSerializer")),)

    def _java_name(self) -> str:
        return "Serializable"

    def _make_layout(self) -> Layout:
        return bytes_layout(skip_java_object)


@dataclass(frozen=True, slots=True)
class UndecodedType(FlinkType):
    """A value of another type as bytes, such as a key whose hash only the job can compute.

    The end of a value must follow from its type, so that the next part of the entry is found.
    """

    value: FlinkType

    def _java_name(self) -> str:
        return self.value.java_name

    def _serializer_length(self) -> int | None:
        return self.value.serializer_length

    def _fixed_width(self) -> int | None:
        return self.value.fixed_width

    def _arrow_type(self) -> pa.DataType:
        return pa.binary()

    def _skipper(self) -> Skip:
        return self.value.skipper()

    def _read(self, cursor: Cursor) -> pa.Array:
        return read_slices(cursor, self.skipper())

    def _write(self, array: pa.Array) -> pa.Array:
        return write_bytes(array)

    def _key_groups(self, cursor: Cursor) -> GroupFunction:
        return self.value.key_groups(cursor)

    def snapshot(self) -> bytes:
        """Return the snapshot of the values' type."""
        return self.value.snapshot()


def plain_type(flink_type: FlinkType) -> FlinkType:
    """Return the type of values that may stay bytes."""
    return flink_type.value if isinstance(flink_type, UndecodedType) else flink_type


def bytes_layout(skip: Skip) -> Leaf:
    """Return the layout of values that stay bytes, each of which ``skip`` skips."""
    return Leaf(pa.binary(), skip, lambda cursor: read_slices(cursor, skip), write_bytes)


def write_bytes(array: pa.Array) -> pa.Array:
    """Return values that stay bytes."""
    refuse_nulls(array)
    return array.cast(BYTES)


def read_slices(cursor: Cursor, skip: Skip) -> pa.Array:
    """Return the bytes of each value at the cursor, which ``skip`` skips, and advance past them."""
    begins, ends = cursor.position, cursor.position.copy()
    for row in range(len(cursor)):
        reader = cursor.reader(row)
        skip(reader)
        ends[row] += reader.position
    cursor.position = ends
    return Spans(cursor.spans.data, begins, ends, cursor.spans.name).arrow().cast(pa.binary())


@dataclass(frozen=True, slots=True)
class UnknownType(OpaqueType):
    """An unsupported class whose snapshot has a known end; its values stay bytes.

    Any class whose snapshot has only nested snapshots becomes this type.
    """

    class_name: str
    body: bytes

    def _java_name(self) -> str:
        return short_name(self.class_name)

    def snapshot(self) -> bytes:
        """Return the snapshot that was read."""
        return utf(self.class_name) + self.body


CepClass = Literal[
    "EventId", "DeweyNumber", "NodeId", "Lockable", "Edge", "Node", "NodeV1", "NFAState"
]

_CEP = f"{FLINK}cep.nfa."
_BUFFER = f"{_CEP}sharedbuffer."
_NODE_V1 = f"{_BUFFER}SharedBufferNode$SharedBufferNodeSerializer"
_INT, _TEXT = Scalar("Integer"), Scalar("String")


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
