"""Write the rows of a DataFrame to their subtasks; refuse null keys and wrong key groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.errors import (
    DuplicateKeyError,
    InvalidArgumentError,
    NullKeyError,
    StateStoreError,
)
from statestore.keys.arrow import key_groups
from statestore.spark import state_writer as write
from statestore.spark.hashing import key_group_column
from tests.engines.test_row_check import keyed_state, table


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def snapshot(store: StateStore, rows: DataFrame, **options: Any) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("counts", "n", rows, key="k", max_parallelism=8, **options)


def stored(store: StateStore) -> dict[int, int]:
    rows = store.restore(parallelism=1).keyed("counts", "n").to_arrow(0)
    return dict(zip(rows["k"].to_pylist(), rows["n"].to_pylist(), strict=True))


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path) -> StateStore:
    return StateStore.open(str(tmp_path / "store"), spark=spark, table_format="parquet")


def test_an_error_about_a_key_type_names_the_state(
    spark: SparkSession, store: StateStore, tmp_path: Path
) -> None:
    rows = spark.createDataFrame([("a", 1), ("bb", 2)], "k string, n long").repartition(2)
    with pytest.raises(InvalidArgumentError, match=r"n.*: a key is not a Character: .* code unit$"):
        snapshot(store, rows, key_types={"k": "Character"})
    assert files(tmp_path) == []


def test_an_error_in_the_rows_is_raised_as_spark_raises_it(
    spark: SparkSession, store: StateStore, tmp_path: Path
) -> None:
    failing = F.when(F.col("id") > 5, F.raise_error(F.lit("no luck"))).otherwise(F.col("id"))
    rows = spark.range(10).select(failing.alias("k"), F.lit(1).alias("n"))
    with pytest.raises(Exception, match="no luck") as raised:
        snapshot(store, rows)
    assert not isinstance(raised.value, StateStoreError)
    assert files(tmp_path) == []


def test_null_keys_are_counted_over_all_spark_partitions(
    spark: SparkSession, store: StateStore, tmp_path: Path
) -> None:
    key = F.when(F.col("id") % 3 > 0, F.col("id"))
    rows = spark.range(0, 30, 1, 3).select(key.alias("k"), F.lit(1).alias("n"))
    with pytest.raises(NullKeyError) as raised:
        snapshot(store, rows)
    assert raised.value.rows == 10
    assert files(tmp_path) == []


@pytest.mark.parametrize("other", [3, 4], ids=["out of order", "in another subtask"])
def test_if_spark_and_arrow_hash_differently_nothing_is_stored(
    spark: SparkSession,
    store: StateStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    other: int,
) -> None:
    right = key_group_column

    def wrong(*given: Any, **options: Any) -> Any:
        return right(*given, **options).bitwiseXOR(F.lit(other))

    monkeypatch.setattr(write, "key_group_column", wrong)
    rows = spark.range(100).select(F.col("id").alias("k"), F.lit(1).alias("n"))
    with pytest.raises(StateStoreError, match="Spark and Arrow compute different hashes"):
        snapshot(store, rows)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["a", None, "b", None], ["a", None, "b", None]),
        (["a", None, "long", "b", ""], [0, None, None, 0, 0]),
        (["long"] * 1000, [None] + [0] * 999),
        ([], []),
    ],
    ids=["null keys", "one without a hash", "all without a hash", "no rows"],
)
def test_where_arrow_hashes_a_refused_key_comes_first(keys: list[Any], expected: list[Any]) -> None:
    """Rows next to a null key keep their own key groups; next to a key without a hash, they do not.

    Spark sorts nulls first, so nobody sees the others.
    """
    state = replace(keyed_state(), key_types=("Character",), max_parallelism=1000)
    columns = table([(key, 0) for key in keys])
    rows = pa.RecordBatch.from_arrays(
        [column.combine_chunks() for column in columns.columns], columns.column_names
    )
    good = {
        key: key_groups([pa.array([key])], max_parallelism=1000, key_types=["Character"])[0]
        for key in "ab"
    }
    assert 0 not in good.values()
    found = write._arrow_key_groups(rows, state)
    assert found.to_pylist() == [good.get(key, key) for key in expected]


def test_a_key_without_a_hash_is_refused_with_the_name_of_the_state() -> None:
    state = replace(keyed_state(), key_types=("Character",))
    with pytest.raises(InvalidArgumentError, match=r"^state 's' of operator 'u': 'long' is not a"):
        [*write.keyed_batches(table([("a", 0), ("long", 0)]).to_batches(), state)]


@pytest.fixture
def no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any) -> None:
        raise AssertionError("a task of Python is started")

    monkeypatch.setattr(write, "map_in_arrow", started)


@pytest.fixture
def few(spark: SparkSession) -> Iterator[DataFrame]:
    """Some rows in Spark's cache."""
    rows = spark.range(0, 40, 1, 3).select(F.col("id").alias("k"), F.lit(1).alias("n")).persist()
    rows.count()
    yield rows
    rows.unpersist()


@pytest.mark.usefixtures("no_tasks")
def test_few_cached_rows_are_written_by_the_driver(
    few: DataFrame, store: StateStore, tmp_path: Path
) -> None:
    """Their number is known, so ``auto`` writes one file from the first checkpoint on."""
    snapshot(store, few, layout="auto")
    assert len(files(tmp_path)) == 1
    assert stored(store) == dict.fromkeys(range(40), 1)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes(
            "counts", "n", few.where("k < 3").withColumn("n", F.lit(2)), key="k"
        )
    assert stored(store) == dict.fromkeys(range(3), 2) | dict.fromkeys(range(3, 40), 1)


def test_the_driver_and_tasks_store_the_same_rows(few: DataFrame, store: StateStore) -> None:
    snapshot(store, few, layout="ranged")
    snapshot(store, few.unpersist(blocking=True), layout="ranged")
    first, second = (
        store.checkpoint(checkpoint).manifest.keyed_entry("counts", "n") for checkpoint in (1, 2)
    )
    assert first.state == second.state
    assert (first.rows, first.digest) == (second.rows, second.digest)


@pytest.mark.usefixtures("no_tasks")
@pytest.mark.parametrize("options", [{"layout": "partitioned"}, {"co_located": True}])
def test_many_files_and_co_located_rows_are_written_by_tasks(
    few: DataFrame, store: StateStore, options: dict[str, Any]
) -> None:
    with pytest.raises(AssertionError, match="a task of Python is started"):
        snapshot(store, few, **{"layout": "ranged", **options})


@pytest.mark.usefixtures("no_tasks")
def test_the_driver_refuses_the_same_rows_as_a_task(
    few: DataFrame, store: StateStore, tmp_path: Path
) -> None:
    odd = few.select(F.when(F.col("k") % 2 > 0, F.col("k")).alias("k"), "n")
    with pytest.raises(NullKeyError) as raised:
        snapshot(store, odd, layout="ranged")
    assert raised.value.rows == 20
    with pytest.raises(DuplicateKeyError):
        snapshot(store, few.select("n", F.lit(1).alias("k")), layout="ranged")
    with pytest.raises(InvalidArgumentError, match="has key_group 7"):
        snapshot(store, few.withColumn("key_group", F.lit(7)), layout="ranged")
    text = few.select(F.col("k").cast("string").alias("k"), "n")
    with pytest.raises(InvalidArgumentError, match=r"n.*: .* is not a Character: .* code unit$"):
        snapshot(store, text, layout="ranged", key_types={"k": "Character"})
    failing = F.when(F.col("k") > 5, F.raise_error(F.lit("no luck"))).otherwise(F.col("k"))
    with pytest.raises(PySparkException, match="no luck"):
        snapshot(store, few.select(failing.alias("k"), "n"), layout="ranged")
    assert files(tmp_path) == []


def test_columns_can_have_any_names(spark: SparkSession, store: StateStore) -> None:
    names = ["k", "c0", "a.b", "k_", "`"]
    rows = spark.range(20).select(*(F.col("id").alias(name) for name in names))
    snapshot(store, rows)
    stored = store.restore(parallelism=3).keyed("counts", "n").to_spark()
    found = [row.asDict() for row in stored.drop("key_group").sort("k").collect()]
    assert found == [dict.fromkeys(names, number) for number in range(20)]


Parts = list[list[tuple[int, int]]]


def parts_of(store: StateStore) -> Parts:
    """Return the stored rows of both subtasks, as restored at parallelism 2."""
    keyed = store.restore(parallelism=2).keyed("counts", "n")
    tables = (keyed.to_arrow(subtask) for subtask in range(2))
    return [[(row["k"], row["n"] + 1) for row in table.to_pylist()] for table in tables]


WRONG: dict[str, Callable[[list[tuple[int, int]], list[tuple[int, int]]], Parts]] = {
    "one row is elsewhere": lambda a, b: [a[1:], [*b, a[0]]],
    "one row is elsewhere, out of order": lambda a, b: [a[:0:-1], [a[0], *b[::-1]]],
    "one row is in both": lambda a, b: [a, [*b, a[-1]]],
    "the other way round": lambda a, b: [b, a],
    "all in one": lambda a, b: [[*a, *b]],
    "behind an empty one": lambda a, b: [[], a, b],
    "in a third one": lambda a, b: [a, b[:-1], b[-1:]],
}
RIGHT: dict[str, Callable[[list[tuple[int, int]], list[tuple[int, int]]], Parts]] = {
    "in order": lambda a, b: [a, b],
    "out of order": lambda a, b: [a[::-1], b[::-1]],
    "before empty ones": lambda a, b: [a, b, [], []],
}


@pytest.mark.long_cases("two of each")
@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (("one row is elsewhere", "in a third one"), ("out of order", "before empty ones")),
        pytest.param(tuple(WRONG), tuple(RIGHT), marks=pytest.mark.long),
    ],
    ids=["two of each", "all"],
)
def test_co_located_rows_are_verified(
    spark: SparkSession,
    store: StateStore,
    tmp_path: Path,
    wrong: tuple[str, ...],
    right: tuple[str, ...],
) -> None:
    """I7: rows in the wrong place are refused and nothing is stored; others are stored exactly."""
    snapshot(store, spark.range(40).select(F.col("id").alias("k"), F.lit(1).alias("n")))
    first, second = parts_of(store)
    before, layouts = files(tmp_path), cycle(("partitioned", "ranged"))

    def lying(parts: Parts) -> DataFrame:
        rows = spark.sparkContext.parallelize(parts, len(parts)).flatMap(lambda part: part)
        return spark.createDataFrame(rows, "k long, n long")

    for name in wrong:
        with pytest.raises(InvalidArgumentError, match="was declared co-located"):
            snapshot(
                store, lying(WRONG[name](first, second)), layout=next(layouts), co_located=True
            )
        assert (files(tmp_path), store.checkpoints()) == (before, (1,)), name
    with pytest.raises(DuplicateKeyError):
        snapshot(store, lying([[*first, first[0]], second]), layout="ranged", co_located=True)
    assert (files(tmp_path), store.checkpoints()) == (before, (1,))
    for name in right:
        snapshot(store, lying(RIGHT[name](first, second)), layout=next(layouts), co_located=True)
        assert stored(store) == dict.fromkeys(range(40), 2), name
        assert store.maintenance.verify(deep=True).is_intact
    everything = pa.table({"k": [k for k, _ in [*second, *first]], "n": [3] * 40})
    with store.snapshot(parallelism=2) as checkpoint:  # an Arrow table is split into subtasks
        checkpoint.write_keyed("counts", "n", everything, key="k", co_located=True)
    assert stored(store) == dict.fromkeys(range(40), 3)
    assert store.maintenance.verify(deep=True).is_intact
