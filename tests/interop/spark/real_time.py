"""Queries in Spark's real-time mode, which Spark 4.3 supports for some stateful operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.interop.spark.queries import PROVIDERS, settings

__all__ = ["BATCHES", "BEFORE", "REAL_TIME", "run_real_time"]

BEFORE, BATCHES = ("a", "b", "a", "c", "a"), 2
"""The texts that a golden location has read, and how many micro-batches it has at least."""

REAL_TIME: dict[str, Callable[[DataFrame], DataFrame]] = {
    "aggregation": lambda rows: rows.groupBy("value").count(),
    "deduplication": lambda rows: rows.dropDuplicates(["value"]),
}
_SECONDS = 120


def run_real_time(
    spark: SparkSession,
    name: str,
    location: str,
    texts: Sequence[str],
    *,
    partitions: int,
    batches: int,
) -> None:
    """Run a query until it has completed micro-batches after it has read the texts.

    Its source has one partition. All tasks run at once, so the session needs one core for the
    source and one for each partition.

    Args:
        spark: the session.
        name: the name of the query.
        location: its checkpoint location.
        texts: all texts that the source has ever had.
        partitions: the number of shuffle partitions of a new query.
        batches: how many micro-batches to complete in this run.
    """
    conf = {
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.stateStore.providerClass": PROVIDERS["rocksdb"],
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.realTimeMode.minBatchDuration": "1s",
    }
    with settings(spark, conf):
        rows = REAL_TIME[name](_memory_stream(spark, texts))
        writer: Any = rows.writeStream.outputMode("update").format("console")
        writer = writer.option("checkpointLocation", location).trigger(realTime="2 seconds")
        query = writer.start()
        try:
            end = time.monotonic() + _SECONDS
            while len(query.recentProgress) < batches and time.monotonic() < end:
                assert query.isActive, query.exception()
                time.sleep(0.1)
            assert len(query.recentProgress) >= batches
        finally:
            query.stop()


def _memory_stream(spark: SparkSession, texts: Sequence[str]) -> DataFrame:
    session: Any = spark
    jvm = session._jvm
    sources = jvm.org.apache.spark.sql.execution.streaming.sources
    encoder = jvm.org.apache.spark.sql.Encoders.STRING()
    stream = sources.LowLatencyMemoryStream.apply(session._jsparkSession, 1, encoder)
    values = jvm.java.util.ArrayList()
    for text in texts:
        values.add(text)
    stream.addData(jvm.scala.jdk.javaapi.CollectionConverters.asScala(values))
    return DataFrame(stream.toDF(), spark)
