"""Types that Flink's runtime wraps around values: TTL, timers, elements of streams; and bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import skip_java_object, utf
from statestore.interop.flink.metadata.snapshot_format import (
    FLAG,
    FLINK,
    SNAPSHOT,
    Member,
    SnapshotReader,
    composite,
    encode_parts,
    inner_class,
    plain,
    simple,
)
from statestore.interop.flink.types.base import (
    FlinkType,
    Layout,
    OpaqueType,
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
from statestore.interop.flink.types.key_hash import GroupFunction
from statestore.interop.flink.types.layouts import Choice, Leaf, Struct, Tagged, Tags
from statestore.interop.flink.types.scalars import Scalar

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

    snapshots = (
        composite(
            f"{FLINK}runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot",
            2,
            {"value": Member(_read_ttl_value, lambda value: encode_parts((_LONG, value)))},
        ),
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
