"""Keyed state as the hashmap backend writes it in its own format.

The header is that of :mod:`statestore.interop.flink.canonical`. A key group, of
``HeapSnapshotStrategy``, is its number in four bytes, and for each state i16 its place in the
header, i32 n, and n times namespace, key and value (``CopyOnWriteStateMapSnapshot``), or n timers.
Nothing has a length before it, so that a value that does not say where it ends stops the reading of
its operator. What is found is handed on as canonical entries: of a map one for each of its keys, of
a list its elements with commas between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from statestore.interop.flink.canonical import Entries, KeyedHeader
from statestore.interop.flink.composite import KeyLayout, length_mark
from statestore.interop.flink.reader import Reader
from statestore.interop.flink.skipping import skipper
from statestore.interop.flink.snappy import unframed
from statestore.interop.flink.spans import Spans
from statestore.interop.flink.states import KeyedState
from statestore.interop.flink.types import ListType, MapType, NullableType

__all__ = ["read_heap_key_group"]

_Pair = tuple[bytes, bytes]


def read_heap_key_group(
    data: memoryview,
    header: KeyedHeader,
    states: tuple[KeyedState, ...],
    key_group: int,
    prefix: int,
    name: str,
    base: int,
) -> Iterator[Entries]:
    """Yield the entries of each state of a key group, as canonical ones.

    ``states`` are those of the header; the rest is as of ``read_key_group``, with its errors, and
    UnsupportedTypeError for a value that does not say where it ends.
    """
    reader = Reader(data, name, base=base)
    reader.expect(key_group, "the number of a key group")
    if header.is_compressed:
        inner = unframed(reader.take(reader.left), name, base + 4)
        reader = Reader(inner, f"{name} (key group {key_group}, decompressed)")
    group = key_group.to_bytes(prefix, "big")
    known: set[int] = set()
    for _ in states:
        number = reader.u16()
        if number >= len(states) or number in known:
            raise reader.damaged(
                f"state {number} of {len(states)} in key group {key_group}", at=reader.at - 2
            )
        known.add(number)
        state = states[number]
        count = reader.count(1, f"entries of {state.name!r}")
        pairs = _timers if state.kind == "timers" else _entries
        found = list(pairs(reader, state, count, group))
        if found:
            keys, values = zip(*found, strict=True)
            yield Entries(
                number, key_group, Spans.of(list(keys), name), Spans.of(list(values), name)
            )
    reader.end(f"key group {key_group}")


def _timers(reader: Reader, state: KeyedState, count: int, group: bytes) -> Iterator[_Pair]:
    skip = skipper(state.value)
    for _ in range(count):
        begin = reader.at
        skip(reader)
        yield group + bytes(reader.data[begin : reader.at]), b""


def _entries(reader: Reader, state: KeyedState, count: int, group: bytes) -> Iterator[_Pair]:
    layout = KeyLayout.of(state)
    skip_namespace, skip_key = skipper(state.namespace), skipper(state.key)
    values = _values(state)
    for _ in range(count):
        begin = reader.at
        skip_namespace(reader)
        middle = reader.at
        skip_key(reader)
        namespace = bytes(reader.data[begin:middle])
        key = bytes(reader.data[middle : reader.at])
        if layout.has_marks:
            key += length_mark(len(key))
            namespace += length_mark(len(namespace))
        for more, value in values(reader):
            yield group + key + namespace + more, value


def _values(state: KeyedState) -> Callable[[Reader], Iterator[_Pair]]:
    """Return what reads a value, as pairs of what follows a key, and a canonical value."""
    if state.kind == "list" and isinstance(state.value, ListType):
        element = skipper(state.value.element)

        def elements(reader: Reader) -> Iterator[_Pair]:
            found = []
            for _ in range(reader.count(1, "elements")):
                begin = reader.at
                element(reader)
                found.append(bytes(reader.data[begin : reader.at]))
            yield b"", b",".join(found)

        return elements
    if state.kind == "map" and isinstance(state.value, MapType):
        key, value = skipper(state.value.key), skipper(NullableType(state.value.value))

        def entries(reader: Reader) -> Iterator[_Pair]:
            for _ in range(reader.count(2, "entries")):
                begin = reader.at
                key(reader)
                middle = reader.at
                value(reader)
                data = reader.data
                yield bytes(data[begin:middle]), bytes(data[middle : reader.at])

        return entries
    skip = skipper(state.value)

    def one(reader: Reader) -> Iterator[_Pair]:
        begin = reader.at
        skip(reader)
        yield b"", bytes(reader.data[begin : reader.at])

    return one
