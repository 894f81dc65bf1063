"""Processes that race to put the same names, many names at a time, while readers watch.

The test server delays the loser of a collision for whole seconds, without using CPU. Names that are
contended for one after another would take minutes.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from typing import Any

from statestore.storage import Storage

SIZE = 64 * 1024
LANES = 64


def race(
    storage: Storage,
    writers: int,
    names: list[str],
    lanes: int = LANES,
    others: Sequence[Storage] = (),
) -> tuple[list[list[str]], list[str]]:
    """Return the names that each writer has won, and each incomplete file that a reader has found.

    The writers wait for each other before each group of ``lanes`` names, and then put these
    together. ``others`` are the same files through other servers: the writers use all in turn.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "adlfs", "gcsfs", "s3fs"])
    barrier, results = context.Barrier(writers), context.SimpleQueue()
    processes = [
        context.Process(target=_write, args=(used, number, names, lanes, barrier, results))
        for number, used in zip(range(1, writers + 1), cycle((storage, *others)), strict=False)
    ]
    for process in processes:
        process.start()
    problems = []
    while results.empty():
        problems += [torn for name in names[::lanes] for torn in _torn(storage, name)]
        time.sleep(0.02)
    outcomes: dict[int, Any] = dict(results.get() for _ in processes)
    for process in processes:
        process.join()
    for number, (won, torn) in outcomes.items():
        problems += torn
        problems += [name for name in won if storage.read(name)[0] != number]
    return [won for won, _ in outcomes.values()], problems


def _write(
    storage: Storage, number: int, names: list[str], lanes: int, barrier: Any, results: Any
) -> None:
    won: list[str] = []
    problems: list[str] = []
    try:
        with ThreadPoolExecutor(lanes) as threads:
            for first in range(0, len(names), lanes):
                # Every second writer goes backwards; otherwise the first to start could win all
                # names.
                some = names[first : first + lanes][:: 1 if number % 2 else -1]
                barrier.wait(timeout=60)
                puts = threads.map(partial(_put, storage, number), some)
                won += [name for name, is_mine in zip(some, puts, strict=True) if is_mine]
                for torn in threads.map(partial(_torn, storage), some):
                    problems += torn
    except Exception as error:  # noqa: BLE001 - reported by the process that asserts
        problems.append(repr(error))
    results.put((number, (won, problems)))


def _put(storage: Storage, number: int, name: str) -> bool:
    return storage.put_if_absent(name, bytes([number]) * SIZE)


def _torn(storage: Storage, name: str) -> list[str]:
    try:
        raw = storage.read(name)
    except FileNotFoundError:
        return []
    return [] if raw == raw[:1] * SIZE else [f"{name}: {len(raw)} bytes, or of two writers"]
