"""The state that is measured: made from row numbers, so equal on every machine."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

__all__ = ["state_rows"]

NOTE_CHARACTERS = 58


def state_rows(spark: SparkSession, rows: int) -> DataFrame:
    """Return ``rows`` users: a string key, count, amount, time and a note of 58 characters."""
    number = F.col("id")
    digest = F.sha2(number.cast("string"), 256)
    return spark.range(0, rows, 1, 4).select(
        F.format_string("user-%09d", number).alias("user"),
        (F.xxhash64(number) % 1000).alias("count"),
        (F.xxhash64(number) % 100_000 / 100).alias("amount"),
        F.timestamp_seconds(1_700_000_000 + number % 1_000_000).alias("last_seen"),
        F.substring(digest, 1, NOTE_CHARACTERS).alias("note"),
    )
