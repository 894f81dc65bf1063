"""Read Iceberg tables with Spark and Iceberg's runtime, in an environment with a fitting Spark.

``python spark_reader.py JAR URI`` runs the statements on its stdin, a JSON list, with the REST
catalog ``lake``. It prints a JSON list with the rows of each one, or the class and text of its
error. It imports nothing of this project, so that any version of Spark can run it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

LAKE = "spark.sql.catalog.lake"


def main(jar: str, uri: str) -> None:
    """Run the statements and print their answers."""
    settings = {
        "spark.jars": jar,
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        LAKE: "org.apache.iceberg.spark.SparkCatalog",
        f"{LAKE}.type": "rest",
        f"{LAKE}.uri": uri,
        f"{LAKE}.cache-enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    answers = [answer(session, statement) for statement in json.load(sys.stdin)]
    session.stop()
    print(json.dumps(answers, default=repr))


def answer(session: SparkSession, statement: str) -> list[Any]:
    """Return the rows of a statement, or its error."""
    try:
        return [row.asDict(recursive=True) for row in session.sql(statement).collect()]
    except PySparkException as error:
        return [type(error).__name__, str(error)]
    except Exception as error:  # noqa: BLE001  # an exception of Java is an answer, too
        return [type(error).__name__, str(error)]


if __name__ == "__main__":
    main(*sys.argv[1:3])
