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

from bench.counts import counts_of, lookup_of
from bench.state import state_rows
from statestore import StateStore
from statestore.commands.restore import RestoredKeyedState
from statestore.table.session import spark_session
from statestore.table.spark_hashing import key_group_column, subtask_column

PARALLELISM = 4
MAX_PARALLELISM = 128
RESTORED_AT = (3, 16, 64)
PLAIN, SHUFFLED = "write.parquet, no shuffle", "repartitionById, write.parquet"


def main() -> None:
    """Run everything, print the table, write the JSON."""
    arguments = _arguments()
    spark = spark_session(app_name="statestore-bench", master="local[2]", driver_memory="8g")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        rows = state_rows(spark, arguments.rows).persist()
        rows.count()
        results = measure(spark, rows, Path(folder), arguments.repeats)
        url = str(Path(folder) / "store")
        counts = [counts_of(url, parallelism) for parallelism in RESTORED_AT]
        users = [f"user-{number:09d}" for number in range(0, arguments.rows, arguments.rows // 100)]
        lookup = lookup_of(url, users)
    spark.stop()
    document = {
        "rows": arguments.rows,
        "repeats": arguments.repeats,
        "results": results,
        "counts": counts,
        "lookup": lookup,
    }
    arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    show(document)


def measure(
    spark: SparkSession, rows: DataFrame, folder: Path, repeats: int
) -> list[dict[str, Any]]:
    """Return one result per measured thing, floors first, each a dictionary of plain values."""
    store = StateStore.open(str(folder / "store"), spark=spark)
    with store.snapshot(parallelism=PARALLELISM) as checkpoint:
        checkpoint.keyed("bench", "state", rows, key="user", max_parallelism=MAX_PARALLELISM)
    writes = in_turn(_writes(store, rows, folder / "plain"), repeats)
    reads = in_turn(_reads(spark, store), repeats)
    floors = {name: PLAIN for name in writes if name != PLAIN}
    floors |= {name: _floor(name) for name in reads if name.startswith("restore")}
    return results_of(writes | reads, floors, store.manifest().size_bytes)


def _writes(store: StateStore, rows: DataFrame, plain: Path) -> dict[str, Callable[[], object]]:
    def snapshot(frame: DataFrame, *, placed: bool) -> None:
        with store.snapshot(parallelism=PARALLELISM) as checkpoint:
            checkpoint.keyed("bench", "state", frame, key="user", placed=placed)

    def write_plain(frame: DataFrame) -> None:
        frame.write.mode("overwrite").option("compression", "zstd").parquet(str(plain))

    # What the job before this one left in Spark's memory, where it belongs.
    restored = store.restore(parallelism=PARALLELISM).keyed("bench", "state")
    lying = restored.dataframe().drop("key_group").persist()
    lying.count()
    key_group = key_group_column(
        rows.schema, ("user",), max_parallelism=MAX_PARALLELISM, hash_scheme="java"
    )
    subtask = subtask_column(key_group, max_parallelism=MAX_PARALLELISM, parallelism=PARALLELISM)
    return {
        PLAIN: partial(write_plain, rows),
        SHUFFLED: partial(write_plain, rows.repartitionById(PARALLELISM, subtask)),
        "snapshot": partial(snapshot, rows, placed=False),
        "snapshot of rows that lie right": partial(snapshot, lying, placed=True),
    }


def _reads(spark: SparkSession, store: StateStore) -> dict[str, Callable[[], object]]:
    entry = store.manifest().keyed[0]
    files = [f"{store.url}/{entry.table.path}/{handle.path}" for handle in entry.handles]
    runs: dict[str, Callable[[], object]] = {
        "read.parquet of the same files": lambda: noop(spark.read.parquet(*files)),
        "pyarrow, the same files, one thread": lambda: read_arrow(files),
    }
    for parallelism in RESTORED_AT:
        restored = store.restore(parallelism=parallelism).keyed("bench", "state")
        runs[f"restore {PARALLELISM} -> {parallelism}, Spark"] = partial(restore_spark, restored)
        runs[f"restore {PARALLELISM} -> {parallelism}, Arrow"] = partial(restore_arrow, restored)
    return runs


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
    for counted in (*document["counts"], document["lookup"]):
        print(", ".join(f"{name} {value}" for name, value in counted.items()))


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
