"""Native Spark columns compute the key groups that Flink, Arrow and Python compute."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.keys.arrow import key_groups, key_hashes
from statestore.keys.groups import KeyGroupAssignment
from statestore.keys.key_types import HASH_SCHEMES
from statestore.spark.hashing import (
    check_spark_key,
    key_group_column,
    key_hash_column,
    owner_column,
)
from tests.support.columns import Vectors, java_vectors, refused, sql_vectors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MAXIMUM = 1000
ROWS = 400
VECTORS = [*java_vectors("spark"), *sql_vectors("spark")]
PER_QUERY = 20


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Convert a table to a DataFrame; a timestamp without zone keeps its type."""
    return spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))


def schema_of(ddl: str) -> T.StructType:
    schema = T.DataType.fromDDL(ddl)
    assert isinstance(schema, T.StructType)
    return schema


def in_one_frame(spark: SparkSession, sets: list[Vectors]) -> tuple[DataFrame, list[list[str]]]:
    """Join vectors of different lengths as columns; shorter ones repeat their last row."""
    longest = max(len(vectors.groups) for vectors in sets)
    arrays, names = [], []
    for number, vectors in enumerate(sets):
        at = pa.array(np.minimum(np.arange(longest), len(vectors.groups) - 1))
        arrays += [column.take(at) for column in vectors.columns]
        names.append([f"{number}.`{i} x" for i in range(len(vectors.columns))])
    flat = [name for own in names for name in own]
    return frame(spark, pa.table(arrays, flat)), names


@pytest.mark.long_cases("20", "40", "60", "80", "100", "120", "140", "160", "180")
@pytest.mark.parametrize("start", range(0, len(VECTORS), PER_QUERY))
def test_every_vector_has_its_hash(spark: SparkSession, start: int) -> None:
    """I1: every vector with a type of Spark, also with dots, spaces and backticks in names."""
    sets = VECTORS[start : start + PER_QUERY]
    df, names = in_one_frame(spark, sets)
    asked: list[Column] = []
    for number, (vectors, key) in enumerate(zip(sets, names, strict=True)):
        options: Any = {"hash_scheme": vectors.hash_scheme, "key_types": vectors.key_types}
        asked.append(key_hash_column(df.schema, key, **options).alias(f"hash {number}"))
        for maximum in sorted(set(vectors.max_parallelism)):
            column = key_group_column(df.schema, key, max_parallelism=maximum, **options)
            asked.append(column.alias(f"group {number} {maximum}"))
    answers = df.select(*asked).toArrow().to_pydict()
    for number, vectors in enumerate(sets):
        if None not in vectors.hashes:
            hashes = answers[f"hash {number}"][: len(vectors.hashes)]
            assert hashes == vectors.hashes, vectors.name
        for row, (maximum, group) in enumerate(
            zip(vectors.max_parallelism, vectors.groups, strict=True)
        ):
            assert answers[f"group {number} {maximum}"][row] == group, vectors.name


def test_the_vectors_are_many() -> None:
    """Spark supports the same values as Arrow, except NaN payloads."""
    assert sum(len(v.groups) for v in VECTORS) == 6450 + 157
    one_nan = {"NaN of other bits than Java's own, of which Spark keeps one": 1}
    assert refused("spark") == refused("arrow") + Counter(one_nan)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return every_type()


def every_type() -> pa.Table:
    """Return rows with every key type of Spark, random and extreme; the same in every run."""
    random = np.random.default_rng(20)
    bits = random.integers(-(2**63), 2**63 - 1, ROWS)
    bits[:4] = [-(2**63), 2**63 - 1, 0, -1]
    days = pa.array(random.integers(-719_162, 2_932_896, ROWS).astype(np.int32))
    micros = random.integers(-62_135_596_800_000_000, 253_402_300_799_999_999, ROWS)
    words = [
        chr(int(c)) * int(n)
        for c, n in zip(
            random.choice([*range(32, 127), 0, 0xE9, 0x72B6, 0x1F642], ROWS),
            random.integers(0, 40, ROWS),
            strict=True,
        )
    ]
    unscaled = [
        int(b) * 10 ** int(e) for b, e in zip(bits, random.integers(0, 19, ROWS), strict=True)
    ]
    unscaled[:8] = [0, 1, -1, 2**64, -(2**64), 10**38 - 1, 1 - 10**38, -255]
    wide = pa.array(map(Decimal, unscaled), pa.decimal128(38, 0))
    narrow = pa.array([0, 1, -1, *(int(b) // 100 for b in bits[3:])], pa.decimal128(18, 0))
    columns = {
        "string": pa.array(words),
        "byte": pa.array((bits >> 56).astype(np.int8)),
        "short": pa.array((bits >> 48).astype(np.int16)),
        "int": pa.array((bits >> 32).astype(np.int32)),
        "long": pa.array(bits),
        "float": pa.array(random.normal(0, 1e9, ROWS).astype(np.float32)),
        "double": pa.array([-0.0, 0.0, float("inf"), *random.normal(0, 1, ROWS - 3)]),
        "boolean": pa.array(bits % 3 == 0),
        "date": days.cast(pa.date32()),
        "instant": pa.array(micros).cast(pa.timestamp("us", "UTC")),
        "local": pa.array(micros).cast(pa.timestamp("us")),
        "narrow": with_scale(narrow, 18, 7),
        "wide": with_scale(wide, 38, 18),
        "whole": wide,
        "tiny": with_scale(wide, 38, 38),
        "small": with_scale(narrow, 18, 18),
    }
    struct = pa.StructArray.from_arrays([columns["string"], columns["byte"]], ["a.b", "c"])
    raw = pa.array([word.encode("utf-16") for word in words])
    return pa.table({**columns, "struct": struct, "binary": raw})


def with_scale(array: pa.Array, precision: int, scale: int) -> pa.Array:
    """Reinterpret the same unscaled values with another scale."""
    return pa.Array.from_buffers(pa.decimal128(precision, scale), len(array), array.buffers())


def with_nulls(table: pa.Table) -> pa.Table:
    """Make every third value null, in different rows for each column."""
    arrays = []
    for number, column in enumerate(table.columns):
        gone = pa.array((np.arange(len(column)) + number) % 3 == 0)
        arrays.append(pc.if_else(gone, pa.scalar(None, column.type), column))
    return pa.table(arrays, table.column_names)


def allowed(name: str, scheme: str) -> bool:
    return not (
        (name == "binary" and scheme == "java") or (name == "struct" and scheme == "flink-sql")
    )


@pytest.mark.parametrize(
    ("ansi", "zone"),
    [
        ("true", "UTC"),
        pytest.param("false", "America/New_York", marks=pytest.mark.long),
        pytest.param("true", "America/New_York", marks=pytest.mark.long),
        pytest.param("false", "UTC", marks=pytest.mark.long),
    ],
)
def test_spark_and_arrow_agree(spark: SparkSession, table: pa.Table, zone: str, ansi: str) -> None:
    """I1: same key, same group in both engines, whatever the session's time zone and ANSI mode."""
    df = frame(spark, table)
    cases = [(name, s) for s in HASH_SCHEMES for name in table.column_names if allowed(name, s)]
    settings = {"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": ansi}
    before = {name: spark.conf.get(name) or "" for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        asked = [
            key_group_column(df.schema, [name], max_parallelism=MAXIMUM, hash_scheme=scheme)
            for name, scheme in cases
        ]
        labels = [f"{name} {scheme}" for name, scheme in cases]
        found = df.select(*(c.alias(n) for c, n in zip(asked, labels, strict=True))).toArrow()
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    for (name, scheme), label in zip(cases, labels, strict=True):
        groups = key_groups([table[name]], max_parallelism=MAXIMUM, hash_scheme=scheme)
        assert found[label].to_pylist() == groups.tolist(), label


@pytest.mark.long
@pytest.mark.long_cases("java", "pyflink")
@pytest.mark.parametrize("scheme", HASH_SCHEMES)
def test_several_columns_and_nulls(spark: SparkSession, table: pa.Table, scheme: str) -> None:
    """I1: wide keys agree; a null key has a null group in java and pyflink, but not in SQL."""
    rows = with_nulls(table)
    df = frame(spark, rows)
    key = [name for name in rows.column_names if name != "binary" and allowed(name, scheme)]
    shuffled = key[::-1]
    asked = {
        "all": (key, key_group_column(df.schema, key, max_parallelism=MAXIMUM, hash_scheme=scheme)),
        "reversed": (
            shuffled,
            key_group_column(df.schema, shuffled, max_parallelism=MAXIMUM, hash_scheme=scheme),
        ),
    }
    for name in key:
        column = key_group_column(df.schema, [name], max_parallelism=MAXIMUM, hash_scheme=scheme)
        asked[f"alone {name}"] = ([name], column)
    found = df.select(*(column.alias(label) for label, (_, column) in asked.items())).toArrow()
    for label, (names, _) in asked.items():
        arrays = [rows[name] for name in names]
        if scheme != "flink-sql":
            kept = np.logical_and.reduce([np.asarray(array.is_valid()) for array in arrays])
            assert np.array_equal(np.asarray(found[label].is_valid()), kept), label
            arrays = [array.filter(pa.array(kept)) for array in arrays]
        groups = key_groups(arrays, max_parallelism=MAXIMUM, hash_scheme=scheme)
        assert found[label].drop_null().to_pylist() == groups.tolist(), label


@pytest.mark.long
def test_many_sql_columns(spark: SparkSession) -> None:
    """The null bits of more than 56 columns fill a second word."""
    numbers = range(130)
    arrays = {f"c{i}": pa.array([i, None if i % 5 else -i, None], pa.int32()) for i in numbers}
    df = frame(spark, pa.table(arrays))
    column = key_hash_column(df.schema, list(arrays), hash_scheme="flink-sql")
    found = df.select(column.alias("h")).toArrow()["h"].to_pylist()
    assert found == key_hashes(list(arrays.values()), hash_scheme="flink-sql").tolist()


def test_a_struct_with_nulls_inside_is_a_tuple(spark: SparkSession) -> None:
    """Null fields of a struct, also of a nested one, count as 0 as in a Java Tuple."""
    kind = pa.struct(
        [("a", pa.string()), ("b", pa.struct([("c", pa.float64()), ("d", pa.bool_())]))]
    )
    values = [
        {"a": "x", "b": {"c": None, "d": True}},
        {"a": None, "b": None},
        {"a": None, "b": {"c": 1.5, "d": None}},
    ]
    table = pa.table({"k": pa.array(values, kind)})
    df = frame(spark, table)
    found = df.select(key_hash_column(df.schema, ["k"]).alias("h")).toArrow()["h"].to_pylist()
    assert found == key_hashes([table["k"]]).tolist()


@pytest.mark.long
def test_a_timestamp_finer_than_its_sql_type_fails(spark: SparkSession) -> None:
    """A key is never rounded; null and exact values are accepted."""
    fine = spark.createDataFrame([(datetime(2020, 1, 1, 0, 0, 0, 1),), (None,)], "t timestamp_ntz")
    column = key_group_column(
        fine.schema, ["t"], max_parallelism=128, hash_scheme="flink-sql", key_types=["TIMESTAMP(3)"]
    )
    assert fine.where("t is null").select(column.alias("g")).collect()[0].g is not None
    with pytest.raises(Exception, match="precision 3"):
        fine.select(column).collect()


def test_the_column_has_the_subtask_of_the_assignment(spark: SparkSession) -> None:
    """I2: the column returns the owner in KeyGroupAssignment."""
    for maximum, parallelism in ((128, 7), (32768, 32767), (1, 1), (10, 4)):
        assignment = KeyGroupAssignment(max_parallelism=maximum, parallelism=parallelism)
        column = owner_column(F.col("id"), max_parallelism=maximum, parallelism=parallelism)
        found = spark.range(maximum).select(column.alias("s")).toArrow()["s"]
        assert found.type == pa.int32()
        assert found.to_pylist() == [assignment.subtask_of(group) for group in range(maximum)]


@pytest.mark.usefixtures("spark")
def test_names_of_key_types() -> None:
    """The names are the Arrow engine's: they fix the hash, whichever engine wrote the state."""
    schema = schema_of(
        "s string, i int, d decimal(10,2), t timestamp, n timestamp_ntz, r struct<a:int,b:string>"
    )
    assert check_spark_key(schema, ["s", "i", "d", "t", "n", "r"]) == (
        "String", "Integer", "BigDecimal(10,2)", "Instant", "LocalDateTime",
        "Tuple2<Integer, String>",
    )  # fmt: skip
    assert check_spark_key(schema, ["i", "n"], "flink-sql") == ("INT", "TIMESTAMP(6)")
    assert check_spark_key(schema, ["i"], "java", ["Long"]) == ("Long",)


@pytest.mark.parametrize(
    ("ddl", "advice"),
    [
        ("void", "no values"), ("binary", "identity hash"),
        ("interval year to month", "other key groups"), ("variant", "other key groups"),
        ("string collate UTF8_LCASE", "UTF8_BINARY"),
    ],
)  # fmt: skip
def test_types_that_cannot_be_keys_are_refused(spark: SparkSession, ddl: str, advice: str) -> None:
    """The error has the column and a remedy."""
    schema = schema_of(f"k {ddl}")
    with pytest.raises(UnsupportedTypeError, match=advice) as caught:
        key_group_column(schema, ["k"], max_parallelism=128)
    assert "key column 'k'" in caught.value.__notes__


@pytest.mark.usefixtures("spark")
def test_a_missing_column_is_named() -> None:
    """The error lists the columns that exist."""
    with pytest.raises(InvalidArgumentError, match="no column 'x': the columns are a, b"):
        check_spark_key(schema_of("a int, b int"), ["x"])
    with pytest.raises(InvalidArgumentError, match="pass one type for each column"):
        check_spark_key(schema_of("a int"), ["a"], "java", [])
    with pytest.raises(InvalidArgumentError):
        key_group_column(schema_of("a int"), ["a"], max_parallelism=32769)
