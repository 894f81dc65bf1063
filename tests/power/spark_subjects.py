"""Recorded programs with a JVM: DataFrames, a streaming query, and checkpoint locations of Spark.

``python -m tests.power.spark_subjects ROOT NAME`` runs one. Its promises are in the recorder's log.
The files that Spark itself needs are outside of the recorded folder.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from statestore import CompactionRule, StateStore
from statestore.format.manifest import Manifest
from statestore.interop.spark import (
    SparkTarget,
    export_checkpoint,
    export_progress,
    repartition_location,
)
from tests.power.content import Content, complete, content_of, has, location, restarts, will
from tests.power.queries import session, start, totals
from tests.power.recording import settle
from tests.power.subjects import STORE, Job, Totals
from tests.servers.quick_spark import spark_jvm
from tests.streaming.driver import PROCESSOR, UPDATE, add_file, query_of, totals_of
from tests.syntax import ROOT

__all__ = ["SUBJECTS", "main"]

FILES = 3


class _SparkJob(Job):
    """A job whose totals are DataFrames, which Spark's tasks write."""

    def __init__(self, spark: SparkSession, root: Path, **options: Any) -> None:
        self._spark = spark
        super().__init__(root, spark=spark, **options)

    def rows(self, totals: Totals) -> DataFrame:
        frame = self._spark.createDataFrame([*totals.items()], "user string, n long")
        return frame.repartition(2)  # its size is unknown, so the driver does not collect it


def frames(spark: SparkSession, root: Path) -> None:
    """Take full and incremental snapshots of DataFrames, and compact them."""
    job = _SparkJob(spark, root, compaction=CompactionRule(merge_layers=2))
    job.write({f"u{i}": i for i in range(12)})
    for number in range(3):
        job.write({f"u{number}": 100 + number, f"new{number}": number}, (f"u{9 + number}",))
    job.expire(retain=1)


def frames_delta(spark: SparkSession, root: Path) -> None:
    """Take snapshots of DataFrames in Delta tables, in ranges."""
    job = _SparkJob(spark, root, table_format="delta", layout="ranged")
    for factor in range(3):
        job.write({f"u{i}": i * factor for i in range(12)})
    job.expire(retain=1)


def query(spark: SparkSession, root: Path, form: str = UPDATE) -> None:
    """Run a streaming query with one micro-batch for each file of events."""
    (root / "in").mkdir()
    for number in range(FILES):
        add_file(root / "in", number)
    settle()  # the source's own files are durable
    store = StateStore.open(str(root / STORE), table_format="parquet")
    known: dict[int, Content] = {}

    def commits(manifest: Manifest) -> None:
        number = manifest.checkpoint_id
        known[number] = content_of(store, number)
        has(STORE, known)
        if len(known) < FILES:
            will(STORE)

    restarts(STORE, form=form, files=FILES)
    will(STORE)
    stateful = query_of(store, 2, root, form)
    options = replace(stateful.options, on_commit=commits)
    start(spark, root, replace(stateful, options=options))
    for done, number in enumerate(known, 1):
        assert totals(store, number) == totals_of(range(done))
    assert len(known) == FILES


def processor(spark: SparkSession, root: Path) -> None:
    """Run a ``StatefulProcessor`` whose output is a Delta table."""
    query(spark, root, PROCESSOR)


def locations(spark: SparkSession, root: Path) -> None:
    """Export the state of a query for both providers, repartition it, and hand it over."""
    store = StateStore.open(str(ROOT / "tests" / "golden" / "spark_v2"), spark=spark)
    hdfs, rocksdb = SparkTarget(provider="hdfs"), SparkTarget(provider="rocksdb")
    _written(root, "hdfs", lambda to: export_checkpoint(store, to, partitions=2, target=hdfs))
    _written(root, "rocksdb", lambda to: export_checkpoint(store, to, partitions=2, target=rocksdb))
    _written(
        root,
        "again",
        lambda folder: repartition_location(spark, str(root / "rocksdb"), folder, partitions=3),
    )
    _written(root, "handed-over", lambda folder: export_progress(store, folder))


def _written(root: Path, folder: str, write: Callable[[str], object]) -> None:
    location(folder)
    write(str(root / folder))
    complete(root, folder)


SUBJECTS: dict[str, Callable[[SparkSession, Path], None]] = {
    subject.__name__: subject for subject in (frames, frames_delta, query, processor, locations)
}


def main() -> None:
    """Run the subject that the command line names."""
    folder, name = sys.argv[1:]
    # Hadoop's own local file system, also if the tests replace it.
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(spark_jvm())
    os.environ.pop("SPARK_DIST_CLASSPATH", None)
    with tempfile.TemporaryDirectory(prefix="power-") as scratch:
        spark = session(scratch)
        SUBJECTS[name](spark, Path(folder))
        spark.stop()


if __name__ == "__main__":
    main()
