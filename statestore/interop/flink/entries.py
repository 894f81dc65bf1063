"""Build the entries and key groups of a canonical savepoint from columns of keys and values
(``FullSnapshotAsyncWriter``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.interop.flink.canonical import prefix_bytes
from statestore.interop.flink.encoding import encoded
from statestore.interop.flink.reader import i16
from statestore.interop.flink.snappy import framed
from statestore.interop.flink.spans import Places, joined
from statestore.interop.flink.types import Scalar
from statestore.keys.groups import KeyGroupRange

__all__ = [
    "EncodedRows",
    "Groups",
    "cut",
    "entries_of",
    "group_bytes",
    "prefixes",
]

_END_OF_STATE = 0x80
_END_OF_GROUP = b"\xff\xff"
_LENGTH = 4

Groups = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """The entries of a state in a chunk, concatenated in the order of key groups."""

    rows: int
    first: int
    edges: Places
    data: memoryview

    def of_group(self, key_group: int) -> memoryview:
        """Return the entries of a key group."""
        at = key_group - self.first
        return self.data[self.edges[at] : self.edges[at + 1]]


def entries_of(keys: pa.Array, values: pa.Array) -> pa.Array:
    """Return entries: i32 and key, i32 and value; each key begins with its key group."""
    return joined(_sizes(keys), keys, _sizes(values), values)


def cut(entries: pa.Array, groups: Groups, chunk: KeyGroupRange) -> EncodedRows:
    """Mark the last entry of each key group, and record the slice of each key group.

    Args:
        entries: the entries of a state.
        groups: their key groups, in order.
        chunk: the range of these key groups.

    Returns:
        The entries by key group.
    """
    _, offsets, content = entries.buffers()
    upto = np.frombuffer(offsets, np.int64, len(entries) + 1, 8 * entries.offset)
    data = np.frombuffer(content, np.uint8).copy() if content else np.empty(0, np.uint8)
    places = np.searchsorted(groups, np.arange(chunk.first, chunk.last + 2))
    last = places[1:][places[1:] > places[:-1]] - 1
    data[upto[last] + _LENGTH] |= _END_OF_STATE
    return EncodedRows(len(entries), chunk.first, upto[places], data.data)


def group_bytes(
    key_group: int, states: Sequence[tuple[int, EncodedRows]], *, is_compressed: bool = False
) -> bytes:
    """Return the bytes of a key group: the entries of each state, by its index in the header.

    The result is empty if the key group has no entries.
    """
    parts: list[bytes | memoryview] = []
    for place, found in states:
        entries = found.of_group(key_group)
        if len(entries):
            parts += [i16(place), entries]
    if not parts:
        return b""
    whole = b"".join([*parts, _END_OF_GROUP])
    return framed(whole) if is_compressed else whole


def prefixes(groups: Groups, max_parallelism: int) -> pa.Array:
    """Return the key-group prefixes of keys."""
    is_short = prefix_bytes(max_parallelism) == 1
    kind, name = (np.int8, "Byte") if is_short else (np.int16, "Short")
    return encoded(pa.array(groups.astype(kind)), Scalar(name))


def _sizes(array: pa.Array) -> pa.Array:
    return encoded(pc.binary_length(array).cast(pa.int32()), Scalar("Integer"))
