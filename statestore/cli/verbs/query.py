"""``statestore query``: run SQL over the states of a checkpoint, or a shell for it.

The rows of the answer, and the views that SQL can use, are written as JSON and as text.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from statestore.catalog.catalog import Checkpoint
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, counted
from statestore.cli.options import (
    MOST_ROWS,
    complete_checkpoint,
    limit_option,
    time_limit,
)
from statestore.cli.output import (
    Column,
    Output,
    Page,
    page,
    progress_bar,
    report,
    value_text,
    write_rows,
)
from statestore.cli.summaries import rows_explanation, rows_text
from statestore.errors import StateStoreError
from statestore.extras import needs_extra
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import KeyedEntry
from statestore.restore.duck import run_interruptibly
from statestore.restore.row_files import RESULT_FORMATS, check_output_file, write_result
from statestore.restore.sql_query import View
from statestore.rows.python_values import display_values
from statestore.store import StateStore

__all__ = ["WrittenResult", "query_states"]


def answered(answer: Any, checkpoint: Checkpoint, url: str, limit: int | None) -> Answered:
    """Return the first rows of an answer; by default as many as a table shows."""
    rows, is_cut = _first(answer, MOST_ROWS if limit is None else limit)
    return Answered(
        store=url,
        checkpoint_id=checkpoint.checkpoint_id,
        columns=tuple(Column(column.name, str(column.type)) for column in answer.schema),
        rows=rows,
        is_cut=is_cut,
        left_out=checkpoint.manifest.left_out,
    )


def _first(answer: Any, limit: int) -> tuple[tuple[tuple[Any, ...], ...], bool]:
    """Return the first rows, and whether there are more; do not read the rest."""
    rows: list[tuple[Any, ...]] = []
    for batch in answer:
        columns = [display_values(column, of_duckdb=True) for column in batch.columns]
        rows.extend(zip(*columns, strict=True))
        if limit and len(rows) > limit:
            return tuple(rows[:limit]), True
    return tuple(rows), False


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The result of a query: its columns and rows; ``is_cut`` is True if there are more rows.

    ``left_out`` lists the source's state that the checkpoint omits; the result omits it too.
    """

    store: str
    checkpoint_id: int
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool
    left_out: tuple[LeftOutState, ...] = ()


def write_answer(page: Page, answered: Answered, hint: str = "--limit 0 shows all") -> None:
    """Write the first rows of an answer as text; ``hint`` says how to get the other rows."""
    names = [column.name for column in answered.columns]
    rows = [map(value_text, row) for row in answered.rows]
    write_rows(page, names, rows, is_cut=answered.is_cut, hint=hint)
    write_left_out(page, answered.left_out)


@dataclass(frozen=True, kw_only=True)
class ListedView:
    """A view. ``rows`` is None if the number is unknown until changes are read.

    ``file_rows`` is the number of rows in files, of which ``changed_rows`` are changes, as in
    ``list``.
    """

    view: str
    schema: str
    name: str
    operator: str
    state: str
    rows: int | None
    file_rows: int
    changed_rows: int
    columns: tuple[Column, ...]
    columns_text: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ListedViews:
    """The views that a query of a checkpoint can use."""

    store: str
    checkpoint_id: int
    views: tuple[ListedView, ...]
    left_out: tuple[LeftOutState, ...] = ()


def write_views(page: Page, listed: ListedViews) -> None:
    """Write the views as text."""
    names = ("operator", "state", "view", "rows", "columns")
    write_rows(page, names, [_view_row(view) for view in listed.views], right={"rows"})
    unknown = next((view for view in listed.views if view.rows is None), None)
    if unknown is not None:
        page.line(rows_explanation(unknown.file_rows, unknown.changed_rows))
    write_left_out(page, listed.left_out)


def _view_row(view: ListedView) -> tuple[str, ...]:
    rows = rows_text(view.file_rows, view.changed_rows)
    rows = rows if view.rows is None else count(view.rows)
    return view.operator, view.state, view.view, rows, view.columns_text


def listed_views(store: StateStore, checkpoint: Checkpoint) -> ListedViews:
    """Return the views of a checkpoint."""
    return ListedViews(
        store=store.url,
        checkpoint_id=checkpoint.checkpoint_id,
        views=tuple(map(_listed, store.views(checkpoint))),
        left_out=checkpoint.manifest.left_out,
    )


def _listed(view: View) -> ListedView:
    """Describe a view. Unless they were recorded, the rows of a state with changes are unknown."""
    entry = view.entry
    rows: int | None = entry.rows
    if isinstance(entry, KeyedEntry):
        rows = None if entry.contents is None else entry.contents.rows
    return ListedView(
        view=view.sql,
        schema=view.schema,
        name=view.name,
        operator=entry.state.uid,
        state=entry.state.name,
        rows=rows,
        file_rows=entry.rows,
        changed_rows=entry.changed_rows if isinstance(entry, KeyedEntry) else 0,
        columns=tuple(Column(column.name, str(column.type)) for column in view.columns),
        columns_text=view.columns_text,
    )


_HELP = """\
A statement ends with a semicolon, and can have several lines.
  .tables        list operators, states and views
  .checkpoint N  query another checkpoint or savepoint
  .help          print this text
  .quit          end the shell; so does Ctrl-D"""
_HINT = "'statestore query --limit 0' shows all"
_WORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN"),
    *("USING", "ON", "AS", "AND", "OR", "NOT", "IN", "IS NULL", "CASE", "WHEN", "THEN", "ELSE"),
    *("END", "count(*)", "sum", "avg", "min", "max", "DISTINCT", "WITH", "UNION ALL"),
    *("SHOW TABLES", "DESCRIBE"),
)


def run_shell(store: StateStore, checkpoint: str, **arguments: Any) -> None:
    """Run each statement of a terminal, or those of stdin until the first error.

    ``arguments`` are those of :meth:`StateStore.query` for every statement.
    """
    shell = _Shell(store, checkpoint, arguments)
    if not sys.stdin.isatty():
        for statement in _statements(sys.stdin):
            shell.run(statement)
        return
    for statement in _statements(_typed_lines(shell)):
        try:
            shell.run(statement)
        except (StateStoreError, click.UsageError) as error:
            report(error)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted\n")


class _Shell:
    """A session: the checkpoint that it queries, and the arguments of each query."""

    def __init__(self, store: StateStore, checkpoint: str, arguments: Mapping[str, Any]) -> None:
        self._store = store
        self._arguments = arguments
        self._use(checkpoint)

    @property
    def prompt(self) -> str:
        return f"checkpoint {self._queried.checkpoint_id}> "

    @property
    def views(self) -> tuple[View, ...]:
        return self._store.views(self._queried)

    def run(self, statement: str) -> None:
        """Run a statement, or a command that begins with a dot. Raises StateStoreError."""
        command, _, argument = statement.partition(" ")
        if not statement.startswith("."):
            self._query(statement)
        elif command == ".checkpoint" and argument.strip():
            self._use(argument.strip())
        elif command == ".tables":
            listed = listed_views(self._store, self._queried)
            write_views(page(), listed)
        elif command == ".help":
            sys.stdout.write(f"{_HELP}\n")
        else:
            raise click.UsageError(f"{command} is not a command of this shell; .help lists them")

    def _use(self, checkpoint: str) -> None:
        self._queried = self._store.checkpoint(checkpoint)

    def _query(self, sql: str) -> None:
        cancelled = threading.Event()

        def run() -> Any:
            with self._store.query(
                sql, self._queried, cancelled=cancelled, **self._arguments
            ) as answer:
                return answered(answer, self._queried, self._store.url, None)

        # The terminal can have another width now.
        write_answer(page(), run_interruptibly(run, cancelled.set), hint=_HINT)


def _statements(lines: Iterable[str]) -> Iterator[str]:
    """Yield statements up to a semicolon at the end of a line, and dot commands."""
    text = ""
    for line in lines:
        if not text and line.strip().startswith("."):
            if line.strip() == ".quit":
                return
            yield line.strip()
            continue
        text = f"{text}{line.rstrip()}\n" if text or line.strip() else ""
        if text.rstrip().endswith(";"):
            yield text.strip()
            text = ""
    if text.strip():
        yield text.strip()


def _typed_lines(shell: _Shell) -> Iterator[str]:
    """Yield what a person types, one statement or command at a time."""
    with needs_extra("query", "the SQL shell"):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory
        from prompt_toolkit.key_binding import KeyBindings

    folder = Path(click.get_app_dir("statestore"))
    folder.mkdir(parents=True, exist_ok=True)
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        """End the input after a semicolon or a command; otherwise begin another line."""
        buffer = event.current_buffer
        text = buffer.text.strip()
        if not text or text.endswith(";") or text.startswith("."):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    session: Any = PromptSession(
        history=FileHistory(str(folder / "sql_history")), key_bindings=keys, multiline=True
    )
    sys.stdout.write("SQL over the states of a checkpoint; .help lists commands\n")
    while True:
        completer = WordCompleter(_names(shell.views), ignore_case=True, WORD=True)
        try:
            yield session.prompt(shell.prompt, completer=completer)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def _names(views: Iterable[View]) -> list[str]:
    names = {name: None for view in views for name in (view.sql, *view.columns.names)}
    return [*names, *_WORDS, ".tables", ".checkpoint", ".help", ".quit"]


_TABLE = "table"
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}


@click.command(
    "query",
    cls=Verb,
    section="Look",
    prints=(
        'The rows of the result. Every state is a view named "operator uid"."state name", or '
        "the state's name if no other state has it; SHOW TABLES lists them. DuckDB runs the "
        "statement, which is one SELECT over the views. Without SQL, a shell runs one statement "
        "after another; without a terminal it reads them from stdin, until the first error. "
        "The settings query_time_limit and query_memory_bytes limit it. With the setting "
        "verify_files, each file's SHA-256 is checked."
    ),
    examples=(
        "statestore query 'SELECT count(*) FROM per_country' --store ./fraud",
        "statestore query 'SELECT * FROM \"totals-by-user\".totals LIMIT 5' --store ./fraud",
        "statestore query 'SELECT * FROM per_country' --to per_country.parquet --store ./fraud",
        "statestore query --tables --store ./fraud",
        "statestore query --checkpoint 1 --store ./fraud",
    ),
    modes={"--tables": (), "sql": ("--format", "--to", "--limit")},
)
@click.argument("sql", required=False)
@click.option(
    "--checkpoint",
    default="latest",
    metavar="CHECKPOINT",
    help="The checkpoint to query: its number, a savepoint's name, or latest. [latest]",
    shell_complete=complete_checkpoint,
)
@click.option("--tables", is_flag=True, help="List the views with their columns and rows instead.")
@click.option(
    "--format",
    "form",
    type=click.Choice([_TABLE, *RESULT_FORMATS]),
    help="The form of the rows. [table, or as the suffix of --to says]",
)
@click.option("--to", metavar="FILE", help="Write the rows to this new file instead of stdout.")
@limit_option
@pass_invocation
def query_states(
    invocation: Invocation,
    sql: str | None,
    checkpoint: str,
    tables: bool,
    form: str | None,
    to: str | None,
    limit: int | None,
) -> Output[Answered] | Output[ListedViews] | Output[WrittenResult] | None:
    """Query the states of a checkpoint with SQL."""
    form = form or _format_of(to)
    if to is None and form in ("parquet", "arrow") and sys.stdout.isatty():
        raise click.UsageError(f"{form} is not text: pass --to FILE, or redirect the output")
    if form == _TABLE and to is not None:
        raise click.UsageError(f"--to writes {', '.join(RESULT_FORMATS)}; redirect a table with >")
    if to is not None:
        check_output_file(Path(to), replace=False)
    store = invocation.store()
    settings = invocation.settings
    arguments: dict[str, Any] = {
        "verify": settings.verify_files,
        "time_limit": time_limit(settings.query_time_limit),
        "memory_limit": settings.query_memory_bytes,
    }
    if sql is None and not tables:
        run_shell(store, checkpoint, **arguments)
        return None
    queried = store.checkpoint(checkpoint)
    number, lacking = queried.checkpoint_id, queried.manifest.left_out
    if sql is None:
        return Output(listed_views(store, queried), write_views)

    cancelled = threading.Event()

    def answer_query() -> Output[Answered] | Output[WrittenResult] | None:
        with store.query(sql, queried, cancelled=cancelled, **arguments) as answer:
            if form == _TABLE:
                return Output(answered(answer, queried, store.url, limit), write_answer)
            target = sys.stdout.buffer if to is None else Path(to)
            written = write_result(answer, form, target, limit or 0)
        if to is None:
            return None
        result = WrittenResult(
            store=store.url, checkpoint_id=number, file=to, rows_written=written, left_out=lacking
        )
        return Output(result, write_written)

    if to is None and form != _TABLE:  # its rows appear meanwhile, perhaps on the same terminal
        return run_interruptibly(answer_query, cancelled.set)
    with progress_bar("running the query"):
        return run_interruptibly(answer_query, cancelled.set)


def _format_of(to: str | None) -> str:
    """Return the format that a file's suffix names; a usage error for another suffix."""
    if to is None:
        return _TABLE
    suffix = Path(to).suffix.lower()
    if suffix not in _SUFFIXES:
        raise click.UsageError(
            f"--to {to}: the suffix does not name a format ({', '.join(_SUFFIXES)}); pass --format"
        )
    return _SUFFIXES[suffix]


@dataclass(frozen=True, kw_only=True)
class WrittenResult:
    """A result that was written to a file, and the number of its rows."""

    store: str
    checkpoint_id: int
    file: str
    rows_written: int
    left_out: tuple[LeftOutState, ...] = ()


def write_written(page: Page, written: WrittenResult) -> None:
    """Write the size of the written file as text."""
    page.line(f"wrote {counted(written.rows_written, 'row')} to {written.file}", "bold")
    write_left_out(page, written.left_out)
