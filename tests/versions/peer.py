"""Processes that work on stores: one with a release, and one with this tree."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.syntax import ROOT
from tests.versions.releases import Release

__all__ = ["TREE", "Peer", "RefusedError", "or_refused", "process_of", "running"]

PATIENCE_SECONDS = 120
TREE = "tree"


class RefusedError(Exception):
    """A store's own error in a peer: the names of its class and base classes, and its message."""

    def __init__(self, peer: str, names: Sequence[str], message: str) -> None:
        super().__init__(f"{peer}: {names[0]}: {message}")
        self.peer, self.names, self.message = peer, tuple(names), message


class Peer:
    """A process with one release, which runs the actions of ``tests/versions/driver.py``."""

    def __init__(self, name: str, connection: Connection) -> None:
        self.name, self._connection = name, connection

    def __repr__(self) -> str:
        return f"Peer({self.name!r})"

    def __call__(self, action: str, **arguments: Any) -> Any:
        """Run an action; RefusedError for the store's errors, AssertionError for any other."""
        self._connection.send((action, arguments))
        if not self._connection.poll(PATIENCE_SECONDS):
            raise TimeoutError(f"{self.name} does not answer to {action}")
        outcome, *answer = self._connection.recv()
        if outcome == "refused":
            raise RefusedError(self.name, *answer)
        assert outcome == "done", f"{self.name}, {action}: {answer[0]}"
        return answer[0]


def or_refused(test: Callable[..., None]) -> Callable[..., None]:
    """Let a test with a ``pair`` end when a release refuses the format of this tree's store.

    This tree may create stores in a newer format than the release knows. In a store that the
    release has created, this tree must not use a format that the release refuses.
    """

    @functools.wraps(test)
    def run(*arguments: Any, pair: tuple[Peer, Peer], **named: Any) -> None:
        try:
            test(*arguments, pair=pair, **named)
        except RefusedError as error:
            is_newer = pair[0].name == TREE != error.peer and "FormatVersionError" in error.names
            if not is_newer:
                raise

    return run


@contextmanager
def process_of(
    release: Release | None, module: str, connections: Sequence[Connection]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of the tests with a release, or with this tree; pass the connections to it.

    The connections are closed here. The process ends when their other ends are closed.
    """
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    python = str(release.python) if release else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        # A release finds the tests of this tree, and not the package next to them.
        (Path(folder) / "tests").symlink_to(ROOT / "tests")
        environ["PYTHONPATH"] = folder if release else str(ROOT)
        descriptors = [connection.fileno() for connection in connections]
        command = [python, "-P", "-m", module, *map(str, descriptors)]
        process = subprocess.Popen(command, env=environ, pass_fds=descriptors)
        try:
            for connection in connections:
                connection.close()
            yield process
        finally:
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def running(release: Release | None) -> Iterator[Peer]:
    """Yield a process with a release, or with this tree; AssertionError if it runs another one."""
    ours, theirs = Pipe()
    name = release.version if release else TREE
    with process_of(release, "tests.versions.driver", [theirs]):
        try:
            peer = Peer(name, ours)
            about = peer("about")
            folder = Path(about["folder"]).resolve()
            expected = release.packages / "statestore" if release else ROOT / "statestore"
            assert folder == expected.resolve(), about
            assert release is None or about["version"] == release.version, about
            yield peer
        finally:
            ours.close()
