"""Kill a real job many times: ``python -m tests.faults.kills --count 200``.

A job (``tests/faults/job.py``) snapshots two keyed states and its offsets with Spark and Delta, one
checkpoint after another. At a random moment, SIGKILL ends all of its processes: Python, the JVM and
Spark's Python workers. The store is then checked without Spark. The next job, whose JVM started in
the meantime, must continue from that store. ``--seed`` determines the moments. They are in the
first snapshots after the start, and never in the start of the JVM, which runs no code of this
project.

After each kill, every new checkpoint and a few old ones are read completely. All are read at the
end. This needs Linux's ``/proc`` to find the workers, which Spark starts in their own process
group.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.faults.evidence import Evidence
from tests.faults.job import READY

__all__ = ["kill_many", "main"]

PATIENCE_S = 240
OLD_ONES = 5


def kill_many(count: int, seed: int, folder: Path) -> Evidence:
    """Start the job, kill it and check its store, ``count`` times; return the evidence."""
    moments, samples = random.Random(seed), random.Random(seed)
    evidence = Evidence(folder / "store")
    pace = Pace()
    for kill, job in enumerate(victims(folder, count), start=1):
        with job:
            job.begin()
            for snapshot in range(moments.choice((0, 1, 1, 2, 2, 3))):
                begun = time.monotonic()
                job.wait_for(None)
                pace.learn(snapshot, time.monotonic() - begun)
            time.sleep(moments.random() * pace.of(len(job.said)))
        new = evidence.take(job.said)
        old = samples.sample(evidence.visible, min(OLD_ONES, len(evidence.visible)))
        evidence.read({*new, *old})
        print(
            f"kill {kill} of {count}: {len(evidence.visible)} checkpoints, {len(new)} new, "
            f"{len(evidence.lost)} lost, {len(evidence.half)} half-visible; {evidence.moment()}",
            flush=True,
        )
    evidence.read(evidence.visible)
    return evidence


class Pace:
    """The usual duration of a job's first, second, … snapshot here, so that a kill happens during
    it.
    """

    def __init__(self) -> None:
        self._seconds = {0: 8.0}

    def learn(self, snapshot: int, seconds: float) -> None:
        self._seconds[snapshot] = (self.of(snapshot) + seconds * 1.1) / 2

    def of(self, snapshot: int) -> float:
        return self._seconds.get(snapshot, 2.0)


def victims(folder: Path, count: int) -> Iterator[Victim]:
    """Yield jobs one after another. The JVM of the next job starts while the current one
    is killed.
    """
    spare = Victim(folder, 1)
    for number in range(1, count + 1):
        job, spare = spare, Victim(folder, number + 1) if number < count else spare
        yield job


class Victim:
    """The running job, in its own session, so that all of its processes can be found.

    The process starts immediately, and does not use the store until :meth:`begin`.
    """

    module = "tests.faults.job"

    def __init__(self, folder: Path, number: int) -> None:
        self.said: list[int] = []
        self._scratch = folder / f"scratch-{number}"
        self._errors = folder / "job.log"
        self._pending = b""
        self._scratch.mkdir()
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module, str(folder / "store"), self._scratch],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"TMPDIR": str(self._scratch)},
                start_new_session=True,
            )

    def begin(self, word: str = "go") -> None:
        """Wait until Spark has started, and let the job take snapshots."""
        self.wait_for(READY)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def __enter__(self) -> Victim:
        return self

    def __exit__(self, *error: object) -> None:
        """Kill all of its processes, and read the rest of its output."""
        os.killpg(self._process.pid, signal.SIGKILL)
        while alive := members(self._process.pid):
            for process in alive:
                _kill(process)
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        with self._process.stdout as said:
            self._pending += said.read()
        self._process.wait()
        # An incomplete last line is ignored.
        for line in self._pending.decode().split("\n")[:-1]:
            self._hear(line)
        shutil.rmtree(self._scratch)

    def wait_for(self, wanted: str | None) -> None:
        """Wait until the job prints this line, or (None) the number of another checkpoint."""
        deadline = time.monotonic() + PATIENCE_S
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while True:
            while b"\n" in self._pending:
                line, _, self._pending = self._pending.partition(b"\n")
                self._hear(line.decode())
                if wanted is None or line.decode() == wanted:
                    return
            ready, _, _ = select.select([pipe], [], [], deadline - time.monotonic())
            some = os.read(pipe, 4096) if ready else b""
            if not some:
                lines = self._errors.read_text(errors="replace").splitlines()
                cause = re.compile(r"(Caused by|[\w.]+(Error|Exception)): ")
                causes = [line for line in lines if cause.match(line)]
                text = "\n".join(causes[-20:])
                raise RuntimeError(f"the job ended by itself, or said nothing for long:\n{text}")
            self._pending += some

    def _hear(self, line: str) -> None:
        if line.isdigit():
            self.said.append(int(line))


def members(session: int) -> list[int]:
    """Return the running processes of a session."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            stat = (process / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, _, _, its_session = stat.rpartition(")")[2].split()[:4]
        if int(its_session) == session and state not in "ZX":
            found.append(int(process.name))
    return found


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> int:
    """Run the kills; return exit code 1 if anything was lost or partially visible."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="statestore-kills-"))
    try:
        evidence = kill_many(options.count, options.seed, folder)
    except BaseException:
        print(f"the store and the job's log stay in {folder}")
        raise
    shutil.rmtree(folder)
    for problem in evidence.problems:
        print(problem)
    print(
        f"{options.count} kills, {len(evidence.visible)} checkpoints, {len(evidence.lost)} lost, "
        f"{len(evidence.half)} half-visible"
    )
    return 1 if evidence.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
