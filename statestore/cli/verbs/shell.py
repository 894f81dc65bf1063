"""A shell for SQL over the states of a checkpoint, for ``statestore query``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from statestore.cli.output import page, report
from statestore.cli.verbs.answers import answered, listed_views, write_answer, write_views
from statestore.errors import StateStoreError
from statestore.extras import needs_extra
from statestore.restore.duck import run_interruptibly
from statestore.restore.sql_query import View
from statestore.store import StateStore

__all__ = ["run_shell"]

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


def run_shell(
    store: StateStore, checkpoint: str, time_limit: str | None, memory_limit: int | None
) -> None:
    """Run each statement of a terminal, or those of stdin until the first error."""
    shell = _Shell(store, checkpoint, time_limit, memory_limit)
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
    """A session: the checkpoint that it queries, and its limits."""

    def __init__(
        self, store: StateStore, checkpoint: str, time_limit: str | None, memory_limit: int | None
    ) -> None:
        self._store = store
        self._time_limit = time_limit
        self._memory_limit = memory_limit
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
                sql,
                self._queried,
                time_limit=self._time_limit,
                memory_limit=self._memory_limit,
                cancelled=cancelled,
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
