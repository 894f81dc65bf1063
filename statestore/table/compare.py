"""Rows of two keyed states compared: which were added, removed, changed.

The digests that the manifests have decide which key groups are read at all; the files of the two
sides may have other layouts. A key group with changes is the same when both sides have the same
base and the same changes of it; else it is read, and merged. Where a column has another type on the
two sides, digests may say nothing, and rows decide. Rows are known by the 64-bit hash of their
identity columns and compared by that of all columns, as :mod:`statestore.files.equality` says. Of
key groups with a million keys, one in about thirty million has two keys of one hash, which are then
counted wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.files.equality import common_schema, hashes_of
from statestore.files.key_groups import Parts, Rows, group_parts, read_merged_groups
from statestore.files.types import arrow_schema
from statestore.files.values import shown
from statestore.format.manifest import KeyedEntry
from statestore.format.schema import Schema, digests_compare
from statestore.model.diff import Example, GroupDifference
from statestore.storage import Storage

__all__ = ["Compared", "ComparedSide", "compare_groups", "compare_whole", "unlike_groups"]

U64Array = npt.NDArray[np.uint64]
Places = npt.NDArray[np.intp]

_ROWS_AT_ONCE = 2**22
"""How many rows of a side are known by their hashes at once when all of them are compared."""


@dataclass(frozen=True)
class ComparedSide:
    """A state on one side, compared with one of the columns ``other``."""

    storage: Storage
    entry: KeyedEntry
    other: Schema

    @cached_property
    def columns(self) -> pa.Schema:
        """What both sides have, of types that hold the values of both."""
        return common_schema(self.entry.state.schema, self.other)

    @cached_property
    def identity_columns(self) -> pa.Schema:
        """Those of them by which a row is known."""
        return pa.schema([self.columns.field(name) for name in self.identity])

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns by which a row is known."""
        return self.entry.state.identity

    def groups(self, wanted: Container[int]) -> Generator[tuple[int, Rows]]:
        """Yield the rows of the wanted key groups that have some."""
        return read_merged_groups(self.storage, self.entry, wanted)

    def parts(self) -> dict[int, Parts]:
        """Return what is known of each key group that has rows or changes."""
        return group_parts(self.entry)

    def rows(self) -> int:
        """Return how many rows there are; key groups with changes are read."""
        parts = self.parts()
        changed = frozenset(group for group, known in parts.items() if len(known) > 1)
        count = sum(known[0][0] for group, known in parts.items() if group not in changed)
        if changed:
            for _, batches in self.groups(changed):
                count += sum(batch.num_rows for batch in batches)
        return count


@dataclass
class Compared:
    """What was found so far; ``read`` is how many key groups were read, ``differing`` how many of
    all are not the same.
    """

    limit: int
    groups: list[GroupDifference] = field(default_factory=list)
    added: int = 0
    removed: int = 0
    changed: int = 0
    read: int = 0
    differing: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def room(self) -> int:
        """How many more examples are wanted."""
        return max(self.limit - len(self.examples), 0)


def unlike_groups(a: ComparedSide, b: ComparedSide) -> tuple[int, ...]:
    """Return the key groups that are not the same as far as the manifests tell; nothing is read.

    With other columns on the two sides, or values that hash in another way, digests say nothing:
    those are all key groups. With changes, what these make of the rows may be the same.
    """
    return _unlike(a, a.parts(), b.parts())


def _unlike(a: ComparedSide, old: dict[int, Parts], new: dict[int, Parts]) -> tuple[int, ...]:
    tell = digests_compare(a.entry.state.schema, a.other)
    return tuple(
        group for group in sorted({*old, *new}) if not tell or old.get(group) != new.get(group)
    )


def compare_groups(
    a: ComparedSide, b: ComparedSide, limit: int, on_group: Callable[[], None]
) -> Compared:
    """Compare states with the same key groups, one key group after another.

    Of key groups that are unlike (:func:`unlike_groups`) only those are read that have rows on both
    sides, or changes, and of the others as many as it takes for ``limit`` examples; ``on_group`` is
    called for each that is unlike.
    """
    found = Compared(limit)
    old, new = a.parts(), b.parts()
    same_columns = set(a.entry.state.schema.names) == set(a.other.names)
    unlike = _unlike(a, old, new)
    both = frozenset(
        group
        for group in unlike
        if (group in old and group in new) or len(old.get(group) or new[group]) > 1
    )
    for group, rows_a, rows_b in _side_by_side(a, b, both):
        changed = _compare(found, group, _Group.of(rows_a, a), _Group.of(rows_b, b))
        found.differing += changed or not same_columns
        found.read += 1
        on_group()
    for group in unlike:
        if group in both:
            continue
        side, change = (a, "removed") if group in old else (b, "added")
        if found.room:
            ((_, rows),) = side.groups({group})
            _add_examples(found, change, group, side, pa.Table.from_batches(rows), None)
            found.read += 1
        count = (old.get(group) or new[group])[0][0]
        counts = {"added": 0, "removed": 0, "changed": 0} | {change: count}
        _add(found, group, **counts)
        found.differing += 1
        on_group()
    found.groups.sort(key=lambda one: one.key_group)
    return found


def _side_by_side(
    a: ComparedSide, b: ComparedSide, wanted: frozenset[int]
) -> Iterator[tuple[int, Rows, Rows]]:
    """Yield each wanted key group with its rows on both sides; none where changes left none."""
    with closing(a.groups(wanted)) as groups_a, closing(b.groups(wanted)) as groups_b:
        old, new = next(groups_a, None), next(groups_b, None)
        for group in sorted(wanted):
            rows_a: Rows = []
            rows_b: Rows = []
            if old is not None and old[0] == group:
                rows_a, old = old[1], next(groups_a, None)
            if new is not None and new[0] == group:
                rows_b, new = new[1], next(groups_b, None)
            yield group, rows_a, rows_b


def compare_whole(a: ComparedSide, b: ComparedSide, limit: int) -> Compared:
    """Compare states whose key groups are not the same: all rows, some at a time by their hash.

    A side is read once for every four million rows that the larger one has, and once more when
    there are examples to show; 16 bytes of each of these rows are in memory.
    """
    found = Compared(limit)
    passes = -(-max(a.entry.rows, b.entry.rows, 1) // _ROWS_AT_ONCE)
    shown: list[tuple[str, int]] = []
    for number in range(passes):
        old, new = _hashed(a, number, passes), _hashed(b, number, passes)
        removed, added, changed = _join(old, new)
        found.removed += len(removed)
        found.added += len(added)
        found.changed += len(changed[0])
        for change, ids in (
            ("changed", old[0][changed[0]]),
            ("added", new[0][added]),
            ("removed", old[0][removed]),
        ):
            shown += [(change, int(one)) for one in ids[: max(limit - len(shown), 0)]]
    if shown:
        wanted = np.array([one for _, one in shown], np.uint64)
        before, now = _rows_of(a, wanted), _rows_of(b, wanted)
        for change, one in shown:
            row = before.get(one) or now[one]
            identity = {name: row[name] for name in a.identity}
            rows = before.get(one), now.get(one)
            found.examples.append(
                Example(change=change, key_group=None, identity=identity, a=rows[0], b=rows[1])
            )
    return found


Hashes = tuple[U64Array, U64Array]


@dataclass(frozen=True)
class _Group:
    """The rows of a key group on one side, and their hashes: of identity, of all columns."""

    side: ComparedSide
    rows: Rows
    hashes: Hashes

    @classmethod
    def of(cls, rows: Rows, side: ComparedSide) -> _Group:
        return cls(side, rows, _hash(rows, side))

    def take(self, places: Places) -> pa.Table:
        schema = arrow_schema(self.side.entry.state.schema)
        return pa.Table.from_batches(self.rows, schema).take(pa.array(places, pa.int64()))


def _compare(found: Compared, group: int, old: _Group, new: _Group) -> bool:
    """Add what tells the rows of a key group apart; return whether anything does."""
    removed, added, changed = _join(old.hashes, new.hashes)
    _add(found, group, added=len(added), removed=len(removed), changed=len(changed[0]))
    if room := found.room:
        before, now = old.take(changed[0][:room]), new.take(changed[1][:room])
        _add_examples(found, "changed", group, old.side, before, now)
    if room := found.room:
        _add_examples(found, "added", group, new.side, new.take(added[:room]), None)
    if room := found.room:
        _add_examples(found, "removed", group, old.side, old.take(removed[:room]), None)
    return bool(len(added) or len(removed) or len(changed[0]))


def _add(found: Compared, group: int, *, added: int, removed: int, changed: int) -> None:
    if not added and not removed and not changed:  # its columns differ, and the shared ones do not
        return
    found.added += added
    found.removed += removed
    found.changed += changed
    found.groups.append(
        GroupDifference(key_group=group, added=added, removed=removed, changed=changed)
    )


def _add_examples(
    found: Compared,
    change: str,
    group: int,
    side: ComparedSide,
    rows: pa.Table,
    others: pa.Table | None,
) -> None:
    first = shown(rows.slice(0, found.room))
    second: list[Any] = [None] * len(first) if others is None else shown(others)
    for row, other in zip(first, second, strict=True):
        identity = {name: row[name] for name in side.identity}
        pair = (None, row) if change == "added" else (row, other)
        found.examples.append(
            Example(change=change, key_group=group, identity=identity, a=pair[0], b=pair[1])
        )


def _hash(rows: Rows, side: ComparedSide) -> Hashes:
    table = pa.Table.from_batches(rows, arrow_schema(side.entry.state.schema))
    return hashes_of(table, side.identity_columns), hashes_of(table, side.columns)


def _join(a: Hashes, b: Hashes) -> tuple[Places, Places, tuple[Places, Places]]:
    """Return the places of rows of a alone, of b alone, and of both that have other values."""
    _, old, new = np.intersect1d(a[0], b[0], assume_unique=True, return_indices=True)
    other = a[1][old] != b[1][new]
    alone_a, alone_b = np.ones(len(a[0]), bool), np.ones(len(b[0]), bool)
    alone_a[old] = alone_b[new] = False
    order = np.argsort(old[other])  # as they are stored, not by their hash
    changed = old[other][order], new[other][order]
    return np.flatnonzero(alone_a), np.flatnonzero(alone_b), changed


def _hashed(side: ComparedSide, number: int, passes: int) -> Hashes:
    """Return the hashes of those rows of a state that one of several passes is about."""
    pieces: list[Hashes] = []
    for _, rows in side.groups(range(side.entry.state.max_parallelism)):
        identity, values = _hash(rows, side)
        own = identity % np.uint64(passes) == number
        pieces.append((identity[own], values[own]))
    if not pieces:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    return np.concatenate([one for one, _ in pieces]), np.concatenate([one for _, one in pieces])


def _rows_of(side: ComparedSide, wanted: U64Array) -> dict[int, dict[str, Any]]:
    """Return the rows with one of these hashes of identity, by it."""
    found: dict[int, dict[str, Any]] = {}
    for _, rows in side.groups(range(side.entry.state.max_parallelism)):
        for batch in rows:
            hashes = hashes_of(batch, side.identity_columns)
            places = np.flatnonzero(np.isin(hashes, wanted))
            rows_there = shown(batch.take(pa.array(places)))
            found.update(zip(hashes[places].tolist(), rows_there, strict=True))
    return found
