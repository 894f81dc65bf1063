"""A cache of small layers of changes, decoded once for all subtasks that a process restores.

Opening a small layer and decoding its row groups costs about the same for a few rows as for all of
them. The first subtask that reads a small layer therefore decodes all of it, and every subtask gets
a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock

import pyarrow as pa

from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import LayerReads, Slices, slices_of
from statestore.keys.groups import KeyGroupRange
from statestore.layers.aligned_streams import sorted_tables

Read = Callable[[KeyedEntry, Slices], Iterator[pa.RecordBatch]]

SHARED_BYTES = 64 * 2**20
"""The maximum number of bytes of decoded layers in one cache."""

_TINY_BYTES, _SMALL_BYTES = 128 * 2**10, 4 * 2**20
_LEAST_PART = 8


class LayerCache:
    """Holds decoded layers of one restored state, at most ``limit_bytes``; thread-safe."""

    def __init__(self, limit_bytes: int = SHARED_BYTES) -> None:
        """Start with no layers."""
        self._limit = self._left = limit_bytes
        self._tables: dict[tuple[str, ...], pa.Table | None] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[LayerCache], tuple[int]]:
        """Start with no layers in another process, which reads the layers that it needs itself."""
        return type(self), (self._limit,)

    def rows_of(self, layer: LayerReads, read: Read) -> pa.Table | None:
        """Return all rows of a layer, sorted.

        Args:
            layer: the slices of the layer that a subtask reads.
            read: reads slices of a layer's files. Its errors are raised, and nothing is cached.

        Returns:
            The rows; None if the subtask should read its own slices: the layer is not small, the
            subtask needs a small part of it, or the cache is full.
        """
        handles = layer.entry.handles
        if not _is_shared(layer, handles):
            return None
        files = tuple(handle.path for handle in handles)
        with self._lock:
            if files not in self._tables:
                self._tables[files] = self._decode_layer(layer.entry, read)
            return self._tables[files]

    def _decode_layer(self, entry: KeyedEntry, read: Read) -> pa.Table | None:
        every = KeyGroupRange.every(entry.state.max_parallelism)
        batches: list[pa.RecordBatch] = []
        size = 0
        for batch in read(entry, slices_of(entry, every)):
            batches.append(batch)
            size += batch.nbytes
            if size > self._left:
                return None
        tables = [*sorted_tables(batches, entry.state, SHARED_BYTES)]
        self._left -= size
        return pa.concat_tables(tables).combine_chunks() if tables else None


def _is_shared(layer: LayerReads, handles: Sequence[KeyedStateHandle]) -> bool:
    """Return whether decoding all of a layer costs this subtask little more than its own part."""
    size = sum(handle.size_bytes for handle in handles)
    own, every = sum(part.rows for part in layer.slices), sum(handle.rows for handle in handles)
    return size <= _TINY_BYTES or (size <= _SMALL_BYTES and own * _LEAST_PART >= every)
