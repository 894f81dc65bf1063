"""A table fits a state, or all differences and the wrong rows are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore.errors import (
    DuplicateKeyError,
    InvalidArgumentError,
    SchemaMismatchError,
    UnsupportedTypeError,
)
from statestore.interop.spark.planned_query import PlannedQuery, plan_query
from statestore.interop.spark.table_fit import fit_table, refuse_unfit_rows
from statestore.interop.spark.wanted_states import WantedState
from statestore.interop.tables.table_formats import open_query, open_table
from statestore.spark.session_settings import session_settings
from tests.interop.spark.queries import events, stream

NAME = "stateStoreSave-0/default"
HOUR = "timestamp '2026-01-01 10:00:00'"
WINDOW = f"struct({HOUR} as start, {HOUR} + interval 1 hour as end) as window"


@pytest.fixture(scope="module")
def plan(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> PlannedQuery:
    """A count, a sum and lists per window and double, whose columns have many types.

    Spark normalizes a key of type double, and names it ``_groupingexpression``.
    """
    source = tmp_path_factory.mktemp("source")
    events(source, 0, 1)
    rows = stream(spark, source)
    keys = [F.window("t", "1 hour"), (F.col("v") / 2).alias("half")]
    return plan_query(
        rows.groupBy(*keys).agg(
            F.count("*").alias("n"),
            F.sum("price").alias("total"),
            F.max(F.array("v")).alias("last"),
        ),
        output_mode="update",
    )


@pytest.fixture
def state(plan: PlannedQuery) -> WantedState:
    return plan.state(NAME)


def fit(spark: SparkSession, state: WantedState, table: Any) -> DataFrame:
    return fit_table(spark, state, table, Path("unused"))


def rows_of(spark: SparkSession, **changed: str) -> DataFrame:
    """Return a row that fits, with changed columns; an empty text leaves a column out."""
    columns = {
        "window": WINDOW,
        "half": "1.5D as _groupingexpression",
        "count": "2L as count",
        "sum": "cast(1.25 as decimal(20,2)) as sum",
        "isEmpty": "false as isEmpty",
        "max": "array(1L) as max",
    }
    return spark.sql(f"SELECT {', '.join(filter(None, (columns | changed).values()))}")


def test_the_states_are_named_with_their_columns(plan: PlannedQuery, state: WantedState) -> None:
    columns = [
        (column.name, column.type, column.role, column.is_nullable) for column in state.columns
    ]
    assert columns == [
        ("window_start", "timestamp", "key", True),
        ("window_end", "timestamp", "key", True),
        ("_groupingexpression", "double", "key", True),
        ("count", "bigint", "value", False),
        ("sum", "decimal(20,2)", "value", True),
        ("isEmpty", "boolean", "value", False),
        ("max", "array<bigint>", "value", True),
    ]
    assert state.does == "aggregation"
    with pytest.raises(InvalidArgumentError, match="no state 'x'; it has stateStoreSave-0/default"):
        plan.state("x")


@pytest.mark.long_cases(
    "smaller integers", "smaller types inside", "columns of the window", "nulls"
)
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"count": "cast(2 as byte) as count", "sum": "cast(1 as int) as sum"},
        {
            "half": "cast(1.5 as float) as _groupingexpression",
            "max": "array(cast(1 as smallint), null) as max",
        },
        {"window": f"{HOUR} as window_start, {HOUR} + interval 1 hour as window_end"},
        {"sum": "null as sum", "half": "double('NaN') as _groupingexpression"},
    ],
    ids=["equal", "smaller integers", "smaller types inside", "columns of the window", "nulls"],
)
def test_types_whose_values_stay_equal_fit(
    spark: SparkSession, state: WantedState, changed: dict[str, str]
) -> None:
    fitted = fit(spark, state, rows_of(spark, **changed))
    assert fitted.columns == state.schema.names
    refuse_unfit_rows(fitted, state)


def test_all_differences_are_named(spark: SparkSession, state: WantedState) -> None:
    table = rows_of(
        spark,
        half="'1.5' as _groupingexpression",
        count="cast(2 as decimal(20,0)) as count",
        sum="cast(1.255 as decimal(20,3)) as sum",
        isEmpty="1 as other",
        max="array(1.5D) as max",
    )
    with pytest.raises(SchemaMismatchError) as caught:
        fit(spark, state, table)
    for difference in (
        "column '_groupingexpression' is string, not double",
        "column 'count' is decimal(20,0), not bigint",
        "column 'sum' is decimal(20,3), not decimal(20,2)",
        "column 'isEmpty' is missing",
        "column 'other' is not wanted",
        "column 'max' is array<double>, not array<bigint>",
    ):
        assert difference in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"count": "cast(null as long) as count"}, "1 row with a null in column 'count'"),
        (
            {"half": "-0.0D as _groupingexpression"},
            "the key -0.0 in column '_groupingexpression', which Spark finds as 0.0",
        ),
    ],
    ids=["a null", "a negative zero"],
)
def test_rows_that_spark_would_misread_are_refused(
    spark: SparkSession, state: WantedState, changed: dict[str, str], message: str
) -> None:
    fitted = fit(spark, state, rows_of(spark, **changed))
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        refuse_unfit_rows(fitted, state)
    assert "'window_start': datetime" in str(caught.value)


def test_duplicates_are_counted_with_examples(spark: SparkSession, state: WantedState) -> None:
    table = rows_of(spark).union(rows_of(spark, count="3L as count")).union(rows_of(spark))
    with pytest.raises(DuplicateKeyError, match="2 rows with the key of another"):
        refuse_unfit_rows(fit(spark, state, table), state)


@pytest.mark.parametrize(
    "convert", [lambda table: table, lambda table: table.to_pandas(types_mapper=pd.ArrowDtype)]
)
def test_tables_of_arrow_and_pandas_fit(
    spark: SparkSession, state: WantedState, convert: Any
) -> None:
    arrow = rows_of(spark, window=f"{HOUR} as window_start, {HOUR} as window_end").toArrow()
    assert isinstance(arrow, pa.Table)
    fitted = fit(spark, state, convert(arrow))
    assert fitted.count() == 1
    assert fitted.dtypes == fit(spark, state, None).dtypes


def test_something_else_is_refused(spark: SparkSession, state: WantedState, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="must be a DataFrame, an Arrow table or None"):
        fit(spark, state, tmp_path)


@pytest.mark.parametrize("column", ["count", "window", "Window"])
def test_columns_with_one_name_are_refused(
    spark: SparkSession, state: WantedState, column: str
) -> None:
    rows = rows_of(spark, count=f"2L as count, {WINDOW.split(' as window')[0]} as {column}")
    with pytest.raises(SchemaMismatchError, match="columns have the same name"):
        fit(spark, state, rows)


def test_a_streaming_table_is_refused(spark: SparkSession, state: WantedState) -> None:
    with pytest.raises(InvalidArgumentError, match=r"streaming DataFrame: .* spark\.read,"):
        fit(spark, state, spark.readStream.format("rate").load())


@pytest.fixture(scope="module")
def seen(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> WantedState:
    """A count per timestamp."""
    source = tmp_path_factory.mktemp("source")
    events(source, 0, 1)
    return plan_query(stream(spark, source).groupBy("t").count(), output_mode="update").state(NAME)


def write_times(file: Path, nanoseconds: int, zone: str | None) -> pa.Table:
    """Write a file as pandas does, and return its rows."""
    times = pa.array([1_767_225_600_000_000_000 + nanoseconds], pa.timestamp("ns", zone))
    rows = pa.table({"t": times, "count": [2]})
    pq.write_table(rows, file)
    return rows


@pytest.mark.parametrize("is_file", [False, True], ids=["an Arrow table", "a file"])
def test_nanoseconds_fit_only_as_whole_microseconds(
    spark: SparkSession, seen: WantedState, tmp_path: Path, is_file: bool
) -> None:
    for nanoseconds in (1000, 999):
        file = tmp_path / f"{nanoseconds}.parquet"
        rows = write_times(file, nanoseconds, "UTC")
        table = open_table(str(file)) if is_file else rows
        if nanoseconds == 999:
            with pytest.raises(InvalidArgumentError, match="cannot represent its 999 ns"):
                fit_table(spark, seen, table, tmp_path)
        else:
            (row,) = fit_table(spark, seen, table, tmp_path).selectExpr("unix_micros(t)").collect()
            assert row == (1_767_225_600_000_001,)


def test_settings_do_not_change_the_types_of_a_file(
    spark: SparkSession, seen: WantedState, tmp_path: Path
) -> None:
    write_times(tmp_path / "local.parquet", 0, None)
    table = open_table(str(tmp_path / "local.parquet"))
    setting = {"spark.sql.parquet.inferTimestampNTZ.enabled": "false"}
    with (
        session_settings(spark, setting),
        pytest.raises(SchemaMismatchError, match="'t' is timestamp_ntz, not timestamp"),
    ):
        fit_table(spark, seen, table, tmp_path)


def test_types_that_spark_lacks_are_refused(
    spark: SparkSession, seen: WantedState, tmp_path: Path
) -> None:
    query = open_query("SELECT now() AS t, time '10:00:00' AS count")
    with pytest.raises(UnsupportedTypeError, match="'count' has Arrow type time64"):
        fit_table(spark, seen, query, tmp_path)
