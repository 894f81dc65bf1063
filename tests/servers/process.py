"""Run servers for tests: processes that end with this process, however it ends."""

from __future__ import annotations

import random
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from statestore.errors import StorageError

__all__ = ["SHORT_LIVED_JVM", "free_ports", "log_tail", "running", "wait_for"]

# These JVMs live for seconds. A second compiler would use as much CPU as the actual work. With one
# compiler the code cache has 48 MB, which tests of Spark fill; code is then discarded and compiled
# again. Each doubling of the class space causes a full collection. Tests need not verify the
# bytecode of published jars.
SHORT_LIVED_JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=256m",
    "-XX:MetaspaceSize=256m",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-XX:+IgnoreUnrecognizedVMOptions",  # some options exist only in other Java versions
)

# The first argument is a cleanup command, the rest is the server's command. When stdin closes,
# which happens however this process ends, the script runs the cleanup and kills the server.
_TIED_TO_US = """
exec 3<&0
at_end=$1; shift
"$@" 3<&- & server=$!
{ cat <&3 > /dev/null; eval "$at_end"; kill -9 $server; } 2> /dev/null &
wait $server
"""


# Below the ports that systems assign to clients, so that no client takes one by accident.
_PORTS = range(12_000, 32_000)


def free_ports(number: int) -> tuple[int, ...]:
    """Return free ports of the loopback address, at random.

    Other processes may search for ports at the same time.
    """
    sockets: list[socket.socket] = []
    while len(sockets) < number:
        with suppress(OSError):
            sockets.append(socket.create_server(("127.0.0.1", random.choice(_PORTS))))
    ports = tuple(some.getsockname()[1] for some in sockets)
    for some in sockets:
        some.close()
    return ports


@contextmanager
def running(
    command: Sequence[str],
    *,
    directory: Path,
    log: str,
    removes: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in ``directory`` until the block ends, with its output in the file ``log``.

    The server is killed without a request to stop. Then the files in ``removes`` are deleted.
    """
    at_end = f"rm -f {shlex.join(removes)}"
    with (directory / log).open("wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", _TIED_TO_US, "sh", at_end, *command],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(timeout=30)


def wait_for(
    process: subprocess.Popen[bytes], is_ready: Callable[[], object], *, seconds: float
) -> bool:
    """Call ``is_ready`` until it raises no OSError; False if the server or the time has ended."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        try:
            is_ready()
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False


def log_tail(path: Path, what: str) -> StorageError:
    """Return an error for a server that does not start, with the end of its log."""
    lines = path.read_text(errors="replace").splitlines()[-20:]
    return StorageError("\n".join([f"{what} does not start:", *lines]))
