"""What the store's tasks do first in a Python worker of Spark."""

from __future__ import annotations

import gc

__all__ = ["settle"]

_TASKS: list[None] = []


def settle() -> None:
    """Keep what this worker has loaded out of the garbage collector; call it as a task begins.

    A Python worker of Spark is used again, and collects garbage after every task. It then walks
    over all objects of pyarrow, numpy and pyspark, which takes longer than a small subtask does.
    Some of them are loaded before the first task runs and some while it does, so this happens
    twice.
    """
    if len(_TASKS) < 2:
        _TASKS.append(None)
        gc.freeze()
