"""``statestore demo``: half of the flights at parallelism 4, the rest at 7, and the proof.

In DIR it leaves ``flights`` (the input), ``store`` (two checkpoints) and ``uninterrupted`` (the
store of the run without a stop). A DIR that holds anything already is left as it is, and the demo
works in its first free sub-directory ``demo-2``, ``demo-3``, …; nothing is ever deleted.

DIR may be the URL of a prefix in a bucket: the stores lie there, and the input on this machine for
as long as the demo runs.
"""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from statestore.cli.drawing import ASCII, UNICODE, key_group_bars, range_text
from statestore.demo.flights import MONTHS, FlightLog, read_flights, write_log
from statestore.demo.job import (
    AIRCRAFT,
    KEY,
    MAX_PARALLELISM,
    SOURCE,
    Job,
    MicroBatch,
    consume,
    elements,
    fold,
    micro_batches,
    partitions_by_subtask,
    restore,
    snapshot,
    start,
)
from statestore.errors import InvalidArgumentError, StorageError
from statestore.spark.session import spark_session
from statestore.storage import open_storage
from statestore.store import StateStore

__all__ = [
    "Comparison",
    "Teller",
    "compare",
    "differing_rows",
    "run",
]


# What the demo prints: the story on stdout, its progress on stderr.
#
# On a terminal the progress is a bar that goes away again; elsewhere it is a line per step, so that
# a log says what was done and how long it took. With ``output="json"`` the story is one document at
# the end.


Cell = int | float | str
DRAWING_WIDTH = 100
INDENT = "   "
OUTPUTS = ("text", "json")


class Teller:
    """Prints; use it as a context, so that an error leaves no bar on the terminal.

    ``pen`` has the characters that stdout can show.

    Raises InvalidArgumentError for an output other than text and json.
    """

    def __init__(self, output: str = "text") -> None:
        if output not in OUTPUTS:
            raise InvalidArgumentError(f"output is {' or '.join(OUTPUTS)}, not {output!r}")
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
            # Rich would send stdout the bar's way, to stderr.
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
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._show(False)

    def expect(self, steps: int) -> None:
        """Say how many steps there will be, counting those that are done."""
        self._steps = steps
        self._bar.update(self._task, total=steps)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show that ``what`` is being done, and when it is, that it is."""
        began = time.monotonic()
        self._bar.update(self._task, description=what)
        yield
        self._done += 1
        self._bar.advance(self._task)
        if self._bar.disable:
            count = f"[{self._done}/{self._steps}]" if self._steps else f"[{self._done}]"
            print(f"{count} {what}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a paragraph."""
        self._print(Text(text), Text())

    def table(self, columns: Sequence[str], rows: Iterable[Iterable[Cell]]) -> None:
        """Print a table: words on the left, numbers on the right with thousands separators."""
        # Not rich's: that one folds what is wider than the terminal, and pads lines with blanks.
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
        """Draw which subtask has which key groups, a line for each parallelism."""
        width = min(self._out.width, DRAWING_WIDTH) - len(INDENT)
        lines = key_group_bars(max_parallelism, parallelisms, width=width, pen=self.pen)
        self._print(*(Text(INDENT + line) for line in lines), Text())

    def document(self, content: Mapping[str, Any]) -> None:
        """Print the story as a document, when that is the output."""
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
        # A bar that is off still ends with an empty line in some releases of rich.
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


# The proof: the states of the interrupted job against those of a run that was never interrupted.
#
# Every state is compared twice: row by row, and by the digests in the two manifests. The rows are
# the proof; the digests show that a manifest alone says the same.


Elements = Sequence[Sequence[Mapping[str, object]]]


@dataclass(frozen=True)
class Comparison:
    """One state: rows in the checkpoint, rows that only one side has, and both digests in hex."""

    state: str
    rows: int
    differing_rows: int
    digest: str
    uninterrupted_digest: str

    @property
    def equal(self) -> bool:
        """Whether rows and digests are the same."""
        return self.differing_rows == 0 and self.digest == self.uninterrupted_digest


def compare(
    store: StateStore, checkpoint: int, reference: StateStore, uninterrupted: Job
) -> list[Comparison]:
    """Return one comparison per state of the checkpoint.

    The rows are read from the checkpoint in ``store`` and compared with those that
    ``uninterrupted`` computed; ``reference`` holds the snapshot of it, for the digests alone.
    """
    assert uninterrupted.states is not None
    restored = store.restore(checkpoint=checkpoint, parallelism=uninterrupted.parallelism)
    differing = {}
    for name, expected in uninterrupted.states.by_name().items():
        found = restored.keyed(AIRCRAFT, name).to_spark().drop("key_group")
        differing[AIRCRAFT, name] = differing_rows(found, expected)
    for name, per_subtask in elements(uninterrupted).items():
        stored = restored.operator(SOURCE, name).per_old_subtask()
        differing[SOURCE, name] = _differing_elements(stored, per_subtask)
    other = reference.manifest()
    return [
        Comparison(
            state=entry.state.name,
            rows=entry.rows,
            differing_rows=differing[entry.state.uid, entry.state.name],
            digest=f"{entry.digest:016x}",
            uninterrupted_digest=f"{other.find(entry.state.uid, entry.state.name).digest:016x}",
        )
        for entry in restored.manifest.entries
    ]


def differing_rows(left: DataFrame, right: DataFrame) -> int:
    """Return how many rows only one of two DataFrames has; a row that occurs twice counts twice."""
    side = "side"
    both = left.withColumn(side, F.lit(1)).unionByName(right.withColumn(side, F.lit(-1)))
    surplus = both.groupBy(*left.columns).agg(F.sum(side).alias(side)).where(F.col(side) != 0)
    total: int | None = surplus.agg(F.sum(F.abs(side))).collect()[0][0]
    return total or 0


def _differing_elements(left: Elements, right: Elements) -> int:
    """Return at how many places, subtask and position, two operator states differ."""
    found = {(subtask, at): e for subtask, mine in enumerate(left) for at, e in enumerate(mine)}
    wanted = {(subtask, at): e for subtask, mine in enumerate(right) for at, e in enumerate(mine)}
    return sum(found.get(place) != wanted.get(place) for place in found.keys() | wanted.keys())


OLD_PARALLELISM = 4
NEW_PARALLELISM = 7
TABLE_FORMAT = "delta"
# Beside the micro-batches: flights, Spark, writing, 3 snapshots, plan, restore, reference, proof.
OTHER_STEPS = 10


@dataclass(frozen=True)
class Taken:
    """A line of the table at the end: a checkpoint of the demo's store."""

    checkpoint: int
    parallelism: int
    layout: str
    flights: int
    rows: int
    bytes: int
    files: int
    seconds: float


@dataclass
class Demo:
    """What the acts of the story share; ``facts`` become the JSON document."""

    teller: Teller
    spark: SparkSession
    place: str
    storage_options: Mapping[str, Any] | None
    log: FlightLog
    facts: dict[str, Any] = field(default_factory=dict)
    taken: list[Taken] = field(default_factory=list)

    def store(self) -> StateStore:
        """Return the store of the job that is stopped and restored."""
        return self._open("store", TABLE_FORMAT)

    def reference(self) -> StateStore:
        """Return the store of the job that is not stopped."""
        # Digests are of rows: those of the other table format and of fewer files are the same.
        return self._open("uninterrupted", "parquet")

    def consume(self, job: Job, batches: Sequence[MicroBatch]) -> Job:
        """Return the job after some micro-batches."""
        for number, batch in enumerate(batches, start=1):
            what = f"parallelism {job.parallelism}, micro-batch {number} of {len(batches)}"
            with self.teller.step(what):
                job = consume(self.spark, self.log, job, batch)
        return job

    def snapshot(self, job: Job, layout: str = "partitioned") -> int:
        """Take a checkpoint, and note it for the table at the end."""
        began = time.monotonic()
        with self.teller.step(f"parallelism {job.parallelism}, snapshot, {layout}"):
            number = snapshot(self.store(), job, layout)
        seconds = time.monotonic() - began
        found = self.store().manifest(number)
        size = (found.rows, found.size_bytes, found.files)
        self.taken.append(
            Taken(number, job.parallelism, layout, job.consumed, *size, round(seconds, 2))
        )
        return number

    def _open(self, name: str, table_format: str) -> StateStore:
        return StateStore.open(
            f"{self.place}/{name}",
            spark=self.spark,
            table_format=table_format,
            storage_options=self.storage_options,
        )


def run(
    place: str,
    *,
    output: str = "text",
    flights_per_month: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Tell the whole story; return 0 when the states are equal, 1 when they are not.

    ``place`` is a directory, or the URL of a prefix in a bucket, which ``storage_options`` are for.
    ``output`` is text or json; ``flights_per_month`` takes the first so many flights of each month
    only. Raises MissingDependencyError without the flights, a fitting Java or Delta's jar,
    StorageError when the directory cannot be made, and what snapshot and restore raise.
    """
    began = time.monotonic()
    with Teller(output) as teller, ExitStack() as until_the_end:
        with teller.step("reading the flights"):
            flights = read_flights()
        with teller.step("starting Spark"):
            spark = spark_session(app_name="statestore-demo")
        if "://" in place:
            place = _fresh_prefix(place.rstrip("/"), storage_options, teller)
            directory = Path(until_the_end.enter_context(tempfile.TemporaryDirectory()))
        else:
            directory = _fresh(Path(place), teller).resolve()
            place = str(directory)
        with teller.step("writing the flights as 12 partitions"):
            log = write_log(flights, directory / "flights", flights_per_month)
        demo = Demo(teller, spark, place, storage_options, log)
        teller.say(
            f"{log.rows:,} flights out of New York in 2013, a topic of 12 monthly partitions.\n"
            "State of each aircraft: totals (value), routes (map), last five flights (list)."
        )
        checkpoint = _first_half(demo)
        _plan(demo, checkpoint)
        checkpoint, job = _second_half(demo, checkpoint)
        equal = _proof(demo, checkpoint)
        _end(demo, job, time.monotonic() - began)
    return 0 if equal else 1


def _fresh(directory: Path, teller: Teller) -> Path:
    """Return ``directory`` when it is new or empty, else a new directory in it."""
    try:
        if not directory.exists() or not any(directory.iterdir()):
            directory.mkdir(parents=True, exist_ok=True)
            return directory
        names = (directory / f"demo-{number}" for number in itertools.count(2))
        mine = next(path for path in names if not path.exists())
        mine.mkdir()
    except OSError as error:
        raise StorageError(
            f"the directory {directory} cannot be written: name another, as in: statestore demo DIR"
        ) from error
    teller.say(f"{directory} is not empty and stays as it is; this demo goes to {mine}.")
    return mine


def _fresh_prefix(url: str, storage_options: Mapping[str, Any] | None, teller: Teller) -> str:
    """Return ``url`` when nothing lies there, else a new prefix below it."""
    names = itertools.chain([url], (f"{url}/demo-{number}" for number in itertools.count(2)))
    mine = next(name for name in names if open_storage(name, storage_options).is_empty())
    if mine != url:
        teller.say(f"{url} is not empty and stays as it is; this demo goes to {mine}.")
    return mine


def _first_half(demo: Demo) -> int:
    half = demo.log.rows // 2
    job = start(demo.log, OLD_PARALLELISM)
    batches = micro_batches(job.offsets, demo.log.ends, OLD_PARALLELISM, half)
    # With what is left after them, as the offsets will say again, but for the bar's length.
    later = micro_batches(batches[-1].stops, demo.log.ends, NEW_PARALLELISM, demo.log.rows)
    demo.teller.expect(OTHER_STEPS + len(batches) + len(later))
    job = demo.consume(job, batches)
    checkpoint = demo.snapshot(job)
    demo.teller.say(
        f"1. At parallelism {OLD_PARALLELISM} the job consumed {job.consumed:,} flights in "
        f"{len(batches)} micro-batches,\n   took checkpoint {checkpoint}, and was stopped."
    )
    return checkpoint


def _plan(demo: Demo, checkpoint: int) -> None:
    with demo.teller.step("planning the restore"):
        plan = demo.store().plan(parallelism=NEW_PARALLELISM, checkpoint=checkpoint)
    subtasks = next(each.subtasks for each in plan.operators if each.uid == AIRCRAFT)
    demo.facts["plan"] = [asdict(each) for each in subtasks]
    pen = demo.teller.pen
    lines = [
        (s.subtask, range_text(s.key_groups, pen), s.rows, s.size_bytes, s.files) for s in subtasks
    ]
    demo.teller.say(
        f"2. The plan for parallelism {NEW_PARALLELISM}, known before any state is read:"
    )
    demo.teller.key_groups(MAX_PARALLELISM, OLD_PARALLELISM, NEW_PARALLELISM)
    demo.teller.table(("subtask", "key groups", "rows", "bytes", "files"), lines)


def _second_half(demo: Demo, checkpoint: int) -> tuple[int, Job]:
    with demo.teller.step(f"restoring at parallelism {NEW_PARALLELISM}"):
        job = restore(demo.store(), checkpoint, NEW_PARALLELISM)
    assigned = list(enumerate(partitions_by_subtask(job.offsets, NEW_PARALLELISM)))
    demo.facts["offsets"] = [
        {"subtask": subtask, "partition": p, "offset": job.offsets[p]}
        for subtask, mine in assigned
        for p in mine
    ]
    demo.teller.say(
        f"3. Restored at parallelism {NEW_PARALLELISM}. Source subtasks go on from these offsets:"
    )
    lines = [(i, ", ".join(_place(demo.log, job, p) for p in mine)) for i, mine in assigned]
    demo.teller.table(("subtask", "reads on from"), lines)
    before = job.consumed
    batches = micro_batches(job.offsets, demo.log.ends, NEW_PARALLELISM, demo.log.rows)
    job = demo.consume(job, batches)
    checkpoint = demo.snapshot(job)
    demo.teller.say(
        f"   It consumed the other {job.consumed - before:,} flights in {len(batches)} "
        f"micro-batches, and took checkpoint {checkpoint}."
    )
    checkpoint = demo.snapshot(job, "auto")
    few, many = demo.taken[-1].files, demo.taken[-2].files
    demo.teller.say(
        f"   Checkpoint {checkpoint} is the same state once more, with layout 'auto': {few} files "
        f"instead of {many}."
    )
    return checkpoint, job


def _place(log: FlightLog, job: Job, partition: int) -> str:
    return f"{MONTHS[partition - 1]} {job.offsets[partition]:,} of {log.ends[partition]:,}"


def _proof(demo: Demo, checkpoint: int) -> bool:
    with demo.teller.step("the same flights without a stop"):
        uninterrupted = _uninterrupted(demo)
        snapshot(demo.reference(), uninterrupted, "auto")
    with demo.teller.step("comparing"):
        found = compare(demo.store(), checkpoint, demo.reference(), uninterrupted)
    demo.facts["states"] = [asdict(each) | {"equal": each.equal} for each in found]
    demo.facts["equal"] = all(each.equal for each in found)
    demo.teller.say("4. Against one run over all flights, without a stop and without a restore:")
    demo.teller.table(
        ("state", "rows", "differing rows", "digest", "uninterrupted"),
        [(c.state, c.rows, c.differing_rows, c.digest, c.uninterrupted_digest) for c in found],
    )
    demo.teller.say(_verdict(found))
    return all(each.equal for each in found)


def _uninterrupted(demo: Demo) -> Job:
    """Return what one run over the input alone comes to: no micro-batches, no store."""
    rows = demo.log.read(demo.spark, demo.log.starts, demo.log.ends)
    keyed = fold(None, rows.where(F.col(KEY).isNotNull())).computed()
    counts = rows.where(F.col(KEY).isNull()).groupBy("partition").count().collect()
    unkeyed = dict.fromkeys(demo.log.ends, 0) | {row["partition"]: row["count"] for row in counts}
    return Job(NEW_PARALLELISM, keyed, demo.log.ends, unkeyed)


def _verdict(found: Sequence[Comparison]) -> str:
    wrong = [each for each in found if not each.equal]
    if wrong:
        rows = sum(each.differing_rows for each in wrong)
        names = ", ".join(each.state for each in wrong)
        return f"NOT EQUAL: {rows:,} rows differ, in {names}."
    rows = sum(each.rows for each in found)
    return f"Equal: every one of the {rows:,} rows of {len(found)} states, and every digest."


def _end(demo: Demo, job: Job, seconds: float) -> None:
    columns = tuple(one.name for one in fields(Taken))
    lines = [asdict(taken) for taken in demo.taken]
    unkeyed = sum(job.unkeyed.values())
    command = f"{_program()} --store {shlex.quote(f'{demo.place}/store')} show latest"
    demo.teller.table(columns, [line.values() for line in lines])
    demo.teller.say(
        f"{job.consumed:,} flights consumed. {unkeyed:,} of them have no tail number; "
        "state unkeyed counts them.\n"
        f"The demo took {seconds:.0f} seconds. The store stays; look into it with\n\n   {command}"
    )
    demo.teller.document(
        demo.facts
        | {
            "checkpoints": lines,
            "flights": job.consumed,
            "flights_without_tail_number": unkeyed,
            "directory": demo.place,
            "seconds": round(seconds, 1),
            "next": command,
        }
    )


def _program() -> str:
    """Return how the reader runs the command: by name, or by the path of this run (make demo)."""
    if shutil.which("statestore"):
        return "statestore"
    run_by = Path(sys.argv[0])
    return shlex.quote(str(run_by)) if run_by.name == "statestore" else "python -m statestore"
