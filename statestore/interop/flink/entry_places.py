"""Where the entries of a state lie in a canonical key group: each says only how long it is.

To go from one to the next takes a loop in Python, which takes longer than all that is done with
them, and lets no other thread run meanwhile. So where they begin is guessed, and then proved: the
first one does, and each ends where the next one begins. Where a guess is wrong the loop finds them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from statestore.interop.flink.reader import Reader

__all__ = ["END_OF_STATE", "entry_places"]

END_OF_STATE = 0x80
"""Is set in the first byte of a state's last key."""

_LENGTH = struct.Struct(">I")
_LENGTH_BYTES = 4
_FEW = 1 << 12  # bytes, of whose entries a guess would take longer
_WINDOW = 1 << 17  # bytes that are looked at together, and fit into the processor's cache

_Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """Where keys and values begin, where the last value ends, and whether the state ends there."""

    keys: _Places
    values: _Places
    stop: int
    is_end: bool


def entry_places(reader: Reader, key_group: int, prefix: int) -> tuple[_Places, _Places, int]:
    """Return where each key and each value of a state begins, and where the last one ends.

    Keys begin with the key group in ``prefix`` bytes, which is not checked. DamagedFileError when
    an entry goes past the end.
    """
    found = [_followed(reader, reader.at, _FEW)]
    head = key_group.to_bytes(prefix, "big")
    while not found[-1].is_end:
        at = found[-1].stop
        found.append(_guessed(reader.data, at, head) or _followed(reader, at, _WINDOW))
    keys, values = ([getattr(one, name) for one in found] for name in ("keys", "values"))
    return np.concatenate(keys), np.concatenate(values), found[-1].stop


def _followed(reader: Reader, at: int, length: int) -> _Found:
    """Find the entries that begin in so many bytes, one after the other."""
    data, upto, unpack = reader.data, at + length, _LENGTH.unpack_from
    keys: list[int] = []
    values: list[int] = []
    add_key, add_value = keys.append, values.append
    is_end = False
    try:
        while not is_end and at < upto:
            start = at + 4
            value = start + unpack(data, at)[0] + 4
            at = value + unpack(data, value - 4)[0]
            add_key(start)
            add_value(value)
            is_end = data[start] >= END_OF_STATE
    except (struct.error, IndexError):
        raise reader.damaged("an entry goes past the end of its key group", at=at) from None
    if is_end and at > len(data):
        raise reader.damaged("the last value goes past the end of its key group", at=at)
    return _Found(np.array(keys, np.int64), np.array(values, np.int64), at, is_end)


def _guessed(data: memoryview, at: int, head: bytes) -> _Found | None:
    """Find the entries that begin in a window as :func:`_followed` would; None for a wrong guess.

    They begin where a length of less than 64 KB stands before the key group: not where another
    one ends, if that is not there by chance.
    """
    raw = np.frombuffer(data, np.uint8)
    begins = _heads(raw[at : at + _WINDOW], head) + at
    entries = _whole(data, begins)
    if not entries.follow(at):
        entries = entries.taken(entries.is_met(at))
        if not entries.follow(at):
            return None
    ends = np.flatnonzero(raw[entries.begins + _LENGTH_BYTES] >= END_OF_STATE)
    if len(ends):
        entries = entries.taken(np.arange(ends[0] + 1))
    keys, values = entries.begins + _LENGTH_BYTES, entries.values
    return _Found(keys, values, int(entries.stops[-1]), bool(len(ends)))


def _heads(raw: npt.NDArray[np.uint8], head: bytes) -> _Places:
    """Return where two bytes of zero are followed by any two, and by the beginning of a key."""
    count = len(raw) - _LENGTH_BYTES - len(head) + 1
    if count <= 0:
        return np.zeros(0, np.int64)
    found = raw[_LENGTH_BYTES : _LENGTH_BYTES + count] & (END_OF_STATE - 1) == head[0]
    wanted = [(0, 0), (1, 0), *enumerate(head[1:], _LENGTH_BYTES + 1)]
    for place, byte in wanted:
        found &= raw[place : place + count] == byte
    return np.flatnonzero(found)


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """Entries that may be there: where each begins, its value does, and it ends."""

    begins: _Places
    values: _Places
    stops: _Places

    def taken(self, rows: npt.NDArray[np.bool_] | _Places) -> _Entries:
        return _Entries(self.begins[rows], self.values[rows], self.stops[rows])

    def follow(self, at: int) -> bool:
        """Return whether the first begins there, and each ends where the next one begins."""
        is_first = len(self.begins) > 0 and self.begins[0] == at
        return is_first and bool((self.begins[1:] == self.stops[:-1]).all())

    def is_met(self, at: int) -> npt.NDArray[np.bool_]:
        """Return which ones begin there, or where another one ends."""
        size = int(self.begins.max(initial=at)) - at + 1
        ends = np.zeros(size, np.bool_)
        ends[0] = True
        ends[self.stops[self.stops - at < size] - at] = True
        return ends[self.begins - at]


def _whole(data: memoryview, begins: _Places) -> _Entries:
    """Return the entries that would begin there, of which those are left out that go past the end
    of the data.
    """
    most = len(data) - _LENGTH_BYTES
    lengths: npt.NDArray[np.uint32] = np.ndarray(max(most + 1, 0), ">u4", data, strides=(1,))
    middles = begins + _LENGTH_BYTES + lengths[begins]
    fits = middles <= most
    if not fits.all():
        begins, middles = begins[fits], middles[fits]
    values = middles + _LENGTH_BYTES
    entries = _Entries(begins, values, values + lengths[middles])
    is_whole = entries.stops <= len(data)
    return entries if is_whole.all() else entries.taken(is_whole)
