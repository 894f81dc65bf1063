"""Snapshot and restore of a large state, against what plain Parquet takes for the same rows.

``make bench`` (``python -m bench.run --rows 5000000``) prints one table and writes JSON. A time is
the median of the repeats, with the smallest and largest; a ratio is to the floor of its kind,
measured in turn with it in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from bench.state import state_rows
from statestore import StateStore
from statestore.commands.restore import RestoredKeyedState
from statestore.table.session import spark_session

PARALLELISM = 4
MAX_PARALLELISM = 128
RESTORED_AT = (3, 16)


def main() -> None:
    """Run everything, print the table, write the JSON."""
    arguments = _arguments()
    spark = spark_session(app_name="statestore-bench", master="local[2]", driver_memory="8g")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        rows = state_rows(spark, arguments.rows).persist()
        rows.count()
        results = measure(spark, rows, Path(folder), arguments.repeats)
    spark.stop()
    document = {"rows": arguments.rows, "repeats": arguments.repeats, "results": results}
    arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    show(document)


def measure(
    spark: SparkSession, rows: DataFrame, folder: Path, repeats: int
) -> list[dict[str, Any]]:
    """Return one result per measured thing, floors first, each a dictionary of plain values."""
    store = StateStore.open(str(folder / "store"), spark=spark)
    plain = folder / "plain"

    def snapshot() -> None:
        with store.snapshot(parallelism=PARALLELISM) as checkpoint:
            checkpoint.keyed("bench", "state", rows, key="user", max_parallelism=MAX_PARALLELISM)

    def write_plain() -> None:
        rows.write.mode("overwrite").option("compression", "zstd").parquet(str(plain))

    writes = in_turn({"write.parquet, no shuffle": write_plain, "snapshot": snapshot}, repeats)
    entry = store.manifest().keyed[0]
    data = f"{store.url}/{entry.table.path}/key_group=*/{store.checkpoints()[-1]:010}-*.parquet"
    files = sorted(str(path) for path in Path("/").glob(data.lstrip("/")))
    runs: dict[str, Callable[[], object]] = {
        "read.parquet of the same files": lambda: noop(spark.read.parquet(*files)),
        "pyarrow, the same files, one thread": lambda: read_arrow(files),
    }
    for parallelism in RESTORED_AT:
        restored = store.restore(parallelism=parallelism).keyed("bench", "state")
        runs[f"restore {PARALLELISM} -> {parallelism}, Spark"] = partial(restore_spark, restored)
        runs[f"restore {PARALLELISM} -> {parallelism}, Arrow"] = partial(restore_arrow, restored)
    reads = in_turn(runs, repeats)
    return [
        *results_of(writes, {"snapshot": "write.parquet, no shuffle"}, entry.size_bytes),
        *results_of(
            reads,
            {name: _floor(name) for name in runs if name.startswith("restore")},
            entry.size_bytes,
        ),
    ]


def in_turn(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Return seconds per run, each repeated, all in turn, after one unmeasured round."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def results_of(
    seconds: dict[str, list[float]], floors: dict[str, str], size_bytes: int
) -> list[dict[str, Any]]:
    """Return medians with their spread, and ratios to the floor where there is one."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return [
        {
            "name": name,
            "seconds": round(medians[name], 3),
            "spread": [round(min(values), 3), round(max(values), 3)],
            "floor": floors.get(name),
            "ratio": round(medians[name] / medians[floors[name]], 2) if name in floors else None,
            "bytes": size_bytes,
        }
        for name, values in seconds.items()
    ]


def noop(frame: DataFrame) -> None:
    """Read every row and column in Spark, and write nothing."""
    frame.write.format("noop").mode("overwrite").save()


def restore_spark(restored: RestoredKeyedState) -> None:
    """Read every subtask as one DataFrame."""
    noop(restored.dataframe())


def restore_arrow(restored: RestoredKeyedState) -> None:
    """Read every subtask in Arrow, one after the other."""
    for subtask in range(restored.assignment.parallelism):
        for _ in restored.subtask(subtask):
            pass


def read_arrow(files: list[str]) -> None:
    """Read files in Arrow, batch by batch, one after the other."""
    for file in files:
        for _ in pq.ParquetFile(file).iter_batches(use_threads=False):
            pass


def show(document: dict[str, Any]) -> None:
    """Print the results as one table."""
    table = Table(title=f"{document['rows']:,} rows, medians of {document['repeats']}")
    for heading in ("what", "seconds", "spread", "x floor", "floor", "bytes of the state"):
        table.add_column(heading)
    for result in document["results"]:
        low, high = result["spread"]
        ratio = "" if result["ratio"] is None else f"{result['ratio']:.2f}"
        table.add_row(
            result["name"],
            f"{result['seconds']:.2f}",
            f"{low:.2f} – {high:.2f}",
            ratio,
            result["floor"] or "",
            f"{result['bytes']:,}",
        )
    Console(width=120).print(table)


def _floor(name: str) -> str:
    spark = "read.parquet of the same files"
    return spark if name.endswith("Spark") else "pyarrow, the same files, one thread"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None, help="where the stores go")
    parser.add_argument("--json", type=Path, default=Path("bench/results.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
