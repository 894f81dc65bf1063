"""Run a live query for long on an S3 server with a bad network, and interfere with it.

The query runs in a process of its own (``driver.py``). This process writes its events, restarts it,
and runs the commands of an operator: garbage collection, purges, compactions and copies. All of
them use the server through a proxy with latency, a limited bandwidth and random faults. Now and
then the server is unreachable.

At each interference the restored state must equal the state that DuckDB computes from the events.
"""

from __future__ import annotations

import csv
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

from statestore import OperatorKey, StateStore
from statestore.errors import CommitConflictError, StorageError
from statestore.format.names import writer_path
from statestore.restarts import brief
from statestore.storage.s3 import S3Storage
from tests.endurance.driver import FAILED, STOPPED
from tests.endurance.job import Job
from tests.endurance.sampler import Sampler, object_counts, own_figures, process_figures
from tests.endurance.workload import (
    OPERATOR,
    STATE,
    Totals,
    add_file,
    expected_state,
    victim,
)
from tests.servers.flaky_proxy import Fault, FlakyProxy, Weather, flaky_proxy
from tests.servers.s3 import S3Server, s3_server

__all__ = ["GC_SECONDS", "MINIMUM_AGE_S", "OUTAGE_SECONDS", "Endurance", "run"]

R = TypeVar("R")

AHEAD = 3
"""How many files of events the query has not processed yet."""
INTERVAL = "3s"
"""The time between micro-batches."""
GC_SECONDS, MINIMUM_AGE_S = 60.0, 120
"""The time between garbage collections, and their minimum age, far above the longest batch."""
OUTAGE_SECONDS = 15.0
SHORTEST_SECONDS = 60.0
"""The shortest time between two interferences."""
SHORTEST_HEAP_SECONDS = 20.0
"""The shortest time between two full collections of the JVM, after which its heap is sampled."""
INTERFERENCES = ("purge", "takeover", "outage", "stop")
KILLS = (0.08, 0.16)
"""When the process is killed, as shares of the run. The last process runs to the end, so that a
leak is seen."""
KEPT_COPIES = 3
ATTEMPTS = 10
PARALLELISM = 3

WEATHER = Weather(
    latency_seconds=(0.001, 0.015),
    bytes_per_second=20e6,
    faults={
        Fault.BUSY: 0.004,
        Fault.LOST: 0.003,
        Fault.RESET: 0.002,
        Fault.CUT: 0.002,
        Fault.STILL: 0.001,
        Fault.SILENT: 0.001,
        Fault.STALE: 0.01,
    },
)


@dataclass(frozen=True)
class Where:
    """The places of a run: its folder, the server, and the proxy in front of it."""

    folder: Path
    server: S3Server
    proxy: FlakyProxy

    def url(self, name: str) -> str:
        """Return the URL of the store or of its copies."""
        return self.server.url(name)

    def open(self, name: str) -> StateStore:
        """Open a store through the proxy, as a new writer."""
        return StateStore.open(self.url(name), storage_options=self.options)

    def behind(self, name: str) -> S3Storage:
        """Return a store's storage without the proxy, for samples."""
        return S3Storage(self.url(name), self.server.options)

    @property
    def options(self) -> dict[str, Any]:
        """The storage options, through the proxy."""
        return self.server.through(self.proxy.endpoint)


class Notes:
    """The files of a run: one CSV of commits, and one line of JSON for everything else."""

    def __init__(self, folder: Path, files: ExitStack) -> None:
        self._begun, self._lock = time.monotonic(), threading.Lock()
        self._events: TextIO = files.enter_context((folder / "events.jsonl").open("w"))
        commits = files.enter_context((folder / "commits.csv").open("w", newline=""))
        self._commits, self._rows = commits, csv.writer(commits)
        self._has_header = False
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()

    @property
    def second(self) -> float:
        """The seconds since the begin."""
        return round(time.monotonic() - self._begun, 1)

    def note(self, event: str, **members: Any) -> None:
        """Add an event."""
        with self._lock:
            self.counts[event] += 1
            document = {"second": self.second, "event": event, **members}
            self._events.write(json.dumps(document) + "\n")
            self._events.flush()

    def problem(self, text: str) -> None:
        """Add an event that fails the run."""
        self.problems.append(text)
        self.note("problem", what=text)
        print(f"problem: {text}", flush=True)

    def commit(self, members: Mapping[str, Any]) -> None:
        """Add a committed checkpoint."""
        with self._lock:
            self.counts["commit"] += 1
            row = {"second": self.second, **members}
            if not self._has_header:
                self._rows.writerow(row)
                self._has_header = True
            self._rows.writerow(row.values())
            self._commits.flush()


class Endurance:
    """The state of a run, and its interferences; one thread calls all methods but :meth:`hear`."""

    def __init__(self, where: Where, notes: Notes, seconds: float, seed: int) -> None:
        self.where, self.notes, self.seconds = where, notes, seconds
        self.purge, self.purged = 0, list[str]()
        self._moments = random.Random(seed)
        self._events = where.folder / "events"
        self._events.mkdir()
        self._written = self.done = 0
        self._heap: dict[str, float] = {"live_bytes": 0, "non_heap_bytes": 0}
        self._written_lock = threading.Lock()
        self.job: Job | None = None
        self._storages = {name: where.behind(name) for name in ("store", "copies")}

    def hear(self, document: dict[str, Any]) -> None:
        """Record what the job says, and write the next events after a commit."""
        event = document["event"]
        members = {name: value for name, value in document.items() if name != "event"}
        if event == "commit":
            self.notes.commit(members)
            self.done = max(self.done, members["batch"] + 1)
            self.write_events()
        elif event == "heap":
            self._heap = members
        else:
            self.notes.note(f"job {event}", **members)
            if event == FAILED:
                self.notes.problem(f"the query ended: {members['what']}")

    def write_events(self) -> int:
        """Write the files that the query lacks; return the number of all files."""
        with self._written_lock:
            while self._written < self.done + AHEAD:
                add_file(self._events, self._written, self.purge)
                self._written += 1
            return self._written

    def figures(self) -> dict[str, float]:
        """Return a sample."""
        job = self.job
        processes = [] if job is None else job.processes()
        driver = 0 if job is None else job.pid
        found = {
            "second": self.notes.second,
            "driver_pid": driver,
            **process_figures(driver, processes),
            **own_figures(),
        }
        found |= {f"jvm_{name}": value for name, value in self._heap.items()}
        for name, storage in self._storages.items():
            found |= object_counts(storage, name)
        temporary = 0 if job is None else sum(1 for _ in job.temporary.iterdir())
        return found | {"temporary": temporary, "batches": self.done}

    def start_process(self) -> None:
        """Start the process and the query."""
        places = {
            "events": str(self._events),
            "location": str(self.where.folder / "location"),
            "store": self.where.url("store"),
            "options": self.where.options,
            "interval": INTERVAL,
            "heap_seconds": max(self.seconds / 60, SHORTEST_HEAP_SECONDS),
        }
        self.job = Job(self.where.folder, places, self.hear)
        self.start()

    def start(self) -> None:
        """Start the query at a random parallelism."""
        assert self.job is not None
        parallelism = self._moments.randint(1, PARALLELISM)
        self.notes.note("start", parallelism=parallelism)
        self.job.tell(f"start {parallelism}")

    def halt(self) -> None:
        """End the query, also within a micro-batch; the process stays."""
        assert self.job is not None
        self.job.tell("stop")
        self.job.wait_for(STOPPED)

    def stop(self) -> None:
        """Stop the query, check its state, and start it again."""
        self.halt()
        self.check("store")
        self.start()

    def kill(self) -> None:
        """Kill the process, check the state, and start another process."""
        assert self.job is not None
        self.wait_for_batches(self.done + 1)
        self.job.kill()
        self.job = None
        self.check("store")
        self.start_process()

    def outage(self) -> None:
        """Let the server refuse all requests for some seconds, then check the state."""
        self.where.proxy.fail(Fault.BUSY)
        time.sleep(OUTAGE_SECONDS)
        self.where.proxy.calm()
        self.check("store")

    def takeover(self) -> None:
        """Compact the store while the query runs: it loses the store, and must reopen it."""
        self.again("compact", lambda: self.where.open("store").maintenance.compact(everything=True))
        self.check("store")

    def purge_next(self) -> None:
        """Stop the query, remove a key from all checkpoints, and start the query again."""
        gone = victim(self.purge)
        self.purge += 1
        last = self.write_events()
        self.wait_for_batches(last)
        self.halt()
        self.again(
            "purge",
            lambda: self.where.open("store").maintenance.forget(
                OperatorKey(OPERATOR, gone), search=False
            ),
        )
        self.purged.append(gone)
        self.check("store")
        self.start()

    def wait_for_batches(self, number: int) -> None:
        """Wait until the query has committed this many micro-batches."""
        deadline = time.monotonic() + 180
        while self.done < number:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.done} of {number} micro-batches were committed in 180 s")
            time.sleep(0.2)

    def collect(self) -> None:
        """Collect the garbage of both stores, and expire old copies."""
        age = f"{MINIMUM_AGE_S}s"

        def collect(name: str) -> None:
            garbage = self.where.open(name).maintenance.gc(minimum_age=age)
            self.notes.note(
                f"gc of {name}",
                removed=garbage.removed.files,
                live=garbage.live.files,
                young=garbage.young.files,
                log_files=garbage.log_files.files,
                leftovers=garbage.leftovers,
                claims=len(garbage.claims),
            )

        self.again("gc", lambda: collect("store"))
        if self.notes.counts["copy"]:
            self.again("gc", lambda: collect("copies"))

    def copy(self) -> None:
        """Copy the newest checkpoint, compare the copy with the input, and expire old copies."""

        def copy() -> None:
            source, target = self.where.open("store"), self.where.open("copies")
            with source.maintenance.pin(lease="10m") as pinned:
                copied = source.maintenance.copy(pinned.checkpoint_id, target)
            self.notes.note("copied", files=copied.copied_files, size_bytes=copied.copied_bytes)
            target.maintenance.expire(retain=KEPT_COPIES)

        self.again("copy", copy)
        self.check("copies")

    def check(self, name: str) -> None:
        """Compare the newest checkpoint of a store with the input."""

        def restore() -> tuple[Totals, int]:
            store = self.where.open(name)
            with store.maintenance.pin(lease="10m") as pinned:
                return self._restore(store, pinned.checkpoint_id)

        state, files = self.again(f"restore of {name}", restore)
        if files > self._written:
            self.notes.problem(f"{name} has {files} files of events, of {self._written}")
        expected = expected_state(self._events, files, self.purged)
        self._compare(name, state, expected, files)

    def _compare(self, name: str, state: Totals, expected: Totals, files: int) -> None:
        wrong = [key for key in {*state, *expected} if state.get(key) != expected.get(key)]
        if wrong:
            examples = [(key, state.get(key), expected.get(key)) for key in sorted(wrong)[:5]]
            self.notes.problem(
                f"{name} differs from {files} files of events in {len(wrong)} of {len(expected)} "
                f"keys (key, restored, expected): {examples}"
            )
        else:
            self.notes.note("equal", store=name, files=files, keys=len(expected))

    def _restore(self, store: StateStore, checkpoint: int) -> tuple[Totals, int]:
        """Return the rows of a checkpoint, and the number of files of events in it."""
        parallelism = self._moments.randint(1, PARALLELISM + 2)
        restored = store.restore(checkpoint=checkpoint, parallelism=parallelism)
        totals: Totals = {}
        for subtask in range(parallelism):
            rows = restored.keyed(OPERATOR, STATE).to_arrow(subtask)
            columns = (rows.column(column).to_pylist() for column in ("key", "n", "amount"))
            totals |= {key: (n, amount) for key, n, amount in zip(*columns, strict=True)}
        ((position,),) = restored.operator_state("source", "positions").per_old_subtask()
        return totals, json.loads(position["ends_at"])["logOffset"] + 1

    def again(self, what: str, command: Callable[[], R]) -> R:
        """Run a command until it succeeds, as its errors advise, and note its duration."""
        for attempt in itertools.count(1):
            begun = time.monotonic()
            try:
                result = command()
            except (StorageError, CommitConflictError) as error:
                self.notes.note(f"{what} failed", attempt=attempt, what=brief(error))
                if attempt == ATTEMPTS:
                    raise
                time.sleep(2)
            else:
                self.notes.note(what, seconds=round(time.monotonic() - begun, 2), attempt=attempt)
                return result
        raise AssertionError("the loop over attempts must not end")

    def finish(self) -> None:
        """Stop the query; check both stores completely, and the absence of purged keys."""
        self.halt()
        self.check("store")
        self.copy()
        for name in self._storages:
            self._verify(self.where.open(name), name)
        maintenance = self.where.open("store").maintenance
        for key in self.purged:
            subject = OperatorKey(OPERATOR, key)
            search = self.again("find", partial(maintenance.find_subject, subject))
            if not search.is_gone:
                self.notes.problem(f"the purged key {key} is not gone: {search.problem}")
        assert self.job is not None
        self.job.end()
        self.job = None

    def _verify(self, store: StateStore, name: str) -> None:
        """Collect all garbage, as nothing runs any more, and read every kept checkpoint."""
        maintenance = store.maintenance
        self.again(f"last gc of {name}", partial(maintenance.gc, minimum_age="0s"))
        report = self.again(f"verify {name}", partial(maintenance.verify, "all", deep=True))
        if not (report.is_intact and report.is_complete):
            self.notes.problem(f"{name} is damaged: {report}")


def schedule(seconds: float) -> Iterator[tuple[float, str]]:
    """Yield the moments of a run, in seconds, and what happens then, in order."""
    every = max(seconds / 24, SHORTEST_SECONDS)
    moments = [(share * seconds, "kill") for share in KILLS]
    names = itertools.cycle(INTERFERENCES)
    moments += [
        (every * (number + 0.5), next(names)) for number in range(int(seconds / every - 0.5))
    ]
    moments += [(every * number, "copy") for number in range(1, int(seconds / every))]
    moments += [(GC_SECONDS * n, "gc") for n in range(1, int(seconds / GC_SECONDS))]
    yield from sorted(moments)


def interfere(endurance: Endurance) -> None:
    """Run the schedule."""
    actions = {
        "kill": endurance.kill,
        "purge": endurance.purge_next,
        "takeover": endurance.takeover,
        "outage": endurance.outage,
        "stop": endurance.stop,
        "copy": endurance.copy,
        "gc": endurance.collect,
    }
    begun, seconds = time.monotonic(), endurance.seconds
    for moment, name in schedule(seconds):
        if time.monotonic() - begun > seconds:
            endurance.notes.note("late", left=name, planned=moment)
            break
        time.sleep(max(begun + moment - time.monotonic(), 0))
        endurance.notes.note("begin", what=name)
        actions[name]()
    time.sleep(max(begun + seconds - time.monotonic(), 0))


@contextmanager
def services(folder: Path) -> Iterator[Where]:
    """Run the server and the proxy until the block ends."""
    with s3_server(folder / "s3") as server, flaky_proxy(server.endpoint) as proxy:
        yield Where(folder, server, proxy)


def prepare(where: Where, name: str) -> None:
    """Create and upgrade a store, and delete its first claim, as gc does 30 days after an upgrade.

    Claims are deleted in their order, so all claims would otherwise stay for 30 days.
    """
    store = where.open(name)
    with store.snapshot(parallelism=1):
        pass
    store.maintenance.upgrade()
    with where.open(name).snapshot(parallelism=1):  # the two newest claims stay
        pass
    where.behind(name).delete(writer_path(1))


def run(folder: Path, minutes: float, seed: int = 1) -> list[str]:
    """Run for this many minutes; write samples, commits and events into ``folder``.

    Returns the problems: wrong states, a query that ended, keys that are not gone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        where = files.enter_context(services(folder))
        notes = Notes(folder, files)
        for name in ("store", "copies"):
            prepare(where, name)
        where.proxy.weather = WEATHER
        seconds = minutes * 60
        endurance = Endurance(where, notes, seconds, seed)
        endurance.write_events()
        try:
            endurance.start_process()
            with Sampler(
                folder / "samples.csv", max(seconds / 600, 5.0), endurance.figures
            ) as sampler:
                interfere(endurance)
                endurance.finish()
            if sampler.error is not None:
                notes.problem(f"the sampler failed: {brief(sampler.error)}")
        finally:
            if endurance.job is not None:
                endurance.job.kill()
            notes.note("requests", **where.proxy.counts)
    return notes.problems
