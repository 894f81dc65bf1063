"""The parts that all jobs share: a command line, early checks of the settings, and exit codes.

A job is a function from its settings to a report, which is a JSON-serializable value. The report
goes to stdout, as text or as JSON, and includes the number of attempts (``restarts.py``). Progress,
restarts and errors go to stderr. spark-submit merges both streams into its own stdout. With JSON
output there is therefore no progress: only the reasons of failed attempts and the address of the
metrics are printed before the report.

An error of this package is printed as one sentence, and the process ends with the exit code of the
error's class (``statestore/errors.py``). Any other exception is a defect, of the job or of its
data, and keeps its traceback.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from jobs.metrics import Listeners
from jobs.places import JobSettings
from jobs.restarts import run_attempts, with_strategy
from statestore.errors import InvalidArgumentError, SettingsError, StateStoreError
from statestore.parsing import parse_toml
from statestore.restarts import RestartClock
from statestore.settings import from_table, read_toml

__all__ = ["Job", "Progress", "Report", "columns", "load_settings", "run", "write_file"]

S = TypeVar("S", bound=JobSettings)
Report = dict[str, Any]
Progress = Callable[[str], None]

# A step of a setting's name: a word, a quoted word (Spark's own names have dots), or an index.
_STEP = re.compile(r'\.?(?:"(?P<quoted>[^"]+)"|(?P<word>[^."\[\]]+)|\[(?P<index>\d+)\])')


@dataclass(frozen=True)
class Job(Generic[S]):
    """A job: its help text, its settings class, the function that it runs, and its text output.

    ``work`` is one attempt and may be called again after a failure. It passes its listeners to the
    store. ``dry_run`` is the setting that ``--dry-run`` turns on. If it is None, the job does not
    have that option.
    """

    name: str
    help: str
    settings: type[S]
    work: Callable[[S, Progress, Listeners], Report]
    text: Callable[[Report], str]
    dry_run: str | None = None


def run(
    job: Job[Any], arguments: Sequence[str] | None = None, *, clock: RestartClock | None = None
) -> int:
    """Run a job with these arguments, by default the process's own; return the exit code.

    The settings' restart strategy decides whether another attempt follows a failed one.
    """
    try:
        options = _parser(job).parse_args(arguments)
        progress = _ignore_progress if options.output == "json" else _print_progress
        overrides = [*options.set, f"{job.dry_run}=true"] if options.dry_run else options.set
        report, attempts = run_attempts(
            lambda: load_settings(job.settings, options.conf_file, overrides),
            lambda settings, listeners: job.work(settings, progress, listeners),
            _print_progress,
            clock or RestartClock(),
        )
        report["attempts"] = attempts
    except StateStoreError as error:
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        print(f"error: {error}{notes}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(report, indent=2) if options.output == "json" else job.text(report))
    return 0


def load_settings(settings_type: type[S], path: str, overrides: Iterable[str] = ()) -> S:
    """Return a settings file with ``NAME=VALUE`` overrides applied; SettingsError when invalid."""
    table = read_toml(path)
    where = path
    for text in overrides:
        _override(table, text)
        where = f"{path} with --set"
    return from_table(with_strategy(table, settings_type, where), settings_type, where=where)


def write_file(path: str, text: str) -> None:
    """Write a local file atomically: a concurrent reader sees the old file or the new one.

    Raises SettingsError when it cannot be written.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(f"{text}\n", encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}; name another file") from error


def columns(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows under a header as aligned text, with numbers aligned to the right."""
    shown = list(rows)
    lines = [[*header], *([str(cell) for cell in row] for row in shown)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numeric = [all(isinstance(cell, int) for cell in column) for column in zip(*shown, strict=True)]
    right = numeric or [False] * len(widths)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _ignore_progress(text: str) -> None:
    pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # argparse would print its usage and exit; here every error is reported in the same way.
        raise InvalidArgumentError(f"{message}; --help shows examples")


def _parser(job: Job[Any]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=job.name,
        description=job.help,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--conf-file", required=True, metavar="FILE", help="the settings, TOML")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=(
            "replace one setting, for example store.url=/tmp/store or "
            "keyed[0].source.path=new.csv; can be repeated"
        ),
    )
    parser.set_defaults(dry_run=False)
    if job.dry_run is not None:
        help_text = f"report what the job would do, and write nothing ({job.dry_run})"
        parser.add_argument("--dry-run", action="store_true", help=help_text)
    parser.add_argument("--output", choices=("text", "json"), default="text", help="[text]")
    return parser


def _override(table: dict[str, Any], text: str) -> None:
    name, equals, value = text.partition("=")
    steps = _steps(name.strip())
    if not equals or not steps:
        raise SettingsError(
            f"--set takes NAME=VALUE, for example store.url=/tmp/store, not {text!r}"
        )
    node: Any = table
    for step in steps[:-1]:
        _check_step(node, step, name)
        node = node.setdefault(step, {}) if isinstance(node, dict) else node[step]
    _check_step(node, steps[-1], name)
    try:
        node[steps[-1]] = _parse_value(value.strip())
    except ValueError as error:
        raise SettingsError(f"--set {name.strip()}: {error}") from error


def _steps(name: str) -> list[str | int]:
    steps: list[str | int] = []
    offset = 0
    while match := _STEP.match(name, offset):
        offset = match.end()
        index = match["index"]
        steps.append(int(index) if index else match["quoted"] or match["word"])
    return steps if offset == len(name) else []


def _check_step(node: Any, step: str | int, name: str) -> None:
    if isinstance(step, int):
        size = len(node) if isinstance(node, list) else 0
        if step >= size:
            raise SettingsError(
                f"--set {name}: index [{step}] does not exist; the list has {size} elements"
            )
    elif not isinstance(node, dict):
        raise SettingsError(
            f"--set {name}: cannot set {step!r} because the value that contains it is not a table"
        )


def _parse_value(text: str) -> Any:
    """Parse a value as TOML (7, true, ["a"]); if it is not valid TOML, return the text itself.

    Raises ValueError for a number that cannot be represented exactly.
    """
    try:
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
