"""Replace streams with a terminal, or run the command in one, and read the drawn text."""

from __future__ import annotations

import os
import pty
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from statestore.cli.main import main

__all__ = ["command_on_terminal", "terminal"]

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def command_on_terminal(*arguments: object, columns: int) -> tuple[int, list[str]]:
    """Run the command with a terminal of its own; return its exit status and lines, without colors.

    Fails if nothing was colored, because then it was no terminal for the command.
    """
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {"TERM": "xterm", "COLUMNS": str(columns), "LINES": "40"}.items():
            patched.setenv(name, value)
        with terminal(("stdin", "stdout", "stderr")) as drawn:
            status = main([*map(str, arguments)])
    (text,) = drawn
    assert _STYLE.search(text), text
    return status, _STYLE.sub("", text).splitlines()


@contextmanager
def terminal(streams: Sequence[str] = ("stderr",)) -> Iterator[list[str]]:
    """Make streams of Python a terminal; after the block, the list contains the drawn text."""
    ours, theirs = pty.openpty()
    seen: list[bytes] = []
    drawn: list[str] = []
    reader = threading.Thread(target=_read, args=(ours, seen))
    reader.start()
    try:
        with os.fdopen(theirs, "w") as stream, pytest.MonkeyPatch.context() as patched:
            for name in streams:
                patched.setattr(sys, name, stream)
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
