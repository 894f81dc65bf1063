"""Rows that arrive in order of key group, one key group after another.

Flink's savepoints have rows in this order. They are read without having all of them in memory, and
several ranges of key groups are read in parallel. The key group of each table is compared with the
key group that is computed from its keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import pyarrow as pa

from statestore.engines.rows import LocalRows, RangePieces
from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.format.names import KEY_GROUP
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.expiry import time_column
from statestore.parquet.writer import ParquetOptions
from statestore.rows.fit_columns import fit_table
from statestore.rows.key_group_runs import key_groups_of
from statestore.rows.sorting import key_group_pieces

Groups = Iterator[tuple[int, pa.Table]]
Tables = Iterator[pa.Table]


@dataclass(frozen=True, eq=False)
class RowRange:
    """The rows of a range of key groups, which are read once.

    ``groups`` yields each key group with its rows, ascending. The rows of a large key group may be
    in several tables.
    """

    key_groups: KeyGroupRange
    groups: Groups


@dataclass(frozen=True, eq=False)
class GroupedRows(LocalRows):
    """Rows by key group, in ranges that follow each other and together have all key groups.

    ``columns`` are their columns, without the key group. A thread reads and writes each range, and
    has its share of the memory for sorting. ``count`` is the approximate number of rows, None if
    unknown.
    """

    columns: pa.Schema
    row_ranges: tuple[RowRange, ...]
    count: int | None = None

    syncs_later = False

    def collect(self, names: Sequence[str], most_bytes: int) -> NoReturn:
        """Refuse to load all rows into memory."""
        raise UnsupportedTypeError(
            "rows by key group must be a whole state; changes are not accepted"
        )

    def ungrouped(self) -> GroupedRows:
        """Return the rows unchanged: they have no key-group column."""
        return self

    def with_time(self, column: str, time_type: str, now_ms: int) -> GroupedRows:
        """Return the rows with a ``long`` or ``timestamp`` column added that holds one time."""
        row_ranges = tuple(
            replace(part, groups=_with_time(part.groups, column, time_type, now_ms))
            for part in self.row_ranges
        )
        columns = self.columns.append(pa.field(column, time_column(time_type, 0, 0).type))
        return replace(self, columns=columns, row_ranges=row_ranges)

    def ranges(
        self, state: KeyedState, options: ParquetOptions, sort_bytes: int, failed: list[int]
    ) -> list[RangePieces]:
        """Return each range until an earlier one has failed.

        Raises DamagedFileError for a key in a key group that it does not belong to.
        """
        share = max(sort_bytes // len(self.row_ranges), 1)
        pieces = []
        for number, part in enumerate(self.row_ranges):
            groups = _stop_after_failure(part.groups, number, failed)
            tables = _placed(groups, part.key_groups, state, options.run_bytes)
            rows = key_group_pieces(tables, state, options.run_bytes, share)
            pieces.append((part.key_groups, rows))
        return pieces


def _with_time(groups: Groups, column: str, time_type: str, now_ms: int) -> Groups:
    for group, table in groups:
        yield group, table.append_column(column, time_column(time_type, table.num_rows, now_ms))


class _LeftError(Exception):
    """Ends a range after an earlier one failed; it is never raised to callers."""


def _stop_after_failure(groups: Groups, number: int, failed: Collection[int]) -> Groups:
    """Yield the key groups of a range; raise _LeftError after an earlier range has failed."""
    for group in groups:
        if any(other < number for other in failed):
            raise _LeftError
        yield group


def _placed(
    groups: Groups, key_groups: KeyGroupRange, state: KeyedState, table_bytes: int
) -> Tables:
    """Yield the rows with their key group as a column; small tables are combined."""
    tables: list[pa.Table] = []
    size = 0
    last = key_groups.first
    for group, table in groups:
        if not last <= group <= key_groups.last:
            raise DamagedFileError(
                f"{state}: rows of key group {group} follow rows of key group {last} (of "
                f"{state.max_parallelism} key groups); sort the rows by key group"
            )
        last = group
        if not table.num_rows:
            continue
        numbers = pa.array(np.full(table.num_rows, group, np.int32))
        fitted = fit_table(table, state.schema, str(state))
        tables.append(fitted.add_column(0, KEY_GROUP, numbers))
        size += table.nbytes
        if size >= table_bytes:
            yield _check_key_groups(tables, state)
            tables, size = [], 0
    if tables:
        yield _check_key_groups(tables, state)


def _check_key_groups(tables: list[pa.Table], state: KeyedState) -> pa.Table:
    rows = pa.concat_tables(tables)
    stored_groups = np.asarray(rows.column(KEY_GROUP))
    hashed_groups = key_groups_of(rows, state)
    wrong = np.flatnonzero(hashed_groups != stored_groups)
    if len(wrong):
        row = int(wrong[0])
        raise DamagedFileError(
            f"{len(wrong)} rows of {state} are in the wrong key group: the first is in key "
            f"group {stored_groups[row]}, but its key belongs to key group {hashed_groups[row]} of "
            f"{state.max_parallelism}. The source is damaged, or its keys have another hash"
        )
    return rows
