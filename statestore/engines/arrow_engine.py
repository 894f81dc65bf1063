"""Keyed state from Arrow rows, without Spark: hash, sort and write in this process.

Rows are a table, or a stream that does not fit in memory. Such a stream, and a table larger than
the configured memory, are sorted on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.handles import KeyedStateHandle
from statestore.format.names import KEY_GROUP
from statestore.format.rescale_proof import RowSet
from statestore.format.schema import Schema, same_columns
from statestore.format.state import KeyedState
from statestore.keys.arrow import check_key_types
from statestore.keys.groups import KeyGroupRange
from statestore.keys.ranges import Assignment
from statestore.layers.base_comparison import BaseComparison, ObservedRows
from statestore.layers.expiry import time_column
from statestore.parquet.keyed_writer import KeyedTarget, write_grouped, write_pieces
from statestore.parquet.writer import ParquetOptions
from statestore.rows.column_types import schema_of_arrow
from statestore.rows.fit_columns import fit_table
from statestore.rows.input_rows import (
    StreamedRows,
    is_dicts,
    read_stream,
    rereadable,
    streamed,
    without_empty_chunks,
)
from statestore.rows.key_group_column import (
    key_group_column,
    with_groups,
    with_key_group,
    without_groups,
)
from statestore.rows.key_group_runs import ONE_ARRAY_BYTES
from statestore.rows.null_keys import NullKeys
from statestore.rows.python_values import ROWS, row_place, table_of_dicts
from statestore.rows.sorting import KeyGroupBlock, merge_blocks, slices_of, sorted_pieces
from statestore.rows.uuids import uuid_columns, with_uuids
from statestore.rows.valid_values import refuse_invalid_values

__all__ = [
    "ArrowEngine",
    "as_table",
    "fitted",
    "is_schema",
    "refuse_repeated_names",
    "write_subtask",
]

Rows: TypeAlias = pa.Table | StreamedRows
Own: TypeAlias = tuple[Assignment, int]
"""The owners of the key groups, and the subtask whose rows are written."""


def as_table(rows: Any, subject: str = ROWS, *, is_valid: bool = False) -> pa.Table:
    """Return rows as an Arrow table; a schema becomes a table without rows.

    Rows are a table, a list of dictionaries, or any frame with the Arrow interface, such as results
    of pandas, Polars and DuckDB. A stream is read to its end, once: see
    :mod:`statestore.rows.input_rows`. Raises InvalidArgumentError, which names ``subject``, for
    anything else, for values without a common type, for two columns with one name, and unless the
    rows are known to be valid, for values that their type does not have.
    """
    rows = rereadable(rows)
    if is_dicts(rows):
        return table_of_dicts(rows, None, subject=subject)
    if is_schema(rows):
        rows = rows.empty_table()
    elif not isinstance(rows, pa.Table):
        if not hasattr(rows, "__arrow_c_stream__"):
            raise InvalidArgumentError(_wrong_rows(rows, subject))
        rows = read_stream(rows, subject)
    refuse_repeated_names(rows.schema, subject)
    if not is_valid:  # before anything is computed, which could crash the process
        refuse_invalid_values(rows, subject)
    return without_empty_chunks(rows)


def _wrong_rows(rows: Any, subject: str) -> str:
    """Return why rows have no supported form; for a list, name the first wrong row."""
    forms = (
        "rows must be a Spark DataFrame, an Arrow table, a pandas, Polars or DuckDB frame, or a "
        "list of dictionaries"
    )
    if not isinstance(rows, list):
        return f"{forms}, not {type(rows).__name__} ({subject})"
    batches = isinstance(rows[0], pa.RecordBatch)
    expected, form = (pa.RecordBatch, "a record batch") if batches else (Mapping, "a dictionary")
    index, row = next(
        (index, row) for index, row in enumerate(rows) if not isinstance(row, expected)
    )
    return f"{row_place(index)} of {subject} is of type {type(row).__name__}, not {form}: {forms}"


def refuse_repeated_names(schema: pa.Schema, subject: str) -> None:
    """Raise InvalidArgumentError if two columns have one name."""
    names = schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(f"two columns of {subject} are named {twice!r}; rename one")


def is_schema(rows: Any) -> bool:
    """Return whether the value is an Arrow schema, which declares rows that others provide."""
    return isinstance(rows, pa.Schema)


class ArrowEngine:
    """Writes rows of this process: an Arrow table, or a stream of tables."""

    syncs_later = True

    def schema_of(self, rows: Rows) -> Schema:
        """Return the stored columns of the rows."""
        return without_groups(schema_of_arrow(rows.schema))

    def key_types(
        self, rows: Rows, key: tuple[str, ...], hash_scheme: str, wanted: Sequence[str | None]
    ) -> tuple[str, ...]:
        """Return the type that each key column is hashed as; None in ``wanted`` means its own type.

        Raises UnsupportedTypeError, which names the column, when it cannot be hashed as that type.
        """
        columns = [rows.schema.field(name) for name in key]
        return check_key_types(columns, hash_scheme, wanted)

    def rows_known(self, rows: Rows) -> int | None:
        """Return the number of rows, None for a stream."""
        return int(rows.num_rows) if isinstance(rows, pa.Table) else None

    def on_driver(self, rows: Rows, names: Sequence[str], most_bytes: int) -> Rows:
        """Return some columns; the rows are already in this process."""
        return rows.select(with_key_group(names, rows.schema.names))

    def refuse_narrowing(self, rows: Rows, names: Sequence[str], state: KeyedState) -> None:
        """Do nothing: this engine checks each value when it is written."""

    def ungrouped(self, rows: Rows) -> Rows:
        """Return the rows without the column ``key_group``."""
        return rows.select([name for name in rows.schema.names if name != KEY_GROUP])

    def with_time(self, rows: Rows, column: str, time_type: str, now_ms: int) -> Rows:
        """Return the rows with a ``long`` or ``timestamp`` column added that holds one time."""

        def timed(table: pa.Table) -> pa.Table:
            return table.append_column(column, time_column(time_type, table.num_rows, now_ms))

        return timed(rows) if isinstance(rows, pa.Table) else rows.map(timed)

    def write_keyed(
        self, rows: Rows, owners: Assignment, target: KeyedTarget
    ) -> tuple[KeyedStateHandle, ...]:
        """Write a keyed state; return its handles in order of key group.

        ``owners`` is not used: one process writes all key groups. Raises NullKeyError,
        DuplicateKeyError, or StorageError, each before anything is visible.
        """
        return _written(rows, target)

    def write_against(
        self, rows: Rows, owners: Assignment, against: BaseComparison, target: KeyedTarget
    ) -> tuple[tuple[KeyedStateHandle, ...], RowSet]:
        """Compare ``rows`` with the stored rows, and write the changes to ``target``.

        Return the handles of the written files, and the number and digest of ``rows``. Raises the
        errors of :meth:`write_keyed`, and MissingFileError or DamagedFileError.
        """
        state, options = against.state, target.options
        everything = KeyGroupRange.every(state.max_parallelism)
        if _fits(rows, options):
            pieces = _runs(fitted(rows, state), state, options)
        else:
            keyed, most = _keyed(rows, state, options), _sort_bytes(rows, against.sort_bytes)
            pieces = sorted_pieces(keyed, state, most)
        observed = ObservedRows()
        handles = write_pieces(against.changes(pieces, everything, observed), target)
        return handles, RowSet(observed.rows, observed.digest)


def write_subtask(
    rows: Any, subtask: int, owners: Assignment, target: KeyedTarget
) -> tuple[KeyedStateHandle, ...]:
    """Write the rows of one subtask, of any type that :func:`as_table` takes, or record batches.

    Raises the errors of :meth:`ArrowEngine.write_keyed`, SchemaMismatchError for columns that
    differ from the state's, and InvalidArgumentError for a row that another subtask owns.
    """
    state = target.state
    table = _of_schema(rows, state, target.options)
    schema = ArrowEngine().schema_of(table)
    if sorted(schema.names) != sorted(state.schema.names) or not same_columns(
        schema.select(state.schema.names), state.schema
    ):
        raise SchemaMismatchError(
            f"{state} is declared with the columns ({state.schema}), but subtask {subtask} "
            f"writes ({schema}); give the rows of every subtask the declared columns"
        )
    return _written(table, target, (owners, subtask))


def _written(
    rows: Rows, target: KeyedTarget, own: Own | None = None
) -> tuple[KeyedStateHandle, ...]:
    state, options = target.state, target.options
    if _fits(rows, options):
        return write_grouped(_runs(fitted(rows, state), state, options, own), target)
    keyed, most = _keyed(rows, state, options, own), _sort_bytes(rows, options.memory_bytes)
    return write_pieces(sorted_pieces(keyed, state, most), target)


def _fits(rows: Rows, options: ParquetOptions) -> bool:
    """Return whether a sorted copy of the rows fits in memory in addition to the given rows."""
    most = min(options.memory_bytes, ONE_ARRAY_BYTES)
    return isinstance(rows, pa.Table) and rows.nbytes <= most


def _sort_bytes(rows: Rows, memory_bytes: int) -> int:
    """Return the bytes of memory for the sort; a stream's first rows need the other half."""
    return memory_bytes // 2 if isinstance(rows, StreamedRows) else memory_bytes


def _keyed(
    rows: Rows, state: KeyedState, options: ParquetOptions, own: Own | None = None
) -> Iterator[pa.Table]:
    """Yield the rows in their stored form, some at a time, each with its key group.

    Raises NullKeyError with the number of rows, after all rows were read, and InvalidArgumentError
    for a value that cannot be stored or a row that another subtask owns.
    """
    tables = [rows] if isinstance(rows, pa.Table) else rows.tables
    most = min(options.block_bytes, options.memory_bytes)
    first, nulls = 0, NullKeys(state)
    for part in (part for table in tables for part in slices_of(table, most)):
        stored = fitted(part, state, first)
        first += part.num_rows
        if nulls.add(stored):
            continue
        block = KeyGroupBlock.of(stored, state)
        if own is not None:
            _refuse_foreign(np.flatnonzero(np.diff(block.ends)), *own, state)
        yield block.rows
    nulls.refuse()


def fitted(rows: pa.Table, state: KeyedState, first_row: int = 0) -> pa.Table:
    """Check the rows; return the stored columns, and the key-group column if the rows have it."""
    own = key_group_column(rows, state)
    stored = fit_table(rows, state.schema, str(state), first_row=first_row)
    return stored if own is None else stored.append_column(KEY_GROUP, own)


def _of_schema(rows: Any, state: KeyedState, options: ParquetOptions) -> Rows:
    rows = rereadable(streamed(rows, str(state), options.stream_bytes))
    if isinstance(rows, StreamedRows):
        refuse_repeated_names(rows.schema, str(state))
        return rows
    if is_dicts(rows):
        schema = with_groups(state.schema, {name for row in rows for name in row})
        return table_of_dicts(with_uuids(rows, uuid_columns(state)), schema, subject=str(state))
    return as_table(rows, str(state))


def _runs(
    table: pa.Table,
    state: KeyedState,
    options: ParquetOptions,
    own: Own | None = None,
) -> Iterator[pa.Table]:
    """Return the rows sorted by key group, in pieces of several key groups.

    All keys are hashed and checked before the first rows are returned.
    """
    nulls = NullKeys(state)
    nulls.add(table)
    nulls.refuse()
    row_bytes = max(table.nbytes / max(table.num_rows, 1), 1)
    step = int(options.block_bytes / row_bytes) + 1
    starts = range(0, table.num_rows, step)
    blocks = [KeyGroupBlock.of(table.slice(start, step), state) for start in starts]
    ends = sum((block.ends for block in blocks), np.zeros(state.max_parallelism + 1, np.int64))
    if own is not None:
        _refuse_foreign(np.flatnonzero(np.diff(ends)), *own, state)
    return merge_blocks(blocks, ends, int(options.run_bytes / row_bytes))


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
