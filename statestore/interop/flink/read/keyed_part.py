"""The keyed state of one subtask, for every state backend: entries by key group, and raw timers.

A key group contains the entries of all states, one state after another, without an index. So the
first read of a key group records the position of each state. A later read of another state then
reads only the bytes of that state. With RocksDB each state has its own files.

A RocksDB job that keeps its timers on the heap has them in raw keyed state. A key group
(``InternalTimersSnapshotReaderWriters``, version 2) begins with a magic number, i32 2, and i32
number of timer services. Each service has its name, the snapshots of the key's and the namespace's
serializer, i32 number of event timers, the timers, and the same for processing timers. A timer is
its key, its namespace, and i64 time. These timers become two keyed states for each service, as a
savepoint of any other job has them. Nothing has a length prefix, so one key group at a time is in
memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.interop.flink.metadata.handles import (
    FileHandle,
    IncrementalHandle,
    KeyGroupsHandle,
    RelativeHandle,
    SegmentHandle,
    StreamHandle,
)
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.metadata.versions import unsupported_version
from statestore.interop.flink.read.canonical import (
    Entries,
    KeyedHeader,
    canonical_states,
    read_entries,
)
from statestore.interop.flink.read.heap import COUNT_BYTES, heap_states, jump_over, walk
from statestore.interop.flink.read.keyed_states import FlinkState, TimerState, keyed_state
from statestore.interop.flink.read.rocksdb import RocksTable, live_key_groups, open_table
from statestore.interop.flink.read.savepoint_files import (
    ByteSource,
    GroupBytes,
    SavepointFiles,
    Window,
    open_source,
)
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.byte_cursor import BYTES, Spans, join_parts
from statestore.interop.flink.types.internal_types import TimerType
from statestore.interop.flink.types.serializer_snapshots import (
    SerializerSnapshot,
    read_bare_snapshot,
)
from statestore.keys.groups import KeyGroupRange

_NUMBER_BYTES = 4
_TABLE = ".sst"
_OTHER_FILES = ("CURRENT", "MANIFEST-", "OPTIONS-")  # other files in a RocksDB folder
_DEFAULT_FAMILY = "default"

_Places: TypeAlias = tuple[tuple[int, int, int], ...]
"""A state's index in the header, and the start and end of its entries in a key group."""


@dataclass(frozen=True, eq=False)
class SubtaskPart:
    """Keyed states of one subtask: their handle and their header.

    ``states`` are in the order of the header, with None for a dropped state. ``title`` is the
    operator's name in messages. ``prefix`` is the number of bytes of a key that are its key group.
    """

    subtask: int
    handle: KeyGroupsHandle | IncrementalHandle
    header: KeyedHeader
    states: tuple[FlinkState | None, ...]
    title: str
    prefix: int
    places: SavepointFiles
    what: ClassVar[str] = "keyed state"

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"{self.what} of {self.title}, subtask {self.subtask}"

    @property
    def key_groups(self) -> KeyGroupRange:
        """Its key groups."""
        return KeyGroupRange(self.handle.first, self.handle.first + self.handle.count - 1)


@dataclass(frozen=True, eq=False)
class KeyedPart(SubtaskPart):
    """The keyed state of one subtask.

    ``is_canonical`` is true if key groups have the canonical form, whatever their handle.
    ``known`` caches the positions found in key groups. Several threads may read it, if each reads
    different key groups.
    """

    is_canonical: bool
    known: dict[int, tuple[GroupBytes, _Places]] = field(default_factory=dict, repr=False)

    @property
    def is_bare(self) -> bool:
        """Whether entries are delimited by their lengths only, without checksums or types."""
        return self.is_canonical and not self.header.is_compressed

    def entries(
        self, wanted: Collection[str], key_groups: KeyGroupRange | None = None
    ) -> Iterator[Entries]:
        """Yield the entries of the ``wanted`` states, by key group; by default of all key groups.

        Other states are not read, except blocks of RocksDB that contain entries of both.

        Raises:
            DamagedFileError or MissingFileError: if a file is damaged or missing.
            UnsupportedTypeError: for a value of the hashmap backend whose end cannot be determined,
                or an unsupported RocksDB file.
        """
        numbers = {
            number
            for number, state in enumerate(self.states)
            if state is not None and state.name in wanted
        }
        selected = self.key_groups.intersect(key_groups or self.key_groups)
        if selected is None:
            return iter(())
        if isinstance(self.handle, KeyGroupsHandle):
            return self._read_key_groups(self.handle, numbers, selected)
        return self._read_rocksdb(numbers, selected)

    def _read_key_groups(
        self, handle: KeyGroupsHandle, wanted: set[int], key_groups: KeyGroupRange
    ) -> Iterator[Entries]:
        source = open_source(handle.stream, self.places, self.name)
        after = dict(pairwise(sorted({*handle.offsets, source.size})))
        for key_group in key_groups:
            offset = handle.offsets[key_group - handle.first]
            if offset == 0:  # an empty key group of a canonical savepoint
                continue
            stop = after.get(offset)
            if offset < self.header.length or stop is None:
                raise DamagedFileError(
                    f"{source.name} is damaged: key group {key_group} begins at byte {offset} "
                    f"of {source.size}, inside the header of {self.header.length} bytes or "
                    "after the end"
                )
            known = self.known.get(key_group)
            if known is None:
                yield from self._walk_key_group(source, key_group, offset, stop, wanted)
                continue
            group, places = known
            for number, begin, end in places:
                if number in wanted:
                    yield from self._read_state(group.window(begin, end), number, key_group)

    def _walk_key_group(
        self,
        source: ByteSource,
        key_group: int,
        offset: int,
        stop: int,
        wanted: set[int],
    ) -> Iterator[Entries]:
        """Yield the entries of a key group that was not read before, and cache their positions."""
        if not self.is_canonical:
            number_end = min(offset + _NUMBER_BYTES, stop)
            begin = Reader(source.read(offset, number_end), source.name, base=offset)
            begin.expect(key_group, "a key-group number")
            offset = number_end
        chunks: list[tuple[int, int]] | None = [] if self.header.is_compressed else None
        group = GroupBytes(source, key_group, offset, stop, chunks)
        window = group.window()
        if self.is_canonical:
            numbers = canonical_states(window, len(self.states), key_group)
        else:
            numbers = heap_states(window.load_all(), len(self.states), key_group)
        places = []
        for number in numbers:
            start = window.place
            entries = self._read_state(window, number, key_group)
            if number in wanted:
                yield from entries
            elif self.is_canonical:
                deque(entries, maxlen=0)  # the end of the entries is known only after reading them
            # With 32,768 key groups, most have no entries, and a later read skips their states.
            if self.is_canonical or window.place - start > COUNT_BYTES:
                places.append((number, start, window.place))
        self.known[key_group] = (group, tuple(places))

    def _read_state(self, window: Window, number: int, key_group: int) -> Iterator[Entries]:
        """Yield the entries of a state, and advance past them."""
        if self.is_canonical:
            return read_entries(window, number, key_group, self.prefix)
        state = self.states[number]
        if state is None:
            raise UnsupportedTypeError(
                f"operator {self.title} has states to drop among states whose values do not "
                "record their length; take a canonical savepoint"
            )
        walked = state.walk(window.load_all())
        return state.heap_entries(walked, number, key_group, self.prefix)

    @cached_property
    def tables(self) -> tuple[RocksTable, ...]:
        """Its RocksDB files, with their indexes.

        Raises:
            DamagedFileError or MissingFileError: if a file is damaged or missing.
            FormatVersionError or UnsupportedTypeError: for an unsupported RocksDB file.
        """
        if isinstance(self.handle, KeyGroupsHandle):
            return ()
        handles = (*self.handle.shared, *self.handle.private)
        files = [(name, handle) for name, handle in handles if handle is not None]
        if any(name.endswith(".blob") for name, _ in files):
            raise UnsupportedTypeError(
                f"operator {self.title} stores values in separate files, which are not "
                "supported; take a canonical savepoint"
            )
        _refuse_duplicates(files, self.title)
        tables = tuple(
            open_table(open_source(handle, self.places, f"{name} of {self.title}"))
            for name, handle in files
            if _is_table(name, self.title)
        )
        _check_families(tables, self.header)
        return tables

    def _read_rocksdb(self, wanted: set[int], key_groups: KeyGroupRange) -> Iterator[Entries]:
        for number in sorted(wanted):
            state = self.header.states[number].name
            tables = [table for table in self.tables if table.column_family == state]
            for key_group, keys, values in live_key_groups(tables, self.prefix, key_groups):
                name = f"{self.name} (RocksDB, {state}, key group {key_group})"
                yield Entries(
                    number, key_group, Spans.from_array(keys, name), Spans.from_array(values, name)
                )


def _refuse_duplicates(files: Sequence[tuple[str, StreamHandle]], operator: str) -> None:
    """Refuse two RocksDB file names for the same bytes, because entries would be read twice."""
    handles = [handle for name, handle in files if name.endswith(_TABLE)]
    if len({_identity(handle) for handle in handles}) < len(handles):
        raise DamagedFileError(
            f"a subtask of operator {operator} references the same bytes as two RocksDB files"
        )


def _identity(handle: StreamHandle) -> object:
    """Return a value that is equal for two handles of the same bytes."""
    if isinstance(handle, FileHandle | RelativeHandle):
        return handle.path
    return (handle.path, handle.start) if isinstance(handle, SegmentHandle) else handle


def _is_table(name: str, operator: str) -> bool:
    """Return whether a RocksDB file has entries; DamagedFileError for an unexpected file name."""
    if not name.endswith(_TABLE) and not name.startswith(_OTHER_FILES):
        raise DamagedFileError(
            f"operator {operator} has a file {name!r}, which is not a name of a RocksDB file"
        )
    return name.endswith(_TABLE)


def _check_families(tables: Sequence[RocksTable], header: KeyedHeader) -> None:
    known = {state.name for state in header.states} | {_DEFAULT_FAMILY}
    for table in tables:
        if table.column_family not in known:
            raise DamagedFileError(
                f"{table.source.name} has entries of the state {table.column_family!r}, which "
                "the header of the keyed state does not list"
            )


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
class TimersPart(SubtaskPart):
    """The timers of one subtask, as keyed states without values."""

    handle: KeyGroupsHandle
    states: tuple[FlinkState, ...]
    is_canonical: ClassVar[bool] = False
    is_bare: ClassVar[bool] = False
    what: ClassVar[str] = "timers"

    def entries(
        self, wanted: Collection[str], key_groups: KeyGroupRange | None = None
    ) -> Iterator[Entries]:
        """Yield the timers of the ``wanted`` states, by key group, as canonical entries.

        Raises:
            DamagedFileError or MissingFileError: if a file is damaged or missing.
            UnsupportedTypeError: for a key or namespace whose end cannot be determined.
        """
        selected = self.key_groups.intersect(key_groups or self.key_groups)
        known = {
            info.name: (number, info.serializers["VALUE_SERIALIZER"].flink_type)
            for number, info in enumerate(self.header.states)
        }
        source = open_source(self.handle.stream, self.places, self.name)
        for key_group in selected or ():
            for service, sort, spans in _read_key_group(source, self.handle, key_group):
                state = _STATES[sort] + service[0]
                number, timer = known.get(state, (0, None))
                if timer != TimerType(*service[1:]):
                    raise DamagedFileError(
                        f"{source.name} is damaged: key group {key_group} has timers of "
                        f"{service[0]!r} with other types than the first key group"
                    )
                if state in wanted and len(spans):
                    keys = _add_key_group(spans, key_group, self.prefix)
                    none = np.zeros(len(spans), np.int64)
                    empty = Spans(np.empty(0, np.uint8), none, none, source.name)
                    yield Entries(number, key_group, keys, empty)


def open_timers(
    handle: KeyGroupsHandle, subtask: int, title: str, prefix: int, places: SavepointFiles
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
    infos = tuple(
        TimerState(start + name, "timers", keys, namespaces, TimerType(keys, namespaces)).info
        for name, keys, namespaces in services
        for start in _STATES
    )
    header = KeyedHeader(False, SerializerSnapshot(key, key.snapshot()), infos)
    states = tuple(keyed_state(info, key, source.name) for info in infos)
    return TimersPart(subtask, handle, header, states, title, prefix, places)


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
