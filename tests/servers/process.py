"""Servers for tests: processes of this machine that end with ours, however that ends."""

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

# Of a JVM that lives for seconds: its second compiler would take as much of the processors as what
# it is started for. With one compiler there is room for 48 MB of code, which tests of Spark fill:
# then code is thrown away and made again. Each doubling of the room for classes is a full
# collection. That the bytes of published jars are a valid program is no test's business.
SHORT_LIVED_JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=256m",
    "-XX:MetaspaceSize=256m",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-XX:+IgnoreUnrecognizedVMOptions",  # of another Java
)

# Runs its arguments after the first; when its stdin closes, as it does however this process ends,
# it runs the first, and kills what it runs.
_TIED_TO_US = """
exec 3<&0
at_end=$1; shift
"$@" 3<&- & server=$!
{ cat <&3 > /dev/null; eval "$at_end"; kill -9 $server; } 2> /dev/null &
wait $server
"""


# Below those that systems give to whoever connects: nobody takes one in passing.
_PORTS = range(12_000, 32_000)


def free_ports(number: int) -> tuple[int, ...]:
    """Return ports of the loopback address on which nobody listens; at random, as other processes
    look for some at the same moment.
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
    """Run a server in ``directory`` until the block ends, its output in the file ``log`` there.

    It is not asked to end, but killed, and then the files in ``removes`` are deleted.
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
    """Ask until a server is ready, which is when asking raises no OSError; False when it has ended,
    or the time is over.
    """
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
    """Return the error that says that a server does not start, with the end of its log."""
    lines = path.read_text(errors="replace").splitlines()[-20:]
    return StorageError("\n".join([f"{what} does not start:", *lines]))
