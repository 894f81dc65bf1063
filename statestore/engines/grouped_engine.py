"""An engine for rows that arrive in order of key group, one key group after another.

Flink's savepoints have rows in this order. They are read without having all of them in memory, and
several ranges of key groups are read in parallel. The key group of each table is compared with the
key group that is computed from its keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.format.digest import combine
from statestore.format.handles import KeyedStateHandle
from statestore.format.names import KEY_GROUP
from statestore.format.rescale_proof import RowSet
from statestore.format.schema import Schema
from statestore.format.state import KeyedState
from statestore.keys.arrow import check_key_types
from statestore.keys.groups import KeyGroupRange
from statestore.keys.ranges import Assignment
from statestore.layers.base_comparison import BaseComparison, ObservedRows
from statestore.layers.expiry import time_column
from statestore.parquet.keyed_writer import KeyedTarget, write_pieces
from statestore.parquet.uncommitted_files import UncommittedFiles
from statestore.rows.column_types import schema_of_arrow
from statestore.rows.fit_columns import fit_table
from statestore.rows.key_group_runs import key_groups_of
from statestore.rows.sorting import key_group_pieces

__all__ = [
    "GroupedEngine",
    "GroupedRows",
    "RowRange",
]

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
class GroupedRows:
    """Rows by key group, in ranges that follow each other and together have all key groups.

    ``schema`` has their columns, without the key group. A thread reads and writes each range, and
    has its share of the memory for sorting. ``estimated_rows`` is the approximate number of rows,
    None if unknown.
    """

    schema: pa.Schema
    ranges: tuple[RowRange, ...]
    estimated_rows: int | None = None


class GroupedEngine:
    """Writes rows by key group, reading them at the same time."""

    syncs_later = False

    def schema_of(self, rows: GroupedRows) -> Schema:
        """Return the stored columns of the rows."""
        return schema_of_arrow(rows.schema)

    def key_types(
        self,
        rows: GroupedRows,
        key: tuple[str, ...],
        hash_scheme: str,
        wanted: Sequence[str | None],
    ) -> tuple[str, ...]:
        """Return the type that each key column is hashed as, by default (None) its own type."""
        return check_key_types([rows.schema.field(name) for name in key], hash_scheme, wanted)

    def rows_known(self, rows: GroupedRows) -> int | None:
        """Return the estimated number of rows, since they were not read yet."""
        return rows.estimated_rows

    def on_driver(self, rows: GroupedRows, names: Sequence[str], most_bytes: int) -> pa.Table:
        """Refuse to load all rows into memory."""
        raise UnsupportedTypeError(
            "rows by key group must be a whole state; changes are not accepted"
        )

    def refuse_narrowing(self, rows: GroupedRows, names: Sequence[str], state: KeyedState) -> None:
        """Do nothing: this engine checks each value when it is written."""

    def ungrouped(self, rows: GroupedRows) -> GroupedRows:
        """Return the rows unchanged: they have no key-group column."""
        return rows

    def with_time(self, rows: GroupedRows, column: str, time_type: str, now_ms: int) -> GroupedRows:
        """Return the rows with a ``long`` or ``timestamp`` column added that holds one time."""
        ranges = tuple(
            replace(part, groups=_with_time(part.groups, column, time_type, now_ms))
            for part in rows.ranges
        )
        schema = rows.schema.append(pa.field(column, time_column(time_type, 0, 0).type))
        return replace(rows, schema=schema, ranges=ranges)

    def write_keyed(
        self, rows: GroupedRows, owners: Assignment, target: KeyedTarget
    ) -> tuple[KeyedStateHandle, ...]:
        """Write a keyed state; return its handles in order of key group.

        Raises NullKeyError, DuplicateKeyError, StorageError, DamagedFileError for a key in a key
        group that it does not belong to, and the errors of reading the rows.
        """
        state, options, failed = target.state, target.options, list[int]()
        memory_bytes = max(options.memory_bytes // len(rows.ranges), 1)
        pieces = [
            key_group_pieces(tables, state, options.run_bytes, memory_bytes)
            for tables in _tables_by_range(rows, state, options.run_bytes, failed)
        ]
        return _write_ranges(pieces, target, failed)

    def write_against(
        self, rows: GroupedRows, owners: Assignment, against: BaseComparison, target: KeyedTarget
    ) -> tuple[tuple[KeyedStateHandle, ...], RowSet]:
        """Compare ``rows`` with the stored rows, and write the changes to ``target``.

        Return the handles of the written files, and the number and digest of ``rows``.
        """
        state, failed = against.state, list[int]()
        memory_bytes = max(against.memory_bytes // len(rows.ranges), 1)
        against = replace(against, memory_bytes=memory_bytes)
        observed = [ObservedRows() for _ in rows.ranges]
        tables_by_range = _tables_by_range(rows, state, target.options.run_bytes, failed)
        changes = [
            against.changes(against.pieces(tables), part.key_groups, own)
            for part, tables, own in zip(rows.ranges, tables_by_range, observed, strict=True)
        ]
        handles = _write_ranges(changes, target, failed)
        digest = combine([own.digest for own in observed])
        return handles, RowSet(sum(own.rows for own in observed), digest)


def _with_time(groups: Groups, column: str, time_type: str, now_ms: int) -> Groups:
    for group, table in groups:
        yield group, table.append_column(column, time_column(time_type, table.num_rows, now_ms))


def _tables_by_range(
    rows: GroupedRows, state: KeyedState, table_bytes: int, failed: Collection[int]
) -> list[Tables]:
    """Return the rows of each range in their stored form, until an earlier range has failed."""
    return [
        _placed(
            _stop_after_failure(part.groups, number, failed), part.key_groups, state, table_bytes
        )
        for number, part in enumerate(rows.ranges)
    ]


def _write_ranges(
    ranges: Sequence[Tables], target: KeyedTarget, failed: list[int]
) -> tuple[KeyedStateHandle, ...]:
    """Write the rows of some ranges of key groups in parallel; return the handles in order.

    The number of each failed range is added to ``failed``. If several ranges fail, the error of the
    first range is raised, as with one thread: later ranges are abandoned, and earlier ones
    continue. All files that were written until then are deleted.
    """

    def write(number: int) -> tuple[KeyedStateHandle, ...]:
        try:
            return write_pieces(ranges[number], target)
        except BaseException:
            failed.append(number)
            raise

    threads = len(ranges)
    if threads == 1:
        return write(0)
    with ThreadPoolExecutor(threads, thread_name_prefix="statestore-write") as pool:
        under_way: list[Future[tuple[KeyedStateHandle, ...]]] = []
        try:
            under_way += (pool.submit(write, number) for number in range(threads))
            return tuple(handle for task in under_way for handle in task.result())
        except BaseException as error:
            failed.append(-1)  # all ranges are abandoned
            written = UncommittedFiles(target.storage)
            for task in under_way:
                if task.exception() is None:
                    written.add(target.folder, task.result())
            written.delete(error)
            raise


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
