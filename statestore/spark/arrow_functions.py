"""Arrow functions over DataFrames with any column names.

Spark resolves the columns that it passes by name, and interprets a dot in a name as access to a
struct field. The columns are therefore numbered for Spark, and get their names back before the
function sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

__all__ = ["Task", "map_in_arrow", "number_columns"]


Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(df: DataFrame, task: Task, schema: StructType | str) -> DataFrame:
    """Apply a function to the Arrow batches of each Spark partition."""
    names = list(df.columns)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task(batch.rename_columns(names) for batch in batches)

    return number_columns(df).mapInArrow(run, schema)


def number_columns(df: DataFrame) -> DataFrame:
    """Return a DataFrame whose columns are named by their numbers: ``c0``, ``c1``, …"""
    return df.toDF(*(f"c{index}" for index in range(len(df.columns))))
