"""What the store's tasks do first in a Python worker of Spark.

A worker is used again for other tasks, by the loop of PySpark's daemon that calls ``worker`` for
each. Between them it waits at a socket.
"""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable

__all__ = ["settle", "until_closed"]

_TASKS: list[None] = []

Worker = Callable[[socket.socket, bool], int]
_GONE = 1
"""What ``worker`` returns when the process is to end."""


def settle() -> None:
    """Make this worker one that lasts; call it as a task begins.

    It collects garbage after every task, and then walks over all objects of pyarrow, numpy and
    pyspark, which takes longer than a small subtask does: what is loaded is kept out of that. Some
    of it is loaded before the first task runs and some while it does, so this happens twice.
    """
    if len(_TASKS) < 2:
        _TASKS.append(None)
        gc.freeze()
    if len(_TASKS) == 1:
        daemon = sys.modules["__main__"]
        worker = getattr(daemon, "worker", None)
        if worker is not None:  # where there is no daemon, a worker has one task
            daemon.worker = until_closed(worker)  # type: ignore[attr-defined]


def until_closed(worker: Worker) -> Worker:
    """Return the worker of PySpark's daemon as one that ends when Spark closes its socket.

    That is how Spark lets go of a worker that waits, as a session stops, and of one whose task has
    enough rows. PySpark takes the end of the socket for a task that failed, tries to report it
    there, and dies of the broken pipe, with a traceback on the terminal.
    """

    def run(sock: socket.socket, authenticated: bool) -> int:
        try:
            if not sock.recv(1, socket.MSG_PEEK):  # waits for a task, and takes nothing of it
                return _GONE
            return worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return _GONE

    return run
