"""Peak memory and time of each operation on one large key group, compared with 128 small ones.

Both have the same number of bytes. Each step runs in a new process, which reports its time and the
peak memory of itself and of Spark's Python workers. A row has an integer key and a text of one
kilobyte that does not compress. The first checkpoint is full. The second one has changes of the
same size, half of which are new keys.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.measure import Figure, output_of
from statestore import ParquetOptions, StateStore

__all__ = [
    "MEGABYTES",
    "STEPS",
    "batches",
    "figures",
    "open_store",
    "peak_megabytes",
]

TARGET = "B31"
MEGABYTES = 4000
"""The default size of the large key group."""
BUDGET = 512 * 2**20
MOST_MEMORY = BUDGET / 1e6 + 300
MOST_TIME = 1.5
LAYOUTS = {"one key group": 1, "128 key groups": 128}
ROW_BYTES = 1000
_BATCH_ROWS = 10_000

# They run in this order: each step finds the checkpoints of the earlier steps.
STEPS = {
    "snapshot": """
with store.snapshot(parallelism=1) as checkpoint:
    checkpoint.write_keyed("u", "s", batches(0, rows), key="k", max_parallelism=key_groups)""",
    "changes": """
with store.snapshot(parallelism=1) as checkpoint:
    checkpoint.write_changes("u", "s", batches(rows // 2, rows // 2 + rows))""",
    "restore": """
for _ in store.restore(parallelism=1).keyed("u", "s").to_batches(0):
    pass""",
    "get": """store.restore(parallelism=1).keyed("u", "s").get(rows // 2)""",
    "lookup": """
keys = pa.table({"k": range(0, rows, rows // 1000)})
assert store.restore(parallelism=1).keyed("u", "s").lookup(keys).num_rows >= 1000""",
    "lazy": """
assert store.restore(parallelism=1).keyed("u", "s").lazy(0).get(rows // 2)""",
    "diff": """store.inspect.diff(1, 2)""",
    "verify --deep": """assert store.maintenance.verify("all", deep=True).is_intact""",
    "comparison": """
with store.snapshot(parallelism=1) as checkpoint:
    checkpoint.write_changes_against("u", "s", batches(rows // 4, rows))""",
    "compact": """store.maintenance.compact()""",
    # Enough keys for one in each of 128 key groups.
    "edit": """
put = [{"k": key, "v": "new"} for key in range(rows // 2, rows // 2 + 1000)]
store.maintenance.edit("u", "s", delete=[*range(rows // 2 - 1000, rows // 2)], put=put)""",
    "edit by SQL": """
store.maintenance.edit("u", "s", sql="SELECT k + 1 AS k, v FROM state")""",
    "purge": """
from statestore import OperatorKey
store.maintenance.forget(OperatorKey("u", rows - 7), search=False)""",
    "copy": """store.maintenance.copy("latest", folder + " copied")""",
    "Flink export": """export_savepoint(store, folder + " savepoint")""",
    "Flink import": """
import_savepoint(folder + " savepoint", open_store(folder + " imported"))""",
    "Flink repack": """
repack_savepoint(
    folder + " savepoint", folder + " repacked", max_parallelism=key_groups + 1)""",
    "rekey": """store.maintenance.rekey("u", "s", hash_scheme="flink-sql")""",
    "snapshot, Spark": """
from bench.memory_spark import spark, spark_rows
with open_store(folder, spark()).snapshot(parallelism=1) as checkpoint:
    checkpoint.drop("u", "s")
    checkpoint.write_keyed("u", "s2", spark_rows(rows), key="k", max_parallelism=key_groups)""",
    "restore, Spark": """
from bench.memory_spark import spark
frame = open_store(folder, spark()).restore(parallelism=1).keyed("u", "s2").to_spark()
frame.write.format("noop").mode("overwrite").save()""",
}
READING = ("restore", "get", "lookup", "lazy", "diff", "verify --deep", "restore, Spark")
"""Steps that are repeated, because they do not change the store."""
OF_KEYS = ("get", "lookup", "lazy", "purge")
"""Steps that read the row groups or files of their keys, and no other bytes."""
SHRINKING = ("compact", "edit", "edit by SQL", "purge", "rekey", "snapshot, Spark")
"""Steps after which older checkpoints are deleted, to free disk space."""
COPIES = {"copy": ("copied",), "Flink repack": ("savepoint", "imported", "repacked")}
"""Steps after which folders outside the store are deleted."""
_SHRINK = """
store.maintenance.expire(retain=1)
store.maintenance.gc(minimum_age='0')"""

_STEP = """
import json, sys, time
import pyarrow as pa
from bench.memory import batches, open_store, peak_megabytes
from statestore.interop.flink import export_savepoint, import_savepoint, repack_savepoint
folder, rows, key_groups = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = open_store(folder)
start = time.perf_counter()
{step}
seconds = time.perf_counter() - start
print(json.dumps([seconds, peak_megabytes()]))
{after}
"""


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return peak memory and seconds of each step.

    Args:
        folder: where the stores are made; it needs room for ten times the key group.
        rows: the size of the large key group in megabytes.
        repeats: how often the reading steps run.
    """
    found: list[Figure] = []
    count = rows * 1_000_000 // ROW_BYTES
    for name, step in STEPS.items():
        runs: dict[str, list[tuple[float, float]]] = {layout: [] for layout in LAYOUTS}
        for _ in range(repeats if name in READING else 1):
            for layout, key_groups in LAYOUTS.items():
                after = _SHRINK if name in SHRINKING else ""
                runs[layout].append(_run(step, after, folder / layout, count, key_groups))
                for copied in COPIES.get(name, ()):
                    shutil.rmtree(folder / f"{layout} {copied}")
        found += _figures(name, runs)
    return found


def peak_megabytes() -> float:
    """Return the peak memory of this process, or of a Python process that it started."""
    return max(map(_peak_megabytes, _python_processes(os.getpid())))


def _python_processes(process: int) -> Iterator[int]:
    """Yield a process and all of its descendants that run Python."""
    if Path(f"/proc/{process}/comm").read_text().startswith("python"):
        yield process
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from _python_processes(int(child))


def _peak_megabytes(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return 1024 * int(status["VmHWM"].split()[0]) / 1e6


def open_store(folder: str, spark: Any = None) -> StateStore:
    """Open the store of a folder with the measured memory budget."""
    return StateStore.open(
        folder,
        spark=spark,
        table_format="parquet",
        compaction=None,
        parquet=ParquetOptions(memory_bytes=BUDGET),
    )


def batches(first: int, stop: int) -> pa.RecordBatchReader:
    """Return the rows of some keys as an unsorted stream."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])

    def stream() -> Iterator[pa.RecordBatch]:
        random = np.random.default_rng(first)
        letters = np.frombuffer(bytes(range(32, 96)), np.uint8)
        for begin in range(first, stop, _BATCH_ROWS):
            keys = random.permutation(np.arange(begin, min(begin + _BATCH_ROWS, stop)))
            text = letters[random.integers(0, 64, len(keys) * ROW_BYTES, np.uint8)]
            ends = np.arange(0, len(text) + 1, ROW_BYTES, dtype=np.int32)
            values = pa.StringArray.from_buffers(len(keys), pa.py_buffer(ends), pa.py_buffer(text))
            yield pa.record_batch([pa.array(keys), values], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, stream())


def _run(step: str, after: str, folder: Path, rows: int, key_groups: int) -> tuple[float, float]:
    """Run a step in a new process; return its seconds and peak megabytes.

    The code in ``after`` is not measured.
    """
    arguments = [str(folder), str(rows), str(key_groups)]
    command = [sys.executable, "-c", _STEP.format(step=step, after=after), *arguments]
    seconds, megabytes = json.loads(output_of(command).splitlines()[-1])
    return seconds, megabytes


def _figures(name: str, runs: dict[str, list[tuple[float, float]]]) -> list[Figure]:
    one, spread = LAYOUTS
    seconds = {layout: [run[0] for run in runs[layout]] for layout in LAYOUTS}
    peaks = [run[1] for run in runs[one]]
    ratio = statistics.median(seconds[one]) / statistics.median(seconds[spread])
    most_time = None if name in OF_KEYS else MOST_TIME
    return [
        _figure(f"{name}: peak memory", peaks, "MB", goal=MOST_MEMORY),
        _figure(f"{name}, {spread}", seconds[spread], "s"),
        _figure(f"{name}, {one}", seconds[one], "s", f"{name}, {spread}", ratio, most_time),
    ]


def _figure(
    what: str,
    values: Sequence[float],
    unit: str,
    floor: str = "",
    ratio: float | None = None,
    goal: float | None = None,
) -> Figure:
    middle = statistics.median(values)
    return Figure(TARGET, what, middle, unit, min(values), max(values), floor, ratio, goal)
