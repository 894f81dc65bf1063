"""Kill a real streaming job many times: ``python -m tests.streaming.kills --count 50``.

The job (``tests/streaming/driver.py``) keeps totals by key of events that have ids. At a random
moment all of its processes get SIGKILL together: Python, the JVM and Spark's Python workers. Then
it is started again at another parallelism.

After each kill the newest checkpoint is read without Spark. Its state must equal the totals that
plain Python computes from the files in the checkpoint, so a lost or duplicated event is detected.
At the end the job finishes, and the state must have the totals of all events.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable

from statestore import StateStore
from statestore.errors import CheckpointNotFoundError, StoreNotFoundError
from tests.faults.kills import Pace, Victim
from tests.streaming.driver import (
    COLUMNS,
    DONE,
    PROCESSOR,
    UPDATE,
    Totals,
    add_file,
    totals_of,
)

__all__ = ["Found", "kill_many", "main"]

AHEAD = 6
"""The default number of files available to a job, so that it is killed before it is done."""
MOST = 8


@dataclass
class Found:
    """The result of the kills: wrong states, and the number of kills at each kind of moment."""

    problems: list[str] = field(default_factory=list)
    kills: int = 0
    checkpoints: int = 0
    events_files: int = 0
    unknown: int = 0
    """Kills after a commit that Spark had not recorded yet: the micro-batch ran again."""
    begun: int = 0
    """Kills in a micro-batch that Spark had planned, but the store had not committed."""


class Job(Victim):
    """The running job, which begins when it receives its parallelism."""

    module = "tests.streaming.driver"


def kill_many(count: int, seed: int, folder: Path, form: str = UPDATE, ahead: int = AHEAD) -> Found:
    """Start the job, kill it and check the newest checkpoint ``count`` times; then let it finish.

    Returns the result. The query has an update function or a processor, whose output is checked
    too. ``ahead`` files are available to each job.
    """
    moments, found, pace, files = random.Random(seed), Found(), Pace(), 0
    (folder / "in").mkdir()
    parallelism = 0
    for number, job in enumerate(jobs(folder, count + 1), start=1):
        _, done = newest(folder)
        last = number > count
        while files < done + ahead and not last:
            add_file(folder / "in", files)
            files += 1
        parallelism = moments.choice([p for p in range(1, MOST + 1) if p != parallelism])
        with job:
            job.begin(f"{parallelism} {form}")
            if last:
                job.wait_for(DONE)
            else:
                live(job, moments, pace)
        judge(folder, found, files if last else None)
        found.kills += not last
        print(
            f"{'the end' if last else f'kill {number} of {count}'} at parallelism {parallelism}: "
            f"{found.checkpoints} "
            f"checkpoints, {found.events_files} files of events in the state, "
            f"{len(found.problems)} wrong",
            flush=True,
        )
    if form == PROCESSOR and output_of(folder) != totals_of(range(files)):
        found.problems.append(f"the output is not that of {files} files")
    return found


def output_of(folder: Path) -> Totals:
    """Return the sums over all output rows."""
    rows = DeltaTable(str(folder / "out")).to_pyarrow_table().to_pylist()
    totals: Totals = {}
    for row in rows:
        key, *added = (row[name] for name in COLUMNS)
        n, amount, ids, squares = map(sum, zip(totals.get(key, (0, 0, 0, 0)), added, strict=True))
        totals[key] = n, amount, ids, squares
    return totals


def live(job: Job, moments: random.Random, pace: Pace) -> None:
    """Let a job commit some micro-batches, and return at a moment in the next one."""
    for batch in range(moments.choice((0, 0, 1, 2, 3))):
        begun = time.monotonic()
        job.wait_for(None)
        pace.learn(batch, time.monotonic() - begun)
    time.sleep(moments.random() * pace.of(len(job.said)))


def jobs(folder: Path, count: int) -> Iterator[Job]:
    """Yield jobs one after another; the JVM of the next one starts while one is running."""
    spare = Job(folder, 1)
    for number in range(1, count + 1):
        job, spare = spare, Job(folder, number + 1) if number < count else spare
        yield job


def newest(folder: Path) -> tuple[Totals, int]:
    """Return the state of the newest checkpoint, and the number of its event files."""
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    try:
        restored = store.restore(parallelism=1)
    except (CheckpointNotFoundError, StoreNotFoundError):
        return {}, 0
    rows = restored.keyed("totals", "by-key").to_arrow(0).to_pylist()
    totals = {r["key"]: (r["n"], r["amount"], r["ids"], r["squares"]) for r in rows}
    ((position,),) = restored.operator_state("source", "positions").per_old_subtask()
    offset = json.loads(position["ends_at"])["logOffset"]
    return totals, offset + 1


def judge(folder: Path, found: Found, all_files: int | None) -> None:
    """Compare the newest checkpoint with plain Python; record Spark's position."""
    totals, files = newest(folder)
    if totals != totals_of(range(files)):
        found.problems.append(f"after {found.kills} kills: not the state of {files} files")
    if all_files is not None and files != all_files:
        found.problems.append(f"{files} of {all_files} files are in the end in the state")
    if files < found.events_files:
        found.problems.append(f"{found.events_files} files were in the state, and now {files}")
    found.events_files = files
    if not files:
        return
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    found.checkpoints = len(store.checkpoints())
    elements = store.restore().operator_state("source", "progress").per_old_subtask()[0]
    batch = elements[-1]["batch"]
    found.unknown += batch > _last(folder / "progress" / "commits")
    found.begun += batch < _last(folder / "progress" / "offsets")


def _last(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)


def main() -> int:
    """Run the command; the exit code is 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.streaming.kills", description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processor", action="store_true", help="the query is of a processor")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="statestore-streaming-kills-"))
    try:
        form = PROCESSOR if options.processor else UPDATE
        found = kill_many(options.count, options.seed, folder, form)
    except BaseException:
        print(f"the store and the job's log stay in {folder}")
        raise
    shutil.rmtree(folder)
    for problem in found.problems:
        print(problem)
    print(
        f"{found.kills} kills, {found.checkpoints} checkpoints, {found.events_files} files of "
        f"events; {found.begun} within a micro-batch, {found.unknown} after a commit of which "
        f"Spark did not know; {len(found.problems)} wrong"
    )
    return 1 if found.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
