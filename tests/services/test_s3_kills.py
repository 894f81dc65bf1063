"""Kill commands that delete and replace files at random moments, on a real S3 server: I5, I9, I10.

Each command runs in a process of its own, which ``kill -9`` ends while requests are in flight.
After each kill the newest checkpoint restores equal, every kept file is complete, and the same
command succeeds when it is run again. All commands use the same store, so each starts with the
leftovers of the previous kill.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from typing import Any

import pytest

from statestore import OperatorKey, StateStore
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.services, pytest.mark.slow]

# Not forked from this process: neither Arrow's threads nor delta-rs survive a fork.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["deltalake", "s3fs", "statestore.store", __name__])
PATIENCE_S = 120
ROWS = 200


def collect(store: StateStore) -> None:
    store.maintenance.gc(minimum_age="0")


def purge(store: StateStore) -> None:
    store.maintenance.forget(OperatorKey("u", "subject"), search=False)


def compact(store: StateStore) -> None:
    store.maintenance.compact(everything=True)


COMMANDS: tuple[Callable[[StateStore], None], ...] = (collect, purge, compact)


def opened(url: str, options: dict[str, Any], table_format: str) -> StateStore:
    return StateStore.open(url, table_format=table_format, storage_options=options, compaction=None)


def work(
    place: tuple[str, dict[str, Any], str],
    command: Callable[[StateStore], None],
    begins: Event,
) -> None:
    store = opened(*place)
    store.checkpoints()  # the connection is open
    begins.set()
    command(store)


@dataclass
class Killing:
    """A store whose commands are killed; the rows of its newest checkpoint and of a savepoint.

    ``seconds`` is the duration of each command, so that the kill occurs while it runs.
    """

    place: tuple[str, dict[str, Any], str]
    moments: random.Random
    rows: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    rounds: int = 0

    @property
    def store(self) -> StateStore:
        """The store as a new process opens it: the killed one may have claimed it."""
        return opened(*self.place)

    def fill(self) -> None:
        """Take a full checkpoint and two with changes, keep one, and expire older ones."""
        store, first = self.store, self.rounds + 1
        self.rows |= {f"key-{n}": first for n in range(ROWS)} | {"subject": first}
        for self.rounds in range(first, first + 3):
            changed = {f"key-{n}": self.rounds for n in range(self.rounds % 7, ROWS, 7)}
            self.rows |= changed
            with store.snapshot(parallelism=2) as checkpoint:
                written = self.rows if self.rounds == first else changed
                rows = [{"k": key, "n": number} for key, number in written.items()]
                if self.rounds == first:
                    checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=16)
                else:
                    checkpoint.write_changes("u", "s", rows)
            if self.rounds == first + 1:
                self.kept = dict(self.rows)
        if store.maintenance.savepoints():
            store.maintenance.delete_savepoint("kept")
        store.maintenance.savepoint("kept", store.checkpoints()[-2])
        store.maintenance.expire(retain=1)

    def kill(self, command: Callable[[StateStore], None]) -> bool:
        """Kill a command at a random moment; return True if it was still running."""
        begins = PROCESSES.Event()
        process = PROCESSES.Process(target=work, args=(self.place, command, begins))
        process.start()
        assert begins.wait(PATIENCE_S)
        known = self.seconds.get(command.__name__, 0.2)
        begun = time.monotonic()
        process.join(self.moments.random() * known)
        process.kill()
        process.join(PATIENCE_S)
        assert process.exitcode in (0, -signal.SIGKILL)
        was_killed = process.exitcode != 0
        if not was_killed:
            self.seconds[command.__name__] = min(known, time.monotonic() - begun)
        return was_killed

    def finish(self, command: Callable[[StateStore], None]) -> None:
        """Check all kept files, run the command again, and check its result."""
        self.check(may_be_purged=command is purge)
        begun = time.monotonic()
        command(self.store)
        self.seconds.setdefault(command.__name__, time.monotonic() - begun)
        if command is purge:
            self.rows.pop("subject")
            self.kept.pop("subject")
        self.check(may_be_purged=False)
        maintenance = self.store.maintenance
        if command is compact:
            assert maintenance.compact(everything=True, dry_run=True).states == ()
        if command is collect:
            left = maintenance.gc(minimum_age="0", dry_run=True)
            assert (left.removed.files, left.leftovers, left.manifests) == (0, 0, ())
        if command is purge:
            collect(self.store)
            search = self.store.maintenance.find_subject(OperatorKey("u", "subject"))
            assert search.problem is None
            assert search.is_gone
            self.check(may_be_purged=False)

    def check(self, *, may_be_purged: bool) -> None:
        """Check the rows of the newest checkpoint and the savepoint, and all kept files.

        A killed purge may have removed the subject from some of them.
        """
        for checkpoint, rows in (("latest", self.rows), ("kept", self.kept)):
            found = self.restored(checkpoint)
            if may_be_purged:
                found.setdefault("subject", rows["subject"])
            assert found == rows
        assert self.store.maintenance.verify(deep=True).is_intact

    def restored(self, checkpoint: str) -> dict[str, int]:
        keyed = self.store.restore(checkpoint=checkpoint, parallelism=1).keyed("u", "s")
        return {row["k"]: row["n"] for row in keyed.to_arrow(0).to_pylist()}


@pytest.mark.long_cases("parquet-3")
@pytest.mark.parametrize(
    ("table_format", "count"),
    [
        ("parquet", 3),
        pytest.param("parquet", 60, marks=pytest.mark.long),
        pytest.param("delta", 30, marks=pytest.mark.long),
    ],
)
def test_a_killed_command_can_be_run_again(
    s3: S3Server, url: str, table_format: str, count: int
) -> None:
    killing = Killing((url, s3.options, table_format), random.Random(count))
    killed = 0
    for number in range(count):
        command = COMMANDS[number % len(COMMANDS)]
        killing.fill()
        killed += killing.kill(command)
        killing.finish(command)
    assert killed > count / 4
