"""Keyed state by key group, with its changes: what is known of a group, and its rows.

Without changes the manifest has the digest of a key group. With them it has those of the parts that
the group consists of: the same parts in the same order are the same rows, and other parts say
nothing before they are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterator
from contextlib import ExitStack, closing

import pyarrow as pa

from statestore.format.manifest import KeyedEntry
from statestore.keys.groups import KeyGroupRange
from statestore.storage import Storage
from statestore.table.groups import Rows, group_digests, read_groups
from statestore.table.merge import merged_rows
from statestore.table.scan import placed, restored_schema

__all__ = ["Parts", "group_parts", "read_merged_groups"]

Parts = tuple[tuple[int, int], ...]
"""Rows and digest of a key group in the base, then in each layer that changes it, oldest first.

One item: the group has no changes, and these are its rows and its digest.
"""
Reader = Callable[[Storage, KeyedEntry, Container[int]], Generator[tuple[int, Rows]]]


def group_parts(entry: KeyedEntry) -> dict[int, Parts]:
    """Return the parts of each key group that has rows or changes; nothing is read."""
    found: dict[int, Parts] = {
        group: ((rows, digest),)
        for handle in entry.handles
        for group, rows, digest in group_digests(handle)
    }
    for layer in entry.layers:
        live = _Live(layer.live)
        for handle in layer.entry.handles:
            for group, rows, digest in group_digests(handle):
                if group in live:
                    found[group] = (*found.get(group, ((0, 0),)), (rows, digest))
    return found


def read_merged_groups(
    storage: Storage, entry: KeyedEntry, wanted: Container[int], read: Reader = read_groups
) -> Generator[tuple[int, Rows]]:
    """Yield the rows of each wanted key group that has some, in ascending order, as stored columns.

    Of base and layers files without a wanted key group are not opened, and one key group of each is
    in memory. ``read`` reads those of one part. Raises MissingFileError or DamagedFileError.
    """
    if not entry.layers:
        yield from read(storage, entry, wanted)
        return
    schema = restored_schema(entry.state.schema)
    names = entry.state.schema.names
    with ExitStack() as stack:
        base = _Groups(stack, read(storage, entry, wanted), entry)
        layers = [
            _Groups(
                stack, read(storage, layer.entry, _Both(wanted, _Live(layer.live))), layer.entry
            )
            for layer in entry.layers
        ]
        while heads := [one.head for one in (base, *layers) if one.head is not None]:
            group = min(heads)
            rows = base.take(group)
            parts = [part for part in (layer.take(group) for layer in layers) if part is not None]
            merged = merged_rows(schema.empty_table() if rows is None else rows, parts, entry.state)
            if merged.num_rows:
                yield group, merged.select(names).to_batches()


class _Groups:
    """The key groups of a part, one at hand."""

    def __init__(
        self, stack: ExitStack, groups: Generator[tuple[int, Rows]], entry: KeyedEntry
    ) -> None:
        self._groups: Iterator[tuple[int, Rows]] = stack.enter_context(closing(groups))
        self._schema = restored_schema(entry.state.schema)
        self.head: int | None = None
        self._rows: Rows = []
        self._advance()

    def _advance(self) -> None:
        self.head, self._rows = next(self._groups, (None, []))

    def take(self, group: int) -> pa.Table | None:
        """Return the rows of a key group, ``key_group`` first, None unless it comes next."""
        if self.head != group:
            return None
        rows = [placed(batch, group, self._schema) for batch in self._rows]
        self._advance()
        return pa.Table.from_batches(rows, self._schema)


class _Live:
    """Key groups in some ranges."""

    def __init__(self, ranges: tuple[KeyGroupRange, ...]) -> None:
        self._ranges = ranges

    def __contains__(self, group: object) -> bool:
        return any(group in one for one in self._ranges)


class _Both:
    """What is in both of two."""

    def __init__(self, one: Container[int], other: Container[int]) -> None:
        self._one, self._other = one, other

    def __contains__(self, group: object) -> bool:
        return group in self._one and group in self._other
