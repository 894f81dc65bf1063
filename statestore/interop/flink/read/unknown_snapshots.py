"""Headers with serializer snapshots of unknown classes, such as classes of the job.

Such a snapshot has no recognizable end, but the end of the header is known. So each end is tried
until the rest of the header can be parsed and ends exactly there. The result is used only if a
single choice of ends fits. The class then has a type whose values stay bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from statestore.errors import DamagedFileError, FormatVersionError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.read.canonical import (
    KeyedHeader,
    StateInfo,
    read_header,
    read_header_start,
    read_state_info,
)
from statestore.interop.flink.types.byte_slices import Places
from statestore.interop.flink.types.serializer_snapshots import (
    NO_ENDS,
    BodyEnds,
    SerializerSnapshot,
    UnknownSnapshotError,
    read_snapshot,
)

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
    """States up to a position, in a list that grows at its end; several paths can share a part."""

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
