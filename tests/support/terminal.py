"""Replace stderr with a terminal, or run the command in one, and read the drawn text."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["command_on_terminal", "terminal"]

_ROOT = Path(__file__).parents[2]
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def command_on_terminal(*arguments: object, columns: int) -> tuple[int, list[str]]:
    """Run the command in a terminal of its own; return its exit status and lines, without colors.

    Fails if nothing was colored, because then it was no terminal for the command.
    """
    ours, theirs = pty.openpty()
    seen: list[bytes] = []
    reader = threading.Thread(target=_read, args=(ours, seen))
    reader.start()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "statestore", *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=_ROOT,
            env=environment,
            timeout=60,
            check=False,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    text = b"".join(seen).decode()
    assert _STYLE.search(text), text
    return done.returncode, _STYLE.sub("", text).splitlines()


@contextmanager
def terminal() -> Iterator[list[str]]:
    """Make stderr a terminal; after the block, the list contains the drawn text."""
    ours, theirs = pty.openpty()
    seen: list[bytes] = []
    drawn: list[str] = []
    reader = threading.Thread(target=_read, args=(ours, seen))
    reader.start()
    try:
        with os.fdopen(theirs, "w") as stream, pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "stderr", stream)
            yield drawn
    finally:
        reader.join()
        os.close(ours)
    drawn.append(b"".join(seen).decode())


def _read(descriptor: int, seen: list[bytes]) -> None:
    try:
        while chunk := os.read(descriptor, 4096):
            seen.append(chunk)
    except OSError:
        seen.append(b"")  # no process writes to it after this
