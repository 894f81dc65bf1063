"""Skewed key groups, hot keys, and the imbalance of key-group ranges.

A skewed key group has several times the even share. A key group is never divided. So the heaviest
one is a lower bound for the largest subtask, at any parallelism and with any ranges.

The imbalance is computed for Flink's even ranges and, to compare, for balanced ranges.

Hot keys are the keys with the most rows in some key groups of a state, counted exactly. The rows of
a key group are sorted by identity, so the rows of a key are adjacent. A key is counted while it is
read, and only the keys with the most rows so far are kept in memory. Without changes only the key
columns are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappush, heappushpop, nlargest
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from statestore.catalog.catalog import Checkpoint
from statestore.display import NotebookBar, bars, count, figure, size, table
from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.format.left_out import LeftOutState, left_out_of
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.format.slices import reads_of
from statestore.keys.groups import (
    Assignment,
    KeyGroupAssignment,
    KeyGroupRange,
    RangeAssignment,
    balance_ranges,
)
from statestore.layers.merge import read_state
from statestore.parquet.reader import read_batches
from statestore.restore.key_group_weights import Weight, weights_of
from statestore.restore.plan import RestorePlan
from statestore.restore.target import select
from statestore.rows.column_types import arrow_schema
from statestore.rows.dataframes import as_pandas, as_polars, table_of
from statestore.rows.equality import first_of_equals
from statestore.rows.python_values import display_rows
from statestore.storage import Storage

FACTOR = 2.0
"""A key group is skewed if it has this many times the even share; the default."""


@dataclass(frozen=True, slots=True)
class SkewedGroup:
    """A key group with its rows and bytes.

    ``share`` is its part of the operator's bytes or rows (0 to 1), ``times`` the multiple of the
    even share.
    """

    key_group: int
    rows: int
    size_bytes: int
    share: float
    times: float


def skewed_groups(
    entries: Sequence[KeyedEntry], by: Weight = Weight.BYTES, factor: float = FACTOR
) -> tuple[SkewedGroup, ...]:
    """Return the skewed key groups of one operator's states, heaviest first.

    A key group is skewed if its share is above ``factor`` times the even share, which is 1 divided
    by the number of key groups. Changes that a restore reads are included. Raises
    InvalidArgumentError if ``factor`` is less than 1.
    """
    if not factor >= 1:
        raise InvalidArgumentError(
            "factor is the multiple of the even share above which a key group is skewed; it "
            f"must be at least 1, not {factor}"
        )
    if not entries:
        return ()
    rows, sizes = weights_of(entries, Weight.ROWS), weights_of(entries, Weight.BYTES)
    weights = sizes if by is Weight.BYTES else rows
    total, count = sum(weights), len(weights)
    groups = [group for group, weight in enumerate(weights) if weight * count > factor * total]
    groups.sort(key=lambda group: (-weights[group], group))
    return tuple(
        SkewedGroup(
            key_group=group,
            rows=rows[group],
            size_bytes=sizes[group],
            share=weights[group] / total,
            times=weights[group] * count / total,
        )
        for group in groups
    )


def heaviest_groups(entry: KeyedEntry, most: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return up to ``most`` key groups with the most rows, and the rows of the next one.

    The key groups are pairs (key group, rows), most rows first. The rows of the next one are 0 if
    it does not exist. Key groups without rows are omitted.
    """
    weights = weights_of([entry], Weight.ROWS)
    first = nlargest(most + 1, enumerate(weights), key=lambda item: (item[1], -item[0]))
    loaded = [item for item in first if item[1]]
    return tuple(loaded[:most]), loaded[most][1] if len(loaded) > most else 0


@dataclass(frozen=True)
class HotKeys:
    """The keys of a state with the most rows, found in its ``read`` key groups.

    ``rows`` is the number of rows of the state. If ``is_exact`` is true, no key of another key
    group has more rows than the last of these keys, so they are the hottest keys of the whole
    state.
    """

    state: str
    rows: int
    keys: tuple[CountedKey, ...]
    read: tuple[int, ...]
    is_exact: bool


@dataclass(frozen=True)
class SkewedOperator:
    """An operator's skewed key groups, the number of all its key groups, and hot keys by state.

    ``hot`` omits states in which a key has at most one row.
    """

    operator: str
    states: tuple[str, ...]
    key_groups: int
    rows: int
    size_bytes: int
    skewed: tuple[SkewedGroup, ...]
    hot: tuple[HotKeys, ...]


_COLUMNS = {
    "operator": "string",
    "key_group": "int64",
    "rows": "int64",
    "size_bytes": "int64",
    "share": "float64",
    "times": "float64",
}


@dataclass(frozen=True)
class SkewReport:
    """The skew in a checkpoint: key groups above ``factor`` times the even share of bytes or rows.

    ``left_out`` lists the state that the checkpoint lacks, which no weight includes.
    """

    checkpoint_id: int
    by: Weight
    factor: float
    operators: tuple[SkewedOperator, ...]
    left_out: tuple[LeftOutState, ...] = ()

    def to_arrow(self) -> pa.Table:
        """Return one row per skewed key group; ``times`` is the multiple of the even share."""
        rows = (
            (
                *(operator.operator, group.key_group, group.rows),
                *(group.size_bytes, group.share, group.times),
            )
            for operator in self.operators
            for group in operator.skewed
        )
        return table_of(_COLUMNS, rows)

    to_pandas = as_pandas
    to_polars = as_polars

    def __repr__(self) -> str:
        return f"SkewReport({self._summary()})"

    def _repr_html_(self) -> str:
        """Return the notebook view: the skewed key groups, and the keys with the most rows."""
        drawn = [
            NotebookBar(
                f"{operator.operator}, key group {group.key_group}",
                ((group.times, "changed"),),
                f"{group.times:.1f} times the share, {size(group.size_bytes)}",
            )
            for operator in self.operators
            for group in operator.skewed
        ]
        keys = (
            (operator.operator, hot.state, _key_text(key.key), key.key_group, key.rows)
            for operator in self.operators
            for hot in operator.hot
            for key in hot.keys
        )
        columns = ("operator", "state", "key", "key_group", "rows")
        return figure(self._summary(), bars(drawn), table(columns, keys))

    def _summary(self) -> str:
        skewed = sum(len(operator.skewed) for operator in self.operators)
        groups = sum(operator.key_groups for operator in self.operators)
        return (
            f"checkpoint {self.checkpoint_id}: {count(skewed)} of {count(groups)} key groups have "
            f"more than {self.factor:g} times the even share of {self.by.value}"
        )


def _key_text(key: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in key.items())


def skew(
    checkpoint: Checkpoint,
    uid: str | None,
    name: str | None,
    *,
    by: Weight,
    factor: float,
    keys: int,
    read_groups: int,
) -> SkewReport:
    """Return the skewed key groups and hot keys of the selected keyed states.

    Key-group weights come from the manifest. To find up to ``keys`` hot keys, up to ``read_groups``
    key groups are read of each state in which a key may have several rows; 0 disables it. Raises
    StateNotFoundError, InvalidArgumentError, MissingFileError or DamagedFileError.
    """
    for parameter, number in (("keys", keys), ("groups", read_groups)):
        if type(number) is not int or number < 0:
            raise InvalidArgumentError(
                f"{parameter} must be a number of at least 0, not {number!r}"
            )
    manifest = checkpoint.manifest
    part = select(manifest, uid, name)
    if not part.keyed and uid is not None:
        subject = f"operator {uid!r}" if name is None else f"state {name!r} of operator {uid!r}"
        raise StateNotFoundError(
            f"{subject} has no keys in checkpoint {manifest.checkpoint_id}, because it is "
            "operator state"
        )
    operators = []
    for operator_uid in part.uids:
        entries = [entry for entry in part.keyed if entry.state.uid == operator_uid]
        if entries:
            hot = [
                _hot_keys(checkpoint.storage, entry, keys, read_groups)
                for entry in entries
                if keys and read_groups and len(entry.state.identity) > len(entry.state.key)
            ]
            operators.append(
                SkewedOperator(
                    operator=operator_uid,
                    states=tuple(entry.state.name for entry in entries),
                    key_groups=entries[0].state.max_parallelism,
                    rows=sum(entry.rows for entry in entries),
                    size_bytes=sum(entry.size_bytes for entry in entries),
                    skewed=skewed_groups(entries, by, factor),
                    hot=tuple(hot),
                )
            )
    lacking = left_out_of(manifest.left_out, uid, name)
    return SkewReport(manifest.checkpoint_id, by, factor, tuple(operators), lacking)


def _hot_keys(storage: Storage, entry: KeyedEntry, most: int, read_groups: int) -> HotKeys:
    """Read the largest key groups until no other key group can have a hotter key."""
    groups, after = heaviest_groups(entry, read_groups)
    keys: list[CountedKey] = []
    read: list[int] = []
    for group, rows in groups:
        if len(keys) == most and keys[-1].rows >= rows:
            after = rows
            break
        keys += counted_keys(storage, entry, group, most)
        keys.sort(key=lambda key: -key.rows)  # stable: the earlier of equal counts stays
        del keys[most:]
        read.append(group)
    enough = len(keys) == most and keys[-1].rows >= after
    return HotKeys(entry.state.name, entry.rows, tuple(keys), tuple(read), not after or enough)


@dataclass(frozen=True)
class RangeSkew:
    """The bytes or rows of each subtask of an operator, with even ranges and with balanced ones."""

    operator: str
    by: Weight
    even: tuple[int, ...]
    balanced: tuple[int, ...]
    ranges: RangeAssignment

    json_properties: ClassVar[tuple[str, ...]] = ("gain",)

    @property
    def mean(self) -> float:
        """The load of each subtask if all had the same."""
        return sum(self.even) / len(self.even)

    @property
    def gain(self) -> float:
        """The largest even subtask divided by the largest balanced one; at least 1."""
        most = max(self.balanced)
        return max(self.even) / most if most else 1.0

    def ratio(self, loads: Sequence[int]) -> float:
        """Return the largest load divided by the mean; 1 if there is no load."""
        return max(loads) / self.mean if self.mean else 1.0


def loads_of(weights: Sequence[int], assignment: Assignment) -> tuple[int, ...]:
    """Return the weight of each subtask, given the weight of each key group."""
    upto = [*accumulate(weights, initial=0)]
    return tuple(upto[own.last + 1] - upto[own.first] for own in assignment.ranges())


def skews_of(manifest: Manifest, plan: RestorePlan, by: Weight) -> tuple[RangeSkew, ...]:
    """Return the imbalance of each planned operator with keyed state, for both kinds of ranges."""
    skews = []
    for operator in plan.operators:
        entries = [entry for entry in manifest.keyed if entry.state.uid == operator.stored_operator]
        if not entries:
            continue
        weights, parallelism = weights_of(entries, by), len(operator.subtasks)
        even = KeyGroupAssignment(max_parallelism=len(weights), parallelism=parallelism)
        ranges = balance_ranges(weights, parallelism)
        loads = loads_of(weights, even), loads_of(weights, ranges)
        skews.append(RangeSkew(operator.operator, by, *loads, ranges))
    return tuple(skews)


@dataclass(frozen=True)
class CountedKey:
    """A key by its columns, its key group, and its number of rows."""

    key: dict[str, Any]
    key_group: int
    rows: int


def counted_keys(
    storage: Storage, entry: KeyedEntry, key_group: int, most: int
) -> tuple[CountedKey, ...]:
    """Return up to ``most`` keys of a key group with the most rows, most rows first.

    Expired rows that are still stored count. Raises MissingFileError or DamagedFileError.
    """
    counter = _Counter(key_group, most)
    for batch in _keys(storage, entry, key_group):
        counter.add(batch)
    return counter.finish()


def _keys(storage: Storage, entry: KeyedEntry, key_group: int) -> Iterator[pa.RecordBatch]:
    """Yield the key columns of all rows of a key group; rows of the same key are adjacent."""
    own, names = KeyGroupRange(key_group, key_group), list(entry.state.key)
    keys = arrow_schema(entry.state.schema.select(entry.state.key))
    reads = reads_of(entry, own)
    if reads.layers:
        for batch in read_state(storage, entry, reads):
            yield batch.select(names)
        return
    for part in reads.base:
        rows = range(part.first_row, part.first_row + part.rows)
        yield from read_batches(storage, entry.table.path, part.handle, keys, rows=rows)


class _Counter:
    """The current key, and the keys with the most rows before it."""

    def __init__(self, key_group: int, most: int) -> None:
        self._key_group, self._most = key_group, most
        # The number breaks ties between equal counts, because keys may not be comparable.
        self._found: list[tuple[int, int, pa.RecordBatch]] = []
        self._number = 0
        self._key: pa.RecordBatch | None = None
        self._rows = 0

    def add(self, keys: pa.RecordBatch) -> None:
        if not keys.num_rows:
            return
        before = [] if self._key is None else [self._key]
        begins = first_of_equals(pa.Table.from_batches([*before, keys]))[len(before) :]
        starts = np.flatnonzero(begins).tolist()
        self._rows += starts[0] if starts else keys.num_rows
        for first, stop in pairwise([*starts, keys.num_rows]):
            self._close()
            self._key, self._rows = keys.slice(first, 1), stop - first

    def _close(self) -> None:
        rows, key, self._rows = self._rows, self._key, 0
        if key is None:
            return
        self._number -= 1  # among equal counts, the first one is kept
        if len(self._found) < self._most:
            heappush(self._found, (rows, self._number, _copy_batch(key)))
        elif (rows, self._number) > self._found[0][:2]:
            heappushpop(self._found, (rows, self._number, _copy_batch(key)))

    def finish(self) -> tuple[CountedKey, ...]:
        self._close()
        self._key = None
        counted = sorted(self._found, key=lambda entry: entry[:2], reverse=True)
        return tuple(CountedKey(_first(key), self._key_group, rows) for rows, _, key in counted)


def _copy_batch(key: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy: a slice would keep the memory of its whole batch."""
    return key.take(pa.array([0]))


def _first(keys: pa.RecordBatch) -> dict[str, Any]:
    [first, *_] = display_rows(keys)
    return first


KEYS, READ_GROUPS = 10, 8
