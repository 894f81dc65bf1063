"""Write results to stdout as JSON or text, and everything else to stderr, in whole lines.

The JSON documents have the members of dataclasses. They are a stable contract: members are only
ever added. ``docs/statestore.schema.json`` is generated from the classes, so a class docstring
explains what its members' names and types do not say.

On a terminal, text is colored, and drawings use its width. Elsewhere text has no colors, drawings
are 100 columns wide, tables are as wide as necessary, and no text is cut off. Only a terminal needs
rich, which is imported for it: for a thousand rows it would take most of the time of ``list``.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import zip_longest
from pathlib import PurePath
from time import sleep
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar

from statestore.cli.drawing import ASCII, UNICODE, Pen, count
from statestore.errors import StateStoreError
from statestore.format.digest import digest_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = [
    "DRAWING_WIDTH",
    "Bar",
    "Column",
    "Output",
    "Page",
    "ReadError",
    "document_text",
    "is_unicode",
    "json_document",
    "json_text",
    "members",
    "page",
    "pause",
    "print_result",
    "printable",
    "progress_bar",
    "report",
    "table_of",
    "table_width",
    "value_text",
    "write_first",
    "write_rows",
]


def json_document(value: Any) -> Any:
    """Return a result as the values that JSON has, without loss.

    A dataclass becomes an object with its :func:`members`. A digest becomes 16 hex digits, because
    many readers of JSON round integers above 2^53.
    """
    from statestore.restore.row_files import json_value

    if is_dataclass(value):
        document = {name: json_document(getattr(value, name)) for name in members(value.__class__)}
        if document.get("digest") is not None:
            document["digest"] = digest_text(document["digest"])
        return document
    match value:
        case str():
            return value.value if isinstance(value, Enum) else value
        case Mapping():
            return {name: json_document(item) for name, item in value.items()}
        case Sequence() if not isinstance(value, bytes):
            return [json_document(item) for item in value]
        case Enum():
            return value.value
        case PurePath():
            return str(value)
    return json_value(value)


@cache
def members(result: Any) -> tuple[str, ...]:
    """Return the names of the members of a result's JSON.

    These are its fields, except those that its ``repr`` omits, and then the properties that its
    class names in ``json_properties``.
    """
    shown = [field.name for field in fields(result) if field.repr]
    return (*shown, *getattr(result, "json_properties", ()))


@dataclass(frozen=True)
class ReadError:
    """The reason why a checkpoint cannot be read."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: StateStoreError) -> ReadError:
        """Return the reason that an error gives."""
        return cls(error.kind, str(error))


@dataclass(frozen=True)
class Column:
    """A column of a result."""

    name: str
    type: str


T = TypeVar("T")

DRAWING_WIDTH = 100
MOST_NAMES = 5
_ASKS_FOR_COLORS = ("FORCE_COLOR", "TTY_COMPATIBLE")
_WORDS = re.compile(r"[^ ]+ *|^ +")


@dataclass(frozen=True)
class Page:
    """The destination of text; ``width`` is the width of drawings.

    ``console`` is rich's console of a terminal, and None for anything else.
    """

    file: TextIO
    width: int
    pen: Pen
    console: Console | None = None

    @property
    def terminal(self) -> bool:
        """Whether the text goes to a terminal."""
        return self.console is not None

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line without wrapping. Outside of a terminal it has no style."""
        if self.console is None:
            self.file.write(f"{printable(text)}\n")
        else:
            from rich.text import Text

            self.console.print(Text(printable(text), style=style), soft_wrap=True)

    def table(self, table: TextTable) -> None:
        """Write a table without trailing blanks; on a terminal, no word of it is broken.

        Text that does not fit is wrapped after blanks. If even the longest words do not fit next to
        each other, each row is written one column a line.
        """
        if self.console is None:
            for line in table.lines():
                self.file.write(f"{line.rstrip()}\n")
        elif table.least_width > self.width:
            _write_records(self, table.columns, table.rows)
        else:
            for number, line in enumerate(table.lines(self.width)):
                self.line(line.rstrip(), "bold" if number < table.heading_lines(self.width) else "")


def page(file: TextIO | None = None) -> Page:
    """Return the page on ``file``, by default the current stdout."""
    file = file or sys.stdout
    pen = UNICODE if is_unicode(file) else ASCII
    console = _terminal(file)
    return Page(file, DRAWING_WIDTH if console is None else console.width, pen, console)


def _terminal(file: TextIO) -> Console | None:
    """Return rich's console of a terminal, or of a program that asks for colors; else None."""
    if not (file.isatty() or any(name in os.environ for name in _ASKS_FOR_COLORS)):
        return None
    from rich.console import Console

    console = Console(file=file, highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else None


class TextTable:
    """The rows of a table, whose cells are text. Control characters in cells are escaped."""

    def __init__(self, columns: Sequence[str], right: Collection[str] = ()) -> None:
        """Take the names of the columns; those in ``right`` are aligned to the right."""
        self.columns = [printable(name) for name in columns]
        self.rows: list[list[str]] = []
        self._sides = ["rjust" if name in right else "ljust" for name in columns]

    def add_row(self, *cells: str) -> None:
        """Add a row with a cell for each column."""
        self.rows.append([printable(text) for text in cells])

    @property
    def least_width(self) -> int:
        """The width in which no word is broken."""
        return sum(self._words()) + 2 * (len(self.columns) - 1)

    def lines(self, width: int | None = None) -> Iterator[str]:
        """Yield the lines of the table: as long as necessary, or wrapped to a width if possible."""
        widths = self._widths(width)
        for row in [self.columns, *self.rows]:
            yield from self._lines_of(row, widths)

    def heading_lines(self, width: int) -> int:
        """Return the number of lines of the column names."""
        return len([*self._lines_of(self.columns, self._widths(width))])

    def _lines_of(self, row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
        cells = [_wrapped(text, width) for text, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            placed = zip(map(str.rstrip, parts), widths, self._sides, strict=True)
            yield "  ".join(
                [
                    getattr(text, side)(width + len(text) - cell_width(text))
                    for text, width, side in placed
                ]
            )

    def _widths(self, width: int | None) -> list[int]:
        """Return the widths of the columns; the widest are reduced until they fit."""
        widths = [max(map(cell_width, column)) for column in self._by_column()]
        least = self._words()
        room = sum(widths) if width is None else width - 2 * (len(widths) - 1)
        while sum(widths) > max(room, sum(least)):
            wide = [column for column in range(len(widths)) if widths[column] > least[column]]
            widths[max(wide, key=widths.__getitem__)] -= 1
        return widths

    def _words(self) -> list[int]:
        """Return the width of the longest word of each column."""
        return [
            max(cell_width(word) for text in column for word in text.split() or [""])
            for column in self._by_column()
        ]

    def _by_column(self) -> list[tuple[str, ...]]:
        return [*zip(self.columns, *self.rows, strict=True)]


def cell_width(text: str) -> int:
    """Return the width of text in cells of a terminal: some characters take two, or none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def printable(text: str) -> str:
    """Return text with control characters escaped, because a terminal would execute them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True)
class Output(Generic[T]):
    """The output of a verb: its result for JSON, and the function that writes it as text.

    ``problem`` is raised after the result has been printed; without one, ``status`` is the exit
    status.
    """

    result: T
    write: Callable[[Page, T], None]
    problem: StateStoreError | None = None
    status: int = 0


def print_result(result: Output[Any] | Iterator[Any], *, as_json: bool) -> int:
    """Print the output of a verb, or each result of an iterator; return the exit status.

    Raises the output's problem after it has been printed.
    """
    if isinstance(result, Iterator):
        return _drain(result, as_json=as_json)
    if as_json:
        text = document_text(result.result, indent=2, ascii_only=not is_unicode(sys.stdout))
        sys.stdout.write(f"{text}\n")
    else:
        result.write(page(), result.result)
    sys.stdout.flush()
    if result.problem is not None:
        raise result.problem
    return result.status


def _drain(results: Iterator[Any], *, as_json: bool) -> int:
    """Write results to stdout as lines of JSON, or let the verb show them, until Ctrl-C."""
    try:
        for result in results:
            if as_json:
                sys.stdout.write(f"{document_text(result, indent=None, ascii_only=True)}\n")
                sys.stdout.flush()  # the reader of a pipe needs each result immediately
    except KeyboardInterrupt:
        return 0
    return 0


def table_of(*columns: str, right: Collection[str] = ()) -> TextTable:
    """Return an empty table; the columns in ``right`` are aligned to the right."""
    return TextTable(columns, right)


def document_text(result: object, *, indent: int | None, ascii_only: bool) -> str:
    """Return a result as JSON; values of columns are encoded without loss."""
    return json.dumps(json_document(result), indent=indent, ensure_ascii=ascii_only)


def json_text(value: Any) -> str:
    """Return one or several column values as JSON on one line."""
    return json.dumps(json_document(value), ensure_ascii=False)


def value_text(value: Any) -> str:
    """Format a column value for a cell: text is unchanged, anything else is JSON."""
    plain = json_document(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def write_first(page: Page, names: Sequence[str], *, indent: str) -> None:
    """Write the first five names, and how many more there are; JSON has all of them."""
    for name in names[:MOST_NAMES]:
        page.line(f"{indent}{name}")
    if len(names) > MOST_NAMES:
        page.line(f"{indent}and {count(len(names) - MOST_NAMES)} more")


def write_rows(
    page: Page,
    columns: Iterable[str],
    rows: Sequence[Iterable[str]],
    *,
    is_cut: bool = False,
    hint: str = "--limit 0 shows all",
    right: Collection[str] = (),
) -> None:
    """Write the rows of a result as a table; ``is_cut`` is True if there are more rows.

    ``hint`` says how to get the other rows. Rows that are wider than the terminal are written one
    column a line, so that no word is broken. The columns ``right`` are aligned to the right in a
    table.
    """
    names = [printable(name) for name in columns]
    texts = [[printable(text) for text in row] for row in rows]
    if page.terminal and table_width(names, texts) > page.width:
        _write_records(page, names, texts)
    else:
        table = table_of(*names, right=right)
        for row in texts:
            table.add_row(*row)
        page.table(table)
    if is_cut:
        shown = count(len(rows))
        page.line(f"only the first {shown} rows are shown; {hint}")


def table_width(names: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width of a table in cells; each column but the last is followed by two blanks."""
    widths = [max(map(cell_width, column)) for column in zip(names, *rows, strict=True)]
    return sum(widths) + 2 * (len(widths) - 1)


def _write_records(page: Page, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    longest = max(map(cell_width, names), default=0)
    indent = min(longest + 4, page.width // 2)
    for number, row in enumerate(rows, 1):
        page.line(f"row {number}", "bold")
        for name, value in zip(names, row, strict=True):
            label = f"  {name}{' ' * (indent - 2 - cell_width(name))}"
            first, *others = _wrapped(value, page.width - indent)
            if cell_width(name) + 4 > indent:
                page.line(label)
                label = " " * indent
            page.line(f"{label}{first}".rstrip())
            for line in others:
                page.line(f"{' ' * indent}{line}".rstrip())


def _wrapped(text: str, width: int) -> list[str]:
    """Return text in lines of a width, broken only after blanks; a longer word is not broken."""
    lines = [""]
    for word in _WORDS.findall(text):
        if lines[-1] and cell_width(lines[-1]) + cell_width(word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return lines


def report(error: BaseException, *, label: str = "error") -> None:
    """Write an error to stderr: one sentence, followed by its notes."""
    sys.stderr.write(f"{label}: {_lines(str(error))}\n")
    for note in getattr(error, "__notes__", ()):
        indented = _lines(note).replace("\n", "\n  ")
        sys.stderr.write(f"  {indented}\n")


@dataclass(frozen=True)
class Bar:
    """A progress callback that draws a bar on a terminal, and does nothing elsewhere."""

    progress: Progress | None = None
    task: TaskID | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether the bar is drawn, which is the case only on a terminal."""
        return self.progress is not None

    def __call__(self, done: float, total: float, title: str | None = None) -> None:
        """Draw the progress; ``title`` replaces the previous title."""
        if self.progress is not None and self.task is not None:
            text = None if title is None else printable(title)
            self.progress.update(self.task, completed=done, total=total, description=text)


@contextmanager
def progress_bar(title: str) -> Iterator[Bar]:
    """Yield a progress callback; it draws on stderr if that is a terminal."""
    console = _terminal(sys.stderr)
    if console is None:
        yield Bar()
        return
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    with bar:
        yield Bar(bar, bar.add_task(title, total=None))


def pause(seconds: float) -> None:
    """Sleep, but raise BrokenPipeError as soon as the reader of stdout is gone.

    Without this, a command that rarely writes would outlive ``| head -1`` until its next write.
    """
    try:
        poll = select.poll()
        poll.register(sys.stdout, 0)  # poll always reports a closed end
    except (AttributeError, OSError, ValueError):  # Windows, or not a real file, as in a notebook
        sleep(seconds)
        return
    if poll.poll(seconds * 1000):
        raise BrokenPipeError


def is_unicode(file: TextIO) -> bool:
    """Return whether a stream can encode all of Unicode."""
    encoding = getattr(file, "encoding", None) or ""
    return encoding.lower().replace("-", "").startswith("utf")


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.splitlines())
