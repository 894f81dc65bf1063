"""The output of the demo: results on stdout, progress on stderr.

On a terminal the progress is a temporary bar. Otherwise it is a line per step, so that a log
shows all steps and their durations. With ``output="json"`` the result is one document at the end.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from statestore.cli.drawing import ASCII, UNICODE, key_group_bars
from statestore.display import duration
from statestore.errors import InvalidArgumentError

Cell = int | float | str
DRAWING_WIDTH = 100
INDENT = "   "
OUTPUTS = ("text", "json")


class Teller:
    """Prints the output; as a context manager it removes the bar after an error.

    ``pen`` has the characters that stdout can show.

    Raises InvalidArgumentError for an output other than text and json.
    """

    def __init__(self, output: str = "text") -> None:
        if output not in OUTPUTS:
            raise InvalidArgumentError(f"output must be {' or '.join(OUTPUTS)}, not {output!r}")
        self._json = output == "json"
        self._steps, self._done = 0, 0
        self._out = Console(highlight=False, markup=False, soft_wrap=True)
        self.pen = UNICODE if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII
        stderr = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=stderr,
            transient=True,
            # By default Rich would redirect stdout to the bar's console, which is stderr.
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not stderr.is_interactive,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Teller:
        self._show(True)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._show(False)

    def expect(self, steps: int) -> None:
        """Set the total number of steps, including the finished ones."""
        self._steps = steps
        self._bar.update(self._task, total=steps)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show ``what`` as the current step, and count it when the block ends."""
        began = time.monotonic()
        self._bar.update(self._task, description=what)
        yield
        self._done += 1
        self._bar.advance(self._task)
        if self._bar.disable:
            count = f"[{self._done}/{self._steps}]" if self._steps else f"[{self._done}]"
            took = duration(1000 * (time.monotonic() - began))
            print(f"{count} {what}: {took}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a paragraph."""
        self._print(Text(text), Text())

    def table(self, columns: Sequence[str], rows: Iterable[Iterable[Cell]]) -> None:
        """Print a table: words on the left, numbers on the right with thousands separators."""
        # Rich's table would wrap rows that are wider than the terminal, and pad lines with blanks.
        lines = [list(row) for row in rows]
        cells = [list(columns), *([_text(cell) for cell in line] for line in lines)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        right = [isinstance(cell, int | float) for cell in lines[0]]
        texts = [
            "  ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(line, widths, right, strict=True)
            )
            for line in cells
        ]
        head, *body = (Text(INDENT + text.rstrip()) for text in texts)
        head.stylize("bold")
        self._print(head, *body, Text())

    def key_groups(self, max_parallelism: int, *parallelisms: int) -> None:
        """Draw the key groups of each subtask, with a line for each parallelism."""
        width = min(self._out.width, DRAWING_WIDTH) - len(INDENT)
        lines = key_group_bars(max_parallelism, parallelisms, width=width, pen=self.pen)
        self._print(*(Text(INDENT + line) for line in lines), Text())

    def document(self, content: Mapping[str, Any]) -> None:
        """Print the results as a JSON document, if this is the chosen output."""
        if self._json:
            print(json.dumps(content, indent=2))

    def _print(self, *lines: Text) -> None:
        if self._json:
            return
        self._show(False)
        for line in lines:
            self._out.print(line)
        self._show(True)

    def _show(self, wanted: bool) -> None:
        # In some releases of Rich, even a disabled bar prints an empty line at its end.
        if not self._bar.disable:
            (self._bar.start if wanted else self._bar.stop)()


def _text(cell: Cell) -> str:
    match cell:
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:.1f}"
        case _:
            return cell
