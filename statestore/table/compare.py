"""Rows of two keyed states compared: which were added, removed, changed.

The digests that the manifests have decide which key groups are read at all; the files of the two
sides may have other layouts. Rows are known by the 64-bit hash of their identity columns and
compared by that of all columns, in numpy, as ``table/digest.py`` hashes them: so a column of a
wider type with the same values is no change. Of key groups with a million keys, one in about thirty
million has two keys of one hash, which are then counted wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.model.diff import Example, GroupDifference
from statestore.model.manifest import KeyedEntry
from statestore.storage import Storage
from statestore.table.digest import row_hashes
from statestore.table.groups import Rows, group_digests, read_groups

__all__ = ["Compared", "ComparedSide", "compare_groups", "compare_whole", "differing_groups"]

U64Array = npt.NDArray[np.uint64]
Places = npt.NDArray[np.intp]

_ROWS_AT_ONCE = 2**22
"""How many rows of a side are known by their hashes at once when all of them are compared."""


@dataclass(frozen=True)
class ComparedSide:
    """A state on one side; ``columns`` are those that both sides have."""

    storage: Storage
    entry: KeyedEntry
    columns: tuple[str, ...]

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns by which a row is known."""
        return self.entry.state.identity

    def groups(self, wanted: Container[int]) -> Generator[tuple[int, Rows]]:
        """Yield the rows of the wanted key groups."""
        return read_groups(self.storage, self.entry, wanted)

    def sizes(self) -> dict[int, tuple[int, int]]:
        """Return rows and digest of each key group that has rows."""
        return {
            group: (rows, digest)
            for handle in self.entry.handles
            for group, rows, digest in group_digests(handle)
        }


@dataclass
class Compared:
    """What was found so far; ``read`` is how many key groups were read."""

    limit: int
    groups: list[GroupDifference] = field(default_factory=list)
    added: int = 0
    removed: int = 0
    changed: int = 0
    read: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def room(self) -> int:
        """How many more examples are wanted."""
        return max(self.limit - len(self.examples), 0)


def differing_groups(a: ComparedSide, b: ComparedSide) -> tuple[int, ...]:
    """Return the key groups that are not the same by their digests; nothing is read.

    With other columns on the two sides digests say nothing: those are all key groups.
    """
    old, new = a.sizes(), b.sizes()
    same_columns = set(a.entry.state.schema.names) == set(b.entry.state.schema.names)
    return tuple(
        group
        for group in sorted({*old, *new})
        if not same_columns or old.get(group) != new.get(group)
    )


def compare_groups(
    a: ComparedSide, b: ComparedSide, limit: int, on_group: Callable[[], None]
) -> Compared:
    """Compare states with the same key groups, one key group after another.

    Only key groups that differ and have rows on both sides are read, and of the others as many as
    it takes for ``limit`` examples; ``on_group`` is called for each that differs.
    """
    found = Compared(limit)
    old, new = a.sizes(), b.sizes()
    differing = differing_groups(a, b)
    both = frozenset(group for group in differing if group in old and group in new)
    with closing(a.groups(both)) as groups_a, closing(b.groups(both)) as groups_b:
        for (group, rows_a), (_, rows_b) in zip(groups_a, groups_b, strict=True):
            _compare(found, group, _Group.of(rows_a, a), _Group.of(rows_b, b))
            found.read += 1
            on_group()
    for group in differing:
        if group in both:
            continue
        side, change = (a, "removed") if group in old else (b, "added")
        if found.room:
            ((_, rows),) = side.groups({group})
            _add_examples(found, change, group, side, pa.Table.from_batches(rows), None)
            found.read += 1
        count = (old.get(group) or new[group])[0]
        counts = {"added": 0, "removed": 0, "changed": 0} | {change: count}
        _add(found, group, **counts)
        on_group()
    found.groups.sort(key=lambda one: one.key_group)
    return found


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
        return pa.Table.from_batches(self.rows).take(pa.array(places))


def _compare(found: Compared, group: int, old: _Group, new: _Group) -> None:
    removed, added, changed = _join(old.hashes, new.hashes)
    _add(found, group, added=len(added), removed=len(removed), changed=len(changed[0]))
    if room := found.room:
        before, now = old.take(changed[0][:room]), new.take(changed[1][:room])
        _add_examples(found, "changed", group, old.side, before, now)
    if room := found.room:
        _add_examples(found, "added", group, new.side, new.take(added[:room]), None)
    if room := found.room:
        _add_examples(found, "removed", group, old.side, old.take(removed[:room]), None)


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
    shown: list[dict[str, Any]] = rows.slice(0, found.room).to_pylist()
    second: list[Any] = [None] * len(shown) if others is None else others.to_pylist()
    for row, other in zip(shown, second, strict=True):
        identity = {name: row[name] for name in side.identity}
        pair = (None, row) if change == "added" else (row, other)
        found.examples.append(
            Example(change=change, key_group=group, identity=identity, a=pair[0], b=pair[1])
        )


def _hash(rows: Rows, side: ComparedSide) -> Hashes:
    identity, columns = list(side.identity), list(side.columns)
    return (
        np.concatenate([row_hashes(batch.select(identity)) for batch in rows]),
        np.concatenate([row_hashes(batch.select(columns)) for batch in rows]),
    )


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
            hashes = row_hashes(batch.select(list(side.identity)))
            places = np.flatnonzero(np.isin(hashes, wanted))
            shown = batch.take(pa.array(places)).to_pylist()
            found.update(zip(hashes[places].tolist(), shown, strict=True))
    return found
