"""Arrow functions over DataFrames, whatever their columns are called.

Spark looks for the columns that it hands over by their names, and takes a dot in one for the way
into a struct. So they are numbered on the way, and get their names back before the function sees
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

__all__ = ["Task", "map_in_arrow", "numbered"]

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(df: DataFrame, task: Task, schema: StructType | str) -> DataFrame:
    """Return what a function makes of the batches of each Spark partition."""
    names = list(df.columns)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batch.rename_columns(names) for batch in batches)

    return numbered(df).mapInArrow(run, schema)


def numbered(df: DataFrame) -> DataFrame:
    """Return a DataFrame whose columns are called by their numbers: ``c0``, ``c1``, …"""
    return df.toDF(*(f"c{at}" for at in range(len(df.columns))))
