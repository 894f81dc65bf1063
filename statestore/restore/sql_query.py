"""SQL over the states of a checkpoint with DuckDB, without Spark and without copying the data.

Each state is a view: its operator's uid is the schema, its name is the view. DuckDB scans the
state's files through Arrow, and pushes down the needed columns and its filters. So other columns,
other key groups and row groups without matching rows are not read.

A statement must be read-only: one ``SELECT`` (or ``EXPLAIN``, ``DESCRIBE``). ``SHOW TABLES`` lists
the operators and states. DuckDB runs in memory,
with ``enable_external_access`` off and a locked configuration. So a statement reads no file and no
URL, attaches no database, loads no extension, accesses no variable of the program, and writes
nothing to disk. A query that does not fit into memory fails.
"""

from __future__ import annotations

import atexit
import importlib
import re
import threading
import weakref
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from statestore.catalog.catalog import Checkpoint
from statestore.errors import InvalidArgumentError, QueryStoppedError, StateStoreError
from statestore.format.manifest import Entry, KeyedEntry, Manifest, name_of
from statestore.format.schema import names_with_nul
from statestore.format.state import clock_ms
from statestore.keys.arrow_types import arrow_type_text
from statestore.parquet.operator_elements import stored_schema
from statestore.parquet.reader import restored_schema
from statestore.restore.byte_sizes import bytes_of
from statestore.restore.duck import (
    QueryWatch,
    duckdb,
    error_place,
    error_text,
    quote_identifier,
    sandbox,
    with_arrow_types,
)
from statestore.rows.dataframes import RowStream

_MAIN = "main"
# Schemas that exist in DuckDB, except ``main``, which contains the short names.
_TAKEN = ("information_schema", "pg_catalog", "temp", "system")
_MOST_NAMED = 10
_SHOW_TABLES = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.IGNORECASE)

# DuckDB's threads read rows through Python, so they must end before Python does.
_OPEN: weakref.WeakSet[Generator[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for batches in [*_OPEN]:
        batches.close()


@dataclass(frozen=True)
class View:
    """A state as a view: ``schema``.``name``, and also ``name`` alone if ``is_short`` is true."""

    schema: str
    name: str
    is_short: bool
    entry: Entry

    @property
    def columns_text(self) -> str:
        """Its columns and their types, in the notation of ``show``."""
        return ", ".join(f"{field.name} {arrow_type_text(field.type)}" for field in self.columns)

    @property
    def columns(self) -> pa.Schema:
        """Its columns and their Arrow types.

        They are the stored columns, preceded by ``key_group`` for keyed state, or by ``subtask``
        and ``position`` for operator state.
        """
        if isinstance(self.entry, KeyedEntry):
            return restored_schema(self.entry.state.schema)
        return stored_schema(self.entry.state.schema)

    @property
    def sql(self) -> str:
        """The shortest quoted name that a query can use."""
        name = quote_identifier(self.name)
        return name if self.is_short else f"{quote_identifier(self.schema)}.{name}"


def views_of(manifest: Manifest) -> tuple[View, ...]:
    """Return the views of a checkpoint, sorted by operator.

    A state has a short name if no other state has the same name. DuckDB's names are
    case-insensitive. If a name is taken, or reserved by DuckDB, ``_2``, ``_3``, … is appended.
    """
    names = [entry.state.name.lower() for entry in manifest.entries]
    schemas: dict[str, str] = {}
    for uid in manifest.uids:
        schemas[uid] = _unused_name(uid, {*_TAKEN, *map(str.lower, schemas.values())})
    used_names: dict[str, set[str]] = {schema.lower(): set() for schema in schemas.values()}
    views = []
    for entry in sorted(manifest.entries, key=lambda entry: entry.state.uid):
        schema = schemas[entry.state.uid]
        name = _unused_name(entry.state.name, used_names[schema.lower()])
        used_names[schema.lower()].add(name.lower())
        unique = names.count(name.lower()) == 1
        views.append(View(schema, name, unique or schema.lower() == _MAIN, entry))
    return tuple(views)


def query(
    checkpoint: Checkpoint,
    sql: str,
    *,
    now_ms: int | None = None,
    verify: bool = False,
    time_limit_s: float | None = None,
    memory_limit: int | str | None = None,
    cancelled: threading.Event | None = None,
) -> RowStream:
    """Return the answer to one statement over the views of a checkpoint, as a stream.

    Views omit the rows that expired by ``now_ms`` (default: this machine's clock) if the state
    hides them. With ``verify`` the SHA-256 of each file is checked before its first row is read. A
    stream that is not read to its end is closed when it is deleted, or when the program ends.
    Values that Arrow cannot represent exactly, such as TIMETZ and INTERVAL, are returned as text.

    The query stops ``time_limit_s`` seconds after this call, if DuckDB needs more than
    ``memory_limit``, or soon after another thread sets ``cancelled``.

    Raises:
        MissingDependencyError: DuckDB is not installed.
        InvalidArgumentError: A limit is invalid, the statement is not one query, or DuckDB cannot
            answer it. Also raised while the answer is read.
        QueryStoppedError: The query exceeded a limit, or it was cancelled. Also raised while the
            answer is read.
        MissingFileError, DamagedFileError or StorageError: A file cannot be read. Also raised while
            the answer is read.
    """
    limits = _limits(time_limit_s, memory_limit, cancelled)
    library = duckdb()
    # Arrow's datasets import pandas, which is not needed otherwise.
    dataset = importlib.import_module("statestore.restore.dataset")
    rows = dataset.StateRows(checkpoint.storage, clock_ms(now_ms), verify)
    running = _Query(library, dataset.dataset_of, rows, views_of(checkpoint.manifest))
    batches = running.batches(sql, *limits)
    _OPEN.add(batches)
    schema = next(batches)
    return RowStream(pa.RecordBatchReader.from_batches(schema, batches))


def _limits(
    time_limit_s: float | None = None,
    memory_limit: int | str | None = None,
    cancelled: threading.Event | None = None,
) -> tuple[QueryWatch, int | None]:
    """Return the watch of a query, which begins now, and its memory limit in bytes."""
    if time_limit_s is not None and not time_limit_s > 0:
        raise InvalidArgumentError(
            f"a time limit must be more than 0 seconds, not {time_limit_s!r:.80}"
        )
    limit_bytes = None if memory_limit is None else bytes_of(memory_limit)
    return QueryWatch(time_limit_s, cancelled), limit_bytes


def check_predicate(checkpoint: Checkpoint, entry: Entry, predicate: str, **options: Any) -> None:
    """Refuse a text that is not a predicate over the columns of a state. No file is read.

    ``options`` are those of :func:`query`.

    Raises:
        MissingDependencyError: DuckDB is not installed.
        InvalidArgumentError: DuckDB cannot evaluate it for a row, or it is not BOOLEAN. Notes
            quote the place, and name the columns. Also raised for an invalid option.
    """
    limits = _limits(**options)
    library = duckdb()
    try:
        library.SQLExpression(predicate)
    except library.Error as error:
        raise InvalidArgumentError(
            f"the predicate {predicate!r:.200} is not an SQL expression, such as amount < 0: "
            f"{error_text(error)}"
        ) from error
    views = views_of(checkpoint.manifest)
    view = _view_of(views, entry)
    rows = importlib.import_module("statestore.restore.dataset").StateRows(checkpoint.storage)
    running = _Query(library, lambda rows, state, columns: columns.empty_table(), rows, views)
    # The predicate is in the first line, because errors quote its place.
    sql = f'SELECT ({predicate}\n) AS "the predicate" FROM {view.sql} WHERE "the predicate"'
    try:
        with closing(running.batches(sql, *limits)) as batches:
            [field] = next(batches)
    except InvalidArgumentError as error:
        error.add_note(
            f"In checkpoint {checkpoint.checkpoint_id} the columns of {entry.state} are "
            f"{view.columns_text}."
        )
        raise
    if not pa.types.is_boolean(field.type):
        raise InvalidArgumentError(
            f"the predicate {predicate!r:.200} is of the Arrow type {field.type} instead of bool; "
            "compare the value, for example amount < 0"
        )


def any_row(checkpoint: Checkpoint, entry: Entry, predicate: str, **options: Any) -> bool:
    """Return whether a predicate holds for a row of a state. It stops reading at the first one.

    ``options`` and errors are those of :func:`query`.
    """
    return bool(matching_rows(checkpoint, entry, predicate, ["true"], 1, **options).num_rows)


def matching_rows(
    checkpoint: Checkpoint,
    entry: Entry,
    predicate: str,
    expressions: Sequence[str],
    limit: int,
    **options: Any,
) -> pa.Table:
    """Return distinct values of expressions in the rows of a state for which a predicate holds.

    ``options`` and errors are those of :func:`query`.
    """
    view = _view_of(views_of(checkpoint.manifest), entry)
    sql = (
        f"SELECT DISTINCT * FROM (SELECT {', '.join(expressions)} FROM {view.sql} "
        f"WHERE ({predicate}\n) LIMIT {limit})"
    )
    return query(checkpoint, sql, **options).to_arrow()


def _view_of(views: Iterable[View], entry: Entry) -> View:
    return next(view for view in views if name_of(view.entry) == name_of(entry))


class _Query:
    """One in-memory DuckDB for one statement."""

    def __init__(self, library: Any, dataset_of: Any, rows: Any, views: tuple[View, ...]) -> None:
        self._duckdb, self._dataset_of, self._rows = library, dataset_of, rows
        self._place: str | None = None
        # DuckDB would confuse columns whose names contain NUL.
        self._views = tuple(v for v in views if not names_with_nul(v.entry.state.schema))
        self._cut = tuple(v for v in views if v not in self._views)

    def batches(self, sql: str, watch: QueryWatch, memory_limit: int | None) -> Generator[Any]:
        """Yield the schema of the answer, then its batches."""
        limits = {} if memory_limit is None else {"memory_limit": f"{memory_limit}B"}
        try:
            with (
                closing(self._duckdb.connect(":memory:", config=limits)) as connection,
                watch.watch(connection),
            ):
                if _SHOW_TABLES.fullmatch(sql):
                    tables = _table_of(self._views)
                    yield tables.schema
                    yield from tables.to_batches()
                    return
                self._make_views(connection)
                relation = self._relation(connection, sql)
                # Reading the schema runs the query up to its first rows.
                with pa.RecordBatchReader.from_stream(relation) as reader:
                    yield reader.schema
                    for batch in reader:
                        if watch.problem is not None:
                            raise watch.problem
                        yield batch
        except (self._duckdb.Error, pa.ArrowException, OSError) as error:
            raise watch.problem or self._translate_error(error) from error

    def _relation(self, connection: Any, sql: str) -> Any:
        try:
            return with_arrow_types(connection.sql(self._check_statement(connection, sql)))
        except self._duckdb.Error as error:
            self._place = error_place(self._duckdb, connection, sql, error)
            raise

    def _make_views(self, connection: Any) -> None:
        for number, view in enumerate(self._views):
            scanned = f"files of state {number}"
            connection.register(scanned, self._dataset_of(self._rows, view.entry, view.columns))
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(view.schema)}")
            names = {f"{quote_identifier(view.schema)}.{quote_identifier(view.name)}"}
            if view.is_short:
                names.add(f"{_MAIN}.{quote_identifier(view.name)}")
            for name in sorted(names):
                connection.execute(
                    f"CREATE VIEW IF NOT EXISTS {name} AS SELECT * FROM {quote_identifier(scanned)}"
                )
        connection.execute("SET temp_directory = ''")  # queries that exceed the memory fail
        sandbox(connection)

    def _check_statement(self, connection: Any, sql: str) -> str:
        statements = connection.extract_statements(sql)
        if len(statements) != 1:
            raise InvalidArgumentError(
                f"a query must be one statement, for example SELECT * FROM {self._example()}; "
                f"this text has {len(statements)}"
            )
        kinds = self._duckdb.StatementType
        if statements[0].type not in (kinds.SELECT, kinds.EXPLAIN):
            raise InvalidArgumentError(
                f"a query must be a SELECT, but this statement is {statements[0].type.name}. "
                "To change a state, take a new checkpoint"
            )
        return str(statements[0].query)

    def _translate_error(self, error: Exception) -> StateStoreError:
        """Return the error that the caller gets for an error of DuckDB or Arrow."""
        if self._rows.problem is not None:
            problem: StateStoreError = self._rows.problem
            return problem
        first = error_text(error)
        # Arrow converts DuckDB's errors to OSError, so only their text identifies them.
        if "Out of Memory Error" in first:
            return QueryStoppedError(
                f"the query exceeds its memory limit ({first.partition('; ')[0]}); read fewer "
                "rows or columns, or raise the limit (setting query_memory_bytes)"
            )
        if isinstance(error, self._duckdb.CatalogException) and "Table with name" in first:
            views = f"{self._known()}{self._unreadable_note()}"
            first = f"{first.partition('; ')[0]}; the views are {views}"
        invalid = InvalidArgumentError(f"DuckDB cannot run the query: {first}")
        if self._place is not None:
            invalid.add_note(self._place)
        return invalid

    def _unreadable_note(self) -> str:
        """Return a note about the states that queries cannot read because of NUL in a name."""
        return "".join(
            (
                f"; {view.entry.state} has a column or field {name!r} with a NUL character, at "
                "which DuckDB truncates names: restore the state instead"
            )
            for view in self._cut
            for name in names_with_nul(view.entry.state.schema)[:1]
        )

    def _known(self) -> str:
        names = [view.sql for view in self._views]
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return f"{', '.join(names[:_MOST_NAMED])}{more}" if names else "no state"

    def _example(self) -> str:
        return self._views[0].sql if self._views else "a state"


def _table_of(views: tuple[View, ...]) -> pa.Table:
    """Return the result of ``SHOW TABLES``: the operators and states, and their views."""
    return pa.table(
        {
            "operator": pa.array([view.entry.state.uid for view in views], pa.string()),
            "state": pa.array([view.entry.state.name for view in views], pa.string()),
            "view": pa.array([view.sql for view in views], pa.string()),
            "columns": pa.array([view.columns_text for view in views], pa.string()),
        }
    )


def _unused_name(name: str, used_names: set[str]) -> str:
    number, free = 1, name
    while free.lower() in used_names:
        number += 1
        free = f"{name}_{number}"
    return free
