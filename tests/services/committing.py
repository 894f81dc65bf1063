"""Processes that commit to one store and read it while nodes of its server are killed.

Each writer takes one checkpoint after another. After an error it opens the store again and
continues. It reports every attempt with its outcome, for a linearizability checker.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.synchronize import Event
from typing import Any, Literal

import pyarrow as pa

from statestore import StateStore
from statestore.errors import CommitConflictError, LateCommitError, StorageError
from statestore.format.names import KEY_GROUP
from tests.linearizability.history import Operation, commit, list_ids

__all__ = [
    "Attempt",
    "Report",
    "attempt_of",
    "committed_rows",
    "committing",
    "history_of",
    "settled",
]

UID, STATE = "nodes", "rows"
ROWS = 20
PAUSE_SECONDS = 0.1
PATIENCE_SECONDS = 300

Outcome = Literal["done", "refused", "unknown"]


@dataclass(frozen=True)
class Attempt:
    """One attempt to commit; ``id`` is 0 if it failed before it had one."""

    writer: int
    number: int
    called: int
    returned: int
    id: int
    outcome: Outcome
    message: str = ""


@dataclass
class Report:
    """What one writer did and saw; times are in nanoseconds of one clock."""

    attempts: list[Attempt] = field(default_factory=list)
    lists: list[tuple[int, int, int, tuple[int, ...]]] = field(default_factory=list)
    reads: int = 0
    problems: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


def rows_of(writer: int, number: int) -> pa.Table:
    """Return the rows of one attempt; no other attempt writes the same rows."""
    content = [f"writer {writer} attempt {number}"] * ROWS
    return pa.table({"k": list(range(ROWS)), "by": content})


def committed_rows(store: StateStore, checkpoint: int) -> list[dict[str, Any]]:
    """Return the rows of a checkpoint in the order of their keys, with all files verified."""
    state = store.restore(checkpoint=checkpoint, parallelism=1, verify=True).keyed(UID, STATE)
    rows = state.to_arrow(0).drop_columns([KEY_GROUP]).to_pylist()
    return sorted(rows, key=lambda row: row["k"])


@contextmanager
def committing(places: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[list[Report]]:
    """Run one writer per place, URL and options, until the block ends.

    The block begins after the first commit of each writer, so the store exists. The yielded list
    has the reports of all writers after the block.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["s3fs", "statestore.store", __name__])
    ends, reports = context.Event(), list[Report]()
    begun = [context.Event() for _ in places]
    pipes = [context.Pipe(duplex=False) for _ in places]
    processes = [
        context.Process(target=_work, args=(writer, *place, began, ends, pipe[1]), daemon=True)
        for writer, (place, began, pipe) in enumerate(zip(places, begun, pipes, strict=True))
    ]
    for process in processes:
        process.start()
    try:
        for began in begun:
            assert began.wait(PATIENCE_SECONDS), "a writer commits nothing"
        yield reports
    finally:
        ends.set()
        for process, (ours, _) in zip(processes, pipes, strict=True):
            if ours.poll(PATIENCE_SECONDS):
                reports.append(ours.recv())
            process.join(PATIENCE_SECONDS)


def _work(
    writer: int, url: str, options: dict[str, Any], began: Event, ends: Event, pipe: Any
) -> None:
    report, dice = Report(), random.Random(writer)
    try:
        store = _opened(url, options)
        while not ends.is_set():
            attempt = _attempt(store, writer, len(report.attempts))
            report.attempts.append(attempt)
            if attempt.outcome == "done":
                began.set()
            else:
                store = _opened(url, options)
            _look(store, writer, report)
            _read(store, report, dice)
            time.sleep(dice.uniform(0, PAUSE_SECONDS))
    except Exception as error:  # noqa: BLE001 - reported by the process that asserts
        report.problems.append(f"writer {writer}: {error!r}")
    pipe.send(report)


def _opened(url: str, options: dict[str, Any]) -> StateStore:
    return StateStore.open(url, table_format="parquet", storage_options=options, compaction=None)


def _attempt(store: StateStore, writer: int, number: int) -> Attempt:
    called = time.monotonic_ns()
    checkpoint: Any = None
    outcome: Outcome = "done"
    message = ""
    try:
        checkpoint = store.snapshot(parallelism=1)
        with checkpoint:
            checkpoint.write_keyed(UID, STATE, rows_of(writer, number), key="k", max_parallelism=4)
    except LateCommitError as error:
        message = str(error)  # it is committed, although another writer took over meanwhile
    except CommitConflictError as error:
        outcome, message = "refused", str(error)
    except StorageError as error:
        outcome, message = "unknown", str(error)
    known = 0 if checkpoint is None else checkpoint._pending.checkpoint_id
    return Attempt(writer, number, called, time.monotonic_ns(), known, outcome, message)


def _look(store: StateStore, writer: int, report: Report) -> None:
    called = time.monotonic_ns()
    try:
        ids = store.checkpoints()
    except StorageError as error:
        report.messages.append(str(error))
        return
    report.lists.append((writer, called, time.monotonic_ns(), ids))


def _read(store: StateStore, report: Report, dice: random.Random) -> None:
    """Read one of this writer's checkpoints again; it must have the rows of its attempt."""
    done = [attempt for attempt in report.attempts if attempt.outcome == "done"]
    if not done:
        return
    attempt = dice.choice(done)
    try:
        found = committed_rows(store, attempt.id)
    except StorageError as error:
        report.messages.append(str(error))
        return
    report.reads += 1
    if found != rows_of(attempt.writer, attempt.number).to_pylist():
        report.problems.append(f"checkpoint {attempt.id} has {found}, and not that of {attempt}")


def attempt_of(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return the writer and the number of the attempt that wrote these rows."""
    writer, number = str(rows[0]["by"]).split()[1::2]
    return int(writer), int(number)


def settled(reports: Sequence[Report], store: StateStore) -> list[Attempt]:
    """Return all attempts with an id. An unknown outcome is replaced by what the store has now."""
    visible = {attempt_of(committed_rows(store, found)) for found in store.checkpoints()}
    found = []
    for attempt in (attempt for report in reports for attempt in report.attempts if attempt.id):
        outcome = attempt.outcome
        if outcome == "unknown":
            outcome = "done" if (attempt.writer, attempt.number) in visible else "refused"
        found.append(replace(attempt, outcome=outcome))
    return found


def history_of(reports: Sequence[Report], store: StateStore) -> list[Operation]:
    """Return the commits and lists of all writers. A failed commit may become visible later."""
    unknown = {
        (attempt.writer, attempt.number)
        for report in reports
        for attempt in report.attempts
        if attempt.outcome == "unknown"
    }
    return [
        *(
            commit(
                each.writer,
                each.called,
                None if (each.writer, each.number) in unknown else each.returned,
                each.id,
                f"{each.writer}/{each.number}",
                each.outcome,
            )
            for each in settled(reports, store)
        ),
        *(list_ids(*seen) for report in reports for seen in report.lists),
    ]
