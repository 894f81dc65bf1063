"""Run the steps of many drawn jobs in one JVM with Flink.

A JVM with a cluster starts in several seconds, and a job of it in a fraction of a second.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import IO

from statestore.errors import StorageError
from tests.servers.flink import JOB_SECONDS, Flink

__all__ = ["FlinkServer", "flink_server"]


class FlinkServer:
    """A process that runs steps as ``DrawnServer.java`` describes.

    Args:
        process: the process, with pipes for its input and output.
        log: the file with the output of its loggers.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        self._words = ""

    def run(self, step: Mapping[str, str]) -> str | None:
        """Run one job.

        Args:
            step: the words of the step.

        Returns:
            The path of the snapshot that the job wrote, if any.

        Raises:
            StorageError: if Flink fails, with its causes, or runs for too long.
        """
        self.start(step)
        return self.finish()

    def start(self, step: Mapping[str, str]) -> None:
        """Start one job. The caller must call :meth:`finish` before the next one.

        Args:
            step: the words of the step.
        """
        self._words = " ".join(f"{name}={value}" for name, value in step.items())
        requests, _ = _pipes(self._process)
        requests.write(self._words + "\n")
        requests.flush()

    def finish(self) -> str | None:
        """Wait for the job that was started.

        Returns:
            The path of the snapshot that the job wrote, if any.

        Raises:
            StorageError: if Flink fails, with its causes, or runs for too long.
        """
        limit = Timer(JOB_SECONDS, self._process.kill)
        limit.start()
        try:
            return self._answer()
        finally:
            limit.cancel()

    def _answer(self) -> str | None:
        _, answers = _pipes(self._process)
        written = None
        for line in answers:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "done":
                return written
            if word == "failed":
                raise StorageError(f"Flink failed at {self._words}:\n{json.loads(rest)}")
            if word in ("savepoint", "checkpoint"):
                written = rest.split()[-1].removeprefix("file:")
        raise StorageError(f"Flink ended at {self._words}; its log is {self._log}")


@contextmanager
def flink_server(
    flink: Flink, folder: Path, arguments: Sequence[str] = ()
) -> Iterator[FlinkServer]:
    """Run a server with a version of Flink, whose log is in ``folder``, until the block ends."""
    log = folder / "flink.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            flink.command("golden.DrawnServer", arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    requests, answers = _pipes(process)
    try:
        yield FlinkServer(process, log)
    finally:
        process.kill()
        process.wait(timeout=30)
        answers.close()
        requests.close()


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
