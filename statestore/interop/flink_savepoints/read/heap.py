"""Keyed state in the native format of the hashmap backend.

The header is the same as in :mod:`statestore.interop.flink_savepoints.read.canonical`. A key group
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

from statestore.interop.flink_savepoints.metadata.java_binary import Reader
from statestore.interop.flink_savepoints.read.canonical import Entries
from statestore.interop.flink_savepoints.read.composite import KeyLayout
from statestore.interop.flink_savepoints.read.keyed_states import KeyedStateInfo
from statestore.interop.flink_savepoints.types.byte_slices import BYTES, Places, Spans, joined
from statestore.interop.flink_savepoints.types.flink_types import (
    FlinkType,
    ListType,
    MapType,
    NullableType,
    Scalar,
)
from statestore.interop.flink_savepoints.types.value_lengths import fixed_width, skipper

__all__ = ["HeapEntries", "heap_states", "walk_entries"]

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
        group = pa.scalar(key_group.to_bytes(prefix, "big"), BYTES)
        stops = np.append(self.begins[0][1:], self.stop)
        if self.state.kind == "timers":
            keys, values = self._spans(self.begins[0], stops).arrow(), self._spans(stops, stops)
            keys = joined(group, keys.cast(BYTES))
            if len(keys):
                yield Entries(number, key_group, self._of(keys), values)
            return
        begin, middle, value = self.begins
        own, namespaces = (
            self._spans(start, stop).arrow().cast(BYTES)
            for start, stop in ((middle, value), (begin, middle))
        )
        keys = joined(group, *KeyLayout.of(self.state).parts(own, namespaces))
        values = self._spans(value, stops)
        if self.counts is not None and self.state.kind == "list":
            values = self._joined_elements()
        elif self.counts is not None:
            keys, values = self._of_maps(keys)
        if len(keys):
            yield Entries(number, key_group, self._of(keys), values)

    def _joined_elements(self) -> Spans:
        assert self.counts is not None, "a list state must have a number of elements"
        offsets = pa.array(np.append(0, np.cumsum(self.counts)))
        elements = self._spans(self.inner[0], self.inner[1]).arrow().cast(BYTES)
        return self._of(pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements), _COMMA))

    def _of_maps(self, keys: pa.Array) -> tuple[pa.Array, Spans]:
        assert self.counts is not None, "a map state must have a number of keys"
        parents = np.repeat(np.arange(len(self)), self.counts)
        begin, middle, stop = self.inner
        own = self._spans(begin, middle).arrow().cast(BYTES)
        return joined(keys.take(pa.array(parents)), own), self._spans(middle, stop)

    def _spans(self, starts: Places, stops: Places) -> Spans:
        data = np.frombuffer(self.reader.data, np.uint8)
        return Spans(data, starts, stops, self.reader.name, self.reader.base)

    def _of(self, array: pa.Array) -> Spans:
        return Spans.of_array(array, self.reader.name)


def heap_states(reader: Reader, states: int, key_group: int) -> Iterator[int]:
    """Yield the index of each state in a key group, in which each state occurs once.

    The caller must advance the reader past the state's entries before the next iteration.
    """
    known: set[int] = set()
    for _ in range(states):
        state = reader.u16()
        if state >= states or state in known:
            raise reader.damaged(
                f"state {state} of {states} in key group {key_group}", position=reader.position - 2
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
    over = partial(_jump_over, reader)
    if state.kind == "list" and isinstance(state.value, ListType):
        inner = [[], []]
        jumps = [_each(reader, counts, inner, over(state.value.element))]
    elif state.kind == "map" and isinstance(state.value, MapType):
        inner = [[], [], []]
        value = NullableType(state.value.value)
        jumps = [_each(reader, counts, inner, over(state.value.key), over(value))]
    else:
        jumps = [over(state.value)]
    if state.kind != "timers":
        jumps = [over(state.namespace), over(state.key), *jumps]
    begins, stop = _walked(reader, count, jumps)
    reader.position = stop
    return HeapEntries(
        state,
        reader,
        tuple(np.array(places, np.int64) for places in begins),
        stop,
        np.array(counts, np.int64) if inner else None,
        tuple(np.array(places, np.int64) for places in inner),
    )


def _walked(reader: Reader, count: int, jumps: list[Jump]) -> tuple[list[list[int]], int]:
    """Return the start of each part of each entry, and the end of the last entry."""
    at = reader.position
    begins: list[list[int]] = [[] for _ in jumps]
    try:
        if len(jumps) == 3:
            first, second, third = jumps
            add_first, add_second, add_third = (places.append for places in begins)
            for _ in range(count):
                add_first(at)
                at = first(at)
                add_second(at)
                at = second(at)
                add_third(at)
                at = third(at)
        else:
            (jump,) = jumps
            for _ in range(count):
                begins[0].append(at)
                at = jump(at)
    except IndexError:
        raise reader.damaged("an entry exceeds its key group", position=at) from None
    if at > len(reader.data):
        raise reader.damaged("the last entry exceeds its key group", position=at)
    return begins, at


def _each(reader: Reader, counts: list[int], found: list[list[int]], *jumps: Jump) -> Jump:
    """Return a function that jumps over a counted sequence of elements.

    It records the number of elements, and the start of each part and the end of each element.
    """

    def jump(at: int) -> int:
        reader.position = at
        count = reader.count(len(jumps), "elements")
        counts.append(count)
        at = reader.position
        for _ in range(count):
            for one, places in zip(jumps, found, strict=False):
                places.append(at)
                at = one(at)
            found[-1].append(at)
        return at

    return jump


def _jump_over(reader: Reader, kind: FlinkType) -> Jump:
    """Return a function that jumps over a value; raises the error of ``skipper``.

    Past the end of the bytes, the function may jump further or raise IndexError.
    """
    width = fixed_width(kind)
    if width is not None:
        return width.__add__
    skip = skipper(kind)

    def slowly(at: int) -> int:
        reader.position = at
        skip(reader)
        return reader.position

    if kind != _STRING:
        return slowly
    data = reader.whole

    def over_text(at: int) -> int:
        length = data[at]  # the length + 1; 0 is null
        if length < _LONGER and data[at : at + length].isascii():
            return at + (length or 1)
        return slowly(at)

    return over_text
