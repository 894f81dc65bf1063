"""Compare the rows of two keyed states: which were added, removed or changed.

The digests in the manifests decide which key groups are read. The files of the two sides may have
different layouts. A key group with changes is equal if both sides have the same base and the same
changes of it. If not, it is read and merged. If a column has different types on the two sides,
digests may not be comparable, and the rows are compared as :mod:`statestore.rows.equality`
defines.

If the sides have different key groups, the rows of one key can be anywhere. Only then are hashes
kept in memory: rows are identified by a 64-bit hash of their identity, and compared by a 64-bit
hash of all columns. Among a million keys, the chance that two keys share a hash and are miscounted
is about one in thirty million.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Hashable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.format.manifest import KeyedEntry
from statestore.format.schema import Schema, digests_compare
from statestore.layers.key_group_contents import Parts, aligned_groups, group_parts, read_groups
from statestore.maintenance.diff_report import ROWS_AT_ONCE, Example, GroupDifference, Hashes
from statestore.rows.digests import Places, U64Array
from statestore.rows.equality import common_schema, comparable_tables, hashes_of, matching_rows
from statestore.rows.key_group_runs import take_rows
from statestore.rows.python_values import display_rows
from statestore.storage import Storage


@dataclass(frozen=True)
class ComparedSide:
    """One side of a comparison; ``other`` is the schema of the state on the other side."""

    storage: Storage
    entry: KeyedEntry
    other: Schema

    @cached_property
    def columns(self) -> pa.Schema:
        """The common columns, with types that can hold the values of both sides."""
        return common_schema(self.entry.state.schema, self.other)

    @cached_property
    def identity_columns(self) -> pa.Schema:
        """The common columns that identify a row."""
        return pa.schema([self.columns.field(name) for name in self.identity])

    @property
    def identity(self) -> tuple[str, ...]:
        """The names of the columns that identify a row."""
        return self.entry.state.identity

    def groups(self, wanted: Container[int]) -> Generator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of the wanted key groups; a large key group comes in pieces."""
        return read_groups(self.storage, self.entry, wanted)

    def parts(self) -> dict[int, Parts]:
        """Return the known facts (rows, digests) of each key group that has rows or changes."""
        return group_parts(self.entry)

    def rows(self) -> int:
        """Return the number of rows; key groups with changes are read for it."""
        parts = self.parts()
        changed = frozenset(group for group, known in parts.items() if len(known) > 1)
        count = sum(known[0][0] for group, known in parts.items() if group not in changed)
        if changed:
            count += sum(rows.num_rows for _, rows in self.groups(changed))
        return count


@dataclass
class ComparedRows:
    """The findings so far.

    ``read`` counts the key groups that were read, and ``differing`` the ones that differ.
    ``rows_a`` and ``rows_b`` are the rows of both sides; None if unread key groups have changes.
    """

    rows_a: int | None = 0
    rows_b: int | None = 0
    groups: list[GroupDifference] = field(default_factory=list)
    added: int = 0
    removed: int = 0
    changed: int = 0
    read: int = 0
    differing: int = 0
    examples: tuple[Example, ...] = ()


def unlike_groups(a: ComparedSide, b: ComparedSide) -> tuple[int, ...]:
    """Return the key groups that differ according to the manifests; reads no files.

    If the columns or the hash functions of the sides differ, digests cannot be compared, and all
    key groups are returned. A returned key group with changes may still turn out to be equal.
    """
    return _unlike_in(a, a.parts(), b.parts())


def _unlike_in(a: ComparedSide, old: dict[int, Parts], new: dict[int, Parts]) -> tuple[int, ...]:
    tell = digests_compare(a.entry.state.schema, a.other)
    return tuple(
        group for group in sorted({*old, *new}) if not tell or old.get(group) != new.get(group)
    )


def compare_groups(
    a: ComparedSide, b: ComparedSide, limit: int, on_group: Callable[[], None]
) -> ComparedRows:
    """Compare states with the same key groups, one key group after another.

    Among the differing key groups (:func:`unlike_groups`), the ones with changes or with rows on
    both sides are read. The others are read only for examples, of which there are at most
    ``limit``, from as many key groups as possible. ``on_group`` is called for each differing key
    group.
    """
    old, new = a.parts(), b.parts()
    same_columns = set(a.entry.state.schema.names) == set(a.other.names)
    unlike = _unlike_in(a, old, new)
    both = frozenset(
        group
        for group in unlike
        if (group in old and group in new) or len(old.get(group) or new[group]) > 1
    )
    left = set(both)
    result = ComparedRows(_known_rows(old, both), _known_rows(new, both))
    sample = ExampleSample(limit, unlike)
    with closing(a.groups(both)) as groups_a, closing(b.groups(both)) as groups_b:
        rows = aligned_groups((a.entry.state, groups_a), (b.entry.state, groups_b))
        for group, pieces in groupby(rows, key=itemgetter(0)):
            left.remove(group)
            changed = [
                _compare(result, sample, group, (a, old), (b, new)) for _, old, new in pieces
            ]
            result.differing += any(changed) or not same_columns
            result.read += 1
            on_group()
    for _ in left:  # the changes deleted all rows of these key groups
        result.differing += not same_columns
        result.read += 1
        on_group()
    for group in unlike:
        if group in both:
            continue
        side, change = (a, "removed") if group in old else (b, "added")
        if sample.room(group):
            with closing(side.groups({group})) as groups:
                for _, rows in groups:
                    table = pa.Table.from_batches([rows])
                    sample.add(group, _examples(change, group, side, table, sample.room(group)))
                    if not sample.room(group):
                        break
            result.read += 1
        count = (old.get(group) or new[group])[0][0]
        counts = {"added": 0, "removed": 0, "changed": 0} | {change: count}
        _add_counts(result, group, **counts)
        result.differing += 1
        on_group()
    result.groups.sort(key=lambda group: group.key_group)
    result.examples = sample.examples()
    return result


def _known_rows(parts: dict[int, Parts], read: Container[int]) -> int | None:
    """Return the rows of the key groups that are not read; None if one of them has changes."""
    known = [counts for group, counts in parts.items() if group not in read]
    return None if any(len(counts) > 1 for counts in known) else sum(own[0][0] for own in known)


def compare_whole(
    a: ComparedSide, b: ComparedSide, limit: int, rows_at_once: int = ROWS_AT_ONCE
) -> ComparedRows:
    """Compare all rows of states with different key groups, a share of their hashes at a time.

    Each side is read once per ``rows_at_once`` rows of the larger side, and once more if there are
    examples to show. Each of these rows needs 16 bytes of memory.
    """
    result, rows_a, rows_b = ComparedRows(), 0, 0
    passes = -(-max(a.entry.rows, b.entry.rows, 1) // rows_at_once)
    found: dict[tuple[str, int], U64Array] = {}
    for number in range(passes):
        old, new = _select_hashes(a, number, passes), _select_hashes(b, number, passes)
        removed, added, changed = _join(old, new)
        rows_a, rows_b = rows_a + len(old[0]), rows_b + len(new[0])
        result.removed += len(removed)
        result.added += len(added)
        result.changed += len(changed[0])
        for change, ids in (
            ("changed", old[0][changed[0]]),
            ("added", new[0][added]),
            ("removed", old[0][removed]),
        ):
            found[change, number] = ids[spread(len(ids), limit)]
    result.rows_a, result.rows_b = rows_a, rows_b
    shares = fair_shares({part: len(ids) for part, ids in found.items()}, limit)
    shown = [
        (change, int(row_id))
        for (change, number), ids in found.items()
        for row_id in ids[spread(len(ids), shares[change, number])]
    ]
    if shown:
        wanted = np.array([row_id for _, row_id in shown], np.uint64)
        before, now = _rows_by_hash(a, wanted), _rows_by_hash(b, wanted)
        result.examples = tuple(
            Example(
                change=change,
                key_group=None,
                identity={name: (before.get(row_id) or now[row_id])[name] for name in a.identity},
                a=before.get(row_id),
                b=now.get(row_id),
            )
            for change, row_id in shown
        )
    return result


def _compare(
    result: ComparedRows,
    sample: ExampleSample,
    group: int,
    a: tuple[ComparedSide, pa.Table],
    b: tuple[ComparedSide, pa.Table],
) -> bool:
    """Add the differences between some rows of a key group; return whether there are any."""
    (side, _), (other, _) = a, b
    schemas = [compared.entry.state.schema for compared in (side, other)]
    old, new = (
        rows.select(schema.names) for schema, (_, rows) in zip(schemas, (a, b), strict=True)
    )
    left, right = comparable_tables((old, schemas[0]), (new, schemas[1]))
    in_a, in_b, same = matching_rows(left, right, side.identity)
    differ = ~same
    removed = np.setdiff1d(np.arange(old.num_rows), in_a, assume_unique=True)
    added = np.setdiff1d(np.arange(new.num_rows), in_b, assume_unique=True)
    counts = {"changed": int(differ.sum()), "added": len(added), "removed": len(removed)}
    _add_counts(result, group, **counts)
    if result.rows_a is not None:
        result.rows_a += old.num_rows
    if result.rows_b is not None:
        result.rows_b += new.num_rows
    shares = fair_shares(counts, sample.room(group))
    chosen: list[Example] = []
    for change, owner, rows, places, others in (
        ("changed", side, old, in_a[differ], take_rows(new, in_b[differ][: shares["changed"]])),
        ("added", other, new, added, None),
        ("removed", side, old, removed, None),
    ):
        first = take_rows(rows, places[: shares[change]])
        chosen += _examples(change, group, owner, first, shares[change], others)
    sample.add(group, chosen)
    return any(counts.values())


def _add_counts(
    result: ComparedRows, group: int, *, added: int, removed: int, changed: int
) -> None:
    # the sides have different columns, but the common ones are equal
    if not added and not removed and not changed:
        return
    result.added += added
    result.removed += removed
    result.changed += changed
    if (
        result.groups and result.groups[-1].key_group == group
    ):  # another piece of the same key group
        before = result.groups.pop()
        added, removed = added + before.added, removed + before.removed
        changed += before.changed
    result.groups.append(
        GroupDifference(key_group=group, added=added, removed=removed, changed=changed)
    )


def _examples(
    change: str,
    group: int,
    side: ComparedSide,
    rows: pa.Table,
    most: int,
    others: pa.Table | None = None,
) -> list[Example]:
    """Return the first ``most`` rows as examples; ``others`` are the rows of changed ones in b."""
    first = display_rows(rows.slice(0, most))
    second: list[Any] = [None] * len(first) if others is None else display_rows(others)
    examples = []
    for row, other in zip(first, second, strict=True):
        identity = {name: row[name] for name in side.identity}
        pair = (None, row) if change == "added" else (row, other)
        examples.append(
            Example(change=change, key_group=group, identity=identity, a=pair[0], b=pair[1])
        )
    return examples


def _join(a: Hashes, b: Hashes) -> tuple[Places, Places, tuple[Places, Places]]:
    """Return the positions of rows only in a, only in b, and in both with different values."""
    _, old, new = np.intersect1d(a[0], b[0], assume_unique=True, return_indices=True)
    other = a[1][old] != b[1][new]
    alone_a, alone_b = np.ones(len(a[0]), bool), np.ones(len(b[0]), bool)
    alone_a[old] = alone_b[new] = False
    order = np.argsort(old[other])  # in stored order, not in hash order
    changed = old[other][order], new[other][order]
    return np.flatnonzero(alone_a), np.flatnonzero(alone_b), changed


def _select_hashes(side: ComparedSide, number: int, passes: int) -> Hashes:
    """Return the hashes of the rows that belong to one of several passes."""
    pieces: list[Hashes] = []
    for _, rows in side.groups(range(side.entry.state.max_parallelism)):
        identity = hashes_of(rows, side.identity_columns)
        values = hashes_of(rows, side.columns)
        own = identity % np.uint64(passes) == number
        pieces.append((identity[own], values[own]))
    if not pieces:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    return np.concatenate([hashes for hashes, _ in pieces]), np.concatenate(
        [places for _, places in pieces]
    )


def _rows_by_hash(side: ComparedSide, wanted: U64Array) -> dict[int, dict[str, Any]]:
    """Return the rows whose identity has one of these hashes, by hash."""
    rows_by_hash: dict[int, dict[str, Any]] = {}
    for _, batch in side.groups(range(side.entry.state.max_parallelism)):
        hashes = hashes_of(batch, side.identity_columns)
        places = np.flatnonzero(np.isin(hashes, wanted))
        rows_there = display_rows(batch.take(pa.array(places)))
        rows_by_hash.update(zip(hashes[places].tolist(), rows_there, strict=True))
    return rows_by_hash


G = TypeVar("G", bound=Hashable)
_CHANGES = ("changed", "added", "removed")


class ExampleSample:
    """At most ``limit`` examples, divided as evenly as possible among the key groups.

    If more key groups than ``limit`` differ, the shown ones are spread over all of them. Examples
    arrive in any order of key groups, and at most twice ``limit`` of them are in memory.
    """

    def __init__(self, limit: int, groups: Sequence[int]) -> None:
        """Start without examples; ``groups`` are the ascending key groups that may differ."""
        self._limit = limit
        self._first = {groups[place] for place in spread(len(groups), limit)}
        self._examples: dict[int, list[Example]] = {}

    def room(self, group: int) -> int:
        """Return how many more examples of a key group are wanted."""
        sizes = {number: len(examples) for number, examples in self._examples.items()}
        shares = self._shares(sizes | {group: self._limit})
        return max(shares[group] - sizes.get(group, 0), 0)

    def add(self, group: int, examples: Sequence[Example]) -> None:
        """Add examples of a key group; other key groups lose those that exceed their share."""
        if not examples:
            return
        # In turns, so that a part of them has every kind of change.
        by_change = [[e for e in examples if e.change == change] for change in _CHANGES]
        turns = zip_longest(*by_change)
        self._examples.setdefault(group, []).extend(e for turn in turns for e in turn if e)
        shares = self._shares({number: len(kept) for number, kept in self._examples.items()})
        self._examples = {
            number: kept[: shares[number]]
            for number, kept in self._examples.items()
            if shares[number]
        }

    def examples(self) -> tuple[Example, ...]:
        """Return the chosen examples, by key group and change."""
        return tuple(
            example
            for group in sorted(self._examples)
            for example in sorted(self._examples[group], key=lambda e: _CHANGES.index(e.change))
        )

    def _shares(self, wanted: Mapping[int, int]) -> dict[int, int]:
        order = sorted(wanted, key=lambda group: (group not in self._first, group))
        return fair_shares({group: wanted[group] for group in order}, self._limit)


def fair_shares(wanted: Mapping[G, int], limit: int) -> dict[G, int]:
    """Divide ``limit`` among parts that want some of it, as evenly as possible.

    What a part does not want goes to the others. The first parts get the rest of a division.
    """
    shares = dict.fromkeys(wanted, 0)
    active = [part for part in wanted if wanted[part]]
    while limit > 0 and active:
        each = max(limit // len(active), 1)
        for part in active[:limit]:
            given = min(each, wanted[part] - shares[part])
            shares[part] += given
            limit -= given
        active = [part for part in active if shares[part] < wanted[part]]
    return shares


def spread(number: int, wanted: int) -> npt.NDArray[np.intp]:
    """Return at most ``wanted`` positions of ``range(number)``, evenly spaced."""
    chosen = min(number, wanted)
    return np.arange(chosen, dtype=np.intp) * number // max(chosen, 1)
