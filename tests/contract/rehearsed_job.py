"""A job with its state in a store, in versions, for tests of rehearsals."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession

from statestore import StateStore
from statestore.cli.job_function import job_function
from statestore.cli.main import cli

__all__ = ["JOB", "QUERY", "USERS", "Job"]

USERS = 9

JOB = """
from pathlib import Path

from pyspark.sql import functions as F

from statestore import StateStore
from statestore.streaming import QueryState, StatefulQuery, Updated, to_delta

HERE = Path({here!r})


def update(events, states, batch):
    new = events.select("user", F.lit(1).cast("long").alias("n"), "total")
    rows = states["per-user"].unionByName(new).groupBy("user")
    rows = rows.agg(F.sum("n").alias("n"), F.sum("total").alias("total"))
    {change}
    return Updated({{"per-user": rows}}, output=rows)


def build(spark):
    query = StatefulQuery(
        store=StateStore.open(str(HERE / "store"), table_format="parquet"),
        operator="totals",
        key="user",
        states={{"per-user": QueryState("user string, n long, total double", max_parallelism=8)}},
        update=update,
        parallelism=2,
        output=to_delta(str(HERE / "sink")),
    )
    events = spark.readStream.schema("user string, total double")
    {source}
    return query, events.option("maxFilesPerTrigger", 1).json(str(HERE / "in"))
"""

QUERY = """
from pyspark.sql import functions as F


def build(spark):
    events = spark.readStream.schema("user string, total double")
    {source}
    events = events.option("maxFilesPerTrigger", 1).json({here!r} + "/in")
    rows = events.groupBy("user").agg(F.count("*").alias("n"), F.sum("total").alias("total"))
    {change}
    return rows
"""


@dataclass
class Job:
    """A job in a folder: its events, its versions, its store, its sink and its location."""

    spark: SparkSession
    folder: Path
    text: str = JOB
    files: int = 0

    @property
    def store(self) -> StateStore:
        """The job's store."""
        return StateStore.open(str(self.folder / "job" / "store"))

    def add(self, files: int = 1) -> None:
        """Write files of events, one for each micro-batch."""
        place = self.folder / "job" / "in"
        place.mkdir(parents=True, exist_ok=True)
        for number in range(self.files, self.files + files):
            rows = [{"user": f"u{i % USERS}", "total": i / 8} for i in range(number, number + 20)]
            path = place / f"{number:03}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        self.files += files

    def version(self, name: str, change: str = "", source: str = "") -> str:
        """Write a version of the job; return how the command names it."""
        place = self.folder / name
        place.mkdir(exist_ok=True)
        here = str(self.folder / "job")
        (place / "job.py").write_text(self.text.format(here=here, change=change, source=source))
        return f"{place / 'job.py'}:build"

    def run(self, job: str) -> None:
        """Run a version in production, on all available events."""
        with job_function(job) as build:
            query, events = build(self.spark)
            location = str(self.folder / "job" / "progress")
            query.start(events, location, available_now=True).awaitTermination()

    def run_query(self, job: str) -> None:
        """Run a version in production that keeps its state in Spark."""
        with job_function(job) as build:
            writer = build(self.spark).writeStream.outputMode("update").foreachBatch(_ignore)
            location = (self.folder / "job" / "progress").as_uri()
            writer = writer.option("checkpointLocation", location).trigger(availableNow=True)
            writer.start().awaitTermination()

    def rehearse(self, *words: str, to: str = "rehearsal") -> Result:
        """Run the command."""
        job = self.folder / "job"
        place = ("--to", str(self.folder / to), "--store", str(job / "store"))
        location = () if words[0].startswith("--") else ("--location", str(job / "progress"))
        return CliRunner().invoke(cli, ["rehearse", *words, *location, *place])

    def document(self, *words: str, to: str = "rehearsal", status: int = 0) -> Any:
        """Run the command, and return its JSON."""
        done = self.rehearse(*words, "--output", "json", to=to)
        assert (done.exit_code, done.stderr) == (status, ""), (done.output, str(done.exception))
        return json.loads(done.stdout)

    def tree(self) -> dict[str, tuple[int, int, int]]:
        """Return inode, size and time of all that belongs to the job, folders included."""
        return {
            str(path): (status.st_ino, status.st_size, status.st_mtime_ns)
            for path in sorted((self.folder / "job").rglob("*"))
            for status in [path.stat()]
        }


def _ignore(rows: DataFrame, number: int) -> None:
    """Compute the rows, and write nothing."""
    rows.write.format("noop").mode("overwrite").save()
