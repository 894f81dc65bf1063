"""Keyed states: a class for each kind, which defines the layout of the state's entries.

An entry has a key and a value. Its key has the key group, the key of the job, the namespace and, in
a map, the map's key (``SerializedCompositeKeyBuilder``). If both the key and the namespace vary in
length, each is followed by its length, in as few bytes as possible, lowest first
(``CompositeKeySerializationUtils``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Literal, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import (
    DamagedFileError,
    IncompatibleStateError,
    InvalidArgumentError,
    UnsupportedTypeError,
)
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.read.canonical import Entries, KeyedHeader, StateInfo
from statestore.interop.flink.read.heap import HeapEntries, walk_counted, walk_entries
from statestore.interop.flink.read.refusals import Refused
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.byte_cursor import BYTES, Cursor, Places, Spans, join_parts
from statestore.interop.flink.types.column_bytes import (
    decode_list,
    decode_map_values,
    decode_values,
    encode_list,
)
from statestore.interop.flink.types.internal_types import TimerType, TtlType, plain_type
from statestore.interop.flink.types.java_types import ListType, MapType, NullableType, Scalar
from statestore.interop.flink.types.key_hash import GroupFunction, groups_of_hashes
from statestore.interop.flink.types.key_recipes import recipe_hash_codes
from statestore.interop.flink.types.serializer_snapshots import make_snapshot
from statestore.interop.flink.types.sql_types import RowDataType

StateForm = Literal["value", "list", "map", "reducing", "aggregating", "timers"]

Encoding: TypeAlias = Callable[[pa.Array, FlinkType], pa.Array]
PartWriter: TypeAlias = Callable[[str, pa.Array, FlinkType, Encoding], pa.Array]
"""Encodes a part of an entry, such as ``key`` or ``value``, and names the part in errors."""

_FORMS: dict[str, StateForm] = {
    "VALUE": "value",
    "LIST": "list",
    "MAP": "map",
    "REDUCING": "reducing",
    "AGGREGATING": "aggregating",
    "FOLDING": "aggregating",
    "UNKNOWN": "value",
}
_OPTION = "KEYED_STATE_TYPE"
_VALUE, _NAMESPACE = "VALUE_SERIALIZER", "NAMESPACE_SERIALIZER"
_COMMA = pa.scalar(b",", BYTES)
_TIME = Scalar("SortedLong")


def write_part(array: pa.Array, flink_type: FlinkType) -> pa.Array:
    """Return the bytes of values of a type."""
    return flink_type.write(array)


def encode_part(part: str, array: pa.Array, flink_type: FlinkType, encode: Encoding) -> pa.Array:
    """Return the bytes of a part, which errors do not name."""
    return encode(array, flink_type)


@dataclass(frozen=True, slots=True, eq=False)
class KeyParts:
    """The parts of the keys of entries, as columns or as the bytes of each.

    ``map_key`` is None for states other than maps, and ``time`` for states other than timers.
    """

    key: pa.Array
    namespace: pa.Array
    map_key: pa.Array | None = None
    time: pa.Array | None = None


@dataclass(frozen=True)
class FlinkState:
    """A keyed state: its name, its kind, and its types.

    ``value`` is the type in the header: for a list state the list, for a map state the map, for
    timers the timer. ``recipe`` gives the hashes of keys whose type has no known hash, as in
    :mod:`statestore.interop.flink.types.key_recipes`.
    """

    name: str
    kind: StateForm
    key: FlinkType
    namespace: FlinkType
    value: FlinkType
    recipe: str | None = None

    before_key: ClassVar[int] = 0
    """The number of bytes between the key group and the key."""
    before_inner: ClassVar[int] = 0
    """The number of bytes before the first value of the type ``inner``."""

    @property
    def info(self) -> StateInfo:
        """The description of the state in the header of a savepoint."""
        serializers = {_VALUE: make_snapshot(self.value), _NAMESPACE: make_snapshot(self.namespace)}
        return StateInfo(self.name, "keyed", {_OPTION: self.kind.upper()}, serializers)

    @property
    def inner(self) -> FlinkType:
        """The type of a value, of an element of a list, or of a value in a map, with its TTL."""
        return self.value

    def with_inner(self, inner: FlinkType) -> Self:
        """Return the state with another type of values, elements or values in a map."""
        return replace(self, value=inner)

    @property
    def map_key(self) -> FlinkType | None:
        """The type of a map's keys; None for states other than maps."""
        return None

    def with_key(self, key: FlinkType) -> Self:
        """Return the state with another type of keys."""
        return replace(self, key=key)

    @property
    def has_ttl(self) -> bool:
        """Whether its values, elements or entries have a timestamp of the last access."""
        return isinstance(self.inner, TtlType)

    def key_groups(self, cursor: Cursor) -> GroupFunction:
        """Return a function from max parallelism to the key groups of the keys at a cursor.

        The cursor advances past the keys.

        Raises:
            UnsupportedTypeError: for a type whose hash cannot be computed from its values.
            InvalidArgumentError: for a recipe that does not fit the keys.
            DamagedFileError: if the bytes do not match the type.
        """
        key = plain_type(self.key)
        if self.recipe is None:
            return key.key_groups(cursor)
        return groups_of_hashes(recipe_hash_codes(self.recipe, key, key.read(cursor)))

    def split_keys(self, keys: Spans, prefix: int) -> KeyParts:
        """Split the keys of entries into their parts.

        Args:
            keys: the complete keys.
            prefix: how many bytes of each key are its key group.

        Raises:
            DamagedFileError: if a key does not match its type, or has bytes left.
            UnsupportedTypeError: for a type without a column type.
        """
        cursor = Cursor(keys, keys.starts + prefix, keys.ends)
        key, namespace = (self._read_marked(part, cursor) for part in (self.key, self.namespace))
        map_key = None if self.map_key is None else self.map_key.read(cursor)
        cursor.refuse(cursor.position != cursor.end, "unexpected bytes follow a key")
        return KeyParts(key, namespace, map_key)

    def join_keys(self, prefix: pa.Array | pa.Scalar, parts: KeyParts) -> pa.Array:
        """Return the keys of entries, from their prefixes and the bytes of their parts."""
        key, namespace = parts.key, parts.namespace
        between = [key, namespace]
        if self._has_marks:
            between = [key, _length_marks(key), namespace, _length_marks(namespace)]
        return join_parts(prefix, *between, *([] if parts.map_key is None else [parts.map_key]))

    def check_values(self, values: Cursor) -> None:
        """Raise DamagedFileError for values that Flink does not store."""

    def decode(self, values: Spans) -> pa.Array | None:
        """Return the values of entries as a column; None for timers.

        Raises the errors of :meth:`StateEntries.rows`.
        """
        return decode_values(self.value, values)

    def encode_keys(self, rows: SavepointRows, prefix: pa.Array, write: PartWriter) -> pa.Array:
        """Return the keys of entries. Raises the errors of ``write``."""
        map_key = None
        if self.map_key is not None:
            map_key = write("map_key", rows.map_key, self.map_key, write_part)
        parts = KeyParts(
            write("key", rows.key, self.key, write_part),
            write("namespace", rows.namespace, self.namespace, write_part),
            map_key,
            None if rows.time is None else _TIME.write(rows.time),
        )
        return self.join_keys(prefix, parts)

    def encode_values(
        self, values: pa.Array | None, count: int, write: PartWriter = encode_part
    ) -> pa.Array:
        """Return the bytes of ``count`` values. Raises the errors of ``write``."""
        return write("value", values, self.value, write_part)

    def walk(self, reader: Reader) -> HeapEntries:
        """Read the number of the heap's entries, walk over the entries, and advance past them.

        Raises:
            DamagedFileError: if the bytes do not follow Flink's format.
            UnsupportedTypeError: for a type whose values have no recognizable end.
        """
        return walk_entries(reader, self.name, (self.namespace, self.key, self.value))

    def canonical(self, walked: HeapEntries, group: pa.Scalar) -> tuple[pa.Array, Spans]:
        """Return the keys, which begin with ``group``, and the values of entries of the heap."""
        return self.join_keys(group, _heap_keys(walked)), walked.slice(
            walked.begins[2], walked.stops
        )

    def heap_entries(
        self, walked: HeapEntries, number: int, key_group: int, prefix: int
    ) -> Iterator[Entries]:
        """Yield entries of the heap in canonical form, if there are any.

        ``number`` is the state's index in the header. Each key begins with the key group in
        ``prefix`` bytes.
        """
        if not len(walked):
            return
        group = pa.scalar(key_group.to_bytes(prefix, "big"), BYTES)
        keys, values = self.canonical(walked, group)
        if len(keys):
            yield Entries(number, key_group, Spans.from_array(keys, walked.reader.name), values)

    @property
    def _has_marks(self) -> bool:
        return self.key.serializer_length is None and self.namespace.serializer_length is None

    def _read_marked(self, part: FlinkType, cursor: Cursor) -> pa.Array:
        begin = cursor.position
        array = part.read(cursor)
        if self._has_marks:
            _check_mark(cursor, begin)
        return array


class ValueState(FlinkState):
    """A state with one value for each key and namespace: value, reducing or aggregating."""


@dataclass(frozen=True)
class ListState(FlinkState):
    """A list for each key and namespace, whose elements are separated by commas."""

    value: ListType

    @property
    def inner(self) -> FlinkType:
        """The type of an element, with its TTL."""
        return self.value.element

    def with_inner(self, inner: FlinkType) -> Self:
        """Return the state with another type of elements."""
        return replace(self, value=replace(self.value, element=inner))

    def check_values(self, values: Cursor) -> None:
        """Raise DamagedFileError for an empty list."""
        values.refuse(
            values.position == values.end,
            "a list has no elements, although Flink does not store empty lists",
        )

    def decode(self, values: Spans) -> pa.Array:
        """Return the lists as a column."""
        return decode_list(self.inner, values)

    def encode_values(
        self, values: pa.Array | None, count: int, write: PartWriter = encode_part
    ) -> pa.Array:
        """Return the bytes of ``count`` lists."""
        return write("value", values, self.inner, encode_list)

    def walk(self, reader: Reader) -> HeapEntries:
        """Walk over lists, of which each begins with its number of elements."""
        return walk_counted(reader, self.name, (self.namespace, self.key), (self.inner,))

    def canonical(self, walked: HeapEntries, group: pa.Scalar) -> tuple[pa.Array, Spans]:
        """Return lists of the heap with commas between their elements."""
        offsets = pa.array(np.append(0, np.cumsum(walked.counts)))
        elements = walked.slice(*walked.inner).arrow().cast(BYTES)
        lists = pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements), _COMMA)
        return self.join_keys(group, _heap_keys(walked)), Spans.from_array(
            lists, walked.reader.name
        )


@dataclass(frozen=True)
class MapState(FlinkState):
    """A map for each key and namespace. Each entry of a map is an entry of the state.

    A flag before each value says whether it is null.
    """

    value: MapType
    before_inner: ClassVar[int] = 1

    @property
    def inner(self) -> FlinkType:
        """The type of a value in a map, with its TTL."""
        return self.value.value

    def with_inner(self, inner: FlinkType) -> Self:
        """Return the state with another type of values in a map."""
        return replace(self, value=replace(self.value, value=inner))

    @property
    def map_key(self) -> FlinkType:
        """The type of a map's keys."""
        return self.value.key

    def decode(self, values: Spans) -> pa.Array:
        """Return the values of map entries as a column."""
        return decode_map_values(self.inner, values)

    def encode_values(
        self, values: pa.Array | None, count: int, write: PartWriter = encode_part
    ) -> pa.Array:
        """Return the bytes of ``count`` values of map entries."""
        return write("value", values, NullableType(self.inner), write_part)

    def walk(self, reader: Reader) -> HeapEntries:
        """Walk over maps, of which each begins with its number of entries."""
        inner = (self.map_key, NullableType(self.inner))
        return walk_counted(reader, self.name, (self.namespace, self.key), inner)

    def canonical(self, walked: HeapEntries, group: pa.Scalar) -> tuple[pa.Array, Spans]:
        """Return an entry for each key of a map."""
        parents = pa.array(np.repeat(np.arange(len(walked)), walked.counts))
        begin, middle, stop = walked.inner
        keys = _heap_keys(walked)
        parts = KeyParts(
            keys.key.take(parents),
            keys.namespace.take(parents),
            walked.slice(begin, middle).arrow().cast(BYTES),
        )
        return self.join_keys(group, parts), walked.slice(middle, stop)


@dataclass(frozen=True)
class TimerState(FlinkState):
    """Timers, which have a time, a key and a namespace, and no value."""

    value: TimerType
    before_key: ClassVar[int] = 8

    @property
    def info(self) -> StateInfo:
        """The description of the timers in the header of a savepoint."""
        return StateInfo(self.name, "timers", {}, {_VALUE: make_snapshot(self.value)})

    def with_key(self, key: FlinkType) -> Self:
        """Return the timers with another type of keys."""
        return replace(self, key=key, value=replace(self.value, key=key))

    def split_keys(self, keys: Spans, prefix: int) -> KeyParts:
        """Split timers into their parts."""
        spans = Spans(keys.data, keys.starts + prefix, keys.ends, keys.name, keys.base)
        time, key, namespace = decode_values(self.value, spans).flatten()
        return KeyParts(key, namespace, time=time)

    def join_keys(self, prefix: pa.Array | pa.Scalar, parts: KeyParts) -> pa.Array:
        """Return timers with their prefixes."""
        return join_parts(prefix, parts.time, parts.key, parts.namespace)

    def check_values(self, values: Cursor) -> None:
        """Raise DamagedFileError for a timer with a value."""
        values.refuse(values.position != values.end, "a timer cannot have a value")

    def decode(self, values: Spans) -> None:
        """Return None, because timers have no values."""

    def encode_values(
        self, values: pa.Array | None, count: int, write: PartWriter = encode_part
    ) -> pa.Array:
        """Return ``count`` empty values."""
        return pa.array([b""], BYTES).take(pa.array(np.zeros(count, np.int64)))

    def walk(self, reader: Reader) -> HeapEntries:
        """Walk over timers."""
        return walk_entries(reader, self.name, (self.value,))

    def canonical(self, walked: HeapEntries, group: pa.Scalar) -> tuple[pa.Array, Spans]:
        """Return timers of the heap, which have the canonical order of their parts."""
        (begins,) = walked.begins
        timers = walked.slice(begins, walked.stops).arrow().cast(BYTES)
        return join_parts(group, timers), walked.slice(walked.stops, walked.stops)


_CLASSES: dict[StateForm, type[FlinkState]] = {
    "list": ListState,
    "map": MapState,
    "timers": TimerState,
}


def flink_state(
    name: str,
    kind: StateForm,
    key: FlinkType,
    namespace: FlinkType,
    value: FlinkType,
    recipe: str | None = None,
) -> FlinkState:
    """Return a keyed state of a kind; see :class:`FlinkState` for the arguments."""
    return _CLASSES.get(kind, ValueState)(name, kind, key, namespace, value, recipe)


@dataclass(frozen=True, slots=True, eq=False)
class StateEntries:
    """Entries of one state in one key group, as the bytes of canonical keys and values."""

    state: FlinkState
    key_group: int
    keys: Spans
    values: Spans

    def parts(self, most_bytes: int) -> Iterator[StateEntries]:
        """Yield the entries in order, in chunks of about ``most_bytes``."""
        sizes = self.keys.ends - self.keys.starts + self.values.ends - self.values.starts
        number = np.cumsum(sizes) // most_bytes
        cuts = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(sizes)]
        for first, stop in pairwise(cuts):
            keys, values = self.keys.part(first, stop), self.values.part(first, stop)
            yield StateEntries(self.state, self.key_group, keys, values)

    def rows(self, prefix: int, *, as_bytes: bool = False) -> SavepointRows:
        """Return the entries by column.

        Args:
            prefix: how many bytes of each key are its key group.
            as_bytes: whether values stay bytes.

        Raises:
            DamagedFileError: if bytes do not match their type, or are left over.
            UnsupportedTypeError: for a type without a column type, or a value that does not fit.
        """
        state = self.state
        parts = state.split_keys(self.keys, prefix)
        state.check_values(Cursor(self.values, self.values.starts, self.values.ends))
        value = self.values.arrow() if as_bytes else state.decode(self.values)
        return SavepointRows(
            state, self.key_group, parts.key, parts.namespace, parts.map_key, value, parts.time
        )


@dataclass(frozen=True, slots=True, eq=False)
class SavepointRows:
    """Rows of one state in one key group, as columns.

    For timers, ``value`` is None and ``time`` is the firing time in milliseconds since 1970. For
    other states, ``time`` is None. ``map_key`` is set for a map state only; each map entry is one
    row. The ``value`` of a list state is the whole list. It is never empty, because an update with
    an empty list clears the state (``HeapListState``, ``RocksDBListState``, ``TtlListState``).
    """

    state: FlinkState
    key_group: int
    key: pa.Array
    namespace: pa.Array
    map_key: pa.Array | None
    value: pa.Array | None
    time: pa.Array | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.key)


def keyed_states(
    header: KeyedHeader, name: str, drop: Collection[Refused]
) -> tuple[FlinkState | None, ...]:
    """Return the states of a header, with None for a dropped state.

    ``name`` is the file's name in messages. Raises IncompatibleStateError for an unsupported
    state, and UnsupportedTypeError for an unknown kind of state.
    """
    return tuple(
        None
        if info.kind == "asynchronous" and Refused.ASYNC in drop
        else keyed_state(info, header.key.flink_type, name)
        for info in header.states
    )


def keyed_state(info: StateInfo, key: FlinkType, name: str) -> FlinkState:
    """Return a state of a header whose keys have the type ``key``.

    Raises the errors of :func:`keyed_states`.
    """
    if info.kind == "asynchronous":
        raise IncompatibleStateError(
            f"{name} has the map state {info.name!r} of ForSt without the type of its keys, as "
            "Flink 2.0 writes it: take a savepoint with Flink 2.1 or later, or drop the state "
            f"(--drop {Refused.ASYNC})"
        )
    value = info.serializers.get(_VALUE)
    if isinstance(key, RowDataType):
        key = replace(key, is_key=True)
    if info.kind == "timers" and value is not None and isinstance(value.flink_type, TimerType):
        timer = TimerType(key, value.flink_type.namespace)
        return TimerState(info.name, "timers", key, timer.namespace, timer)
    namespace = info.serializers.get(_NAMESPACE)
    form = _FORMS.get(info.options.get(_OPTION, ""))
    shape = {"list": ListType, "map": MapType}.get(form or "")
    if (
        info.kind != "keyed"
        or value is None
        or namespace is None
        or form is None
        or (shape is not None and not isinstance(value.flink_type, shape))
    ):
        raise UnsupportedTypeError(
            f"{name} has the state {info.name!r} of the unsupported kind "
            f"{info.options.get(_OPTION, info.kind)}"
        )
    return flink_state(info.name, form, key, namespace.flink_type, value.flink_type)


def check_key_groups(
    state: FlinkState, cursor: Cursor, key_group: int, max_parallelism: int, where: str
) -> None:
    """Check that each key at a cursor belongs to the key group in which it is stored.

    The files have no checksums, so this check detects damaged keys. It is skipped for types whose
    hash cannot be computed from a savepoint. ``where`` is the state's name in messages. Raises
    DamagedFileError if a key belongs to another key group.
    """
    try:
        computed = state.key_groups(cursor)(max_parallelism)
    except UnsupportedTypeError:
        return
    except InvalidArgumentError as error:
        raise DamagedFileError(
            f"{where} has a key in key group {key_group} that cannot be a key: {error}"
        ) from error
    wrong = np.flatnonzero(computed != key_group)
    if len(wrong):
        raise DamagedFileError(
            f"{where} has {len(wrong)} of {len(computed)} keys in key group {key_group} that "
            "belong elsewhere according to Flink's hash, the first in key group "
            f"{computed[wrong[0]]}; the savepoint is damaged, or the job uses another hash"
        )


def _heap_keys(walked: HeapEntries) -> KeyParts:
    namespace, key, value = walked.begins
    key_bytes, namespace_bytes = (
        walked.slice(start, stop).arrow().cast(BYTES)
        for start, stop in ((key, value), (namespace, key))
    )
    return KeyParts(key_bytes, namespace_bytes)


def _length_marks(array: pa.Array) -> pa.Array:
    """Return the length marks that follow keys or namespaces."""
    lengths = pc.binary_length(array).to_numpy(zero_copy_only=False).astype("<i8")
    widths = 1 + (lengths[:, np.newaxis] >= 1 << 8 * np.arange(1, 4)).sum(axis=1)
    digits = np.ascontiguousarray(lengths).view(np.uint8).reshape(len(lengths), 8)
    data = digits[np.arange(8) < widths[:, np.newaxis]]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(widths)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(BYTES, len(lengths), buffers)


def _check_mark(cursor: Cursor, begin: Places) -> None:
    lengths = cursor.position - begin
    widths = 1 + (lengths[:, np.newaxis] >= 1 << 8 * np.arange(1, 4)).sum(axis=1)
    for number in range(4):
        rows = widths > number
        if not bool(rows.any()):
            return
        selected = cursor.select(rows)
        wrong = selected.take(1)[:, 0] != (lengths[rows] >> 8 * number & 0xFF)
        selected.refuse(wrong, "the length after a key is wrong")
        cursor.move_rows(rows, selected)
