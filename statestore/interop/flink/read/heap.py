"""Keyed state in the native format of the hashmap backend.

The header is the same as in :mod:`statestore.interop.flink.read.canonical`. A key group
(``HeapSnapshotStrategy``) has its number in four bytes. For each state follow i16, its index in the
header, i32 n, and n times namespace, key and value (``CopyOnWriteStateMapSnapshot``), or n timers.
Nothing has a length prefix, so a type whose values have no recognizable end makes its operator
unreadable.

The entry-by-entry walk only records where the parts of each entry begin. The entries are then
converted column by column to canonical entries: one entry for each key of a map, and for a list
its elements separated by commas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.read.canonical import Entries
from statestore.interop.flink.read.composite import KeyLayout
from statestore.interop.flink.read.keyed_states import KeyedStateInfo
from statestore.interop.flink.types.byte_slices import BYTES, Places, Spans, join_parts
from statestore.interop.flink.types.flink_types import (
    FlinkType,
    ListType,
    MapType,
    NullableType,
    Scalar,
)

COUNT_BYTES = 4
"""The bytes of a state without entries in a key group: their number."""
_COMMA = pa.scalar(b",", BYTES)
_STRING = Scalar("String")
_LONGER = 0x80

Jump = Callable[[int], int]
"""A function from the start of a value to its end."""


@dataclass(frozen=True, slots=True, eq=False)
class HeapEntries:
    """The positions of a state's entries in a key group.

    ``begins`` has the start of each entry and, except for timers, the starts of its key and its
    value. ``stop`` is the end of the last entry. For lists and maps, ``counts`` has the number of
    elements in each, and ``inner`` has the start of each element; for maps also the start of each
    value. The last array of ``inner`` has the end of each element.
    """

    state: KeyedStateInfo
    reader: Reader
    begins: tuple[Places, ...]
    stop: int
    counts: Places | None
    inner: tuple[Places, ...]

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.begins[0])

    def canonical(self, number: int, key_group: int, prefix: int) -> Iterator[Entries]:
        """Yield the entries in canonical form, if there are any.

        ``number`` is the state's index in the header. Each key begins with the key group in
        ``prefix`` bytes.
        """
        if not len(self):
            return
        group = pa.scalar(key_group.to_bytes(prefix, "big"), BYTES)
        stops = np.append(self.begins[0][1:], self.stop)
        if self.state.kind == "timers":
            keys, values = self._slice(self.begins[0], stops).arrow(), self._slice(stops, stops)
            keys = join_parts(group, keys.cast(BYTES))
            yield Entries(number, key_group, self._to_spans(keys), values)
            return
        begin, middle, value = self.begins
        user_keys, namespaces = (
            self._slice(start, stop).arrow().cast(BYTES)
            for start, stop in ((middle, value), (begin, middle))
        )
        keys = join_parts(group, *KeyLayout.from_state(self.state).parts(user_keys, namespaces))
        values = self._slice(value, stops)
        if self.counts is not None and self.state.kind == "list":
            values = self._join_elements()
        elif self.counts is not None:
            keys, values = self._expand_maps(keys)
        if len(keys):
            yield Entries(number, key_group, self._to_spans(keys), values)

    def _join_elements(self) -> Spans:
        assert self.counts is not None, "a list state must have a number of elements"
        offsets = pa.array(np.append(0, np.cumsum(self.counts)))
        elements = self._slice(self.inner[0], self.inner[1]).arrow().cast(BYTES)
        return self._to_spans(
            pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements), _COMMA)
        )

    def _expand_maps(self, keys: pa.Array) -> tuple[pa.Array, Spans]:
        assert self.counts is not None, "a map state must have a number of keys"
        parents = np.repeat(np.arange(len(self)), self.counts)
        begin, middle, stop = self.inner
        map_keys = self._slice(begin, middle).arrow().cast(BYTES)
        return join_parts(keys.take(pa.array(parents)), map_keys), self._slice(middle, stop)

    def _slice(self, starts: Places, stops: Places) -> Spans:
        data = np.frombuffer(self.reader.data, np.uint8)
        return Spans(data, starts, stops, self.reader.name, self.reader.base)

    def _to_spans(self, array: pa.Array) -> Spans:
        return Spans.from_array(array, self.reader.name)


def heap_states(reader: Reader, states: int, key_group: int) -> Iterator[int]:
    """Yield the index of each state in a key group, in which each state occurs once.

    The caller must advance the reader past the state's entries before the next iteration.
    """
    known: set[int] = set()
    for _ in range(states):
        state = reader.u16()
        if state >= states or state in known:
            problem = " twice" if state in known else f", but the header lists {states}"
            raise reader.error(
                f"key group {key_group} has state {state}{problem}", position=reader.position - 2
            )
        known.add(state)
        yield state
    reader.end(f"key group {key_group}")


def walk_entries(reader: Reader, state: KeyedStateInfo) -> HeapEntries:
    """Read the number of a state's entries, walk over the entries, and advance past them.

    Raises:
        DamagedFileError: if the bytes do not follow Flink's format.
        UnsupportedTypeError: for a type whose values have no recognizable end.
    """
    count = reader.count(1, f"entries of {state.name!r}")
    inner: list[list[int]] = []
    counts: list[int] = []
    make_jump = partial(jump_over, reader)
    if state.kind == "list" and isinstance(state.value, ListType):
        inner = [[], []]
        jumps = [_make_sequence_jump(reader, counts, inner, make_jump(state.value.element))]
    elif state.kind == "map" and isinstance(state.value, MapType):
        inner = [[], [], []]
        value = NullableType(state.value.value)
        jumps = [
            _make_sequence_jump(reader, counts, inner, make_jump(state.value.key), make_jump(value))
        ]
    else:
        jumps = [make_jump(state.value)]
    if state.kind != "timers":
        jumps = [make_jump(state.namespace), make_jump(state.key), *jumps]
    begins, stop = walk(reader, count, jumps)
    reader.position = stop
    return HeapEntries(
        state,
        reader,
        tuple(np.array(places, np.int64) for places in begins),
        stop,
        np.array(counts, np.int64) if inner else None,
        tuple(np.array(places, np.int64) for places in inner),
    )


def walk(reader: Reader, count: int, jumps: list[Jump]) -> tuple[list[list[int]], int]:
    """Return the start of each part of each entry, and the end of the last entry.

    Args:
        reader: the bytes; the entries begin at its position, which does not change.
        count: the number of entries.
        jumps: a function for each part of an entry; three or one.

    Raises:
        DamagedFileError: if an entry does not end within the bytes.
    """
    position = reader.position
    begins: list[list[int]] = [[] for _ in jumps]
    try:
        if len(jumps) == 3:
            first, second, third = jumps
            add_first, add_second, add_third = (places.append for places in begins)
            for _ in range(count):
                add_first(position)
                position = first(position)
                add_second(position)
                position = second(position)
                add_third(position)
                position = third(position)
        else:
            (jump,) = jumps
            for _ in range(count):
                begins[0].append(position)
                position = jump(position)
    except IndexError:
        raise reader.error("an entry exceeds its key group", position=position) from None
    if position > len(reader.data):
        raise reader.error("the last entry exceeds its key group", position=position)
    return begins, position


def _make_sequence_jump(
    reader: Reader, counts: list[int], places_by_part: list[list[int]], *jumps: Jump
) -> Jump:
    """Return a function that jumps over a counted sequence of elements.

    It records the number of elements, and the start of each part and the end of each element.
    """

    def jump(position: int) -> int:
        reader.position = position
        count = reader.count(len(jumps), "elements")
        counts.append(count)
        position = reader.position
        for _ in range(count):
            for jump_part, places in zip(jumps, places_by_part, strict=False):
                places.append(position)
                position = jump_part(position)
            places_by_part[-1].append(position)
        return position

    return jump


def jump_over(reader: Reader, flink_type: FlinkType) -> Jump:
    """Return a function that jumps over a value of the type. Raises the errors of ``skipper``.

    Past the end of the bytes, the function may jump further or raise IndexError.
    """
    width = flink_type.fixed_width
    if width is not None:
        return width.__add__
    skip = flink_type.skipper()

    def jump_by_skipper(position: int) -> int:
        reader.position = position
        skip(reader)
        return reader.position

    if flink_type != _STRING:
        return jump_by_skipper
    data = reader.whole

    def jump_over_text(position: int) -> int:
        length = data[position]  # the length + 1; 0 is null
        if length < _LONGER and data[position : position + length].isascii():
            return position + (length or 1)
        return jump_by_skipper(position)

    return jump_over_text
