"""Start, command and kill the process of the query, and read what it prints."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.endurance.driver import READY
from tests.faults.kills import members

__all__ = ["Job"]

_PATIENCE_S = 300
# Options of the other tests' short-lived JVMs: this one has a user's compiler and collector.
_NOT_INHERITED = ("SPARK_SUBMIT_OPTS", "SPARK_DIST_CLASSPATH")
# PySpark keeps a thread for each start of the query, and Arrow's default allocator keeps memory for
# each thread.
_ALLOCATOR = {"ARROW_DEFAULT_MEMORY_POOL": "system"}


class Job:
    """The running process, in its own session, so that all of its processes can be found."""

    def __init__(
        self, folder: Path, places: Mapping[str, Any], hear: Callable[[dict[str, Any]], object]
    ) -> None:
        """Start the process; ``hear`` gets each of its documents, in a thread."""
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self._hear = hear
        self._heard: queue.Queue[str] = queue.Queue()
        environment = {name: os.environ[name] for name in os.environ.keys() - {*_NOT_INHERITED}}
        with (folder / "job.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.endurance.driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment | _ALLOCATOR | {"TMPDIR": str(self.temporary)},
                start_new_session=True,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.tell(json.dumps(places))
            self.wait_for(READY)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """The process id of the driver."""
        return self._process.pid

    def processes(self) -> list[int]:
        """Return the driver, its JVM and its Spark workers."""
        return members(self.pid)

    def tell(self, line: str) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait_for(self, event: str) -> None:
        """Wait until the process prints a document with this event."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                heard = self._heard.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                raise RuntimeError(f"the job did not print {event!r} in {_PATIENCE_S} s") from None
            if heard == event:
                return
            if not heard:
                raise RuntimeError(f"the job ended before it printed {event!r}; see job.log")

    def kill(self) -> None:
        """Kill all of its processes."""
        os.killpg(self.pid, signal.SIGKILL)
        while alive := self.processes():
            for process in alive:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # a command that the process did not read
            self._process.stdin.close()

    def end(self) -> None:
        """Let it end by itself, and kill what is left."""
        self.tell("quit")
        try:
            self._process.wait(timeout=60)
        finally:
            self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    document = json.loads(line)
                except ValueError:  # a killed process leaves half a line
                    document = {"event": "noise", "what": line}
                self._hear(document)
                self._heard.put(document["event"])
        self._heard.put("")
