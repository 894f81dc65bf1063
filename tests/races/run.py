"""Run races of 2 to 8 processes for one store, and check each of them.

``tests/races/check.py`` compares the reports of the writers with the store. A linearizability
checker judges what they and their readers saw, see ``tests/linearizability``.

    python -m tests.races.run --races 1000
    python -m tests.races.run --races 1000 --s3 --seconds 1500
    python -m tests.races.run --races 1000 --s3 minio --bad-network

The processes run for the whole command. Each takes part in one race per lane at a time. On S3 there
are many lanes, because the test server delays the loser of a colliding put for seconds. Prints
counts, and every problem with the seed that draws the same race again. The exit code is 1 if there
was a problem. With ``--release 0.1.0`` every other writer is of that release, which
``make build/release-0.1.0/.ready`` builds.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.linearizability.history import History
from tests.linearizability.judge import violations
from tests.races.check import problems
from tests.races.history import history_of
from tests.races.plan import MOST_WRITERS, Look, Race, Try, draw
from tests.races.worker import Task, run_worker
from tests.servers.bad_network import bad_network
from tests.servers.ceph import ceph_server
from tests.servers.flaky_proxy import LATE_SECONDS
from tests.servers.s3 import s3_server
from tests.servers.s3_access import S3Access
from tests.servers.s3_zoo import COMPATIBLE, s3_zoo_server
from tests.versions.peer import process_of
from tests.versions.releases import RELEASES, Release

__all__ = ["CEPH", "SEAWEEDFS", "TREE", "Place", "Result", "main", "on_disk", "on_s3", "run_races"]

DISK_LANES, S3_LANES, BAD_NETWORK_LANES = 2, 32, 8
DISK_UNIT, S3_UNIT = 0.02, 0.2
LEAD_SECONDS = 0.005
PATIENCE_SECONDS = 300
TREE = "this tree"
SEAWEEDFS, CEPH = "seaweedfs", "ceph"
RELEASED_WORKER = "tests.versions.race_worker"


@dataclass(frozen=True)
class Place:
    """Where stores are created, how many at a time, and how long a stall takes there."""

    root: str
    options: dict[str, Any]
    lanes: int
    unit: float
    settle_seconds: float = 0
    """The time until requests of an ended race have arrived at the server."""

    def clear(self, url: str) -> None:
        """Remove a store after its race; on S3 the whole server is removed later."""
        if not self.options:
            shutil.rmtree(url)


@dataclass
class Result:
    """Counts of a run, and the problems in it."""

    races: int = 0
    writers: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    winners: Counter[str] = field(default_factory=Counter)  # by their release
    problems: list[str] = field(default_factory=list)

    def add(self, race: Race, tries: list[Try], found: list[str], releases: Sequence[str]) -> None:
        """Add one race to the counts; ``releases`` has the release of each writer."""
        self.races += 1
        self.writers += len(race.parts)
        for each in tries:
            replaced = each.outcome == "conflict" and "has taken over" in each.message
            self.outcomes["replaced" if replaced else each.outcome] += 1
            if each.outcome == "committed":
                self.winners[releases[each.writer]] += 1
        self.problems += found

    def __str__(self) -> str:
        """Return the counts as one line."""
        outcomes = ", ".join(f"{number} {name}" for name, number in sorted(self.outcomes.items()))
        return (
            f"{self.races} races of {self.writers} writers: {outcomes}; "
            f"{len(self.problems)} problems"
        )


@contextmanager
def on_disk() -> Iterator[Place]:
    """Yield a place in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="races-") as folder:
        yield Place(folder, {}, DISK_LANES, DISK_UNIT)


@contextmanager
def on_s3(name: str = SEAWEEDFS, *, over_a_bad_network: bool = False) -> Iterator[Place]:
    """Yield a place on an S3 server that this run starts: SeaweedFS, Ceph, or one of ``ZOO``."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="races-")))
        server = stack.enter_context(_running(name, folder))
        if over_a_bad_network:
            server = stack.enter_context(bad_network(server)).server
        options = server.options
        options["config_kwargs"] |= {"max_pool_connections": S3_LANES}
        url = server.url("races")
        if over_a_bad_network:
            yield Place(url, options, BAD_NETWORK_LANES, S3_UNIT, 2 * LATE_SECONDS)
        else:
            yield Place(url, options, S3_LANES, S3_UNIT)


def _running(name: str, folder: Path) -> AbstractContextManager[S3Access]:
    if name == SEAWEEDFS:
        return s3_server(folder)
    return ceph_server(folder) if name == CEPH else s3_zoo_server(name, folder)


def run_races(
    place: Place,
    races: int,
    *,
    seed: int,
    seconds: float,
    verbose: bool,
    release: Release | None = None,
) -> Result:
    """Run races until the requested number is reached or the time is over.

    With ``release``, every other writer is of that release.
    """
    result, numbers, deadline = Result(), count(1), time.monotonic() + seconds
    histories: dict[int, History] = {}
    releases = [release if release and writer % 2 else None for writer in range(MOST_WRITERS)]
    names = [release.version if release else TREE for release in releases]
    with _workers(place.lanes, releases) as lanes, ThreadPoolExecutor(place.lanes) as drivers:

        def drive(lane: list[Connection]) -> None:
            while (number := next(numbers)) <= races and time.monotonic() < deadline:
                race = draw(number, seed, place.unit)
                url = f"{place.root}/{number:06}"
                try:
                    tries, looks, found = _race(race, url, place, lane)
                    histories[number] = history_of(tries, looks)
                except Exception as error:  # noqa: BLE001 - a run tells of all its races
                    tries, found = [], [f"race {number}: {error!r}"]
                result.add(race, tries, found, names)
                if found:
                    print(*found, f"(seed {seed})", sep="\n", flush=True)
                elif result.races % 50 == 0 and verbose:
                    print(result, flush=True)
                if not found:
                    place.clear(url)

        for driven in [drivers.submit(drive, lane) for lane in lanes]:
            driven.result()
    for number, violated in zip(histories, violations([*histories.values()]), strict=True):
        result.problems += [f"race {number}: not linearizable as a {model}" for model in violated]
    return result


def _race(
    race: Race, url: str, place: Place, lane: list[Connection]
) -> tuple[list[Try], list[Look], list[str]]:
    start = time.monotonic() + LEAD_SECONDS
    mine = lane[: len(race.parts)]
    for connection, part in zip(mine, race.parts, strict=True):
        connection.send(Task(url, place.options, race.number, part, start, race.table_format))
    tries: list[Try] = []
    looks: list[Look] = []
    found: list[str] = []
    for connection in mine:
        if not connection.poll(PATIENCE_SECONDS):
            raise TimeoutError(f"a writer of race {race.number} does not answer")
        answer = connection.recv()
        if isinstance(answer, str):
            found.append(f"race {race.number}: a writer met {answer}")
        else:
            tries += answer[0]
            looks += answer[1]
    time.sleep(place.settle_seconds)
    late = place.settle_seconds > 0
    found = found or problems(race, tries, url, place.options, may_arrive_late=late)
    return tries, looks, found


@contextmanager
def _workers(lanes: int, releases: Sequence[Release | None]) -> Iterator[list[list[Connection]]]:
    """Start a process of each release; yield, for each lane, a connection to each process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.races.worker"])
    ours: list[list[Connection]] = [[] for _ in range(lanes)]
    processes = []
    with contextlib.ExitStack() as released:
        try:
            for release in releases:
                pairs = [context.Pipe() for _ in range(lanes)]
                for lane, (end, _) in zip(ours, pairs, strict=True):
                    lane.append(end)
                theirs = [end for _, end in pairs]
                if release is not None:
                    released.enter_context(process_of(release, RELEASED_WORKER, theirs))
                    continue
                process = context.Process(target=run_worker, args=(theirs,), daemon=True)
                process.start()
                processes.append(process)
                for end in theirs:
                    end.close()
            yield ours
        finally:
            for end in itertools.chain.from_iterable(ours):
                end.close()
            for process in processes:
                process.join(PATIENCE_SECONDS)


def main(arguments: list[str] | None = None) -> int:
    """Run the command with these arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.races.run", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--races", type=int, default=1000, help="how many; 1000")
    parser.add_argument("--seed", type=int, default=1, help="draws other races; 1")
    parser.add_argument("--seconds", type=float, default=3600, help="stop after these; 3600")
    parser.add_argument(
        "--s3",
        nargs="?",
        const=SEAWEEDFS,
        choices=(SEAWEEDFS, *COMPATIBLE, CEPH),
        help=f"on this S3 server, not on disk; {SEAWEEDFS} if none is named",
    )
    parser.add_argument(
        "--bad-network", action="store_true", help="reach the S3 server over a bad network"
    )
    versions = {release.version: release for release in RELEASES}
    parser.add_argument("--release", choices=versions, help="every other writer is of it")
    asked = parser.parse_args(arguments)
    if asked.bad_network and not asked.s3:
        parser.error("--bad-network needs --s3")
    release = versions.get(asked.release)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(
            on_s3(asked.s3, over_a_bad_network=asked.bad_network) if asked.s3 else on_disk()
        )
        result = run_races(
            place,
            asked.races,
            seed=asked.seed,
            seconds=asked.seconds,
            verbose=True,
            release=release,
        )
    print(f"{result}, in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if result.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
