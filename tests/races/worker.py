"""A process that writes in one race after another, in several lanes at a time; it needs no JVM."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from statestore import StateStore
from statestore.errors import CommitConflictError, InvalidArgumentError, LateCommitError
from statestore.format.names import CHECKPOINTS
from statestore.storage import Storage, open_storage
from statestore.storage.forwarding import ForwardingStorage
from tests.races.plan import Look, Part, Try

__all__ = ["Task", "rows_of", "run_worker", "write"]

UID, STATE = "races", "rows"
ROWS = 3


@dataclass(frozen=True)
class Task:
    """One writer's part in one race; all parts of a race start at the same time."""

    url: str
    options: dict[str, Any]
    race: int
    part: Part
    start: float
    table_format: str


class Stalling(ForwardingStorage):
    """A storage that stalls just before it puts a manifest, after every check."""

    def __init__(self, storage: Storage, seconds: float) -> None:
        super().__init__(storage)
        self._seconds = seconds

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if name.startswith(CHECKPOINTS):
            time.sleep(self._seconds)
        return self._storage.put_if_absent(name, data)


def rows_of(race: int, writer: int, number: int) -> pa.Table:
    """Return the rows of one attempt; no other attempt of any race writes the same rows."""
    content = [f"race {race} writer {writer} try {number}"] * ROWS
    return pa.table({"k": list(range(ROWS)), "by": content})


def run_worker(lanes: list[Connection]) -> None:
    """Serve each lane in a thread, until the other end of its connection is closed."""
    threads = [threading.Thread(target=_lane, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _lane(connection: Connection) -> None:
    while True:
        try:
            task: Task = connection.recv()
        except EOFError:
            return
        try:
            connection.send(write(task))
        except Exception as error:  # noqa: BLE001 - reported by the process that checks
            connection.send(repr(error))


def write(task: Task) -> tuple[list[Try], list[Look]]:
    """Play this part; return its attempts, and the lists that it read after each, in order."""
    time.sleep(max(0.0, task.start - time.monotonic()))
    part, tries, looks = task.part, list[Try](), list[Look]()
    _stall(part, "open", first=True)
    store, retries = _open(task), part.retries
    done = 0
    while done < part.checkpoints:
        made = _attempt(store, task, len(tries), part.ids[done])
        tries.append(made)
        looks.append(_look(store, part.writer))
        if made.outcome in ("committed", "already"):
            done += 1
        elif retries and made.outcome in ("conflict", "late"):
            retries -= 1
            if part.reopens:
                store = _open(task)
        else:
            break
    return tries, looks


def _look(store: StateStore, writer: int) -> Look:
    began = time.monotonic()
    ids = tuple(store.checkpoints())
    return Look(writer, began, time.monotonic(), ids)


def _attempt(store: StateStore, task: Task, number: int, asked_id: int | None) -> Try:
    part, first = task.part, number == 0
    began = time.monotonic()
    outcome = partial(Try, part.writer, number, began=began, pid=os.getpid(), asked_id=asked_id)
    checkpoint: Any = None
    entry: Any = None
    try:
        _stall(part, "begin", first=first)
        checkpoint = store.snapshot(parallelism=2, checkpoint_id=asked_id)
        with checkpoint:
            _stall(part, "write", first=first)
            rows = rows_of(task.race, part.writer, number)
            entry = checkpoint.write_keyed(UID, STATE, rows, key="k", max_parallelism=2)
            _stall(part, "commit", first=first)
    except LateCommitError as error:
        return outcome(
            outcome="late",
            ended=time.monotonic(),
            message=str(error),
            digest=entry.digest,
            **_known(checkpoint),
        )
    except CommitConflictError as error:
        return outcome(
            outcome="conflict", ended=time.monotonic(), message=str(error), **_known(checkpoint)
        )
    except InvalidArgumentError as error:
        return outcome(outcome="refused", ended=time.monotonic(), message=str(error))
    return outcome(
        outcome="already" if checkpoint.already_committed else "committed",
        ended=time.monotonic(),
        id=checkpoint.id,
        generation=checkpoint.manifest.writer.generation,
        digest=entry.digest,
    )


def _known(checkpoint: Any) -> dict[str, int]:
    """Return the id and generation of a losing attempt, if it got that far."""
    if checkpoint is None:
        return {}
    attempt = checkpoint.collected
    attempt = getattr(attempt, "attempt", attempt)  # older releases have an object of its own
    return {"id": attempt.checkpoint_id, "generation": attempt.writer.generation}


def _open(task: Task) -> StateStore:
    storage: Any = open_storage(task.url, task.options)
    if "put" in task.part.stalls:
        storage = Stalling(storage, task.part.stalls["put"])
    open_store = getattr(StateStore, "from_storage", StateStore.open)  # of older releases
    return open_store(storage, table_format=task.table_format, compaction=None)


def _stall(part: Part, point: str, *, first: bool) -> None:
    if first and point in part.stalls:
        time.sleep(part.stalls[point])
