"""``statestore demo``: half of the flights at parallelism 4, the rest at 7, and the verification.

The demo leaves three entries in DIR: ``flights`` (the input), ``store`` (with its checkpoints) and
``uninterrupted`` (the store of a run without a stop). If DIR is not empty, it is not changed. The
demo then uses the first free subdirectory ``demo-2``, ``demo-3``, …. Nothing is ever deleted.

DIR can also be the URL of a prefix in a bucket. Then the stores are there, and the input is in a
temporary directory on this machine while the demo runs.

The verification compares every state with an uninterrupted run twice: row by row, and by the
digests in the two manifests. The rows are the proof. The digests show that the manifests alone are
sufficient for a comparison.
"""

from __future__ import annotations

import itertools
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore.cli.drawing import range_text
from statestore.demo.flights import MONTHS, FlightLog, read_flights, write_log
from statestore.demo.job import (
    AIRCRAFT,
    KEY,
    MAX_PARALLELISM,
    SOURCE,
    FlightBatch,
    Job,
    consume,
    elements,
    fold,
    micro_batches,
    partitions_by_subtask,
    restore,
    snapshot,
    start,
)
from statestore.demo.teller import Teller
from statestore.display import duration
from statestore.errors import StorageError
from statestore.spark.session import spark_session
from statestore.storage import open_storage
from statestore.store import StateStore

Elements = Sequence[Sequence[Mapping[str, object]]]


@dataclass(frozen=True)
class StoryComparison:
    """The comparison of one state: its rows, the rows of one side only, and both hex digests."""

    state: str
    rows: int
    differing_rows: int
    digest: str
    uninterrupted_digest: str

    @property
    def equal(self) -> bool:
        """Whether the rows and the digests are equal."""
        return self.differing_rows == 0 and self.digest == self.uninterrupted_digest


def compare(
    store: StateStore, checkpoint: int, reference: StateStore, uninterrupted: Job
) -> list[StoryComparison]:
    """Return one comparison per state of the checkpoint.

    The rows of the checkpoint in ``store`` are compared with the rows that ``uninterrupted``
    computed. ``reference`` has the snapshot of this job; only its digests are used.
    """
    assert uninterrupted.states is not None
    restored = store.restore(checkpoint=checkpoint, parallelism=uninterrupted.parallelism)
    differing = {}
    for name, expected in uninterrupted.states.by_name().items():
        rows = restored.keyed(AIRCRAFT, name).to_spark().drop("key_group")
        differing[AIRCRAFT, name] = differing_rows(rows, expected)
    for name, per_subtask in elements(uninterrupted).items():
        stored = restored.operator_state(SOURCE, name).per_old_subtask()
        differing[SOURCE, name] = _differing_elements(stored, per_subtask)
    other = reference.checkpoint().manifest
    return [
        StoryComparison(
            state=entry.state.name,
            rows=entry.rows,
            differing_rows=differing[entry.state.uid, entry.state.name],
            digest=f"{entry.digest:016x}",
            uninterrupted_digest=f"{other.find(entry.state.uid, entry.state.name).digest:016x}",
        )
        for entry in restored.manifest.entries
    ]


def differing_rows(left: DataFrame, right: DataFrame) -> int:
    """Return how many rows only one of two DataFrames has, counting duplicates."""
    side = "side"
    both = left.withColumn(side, F.lit(1)).unionByName(right.withColumn(side, F.lit(-1)))
    surplus = both.groupBy(*left.columns).agg(F.sum(side).alias(side)).where(F.col(side) != 0)
    total: int | None = surplus.agg(F.sum(F.abs(side))).collect()[0][0]
    return total or 0


def _differing_elements(left: Elements, right: Elements) -> int:
    """Return at how many places (subtask and position) two operator states differ."""
    elements = {
        (subtask, position): e
        for subtask, mine in enumerate(left)
        for position, e in enumerate(mine)
    }
    wanted = {
        (subtask, position): e
        for subtask, mine in enumerate(right)
        for position, e in enumerate(mine)
    }
    return sum(
        elements.get(place) != wanted.get(place) for place in elements.keys() | wanted.keys()
    )


OLD_PARALLELISM = 4
NEW_PARALLELISM = 7
TABLE_FORMAT = "delta"
# Besides micro-batches: flights, Spark, writing, 3 snapshots, plan, restore, reference, proof.
OTHER_STEPS = 10


@dataclass(frozen=True)
class Taken:
    """A row of the final table: a checkpoint of the demo's store."""

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
    """The shared data of the demo's parts; ``facts`` become the JSON document."""

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
        """Return the store of the job that runs without a stop."""
        # Digests depend only on rows, not on the table format or the number of files.
        return self._open("uninterrupted", "parquet")

    def consume(self, job: Job, batches: Sequence[FlightBatch]) -> Job:
        """Run some micro-batches, and show the progress; return the job after them."""
        for number, batch in enumerate(batches, start=1):
            what = f"parallelism {job.parallelism}, micro-batch {number} of {len(batches)}"
            with self.teller.step(what):
                job = consume(self.spark, self.log, job, batch)
        return job

    def snapshot(self, job: Job, layout: str = "partitioned") -> int:
        """Take a checkpoint, and record it for the final table."""
        began = time.monotonic()
        with self.teller.step(f"parallelism {job.parallelism}, snapshot, {layout}"):
            number = snapshot(self.store(), job, layout)
        seconds = time.monotonic() - began
        manifest = self.store().checkpoint(number).manifest
        size = (manifest.rows, manifest.size_bytes, manifest.files)
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
    """Run the whole demo; return 0 if the states are equal, 1 if they are not.

    ``place`` is a directory, or the URL of a prefix in a bucket, for which ``storage_options`` are
    used. ``output`` is text or json. ``flights_per_month`` limits the number of flights in each
    month. Raises MissingDependencyError if the flights, a suitable Java version or Delta's jar is
    missing, StorageError if the directory cannot be created, and the errors of snapshot and
    restore.
    """
    began = time.monotonic()
    with Teller(output) as teller, ExitStack() as until_the_end:
        with teller.step("reading the flights"):
            flights = read_flights()
        if "://" in place:
            place = _fresh_prefix(place.rstrip("/"), storage_options, teller)
            directory = Path(until_the_end.enter_context(tempfile.TemporaryDirectory()))
        else:
            directory = _fresh_folder(Path(place), teller).resolve()
            place = str(directory)
        with teller.step("starting Spark"):
            spark = spark_session(app_name="statestore-demo")
        with teller.step("writing the flights as 12 partitions"):
            log = write_log(flights, directory / "flights", flights_per_month)
        demo = Demo(teller, spark, place, storage_options, log)
        teller.say(
            f"{log.rows:,} flights out of New York in 2013, as a topic with 12 monthly "
            "partitions.\n"
            "State of each aircraft: totals (value), routes (map), last five flights (list)."
        )
        checkpoint = _first_half(demo)
        _print_plan(demo, checkpoint)
        checkpoint, job = _second_half(demo, checkpoint)
        equal = _prove(demo, checkpoint)
        _print_end(demo, job, time.monotonic() - began)
    return 0 if equal else 1


def _fresh_folder(directory: Path, teller: Teller) -> Path:
    """Return ``directory`` if it is new or empty, otherwise a new directory in it."""
    try:
        if not directory.exists() or not any(directory.iterdir()):
            directory.mkdir(parents=True, exist_ok=True)
            return directory
        names = (directory / f"demo-{number}" for number in itertools.count(2))
        mine = next(path for path in names if not path.exists())
        mine.mkdir()
    except OSError as error:
        raise StorageError(
            f"cannot write to the directory {directory}: choose another one, for example: "
            "statestore demo DIR"
        ) from error
    teller.say(f"{directory} is not empty and is not changed; this demo uses {mine}.")
    return mine


def _fresh_prefix(url: str, storage_options: Mapping[str, Any] | None, teller: Teller) -> str:
    """Return ``url`` if it is empty, otherwise a new prefix below it."""
    names = itertools.chain([url], (f"{url}/demo-{number}" for number in itertools.count(2)))
    mine = next(name for name in names if open_storage(name, storage_options).is_empty())
    if mine != url:
        teller.say(f"{url} is not empty and is not changed; this demo uses {mine}.")
    return mine


def _first_half(demo: Demo) -> int:
    half = demo.log.rows // 2
    job = start(demo.log, OLD_PARALLELISM)
    batches = micro_batches(job.offsets, demo.log.ends, OLD_PARALLELISM, half)
    # The later batches are computed in advance for the length of the bar; the offsets repeat them.
    later = micro_batches(batches[-1].stops, demo.log.ends, NEW_PARALLELISM, demo.log.rows)
    demo.teller.expect(OTHER_STEPS + len(batches) + len(later))
    job = demo.consume(job, batches)
    checkpoint = demo.snapshot(job)
    demo.teller.say(
        f"1. At parallelism {OLD_PARALLELISM} the job consumed {job.consumed:,} flights in "
        f"{len(batches)} micro-batches,\n   took checkpoint {checkpoint}, and was stopped."
    )
    return checkpoint


def _print_plan(demo: Demo, checkpoint: int) -> None:
    with demo.teller.step("planning the restore"):
        plan = demo.store().plan(parallelism=NEW_PARALLELISM, checkpoint=checkpoint)
    subtasks = next(plan.subtasks for plan in plan.operators if plan.operator == AIRCRAFT)
    demo.facts["plan"] = [asdict(subtask) for subtask in subtasks]
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
        f"3. Restored at parallelism {NEW_PARALLELISM}. The source subtasks continue from "
        "these offsets:"
    )
    lines = [(i, ", ".join(_place(demo.log, job, p) for p in mine)) for i, mine in assigned]
    demo.teller.table(("subtask", "continues from"), lines)
    before = job.consumed
    batches = micro_batches(job.offsets, demo.log.ends, NEW_PARALLELISM, demo.log.rows)
    job = demo.consume(job, batches)
    checkpoint = demo.snapshot(job)
    demo.teller.say(
        f"   The job consumed the remaining {job.consumed - before:,} flights in "
        f"{len(batches)} micro-batches and took checkpoint {checkpoint}."
    )
    checkpoint = demo.snapshot(job, "auto")
    few, many = demo.taken[-1].files, demo.taken[-2].files
    demo.teller.say(
        f"   Checkpoint {checkpoint} has the same state again, with layout 'auto': {few} "
        f"files instead of {many}."
    )
    return checkpoint, job


def _place(log: FlightLog, job: Job, partition: int) -> str:
    return f"{MONTHS[partition - 1]} {job.offsets[partition]:,} of {log.ends[partition]:,}"


def _prove(demo: Demo, checkpoint: int) -> bool:
    with demo.teller.step("the same flights without a stop"):
        uninterrupted = _run_uninterrupted(demo)
        snapshot(demo.reference(), uninterrupted, "auto")
    with demo.teller.step("comparing"):
        comparisons = compare(demo.store(), checkpoint, demo.reference(), uninterrupted)
    demo.facts["states"] = [asdict(each) | {"equal": each.equal} for each in comparisons]
    demo.facts["equal"] = all(each.equal for each in comparisons)
    demo.teller.say(
        "4. Compared with one run over all flights, without a stop and without a restore:"
    )
    demo.teller.table(
        ("state", "rows", "differing rows", "digest", "uninterrupted"),
        [
            (c.state, c.rows, c.differing_rows, c.digest, c.uninterrupted_digest)
            for c in comparisons
        ],
    )
    demo.teller.say(_verdict(comparisons))
    return all(each.equal for each in comparisons)


def _run_uninterrupted(demo: Demo) -> Job:
    """Compute the state of a single run over the whole input, without micro-batches or a store."""
    rows = demo.log.read(demo.spark, demo.log.starts, demo.log.ends)
    keyed = fold(None, rows.where(F.col(KEY).isNotNull())).compute()
    counts = rows.where(F.col(KEY).isNull()).groupBy("partition").count().collect()
    unkeyed = dict.fromkeys(demo.log.ends, 0) | {row["partition"]: row["count"] for row in counts}
    return Job(NEW_PARALLELISM, keyed, demo.log.ends, unkeyed)


def _verdict(comparisons: Sequence[StoryComparison]) -> str:
    wrong = [each for each in comparisons if not each.equal]
    if wrong:
        rows = sum(each.differing_rows for each in wrong)
        names = ", ".join(each.state for each in wrong)
        return f"NOT EQUAL: {rows:,} rows differ, in {names}."
    rows = sum(each.rows for each in comparisons)
    return f"Equal: all {rows:,} rows of {len(comparisons)} states, and every digest."


def _print_end(demo: Demo, job: Job, seconds: float) -> None:
    columns = [column.name for column in fields(Taken)]
    lines = [asdict(taken) for taken in demo.taken]
    unkeyed = sum(job.unkeyed.values())
    command = f"{_program()} --store {shlex.quote(f'{demo.place}/store')} show latest"
    rows = [(*astuple(taken)[:-1], duration(1000 * taken.seconds)) for taken in demo.taken]
    demo.teller.table([*columns[:-1], "took"], rows)
    demo.teller.say(
        f"{job.consumed:,} flights consumed. {unkeyed:,} of them have no tail number; the "
        "state unkeyed counts them.\n"
        f"The demo took {duration(1000 * seconds)}. The store is kept; to look at it, run\n"
        "\n"
        f"   {command}"
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
    """Return the command to type: its name, or the path that this run used (make demo)."""
    if shutil.which("statestore"):
        return "statestore"
    run_by = Path(sys.argv[0])
    return shlex.quote(str(run_by)) if run_by.name == "statestore" else "python -m statestore"
