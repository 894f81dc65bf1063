"""A snapshot from Arrow by two processes, compared with pyarrow writing the same rows sorted.

Each process has half of the state in memory before the measurement. A snapshot's time starts when
the coordinator begins and ends when its checkpoint is committed, with files and folders synced. The
floor's time ends when both processes have reported that their files are written, without a sync. A
second floor includes the sync: it is the cost of durable files for any writer.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Figure, times
from bench.state import state_table
from statestore import Acknowledgement, KeyGroupAssignment, StateStore
from statestore.keys.arrow import key_groups
from statestore.parquet.writer import ParquetOptions

__all__ = ["figures"]

PROCESSES = 2
MAX_PARALLELISM = 128
FLINK_SAVEPOINT_ROWS_PER_SECOND = 800_000
"""Apache Flink's rate for a compressed savepoint of similar rows, on two cores."""

FLOOR = "pyarrow, sorted rows, not synced"
SYNCED = "pyarrow, sorted rows, synced"
SORTED = "snapshot from Arrow, sorted rows"
AS_THEY_COME = "snapshot from Arrow, rows as they come"


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return times, ratios to the floors, and rows per second; ``folder`` is empty."""
    schema = _prepare(folder, rows)
    with _processes(folder) as workers:
        seconds = _in_turn(_runs(folder, workers, schema), folder, repeats)
    return [
        times("B9", FLOOR, seconds),
        times("B9", SYNCED, seconds, floor=FLOOR),
        times("B9", SORTED, seconds, floor=FLOOR, goal=1.3),
        times("B9", AS_THEY_COME, seconds, floor=FLOOR, goal=1.3),
        times("B9", AS_THEY_COME, seconds, floor=SYNCED),
        _rate(AS_THEY_COME, rows, seconds[AS_THEY_COME]),
    ]


def _rate(what: str, rows: int, seconds: Sequence[float]) -> Figure:
    each = [rows / second / 1e6 for second in seconds]
    goal = FLINK_SAVEPOINT_ROWS_PER_SECOND / 1e6
    return Figure(
        "B9", what, statistics.median(each), "M rows/s", min(each), max(each), "", None, goal, True
    )


def _prepare(folder: Path, rows: int) -> pa.Schema:
    """Write each process's half of the state to files, unsorted and sorted."""
    table = state_table(rows)
    groups = key_groups([table["user"]], max_parallelism=MAX_PARALLELISM)
    own = KeyGroupAssignment(max_parallelism=MAX_PARALLELISM, parallelism=PROCESSES)
    for subtask, (first, last) in enumerate((r.first, r.last) for r in own.ranges()):
        mine = np.flatnonzero((groups >= first) & (groups <= last))
        # The rows are sorted by user: a stable sort by key group gives the order of the files.
        order = np.argsort(groups[mine], kind="stable")
        _keep(folder / f"{AS_THEY_COME}-{subtask}", table.take(pa.array(mine)))
        _keep(folder / f"{SORTED}-{subtask}", table.take(pa.array(mine[order])))
        np.save(folder / f"groups-{subtask}", groups[mine][order])
    return table.schema


def _keep(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def _loaded(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as source:
        return pa.ipc.open_file(source).read_all().combine_chunks()


@dataclass
class _Worker:
    """The data that one process has in memory, and the operations that it executes."""

    tables: dict[str, pa.Table]
    bounds: list[int]

    @classmethod
    def of(cls, folder: Path, subtask: int) -> _Worker:
        names = (SORTED, AS_THEY_COME)
        tables = {name: _loaded(folder / f"{name}-{subtask}") for name in names}
        groups = np.load(folder / f"groups-{subtask}.npy")
        borders = np.flatnonzero(np.diff(groups)) + 1
        return cls(tables, [0, *borders.tolist(), len(groups)])

    def write_files(self, folder: Path, sync: bool) -> None:
        folder.mkdir(parents=True)
        rows, options = self.tables[SORTED], ParquetOptions()
        for number, (first, stop) in enumerate(zip(self.bounds, self.bounds[1:], strict=False)):
            path = folder / f"{number}.parquet"
            pq.write_table(
                rows.slice(first, stop - first),
                path,
                compression="zstd",
                compression_level=options.zstd_level,
                row_group_size=options.row_group_rows,
            )
            if sync:
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

    def write_state(self, writer: Any, name: str) -> bytes:
        raw: bytes = writer.write(self.tables[name]).to_json()
        return raw


def _work(connection: Connection, folder: Path, subtask: int) -> None:
    """Execute commands until there are no more; an error is returned as a result."""
    worker = _Worker.of(folder, subtask)
    connection.send(None)
    while (asked := connection.recv()) is not None:
        what, *arguments = asked
        try:
            connection.send(getattr(worker, what)(*arguments))
        except Exception as error:  # noqa: BLE001 - raised where the time is taken
            connection.send(error)


@contextmanager
def _processes(folder: Path) -> Iterator[list[Connection]]:
    """Start the processes; yield them when they are ready."""
    spawn = multiprocessing.get_context("spawn")
    pairs = [spawn.Pipe() for _ in range(PROCESSES)]
    started = [
        spawn.Process(target=_work, args=(theirs, folder, subtask))
        for subtask, (_, theirs) in enumerate(pairs)
    ]
    ours = [mine for mine, _ in pairs]
    for process in started:
        process.start()
    try:
        _answers(ours)
        yield ours
    finally:
        for connection in ours:
            connection.send(None)
        for process in started:
            process.join()


def _answers(workers: list[Connection]) -> list[Any]:
    answers = [worker.recv() for worker in workers]
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def _runs(
    folder: Path, workers: list[Connection], schema: pa.Schema
) -> dict[str, Callable[[], None]]:
    store = StateStore.open(str(folder / "store"), table_format="parquet")

    def plain(sync: bool) -> None:
        for subtask, worker in enumerate(workers):
            worker.send(("write_files", folder / "plain" / str(subtask), sync))
        _answers(workers)

    def snapshot(name: str) -> None:
        with store.snapshot(parallelism=PROCESSES) as checkpoint:
            state = checkpoint.declare_keyed(
                "bench", "state", schema, key="user", max_parallelism=MAX_PARALLELISM
            )
            for subtask, worker in enumerate(workers):
                worker.send(("write_state", state.subtask(subtask), name))
            for raw in _answers(workers):
                checkpoint.acknowledge(Acknowledgement.from_json(raw))

    return {
        FLOOR: lambda: plain(sync=False),
        SYNCED: lambda: plain(sync=True),
        SORTED: lambda: snapshot(SORTED),
        AS_THEY_COME: lambda: snapshot(AS_THEY_COME),
    }


def _in_turn(
    runs: dict[str, Callable[[], None]], folder: Path, repeats: int
) -> dict[str, list[float]]:
    """Return the seconds of each run, in turn; the first round is not measured.

    Each run starts after a sync, so that it does not sync another's files.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            os.sync()
            start = time.perf_counter()
            run()
            taken = time.perf_counter() - start
            if repeat:
                seconds[name].append(taken)
            shutil.rmtree(folder / "plain", ignore_errors=True)
    return seconds
