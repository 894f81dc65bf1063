"""Check a streaming query after a power failure: its output table, and that it can be restarted.

The query is in ``tests/streaming/driver.py``. Spark does not sync its checkpoint location. A
restart may therefore be refused after a loss, but it must never count an event twice or skip one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.errors import InvalidArgumentError
from statestore.spark.session import spark_session
from statestore.streaming import StatefulQuery
from tests.streaming.driver import (
    COLUMNS,
    EVENTS,
    PROCESSOR,
    Totals,
    file_name,
    query_of,
    set_time,
    totals_of,
)

__all__ = [
    "output_problems",
    "restart_problems",
    "session",
    "start",
    "totals",
]

_LOCATION, OUTPUT = "progress", "out"
_SECONDS = 900
_SCHEMA = "id long, key string, amount long"


def session(scratch: str | None = None) -> SparkSession:
    """Return the running session, or start one whose own files are in a folder."""
    conf = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    if scratch is not None:
        conf |= {"spark.local.dir": scratch, "spark.sql.warehouse.dir": f"{scratch}/warehouse"}
    return spark_session(
        master="local[2]", table_format="parquet", driver_memory="1g", extra_conf=conf
    )


def start(spark: SparkSession, root: Path, query: StatefulQuery) -> None:
    """Run the query until it has processed all events; PySparkException if it fails."""
    stream = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", 1)
    events = stream.json(str(root / "in"))
    running = query.start(events, str(root / _LOCATION), available_now=True)
    assert running.awaitTermination(_SECONDS), "the query does not end"


def totals(store: StateStore, checkpoint: int | str = "latest") -> Totals:
    """Return the state of the query at a checkpoint."""
    rows = store.restore(checkpoint=checkpoint, parallelism=1).keyed("totals", "by-key")
    table = rows.to_arrow(0).select(COLUMNS).to_pylist()
    return {row["key"]: tuple(row[name] for name in COLUMNS[1:]) for row in table}


def output_problems(image: Path, name: str, facts: Mapping[str, Any]) -> list[str]:
    """Return which rows of the stored micro-batches the output table lacks, or has twice."""
    if facts["form"] != PROCESSOR or not (image / name / "statestore.json").exists():
        return []
    store = StateStore.open(str(image / name))
    if not store.checkpoints():
        return []
    progress = store.restore(parallelism=1).operator_state("source", "progress")
    [[last]] = progress.per_old_subtask()
    try:
        table = DeltaTable(str(image / OUTPUT))
        version = table.transaction_version(f"{last['query']}/output")
        counts = table.to_pyarrow_table()["n"].to_pylist()
    except (DeltaError, OSError, pa.ArrowException) as error:
        return [f"the output of micro-batch {last['batch']} is unreadable: {error}"]
    if version is None or version < last["batch"]:
        return [f"the output has micro-batch {version}, but the store has {last['batch']}"]
    rows = sum(counts)
    return [] if rows == EVENTS * (version + 1) else [f"the output counts {rows} events"]


def restart_problems(
    image: Path, name: str, facts: Mapping[str, Any], *, is_whole: bool
) -> list[str]:
    """Start the query again, and return what is wrong with its state and its output."""
    for number in range(facts["files"]):
        # Spark forgets files that are much older than the newest one.
        set_time(image / "in" / file_name(number), number)
    before = _files_in(image / name, facts["files"])
    logging.getLogger("statestore").setLevel(logging.CRITICAL)
    store = StateStore.open(str(image / name), table_format="parquet")
    try:
        start(session(), image, query_of(store, 2, image, facts["form"]))
    except (PySparkException, Py4JJavaError, InvalidArgumentError) as error:
        if is_whole:
            return [f"the query does not start again: {str(error)[:2000]}"]
        after = _files_in(image / name, facts["files"])
        problem = f"a restart that failed has {after} files of events after {before}"
        return [] if after is not None and before is not None and after >= before else [problem]
    after = _files_in(image / name, facts["files"])
    if after != facts["files"]:
        return [f"a restart has {after} files of events"]
    return output_problems(image, name, facts)


def _files_in(folder: Path, most: int) -> int | None:
    """Return how many files of events are in the state; None if an event is missing or twice."""
    store = StateStore.open(str(folder), table_format="parquet")
    exists = (folder / "statestore.json").exists()
    found = totals(store) if exists and store.checkpoints() else {}
    return next((n for n in range(most + 1) if totals_of(range(n)) == found), None)
