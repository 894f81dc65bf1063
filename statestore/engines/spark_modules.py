"""Loads Spark's half of the package, only when rows, a session or a table format require it.

``import statestore``, reading and Arrow snapshots need no Spark and no JVM.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from statestore.extras import needs_extra
from statestore.jobgraph.partitioners import Partitioner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def spark_module(name: str) -> Any:
    """Return ``statestore.spark.<name>``, a module that imports pyspark.

    Raises MissingDependencyError, which names the extra, when pyspark is not installed.
    """
    with needs_extra("spark", "Spark's rows and sessions"):
        return importlib.import_module(f"statestore.spark.{name}")


def is_spark(rows: Any) -> bool:
    """Return whether the value is a Spark DataFrame."""
    return type(rows).__module__.startswith("pyspark.")


def partition(df: DataFrame, partitioner: Partitioner, *, parallelism: int) -> DataFrame:
    """Return ``df`` in exactly ``parallelism`` Spark partitions.

    Partition i has the rows that downstream subtask i gets from ``partitioner``, computed by Spark
    itself. Columns and schema stay unchanged. Rows of one source partition keep their order. For
    details, see :func:`statestore.spark.partition.partition`.

    Args:
        df: a Spark DataFrame.
        partitioner: decides which subtask gets which row.
        parallelism: the number of downstream subtasks.

    Returns:
        The DataFrame with its new partitions.

    Raises:
        ParallelismError, NullKeyError, UnsupportedTypeError or InvalidArgumentError: for arguments
            or rows that cannot be partitioned this way.
        MissingDependencyError: without pyspark.
    """
    parts: DataFrame = spark_module("partition").partition(df, partitioner, parallelism=parallelism)
    return parts
