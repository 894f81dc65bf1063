"""Totals by user: a query of Structured Streaming whose state the workflow checks."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ORDERS = Path(__file__).parent / "orders"


def build(spark: SparkSession) -> DataFrame:
    """Return the totals by user."""
    orders = spark.readStream.schema("user string, amount long").json(str(ORDERS))
    return orders.groupBy("user").agg(F.count("*").alias("n"), F.sum("amount").alias("total"))


def main(location: str) -> None:
    """Run the query over all orders that it has not read."""
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 4).getOrCreate()
    totals = build(spark).writeStream.outputMode("update")
    totals = totals.format("console").option("checkpointLocation", location)
    totals.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
