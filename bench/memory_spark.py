"""Spark's session and rows for the steps of :mod:`bench.memory` that use Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit, sha2

from bench.memory import ROW_BYTES
from statestore.spark.session import spark_session

__all__ = ["spark", "spark_rows"]

_HASH_LETTERS = 64


def spark() -> SparkSession:
    """Return Spark's session on this machine."""
    return spark_session(
        app_name="statestore-bench", master="local[2]", table_format="parquet", driver_memory="4g"
    )


def spark_rows(rows: int) -> DataFrame:
    """Return rows like those from :func:`bench.memory.batches`, created by Spark itself."""
    count = ROW_BYTES // _HASH_LETTERS + 1
    parts = [sha2(concat("id", lit(f" {at}")), 256) for at in range(count)]
    return spark().range(rows).select(col("id").alias("k"), concat(*parts).alias("v"))
