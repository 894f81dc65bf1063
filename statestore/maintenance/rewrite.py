"""Apply edits to a keyed state by rewriting only the files of the changed key groups.

Each of these files is merged with the new rows, a piece at a time
(:mod:`statestore.layers.aligned_streams`). Rows of its other key groups are copied. The new
checkpoint names all other files again. The SHA-256 of a file is checked before it is read, so that
damage is not copied.

If the state has layers of changes, they are merged into the rewritten files, and are no longer
applied to these key groups.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.handles import KeyedStateHandle
from statestore.format.layers import MARK, live_without, widened_spans
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.schema import names_with_nul
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.aligned_streams import aligned
from statestore.layers.merge import read_pieces, read_state
from statestore.parquet.keyed_writer import KeyedTarget, write_pieces
from statestore.parquet.reader import restored_schema
from statestore.parquet.uncommitted_files import UncommittedFiles
from statestore.restore.duck import duckdb, said, shut_in, unsliced
from statestore.restore.lookup import key_batch, key_group_of
from statestore.rows.column_types import arrow_schema, uuid_columns, with_uuids
from statestore.rows.delete_markers import are_changes, clear_deletes
from statestore.rows.equality import leaf_columns, matching_positions
from statestore.rows.key_group_runs import check_and_sort, key_groups_of, null_key_error, null_keys
from statestore.rows.python_values import fit_table, table_of_dicts
from statestore.rows.sorting import MEMORY_BYTES, sorted_pieces
from statestore.storage import Storage
from statestore.storage.temporary import temporary_folder

__all__ = [
    "VIEW",
    "EditChanges",
    "Rewritten",
    "changes_of",
    "rewrite",
    "rewrite_by_sql",
]


@dataclass(frozen=True)
class EditChanges:
    """The changes to some key groups: keys whose rows are deleted, and rows to put, by key group.

    A new row replaces the row with the same key, namespace and entry columns. Deletes are applied
    first.
    """

    deleted: Mapping[int, tuple[pa.RecordBatch, ...]]
    put: Mapping[int, pa.Table]

    @property
    def groups(self) -> tuple[int, ...]:
        """The changed key groups, ascending."""
        return tuple(sorted({*self.deleted, *self.put}))


@dataclass(frozen=True)
class Rewritten:
    """A state after the changes; ``new`` are the files that were written for it.

    ``replaced`` are the files that it no longer names, or without a target would no longer name.
    ``removed`` counts the rows deleted with their key, and ``added`` the new and replaced rows.
    ``rows`` counts the rows in its files, as :attr:`KeyedEntry.rows`, even without a target.
    """

    entry: KeyedEntry
    new: tuple[KeyedStateHandle, ...]
    replaced: tuple[KeyedStateHandle, ...]
    groups: tuple[int, ...]
    removed: int
    added: int
    rows: int


def changes_of(
    state: KeyedState, delete: Iterable[Any], put: Sequence[Mapping[str, Any]]
) -> EditChanges:
    """Return these keys and rows as changes by key group.

    Raises InvalidArgumentError for a key or value that does not fit, SchemaMismatchError for an
    unknown column, or NullKeyError.
    """
    deleted: dict[int, tuple[pa.RecordBatch, ...]] = {}
    for key in delete:
        batch = key_batch(state, key)
        group = key_group_of(state, batch)
        deleted[group] = (*deleted.get(group, ()), batch)
    if not put:
        return EditChanges(deleted, {})
    put = with_uuids(put, uuid_columns(state))
    rows = table_of_dicts(put, state.schema, subject=str(state)).combine_chunks()
    nulls = sum(null_keys(batch, state) for batch in rows.to_batches())
    if nulls:
        raise null_key_error(state, nulls)
    groups = key_groups_of(rows, state)
    rows = rows.add_column(0, restored_schema(state.schema).field(0), pa.array(groups, pa.int32()))
    changed = {int(group) for group in groups}
    return EditChanges(
        deleted, {group: rows.filter(pa.array(groups == group)) for group in changed}
    )


def rewrite(
    storage: Storage, entry: KeyedEntry, changes: EditChanges, target: KeyedTarget | None
) -> Rewritten:
    """Apply the changes to the state, and write the changed files to ``target``.

    Without a target, everything is read and checked, but nothing is written, and the entry is
    returned unchanged.

    Raises MissingFileError or DamagedFileError for a missing or damaged file, DuplicateKeyError,
    InvalidArgumentError or StorageError; in that case the written files are deleted.
    """
    work = _Rewriter(storage, entry, changes, target)
    try:
        return work.run()
    except BaseException as error:
        if target is not None:
            written = UncommittedFiles(target.storage)
            written.add(target.folder, work.new)
            written.delete(error)
        raise


def _memory_bytes(target: KeyedTarget | None) -> int:
    """Return the memory limit for sorting rows."""
    return MEMORY_BYTES if target is None else target.options.memory_bytes


class _Rewriter:
    """Processes the files of a state in order: each is named again or rewritten."""

    def __init__(
        self, storage: Storage, entry: KeyedEntry, changes: EditChanges, target: KeyedTarget | None
    ) -> None:
        self._storage, self._entry, self._changes = storage, entry, changes
        self._target = target
        self._memory_bytes = _memory_bytes(target)
        self.new: list[KeyedStateHandle] = []
        self._removed = self._added = 0

    def run(self) -> Rewritten:
        """Rewrite the changed files, in order."""
        entry, target = self._entry, self._target
        replaced: list[KeyedStateHandle] = []
        spans: list[KeyGroupRange] = []
        rows = 0
        for handle, span, groups in self._by_file():
            pieces = self._changed_rows(span, groups)
            if target is None:
                rows += sum(piece.num_rows for piece in check_and_sort(pieces, entry.state))
            else:
                self.new += write_pieces(pieces, target)
            spans.append(span)
            if handle is not None:
                replaced.append(handle)
        stay = {*entry.handles}.difference(replaced)
        layers = [
            remaining
            for remaining in (live_without(layer, spans) for layer in entry.layers)
            if remaining
        ]
        rows += sum(handle.rows for handle in (*stay, *self.new))
        rows += sum(layer.entry.rows for layer in layers)
        if target is not None:
            handles = sorted((*stay, *self.new), key=lambda handle: handle.key_groups.first)
            entry = replace(entry, handles=tuple(handles), layers=tuple(layers))
        if entry.layers != self._entry.layers:  # no table version has these files
            entry = replace(entry, table=entry.table.without_version())
        new, groups = tuple(self.new), self._changes.groups
        return Rewritten(entry, new, tuple(replaced), groups, self._removed, self._added, rows)

    def _by_file(
        self,
    ) -> Iterator[tuple[KeyedStateHandle | None, KeyGroupRange, tuple[int, ...]]]:
        """Yield each file with changed key groups, then each changed key group that has no file.

        A key group within the range of a file with several key groups belongs to that file, with or
        without rows. In a state with layers every key group belongs to a file, unless the base has
        none at all.
        """
        entry, groups = self._entry, self._changes.groups
        spans = [handle.key_groups for handle in entry.handles]
        handles: list[KeyedStateHandle | None] = [*entry.handles]
        if entry.layers:
            spans, handles = [*widened_spans(entry)], handles or [None]
        owned: set[int] = set()
        for handle, span in zip(handles, spans, strict=True):
            mine = tuple(group for group in groups if group in span)
            if mine:
                owned.update(mine)
                yield handle, span, mine
        for group in groups:
            if group not in owned and group in self._changes.put:
                yield None, KeyGroupRange(group, group), (group,)

    def _changed_rows(self, span: KeyGroupRange, groups: tuple[int, ...]) -> Iterator[pa.Table]:
        """Yield the rows of a file with the changes applied, in ascending pieces."""
        state = self._entry.state
        put = [self._changes.put[group] for group in groups if group in self._changes.put]
        self._added += sum(rows.num_rows for rows in put)
        streams = [
            self._unchanged_rows(span, groups),
            sorted_pieces(put, state, self._memory_bytes),
        ]
        # A delete and a new row of the same entry differ only in their marker.
        names = [name for name in state.identity if name != MARK]
        for piece in aligned(streams, names):
            rows = pa.concat_tables([rows for rows in piece.rows if rows is not None])
            yield clear_deletes(rows) if are_changes(state) else rows

    def _unchanged_rows(self, span: KeyGroupRange, groups: tuple[int, ...]) -> Iterator[pa.Table]:
        """Yield the stored rows of a file that are neither deleted nor replaced, sorted."""
        state, changes = self._entry.state, self._changes
        gone = [batch for group in groups for batch in changes.deleted.get(group, ())]
        keys = pa.Table.from_batches(gone) if gone else None
        put = [changes.put[group] for group in groups if group in changes.put]
        identities = pa.concat_tables(put).select(state.identity) if put else None
        for rows in read_pieces(self._storage, self._entry, reads_of(self._entry, span)):
            found_groups = np.asarray(rows.column(KEY_GROUP))
            first = bisect_left(groups, found_groups[0])
            if first == len(groups) or groups[first] > found_groups[-1]:
                yield rows
                continue
            if keys is not None:
                kept = _remove_rows(rows, state.key, keys)
                self._removed += rows.num_rows - kept.num_rows
                rows = kept
            yield rows if identities is None else _remove_rows(rows, state.identity, identities)


def _remove_rows(rows: pa.Table, names: Sequence[str], gone: pa.Table) -> pa.Table:
    """Return the rows without the ones that have these values in these columns."""
    places, _ = matching_positions(rows.select(names), gone.select(names))
    if not len(places):
        return rows
    kept = np.ones(rows.num_rows, np.bool_)
    kept[places] = False
    return rows.filter(pa.array(kept))


# Rewrites a keyed state with an SQL expression, in DuckDB if it is installed.
#
# The state is copied into a database on the local disk, which also stores the result. Both stay
# there until the files are written, and only pieces of them are in memory.


VIEW = "state"
"""What the state is called in the expression."""

_ANSWER = "statestore_answer"
_BATCH_ROWS = 2048
"""As many as DuckDB handles at a time: rows may be large."""
_LEAST_SQL_BYTES = 256 * 2**20
"""With less memory, DuckDB refuses statements that need hardly any."""
_LEAST_COPYING_BYTES = 64 * 2**20
_COLUMN_BYTES = 2**20
"""DuckDB holds several blocks of each column while it writes a table."""


def rewrite_by_sql(
    storage: Storage, entry: KeyedEntry, sql: str, target: KeyedTarget | None
) -> tuple[tuple[KeyedStateHandle, ...], int]:
    """Write the files of the SQL result, and return them with the number of rows.

    Without a target nothing is written. The result must have the state's columns, in any order,
    with types that can be stored without loss as the state's types. Raises MissingDependencyError
    without DuckDB, InvalidArgumentError if ``sql`` is not a SELECT or fails, SchemaMismatchError,
    NullKeyError or DuplicateKeyError, and CorruptionError for a damaged file.
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
            copying = _copying_bytes(entry.state)
            running = max(_memory_bytes(target), _LEAST_SQL_BYTES, copying)
            with closing(_open_database(library, folder, copying)) as connection:
                _refuse_other_statements(library, connection, sql)
                _load(connection, storage, entry)
            with closing(_open_database(library, folder, running)) as connection:
                shut_in(connection)
                connection.execute(f"CREATE TABLE {_ANSWER} AS {sql.rstrip().rstrip(';')}")
            with closing(_open_database(library, folder, copying)) as connection:
                shut_in(connection)
                answer = _result_batches(connection, entry.state)
                pieces = sorted_pieces(answer, entry.state, _memory_bytes(target))
                if target is not None:
                    handles = write_pieces(pieces, target)
                    return handles, sum(handle.rows for handle in handles)
                return (), sum(piece.num_rows for piece in check_and_sort(pieces, entry.state))
        except (library.Error, pa.ArrowException) as error:
            raise InvalidArgumentError(
                f"cannot run {sql!r} over {entry.state}: {said(error)}; the state is the "
                f"table {VIEW}, with its stored columns"
            ) from error


def _copying_bytes(state: KeyedState) -> int:
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
    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != library.StatementType.SELECT:
        raise InvalidArgumentError(
            f"{sql!r} is not a single SELECT: pass a query whose result is the new content of "
            f"the state, for example SELECT * FROM {VIEW} WHERE …"
        )


def _load(connection: Any, storage: Storage, entry: KeyedEntry) -> None:
    """Copy the state, including its changes, into the database, without key groups."""
    reads = reads_of(entry, KeyGroupRange.every(entry.state.max_parallelism))
    schema = arrow_schema(entry.state.schema)
    batches = (
        batch.select(schema.names) for batch in read_state(storage, entry, reads, verify=True)
    )
    _insert_all(connection, VIEW, schema, batches)


def _insert_all(
    connection: Any, table: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> None:
    connection.register("statestore_rows", schema.empty_table())
    connection.execute(f"CREATE TABLE {table} AS SELECT * FROM statestore_rows")
    connection.unregister("statestore_rows")
    for batch in unsliced(batches):
        connection.register("statestore_rows", pa.Table.from_batches([batch]))
        connection.execute(f"INSERT INTO {table} SELECT * FROM statestore_rows")
        connection.unregister("statestore_rows")


def _result_batches(connection: Any, state: KeyedState) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the result with their key groups.

    Raises SchemaMismatchError, or after the last row NullKeyError with the number of null keys.
    """
    answer = connection.sql(f"SELECT * FROM {_ANSWER}").to_arrow_reader(_BATCH_ROWS)
    _refuse_other_columns(answer.schema, state)
    nulls = 0
    for batch in answer:
        rows = _fit_columns(batch, state)
        nulls += null_keys(rows, state)
        if nulls:
            continue
        groups = pa.array(key_groups_of(rows, state), pa.int32())
        schema = restored_schema(state.schema)
        yield pa.RecordBatch.from_arrays([groups, *rows.columns], schema=schema)
    if nulls:
        raise null_key_error(state, nulls)


def _refuse_other_columns(schema: pa.Schema, state: KeyedState) -> None:
    if sorted(schema.names) != sorted(state.schema.names):
        raise SchemaMismatchError(
            f"{state} has the columns ({state.schema}), but the result has "
            f"({', '.join(schema.names)}); select each of the state's columns once"
        )


def _fit_columns(batch: pa.RecordBatch, state: KeyedState) -> pa.RecordBatch:
    """Convert rows of the result to the state's columns."""
    subject = f"the result for {state}"
    try:
        table = fit_table(pa.Table.from_batches([batch]), state.schema, subject, nearest=False)
    except InvalidArgumentError as error:
        raise SchemaMismatchError(
            f"{state} has the columns ({state.schema}), but the result cannot be stored in "
            f"them: {error}; cast it in the query"
        ) from error
    [rows] = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    return rows
