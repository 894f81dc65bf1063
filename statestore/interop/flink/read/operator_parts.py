"""Open the keyed state of an operator's subtasks: parse its headers and find its format.

The kind of the handle does not tell whether key groups have the canonical form, or the native form
of the heap: savepoints of RocksDB up to Flink 1.12, and its non-incremental checkpoints up to Flink
1.15, have the canonical form under a plain ``KeyGroupsStateHandle``. In the native form each key
group begins with its own number, and none has the offset 0. In the canonical form an empty key
group has the offset 0, and the others begin with the number of a state and the length of a key.

A serializer snapshot of an unknown class, such as a class of the job, has no recognizable end, but
the end of the header is known. So each end is tried until the rest of the header can be parsed and
ends exactly there. The result is used only if a single choice of ends fits. The class then has a
type whose values stay bytes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

import numpy as np

from statestore.errors import (
    DamagedFileError,
    FormatVersionError,
    InvalidArgumentError,
    ParallelismError,
    UnsupportedTypeError,
)
from statestore.interop.flink.metadata.handles import (
    IncrementalHandle,
    KeyGroupsHandle,
    OperatorHandles,
    Subtask,
)
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.read.canonical import (
    KeyedHeader,
    StateInfo,
    prefix_bytes,
    read_header,
    read_header_start,
    read_state_info,
)
from statestore.interop.flink.read.keyed_part import (
    KeyedPart,
    TimersPart,
    begins_with_timers,
    open_timers,
)
from statestore.interop.flink.read.keyed_states import keyed_states
from statestore.interop.flink.read.refusals import Refused
from statestore.interop.flink.read.savepoint_files import (
    METADATA,
    ByteSource,
    SavepointFiles,
    open_source,
)
from statestore.interop.flink.types.byte_cursor import Places
from statestore.interop.flink.types.serializer_snapshots import (
    NO_ENDS,
    BodyEnds,
    SerializerSnapshot,
    UnknownSnapshotError,
    read_snapshot,
)
from statestore.keys.groups import KeyGroupAssignment

_LONGEST_HEADER = 1 << 20
_MOST_BYTES = 1 << 18  # parsed in all trials of a header
_LEAST_BYTES = 64  # the least cost of a trial
_MOST_UNKNOWN = 16  # snapshots of unknown classes in one state, each a level of recursion
_CLASS_NAME = re.compile(r"[\w$]+(\.[\w$]+)*")
_LENGTH_BYTES = 2
T = TypeVar("T")


def read_whole_header(data: bytes | memoryview, name: str) -> KeyedHeader:
    """Parse a header of keyed state that fills ``data``.

    Raises the errors of :func:`read_header`. An unknown serializer is an UnsupportedTypeError only
    if no end of its snapshot fits, or several do.
    """
    try:
        return read_header(data, name)
    except UnknownSnapshotError:
        found = _Search(data, name).headers()
        if len(found) != 1:
            raise
        return found[0]


def read_whole_snapshot(data: bytes, name: str) -> SerializerSnapshot:
    """Return the serializer snapshot that fills ``data``.

    Raises the errors of :func:`read_snapshot`, as :func:`read_whole_header` does.
    """
    try:
        return read_snapshot(Reader(data, name))
    except UnknownSnapshotError:
        search = _Search(data, name)
        found = [snapshot for snapshot, end in search.parses(read_snapshot, 0) if end == len(data)]
        if search.is_exhausted or len(found) != 1:
            raise
        return found[0]


@dataclass(frozen=True, slots=True)
class _Path:
    """A parsed state and the path before it, as a linked list; paths can share their beginning."""

    state: StateInfo
    before: _Path | None


class _Search:
    """The ways to parse bytes up to their end. It stops after parsing ``_MOST_BYTES``."""

    def __init__(self, data: bytes | memoryview, name: str) -> None:
        self._data, self._name = memoryview(data), name
        is_too_long = len(self._data) > _LONGEST_HEADER
        self._left = 0 if is_too_long else _MOST_BYTES
        self._ends = _find_possible_ends(self._data[: 0 if is_too_long else None])

    @property
    def is_exhausted(self) -> bool:
        """Whether the search stopped before it tried all ends."""
        return self._left <= 0

    def headers(self) -> list[KeyedHeader]:
        """Return the headers that fill the bytes, at most two; none if there are too many ends."""
        found: list[KeyedHeader] = []
        for (is_compressed, key), begin in self.parses(read_header_start, 0):
            for states in self._state_lists(begin):
                found.append(KeyedHeader(is_compressed, key, states, len(self._data)))
                if len(found) > 1:
                    return found
        return [] if self.is_exhausted else found

    def _state_lists(self, begin: int) -> Iterator[tuple[StateInfo, ...]]:
        """Yield the lists of states that begin with their number and fill the remaining bytes."""
        if len(self._data) - begin < _LENGTH_BYTES:
            return
        count = Reader(self._data, self._name, position=begin).u16()
        paths: list[tuple[int, _Path | None]] = [(begin + _LENGTH_BYTES, None)]
        for _ in range(count):
            paths = [
                (end, _Path(state, before))
                for position, before in paths
                for state, end in self.parses(read_state_info, position)
            ]
        for end, path in paths:
            if end == len(self._data):
                states = _states_of(path)
                if len({state.name for state in states}) == count:
                    yield states

    def parses(
        self, read: Callable[[Reader, BodyEnds], T], begin: int, ends: BodyEnds = NO_ENDS
    ) -> Iterator[tuple[T, int]]:
        """Yield each way to read a part that begins at ``begin``, and the part's end."""
        if self.is_exhausted:
            return
        reader = Reader(self._data, self._name, position=begin)
        try:
            value = read(reader, ends)
        except UnknownSnapshotError as error:
            self._left -= max(reader.position - begin, _LEAST_BYTES)
            if not _CLASS_NAME.fullmatch(error.class_name):
                return
            if len(ends) == _MOST_UNKNOWN:
                self._left = 0
            for end in self._possible_ends(error.body):
                yield from self.parses(read, begin, {**ends, error.body: end})
        except (DamagedFileError, FormatVersionError, UnsupportedTypeError):
            # These ends do not fit. If no others do, the error of the first attempt is raised.
            self._left -= max(reader.position - begin, _LEAST_BYTES)
        else:
            self._left -= max(reader.position - begin, _LEAST_BYTES)
            yield value, reader.position

    def _possible_ends(self, begin: int) -> Iterator[int]:
        """Yield the possible ends of a body, until the search is exhausted."""
        for place in range(int(np.searchsorted(self._ends, begin)), len(self._ends)):
            if self.is_exhausted:
                return
            yield int(self._ends[place])


def _find_possible_ends(data: memoryview) -> Places:
    """Return the positions that a name, a number of states or nothing can follow, ascending."""
    octets = np.frombuffer(data, np.uint8).astype(np.int64)
    lengths = (octets[:-1] << 8) + octets[1:]
    afters = np.arange(len(lengths)) + _LENGTH_BYTES + lengths
    return np.append(np.flatnonzero(afters <= len(data)), len(data))


def _states_of(path: _Path | None) -> tuple[StateInfo, ...]:
    states = []
    while path is not None:
        states.append(path.state)
        path = path.before
    return tuple(reversed(states))


_NUMBER_BYTES = 4
_TRIED = 3  # a key of 64 KiB can look like the number of one key group, but not of three


def recognize_timers(operator: OperatorHandles, places: SavepointFiles) -> OperatorHandles:
    """Return an operator whose raw keyed state with timers is in ``Subtask.timers``.

    Raises DamagedFileError or MissingFileError if a file is damaged or missing.
    """
    return replace(
        operator,
        subtasks=tuple(_recognize_timers(subtask, places) for subtask in operator.subtasks),
    )


def _recognize_timers(subtask: Subtask, places: SavepointFiles) -> Subtask:
    raw = subtask.raw_keyed
    if not isinstance(raw, KeyGroupsHandle):
        return subtask
    if not raw.offsets:
        return replace(subtask, raw_keyed=None)
    source = open_source(raw.stream, places, f"raw keyed state of subtask {subtask.index}")
    if not begins_with_timers(raw, source):
        return subtask
    return replace(subtask, raw_keyed=None, timers=raw)


def open_parts(
    operator: OperatorHandles, places: SavepointFiles, drop: Collection[Refused]
) -> Iterator[KeyedPart | TimersPart]:
    """Yield the keyed state and the timers of each subtask.

    Args:
        operator: the operator, after :func:`recognize_timers`.
        places: where its files are.
        drop: the kinds of unsupported state to ignore.

    Raises:
        FormatVersionError: for the format of another Flink.
        IncompatibleStateError or UnsupportedTypeError: for unsupported state.
        DamagedFileError or MissingFileError: if a file is damaged or missing.
    """
    for part in _set_unknown_forms([*_open_keyed(operator, places, drop)]):
        _ = part.tables  # an unsupported file concerns this operator only
        yield part
    title, prefix = _title(operator), prefix_bytes(operator.max_parallelism)
    for subtask in operator.subtasks:
        if subtask.timers is not None:
            _check_range(subtask.timers, subtask.index, operator, _metadata_file(places))
            timers = open_timers(subtask.timers, subtask.index, title, prefix, places)
            if timers is not None:
                yield timers


def _open_keyed(
    operator: OperatorHandles, places: SavepointFiles, drop: Collection[Refused]
) -> Iterator[tuple[KeyedPart, bool | None]]:
    """Yield the keyed state of each subtask, and whether it is canonical, None if unknown."""
    title, prefix = _title(operator), prefix_bytes(operator.max_parallelism)
    for subtask in operator.subtasks:
        handle, what = subtask.keyed, f"keyed state of subtask {subtask.index}"
        if not isinstance(handle, KeyGroupsHandle | IncrementalHandle):
            continue
        _check_range(handle, subtask.index, operator, _metadata_file(places))
        stream, offsets = (
            (handle.meta, ())
            if isinstance(handle, IncrementalHandle)
            else (handle.stream, handle.offsets)
        )
        source = open_source(stream, places, what)
        stop = min((offset for offset in offsets if offset), default=source.size)
        data = source.read(0, min(stop, source.size))
        header = read_whole_header(data, source.name)
        if header.length != len(data):
            raise DamagedFileError(
                f"{source.name} is damaged at byte {header.length}: "
                f"{len(data) - header.length} unexpected bytes follow the header"
            )
        states = keyed_states(header, source.name, drop)
        form = False if isinstance(handle, IncrementalHandle) else _find_form(handle, source)
        part = KeyedPart(subtask.index, handle, header, states, title, prefix, places, bool(form))
        yield part, form


def _set_unknown_forms(parts: Sequence[tuple[KeyedPart, bool | None]]) -> Iterator[KeyedPart]:
    """Yield the parts; a part whose bytes do not tell its form gets the form of the other parts.

    If no part tells its form, a part is canonical if it can be read as canonical, because only that
    form has lengths and an end mark.
    """
    known = {form for _, form in parts if form is not None}
    for part, form in parts:
        if form is not None:
            yield part
        elif known:
            yield replace(part, is_canonical=known == {True})
        else:
            canonical = replace(part, is_canonical=True)
            yield canonical if _can_be_read(canonical) else part


def _can_be_read(part: KeyedPart) -> bool:
    names = [state.name for state in part.states if state is not None]
    try:
        deque(part.entries(names), maxlen=0)
    except (DamagedFileError, UnsupportedTypeError):
        return False
    return True


def _title(operator: OperatorHandles) -> str:
    return operator.uid or operator.name or operator.id


def _metadata_file(places: SavepointFiles) -> str:
    return f"{places.storage.url}/{METADATA}"


def _check_range(
    handle: KeyGroupsHandle | IncrementalHandle, subtask: int, operator: OperatorHandles, name: str
) -> None:
    """Refuse key groups that do not belong to the subtask (``KeyGroupRangeAssignment``).

    The RocksDB reader reads only the subtask's own key groups, so other rows would be lost.
    """
    count = handle.count
    most, parallelism = operator.max_parallelism, operator.parallelism
    try:
        share = KeyGroupAssignment(max_parallelism=most, parallelism=parallelism)
        expected = share.range_of(subtask)
        is_right = (handle.first, count) == (expected.first, len(expected))
    except (InvalidArgumentError, ParallelismError):
        is_right = False
    if not is_right:
        raise DamagedFileError(
            f"{name} is damaged: subtask {subtask} of {parallelism} has {count} key groups "
            f"from {handle.first} on (of {most}), which it does not own"
        )


def _find_form(handle: KeyGroupsHandle, source: ByteSource) -> bool | None:
    """Return whether a subtask's keyed state is canonical; None if its bytes do not tell.

    They do not tell it if key group 0 is the only one, because both forms begin with zeros.

    Args:
        handle: the handle of the keyed state.
        source: its bytes.

    Raises:
        DamagedFileError: if a key group begins after the end of the bytes.
    """
    if handle.is_savepoint or 0 in handle.offsets:
        return True
    numbered = ((group, at) for group, at in enumerate(handle.offsets, handle.first) if group > 0)
    matches = [
        int.from_bytes(source.read(at, min(at + _NUMBER_BYTES, source.size)), "big") == group
        for group, at in islice(numbered, _TRIED)
    ]
    return not any(matches) if matches else None
