"""A subtask's state fetched as it is asked for: a lookup reads one key group, not all.

What disaggregated state does: whoever restores may begin at once, and pays for what it touches.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pyarrow as pa

from statestore.arguments import checked_methods
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import reads_within
from statestore.keys.groups import KeyGroupRange
from statestore.storage import Storage
from statestore.table.ceiling import group_of_key
from statestore.table.key_rows import Indexed, WantedKeys
from statestore.table.lookup import key_batch
from statestore.table.merge import read_reads
from statestore.table.scan import restored_schema
from statestore.table.values import dictionaries

__all__ = ["LazySubtask"]


@checked_methods
class LazySubtask:
    """The key groups of one subtask, each read when a key of it is asked for.

    Up to ``limit_bytes`` of decoded key groups are held, the least lately used go first; the one
    that was asked for last is held whatever its size. Not for several threads.
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
        """Take what the subtask owns; nothing is read yet."""
        self.key_groups = own
        self._storage, self._entry, self._max = storage, entry, max_parallelism
        self._limit, self._verify, self._now_ms = limit_bytes, verify, now_ms
        self._size = 0
        self._held: OrderedDict[int, Indexed] = OrderedDict()

    @property
    def fetched(self) -> tuple[int, ...]:
        """The key groups that are held, ascending."""
        return tuple(sorted(self._held))

    def get(self, key: Any) -> list[dict[str, Any]]:
        """Return the rows of one key, [] for none; its key group is read if it is not held.

        Raises InvalidArgumentError for a value that is no key, or one that another subtask owns,
        MissingFileError or DamagedFileError.
        """
        batch = key_batch(self._entry.state, key)
        group = group_of_key(self._entry.state, batch, self._max)
        if group not in self.key_groups:
            raise InvalidArgumentError(
                f"the key {key!r} of {self._entry.state} is in key group {group}, and this subtask "
                f"owns {self.key_groups}"
            )
        wanted = WantedKeys.of(pa.Table.from_batches([batch]), self._entry.state)
        rows = wanted.match(self._group(group).like(wanted.hashes))
        state = self._entry.state
        return dictionaries(rows.select(state.schema.names), str(state))

    def fetch(self, key_groups: KeyGroupRange | None = None) -> int:
        """Read key groups that are not held, by default all; return how many are held then."""
        for group in self.key_groups if key_groups is None else key_groups:
            if group in self.key_groups:
                self._group(group)
        return len(self._held)

    def _group(self, group: int) -> Indexed:
        held = self._held.get(group)
        if held is None:
            one = KeyGroupRange(group, group)
            reads = reads_within(self._entry, one, self._max)
            batches = read_reads(
                self._storage, self._entry, reads, verify=self._verify, now_ms=self._now_ms
            )
            schema = restored_schema(self._entry.state.schema)
            rows = pa.Table.from_batches(batches, schema).combine_chunks()
            held = self._held[group] = Indexed.of(rows, self._entry.state)
            self._size += held.size
            while len(self._held) > 1 and self._size > self._limit:
                self._size -= self._held.popitem(last=False)[1].size
        self._held.move_to_end(group)
        return held
