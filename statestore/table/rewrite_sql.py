"""A keyed state rewritten by an SQL expression over it, in DuckDB where that is installed.

The state is copied into a database on the local disk, which also holds the answer; both are there
until the files are written, and only pieces of them in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.files.keyed import KeyedTarget, write_runs
from statestore.files.merge import read_reads
from statestore.files.reader import restored_schema
from statestore.files.runs import checked, null_key_error, null_keys, runs_of
from statestore.files.types import arrow_schema
from statestore.files.values import fitted_table
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.schema import names_with_nul
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.arrow import key_groups
from statestore.keys.groups import KeyGroupRange
from statestore.restore.dataset import SETTINGS, duckdb, said, unsliced
from statestore.storage import Storage

__all__ = ["VIEW", "rewrite_by_sql"]

VIEW = "state"
"""What the state is called in the expression."""

_ANSWER, _GROUPED = "statestore_answer", "statestore_grouped"
_BATCH_ROWS = 16_384


def rewrite_by_sql(
    storage: Storage, entry: KeyedEntry, sql: str, target: KeyedTarget | None
) -> tuple[tuple[KeyedStateHandle, ...], int]:
    """Return the files that hold the answer, and its rows; without a target nothing is written.

    The answer has the state's columns, in any order, of types that can be stored as the state's
    without a loss. Raises MissingDependencyError without DuckDB, InvalidArgumentError for what is
    no SELECT or cannot be run, SchemaMismatchError, NullKeyError or DuplicateKeyError, and
    CorruptionError when a file is not what was written.
    """
    for name in names_with_nul(entry.state.schema):
        raise InvalidArgumentError(
            f"{entry.state} has a column or field {name!r}, which DuckDB would cut at the NUL "
            "character: edit it by keys or rows instead"
        )
    library = duckdb()
    with tempfile.TemporaryDirectory(prefix="statestore-sql-") as folder:
        try:
            with closing(library.connect(str(Path(folder, "state.duckdb")))) as connection:
                _refuse_other_statements(library, connection, sql)
                _load(connection, storage, entry)
                connection.execute(f"CREATE TABLE {_ANSWER} AS {sql.rstrip().rstrip(';')}")
                runs = runs_of(_in_order(connection, entry.state))
                if target is not None:
                    handles = write_runs(runs, target)
                    return handles, sum(handle.rows for handle in handles)
                return (), sum(rows.num_rows for rows in checked(runs, entry.state))
        except (library.Error, pa.ArrowException) as error:
            raise InvalidArgumentError(
                f"{sql!r} cannot be run over {entry.state}: {said(error)}; the state is the table "
                f"{VIEW}, with its stored columns"
            ) from error


def _refuse_other_statements(library: Any, connection: Any, sql: str) -> None:
    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != library.StatementType.SELECT:
        raise InvalidArgumentError(
            f"{sql!r} is not one SELECT: give an expression whose answer is the state's new "
            f"content, such as SELECT * FROM {VIEW} WHERE …"
        )


def _load(connection: Any, storage: Storage, entry: KeyedEntry) -> None:
    """Copy the state, with its changes, into the database, without its key groups."""
    reads = reads_of(entry, KeyGroupRange(0, entry.state.max_parallelism - 1))
    schema = arrow_schema(entry.state.schema)
    batches = (
        batch.select(schema.names) for batch in read_reads(storage, entry, reads, verify=True)
    )
    _insert_all(connection, VIEW, schema, batches)
    for setting in SETTINGS:
        connection.execute(setting)


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


def _in_order(connection: Any, state: KeyedState) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the answer in order of key group."""
    answer = _reader(connection.cursor(), f"SELECT * FROM {_ANSWER}")
    _refuse_other_columns(answer.schema, state)
    grouped = (_grouped(batch, state) for batch in answer)
    _insert_all(connection, _GROUPED, restored_schema(state.schema), grouped)
    for batch in _reader(connection, f"SELECT * FROM {_GROUPED} ORDER BY {KEY_GROUP}"):
        yield batch.cast(restored_schema(state.schema))


def _reader(connection: Any, query: str) -> Any:
    """Return the answer as a stream of batches."""
    return connection.sql(query).to_arrow_reader(_BATCH_ROWS)


def _refuse_other_columns(found: pa.Schema, state: KeyedState) -> None:
    if sorted(found.names) != sorted(state.schema.names):
        raise SchemaMismatchError(
            f"{state} has the columns ({state.schema}), and the answer has "
            f"({', '.join(found.names)}); select the state's columns, each once"
        )


def _grouped(batch: pa.RecordBatch, state: KeyedState) -> pa.RecordBatch:
    subject = f"the answer for {state}"
    try:
        table = fitted_table(pa.Table.from_batches([batch]), state.schema, subject, nearest=False)
    except InvalidArgumentError as error:
        raise SchemaMismatchError(
            f"{state} has the columns ({state.schema}), and the answer cannot be stored so: "
            f"{error}; cast it in the expression, as what it is meant to be"
        ) from error
    [rows] = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
    nulls = null_keys(rows, state)
    if nulls:
        raise null_key_error(state, nulls)
    groups = key_groups(
        [rows.column(name) for name in state.key],
        max_parallelism=state.max_parallelism,
        hash_scheme=state.hash_scheme,
        key_types=state.key_types,
    )
    return pa.RecordBatch.from_arrays(
        [pa.array(groups, pa.int32()), *rows.columns], schema=restored_schema(state.schema)
    )
