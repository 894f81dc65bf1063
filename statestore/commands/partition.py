"""A partitioner applied to a DataFrame; Spark is loaded when it is called, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.flink.partitioners import Partitioner
from statestore.table.engines import spark_module

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["partition"]


def partition(df: DataFrame, partitioner: Partitioner, *, parallelism: int) -> DataFrame:
    """Return ``df`` in exactly ``parallelism`` Spark partitions: the i-th holds the rows that
    downstream subtask i gets from ``partitioner``, natively computed.

    Columns and schema stay as they are; rows of one source partition keep their order. Raises
    ParallelismError, NullKeyError, UnsupportedTypeError or InvalidArgumentError, and
    MissingDependencyError without pyspark; all of it is said in
    :func:`statestore.table.spark_partition.partition`.
    """
    parts: DataFrame = spark_module("spark_partition").partition(
        df, partitioner, parallelism=parallelism
    )
    return parts
