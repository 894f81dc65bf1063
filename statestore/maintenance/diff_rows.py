"""Compare the rows of two keyed states: which were added, removed or changed.

The digests in the manifests decide which key groups are read. The files of the two sides may have
different layouts. A key group with changes is equal if both sides have the same base and the same
changes of it. If not, it is read and merged. If a column has different types on the two sides,
digests may not be comparable, and the rows are compared as :mod:`statestore.rows.equality`
defines.

If the sides have different key groups, the rows of one key can be anywhere. Then the rows of both
sides are sorted by their identity, on disk if necessary.

A full outer join of a state at two checkpoints reads both in parallel, one run of key groups at a
time, so only that run is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, zip_longest
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Schema, common_columns, digests_compare, same_type, type_text
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState, StateKind
from statestore.keys.groups import KeyGroupRange
from statestore.layers.aligned_streams import paired_tables, sorted_tables
from statestore.layers.key_group_contents import Parts, aligned_groups, group_parts, read_groups
from statestore.layers.merge import read_state
from statestore.maintenance.diff_report import Example, GroupDifference
from statestore.maintenance.diff_rule import ALL, DiffRule, close_rows, holds, without_ignored
from statestore.parquet.reader import add_key_group, restored_schema
from statestore.rows.column_types import arrow_schema
from statestore.rows.digests import Places
from statestore.rows.equality import comparable_tables, matching_rows
from statestore.rows.key_group_runs import RUN_BYTES, take_rows
from statestore.rows.python_values import display_rows
from statestore.rows.sorting import sorted_pieces
from statestore.storage import Storage

CHANGES = ("changed", "added", "removed")
_SORT_BYTES = 128 * 2**20


@dataclass(frozen=True)
class ComparedSide:
    """One side of a comparison; ``other`` is the schema of the state on the other side."""

    storage: Storage
    entry: KeyedEntry
    other: Schema

    @property
    def identity(self) -> tuple[str, ...]:
        """The names of the columns that identify a row."""
        return self.entry.state.identity

    def groups(self, wanted: Container[int]) -> Generator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of the wanted key groups; a large key group comes in pieces."""
        return read_groups(self.storage, self.entry, wanted)

    def by_identity(self, names: tuple[str, ...]) -> tuple[KeyedState, Iterator[pa.Table]]:
        """Return all rows in the order of these identity columns, as if of one key group.

        The columns have types that can hold the values of both sides, if there are such types.
        """
        own, common = self.entry.state, common_columns(self.entry.state.schema, self.other)
        columns = {field.name: field for field in common.fields if field.name in names}
        schema = Schema(tuple(columns.get(field.name, field) for field in own.schema.fields))
        state = replace(
            own,
            kind=StateKind.VALUE,
            schema=schema,
            key=names,
            key_types=names,
            namespace=(),
            entry=(),
            max_parallelism=1,
            ttl=None,
            time_domain=None,
        )
        stored, cast = restored_schema(own.schema), restored_schema(schema)
        batches = (
            add_key_group(rows, 0, stored).cast(cast, safe=False)
            for _, rows in self.groups(range(own.max_parallelism))
        )
        return state, sorted_pieces(batches, state, _SORT_BYTES)

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

    @property
    def found(self) -> dict[str, Any]:
        """The number of rows by kind of change, and the examples."""
        counts = {change: getattr(self, change) for change in CHANGES}
        return counts | {"examples": self.examples}

    def add(self, found: RowDifference, group: int | None = None) -> None:
        """Add rows that were compared: of one key group, or without one if the sides differ."""
        old, new = (rows.num_rows for rows in found.tables)
        self.rows_a = None if self.rows_a is None else self.rows_a + old
        self.rows_b = None if self.rows_b is None else self.rows_b + new
        self.count(found.counts, group)

    def count(self, counts: Mapping[str, int], group: int | None) -> None:
        """Add the number of changed, added and removed rows, if there are any."""
        if not any(counts.values()):
            return
        self.added += counts["added"]
        self.removed += counts["removed"]
        self.changed += counts["changed"]
        if group is None:
            return
        if self.groups and self.groups[-1].key_group == group:  # another piece of this key group
            before = vars(self.groups.pop())
            counts = {change: before[change] + number for change, number in counts.items()}
        self.groups.append(GroupDifference(key_group=group, **counts))


def differing_groups(a: ComparedSide, b: ComparedSide) -> tuple[int, ...]:
    """Return the key groups that differ according to the manifests; reads no files.

    If the columns or the hash functions of the sides differ, digests cannot be compared, and all
    key groups are returned. A returned key group with changes may still turn out to be equal.
    """
    return _differing(a, a.parts(), b.parts())


def _differing(a: ComparedSide, old: dict[int, Parts], new: dict[int, Parts]) -> tuple[int, ...]:
    comparable = digests_compare(a.entry.state.schema, a.other)
    return tuple(
        group
        for group in sorted({*old, *new})
        if not comparable or old.get(group) != new.get(group)
    )


def compare_groups(
    a: ComparedSide,
    b: ComparedSide,
    limit: int,
    on_group: Callable[[], None],
    rule: DiffRule = ALL,
) -> ComparedRows:
    """Compare states with the same key groups, one key group after another.

    Among the differing key groups (:func:`differing_groups`), the ones with changes or with rows on
    both sides are read. The others are read only for a rule with a condition, and for examples, of
    which there are at most ``limit``, from as many key groups as possible. ``on_group`` is called
    for each differing key group.
    """
    old, new = a.parts(), b.parts()
    same_columns = {*a.entry.state.schema.names} ^ {*a.other.names} <= {*rule.ignore}
    differing = _differing(a, old, new)
    both = frozenset(
        group
        for group in differing
        if rule.where is not None
        or (group in old and group in new)
        or len(old.get(group) or new[group]) > 1
    )
    left = set(both)
    result = ComparedRows(_known_rows(old, both), _known_rows(new, both))
    sample = ExampleSample(limit, differing)
    with closing(a.groups(both)) as groups_a, closing(b.groups(both)) as groups_b:
        rows = aligned_groups((a.entry.state, groups_a), (b.entry.state, groups_b))
        for group, pieces in groupby(rows, key=itemgetter(0)):
            left.remove(group)
            changed = [
                _compare(result, sample, group, (a.entry.state, old), (b.entry.state, new), rule)
                for _, old, new in pieces
            ]
            result.differing += any(changed) or not same_columns
            result.read += 1
            on_group()
    for _ in left:  # the changes deleted all rows of these key groups
        result.differing += not same_columns
        result.read += 1
        on_group()
    for group in differing:
        if group in both:
            continue
        side, change = (a, "removed") if group in old else (b, "added")
        if sample.room(group):
            with closing(side.groups({group})) as groups:
                for _, rows in groups:
                    schema = restored_schema(side.entry.state.schema)
                    table = pa.Table.from_batches([add_key_group(rows, group, schema)])
                    first = table.slice(0, sample.room(group))
                    before, after = (first, None) if change == "removed" else (None, first)
                    sample.add(group, examples_of(change, before, after, side.identity))
                    if not sample.room(group):
                        break
            result.read += 1
        count = (old.get(group) or new[group])[0][0]
        result.count(dict.fromkeys(CHANGES, 0) | {change: count}, group)
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
    a: ComparedSide, b: ComparedSide, limit: int, rule: DiffRule = ALL
) -> ComparedRows:
    """Compare all rows of states with different key groups, in order of their identity."""
    result, sample = ComparedRows(), ExampleSample(limit, range(len(CHANGES)))
    states, rows = zip(*(side.by_identity(a.identity) for side in (a, b)), strict=True)
    if states[0].schema.select(a.identity) == states[1].schema.select(a.identity):
        pairs = paired_tables((states[0], rows[0]), (states[1], rows[1]))
    else:  # the values of an identity column cannot be equal
        none = [restored_schema(state.schema).empty_table() for state in states]
        pairs = chain(((old, none[1]) for old in rows[0]), ((none[0], new) for new in rows[1]))
    for old, new in pairs:
        found = RowDifference.between(
            (a.entry.state, old.drop_columns([KEY_GROUP])),
            (b.entry.state, new.drop_columns([KEY_GROUP])),
            rule,
        )
        result.add(found)
        for number, change in enumerate(CHANGES):
            room = min(sample.room(number), found.counts[change])
            sample.add(number, found.examples({change: room}))
    result.examples = sample.examples()
    return result


@dataclass(frozen=True)
class RowDifference:
    """Rows of two states with the same identity columns, and the positions of those that differ.

    ``places`` has, by kind of change, the positions in each table; None for a table that lacks the
    rows. The positions of changed rows correspond to each other.
    """

    tables: tuple[pa.Table, pa.Table]
    identity: tuple[str, ...]
    places: Mapping[str, tuple[Places | None, Places | None]]

    @classmethod
    def between(
        cls,
        a: tuple[KeyedState, pa.Table],
        b: tuple[KeyedState, pa.Table],
        rule: DiffRule = ALL,
    ) -> RowDifference:
        """Compare the common columns of two tables, which may also have ``key_group``."""
        (state, old), (other, new) = a, b
        own, others = (without_ignored(rule, each.schema) for each in (state, other))
        left, right = comparable_tables(
            (old.select(own.names), own), (new.select(others.names), others)
        )
        in_a, in_b, same = matching_rows(left, right, state.identity)
        changed_a, changed_b = in_a[~same], in_b[~same]
        counts_a, counts_b = holds(rule, old, state), holds(rule, new, other)
        counts = counts_a[changed_a] | counts_b[changed_b]
        if rule.tolerance:
            pair = (take_rows(left, changed_a), take_rows(right, changed_b))
            counts &= ~close_rows(rule, *pair)
        removed = np.setdiff1d(np.flatnonzero(counts_a), in_a, assume_unique=True)
        added = np.setdiff1d(np.flatnonzero(counts_b), in_b, assume_unique=True)
        places = {
            "changed": (changed_a[counts], changed_b[counts]),
            "added": (None, added),
            "removed": (removed, None),
        }
        return cls((old, new), state.identity, places)

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows by kind of change."""
        pairs = ((change, pair[pair[0] is None]) for change, pair in self.places.items())
        return {change: 0 if places is None else len(places) for change, places in pairs}

    def groups(self) -> set[int]:
        """Return the key groups of the rows that differ, in tables with ``key_group``."""
        return {
            group
            for pair in self.places.values()
            for rows, places in zip(self.tables, pair, strict=True)
            if places is not None
            for group in rows.column(KEY_GROUP).take(pa.array(places)).unique().to_pylist()
        }

    def examples(self, wanted: Mapping[str, int]) -> list[Example]:
        """Return the first rows as examples: as many of each kind of change as are ``wanted``."""
        found: list[Example] = []
        for change, most in wanted.items():
            before, after = (
                None if places is None else take_rows(rows, places[:most])
                for rows, places in zip(self.tables, self.places[change], strict=True)
            )
            found += examples_of(change, before, after, self.identity)
        return found


def examples_of(
    change: str, before: pa.Table | None, after: pa.Table | None, identity: Sequence[str] = ()
) -> list[Example]:
    """Return rows before and after a change as examples; None for a side that lacks them.

    The key group is the column ``key_group`` of rows with an identity, if they have it.
    """
    (first, *_) = (rows for rows in (before, after) if rows is not None)
    has_groups = bool(identity) and KEY_GROUP in first.column_names
    groups = first.column(KEY_GROUP).to_pylist() if has_groups else [None] * first.num_rows
    shown: list[list[Any]] = []
    for rows in (before, after):
        if rows is not None and has_groups:
            rows = rows.drop_columns([KEY_GROUP])
        shown.append([None] * len(groups) if rows is None else display_rows(rows))
    return [
        Example(
            change=change,
            key_group=group,
            identity={name: (old or new)[name] for name in identity},
            a=old,
            b=new,
        )
        for group, old, new in zip(groups, *shown, strict=True)
    ]


def _compare(
    result: ComparedRows,
    sample: ExampleSample,
    group: int,
    a: tuple[KeyedState, pa.Table],
    b: tuple[KeyedState, pa.Table],
    rule: DiffRule,
) -> bool:
    """Add the differences between some rows of a key group; return whether there are any."""
    found = RowDifference.between(a, b, rule)
    result.add(found, group)
    sample.add(group, found.examples(fair_shares(found.counts, sample.room(group))))
    return any(found.counts.values())


G = TypeVar("G", bound=Hashable)


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
        by_change = [[e for e in examples if e.change == change] for change in CHANGES]
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
            for example in sorted(self._examples[group], key=lambda e: CHANGES.index(e.change))
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


CHANGE = "change"
"""The column with the outcome of a row, one of :data:`OUTCOMES`."""
OUTCOMES = ("same", "changed", "added", "removed")


@dataclass(frozen=True)
class _JoinedSides:
    a: KeyedEntry
    b: KeyedEntry

    @property
    def schema(self) -> pa.Schema:
        """The joined columns: key group, change, identity, values of a, values of b."""
        identity = arrow_schema(self.a.state.schema.select(self.a.state.identity))
        values = [
            pa.field(f"{field.name}_{side}", field.type)
            for side, entry in (("a", self.a), ("b", self.b))
            for field in arrow_schema(entry.state.schema.select(entry.state.values))
        ]
        first = [pa.field(KEY_GROUP, pa.int32()), pa.field(CHANGE, pa.string())]
        return pa.schema([*first, *identity, *values])


def join_checkpoints(
    storage: Storage,
    a: KeyedEntry,
    b: KeyedEntry,
    *,
    now_ms: int | None = None,
    run_bytes: int = RUN_BYTES,
) -> pa.RecordBatchReader:
    """Return the rows of a state at two checkpoints, joined by identity.

    The columns are ``key_group``, ``change``, the identity columns, and each value column as
    ``<name>_a`` and ``<name>_b``, which are null if that side lacks the row. A row is ``changed``
    if a column that both checkpoints have differs. Raises InvalidArgumentError if identity, key
    groups or hash scheme differ, or if two columns would have the same name. Reading raises
    MissingFileError or DamagedFileError.
    """
    _refuse_different_identity(a, b)
    sides = _JoinedSides(a, b)
    names = sides.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgumentError(
            f"comparing {a.state} with itself would give two columns {twice[0]!r}: key and "
            "entry columns keep their names, value columns become <name>_a and <name>_b, and "
            f"{CHANGE!r} is reserved; use 'statestore diff'"
        )
    batches = _batches(storage, sides, now_ms, run_bytes)
    return pa.RecordBatchReader.from_batches(sides.schema, batches)


def _refuse_different_identity(a: KeyedEntry, b: KeyedEntry) -> None:
    facts = [
        (
            entry.state.identity,
            entry.state.max_parallelism,
            entry.state.hash_scheme,
            tuple(type_text(entry.state.schema.type_of(name)) for name in entry.state.identity),
        )
        for entry in (a, b)
    ]
    same = all(
        same_type(a.state.schema.type_of(name), b.state.schema.type_of(name))
        for name in a.state.identity
        if name in b.state.schema.names
    )
    if not same or facts[0][:3] != facts[1][:3]:
        raise InvalidArgumentError(
            f"{a.state} has {facts[0]} at one checkpoint and {facts[1]} at the other "
            "(identity, max parallelism, hash scheme, types), so their rows cannot be "
            "matched. Use 'statestore diff'"
        )


def _batches(
    storage: Storage, sides: _JoinedSides, now_ms: int | None, run_bytes: int
) -> Iterator[pa.RecordBatch]:
    every = KeyGroupRange.every(sides.a.state.max_parallelism)

    def rows_of(entry: KeyedEntry) -> tuple[KeyedState, Iterator[pa.Table]]:
        reads = reads_of(entry, every)
        rows = read_state(storage, entry, reads, now_ms=now_ms, run_bytes=run_bytes)
        return entry.state, sorted_tables(rows, entry.state, run_bytes)

    for old, new in paired_tables(rows_of(sides.a), rows_of(sides.b)):
        yield from _join_piece(old.combine_chunks(), new.combine_chunks(), sides).to_batches()


def _join_piece(a: pa.Table, b: pa.Table, sides: _JoinedSides) -> pa.Table:
    identity = list(sides.a.state.identity)
    both = comparable_tables((a, sides.a.state.schema), (b, sides.b.state.schema))
    in_a, in_b, same = matching_rows(*both, identity)
    alone_a = np.setdiff1d(np.arange(a.num_rows), in_a)
    alone_b = np.setdiff1d(np.arange(b.num_rows), in_b)
    left = np.concatenate((in_a, alone_a, np.full(len(alone_b), -1)))
    right = np.concatenate((in_b, np.full(len(alone_a), -1), alone_b))
    change = np.where(left < 0, "added", np.where(right < 0, "removed", "same")).astype(object)
    change[: len(in_a)][~same] = "changed"
    first = [_first_not_null(a, b, name, left, right) for name in (KEY_GROUP, *identity)]
    values = [_take_column(a.column(name), left) for name in sides.a.state.values]
    values += [_take_column(b.column(name), right) for name in sides.b.state.values]
    columns = [first[0], pa.array(change, pa.string()), *first[1:], *values]
    rows = pa.table(columns, schema=sides.schema)
    return rows.take(pa.array(np.argsort(np.asarray(rows.column(KEY_GROUP)), kind="stable")))


def _first_not_null(
    a: pa.Table, b: pa.Table, name: str, left: Places, right: Places
) -> pa.ChunkedArray:
    both = pa.chunked_array(
        [*a.column(name).chunks, *b.column(name).cast(a.column(name).type).chunks]
    )
    return both.take(pa.array(np.where(left >= 0, left, right + a.num_rows)))


def _take_column(column: pa.ChunkedArray, places: Places) -> pa.ChunkedArray:
    return column.take(pa.array(places, mask=places < 0))
