"""Results on stdout, everything else on stderr; whole lines, whatever reads them.

On a terminal text is coloured and drawn to its width. Elsewhere it has no colours, drawings are 100
wide, tables as wide as they need, and nothing is cut off or left out.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from statestore.cli.drawing import ASCII, UNICODE, Pen, count
from statestore.errors import StateStoreError

__all__ = [
    "DRAWING_WIDTH",
    "Bar",
    "Page",
    "Result",
    "cell",
    "is_unicode",
    "json_text",
    "leave_stdout",
    "page",
    "pause",
    "printable",
    "progress_bar",
    "report",
    "table_of",
    "value_text",
    "write_rows",
]

DRAWING_WIDTH = 100
UNLIMITED = 100_000


@dataclass(frozen=True)
class Page:
    """Where text goes: ``width`` is that of drawings."""

    console: Console
    width: int
    pen: Pen
    terminal: bool

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line, not wrapped; elsewhere than on a terminal without style, and fast."""
        if self.terminal:
            self.console.print(Text(printable(text), style=style), soft_wrap=True)
        else:
            self.console.file.write(f"{printable(text)}\n")

    def table(self, table: Table) -> None:
        """Write a table without the blanks that rich puts at the end of lines."""
        with self.console.capture() as capture:
            self.console.print(table)
        for line in capture.get().splitlines():
            self.console.file.write(f"{line.rstrip()}\n")


def page(file: TextIO | None = None) -> Page:
    """Return the page on ``file``, by default stdout as it is now."""
    file = file or sys.stdout
    pen = UNICODE if is_unicode(file) else ASCII
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        return Page(console, console.width, pen, terminal=True)
    wide = Console(
        file=file, highlight=False, markup=False, emoji=False, width=UNLIMITED, no_color=True
    )
    return Page(wide, DRAWING_WIDTH, pen, terminal=False)


def printable(text: str) -> str:
    """Return text without control characters, which a terminal would obey, written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True, kw_only=True)
class Result(ABC):
    """What a verb found; ``problem`` is raised after the rest has been printed, and ``status`` is
    how the command ends without one.
    """

    problem: StateStoreError | None = None
    status: int = 0

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return it as ``--output json`` prints it: a stable contract, to which fields are only
        ever added; docs/JSON.md lists them all.
        """

    @abstractmethod
    def write(self, page: Page) -> None:
        """Write it as ``--output text`` prints it: for people, and free to change."""


def table_of(*columns: str, right: frozenset[str] | set[str] = frozenset()) -> Table:
    """Return an empty table; what does not fit the terminal is folded, never cut off."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        side = "right" if name in right else "left"
        table.add_column(cell(name), justify=side, overflow="fold")  # type: ignore[arg-type]
    return table


def cell(text: str) -> Text:
    """Return a cell's text as it is, without control characters or markup."""
    return Text(printable(text))


def json_text(value: Any) -> str:
    """Return a value of a column, or several, on one line as JSON."""
    return json.dumps(_json_value(value), ensure_ascii=False)


def value_text(value: Any) -> str:
    """Return a value of a column as a cell shows it: text as it is, anything else as JSON."""
    plain = _json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def write_rows(
    page: Page, columns: Iterable[str], rows: Sequence[Iterable[str]], *, is_cut: bool
) -> None:
    """Write the rows of an answer as a table; ``is_cut`` says that there are more."""
    table = table_of(*columns)
    for row in rows:
        table.add_row(*map(cell, row))
    page.table(table)
    if is_cut:
        shown = count(len(rows))
        page.line(f"these are the first {shown} rows; there are more, and --limit 0 gives all")


def report(error: BaseException, *, label: str = "error") -> None:
    """Write an error to stderr: one sentence, then its notes."""
    sys.stderr.write(f"{label}: {_lines(str(error))}\n")
    for note in getattr(error, "__notes__", ()):
        sys.stderr.write(f"  {_lines(note)}\n")


@dataclass(frozen=True)
class Bar:
    """A listener to progress; ``is_drawn`` says whether anybody sees it."""

    progress: Progress
    task: TaskID

    @property
    def is_drawn(self) -> bool:
        """Whether it is drawn: on a terminal alone."""
        return not self.progress.disable

    def __call__(self, done: float, total: float, title: str | None = None) -> None:
        """Draw how much is done, and of how much; ``title`` takes the place of the one before."""
        text = None if title is None else printable(title)
        self.progress.update(self.task, completed=done, total=total, description=text)


@contextmanager
def progress_bar(title: str) -> Iterator[Bar]:
    """Yield a listener to progress; it draws on stderr when that is a terminal, else nothing."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    bar = Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(title, total=None)
        yield Bar(bar, task)


def pause(seconds: float) -> None:
    """Sleep; raise BrokenPipeError as soon as nobody reads stdout any more.

    Without it a command that seldom writes would outlive ``| head -1`` until it writes again.
    """
    poll = select.poll()
    try:
        poll.register(sys.stdout, 0)  # an end that was closed is told unasked
    except (OSError, ValueError):  # no file of the system's, as in a notebook
        time.sleep(seconds)
        return
    if poll.poll(seconds * 1000):
        raise BrokenPipeError


def leave_stdout() -> None:
    """Drop what nobody reads, or Python would complain of it while it ends."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def is_unicode(file: TextIO) -> bool:
    """Return whether a stream takes every letter."""
    encoding = getattr(file, "encoding", None) or ""
    return encoding.lower().replace("-", "").startswith("utf")


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.splitlines())


def _json_value(value: Any) -> Any:
    from statestore.restore.export import json_value  # not for a help, which shows no values

    return json_value(value)
