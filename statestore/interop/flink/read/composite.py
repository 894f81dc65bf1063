"""Keys of entries: the key group, the key, the namespace and a map's key, concatenated.

``SerializedCompositeKeyBuilder`` and ``CompositeKeySerializationUtils`` define the layout. If both
the key and the namespace vary in length, each is followed by its length, in as few bytes as
possible, lowest first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.interop.flink.read.keyed_states import KeyedStateInfo
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES, Places, Spans
from statestore.interop.flink.types.flink_types import FlinkType, MapType


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """The parts of a state's keys, and whether the key and the namespace have length marks."""

    key: FlinkType
    namespace: FlinkType
    map_key: FlinkType | None
    has_marks: bool

    @staticmethod
    def from_state(state: KeyedStateInfo) -> KeyLayout:
        """Return the key layout of a state."""
        is_map = state.kind == "map" and isinstance(state.value, MapType)
        map_key = state.value.key if is_map and isinstance(state.value, MapType) else None
        has_marks = (
            state.key.serializer_length is None and state.namespace.serializer_length is None
        )
        return KeyLayout(state.key, state.namespace, map_key, has_marks)

    def parts(self, keys: pa.Array, namespaces: pa.Array) -> tuple[pa.Array, ...]:
        """Return the parts between the key group and a map's key, in the order of the layout."""
        if not self.has_marks:
            return keys, namespaces
        return keys, length_marks(keys), namespaces, length_marks(namespaces)


@dataclass(frozen=True, slots=True, eq=False)
class KeyColumns:
    """The parts of keys as columns; ``map_key`` is None for states other than maps."""

    key: pa.Array
    namespace: pa.Array
    map_key: pa.Array | None


def length_marks(array: pa.Array) -> pa.Array:
    """Return the length marks that follow keys or namespaces."""
    lengths = pc.binary_length(array).to_numpy(zero_copy_only=False).astype("<i8")
    widths = 1 + (lengths[:, np.newaxis] >= 1 << 8 * np.arange(1, 4)).sum(axis=1)
    digits = np.ascontiguousarray(lengths).view(np.uint8).reshape(len(lengths), 8)
    data = digits[np.arange(8) < widths[:, np.newaxis]]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(widths)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(BYTES, len(lengths), buffers)


def split_keys(keys: Spans, layout: KeyLayout, prefix: int) -> KeyColumns:
    """Split keys into their parts.

    Args:
        keys: the complete keys.
        layout: their layout.
        prefix: how many bytes of each key are its key group.

    Returns:
        The columns.

    Raises:
        DamagedFileError: if a key does not match its type, or has bytes left.
        UnsupportedTypeError: for a type without a column type.
    """
    cursor = Cursor(keys, keys.starts + prefix, keys.ends)
    begin = cursor.position
    key = layout.key.read(cursor)
    if layout.has_marks:
        _check_mark(cursor, begin)
    begin = cursor.position
    namespace = layout.namespace.read(cursor)
    if layout.has_marks:
        _check_mark(cursor, begin)
    map_key = None if layout.map_key is None else layout.map_key.read(cursor)
    cursor.refuse(cursor.position != cursor.end, "unexpected bytes follow a key")
    return KeyColumns(key, namespace, map_key)


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
