"""Replace the rows of a keyed state with the result of an SQL expression, run by DuckDB.

The state is copied into a database on the local disk, which also stores the result. Both stay
there until the files are written, and only pieces of them are in memory.

The result is read twice: once sorted, to compare it with the stored rows of the key groups that
differ, and once to write the files of these key groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.schema import names_with_nul
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange, merge_ranges
from statestore.layers.base_comparison import BaseComparison, ObservedRows
from statestore.layers.merge import read_state
from statestore.layers.rewrite import Write, owning_spans, rewrite_spans
from statestore.maintenance.edit_keys import EditResult, RowChanges
from statestore.parquet.reader import restored_schema
from statestore.restore.duck import (
    copy_slices,
    duckdb,
    error_text,
    is_select,
    run_interruptibly,
    sandbox,
)
from statestore.rows.column_types import arrow_schema, for_each_column
from statestore.rows.equality import leaf_columns
from statestore.rows.fit_columns import fit_table
from statestore.rows.key_group_runs import NullKeys, key_groups_of
from statestore.rows.pandas_rows import refuse_rounded
from statestore.rows.sorting import sorted_pieces
from statestore.rows.untyped_rows import mismatch_of_values
from statestore.storage import Storage
from statestore.storage.locks import temporary_folder

Batches = Iterable[pa.RecordBatch]

VIEW = "state"
"""The name of the state in the expression."""

_ANSWER = "statestore_answer"
_BATCH_ROWS = 2048
"""As many as DuckDB handles at a time: rows may be large."""
_LEAST_SQL_BYTES = 256 * 2**20
"""With less memory, DuckDB refuses statements that need hardly any."""
_LEAST_COPYING_BYTES = 64 * 2**20
_COLUMN_BYTES = 2**20
"""DuckDB holds several blocks of each column while it writes a table."""
_EXACTLY = "compute it in the query from exact numbers, such as BIGINT or DECIMAL, without a float"


@contextmanager
def sql_result(
    storage: Storage, entry: KeyedEntry, sql: str, memory_bytes: int
) -> Iterator[SqlResult]:
    """Run an expression over a state; yield the result, which is deleted afterwards.

    DuckDB uses about half of ``memory_bytes``. Raises MissingDependencyError without DuckDB,
    InvalidArgumentError if ``sql`` is not a SELECT or fails, and CorruptionError for a damaged
    file.
    """
    for name in names_with_nul(entry.state.schema):
        raise InvalidArgumentError(
            f"{entry.state} has a column or field {name!r} with a NUL character, at which "
            "DuckDB truncates names: edit the state with keys or rows instead"
        )
    library = duckdb()
    with temporary_folder("sql") as folder:
        try:
            # The database is opened three times, because it keeps its buffers, and writing and
            # sorting files need memory too.
            copying = _memory_for_copy(entry.state)
            # The process keeps some memory from reading the state, up to half of the budget.
            running = max(memory_bytes // 2, _LEAST_SQL_BYTES, copying)
            with closing(_open_database(library, folder, copying)) as connection:
                _refuse_other_statements(library, connection, sql)
                _load(connection, storage, entry)
            with closing(_open_database(library, folder, running)) as connection:
                sandbox(connection)
                create = f"CREATE TABLE {_ANSWER} AS {sql.rstrip().rstrip(';')}"
                run_interruptibly(partial(connection.execute, create), connection.interrupt)
            with closing(_open_database(library, folder, copying)) as connection:
                sandbox(connection)
                yield SqlResult(storage, entry, connection)
        except (library.Error, pa.ArrowException) as error:
            raise InvalidArgumentError(
                f"cannot run {sql!r} over {entry.state}: {error_text(error)}; the state is the "
                f"table {VIEW}, with its stored columns"
            ) from error


def _memory_for_copy(state: KeyedState) -> int:
    """Return the memory that DuckDB needs to store rows of a state, or to read them."""
    return _LEAST_COPYING_BYTES + _COLUMN_BYTES * sum(
        len(leaf_columns(pa.array([], field.type))) for field in arrow_schema(state.schema)
    )


def _open_database(library: Any, folder: Path, most_bytes: int) -> Any:
    """Open a database in a folder; it spills data there that does not fit in memory."""
    # Choosing a compression for each column takes longer than writing the columns.
    config = {"memory_limit": f"{most_bytes}B", "force_compression": "uncompressed"}
    return library.connect(str(folder / "state.duckdb"), config=config)


def _refuse_other_statements(library: Any, connection: Any, sql: str) -> None:
    if not is_select(library, connection, sql):
        raise InvalidArgumentError(
            f"{sql!r} is not a single SELECT: pass a query whose result is the new content of "
            f"the state, for example SELECT * FROM {VIEW} WHERE …"
        )


def _load(connection: Any, storage: Storage, entry: KeyedEntry) -> None:
    """Copy the state, including its changes, into the database, without key groups."""
    reads = reads_of(entry, KeyGroupRange.every(entry.state.max_parallelism))
    schema = arrow_schema(entry.state.schema)
    batches = read_state(storage, entry, reads, verify=True)
    _insert_all(connection, VIEW, schema, (batch.select(schema.names) for batch in batches))


def _insert_all(
    connection: Any, table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> None:
    connection.register("statestore_rows", schema.empty_table())
    connection.execute(f"CREATE TABLE {table} AS SELECT * FROM statestore_rows")
    connection.unregister("statestore_rows")
    for batch in copy_slices(batches):
        connection.register("statestore_rows", pa.Table.from_batches([batch]))
        connection.execute(f"INSERT INTO {table} SELECT * FROM statestore_rows")
        connection.unregister("statestore_rows")


@dataclass(frozen=True)
class SqlResult:
    """The result of an expression over a state, in a database."""

    storage: Storage
    entry: KeyedEntry
    connection: Any

    @property
    def rows_before(self) -> int:
        """The number of rows of the state."""
        return self._count(VIEW)

    @property
    def rows(self) -> int:
        """The number of rows of the result."""
        return self._count(_ANSWER)

    def _count(self, table: str) -> int:
        [(rows,)] = self.connection.sql(f"SELECT count(*) FROM {table}").fetchall()
        return int(rows)

    def rewrite(self, write: Write, memory_bytes: int) -> EditResult:
        """Write the files of the key groups that the result changes; return the new state.

        Rows are sorted in ``memory_bytes``. The result must have the state's columns, in any order,
        with types that can be stored without loss as the state's types. Raises SchemaMismatchError,
        NullKeyError or DuplicateKeyError, and CorruptionError for a damaged file.
        """
        state = self.entry.state
        comparison = BaseComparison(self.storage, self.entry, memory_bytes=memory_bytes)
        every, changes = KeyGroupRange.every(state.max_parallelism), RowChanges(state)
        counts = np.zeros(state.max_parallelism, np.int64)

        def counted(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
            for piece in pieces:
                np.add.at(counts, np.asarray(piece.column(KEY_GROUP)), 1)
                yield piece

        new = counted(sorted_pieces(self._batches(), state, comparison.sort_bytes))
        for pair in comparison.pairs(new, every, ObservedRows()):
            changes.add(*pair)
        # Adjacent files are written in one pass.
        spans = merge_ranges(owning_spans(self.entry, changes.groups))
        edited = rewrite_spans(self.entry, self._rows_of(spans, memory_bytes), write)
        copied = edited.entry.rows - sum(handle.rows for handle in edited.new)
        written = sum(int(counts[span.first : span.last + 1].sum()) for span in spans)
        return EditResult(
            edited,
            tuple(sorted(changes.groups)),
            copied + written,
            changes.removed,
            changes.added + changes.changed,
            tuple(changes.examples),
        )

    def _rows_of(
        self, spans: Sequence[KeyGroupRange], memory_bytes: int
    ) -> Iterator[tuple[KeyGroupRange, Iterator[pa.Table]]]:
        """Yield each range of key groups with its rows, as ascending pieces, one after another."""
        wanted = np.zeros(self.entry.state.max_parallelism, np.bool_)
        for span in spans:
            wanted[span.first : span.last + 1] = True
        batches = (
            batch.filter(pa.array(wanted[np.asarray(batch.column(KEY_GROUP))]))
            for batch in (self._batches() if spans else ())
        )
        pieces = sorted_pieces(batches, self.entry.state, memory_bytes)
        parts = groupby(_cut(pieces, spans), lambda part: part[0])
        following = next(parts, None)
        for place, span in enumerate(spans):
            if following is None or following[0] != place:  # all rows of the range are removed
                yield span, iter(())
                continue
            yield span, (rows for _, rows in following[1])
            following = next(parts, None)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the result with their key groups.

        Raises SchemaMismatchError, or after the last row NullKeyError with the number of null keys.
        """
        answer = self.connection.sql(f"SELECT * FROM {_ANSWER}").to_arrow_reader(_BATCH_ROWS)
        state = self.entry.state
        _refuse_other_columns(answer.schema, state)
        nulls = NullKeys(state)
        schema = restored_schema(state.schema)
        first_row = 0
        for batch in answer:
            rows = _fit_columns(batch, state, first_row)
            first_row += len(batch)
            if nulls.add(rows):
                continue
            groups = pa.array(key_groups_of(rows, state), pa.int32())
            yield pa.RecordBatch.from_arrays([groups, *rows.columns], schema=schema)
        nulls.refuse()


def _refuse_other_columns(schema: pa.Schema, state: KeyedState) -> None:
    if sorted(schema.names) != sorted(state.schema.names):
        raise SchemaMismatchError(
            f"{state} has the columns ({state.schema}), but the result has "
            f"({', '.join(schema.names)}); select each of the state's columns once"
        )


def _fit_columns(batch: pa.RecordBatch, state: KeyedState, first_row: int) -> pa.RecordBatch:
    """Convert rows of the result to the state's columns; the rows are counted from ``first_row``.

    A float that may have been rounded does not become an integer or a decimal.
    """
    subject, answer = f"the result for {state}", pa.Table.from_batches([batch])
    stored = arrow_schema(state.schema)
    try:
        table = fit_table(answer, state.schema, subject, nearest=False, first_row=first_row)
    except InvalidArgumentError as error:
        raise SchemaMismatchError(
            f"{state} has the columns ({state.schema}), but the result cannot be stored in "
            f"them: {error}; cast it in the query"
        ) from error

    def refuse_inexact(field: pa.Field) -> None:
        column = answer.column(field.name)
        refuse_rounded(column, field, subject, _EXACTLY, first_row=first_row)

    with mismatch_of_values():
        for_each_column(stored, refuse_inexact, subject)
    [rows] = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    return rows


def _cut(
    pieces: Iterable[pa.Table], spans: Sequence[KeyGroupRange]
) -> Iterator[tuple[int, pa.Table]]:
    """Divide pieces at the ends of the ranges; yield each part with the number of its range."""
    starts = np.array([span.first for span in spans])
    for piece in pieces:
        places = np.searchsorted(starts, np.asarray(piece.column(KEY_GROUP)), "right") - 1
        cuts = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), piece.num_rows]
        for first, stop in pairwise(cuts):
            yield int(places[first]), piece.slice(first, stop - first)
