"""Replace stderr with a terminal, and read the text that was drawn on it."""

from __future__ import annotations

import os
import pty
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

__all__ = ["terminal"]


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
