"""Set up Spark's Python workers.

Spark reuses a worker for several tasks: the loop of PySpark's daemon calls ``worker`` for each
task. Between tasks the worker waits on a socket.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

_OF_EVERY_WORKER = ("pyspark.worker", "pyarrow", "pandas")

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


def load_before_forks() -> None:
    """Load the modules of every worker in the daemon; call it before the first fork.

    A worker would need half a second of CPU time to import them. PySpark avoids this because
    libraries may start threads, which a fork does not copy. The only such threads on Linux are
    those of OpenBLAS and of Arrow's allocator, and both libraries restart theirs after a fork.

    numpy's global generator draws other numbers in each worker, as it does if a worker imports
    numpy itself.
    """
    for name in _OF_EVERY_WORKER:
        with suppress(ImportError):  # if a task needs it, this task raises the error
            importlib.import_module(name)
    os.register_at_fork(after_in_child=_seed_numpy)
    gc.freeze()


def _seed_numpy() -> None:
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


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


def without_idle_workers(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Leave out the traceback of an idle Python worker whose socket Spark has closed.

    Spark looks up Python data sources in a daemon that it always starts as ``pyspark.daemon``, and
    closes the socket of its worker after a minute (see :func:`until_closed`). All other lines are
    passed on.
    """
    held: list[bytes] = []
    for line in lines:
        if not held and not line.startswith(b"Traceback (most recent call last)"):
            yield line
            continue
        held.append(line)
        if len(held) > 1 and not line.startswith(b" "):
            if not (b"pyspark/daemon.py" in held[1] and line.startswith(b"BrokenPipeError")):
                yield from held
            held = []
    yield from held
