"""Fit a table to the state that it becomes: names and types of columns, nulls, and duplicates.

A column must have the type that Spark's state has, or one whose values this type holds unchanged.
All differences of a table are reported together.

Tables that Spark does not read itself are files, queries of DuckDB, and Arrow. Spark has fewer
types than Arrow. Their columns become the types that states have. Each value stays equal, so
nanoseconds that are not whole microseconds are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from statestore.display import counted
from statestore.errors import DuplicateKeyError, InvalidArgumentError, SchemaMismatchError
from statestore.interop.spark.rows import encode_rows
from statestore.interop.spark.wanted_states import WantedState
from statestore.interop.tables.source_table import SourceTable, convert_text
from statestore.rows.column_types import arrow_schema, schema_of_arrow
from statestore.rows.fit_columns import fit_column
from statestore.rows.fit_columns import fit_table as fit_arrow_table
from statestore.spark.compat import schema_of_arrow as spark_schema_of
from statestore.spark.error_cause import example_rows
from statestore.spark.hashing import column_of
from statestore.spark.state_writer import frame_of
from statestore.spark.structs import KEY_BYTES, Leaf, leaf_value, number_fields

_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_DIGITS = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}
# Operators whose keys Spark normalizes: it looks for a key of -0.0 under 0.0.
_NORMALIZING = ("stateStoreSave", "sessionWindowStateStoreSaveExec", "symmetricHashJoin")


def fit_table(spark: SparkSession, wanted: WantedState, table: Any, folder: Path) -> DataFrame:
    """Return the rows of a table with the columns of a state, in its order and types.

    Args:
        spark: The session of the query.
        wanted: The state.
        table: A DataFrame of Spark, what Arrow can read as a table (``pyarrow.Table``, a DataFrame
            of pandas or Polars), a SourceTable, or None for no rows.
        folder: A local folder for the rows of a SourceTable, which exists until they are read.

    Raises:
        SchemaMismatchError: If columns are missing, unknown, or of a type that does not fit; the
            message has all of them.
        InvalidArgumentError: If it is no table, or a streaming DataFrame, or has a value that
            would change.
        UnsupportedTypeError: If a column of an Arrow table or a SourceTable has a type that Spark
            lacks.
    """
    rows = _flatten_key(_frame(spark, wanted, table, folder), wanted)
    differences = tuple(_differences(rows, wanted))
    if differences:
        raise SchemaMismatchError(
            f"the table for {wanted.name} does not fit: {'; '.join(differences)}. "
            f"It must have the columns {', '.join(_describe(wanted))}"
        )
    fitted = rows.select(
        *(
            column_of(field.name).cast(_as_nullable(field.dataType)).alias(field.name)
            for field in wanted.schema
        )
    )
    for name, other in wanted.derived.items():
        fitted = fitted.withColumn(name, F.lit(False) if other is None else column_of(other))
    return fitted


def refuse_unfit_rows(rows: DataFrame, wanted: WantedState) -> None:
    """Read all rows of a fitted table, and refuse rows that Spark would not find or would misread.

    Keys are compared by Spark's bytes, as its state stores do. Sides of joins may have several rows
    with one key.

    Raises:
        InvalidArgumentError: For a null in a column that has none, and for a key of -0.0 if Spark
            looks for it under 0.0.
        DuplicateKeyError: If two rows have the same key.
    """
    problems = dict(_row_problems(wanted))
    flags = [F.coalesce(condition, F.lit(False)).cast("int") for condition in problems.values()]
    if wanted.is_join_side:
        sums = rows.agg(F.lit(0), *(F.sum(flag) for flag in flags))
    else:
        names = [f"problem_{index}" for index in range(len(flags))]
        named = [flag.alias(name) for flag, name in zip(flags, names, strict=True)]
        by_key = _encode_keys(rows, wanted, *named).groupBy(KEY_BYTES)
        grouped = by_key.agg(
            F.count("*").alias("rows"), *(F.sum(name).alias(name) for name in names)
        )
        sums = grouped.agg(F.sum(F.col("rows") - 1), *(F.sum(name) for name in names))
    (counts_row,) = sums.collect()
    copies, *numbers = counts_row
    texts = [
        f"{counted(number, 'row')} with {text}, such as "
        f"{'; '.join(example_rows(rows.where(condition)))}"
        for number, (text, condition) in zip(numbers, problems.items(), strict=True)
        if number
    ]
    if texts:
        raise InvalidArgumentError(
            f"the table for {wanted.name} cannot be used: {'; '.join(texts)}"
        )
    if copies:
        _refuse_duplicates(rows, wanted, copies)


def _frame(spark: SparkSession, wanted: WantedState, table: Any, folder: Path) -> DataFrame:
    if table is None:
        return spark.createDataFrame([], wanted.schema)
    if isinstance(table, DataFrame):
        if table.isStreaming:
            raise InvalidArgumentError(
                f"the table for {wanted.name} is a streaming DataFrame: read its rows with "
                "spark.read, not with spark.readStream"
            )
        _refuse_repeated(spark, wanted, table.columns)
        return table
    if isinstance(table, SourceTable):
        _refuse_repeated(spark, wanted, table.schema.names)
        return _source_frame(spark, table, wanted, folder / f"{uuid4().hex}.parquet")
    try:
        rows = pa.table(table)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InvalidArgumentError(
            f"the table for {wanted.name} must be a DataFrame, an Arrow table or None, not "
            f"{type(table).__name__} ({error})"
        ) from error
    _refuse_repeated(spark, wanted, rows.column_names)
    return _arrow_frame(spark, rows, wanted)


def _refuse_repeated(spark: SparkSession, wanted: WantedState, names: Sequence[str]) -> None:
    """Refuse column names that Spark considers ambiguous."""
    is_exact = spark.conf.get("spark.sql.caseSensitive") == "true"
    compared = [name if is_exact else name.lower() for name in names]
    repeated = [name for name, own in zip(names, compared, strict=True) if compared.count(own) > 1]
    if repeated:
        raise SchemaMismatchError(
            f"the table for {wanted.name} does not fit: columns have the same name: "
            f"{', '.join(map(repr, repeated))}. It must have the columns "
            f"{', '.join(_describe(wanted))}"
        )


def _flatten_key(rows: DataFrame, wanted: WantedState) -> DataFrame:
    """Replace a struct, such as ``window``, by the columns into which the key flattens it."""
    columns = wanted.store_columns
    for index, field in enumerate(columns.key):
        given = {name.lower(): name for name in rows.columns}.get(field.name.lower())
        if (
            given is None
            or not isinstance(field.dataType, T.StructType)
            or not _fits(rows.schema[given].dataType, field.dataType)
        ):
            continue
        whole = column_of(given).cast(number_fields(field.dataType, deep=True))
        leaves = [leaf for leaf in columns.leaves_of_key if leaf.place[0] == index]
        inside = {leaf.name: leaf_value(whole, _inside(leaf)) for leaf in leaves}
        others = [column_of(name) for name in rows.columns if name != given]
        rows = rows.select(*others, *(value.alias(name) for name, value in inside.items()))
    return rows


def _inside(leaf: Leaf) -> Leaf:
    """Return the place of a leaf within its field of the key."""
    return Leaf(leaf.name, leaf.place[1:], leaf.says_set)


def _differences(rows: DataFrame, wanted: WantedState) -> Iterator[str]:
    given = {field.name: field.dataType for field in rows.schema}
    if len(given) < len(rows.columns):
        yield "two columns have the same name"
    for field in wanted.schema:
        if field.name not in given:
            yield f"column {field.name!r} is missing"
        elif not _fits(given[field.name], field.dataType):
            yield (
                f"column {field.name!r} is {given[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}"
            )
    for name in given:
        if name not in wanted.schema.names:
            yield f"column {name!r} is not wanted"


def _describe(wanted: WantedState) -> Iterator[str]:
    for column in wanted.columns:
        yield f"{column.name} {column.type}"


def _fits(given: T.DataType, wanted: T.DataType) -> bool:
    """Return whether each value of a type is the same value in the wanted type."""
    if isinstance(given, T.StructType) and isinstance(wanted, T.StructType):
        return given.names == wanted.names and all(
            _fits(a.dataType, b.dataType) for a, b in zip(given, wanted, strict=True)
        )
    if isinstance(given, T.ArrayType) and isinstance(wanted, T.ArrayType):
        return _fits(given.elementType, wanted.elementType)
    if isinstance(given, T.MapType) and isinstance(wanted, T.MapType):
        return _fits(given.keyType, wanted.keyType) and _fits(given.valueType, wanted.valueType)
    if isinstance(given, _INTEGERS) and isinstance(wanted, _INTEGERS):
        return _INTEGERS.index(type(given)) <= _INTEGERS.index(type(wanted))
    if isinstance(given, _INTEGERS) and isinstance(wanted, T.DecimalType):
        return _DIGITS[type(given)] <= wanted.precision - wanted.scale
    if isinstance(given, T.DecimalType) and isinstance(wanted, T.DecimalType):
        whole = given.precision - given.scale <= wanted.precision - wanted.scale
        return whole and given.scale <= wanted.scale
    if isinstance(given, T.FloatType) and isinstance(wanted, T.DoubleType):
        return True
    return given == wanted or isinstance(given, T.NullType)


def _as_nullable(data_type: T.DataType) -> T.DataType:
    """Return a type whose fields and elements are all nullable, to which Spark can cast."""
    if isinstance(data_type, T.StructType):
        return T.StructType(
            [T.StructField(field.name, _as_nullable(field.dataType)) for field in data_type]
        )
    if isinstance(data_type, T.ArrayType):
        return T.ArrayType(_as_nullable(data_type.elementType))
    if isinstance(data_type, T.MapType):
        return T.MapType(_as_nullable(data_type.keyType), _as_nullable(data_type.valueType))
    return data_type


def _row_problems(wanted: WantedState) -> Iterator[tuple[str, Column]]:
    """Yield what is wrong with a row, and the condition for it."""
    for field in wanted.schema:
        column = column_of(field.name)
        has_null = _has_wrong_null(column, field)
        if has_null is not None:
            yield f"a null in column {field.name!r}, which Spark declares without nulls", has_null
        is_key = field.name in wanted.key_names
        normalizes = wanted.planned.part.operator_name in _NORMALIZING
        if is_key and normalizes and isinstance(field.dataType, (T.FloatType, T.DoubleType)):
            negative = column.cast("string") == "-0.0"
            yield f"the key -0.0 in column {field.name!r}, which Spark finds as 0.0 only", negative


def _has_wrong_null(column: Column, field: T.StructField) -> Column | None:
    """Return the condition that a value has a null where its type has none; None without one."""
    conditions = [] if field.nullable else [column.isNull()]
    data_type = field.dataType
    if isinstance(data_type, T.StructType):
        inner = [_has_wrong_null(column[part.name], part) for part in data_type]
        found = [condition for condition in inner if condition is not None]
        if found:
            conditions.append(column.isNotNull() & reduce(or_, found))
    elif isinstance(data_type, T.ArrayType):
        conditions += _wrong_elements(column, data_type.elementType, data_type.containsNull)
    elif isinstance(data_type, T.MapType):
        values = F.map_values(column)
        conditions += _wrong_elements(values, data_type.valueType, data_type.valueContainsNull)
        conditions += _wrong_elements(F.map_keys(column), data_type.keyType, is_nullable=True)
    return reduce(or_, conditions) if conditions else None


def _wrong_elements(elements: Column, data_type: T.DataType, is_nullable: bool) -> list[Column]:
    field = T.StructField("element", data_type, is_nullable)
    if _has_wrong_null(F.lit(None), field) is None:
        return []
    return [
        F.coalesce(
            F.exists(elements, lambda element: F.coalesce(_wrong(element, field), F.lit(False))),
            F.lit(False),
        )
    ]


def _wrong(element: Column, field: T.StructField) -> Column:
    condition = _has_wrong_null(element, field)
    assert condition is not None
    return condition


def _encode_keys(rows: DataFrame, wanted: WantedState, *others: Column) -> DataFrame:
    """Return ``others``, and the bytes of the keys of all rows."""
    structs = wanted.store_columns.to_structs(rows, *others)
    return encode_rows(structs.withColumn("value", F.struct(F.lit(None))))


def _refuse_duplicates(rows: DataFrame, wanted: WantedState, copies: int) -> None:
    names = F.struct(*(column_of(name) for name in wanted.key_names or wanted.schema.names))
    repeated = (
        _encode_keys(rows, wanted, names.alias("names"))
        .groupBy(KEY_BYTES)
        .agg(F.count("*").alias("rows"), F.first("names").alias("names"))
        .where("rows > 1")
    )
    raise DuplicateKeyError(
        f"the table for {wanted.name} has {counted(copies, 'row')} with the key of another "
        f"({', '.join(wanted.key_names) or 'the state has a single row'}), such as "
        f"{'; '.join(example_rows(repeated.select('names.*')))}. A state has one row for each key: "
        "aggregate the rows first"
    )


def _arrow_frame(spark: SparkSession, rows: pa.Table, wanted: WantedState) -> DataFrame:
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


def _source_frame(
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
            fitted = fit_arrow_table(
                pa.table(batch), stored, table.name, nearest=False, first_row=rows
            )
            writer.write_table(fitted)
            rows += batch.num_rows
    # With its columns, because settings of the session change the types that Spark finds in a file.
    reader = spark.read.schema(spark_schema_of(columns)).option("datetimeRebaseMode", "CORRECTED")
    return reader.parquet(f"file://{file}")
