"""A subtask's state that is fetched on demand: a lookup reads one key group, not all of them.

As with disaggregated state, a restored subtask can begin immediately, and reads state on demand.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import closing
from typing import Any

import pyarrow as pa

from statestore.arguments import checked_methods
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import reads_of
from statestore.keys.groups import KeyGroupRange
from statestore.layers.merge import (
    read_state,
)
from statestore.parquet.keyed_reader import restored_schema
from statestore.restore.key_set_lookup import Indexed, WantedKeys
from statestore.restore.lookup import key_batch, key_group_of, rows_of_key
from statestore.rows.key_group_runs import combine_chunks
from statestore.rows.lossless_cast import brief_text
from statestore.rows.python_values import rows_to_dicts
from statestore.storage import Storage

__all__ = ["LazySubtask"]


@checked_methods
class LazySubtask:
    """The key groups of one subtask, each read when one of its keys is looked up.

    Up to ``limit_bytes`` of decoded key groups are cached; the least recently used are evicted
    first. A larger key group is not cached: each lookup reads the row groups that may have the key.
    Not thread-safe.
    """

    def __init__(
        self,
        storage: Storage,
        entry: KeyedEntry,
        own: KeyGroupRange,
        max_parallelism: int,
        *,
        limit_bytes: int,
        verify: bool = False,
        now_ms: int | None,
    ) -> None:
        """Take the subtask's key groups; nothing is read yet."""
        self.key_groups = own
        self._storage, self._entry, self._max = storage, entry, max_parallelism
        self._limit, self._verify, self._now_ms = limit_bytes, verify, now_ms
        self._size = 0
        self._held: OrderedDict[int, Indexed] = OrderedDict()
        self._too_large: set[int] = set()

    @property
    def fetched(self) -> tuple[int, ...]:
        """The key groups in the cache, ascending."""
        return tuple(sorted(self._held))

    def get(self, key: Any) -> list[dict[str, Any]]:
        """Return the rows of one key, [] for none; its key group is read, and cached if it fits.

        Raises InvalidArgumentError for an invalid key, or one that another subtask owns,
        MissingFileError or DamagedFileError.
        """
        batch = key_batch(self._entry.state, key)
        group = key_group_of(self._entry.state, batch, self._max)
        if group not in self.key_groups:
            raise InvalidArgumentError(
                f"the key {brief_text(key)} of {self._entry.state} is in key group {group}, but "
                f"this subtask owns {self.key_groups}; ask the subtask that owns the key group"
            )
        state, held = self._entry.state, self._group(group)
        if held is None:
            return rows_of_key(
                self._storage, self._entry, key, verify=self._verify, now_ms=self._now_ms
            )
        wanted = WantedKeys.of(pa.Table.from_batches([batch]), state)
        rows = wanted.match(held.like(wanted.hashes))
        return rows_to_dicts(rows.select(state.schema.names), str(state))

    def fetch(self, key_groups: KeyGroupRange | None = None) -> int:
        """Read key groups into the cache, by default all; return the number of cached key groups.

        A key group that is larger than the limit is not cached.
        """
        for group in self.key_groups if key_groups is None else key_groups:
            if group in self.key_groups:
                self._group(group)
        return len(self._held)

    def _group(self, group: int) -> Indexed | None:
        """Return a key group and cache it; None if it is larger than the limit."""
        held = self._held.get(group)
        if held is None:
            if group in self._too_large:
                return None
            held = self._read(group)
            if held is None or held.size > self._limit:
                self._too_large.add(group)
                return None
            self._held[group] = held
            self._size += held.size
            while self._size > self._limit:
                self._size -= self._held.popitem(last=False)[1].size
        self._held.move_to_end(group)
        return held

    def _read(self, group: int) -> Indexed | None:
        """Return a key group; None if its rows are larger than the limit."""
        reads = reads_of(self._entry, KeyGroupRange(group, group), self._max)
        if sum(part.size_bytes for part in reads.base) > self._limit:  # rows are larger than files
            return None
        schema = restored_schema(self._entry.state.schema)
        pieces: list[pa.RecordBatch] = []
        size = 0
        with closing(
            read_state(self._storage, self._entry, reads, verify=self._verify, now_ms=self._now_ms)
        ) as batches:
            for batch in batches:
                size += batch.nbytes
                if size > self._limit:
                    return None
                pieces.append(batch)
        return Indexed.of(combine_chunks(pa.Table.from_batches(pieces, schema)), self._entry.state)
