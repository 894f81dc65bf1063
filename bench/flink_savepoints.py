"""A Flink savepoint with one value for each of many string keys, compared with Flink's own restore.

Flink runs in a separate process with two subtasks on this machine. It measures a job from
submission until all of its tasks run, with and without the state. The JVM has restored before.

The same savepoint is also processed by the store:

* It is read by column.
* It is imported into a store, with one thread per core and with one thread.
* It is exported from the store again, including the verification at the end.

The backends' own formats are read too.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.measure import Figure, Runs, counted, in_turn, times
from statestore import StateStore
from statestore.errors import StorageError
from statestore.interop.flink import export_savepoint, import_savepoint
from statestore.interop.flink.read.savepoint import open_savepoint
from tests.servers.flink import VERSIONS, Flink

__all__ = ["figures"]

HASHMAP, ROCKSDB = ({"state.backend.type": name} for name in ("hashmap", "rocksdb"))
RESTORED = "restore, Flink, hashmap"
IN, OUT = "import", "export, proved"
ALONE = "import, one thread"
READS = {
    "canonical": "read, canonical savepoint",
    "hashmap": "read, hashmap's own savepoint",
    "rocksdb": "read, RocksDB's own savepoint",
}
GOALS = dict.fromkeys(READS.values(), 1.0) | {IN: 1.0, OUT: 0.5}
"""Million rows a second."""

SPLITS = 8
"""The subtasks of the job's source, each of which emits the same number of keys."""

Run = Callable[..., str]
"""Runs a step of ``Many.java``; returns the last word of its output."""


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the time of each way; they run in turn."""
    rows -= rows % SPLITS
    with _flink() as flink:
        run = partial(flink, keys=rows, parallelism=2, **_checkpoints(folder))
        places = _savepoints(run, folder, rows)
        kept = StateStore.open(str(folder / "kept"), table_format="parquet")
        import_savepoint(places["canonical"], kept)
        restore = partial(run, do="restore")
        runs: Runs = {
            RESTORED: partial(restore, **{"from": places["canonical"]}, **HASHMAP),
            "restore, Flink, RocksDB": partial(restore, **{"from": places["canonical"]}, **ROCKSDB),
            "start of the job without state, Flink": partial(restore, **HASHMAP),
            **{what: partial(_read, places[kind], rows) for kind, what in READS.items()},
            IN: partial(_import, places["canonical"], folder / "in"),
            ALONE: partial(_import, places["canonical"], folder / "in", threads=1),
            OUT: partial(_export, kept, folder / "out"),
        }
        seconds = in_turn(runs, repeats)
    found = [
        times("B26", what, seconds, floor="" if what == RESTORED else RESTORED) for what in runs
    ]
    found += [_rate(what, rows, seconds[what], goal) for what, goal in GOALS.items()]
    return [*found, counted("B26", "keys", rows, "keys")]


def _rate(what: str, rows: int, seconds: list[float], goal: float) -> Figure:
    low, value, high = (
        rows / 1e6 / one for one in (max(seconds), statistics.median(seconds), min(seconds))
    )
    return Figure("B26", what, value, "M rows/s", low, high, goal=goal, at_least=True)


@contextmanager
def _flink() -> Iterator[Run]:
    """Start Flink; a step raises StorageError once the process has ended."""
    command = Flink(VERSIONS[0]).command("golden.Many", [])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        steps, lines = process.stdin, process.stdout
        assert steps is not None, "it has a pipe"
        assert lines is not None, "it has a pipe"

        def run(**words: object) -> str:
            print(*(f"{name}={value}" for name, value in words.items()), file=steps)
            said = lines.readline().split()
            if not said:
                raise StorageError("Flink has ended; its output is above")
            return said[-1].removeprefix("file:")

        yield run
        steps.close()


def _savepoints(run: Run, folder: Path, rows: int) -> dict[str, str]:
    """Let a job take a canonical savepoint, and let each backend take one in its own format."""
    step = partial(run, do="savepoint", to=folder)
    canonical = step(events=rows, format="CANONICAL", **HASHMAP)
    own = {"from": canonical, "format": "NATIVE"}
    return {
        "canonical": canonical,
        "hashmap": step(**own, **HASHMAP),
        "rocksdb": step(**own, **ROCKSDB),
    }


def _checkpoints(folder: Path) -> dict[str, str]:
    return {"execution.checkpointing.dir": f"file://{folder}"}


def _read(place: str, rows: int) -> None:
    (operator,) = (one for one in open_savepoint(place).operators if one.states)
    found = sum(map(len, operator.rows()))
    if found != rows:
        raise StorageError(f"{place} has {found} rows, and {rows} were written")


def _import(place: str, folder: Path, threads: int | None = None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    store = StateStore.open(str(folder), table_format="parquet")
    import_savepoint(place, store, threads=threads)


def _export(store: StateStore, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    export_savepoint(store, str(folder))
