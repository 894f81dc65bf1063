"""Set up Spark's Python workers.

Spark reuses a worker for several tasks: the loop of PySpark's daemon calls ``worker`` for each
task. Between tasks the worker waits on a socket. This module imports nothing of Spark, because the
daemon forks the workers and must not have started a thread before.
"""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable

__all__ = ["until_closed", "warm_up_worker"]

_TASKS: list[None] = []

Worker = Callable[[socket.socket, bool], int]
_GONE = 1
"""The result of ``worker`` if the process must end."""


def warm_up_worker() -> None:
    """Prepare this worker for several tasks; call it at the start of each task.

    A worker collects garbage after every task. This traverses all objects of pyarrow, numpy and
    pyspark, which takes longer than a small subtask. ``gc.freeze`` therefore excludes the loaded
    modules. Some are loaded before the first task and some during it, so this happens twice.
    """
    if len(_TASKS) < 2:
        _TASKS.append(None)
        gc.freeze()
    if len(_TASKS) == 1:
        daemon = sys.modules["__main__"]
        worker = getattr(daemon, "worker", None)
        # Without a daemon a worker runs only one task; statestore.spark.daemon has its own wrapper.
        if worker is not None:
            daemon.worker = until_closed(worker)  # type: ignore[attr-defined]


def until_closed(worker: Worker) -> Worker:
    """Wrap the worker of PySpark's daemon, so that it ends when Spark closes its socket.

    Spark closes the socket of a waiting worker when a session stops, and of a worker whose task has
    produced enough rows. PySpark interprets the end of the socket as a failed task, tries to report
    it on the socket, and dies of the broken pipe, with a traceback on the terminal.
    """

    def run(sock: socket.socket, authenticated: bool) -> int:
        try:
            if not sock.recv(1, socket.MSG_PEEK):  # wait for a task without consuming its bytes
                return _GONE
            return worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return _GONE

    return run
