"""Find the entries of a state in a canonical key group, where only lengths separate them.

To follow the lengths takes a Python loop. It is slower than all other processing of the entries,
and holds the GIL. So the positions are guessed with vectorized operations, and then proved: the
first entry begins at the start, and each entry ends where the next one begins. If a guess is wrong,
the loop finds the entries.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from statestore.interop.flink.metadata.java_binary import Reader

END_OF_STATE = 0x80
"""The bit in the first byte of a key that marks the last entry of a state."""

_LENGTH = struct.Struct(">I")
_LENGTH_BYTES = 4
_FEW_BYTES = 1 << 12  # bytes; for so few entries a guess takes longer than the loop
_WINDOW = 1 << 17  # bytes that are searched together; they fit into the processor's cache

_Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class EntryPlaces:
    """The starts of keys and values, the end of the last value, and whether it ends the state."""

    keys: _Places
    values: _Places
    stop: int
    is_end: bool


def entry_places(
    reader: Reader, key_group: int, prefix: int, *, is_whole: bool = True
) -> EntryPlaces:
    """Return the positions of the keys and values of a state.

    Args:
        reader: a reader at the first entry.
        key_group: the key group with which keys begin; it is not checked.
        prefix: how many bytes of a key are its key group.
        is_whole: whether the reader has all bytes of the state. If False, only the entries that are
            complete in the reader are returned.

    Returns:
        The positions.

    Raises:
        DamagedFileError: if ``is_whole`` and an entry goes past the end.
    """
    runs = [_follow_lengths(reader, reader.position, _FEW_BYTES, is_whole)]
    head = key_group.to_bytes(prefix, "big")
    while not runs[-1].is_end:
        position = runs[-1].stop
        more = _guess_entries(reader.data, position, head) or _follow_lengths(
            reader, position, _WINDOW, is_whole
        )
        if not len(more.keys):
            break
        runs.append(more)
    keys, values = ([getattr(run, name) for run in runs] for name in ("keys", "values"))
    last = runs[-1]
    return EntryPlaces(np.concatenate(keys), np.concatenate(values), last.stop, last.is_end)


def _follow_lengths(reader: Reader, position: int, length: int, is_whole: bool) -> EntryPlaces:
    """Find the entries that begin in the next ``length`` bytes, by following their lengths."""
    data, upto, unpack = reader.data, position + length, _LENGTH.unpack_from
    keys: list[int] = []
    values: list[int] = []
    add_key, add_value = keys.append, values.append
    is_end = False
    try:
        while not is_end and position < upto:
            start = position + 4
            value = start + unpack(data, position)[0] + 4
            position = value + unpack(data, value - 4)[0]
            add_key(start)
            add_value(value)
            is_end = data[start] >= END_OF_STATE
    except (struct.error, IndexError):
        if is_whole:
            raise reader.error("an entry exceeds its key group", position=position) from None
    if position > len(data):
        if not is_whole:
            position, is_end = keys.pop() - _LENGTH_BYTES, False
            values.pop()
        elif is_end:
            raise reader.error("the last value exceeds its key group", position=position)
    return EntryPlaces(np.array(keys, np.int64), np.array(values, np.int64), position, is_end)


def _guess_entries(data: memoryview, position: int, head: bytes) -> EntryPlaces | None:
    """Find the entries of a window as :func:`_follow_lengths` would; None if the guess is wrong.

    An entry is assumed wherever a length below 64 KB is followed by the key group. This misses
    longer entries, and can match inside of a value, so the result is verified.
    """
    raw = np.frombuffer(data, np.uint8)
    begins = _find_heads(raw[position : position + _WINDOW], head) + position
    entries = _build_entries(data, begins)
    if not entries.is_chain_from(position):
        entries = entries.select(entries.find_linked(position))
        if not entries.is_chain_from(position):
            return None
    ends = np.flatnonzero(raw[entries.begins + _LENGTH_BYTES] >= END_OF_STATE)
    if len(ends):
        entries = entries.select(np.arange(ends[0] + 1))
    keys, values = entries.begins + _LENGTH_BYTES, entries.values
    return EntryPlaces(keys, values, int(entries.stops[-1]), bool(len(ends)))


def _find_heads(raw: npt.NDArray[np.uint8], head: bytes) -> _Places:
    """Return the positions of two zero bytes, any two bytes, and the beginning of a key."""
    count = len(raw) - _LENGTH_BYTES - len(head) + 1
    if count <= 0:
        return np.zeros(0, np.int64)
    matches = raw[_LENGTH_BYTES : _LENGTH_BYTES + count] & (END_OF_STATE - 1) == head[0]
    expected_bytes = [(0, 0), (1, 0), *enumerate(head[1:], _LENGTH_BYTES + 1)]
    for place, byte in expected_bytes:
        matches &= raw[place : place + count] == byte
    return np.flatnonzero(matches)


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """Candidate entries: the start of each entry, the start of its value, and its end."""

    begins: _Places
    values: _Places
    stops: _Places

    def select(self, rows: npt.NDArray[np.bool_] | _Places) -> _Entries:
        return _Entries(self.begins[rows], self.values[rows], self.stops[rows])

    def is_chain_from(self, position: int) -> bool:
        """Return whether the first entry begins at ``position``, and the entries are adjacent."""
        is_first = len(self.begins) > 0 and self.begins[0] == position
        return is_first and bool((self.begins[1:] == self.stops[:-1]).all())

    def find_linked(self, position: int) -> npt.NDArray[np.bool_]:
        """Return which entries begin at ``position``, or at the end of another entry."""
        size = int(self.begins.max(initial=position)) - position + 1
        ends = np.zeros(size, np.bool_)
        ends[0] = True
        ends[self.stops[self.stops - position < size] - position] = True
        return ends[self.begins - position]


def _build_entries(data: memoryview, begins: _Places) -> _Entries:
    """Return the entries that would begin at ``begins``, except entries that go past the end."""
    most = len(data) - _LENGTH_BYTES
    lengths: npt.NDArray[np.uint32] = np.ndarray(max(most + 1, 0), ">u4", data, strides=(1,))
    middles = begins + _LENGTH_BYTES + lengths[begins]
    fits = middles <= most
    if not fits.all():
        begins, middles = begins[fits], middles[fits]
    values = middles + _LENGTH_BYTES
    entries = _Entries(begins, values, values + lengths[middles])
    is_whole = entries.stops <= len(data)
    return entries if is_whole.all() else entries.select(is_whole)
