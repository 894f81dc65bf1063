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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.byte_cursor import Places, Spans
from statestore.interop.flink.types.java_types import Scalar

COUNT_BYTES = 4
"""The bytes of a state without entries in a key group: their number."""
_STRING = Scalar("String")
_LONGER = 0x80

Jump = Callable[[int], int]
"""A function from the start of a value to its end."""


@dataclass(frozen=True, slots=True, eq=False)
class HeapEntries:
    """The positions of a state's entries in a key group.

    ``begins`` has the starts of the namespace, key and value of each entry; of timers the start of
    each. ``stop`` is the end of the last entry. For lists and maps, ``counts`` has the number of
    elements in each, and ``inner`` has the start of each element; for maps also the start of each
    value. The last array of ``inner`` has the end of each element.
    """

    reader: Reader
    begins: tuple[Places, ...]
    stop: int
    counts: Places
    inner: tuple[Places, ...]

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.begins[0])

    @property
    def stops(self) -> Places:
        """The end of each entry."""
        return np.append(self.begins[0][1:], self.stop)

    def slice(self, starts: Places, stops: Places) -> Spans:
        """Return the bytes between positions."""
        data = np.frombuffer(self.reader.data, np.uint8)
        return Spans(data, starts, stops, self.reader.name, self.reader.base)


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


def walk_entries(reader: Reader, name: str, parts: Sequence[FlinkType]) -> HeapEntries:
    """Read the number of a state's entries, walk over the entries, and advance past them.

    Args:
        reader: the bytes.
        name: the state's name in messages.
        parts: the types of the parts of an entry; three or one.

    Raises:
        DamagedFileError: if the bytes do not follow Flink's format.
        UnsupportedTypeError: for a type whose values have no recognizable end.
    """
    return _walk(reader, name, [jump_over(reader, part) for part in parts], [], [])


def walk_counted(
    reader: Reader, name: str, parts: Sequence[FlinkType], elements: Sequence[FlinkType]
) -> HeapEntries:
    """Walk over entries whose value is a number of ``elements``; see :func:`walk_entries`.

    ``parts`` are the types of the namespace and the key. An element of a list has one type, and one
    of a map has those of its key and its value.
    """
    counts: list[int] = []
    inner: list[list[int]] = [[] for _ in range(len(elements) + 1)]
    jumps = [jump_over(reader, element) for element in elements]
    value = _make_sequence_jump(reader, counts, inner, *jumps)
    return _walk(reader, name, [*(jump_over(reader, part) for part in parts), value], counts, inner)


def _walk(
    reader: Reader, name: str, jumps: list[Jump], counts: list[int], inner: list[list[int]]
) -> HeapEntries:
    count = reader.count(1, f"entries of {name!r}")
    begins, stop = walk(reader, count, jumps)
    reader.position = stop
    return HeapEntries(
        reader,
        tuple(np.array(places, np.int64) for places in begins),
        stop,
        np.array(counts, np.int64),
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
