"""Tables that Spark does not read itself, as DataFrames: files, queries of DuckDB, and Arrow.

Spark has fewer types than Arrow. Columns become the types that states have. Each value stays equal,
so nanoseconds that are not whole microseconds are refused.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from statestore.errors import InvalidArgumentError
from statestore.interop.spark.new_query.wanted_states import WantedState
from statestore.interop.tables.source_table import SourceTable, convert_text
from statestore.rows.column_types import arrow_schema, schema_of_arrow
from statestore.rows.fit_columns import fit_column, fit_table
from statestore.spark.compat import schema_of_arrow as spark_schema_of
from statestore.spark.state_writer import frame_of


def arrow_frame(spark: SparkSession, rows: pa.Table, wanted: WantedState) -> DataFrame:
    """Return an Arrow table in Spark, with columns of the types that states have.

    A column that Arrow has no type for, because all its values are null, stays without one.

    Args:
        spark: the session of the query.
        rows: the table; no two of its columns have the same name.
        wanted: the state that it becomes.

    Raises:
        InvalidArgumentError: for a value that would change, with its row.
        UnsupportedTypeError: for a column of a type that Spark lacks.
    """
    subject = f"the table for {wanted.name}"
    typed = [field for field in rows.schema if not pa.types.is_null(field.type)]
    for stored in arrow_schema(schema_of_arrow(pa.schema(typed))):
        index = rows.schema.get_field_index(stored.name)
        column = fit_column(rows.column(index), stored.type, name=stored.name, subject=subject)
        rows = rows.set_column(index, stored.name, column)
    return frame_of(spark, rows)


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
            that is not of the column's type, or a value that would change, with its row.
        UnsupportedTypeError: for a column of a type that Spark lacks.
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
    stored = schema_of_arrow(typed.schema)
    columns = arrow_schema(stored)
    rows = 0
    with pq.ParquetWriter(file, columns) as writer:
        for batch in typed.batches():
            fitted = fit_table(pa.table(batch), stored, table.name, nearest=False, first_row=rows)
            writer.write_table(fitted)
            rows += batch.num_rows
    # With its columns, because settings of the session change the types that Spark finds in a file.
    reader = spark.read.schema(spark_schema_of(columns)).option("datetimeRebaseMode", "CORRECTED")
    return reader.parquet(f"file://{file}")
