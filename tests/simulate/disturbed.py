"""Let everything differ that a run must not depend on, as far as a process can do that to itself.

The hash seed, the time zone, the language and the folder for temporary files are variables of the
process: :data:`OTHER_VARIABLES`.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

__all__ = ["OTHER_VARIABLES", "disturbed"]

OTHER_VARIABLES = {"TZ": "Asia/Kathmandu", "LANG": "C", "LC_ALL": "C", "COLUMNS": "40"}
_GARBAGE_OBJECTS = 500  # Python's own number is larger


@contextmanager
def disturbed(seed: int) -> Iterator[None]:
    """List folders in an order that a seed decides; collect garbage and switch threads often."""
    random, scandir, listdir = Random(seed), os.scandir, os.listdir

    def shuffled(*arguments: Any) -> _Entries:
        with scandir(*arguments) as entries:
            return _Entries(_shuffled(random, sorted(entries, key=lambda entry: entry.name)))

    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(_GARBAGE_OBJECTS, 2, 2)
    sys.setswitchinterval(1e-6)
    try:
        with (
            patch.object(os, "scandir", shuffled),
            patch.object(os, "listdir", lambda *a: _shuffled(random, sorted(listdir(*a)))),
        ):
            yield
    finally:
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)


class _Entries:
    """The entries of a folder, as ``os.scandir`` returns them: an iterator that can be closed."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the other entries."""
        self._entries = iter(())


def _shuffled(random: Random, items: list[Any]) -> list[Any]:
    random.shuffle(items)
    return items
