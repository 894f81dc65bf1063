"""The time of a subtask by its bytes, and from it the restore of states that no small machine has.

Measured: one subtask restores and writes 1/16, 1/4 and all of a number of megabytes (``rows``),
against a simulated object store: 20 ms a request, 50 MB/s a stream, 16 streams. A subtask has
64 equal states at most. The store has the bytes of one of them, and the others read the same files;
a checkpoint sends its bytes to nowhere. So disk and memory stay small, and each byte is still
transferred, checked and decoded, or sorted, encoded and hashed.

Derived: the line through the three times, with the largest distance of a time from it, and the time
of a restore, in which all subtasks work at the same time. The plan of a generated manifest gives
the bytes of the largest subtask, and the line its seconds.

Assumed: a subtask of its own for each share of the bytes, with as many cores as this machine and
the simulated network, and keys that are spread evenly. The numbers of subtasks are guesses: the
jobs with 235 GB (it restarts in 12 to 20 minutes in Flink) and 13 TB were published without them.

Not in any figure: the start of the processes, the network of a real service under the load of all
subtasks, and filling the job's own backend, such as RocksDB.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.measure import Figure, output_of
from bench.memory import batches
from bench.plans import made_up_manifest
from statestore import StateStore
from statestore.catalog.catalog import Catalog
from statestore.format.manifest import TableRef
from statestore.format.names import keyed_table
from statestore.storage import open_storage
from tests.servers.slow import SlowStorage

TARGET = "B35"
MEGABYTES = 16_000
"""The bytes of the largest measured subtask."""
UNITS = (4, 16, 64)
"""The numbers of states of the measured subtasks."""
MOST_RESIDUAL, MOST_MEMORY = 0.15, 1_000.0
"""A checkpoint's memory includes the given rows of one state, a third of a gigabyte."""
JOBS = {"235 GB": (235e9, (32, 128)), "13 TB": (13e12, (1_000, 4_000))}
"""The bytes of known jobs, and the assumed numbers of subtasks."""
_ROW_BYTES = 753  # what a compressed row takes
_FILES, _FILE_BYTES = 512, 128 * 2**20
_KEY_GROUPS = 128
_UID, _FIRST = "job", "state-000"
_PART_BYTES = 8 * 2**20  # a bucket gets a file in such parts, one after the other
_OTHER_STATES = re.compile(r"/state-[0-9]{3}/")


class SharedBytes(SlowStorage):
    """A simulated bucket whose states read the files of the first one, and keep nothing written."""

    def __init__(self, url: str, *, keeps: bool = True) -> None:
        """Take a path; unless ``keeps``, data files are sent and have a length, and no bytes."""
        super().__init__(url)
        self._keeps, self._sent = keeps, dict[str, int]()

    def size(self, name: str) -> int:
        """Return the length of a file, in one request."""
        with self._request(0):
            return self._sent[name] if name in self._sent else super().size(_first(name))

    def read(self, name: str) -> bytes:
        """Read a file in one request."""
        return super().read(_first(name))

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Read a part of a file in one request."""
        return super().read_range(_first(name), start, stop)

    def open_read(self, name: str) -> Any:
        """Open a file; every read of it is a request."""
        return super().open_read(_first(name))

    def open_write(self, name: str) -> Any:
        """Open a file to write, which is sent in parts."""
        return super().open_write(name) if self._keeps else _Sent(self, name)

    def sync(self, names: Any) -> None:
        """Do nothing: a bucket keeps each object that it has accepted."""

    def send(self, name: str, size_bytes: int) -> None:
        """Send a part of a file in one request."""
        with self._request(size_bytes):
            self._sent[name] = self._sent.get(name, 0) + size_bytes


class _Sent:
    """A file whose bytes are counted and sent to nowhere."""

    closed = False

    def __init__(self, storage: SharedBytes, name: str) -> None:
        self._storage, self._name, self._waiting = storage, name, 0

    def __enter__(self) -> _Sent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._waiting += size
        while self._waiting >= _PART_BYTES:
            self._storage.send(self._name, _PART_BYTES)
            self._waiting -= _PART_BYTES
        return size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._storage.send(self._name, self._waiting)

    abandon = close


def _first(name: str) -> str:
    return _OTHER_STATES.sub(f"/{_FIRST}/", name)


@dataclass(frozen=True)
class Line:
    """Seconds by bytes: ``fixed`` seconds, and more for each byte."""

    fixed: float
    per_byte: float

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Line:
        """Return the line of least squares."""
        slope, fixed = statistics.linear_regression(*zip(*points, strict=True))
        return cls(fixed, slope)

    def seconds(self, size_bytes: float) -> float:
        """Return the time for some bytes."""
        return self.fixed + self.per_byte * size_bytes

    def residual(self, points: Sequence[tuple[float, float]]) -> float:
        """Return the largest distance of a measured time from the line, by the time."""
        return max(abs(self.seconds(size) - seconds) / seconds for size, seconds in points)


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the measured times, their lines, and the derived times of large jobs.

    ``rows`` is the size of the largest subtask in MB.
    """
    unit = rows * 1_000_000 // UNITS[-1]
    size = _store(str(folder / "store"), unit // _ROW_BYTES)
    found, lines = [], {}
    for step in ("restore", "checkpoint"):
        points = []
        for states in UNITS:
            runs = [_run(step, folder, states, unit // _ROW_BYTES) for _ in range(repeats)]
            seconds, peaks = zip(*runs, strict=True)
            points.append((float(states * size), statistics.median(seconds)))
            what = f"measured: {step} of {states * size / 1e9:.3g} GB by one subtask"
            found.append(_figure(what, seconds, "s"))
            found.append(_figure(f"{what}: peak memory", peaks, "MB", MOST_MEMORY))
        line = lines[step] = Line.through(points)
        rate = 1 / line.per_byte / 1e6
        found.append(_figure(f"derived: {step}, fixed part", [line.fixed], "s"))
        found.append(_figure(f"derived: {step}, each further byte", [rate], "MB/s"))
        what = f"derived: {step}, largest distance from the line by the time"
        found.append(_figure(what, [line.residual(points)], "×", MOST_RESIDUAL))
    for job, (job_bytes, parallelisms) in JOBS.items():
        for parallelism in parallelisms:
            found += _planned(folder / job, job, job_bytes, parallelism, lines)
    return found


def restore(folder: str, states: int) -> None:
    """Read some states of the only subtask, one after the other."""
    restored = StateStore.open(SharedBytes(folder)).restore(parallelism=1)
    for number in range(states):
        for _ in restored.keyed(_UID, _name(number)).to_batches(0):
            pass


def checkpoint(folder: str, states: int, rows: pa.Table) -> None:
    """Write the same rows as some states."""
    store = StateStore.open(SharedBytes(folder, keeps=False), table_format="parquet")
    with store.snapshot(parallelism=1) as taken:
        for number in range(states):
            taken.write_keyed(_UID, _name(number), rows, key="k", max_parallelism=_KEY_GROUPS)


def _store(url: str, rows: int) -> int:
    """Store one state, and a checkpoint of many that have its files; return its bytes."""
    store = StateStore.open(url, table_format="parquet")
    with store.snapshot(parallelism=1) as taken:
        entry = taken.write_keyed(
            _UID, _FIRST, batches(0, rows), key="k", max_parallelism=_KEY_GROUPS
        )
    manifest = store.checkpoint().manifest
    states = [
        replace(
            entry,
            state=replace(entry.state, name=_name(number)),
            table=TableRef("parquet", keyed_table(_UID, _name(number))),
        )
        for number in range(UNITS[-1])
    ]
    catalog = Catalog.open(open_storage(url), create=False)
    catalog.commit(replace(manifest, checkpoint_id=2, keyed=tuple(states), metrics=None))
    return entry.size_bytes


def _name(number: int) -> str:
    return f"state-{number:03}"


_STEP = """
import json, sys, time
from bench.memory import batches, peak_megabytes
from bench import scale
step, folder, states, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
arguments = () if step == "restore" else (batches(0, rows).read_all(),)
start = time.perf_counter()
getattr(scale, step)(folder, states, *arguments)
print(json.dumps([time.perf_counter() - start, peak_megabytes()]))
"""


def _run(step: str, folder: Path, states: int, rows: int) -> tuple[float, float]:
    """Run a step in a new process; return its seconds and its peak memory in MB."""
    where = folder / ("store" if step == "restore" else f"sent-{time.monotonic_ns()}")
    command = [sys.executable, "-c", _STEP, step, str(where), str(states), str(rows)]
    seconds, megabytes = json.loads(output_of(command))
    return seconds, megabytes


def _planned(
    folder: Path, job: str, job_bytes: float, parallelism: int, lines: dict[str, Line]
) -> list[Figure]:
    """Return the largest subtask of a plan, and the time that its bytes take."""
    url = str(folder / str(parallelism))
    catalog = Catalog.open(open_storage(url), create=True, table_format="parquet")
    states = max(round(job_bytes / _FILES / _FILE_BYTES), 1)
    catalog.commit(
        made_up_manifest(catalog.store_id, 1, states=states, files=_FILES, file_bytes=_FILE_BYTES)
    )
    plan = StateStore.open(url).plan(parallelism=parallelism)
    (operator,) = plan.operators
    largest = max(subtask.size_bytes for subtask in operator.subtasks)
    given = f"{job}, assumed {parallelism:,} subtasks"
    return [
        _figure(f"derived: bytes of the largest subtask, {given}", [largest / 1e9], "GB"),
        *(
            _figure(f"derived: {step}, {given}", [line.seconds(largest)], "s")
            for step, line in lines.items()
        ),
    ]


def _figure(what: str, values: Sequence[float], unit: str, goal: float | None = None) -> Figure:
    middle = statistics.median(values)
    return Figure(TARGET, what, middle, unit, min(values), max(values), goal=goal)
