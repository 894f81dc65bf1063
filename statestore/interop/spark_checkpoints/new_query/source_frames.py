"""Tables that Spark does not read itself, as DataFrames: files, and queries of DuckDB."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from statestore.errors import InvalidArgumentError
from statestore.interop.spark_checkpoints.new_query.wanted_states import WantedState
from statestore.interop.tables.source_table import SourceTable, convert_text

__all__ = ["source_frame"]


def source_frame(
    spark: SparkSession, table: SourceTable, wanted: WantedState, file: Path
) -> DataFrame:
    """Copy a table to a local Parquet file, and return it in Spark.

    Columns of text become the types that the state has, so that a CSV file needs no types.

    Args:
        spark: a session on this machine.
        table: the table.
        wanted: the state that it becomes.
        file: a new file.

    Raises:
        InvalidArgumentError: for a session on a cluster, which cannot read the copy, and for a text
            that is not of the column's type, with its row.
        StateStoreError: if the table cannot be read.
    """
    if not str(spark.sparkContext.master).startswith("local"):
        raise InvalidArgumentError(
            f"the executors of a cluster cannot read {table.name} from this machine: pass a "
            f"DataFrame for {wanted.name}"
        )
    texts = {field.name for field in table.schema if pa.types.is_string(field.type)}
    types = {
        field.name: str(field.dataType.jsonValue())
        for field in wanted.schema
        if field.name in texts and isinstance(field.dataType, T.AtomicType)
        if not isinstance(field.dataType, (T.StringType, T.BinaryType))
    }
    typed = convert_text(table, types)
    with pq.ParquetWriter(file, typed.schema) as writer:
        for batch in typed.batches():
            writer.write_batch(batch)
    return spark.read.parquet(f"file://{file}")
