"""Live queries that count a topic's words and write the counts to another topic.

The queries run one after another. Commands arrive on stdin, one line of JSON each, and each gets
one line on stdout. The first command has the configuration, and its response means that Spark is
running.

* ``{"do": "start", "parallelism": n, "source": {…}, "sink": {…}}`` starts the query, with options
  of Spark's Kafka source and sink.
* ``{"do": "stop"}`` stops it at the end of the topic.
* ``{"do": "wait"}`` waits until it fails.

The responses to the last two have the query's error or null, and the errors that the package has
logged since the previous response. The process ends when stdin ends.

If the file ``hold`` exists, a micro-batch creates the file ``held`` and waits before its output.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from statestore import StateStore
from statestore.streaming import MicroBatch, StatefulQuery, Updated, to_kafka
from tests.services.spark_process import kafka_session

__all__ = ["HELD", "HOLD", "STATE", "STORE", "UID"]

SECONDS = 60
UID, STATE = "words", "counts"
STORE, HOLD, HELD = "store", "hold", "held"


class Log(logging.Handler):
    """The lines that the package logs as errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def taken(self) -> list[str]:
        """Return the lines and clear them."""
        lines, self.lines = self.lines, []
        return lines


def main() -> None:
    """Execute the commands."""
    log = Log()
    logging.getLogger("statestore").addHandler(log)
    spark = kafka_session("kafka-query", 2)
    given = json.loads(sys.stdin.readline())
    print("null", flush=True)
    query: StreamingQuery | None = None
    for command in map(json.loads, sys.stdin):
        if query is None or command["do"] == "start":
            query, answer = started(spark, given, command), None
        else:
            if command["do"] == "stop":
                query.processAllAvailable()  # otherwise it is stopped within a micro-batch
                query.stop()
            answer = {"error": ended(query), "log": log.taken()}
        print(json.dumps(answer), flush=True)


def started(
    spark: SparkSession, given: Mapping[str, str], how: Mapping[str, Any]
) -> StreamingQuery:
    """Start the query."""
    folder = Path(given["folder"])

    def counted(events: DataFrame, states: Mapping[str, DataFrame], batch: MicroBatch) -> Updated:
        while (folder / HOLD).exists():
            (folder / HELD).touch()
            time.sleep(0.02)
        new = events.select("word", F.lit(1).alias("n"))
        counts = states[STATE].unionByName(new).groupBy("word").agg(F.sum("n").alias("n"))
        return Updated({STATE: counts}, counts)

    query = StatefulQuery(
        store=StateStore.open(str(folder / STORE), spark=spark, table_format="parquet"),
        operator=UID,
        key="word",
        states={STATE: "word string, n long"},
        update=counted,
        parallelism=how["parallelism"],
        output=to_kafka(given["bootstrap"], given["output"], key="word", options=how["sink"]),
    )
    options = {
        "kafka.bootstrap.servers": given["bootstrap"],
        "subscribe": given["topic"],
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "50",
    }
    source = spark.readStream.format("kafka").options(**options, **how["source"])
    words = source.load().selectExpr("CAST(value AS string) AS word")
    return query.start(words, str(folder / "progress"), processing_time="200ms")


def ended(query: StreamingQuery) -> str | None:
    """Wait until a query ends; return its error or None."""
    try:
        assert query.awaitTermination(SECONDS), "it neither ends nor fails"
    except StreamingQueryException as error:
        return str(error)
    return None


if __name__ == "__main__":
    main()
