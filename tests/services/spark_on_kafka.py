"""Spark reads a topic from the job's startingOffsets, as a batch and as a streaming query."""

from __future__ import annotations

import json
import sys
from typing import Any

from statestore.streaming import MicroBatch, to_kafka
from tests.services.spark_process import kafka_session


def main() -> None:
    """Read the topic twice, from the same starting offsets."""
    given = json.load(sys.stdin)
    spark = kafka_session("spark-on-kafka", 2)
    options = {
        "kafka.bootstrap.servers": given["bootstrap"],
        "subscribe": given["topic"],
        "startingOffsets": given["starting_offsets"],
    }
    found: dict[str, Any] = {"batch": _rows(spark.read.format("kafka").options(**options).load())}
    streamed: list[Any] = []
    query = (
        spark.readStream.format("kafka")
        .options(**options)
        .load()
        .writeStream.foreachBatch(lambda frame, _: streamed.extend(_rows(frame)))
        .option("checkpointLocation", given["location"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found["stream"] = sorted(streamed)
    out = spark.createDataFrame([("a", 1), ("b", None)], "user string, n long")
    to_kafka(given["bootstrap"], given["output"], key="user")(out, MicroBatch("q", 0))
    reader = spark.read.format("kafka").option("subscribe", given["output"])
    written = reader.option("kafka.bootstrap.servers", given["bootstrap"]).load()
    texts = written.selectExpr("CAST(key AS string)", "CAST(value AS string)").collect()
    found["output"] = sorted([*row] for row in texts)
    spark.stop()
    print(json.dumps(found))


def _rows(frame: Any) -> list[list[Any]]:
    rows = frame.selectExpr("partition", "offset", "CAST(value AS string)").collect()
    return sorted([*row] for row in rows)


if __name__ == "__main__":
    main()
