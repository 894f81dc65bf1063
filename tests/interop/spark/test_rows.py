"""Bytes of keys and values, compared with those in Spark's own state stores."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.spark.rows import encode_rows
from tests.interop.spark.queries import QUERIES, events, run, settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

Pairs = list[tuple[bytes, bytes]]


KINDS = ("agg", "nested", "global", "session", "join")
IN_EACH_RUN = ("agg", "nested", "join")
"""Keys and values of one field and of many, in one store and in four."""


@pytest.fixture(scope="module")
def checkpoints(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The checkpoint of each query after two micro-batches, created on first use."""
    folder = tmp_path_factory.mktemp("checkpoints")
    events(folder / "events", 0, 2)

    @cache
    def location(kind: str) -> Path:
        run(
            spark,
            QUERIES[kind],
            source=folder / "events",
            location=str(folder / kind),
            provider="rocksdb",
            partitions=3,
        )
        return folder / kind

    return location


def stores(spark: SparkSession, location: Path) -> list[str]:
    rows = spark.read.format("state-metadata").load(str(location)).collect()
    return [row.stateStoreName for row in rows]


def state(spark: SparkSession, location: Path, store: str, *, raw: bool = False) -> DataFrame:
    """Return one store's rows, or their bytes."""
    spark.streams  # noqa: B018 - starts what the reader asks for partitions
    reader = spark.read.format("statestore").option("storeName", store)
    return reader.option("_readAllColumnFamilies", str(raw)).load(str(location))


def pairs(frame: DataFrame) -> Pairs:
    """Return keys and values in the order of ``frame``."""
    return [
        (bytes(row.key_bytes), bytes(row.value_bytes))
        for row in frame.select("key_bytes", "value_bytes").collect()
    ]


def rebuilt(frame: DataFrame) -> DataFrame:
    """Return ``frame`` rebuilt from Python values, so that it contains no byte of a store."""
    rows = frame.collect()
    return frame.sparkSession.createDataFrame(rows, frame.schema, verifySchema=False)


@pytest.mark.long_cases("nested", "join")
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in IN_EACH_RUN else pytest.mark.long) for kind in KINDS],
)
def test_bytes_equal_those_of_the_store(
    spark: SparkSession, checkpoints: Callable[[str], Path], kind: str
) -> None:
    found = stores(spark, checkpoints(kind))
    assert len(found) == (4 if kind == "join" else 1)
    for store in found:
        kept = pairs(state(spark, checkpoints(kind), store, raw=True))
        typed = state(spark, checkpoints(kind), store)
        assert kept
        assert pairs(encode_rows(typed)) == kept
        assert pairs(encode_rows(rebuilt(typed))) == kept


@pytest.mark.long_cases("agg")
@pytest.mark.parametrize("kind", ["agg", "nested", pytest.param("join", marks=pytest.mark.long)])
def test_bytes_survive_a_table(
    spark: SparkSession, checkpoints: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    for number, store in enumerate(stores(spark, checkpoints(kind))):
        typed = state(spark, checkpoints(kind), store)
        if "void" in typed.schema.simpleString():  # no file can hold this type
            continue
        names = {part: storable(typed.schema[part].dataType) for part in ("key", "value")}
        path = str(tmp_path / str(number))
        renamed = [F.col(part).cast(of).alias(part) for part, of in names.items()]
        typed.select(*renamed).write.parquet(path)
        kept = pairs(state(spark, checkpoints(kind), store, raw=True))
        assert sorted(pairs(encode_rows(spark.read.parquet(path)))) == sorted(kept)


def storable(struct: T.DataType) -> T.StructType:
    """Return the type with unique field names, because aggregate values can repeat a name."""
    assert isinstance(struct, T.StructType)
    fields = enumerate(struct.fields)
    return T.StructType([T.StructField(f"f{n}", field.dataType) for n, field in fields])


@pytest.mark.long_cases("interpreted")
@pytest.mark.parametrize(
    "conf",
    [
        {},
        pytest.param({"spark.sql.codegen.wholeStage": "false"}, marks=pytest.mark.long),
        {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false"},
        pytest.param({"spark.sql.adaptive.enabled": "false"}, marks=pytest.mark.long),
    ],
    ids=["default", "by-row", "interpreted", "not-adaptive"],
)
def test_every_type_in_every_spark_mode(spark: SparkSession, conf: dict[str, str]) -> None:
    """The bytes of a struct do not depend on the representation of its row."""
    fields = [
        *("id + 1 as a", "cast(id as byte) as b", "null as c", "cast(id as decimal(10, 2)) as d"),
        *("cast(if(id % 2 = 0, null, id) as decimal(30, 5)) as e", "cast(id as string) as f"),
        *("named_struct() as g", "named_struct('x', array(null, id), 'x', id) as h"),
        *("map(id, array(named_struct('y', id, 'z', null))) as i", "cast('x' as binary) as j"),
        *("timestamp_micros(id) as k", "timestamp_ntz'2026-01-01 01:02:03.456' as l"),
        *("date'2026-01-01' as m", "interval '1' day as n", "cast(id as float) as o"),
        *("id % 2 = 0 as p", "make_interval(1, 2, 3) as q", "cast(id as double) as r"),
        "cast(null as struct<x: int>) as s",
    ]
    whole = spark.range(20).repartition(4).selectExpr("id", f"struct({', '.join(fields)}) as value")
    frame = whole.withColumn("key", F.struct())
    with settings(spark, conf):
        rows = sorted((row.id, bytes(row.value_bytes)) for row in encode_rows(frame).collect())
    assert [number for number, _ in rows] == list(range(20))
    width = 8 + 8 * len(fields)
    assert {len(value) % 8 for _, value in rows} == {0}
    assert min(len(value) for _, value in rows) > width
    assert [int.from_bytes(value[8:16], "little") for _, value in rows] == list(range(1, 21))
    again = rebuilt_without_intervals(frame)
    assert sorted(pairs(encode_rows(again))) == sorted(
        pairs(encode_rows(frame.withColumn("value", F.col("value").dropFields("q"))))
    )


def rebuilt_without_intervals(frame: DataFrame) -> DataFrame:
    """Python has no calendar intervals."""
    return rebuilt(frame.withColumn("value", F.col("value").dropFields("q")))


def test_more_fields_than_one_method_of_code_has(spark: SparkSession) -> None:
    value = F.struct(*(F.lit(n).alias(f"f{n}") for n in range(300)))
    frame = spark.range(1).select(F.struct("id").alias("key"), value.alias("value"))
    ((_, found),) = pairs(encode_rows(frame))
    assert [int.from_bytes(found[40 + 8 * n : 48 + 8 * n], "little") for n in range(300)] == list(
        range(300)
    )


def test_partitions_order_and_other_columns_stay(spark: SparkSession) -> None:
    frame = spark.range(0, 100, 1, 5).select(
        F.struct(F.col("id").alias("x")).alias("value"),
        F.spark_partition_id().alias("a.b`c"),
        F.struct("id").alias("key"),
        "id",
    )
    found = encode_rows(frame)
    assert found.columns == ["a.b`c", "id", "key_bytes", "value_bytes"]
    assert found.rdd.getNumPartitions() == 5
    rows = found.withColumn("now", F.spark_partition_id()).collect()
    assert [row.id for row in rows] == list(range(100))
    assert all(row["a.b`c"] == row.now for row in rows)


def test_a_null_struct_stays_null(spark: SparkSession) -> None:
    frame = spark.sql("select cast(null as struct<x: int>) as value, named_struct('x', 1) as key")
    (row,) = encode_rows(frame).collect()
    assert row.value_bytes is None
    assert row.key_bytes is not None


@pytest.mark.parametrize("columns", [["key"], ["key", "value", "value"], []])
def test_key_and_value_are_required(spark: SparkSession, columns: list[str]) -> None:
    frame = spark.range(1).select(*(F.struct("id").alias(name) for name in columns))
    with pytest.raises(InvalidArgumentError, match=r"one column '(key|value)'"):
        encode_rows(frame)


def test_key_and_value_are_structs(spark: SparkSession) -> None:
    frame = spark.range(1).select(F.struct("id").alias("key"), F.col("id").alias("value"))
    with pytest.raises(
        UnsupportedTypeError, match=r"'value' of a state must be a struct, not bigint"
    ):
        encode_rows(frame)
