"""Skewed key groups: key groups with several times the even share.

A key group is never divided. So the heaviest one is a lower bound for the largest subtask, at any
parallelism and with any ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

import pyarrow as pa

from statestore.catalog.catalog import Checkpoint
from statestore.display import NotebookBar, bars, count, figure, size, table
from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.format.left_out import LeftOutState, left_out_of
from statestore.format.manifest import KeyedEntry
from statestore.restore.hot_keys import CountedKey, counted_keys
from statestore.restore.key_group_weights import Weight, weights_of
from statestore.restore.selection import select
from statestore.rows.dataframes import as_pandas, as_polars, table_of
from statestore.storage import Storage

__all__ = [
    "FACTOR",
    "HotKeys",
    "SkewReport",
    "SkewedGroup",
    "SkewedOperator",
    "heaviest_groups",
    "skew",
    "skewed_groups",
]

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
