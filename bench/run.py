"""Run all measurements and print one table: ``make bench``, or ``python -m bench.run``.

A time is the median of the repeats, with the minimum and maximum. If the median hides a tail, the
table also shows the 99th percentile and the sum. A ratio is relative to the floor in the same line,
which is measured in turn in the same run. Each section runs in a process of its own. One that fails
has a line with its last words, and the exit code is then 1. The JSON is written after each section.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import (
    arrow_reads,
    arrow_writes,
    bootstrap,
    by_key,
    changes,
    delta_log,
    flink_savepoints,
    groups,
    growth,
    large,
    memory,
    object_store,
    offsets,
    pages,
    plans,
    processors,
    ranges,
    repartition,
    restarts,
    scale,
    small,
    spark,
    spark_checkpoints,
    starts,
    streaming,
    timers,
)
from bench.measure import Failure, Figure

MILLION = 1_000_000
HEADINGS = ("", "what", "value", "spread", "p99", "sum", "ratio to", "ratio", "goal", "", "load")
QUIET = 0.1
"""More busy cores than these are named in the table, as the figures may be too large."""
_CPU_TIMES, _IDLE, _WAITING = Path("/proc/stat"), 3, 4
README = Path(__file__).with_name("README.md")
HEAD = (f"| {' | '.join(HEADINGS)} |", "| --- " * len(HEADINGS) + "|")
BEGIN, END = "<!-- the table of the last run -->", "<!-- its end -->"


@dataclass(frozen=True)
class Section:
    """Figures that are measured together: their targets, their function and their default rows."""

    targets: tuple[str, ...]
    figures: Callable[[Path, int, int], list[Figure]]
    rows: int


SECTIONS = (
    Section(("B1", "B2", "B3", "B7"), spark.figures, 5 * MILLION),
    Section(("B4", "B8", "B13", "B15"), arrow_reads.figures, 5 * MILLION),
    Section(("B5",), repartition.figures, 2 * MILLION),
    Section(("B6",), repartition.rates, 5 * MILLION),
    Section(("B9",), arrow_writes.figures, 5 * MILLION),
    Section(("B10",), groups.figures, MILLION),
    Section(("B11",), object_store.figures, 5 * MILLION),
    Section(("B12",), offsets.figures, 0),
    Section(("B14",), plans.figures, 0),
    Section(("B16",), changes.figures, 5 * MILLION),
    Section(("B17",), changes.history, MILLION),
    Section(("B19",), ranges.figures, MILLION),
    Section(("B18",), streaming.figures, 5 * MILLION),
    Section(("B20",), delta_log.figures, 10_000),
    Section(("B21",), small.figures, small.ROWS),
    Section(("B22",), starts.figures, starts.CHECKPOINTS),
    Section(("B24",), object_store.requests, small.ROWS),
    Section(("B23",), large.figures, large.FILES),
    Section(("B25",), spark_checkpoints.figures, 2 * MILLION),
    Section(("B26",), flink_savepoints.figures, 2 * MILLION),
    Section(("B27",), processors.figures, MILLION // 5),
    Section(("B28",), timers.figures, 10 * MILLION),
    Section(("B29",), pages.figures, 10_000),
    Section(("B30",), changes.costs, 5 * MILLION),
    Section(("B31",), memory.figures, memory.MEGABYTES),
    Section(("B32",), by_key.figures, by_key.KEYS),
    Section(("B33",), bootstrap.figures, 10 * MILLION),
    Section(("B34",), growth.figures, 0),
    Section(("B35",), scale.figures, scale.MEGABYTES),
    Section(("B36",), restarts.figures, 0),
)


def main() -> int:
    """Run the requested sections, print the table, write the JSON, and return the exit code."""
    arguments = _arguments()
    found: list[Figure | Failure] = []
    for section in SECTIONS:
        if arguments.only and not set(arguments.only) & set(section.targets):
            continue
        print(f"measuring {', '.join(section.targets)} …", flush=True)
        found += measured(section, arguments)
        document = {
            "repeats": arguments.repeats,
            "rows": arguments.rows,
            "figures": [figure.to_json() for figure in found],
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    show(found, arguments.repeats)
    if arguments.readme:
        before, _, rest = README.read_text().partition(BEGIN)
        table, _, after = rest.partition(END)
        lines = [*kept(table.strip().splitlines()[2:], found), *map(line_of, found)]
        table = "\n".join([*HEAD, *sorted(lines, key=_place)])
        README.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    return 1 if any(isinstance(each, Failure) for each in found) else 0


def measured(section: Section, arguments: argparse.Namespace) -> list[Figure | Failure]:
    """Return the figures of a section, measured in a new process and an empty directory.

    If it fails, there is one failure instead of its figures. The load is the larger of that before
    the section and that after it.
    """
    before = busy_cores()
    fresh = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory) as folder,
        ProcessPoolExecutor(max_workers=1, mp_context=fresh) as process,
    ):
        rows = arguments.rows or section.rows
        done = process.submit(section.figures, Path(folder), rows, arguments.repeats)
        if error := done.exception():
            return [Failure(target, last_words(error)) for target in section.targets]
    load = max(before, busy_cores())
    return [
        replace(figure, target=figure.target or section.targets[0], load=load)
        for figure in done.result()
    ]


def last_words(error: BaseException) -> str:
    """Return the type of an error and the end of its message, in one line."""
    words = " / ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return f"{type(error).__name__}: {words[-300:] or 'no message'}"


def busy_cores() -> float:
    """Return how many cores are busy during one second; 0 on a system without ``/proc/stat``."""
    if not _CPU_TIMES.exists():
        return 0.0
    seconds = []
    for pause in (1.0, 0.0):
        fields = [int(field) for field in _CPU_TIMES.read_text().splitlines()[0].split()[1:9]]
        seconds.append(sum(fields) - fields[_IDLE] - fields[_WAITING])
        time.sleep(pause)
    return (seconds[1] - seconds[0]) / os.sysconf("SC_CLK_TCK")


def show(found: Sequence[Figure | Failure], repeats: int) -> None:
    """Print the lines as one table."""
    table = Table(title=f"medians of {repeats} with the smallest and the largest")
    for heading in HEADINGS:
        table.add_column(heading)
    for figure in found:
        table.add_row(*row_of(figure))
    Console(width=170).print(table)


def line_of(figure: Figure | Failure) -> str:
    """Return the line of a figure in the table of README."""
    return f"| {' | '.join(row_of(figure))} |"


def kept(lines: Sequence[str], found: Sequence[Figure | Failure]) -> list[str]:
    """Return the lines of a table from sections that were not measured again."""
    measured = {_place(line_of(figure)) for figure in found}
    return [line for line in lines if _place(line) not in measured]


def _place(line: str) -> int:
    """Return the section of a line in the table."""
    target = line.split("|")[1].strip()
    return next(at for at, section in enumerate(SECTIONS) if target in section.targets)


def row_of(figure: Figure | Failure) -> tuple[str, ...]:
    """Return the cells of a line."""
    if isinstance(figure, Failure):
        cells = (figure.target, figure.reason.replace("|", "/"), "failed")
        return (*cells, *("" for _ in HEADINGS[len(cells) :]))
    goal = ""
    if figure.goal is not None:
        goal = f"{'≥' if figure.at_least else '≤'} {figure.goal:g}"
    return (
        figure.target,
        figure.what,
        f"{_number(figure.value)} {figure.unit}",
        "" if figure.low == figure.high else f"{_number(figure.low)} – {_number(figure.high)}",
        "" if figure.p99 is None else _number(figure.p99),
        "" if figure.total is None else _number(figure.total),
        figure.floor,
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        goal,
        {True: "reached", False: "missed", None: ""}[figure.reached],
        "" if figure.load is None or figure.load <= QUIET else f"{figure.load:.1f} cores busy",
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, help="rows of each state; by default those of its line")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", metavar="B1", help="measure these lines alone")
    parser.add_argument("--directory", type=Path, help="where the stores go")
    parser.add_argument("--readme", action="store_true", help="put the table into bench/README.md")
    parser.add_argument("--json", type=Path, default=Path("bench/results.json"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
