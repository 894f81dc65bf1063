"""Spark reads a topic from the job's startingOffsets, in a process of its own: jars are fixed when
a JVM starts.

What to read comes over stdin; what a batch and a streaming query have read goes to stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from statestore.spark.session import spark_session
from tests.servers.jars import CONNECTOR, TOKEN_PROVIDER, jars_of


def main() -> None:
    """Read the topic twice, each from the same starting offsets."""
    given = json.load(sys.stdin)
    spark = spark_session(
        app_name="spark-on-kafka",
        table_format="parquet",
        master="local[2]",
        extra_conf={
            "spark.jars": ",".join(map(str, jars_of(CONNECTOR) + jars_of(TOKEN_PROVIDER))),
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        },
    )
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
    spark.stop()
    print(json.dumps(found))


def _rows(frame: Any) -> list[list[Any]]:
    rows = frame.selectExpr("partition", "offset", "CAST(value AS string)").collect()
    return sorted([*row] for row in rows)


if __name__ == "__main__":
    main()
