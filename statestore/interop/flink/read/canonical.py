"""Keyed state in the canonical format of savepoints, which is the same for all state backends.

A stream begins with a header (``KeyedBackendSerializationProxy``) with the type of the key and the
list of states (``StateMetaInfoSnapshotReadersWriters``). Then come the key groups, each at its
offset (``FullSnapshotAsyncWriter``, ``FullSnapshotRestoreOperation``)::

    i16 state, then its entries: i32 + key, i32 + value
    bit 7 of a key's first byte marks the last entry of a state: after it follows an i16,
    which is the next state, or 0xffff at the end

With Snappy each key group is compressed as a separate stream. A key group is read in blocks.

Only lengths separate the entries. To follow them takes a Python loop. It is slower than all other
processing of the entries, and holds the GIL. So the positions are guessed with vectorized
operations, and then proved: the first entry begins at the start, and each entry ends where the next
one begins. If a guess is wrong, the loop finds the entries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from statestore.interop.flink.metadata.java_binary import Reader, i8, i32, utf
from statestore.interop.flink.metadata.versions import unsupported_version
from statestore.interop.flink.read.savepoint_files import Window
from statestore.interop.flink.types.byte_cursor import Cursor, Spans
from statestore.interop.flink.types.java_types import ListType, MapType
from statestore.interop.flink.types.serializer_snapshots import (
    NO_ENDS,
    BodyEnds,
    SerializerSnapshot,
    make_snapshot,
    read_snapshot,
)

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


_VERSION = 6  # from Flink 1.7 on
_END_OF_GROUP = 0xFFFF
_ONE_BYTE_GROUPS = 128

HeaderKind = Literal["keyed", "operator", "broadcast", "timers", "asynchronous"]
_VALUE, _MAP_KEY = "VALUE_SERIALIZER", "USER_KEY_SERIALIZER"
_KINDS: tuple[HeaderKind, ...] = ("keyed", "operator", "broadcast", "timers", "asynchronous")


@dataclass(frozen=True, slots=True)
class StateInfo:
    """A state as the header describes it: its name, kind, options and serializers.

    ``options`` has ``KEYED_STATE_TYPE`` (VALUE, LIST, MAP, REDUCING, AGGREGATING) for keyed state,
    or ``OPERATOR_STATE_DISTRIBUTION_MODE``. ``serializers`` has the keys ``VALUE_SERIALIZER``,
    ``NAMESPACE_SERIALIZER`` and ``KEY_SERIALIZER``.
    """

    name: str
    kind: HeaderKind
    options: Mapping[str, str]
    serializers: Mapping[str, SerializerSnapshot]


@dataclass(frozen=True, slots=True)
class KeyedHeader:
    """The header of a stream of keyed state; ``length`` is its size in bytes."""

    is_compressed: bool
    key: SerializerSnapshot
    states: tuple[StateInfo, ...]
    length: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Entries of one state in one key group: keys, which begin with the key group, and values.

    ``state`` is the state's index in the header.
    """

    state: int
    key_group: int
    keys: Spans
    values: Spans


def read_header(data: bytes | memoryview, name: str) -> KeyedHeader:
    """Parse the header at the beginning of a stream of keyed state.

    Raises:
        FormatVersionError: for an unsupported version of the header.
        UnsupportedTypeError: for an unsupported serializer.
        DamagedFileError: if the bytes do not follow Flink's format.
    """
    reader = Reader(data, name)
    is_compressed, key = read_header_start(reader)
    states = read_state_infos(reader)
    return KeyedHeader(is_compressed, key, states, reader.position)


def read_header_start(reader: Reader, ends: BodyEnds = NO_ENDS) -> tuple[bool, SerializerSnapshot]:
    """Parse a header up to its states; return whether key groups are compressed, and the key type.

    ``ends`` are the positions where snapshots of unknown classes end. Raises the errors of
    :func:`read_header`.
    """
    version = reader.i32()
    if version != _VERSION:
        raise unsupported_version(reader.name, "keyed state", version)
    return reader.bool(), read_snapshot(reader, ends)


def read_state_infos(reader: Reader) -> tuple[StateInfo, ...]:
    """Parse the states of a header: their 16-bit count, then each state."""
    count = reader.u16()
    if count * 14 > reader.remaining:
        raise reader.error(f"{count} states do not fit in {reader.remaining} bytes")
    begin = reader.position
    states = tuple(read_state_info(reader) for _ in range(count))
    if len({state.name for state in states}) < count:
        raise reader.error("a state occurs twice", position=begin)
    return states


def read_state_info(reader: Reader, ends: BodyEnds = NO_ENDS) -> StateInfo:
    """Parse the description of one state; snapshots of unknown classes end at ``ends``."""
    name = reader.utf()
    number = reader.i32()
    if not 0 <= number < len(_KINDS):
        raise reader.error(
            f"the state {name!r} has the unknown kind {number}", position=reader.position - 4
        )
    options = {reader.utf(): reader.utf() for _ in range(reader.count(4, "options"))}
    serializers = {
        reader.utf(): read_snapshot(reader, ends) for _ in range(reader.count(12, "serializers"))
    }
    state = StateInfo(name, _KINDS[number], options, serializers)
    return _describe_as_rocksdb(state) if state.kind == "asynchronous" else state


def _describe_as_rocksdb(state: StateInfo) -> StateInfo:
    """Return a state of ForSt with the description that RocksDB's backend gives to such a state.

    Its entries are the same. But ForSt has the serializer of the elements of a list, or those of a
    map's keys and values (``RegisteredKeyAndUserKeyValueStateBackendMetaInfo``). A map without a
    serializer of its keys, as Flink 2.0 writes it, stays as it is.
    """
    serializers = dict(state.serializers)
    value, map_key = serializers.get(_VALUE), serializers.pop(_MAP_KEY, None)
    kind = state.options.get("KEYED_STATE_TYPE")
    if value is None or (kind == "MAP" and map_key is None):
        return state
    whole = value.flink_type
    if kind == "LIST":
        whole = ListType(whole)
    elif map_key is not None:
        whole = MapType(map_key.flink_type, whole)
    return replace(state, kind="keyed", serializers=serializers | {_VALUE: make_snapshot(whole)})


def merge_headers(headers: Sequence[KeyedHeader]) -> KeyedHeader:
    """Return a header with the states of all headers, each with its most complete description.

    Descriptions differ, because a subtask knows only the subclasses that occurred in it.
    """
    states: dict[str, StateInfo] = {}
    for header in headers:
        for state in header.states:
            known = states.get(state.name)
            if known is None or _description_size(state) > _description_size(known):
                states[state.name] = state
    return replace(headers[0], states=tuple(states.values()))


def _description_size(state: StateInfo) -> int:
    return sum(len(serializer.raw) for serializer in state.serializers.values())


def header_bytes(header: KeyedHeader) -> bytes:
    """Encode a header, with the original bytes of each snapshot."""
    states = b"".join(map(state_info_bytes, header.states))
    key = i32(2) + header.key.raw
    count = len(header.states).to_bytes(2, "big")
    return i32(_VERSION) + i8(header.is_compressed) + key + count + states


def state_info_bytes(state: StateInfo) -> bytes:
    """Encode the description of a state in a header."""
    parts = [utf(state.name), i32(_KINDS.index(state.kind)), i32(len(state.options))]
    parts += [utf(name) + utf(value) for name, value in state.options.items()]
    parts.append(i32(len(state.serializers)))
    parts += [utf(name) + i32(2) + serializer.raw for name, serializer in state.serializers.items()]
    return b"".join(parts)


def prefix_bytes(max_parallelism: int) -> int:
    """Return the number of bytes of a key that are its key group."""
    return 1 if max_parallelism <= _ONE_BYTE_GROUPS else 2


def canonical_states(window: Window, states: int, key_group: int) -> Iterator[int]:
    """Yield the index of each state in a key group, up to the end of the key group.

    ``states`` is the number of states in the header. The caller must advance the window past the
    state's entries before the next iteration.
    """
    known: set[int] = set()
    state = window.require(2).u16()
    while state != _END_OF_GROUP:
        reader = window.reader
        if state >= states or state in known:
            problem = " twice" if state in known else f", but the header lists {states}"
            raise reader.error(
                f"key group {key_group} has state {state}{problem}", position=reader.position - 2
            )
        known.add(state)
        yield state
        state = window.require(2).u16()
    window.require(1).end(f"key group {key_group}")


def read_entries(window: Window, state: int, key_group: int, prefix: int) -> Iterator[Entries]:
    """Yield the entries of a state at the window's position, and advance past them.

    Args:
        window: a position in a key group.
        state: the state's index in the header.
        key_group: the key group, with which every key must begin.
        prefix: how many bytes of a key are its key group.

    Yields:
        The next entries, about one block at a time, or a single larger entry.

    Raises:
        DamagedFileError: if the bytes do not follow Flink's format.
    """
    is_end = False
    while not is_end:
        reader = window.reader
        places = entry_places(reader, key_group, prefix, is_whole=window.is_last)
        is_end = places.is_end
        if len(places.keys):
            yield _take_entries(reader, places, state, key_group, prefix)
        if not is_end:
            window.load_more()


def _take_entries(
    reader: Reader, places: EntryPlaces, state: int, key_group: int, prefix: int
) -> Entries:
    """Return the entries at known positions, and advance the reader past them."""
    begin, keys, stop = reader.position, places.keys, places.stop
    data = np.frombuffer(reader.data[begin:stop], np.uint8).copy()
    data[keys[-1] - begin] &= END_OF_STATE - 1  # remove the mark of the last key
    starts, ends = keys - begin, places.values - begin - 4
    base = reader.base + begin
    key_spans = Spans(data, starts, ends, reader.name, base)
    _check_prefix(key_spans, key_group, prefix)
    reader.position = stop
    stops = np.append(starts[1:] - 4, stop - begin)
    return Entries(state, key_group, key_spans, Spans(data, ends + 4, stops, reader.name, base))


def _check_prefix(keys: Spans, key_group: int, prefix: int) -> None:
    cursor = Cursor(keys, keys.starts, keys.ends)
    cursor.refuse(keys.ends - keys.starts < prefix, "a key is shorter than its key-group prefix")
    groups = cursor.numbers(">u1" if prefix == 1 else ">u2")
    wrong = np.flatnonzero(groups != key_group)
    if len(wrong):
        cursor.position = keys.starts
        raise cursor.error(
            (
                f"a key has the prefix of key group {groups[wrong[0]]} but is stored in key group "
                f"{key_group}"
            ),
            int(wrong[0]),
        )
