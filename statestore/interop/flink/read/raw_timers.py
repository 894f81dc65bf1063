"""Timers in raw keyed state: those of a RocksDB job that keeps its timers on the heap.

A key group (``InternalTimersSnapshotReaderWriters``, version 2) begins with a magic number, i32 2,
and i32 number of timer services. Each service has its name, the snapshots of the key's and the
namespace's serializer, i32 number of event timers, the timers, and the same for processing timers.
A timer is its key, its namespace, and i64 time.

Timers become two keyed states for each service, as a savepoint of any other job has them. Nothing
has a length prefix, so one key group at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from statestore.errors import DamagedFileError
from statestore.interop.flink.metadata.handles import KeyGroupsHandle
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.metadata.versions import unsupported_version
from statestore.interop.flink.read.canonical import Entries, KeyedHeader, StateInfo
from statestore.interop.flink.read.heap import jump_over, walk
from statestore.interop.flink.read.keyed_states import FlinkState, keyed_state
from statestore.interop.flink.read.savepoint_files import ByteSource, Places, open_source
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.byte_slices import BYTES, Spans, join_parts
from statestore.interop.flink.types.internal_types import TimerType
from statestore.interop.flink.types.serializer_snapshots import (
    SerializerSnapshot,
    read_bare_snapshot,
)
from statestore.keys.groups import KeyGroupRange

_MAGIC = 0xF1CD859F - (1 << 32)
_VERSION = 2
_STATES = ("_timer_state/event_", "_timer_state/processing_")
_TIME_BYTES = 8
_SIGN = 0x80

_Service: TypeAlias = tuple[str, FlinkType, FlinkType]
"""The name of a timer service, and the types of its keys and namespaces."""


def begins_with_timers(handle: KeyGroupsHandle, source: ByteSource) -> bool:
    """Return whether raw keyed state has timers instead of bytes in the operator's own format.

    Raises DamagedFileError if a key group begins after the end of the bytes.
    """
    first = min(handle.offsets)
    return source.read(first, min(first + 4, source.size)) == _MAGIC.to_bytes(4, "big", signed=True)


@dataclass(frozen=True, eq=False)
class TimersPart:
    """The timers of one subtask, as keyed states without values.

    It has the attributes of a ``KeyedPart``.
    """

    subtask: int
    handle: KeyGroupsHandle
    header: KeyedHeader
    states: tuple[FlinkState, ...]
    title: str
    prefix: int
    places: Places
    is_canonical: bool = False
    is_bare: bool = False

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"timers of {self.title}, subtask {self.subtask}"

    @property
    def key_groups(self) -> KeyGroupRange:
        """Its key groups."""
        return _key_groups(self.handle)

    def entries(
        self, wanted: Collection[str], key_groups: KeyGroupRange | None = None
    ) -> Iterator[Entries]:
        """Yield the timers of the ``wanted`` states, by key group, as canonical entries.

        Raises:
            DamagedFileError or MissingFileError: if a file is damaged or missing.
            UnsupportedTypeError: for a key or namespace whose end cannot be determined.
        """
        selected = self.key_groups.intersect(key_groups or self.key_groups)
        numbers = {state.name: number for number, state in enumerate(self.states)}
        source = open_source(self.handle.stream, self.places, self.name)
        for key_group in selected or ():
            for service, sort, spans in _read_key_group(source, self.handle, key_group):
                state = _STATES[sort] + service[0]
                number = numbers.get(state)
                if number is None or (service[1], service[2]) != self._types(number):
                    raise DamagedFileError(
                        f"{source.name} is damaged: key group {key_group} has timers of "
                        f"{service[0]!r} with other types than the first key group"
                    )
                if state in wanted and len(spans):
                    keys = _add_key_group(spans, key_group, self.prefix)
                    none = np.zeros(len(spans), np.int64)
                    empty = Spans(np.empty(0, np.uint8), none, none, source.name)
                    yield Entries(number, key_group, keys, empty)

    def _types(self, number: int) -> tuple[FlinkType, FlinkType]:
        value = self.header.states[number].serializers["VALUE_SERIALIZER"].flink_type
        assert isinstance(value, TimerType), "the header was built from timers"
        return value.key, value.namespace


def open_timers(
    handle: KeyGroupsHandle, subtask: int, title: str, prefix: int, places: Places
) -> TimersPart | None:
    """Return the timers of a subtask; None if it has no timer service.

    Args:
        handle: its raw keyed state, for which :func:`begins_with_timers` is true.
        subtask: its number.
        title: the operator's name in messages.
        prefix: how many bytes of a key are its key group.
        places: where the files are.

    Raises:
        FormatVersionError: for the format of a Flink before 1.8.
        DamagedFileError or MissingFileError: if a file is damaged or missing.
        UnsupportedTypeError: for an unsupported serializer.
    """
    what = f"timers of {title}, subtask {subtask}"
    source = open_source(handle.stream, places, what)
    services = [service for service, sort, _ in _read_key_group(source, handle, handle.first)]
    services = list(dict.fromkeys(services))
    if not services:
        return None
    key = services[0][1]
    infos = tuple(_state_info(service, start) for service in services for start in _STATES)
    header = KeyedHeader(False, SerializerSnapshot(key, key.snapshot()), infos)
    states = tuple(keyed_state(info, key, source.name) for info in infos)
    return TimersPart(subtask, handle, header, states, title, prefix, places)


def _state_info(service: _Service, name_start: str) -> StateInfo:
    name, key, namespace = service
    timer = TimerType(key, namespace)
    snapshot = SerializerSnapshot(timer, timer.snapshot())
    return StateInfo(name_start + name, "timers", {}, {"VALUE_SERIALIZER": snapshot})


def _key_groups(handle: KeyGroupsHandle) -> KeyGroupRange:
    return KeyGroupRange(handle.first, handle.first + len(handle.offsets) - 1)


def _read_key_group(
    source: ByteSource, handle: KeyGroupsHandle, key_group: int
) -> Iterator[tuple[_Service, int, Spans]]:
    """Yield each service twice, with its event timers and with its processing timers.

    A timer is a time in the order of its bytes, a key and a namespace.
    """
    begin = handle.offsets[key_group - handle.first]
    stop = dict(pairwise(sorted({*handle.offsets, source.size}))).get(begin, begin)
    reader = Reader(source.read(begin, stop), source.name, base=begin)
    reader.expect(_MAGIC, "the magic number of timers")
    version = reader.i32()
    if version != _VERSION:
        raise unsupported_version(source.name, "timers", version)
    for _ in range(reader.count(10, "timer services")):
        name = reader.utf()
        key, namespace = read_bare_snapshot(reader), read_bare_snapshot(reader)
        for sort in range(len(_STATES)):
            yield (name, key, namespace), sort, _read_timers(reader, (key, namespace))
    reader.end(f"key group {key_group}")


def _read_timers(reader: Reader, types: Sequence[FlinkType]) -> Spans:
    """Read a count and as many timers; return each as time, key and namespace."""
    count = reader.count(_TIME_BYTES, "timers")
    jumps = [*(jump_over(reader, part) for part in types), _TIME_BYTES.__add__]
    if not count:
        return Spans.from_values([], reader.name)
    begins, end = walk(reader, count, jumps)
    keys, namespaces, times = (np.array(places, np.int64) for places in begins)
    reader.position = end
    data = np.frombuffer(reader.data, np.uint8)
    ordered = data[times[:, None] + np.arange(_TIME_BYTES)]
    ordered[:, 0] ^= _SIGN  # ``TimerSerializer`` flips the sign, so that bytes sort as times
    parts = (
        _fixed(ordered),
        Spans(data, keys, namespaces, reader.name).arrow().cast(BYTES),
        Spans(data, namespaces, times, reader.name).arrow().cast(BYTES),
    )
    return Spans.from_array(join_parts(*parts), reader.name)


def _fixed(rows: np.ndarray) -> pa.Array:
    """Return rows of bytes of the same length as an array."""
    width = pa.binary(rows.shape[1])
    data = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(width, len(rows), [None, data]).cast(BYTES)


def _add_key_group(timers: Spans, key_group: int, prefix: int) -> Spans:
    group = pa.scalar(key_group.to_bytes(prefix, "big"), BYTES)
    return Spans.from_array(join_parts(group, timers.arrow().cast(BYTES)), timers.name)
