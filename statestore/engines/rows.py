"""Rows of a keyed state: what a writer needs of them, and the rows that this process has.

Rows in this process are hashed, sorted and written without Spark. They are a table, or a stream
that does not fit in memory. Such a stream, and a table larger than the configured memory, are
sorted on disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.format.digest import RowSet, combine
from statestore.format.handles import KeyedStateHandle
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Schema
from statestore.format.state import KeyedState
from statestore.keys.arrow_types import check_key_types
from statestore.keys.groups import Assignment, KeyGroupRange
from statestore.layers.base_comparison import BaseComparison, ObservedRows
from statestore.layers.expiry import time_column
from statestore.parquet.keyed_writer import KeyedTarget, write_pieces
from statestore.parquet.writer import ParquetOptions, UncommittedFiles
from statestore.rows.column_types import schema_of_arrow
from statestore.rows.fit_columns import fit_table
from statestore.rows.key_group_runs import (
    ONE_ARRAY_BYTES,
    NullKeys,
    key_group_column,
    wide_bytes,
    with_key_group,
    without_groups,
)
from statestore.rows.sorting import (
    add_key_groups,
    gather_key_groups,
    key_group_pieces,
    slices_of,
    sorted_pieces,
)

Own: TypeAlias = tuple[Assignment, int]
"""The owners of the key groups, and the subtask whose rows are written."""

RangePieces: TypeAlias = tuple[KeyGroupRange, Iterator[pa.Table]]
"""A range of key groups with its rows, as ascending pieces (:mod:`statestore.rows.sorting`)."""


class Rows(ABC):
    """Rows of a keyed state, wherever they are: the few things that a writer needs of them.

    Their values are read once. ``syncs_later`` tells whether files of changes may be synced later;
    it is False if other machines may write them.
    """

    syncs_later: ClassVar[bool]

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The stored columns of the rows."""

    @property
    @abstractmethod
    def count(self) -> int | None:
        """The number of rows, or None if it is unknown without a computation."""

    @abstractmethod
    def key_types(
        self, key: tuple[str, ...], hash_scheme: str, wanted: Sequence[str | None]
    ) -> tuple[str, ...]:
        """Return the type that each key column is hashed as; None in ``wanted`` means its own type.

        Raises UnsupportedTypeError, which names the column, when it cannot be hashed as that type.
        """

    @abstractmethod
    def collect(self, names: Sequence[str], most_bytes: int) -> ArrowRows | None:
        """Return some columns in this process; None if a part of them exceeds ``most_bytes``."""

    @abstractmethod
    def refuse_narrowing(self, names: Sequence[str], state: KeyedState) -> None:
        """Refuse columns whose types have values that the state's types cannot represent.

        Rows whose values are checked before they are written need no such check.
        """

    @abstractmethod
    def ungrouped(self) -> Rows:
        """Return the rows without ``key_group``, which a new key grouping invalidates."""

    @abstractmethod
    def with_time(self, column: str, time_type: str, now_ms: int) -> Rows:
        """Return the rows with a ``long`` or ``timestamp`` column added that holds one time."""

    @abstractmethod
    def write(self, owners: Assignment, target: KeyedTarget) -> tuple[KeyedStateHandle, ...]:
        """Write a keyed state; return its handles in order of key group.

        Raises NullKeyError, DuplicateKeyError or StorageError, each before anything is visible.
        """

    @abstractmethod
    def write_against(
        self, owners: Assignment, against: BaseComparison, target: KeyedTarget
    ) -> tuple[tuple[KeyedStateHandle, ...], RowSet]:
        """Compare the rows with the stored rows, and write the changes to ``target``.

        Return the handles of the written files, and the number and digest of the rows. Raises the
        errors of :meth:`write`, and MissingFileError or DamagedFileError.
        """


class LocalRows(Rows):
    """Rows that this process reads and writes, in one or several ranges of key groups."""

    columns: pa.Schema
    """The columns of the rows."""

    @abstractmethod
    def ranges(
        self, state: KeyedState, options: ParquetOptions, sort_bytes: int, failed: list[int]
    ) -> list[RangePieces]:
        """Return the rows as ascending pieces, sorted in ``sort_bytes`` of memory.

        The number of a range is added to ``failed`` when its writer fails. Later ranges then end.
        """

    @property
    def schema(self) -> Schema:
        """The stored columns of the rows."""
        return without_groups(schema_of_arrow(self.columns))

    def key_types(
        self, key: tuple[str, ...], hash_scheme: str, wanted: Sequence[str | None]
    ) -> tuple[str, ...]:
        """Return the type that each key column is hashed as."""
        return check_key_types([self.columns.field(name) for name in key], hash_scheme, wanted)

    def refuse_narrowing(self, names: Sequence[str], state: KeyedState) -> None:
        """Do nothing: each value is checked when it is written."""

    def write(self, owners: Assignment, target: KeyedTarget) -> tuple[KeyedStateHandle, ...]:
        """Write a keyed state; ``owners`` is not used, because one process writes all key groups.

        Raises the errors of :meth:`Rows.write`, and those of reading the rows.
        """
        failed: list[int] = []
        ranges = self.ranges(target.state, target.options, target.options.memory_bytes, failed)
        return _write_ranges([pieces for _, pieces in ranges], target, failed)

    def write_against(
        self, owners: Assignment, against: BaseComparison, target: KeyedTarget
    ) -> tuple[tuple[KeyedStateHandle, ...], RowSet]:
        """Compare the rows with the stored rows, and write the changes to ``target``."""
        failed: list[int] = []
        ranges = self.ranges(against.state, target.options, against.sort_bytes, failed)
        observed = [ObservedRows() for _ in ranges]
        share = replace(against, memory_bytes=max(against.memory_bytes // len(ranges), 1))
        changes = [
            share.changes(pieces, key_groups, own)
            for (key_groups, pieces), own in zip(ranges, observed, strict=True)
        ]
        handles = _write_ranges(changes, target, failed)
        digest = combine([own.digest for own in observed])
        return handles, RowSet(sum(own.rows for own in observed), digest)


@dataclass(frozen=True, eq=False)
class ArrowRows(LocalRows):
    """A table, or a stream of tables that is longer than a table may be and is read once.

    ``tables`` is a tuple with the one table, or the iterator of the stream.
    """

    columns: pa.Schema
    tables: tuple[pa.Table] | Iterator[pa.Table]

    syncs_later = True

    @classmethod
    def of(cls, table: pa.Table) -> ArrowRows:
        """Return the rows of a table."""
        return cls(table.schema, (table,))

    @property
    def table(self) -> pa.Table | None:
        """The table; None for a stream."""
        return self.tables[0] if isinstance(self.tables, tuple) else None

    @property
    def count(self) -> int | None:
        """The number of rows, None for a stream."""
        return None if self.table is None else int(self.table.num_rows)

    def map(self, change: Callable[[pa.Table], pa.Table]) -> ArrowRows:
        """Return the rows with a function applied to each table, including empty ones."""
        if isinstance(self.tables, tuple):
            return ArrowRows.of(change(*self.tables))
        return ArrowRows(change(self.columns.empty_table()).schema, map(change, self.tables))

    def read_all(self) -> pa.Table:
        """Return all rows in memory."""
        if isinstance(self.tables, tuple):
            return self.tables[0]
        return pa.concat_tables([self.columns.empty_table(), *self.tables])

    def collect(self, names: Sequence[str], most_bytes: int) -> ArrowRows:
        """Return some columns; the rows are already in this process."""
        wanted = with_key_group(names, self.columns.names)
        return self.map(lambda table: table.select(wanted))

    def ungrouped(self) -> ArrowRows:
        """Return the rows without the column ``key_group``."""
        wanted = [name for name in self.columns.names if name != KEY_GROUP]
        return self.map(lambda table: table.select(wanted))

    def with_time(self, column: str, time_type: str, now_ms: int) -> ArrowRows:
        """Return the rows with a ``long`` or ``timestamp`` column added that holds one time."""
        return self.map(
            lambda table: table.append_column(
                column, time_column(time_type, table.num_rows, now_ms)
            )
        )

    def ranges(
        self, state: KeyedState, options: ParquetOptions, sort_bytes: int, failed: list[int]
    ) -> list[RangePieces]:
        """Return all key groups as one range."""
        pieces = self.pieces(state, options, sort_bytes)
        return [(KeyGroupRange.every(state.max_parallelism), pieces)]

    def pieces(
        self, state: KeyedState, options: ParquetOptions, sort_bytes: int, own: Own | None = None
    ) -> Iterator[pa.Table]:
        """Return the rows as ascending pieces. With ``own`` they must belong to one subtask.

        Raises NullKeyError, and InvalidArgumentError for a value that cannot be stored or a row
        that another subtask owns.
        """
        table = self.table
        # A sorted copy of the rows must fit in memory in addition to the given rows.
        if table is not None and table.nbytes <= min(options.memory_bytes, ONE_ARRAY_BYTES):
            runs = _runs(fitted(table, state), state, options, own)
            return key_group_pieces(runs, state, options.run_bytes, sort_bytes)
        # The first rows of a stream need the other half.
        most = sort_bytes if table is not None else sort_bytes // 2
        return sorted_pieces(_keyed(self.tables, state, options, own), state, most)


def write_own_rows(
    rows: ArrowRows, subtask: int, owners: Assignment, target: KeyedTarget
) -> tuple[KeyedStateHandle, ...]:
    """Write the rows of one subtask.

    Raises the errors of :meth:`LocalRows.write`, and InvalidArgumentError for a row that another
    subtask owns.
    """
    options = target.options
    own = (owners, subtask)
    return write_pieces(rows.pieces(target.state, options, options.memory_bytes, own), target)


def _keyed(
    tables: Iterable[pa.Table], state: KeyedState, options: ParquetOptions, own: Own | None
) -> Iterator[pa.Table]:
    """Yield the rows in their stored form, some at a time, each with its key group.

    Raises NullKeyError with the number of rows, after all rows were read, and InvalidArgumentError
    for a value that cannot be stored or a row that another subtask owns.
    """
    most = min(
        wide_bytes(options.block_bytes, state, options.memory_bytes // 4), options.memory_bytes
    )
    first, nulls = 0, NullKeys(state)
    for part in (part for table in tables for part in slices_of(table, most)):
        stored = fitted(part, state, first)
        first += part.num_rows
        if nulls.add(stored):
            continue
        rows = add_key_groups(stored, state)
        if own is not None:
            _refuse_foreign(np.unique(rows.column(KEY_GROUP)), *own, state)
        yield rows
    nulls.refuse()


def fitted(rows: pa.Table, state: KeyedState, first_row: int = 0) -> pa.Table:
    """Check the rows; return the stored columns, and the key-group column if the rows have it."""
    own = key_group_column(rows, state)
    stored = fit_table(rows, state.schema, str(state), first_row=first_row)
    return stored if own is None else stored.append_column(KEY_GROUP, own)


def _runs(
    table: pa.Table, state: KeyedState, options: ParquetOptions, own: Own | None
) -> Iterator[pa.Table]:
    """Return the rows sorted by key group, in pieces of several key groups.

    All keys are hashed and checked before the first rows are returned.
    """
    nulls = NullKeys(state)
    nulls.add(table)
    nulls.refuse()
    rows = add_key_groups(table, state)
    counts = np.bincount(rows.column(KEY_GROUP), minlength=state.max_parallelism)
    if own is not None:
        _refuse_foreign(np.flatnonzero(counts), *own, state)
    row_bytes = max(table.nbytes / max(table.num_rows, 1), 1)
    run_rows, most_rows = (
        int(wide_bytes(size, state, options.memory_bytes // 4) / row_bytes)
        for size in (options.run_bytes, options.block_bytes)
    )
    ends = np.concatenate(([0], np.cumsum(counts)))
    return gather_key_groups(rows, ends, run_rows, most_rows + 1)


def _refuse_foreign(
    groups: Iterable[int], assignment: Assignment, subtask: int, state: KeyedState
) -> None:
    own = assignment.range_of(subtask)
    for group in map(int, groups):
        if group not in own:
            raise InvalidArgumentError(
                f"subtask {subtask} of {assignment.parallelism} owns key groups {own} of {state}, "
                f"but writes a row of key group {group}, which belongs to subtask "
                f"{assignment.subtask_of(group)}; give each subtask only the rows of its own keys"
            )


def _write_ranges(
    ranges: Sequence[Iterator[pa.Table]], target: KeyedTarget, failed: list[int]
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
