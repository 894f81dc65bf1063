"""Spark partition i of a partitioned DataFrame has the records of Flink's downstream subtask i."""

from __future__ import annotations

from functools import partial, reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from statestore.engines.spark_modules import partition
from statestore.errors import InvalidArgumentError, NullKeyError, ParallelismError
from statestore.jobgraph.partitioners import (
    Broadcast,
    Custom,
    Forward,
    Global,
    KeyGroup,
    Partitioner,
    Rebalance,
    Rescale,
    Shuffle,
    pointwise,
)
from statestore.keys.groups import KeyGroupAssignment
from statestore.keys.hashing import key_group_of
from statestore.spark.hashing import key_hash_column
from tests.support.vectors import cases, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, DataFrame, SparkSession

COUNTED = [case for case in cases("partitioners", "channels") if "count" in case["in"]]
KEYED = [case for case in cases("partitioners", "channels") if "keys" in case["in"]]
WIRINGS = [(case["in"]["up"], case["in"]["down"]) for case in cases("partitioners", "pointwise")]

ROWS = 7  # per source partition: enough for a second round, and not a multiple of 2, 3 or 4
PER_JOB = 8  # plans per job: each task has the metrics of all of them

KEY_TYPES: dict[str, T.DataType] = {
    "int": T.IntegerType(),
    "long": T.LongType(),
    "string": T.StringType(),
    "tuple": T.StructType().add("_1", T.StringType(), False).add("_2", T.LongType(), False),
}


@pytest.fixture
def interpreted(spark: SparkSession) -> Iterator[None]:
    """A hundred tiny plans run five times as fast without compilation and adaptive execution."""
    conf = {f"spark.sql.{name}": "false" for name in ("adaptive.enabled", "codegen.wholeStage")}
    conf["spark.sql.codegen.factoryMode"] = "NO_CODEGEN"
    before = {name: str(spark.conf.get(name)) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def _sources(spark: SparkSession, up: int, rows: int = ROWS) -> DataFrame:
    """``up`` Spark partitions; ``id`` is source * rows + index."""
    return spark.range(0, up * rows, 1, up)


def _rows(spark: SparkSession, rows: list[tuple[Any, ...]], schema: T.StructType) -> DataFrame:
    """Few rows, without a Python worker."""
    named = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(named, to_arrow_schema(schema)), schema)


def _where(parts: DataFrame, name: Any, *columns: str | Column) -> DataFrame:
    """Return the location of each record: the case, the Spark partition and the columns."""
    return parts.select(F.lit(name).alias("name"), F.spark_partition_id().alias("at"), *columns)


def _collected(frames: Iterable[DataFrame]) -> dict[Any, dict[Any, int]]:
    """Return per case the Spark partition of each record, several cases in a job; no duplicates."""
    found: dict[Any, dict[Any, int]] = {}
    left = [*frames]
    while left:
        some, left = left[:PER_JOB], left[PER_JOB:]
        for name, at, record in reduce(lambda a, b: a.unionAll(b), some).collect():
            assert record not in found.setdefault(name, {})
            found[name][record] = at
    return found


def _contents(parts: DataFrame) -> list[list[Any]]:
    """Return the first column of the rows of each Spark partition, in order."""
    rows = parts.select(F.spark_partition_id(), parts.columns[0]).collect()
    held: list[list[Any]] = [[] for _ in range(parts.rdd.getNumPartitions())]
    for at, value in rows:
        held[at].append(value)
    return held


# --- Flink's answers ------------------------------------------------------------------------------


@pytest.mark.usefixtures("interpreted")
def test_records_without_a_key_go_to_flinks_channels(spark: SparkSession) -> None:
    """Every case with a count, from one source partition, record by record."""
    frames, expected = [], {}
    for number, case in enumerate(COUNTED):
        asked = case["in"]
        kinds = {"global": Global, "rescale": Rescale, "broadcast": Broadcast, "forward": Forward}
        made = Rebalance(asked["first"]) if asked["kind"] == "rebalance" else kinds[asked["kind"]]()
        # Forward and rescale have one source subtask with this many channels; forward has only one.
        n = 1 if asked["kind"] == "forward" else asked["channels"]
        parts = partition(_sources(spark, 1, asked["count"]), made, parallelism=n)
        if "error" in case:  # broadcast has no single channel: it uses all
            assert _contents(parts) == [[*range(asked["count"])]] * n
            continue
        frames.append(_where(parts, number, "id"))
        # A pointwise channel is not the index of a subtask; the wiring maps one to the other.
        behind = pointwise(1, n).channels[0] if made.is_pointwise else range(n)
        expected[number] = {index: behind[at] for index, at in enumerate(case["out"])}
    assert len(expected) == 24
    assert _collected(frames) == expected


@pytest.mark.long
@pytest.mark.usefixtures("interpreted")
def test_records_with_a_key_go_to_flinks_channels(spark: SparkSession) -> None:
    """Every case with keys, key by key; the types of a case are separate columns."""
    frames: list[DataFrame] = []
    expected: dict[int, dict[int, int]] = {}
    for number, case in enumerate(KEYED):
        asked = case["in"]
        maximum = asked.get("configure", asked.get("max"))
        if "error" in case:
            with pytest.raises(InvalidArgumentError):
                KeyGroup(key="k", max_parallelism=maximum)
            continue
        expected[number] = dict(enumerate(case["out"]))
        for tag, rows in _by_type(asked["keys"]):
            schema = T.StructType().add("i", T.LongType()).add("k", KEY_TYPES[tag], False)
            df = _rows(spark, rows, schema)
            if maximum:
                made: Partitioner = KeyGroup(key="k", max_parallelism=maximum)
            else:
                by_hash = F.pmod(key_hash_column(schema, ("k",)), F.lit(asked["channels"]))
                made = Custom(partial(lambda answer, key, n: answer, by_hash), "k")
            parts = partition(df, made, parallelism=asked["channels"])
            frames.append(_where(parts, number, "i"))
    assert len(expected) == 34
    assert _collected(frames) == expected


def _by_type(keys: list[dict[str, Any]]) -> list[tuple[str, list[tuple[Any, ...]]]]:
    numbered = sorted(enumerate(keys), key=lambda pair: pair[1]["t"])
    grouped = groupby(numbered, key=lambda pair: str(pair[1]["t"]))
    return [(tag, [(i, _plain(key_of(key))) for i, key in pairs]) for tag, pairs in grouped]


def _plain(key: Any) -> Any:
    value = key.value
    if isinstance(value, list):
        return {f"_{i}": _plain(each) for i, each in enumerate(value, 1)}
    return value


@pytest.mark.long
@pytest.mark.usefixtures("interpreted")
def test_pointwise_edges_are_wired_as_in_flink(spark: SparkSession) -> None:
    """Rescale distributes each source partition over its own consumers, for every wiring."""
    pairs = [*WIRINGS, (1, 2), (4, 9), (9, 4), (7, 16)]
    frames = [
        _where(partition(_sources(spark, up, 5), Rescale(), parallelism=down), number, "id")
        for number, (up, down) in enumerate(pairs)
    ]
    found = _collected(frames)
    for number, (up, down) in enumerate(pairs):
        wired = pointwise(up, down).channels
        assert found[number] == {
            u * 5 + i: wired[u][i % len(wired[u])] for u in range(up) for i in range(5)
        }, (up, down)


# --- Each partitioner -----------------------------------------------------------------------------


def test_rebalance_starts_again_in_each_source_partition(spark: SparkSession) -> None:
    """Each one starts after ``first`` again, and keeps the order of its records."""
    held = _contents(partition(_sources(spark, 3), Rebalance(1), parallelism=3))
    at = {record: subtask for subtask, records in enumerate(held) for record in records}
    assert at == {u * ROWS + i: (2 + i) % 3 for u in range(3) for i in range(ROWS)}
    _assert_order_kept(held)


def test_without_a_start_each_source_partition_draws_its_own(spark: SparkSession) -> None:
    """Round robin from a random start, which differs between partitions and is repeatable."""
    parts = partition(_sources(spark, 24), Rebalance(), parallelism=5)
    at = _collected([_where(parts, "first", "id"), _where(parts, "again", "id")])
    assert at["first"] == at["again"]
    starts = [at["first"][u * ROWS] for u in range(24)]
    assert len(set(starts)) > 1
    for u, start in enumerate(starts):
        got = [at["first"][u * ROWS + i] for i in range(ROWS)]
        assert got == [(start + i) % 5 for i in range(ROWS)]


def test_a_shuffle_is_even_and_repeats_with_its_seed(spark: SparkSession) -> None:
    """All partitions get a share; another seed distributes differently."""
    df = _sources(spark, 2, 2_000)
    one, same, other, drawn = (
        _contents(partition(df, Shuffle(seed), parallelism=4)) for seed in (7, 7, 8, None)
    )
    assert one == same
    assert one not in (other, drawn)
    for held in (one, other, drawn):
        assert sorted(record for records in held for record in records) == [*range(4_000)]
        assert all(abs(len(records) - 1_000) < 4 * 28 for records in held)
        _assert_order_kept(held, 2_000)


def test_broadcast_puts_every_record_into_every_partition(spark: SparkSession) -> None:
    """Each partition has each record once."""
    copies = _contents(partition(_sources(spark, 3), Broadcast(), parallelism=4))
    assert [sorted(records) for records in copies] == [[*range(3 * ROWS)]] * 4


def test_forward_keeps_the_partitions_without_a_shuffle(spark: SparkSession) -> None:
    """The same rows in the same partitions; another parallelism is refused."""
    df = _sources(spark, 3)
    parts = partition(df, Forward(), parallelism=3)
    assert _contents(parts) == _contents(df)
    assert "Exchange" not in parts._jdf.queryExecution().executedPlan().toString()
    with pytest.raises(ParallelismError, match="parallelism 3 to 2") as caught:
        partition(df, Forward(), parallelism=2)
    assert "the DataFrame has 3 Spark partitions" in caught.value.__notes__[0]


@pytest.mark.parametrize("scheme", ["java", "flink-sql", "pyflink"])
def test_a_key_is_in_the_partition_that_restores_its_state(
    spark: SparkSession, scheme: str
) -> None:
    """The owner of its key group, for one column and for two; 128 is derived for 7 subtasks."""
    df = spark.range(200, numPartitions=2).select(F.format_string("ü%d", "id").alias("k"), "id")
    for key, maximum in ((("k",), 100), (("k", "id"), None)):
        made = KeyGroup(key=key, max_parallelism=maximum, hash_scheme=scheme)
        owners = KeyGroupAssignment(max_parallelism=maximum or 128, parallelism=7)
        found = _collected([_where(partition(df, made, parallelism=7), "", "id")])[""]
        assert len(found) == 200
        for i, at in found.items():
            asked = (f"ü{i}", i) if len(key) > 1 else f"ü{i}"
            group = key_group_of(asked, max_parallelism=maximum or 128, hash_scheme=scheme)
            assert at == owners.subtask_of(group)


def test_a_custom_column_gets_the_key_and_the_number_of_channels(spark: SparkSession) -> None:
    """One key column is passed as it is, several as a struct; any integer type is accepted."""
    df = _sources(spark, 2).select("id", (F.col("id") * 3).alias("b c"))
    several = Custom(lambda key, n: (key["b c"] - 2 * key["id"]) % n, ("id", "b c"))
    tiny = Custom(lambda key, n: (key % n).cast("tinyint"), "id")
    for made in (Custom(lambda key, n: key % n, "id"), several, tiny):
        held = _contents(partition(df, made, parallelism=4))
        assert [sorted(each) for each in held] == [[*range(i, 2 * ROWS, 4)] for i in range(4)]


@pytest.mark.parametrize("answer", ["-1", "3", "null", "4294967296"])
def test_an_invalid_custom_channel_fails_the_query(spark: SparkSession, answer: str) -> None:
    """The message has the result, the key and the number of channels; no row is lost instead."""
    wrong = Custom(lambda key, n: F.when(key == 5, F.expr(answer)).otherwise(0), "id")
    parts = partition(_sources(spark, 1), wrong, parallelism=3)
    with pytest.raises(PySparkException, match=rf"returned {answer} for key 5: .* 0\.\.2"):
        parts.collect()


# --- The result -----------------------------------------------------------------------------------

EVERY: list[Partitioner] = [
    Global(),
    Shuffle(1),
    Rebalance(0),
    Rescale(),
    Broadcast(),
    KeyGroup(key="key"),
    Custom(lambda key, n: F.pmod(F.hash(key), F.lit(n)), "key"),
]


@pytest.mark.long_cases("GLOBAL", "SHUFFLE", "REBALANCE", "RESCALE", "BROADCAST")
@pytest.mark.parametrize("partitioner", EVERY, ids=str)
def test_columns_and_schema_are_unchanged(spark: SparkSession, partitioner: Partitioner) -> None:
    """Types, nullability, comments, and names that a temporary column could use."""
    key = T.StructType([T.StructField("key", T.IntegerType(), False, {"comment": "the key"})])
    names = ["channel", "CHANNEL_", "_nondeterministic", "a.b`c", "spark_partition_id"]
    schema = reduce(lambda s, name: s.add(name, T.StringType()), names, key)
    df = _rows(spark, [(i, *names) for i in range(3)], schema)
    parts = partition(df, partitioner, parallelism=2)
    assert parts.schema == df.schema
    assert parts.schema["key"].metadata == {"comment": "the key"}
    assert {tuple(row) for row in parts.collect()} == {(i, *names) for i in range(3)}
    assert parts.where(df["key"] == 1).count() == (2 if partitioner == Broadcast() else 1)


@pytest.mark.long_cases("RESCALE", "SHUFFLE", "BROADCAST", "GLOBAL")
@pytest.mark.parametrize("partitioner", EVERY, ids=str)
def test_the_number_of_partitions_is_exact(spark: SparkSession, partitioner: Partitioner) -> None:
    """Also one partition, more partitions than rows, and no rows or source partitions."""
    schema = T.StructType().add("key", T.IntegerType(), False)
    some, none = (_rows(spark, rows, schema) for rows in ([(1,), (2,)], []))
    for df in (some, none, some.repartition(2).where("key > 9")):
        for n in (1, 5):
            assert partition(df, partitioner, parallelism=n).rdd.getNumPartitions() == n


def test_literal_rows_have_sparks_partitions(spark: SparkSession) -> None:
    """The optimizer would count such rows as one partition, and distribute them as one."""
    df = spark.sql("SELECT * FROM VALUES (0), (1), (2), (3) AS t(id)")
    assert df.rdd.glom().map(len).collect() == [2, 2]
    assert _contents(partition(df, Forward(), parallelism=2)) == [[0, 1], [2, 3]]
    held = _contents(partition(df, Rescale(), parallelism=4))
    assert held == [[0], [1], [2], [3]]
    assert _contents(partition(df, Rebalance(0), parallelism=4)) == [[], [0, 2], [1, 3], []]


def test_the_order_of_a_sorted_partition_is_kept(spark: SparkSession) -> None:
    """The optimizer would drop the sort, because no operator above the shuffle needs it."""
    mixed = _sources(spark, 1, 500).orderBy(F.hash("id")).coalesce(1)
    wanted = [row.id for row in mixed.collect()]
    for made in (Global(), KeyGroup(key="id"), Rebalance(0), Broadcast()):
        for held in _contents(partition(mixed, made, parallelism=3)):
            assert held == sorted(held, key=wanted.index), made


def test_a_partitioned_dataframe_can_be_partitioned_again(spark: SparkSession) -> None:
    """The Spark partitions of the first are the source subtasks of the second."""
    first = partition(_sources(spark, 1, 12), Rebalance(2), parallelism=3)
    assert _contents(first) == [[*range(i, 12, 3)] for i in range(3)]
    second = partition(first, Rescale(), parallelism=6)
    assert _contents(second) == [[0, 6], [3, 9], [1, 7], [4, 10], [2, 8], [5, 11]]


# --- Null keys and wrong arguments ----------------------------------------------------------------


def test_null_keys_are_refused_and_counted(spark: SparkSession) -> None:
    """In any key column, and inside a struct; in flink-sql NULL is an ordinary key."""
    df = spark.createDataFrame(
        [(1, (1, "a")), (None, (2, "b")), (None, (None, "c")), (4, (4, None)), (5, None)],
        "k int, s struct<x int, y string>",
    )
    for key, rows in (("k", 2), ("s", 3), (("k", "s"), 4)):
        with pytest.raises(NullKeyError, match=f"^{rows} rows have a null key") as caught:
            partition(df, KeyGroup(key=key), parallelism=2)
        assert caught.value.rows == rows
        assert len(caught.value.examples) == min(rows, 3)
        assert "None" in caught.value.examples[0]
    with pytest.raises(NullKeyError, match=r"^1 row has"):
        partition(df.where("k IS NULL").limit(1), KeyGroup(key="k"), parallelism=2)
    assert partition(df.where("k IS NOT NULL"), KeyGroup(key="k"), parallelism=2).count() == 3
    sql = partition(df, KeyGroup(key="k", hash_scheme="flink-sql"), parallelism=2)
    owner = key_group_of((None,), max_parallelism=128, hash_scheme="flink-sql", key_type=("INT",))
    at = KeyGroupAssignment(max_parallelism=128, parallelism=2).subtask_of(owner)
    assert _contents(sql)[at].count(None) == 2


@pytest.mark.long
def test_null_fields_of_a_row_are_part_of_the_key(spark: SparkSession) -> None:
    """As in Flink and in a stored state; a null Row is not a key, nor is a Tuple with a null."""
    values = [(1, "a"), (None, "b"), (None, None)]
    df = spark.createDataFrame([(v,) for v in values], "s struct<x int, y string>")
    key = KeyGroup(key="s", key_types="Row")
    parts = _contents(partition(df, key, parallelism=2))
    whole = KeyGroupAssignment(max_parallelism=128, parallelism=2)
    for value in values:
        group = key_group_of(list(value), max_parallelism=128, key_type="Row<Integer, String>")
        assert parts[whole.subtask_of(group)].count(value) == 1
    with pytest.raises(NullKeyError, match=r"^1 row has"):
        partition(df.union(spark.createDataFrame([(None,)], df.schema)), key, parallelism=2)
    with pytest.raises(NullKeyError, match=r"^2 rows have"):
        partition(df, KeyGroup(key="s"), parallelism=2)


@pytest.mark.long
def test_null_keys_that_appear_later_fail_the_query(spark: SparkSession) -> None:
    """The rows can differ between the count and the query."""
    jvm: Any = spark._jvm
    properties = jvm.java.lang.System
    name = "statestore.test.key"
    read = F.java_method(F.lit("java.lang.System"), F.lit("getProperty"), F.lit(name))
    properties.setProperty(name, "there")
    df = spark.range(3).select(F.nullif(read, F.lit("gone")).alias("k"))
    parts = partition(df, KeyGroup(key="k"), parallelism=2)
    later = parts.select("*")
    assert parts.count() == 3
    properties.setProperty(name, "gone")
    with pytest.raises(PySparkException, match=r"null key \(k\)"):
        later.collect()
    properties.clearProperty(name)


def test_invalid_arguments_are_refused(spark: SparkSession) -> None:
    """Before a job runs, with the reason."""
    df = _sources(spark, 1).withColumn("a", F.make_ym_interval(F.lit(1)))
    with pytest.raises(InvalidArgumentError, match=r"1\.\.32768, not 32769"):
        partition(df, Global(), parallelism=32_769)
    wrong: list[tuple[Any, str]] = [
        (KeyGroup(key="x"), "no column 'x'"),
        (Custom(lambda key, n: key), "key='id'"),
        (Custom(lambda key, n: key, "x"), "no column 'x'"),
        (Custom(lambda key, n: 1, "id"), "must return a Column, not 1"),
        (Custom(lambda key, n: key / n, "id"), "an integer, not double"),
        (Rebalance(3), r"0\.\.2 with 3 channels"),
        ("rebalance", "'rebalance'"),
        (KeyGroup(key="a"), "cannot be a key"),
    ]
    for made, message in wrong:
        with pytest.raises(InvalidArgumentError, match=message):
            partition(df, made, parallelism=3)
    others: list[Any] = [[1], spark.readStream.format("rate").load()]
    for other in others:
        with pytest.raises(InvalidArgumentError, match="foreachBatch"):
            partition(other, Global(), parallelism=3)


def _assert_order_kept(held: list[list[int]], rows: int = ROWS) -> None:
    for records in held:
        by_source = sorted(records, key=lambda record: record // rows)
        assert by_source == sorted(records)
