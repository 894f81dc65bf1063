"""The conformance suite for state tables. A backend's test inherits it and provides a ``store``.

::

    class TestMyTable(StateTableSuite):
        @pytest.fixture
        def store(self, tmp_path, spark):
            return StateStore.open(str(tmp_path / "store"), spark=spark, table_format="mine")
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from statestore import KeyGroupAssignment, StateStore, errors, key_group_of
from statestore.delta.state_table import open_table
from statestore.extras import needs_extra

with needs_extra("spark", "the suite of state tables"):
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

MAX_PARALLELISM = 32


class StateTableSuite:
    """The guarantees of a table of either format, tested through the public API."""

    @pytest.fixture
    def store(self) -> StateStore:
        """Return an empty store with a Spark session."""
        raise NotImplementedError("a test class that inherits this suite must provide a store")

    @pytest.fixture
    def users(self, spark: SparkSession) -> Any:
        """Return 500 users with a total, as a DataFrame in two Spark partitions."""
        user = F.format_string("user-%03d", F.col("id")).alias("user")
        return spark.range(0, 500, 1, 2).select(user, (F.col("id") * 10).alias("total"))

    def test_restore_conserves_rows_at_every_parallelism(
        self, store: StateStore, users: Any
    ) -> None:
        """I7: the subtasks together have each written row once, in Spark and in Arrow."""
        take(store, users)
        wanted = rows_of(users)
        for parallelism in (1, 3, 4, 32):
            restored = store.restore(parallelism=parallelism).keyed("totals", "total")
            assert spark_rows(restored.to_spark()) == wanted, parallelism
            assert arrow_rows(restored, parallelism) == wanted, parallelism

    def test_each_row_lies_in_the_subtask_that_owns_its_key_group(
        self, store: StateStore, users: Any
    ) -> None:
        """I1, I2: Spark partition i and Arrow subtask i have the rows that the formulas assign."""
        take(store, users)
        for parallelism in (3, 4, 32):
            owners = KeyGroupAssignment(max_parallelism=MAX_PARALLELISM, parallelism=parallelism)
            restored = store.restore(parallelism=parallelism).keyed("totals", "total")
            frame = restored.to_spark().withColumn("at", F.spark_partition_id())
            assert frame.rdd.getNumPartitions() == parallelism
            for row in frame.collect():
                key_group = key_group_of(row.user, max_parallelism=MAX_PARALLELISM)
                assert row.key_group == key_group
                assert row.at == owners.subtask_of(key_group)
            for subtask in range(parallelism):
                groups = restored.to_arrow(subtask).column("key_group").to_pylist()
                assert groups == sorted(groups)
                assert set(groups) <= set(owners.range_of(subtask))

    def test_a_restore_has_no_shuffle(self, store: StateStore, users: Any) -> None:
        """I8: the physical plan of a restored DataFrame has no exchange."""
        take(store, users)
        frame = store.restore(parallelism=7).keyed("totals", "total").to_spark()
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert "Exchange" not in plan

    def test_the_data_source_reads_the_same(
        self, store: StateStore, users: Any, spark: SparkSession
    ) -> None:
        """``spark.read.format("keyed_state")`` has the rows and Spark partitions of a restore."""
        take(store, users)
        source = spark.read.format("keyed_state").option("store", store.url)
        source = source.option("operator", "totals").option("state", "total")
        frame = source.option("parallelism", 7).load()
        wanted = store.restore(parallelism=7).keyed("totals", "total").to_spark()
        assert frame.schema == wanted.schema
        assert placed(frame) == placed(wanted)
        assert frame.rdd.getNumPartitions() == 7

    def test_every_kind_of_state_comes_back(self, store: StateStore, spark: SparkSession) -> None:
        """I7: value, list, map, reducing, aggregating and timers, with and without windows."""
        written = write_all_kinds(store, spark)
        restored = store.restore(parallelism=5)
        for name, frame in written.items():
            state = restored.keyed("all", name)
            assert spark_rows(state.to_spark()) == rows_of(frame), name
            assert arrow_rows(state, 5) == rows_of(frame), name

    def test_a_list_keeps_its_order(self, store: StateStore, spark: SparkSession) -> None:
        """Rows of one key are returned by position, regardless of the order of the written rows."""
        rows = [("a", 2, "third"), ("b", 0, "x"), ("a", 0, "first"), ("a", 1, "second")]
        frame = spark.createDataFrame(rows, "user string, position int, item string")
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed(
                "lists",
                "items",
                frame,
                kind="list",
                entry="position",
                key="user",
                max_parallelism=8,
            )
        stored = store.restore().keyed("lists", "items").get("a")
        assert [row["item"] for row in stored] == ["first", "second", "third"]

    def test_an_empty_frame_is_a_valid_empty_state(self, store: StateStore, users: Any) -> None:
        """A state without rows has a schema, and restores to no rows at any parallelism."""
        take(store, users.where("total < 0"))
        restored = store.restore(parallelism=3).keyed("totals", "total")
        assert restored.to_spark().count() == 0
        assert restored.to_spark().columns == ["key_group", "user", "total"]
        assert restored.to_arrow(2).num_rows == 0
        assert restored.get("user-001") == []

    def test_older_checkpoints_stay_readable(self, store: StateStore, users: Any) -> None:
        """I4: a new checkpoint does not change the previous ones."""
        take(store, users)
        take(store, users.withColumn("total", F.col("total") + 1).where("total > 100"))
        first = store.restore(checkpoint=1, parallelism=3).keyed("totals", "total")
        assert spark_rows(first.to_spark()) == rows_of(users)

    def test_publishing_again_changes_nothing(self, store: StateStore, users: Any) -> None:
        """A retried publish of the same checkpoint and files returns the version of the first."""
        take(store, users)
        entry = store.checkpoint().manifest.keyed[0]
        assert publish(store, entry, 1) == entry.table
        assert publish(store, entry, 1) == entry.table

    def test_files_that_arrow_wrote_are_published_alike(
        self, store: StateStore, users: Any
    ) -> None:
        """The interface accepts files of any writer: the same rows, written without Spark."""
        take(store, users.toArrow())
        assert arrow_rows(store.restore(parallelism=3).keyed("totals", "total"), 3) == rows_of(
            users
        )

    def test_digests_do_not_depend_on_the_writer(self, store: StateStore, users: Any) -> None:
        """I7: the digest does not depend on parallelism, engine or the order of rows."""
        take(store, users, parallelism=1)
        take(store, users.orderBy(F.col("total").desc()), parallelism=7)
        take(store, users.toArrow())
        digests = {store.checkpoint(i).manifest.keyed[0].digest for i in store.checkpoints()}
        assert len(digests) == 1

    def test_null_keys_are_refused_with_their_number(self, store: StateStore, users: Any) -> None:
        """A null key has no key group: nothing becomes visible, and no file is left."""
        holes = users.withColumn("user", F.when(F.col("total") % 100 != 0, F.col("user")))
        with pytest.raises(errors.NullKeyError, match="50 rows") as caught:
            take(store, holes)
        assert caught.value.rows == 50
        assert store.checkpoints() == ()

    def test_duplicates_are_refused_by_name(self, store: StateStore, users: Any) -> None:
        """Two rows with the same key in a value state are detected before anything is visible."""
        with pytest.raises(errors.DuplicateKeyError, match=r"state 'total'.*user-007"):
            take(store, users.union(users.where("user = 'user-007'")))
        assert store.checkpoints() == ()

    def test_a_failing_job_makes_nothing_visible(self, store: StateStore, users: Any) -> None:
        """I4: an exception in the block commits nothing, and the previous checkpoint stays."""
        take(store, users)
        with pytest.raises(ZeroDivisionError):
            take_and_fail(store, users.where("total > 5"))
        assert store.checkpoints() == (1,)
        assert spark_rows(store.restore().keyed("totals", "total").to_spark()) == rows_of(users)

    def test_operator_state_is_dealt_by_its_mode(self, store: StateStore) -> None:
        """I7: each split element goes to one subtask, union and broadcast elements go to all."""
        elements = [[{"n": 1}, {"n": 2}], [{"n": 3}, {"n": 4}]]
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_split("op", "split", elements)
            checkpoint.write_union("op", "union", elements)
            checkpoint.write_broadcast("op", "broadcast", [{"rule": "x"}])
        restored = store.restore(parallelism=3)
        dealt = [restored.operator_state("op", "split").subtask(i) for i in range(3)]
        assert dealt == [[{"n": 1}, {"n": 2}], [{"n": 3}], [{"n": 4}]]
        everything = [{"n": n} for n in (1, 2, 3, 4)]
        for subtask in range(3):
            assert restored.operator_state("op", "union").subtask(subtask) == everything
            assert restored.operator_state("op", "broadcast").subtask(subtask) == [{"rule": "x"}]


def take(store: StateStore, rows: Any, parallelism: int = 4) -> None:
    """Take a checkpoint with one value state."""
    with store.snapshot(parallelism=parallelism) as checkpoint:
        write(checkpoint, rows)


def take_and_fail(store: StateStore, rows: Any) -> None:
    """Write a state, then raise inside the block."""
    with store.snapshot(parallelism=4) as checkpoint:
        write(checkpoint, rows)
        raise ZeroDivisionError


def write(checkpoint: Any, rows: Any) -> None:
    """Write the value state that most tests use."""
    checkpoint.write_keyed("totals", "total", rows, key="user", max_parallelism=MAX_PARALLELISM)


def publish(store: StateStore, entry: Any, checkpoint_id: int) -> Any:
    """Publish an entry's files like the store's backend does."""
    return open_table(entry.table.format, store.parts.storage).publish(entry, checkpoint_id)


def write_all_kinds(store: StateStore, spark: SparkSession) -> dict[str, Any]:
    """Write one state of each kind; return their rows by state name."""
    people = [(f"p{i}", i) for i in range(40)]
    value = spark.createDataFrame(people, "person string, n long")
    items = [
        (f"p{i}", position, f"item {position}") for i in range(20) for position in range(i % 4)
    ]
    windows = [(f"p{i}", 60 * w, 60 * w + 60, i * w) for i in range(20) for w in range(3)]
    frames: dict[str, Any] = {
        "value": value,
        "reducing": value.withColumn("n", F.col("n") * 2),
        "aggregating": value.withColumn(
            "n", F.struct(F.col("n").alias("sum"), F.lit(1).alias("count"))
        ),
        "list": spark.createDataFrame(items, "person string, position int, item string"),
        "map": spark.createDataFrame(items, "person string, slot int, item string"),
        "windowed": spark.createDataFrame(windows, "person string, start long, end long, n long"),
        "timers": spark.createDataFrame(people, "person string, timestamp long"),
    }
    with store.snapshot(parallelism=3) as checkpoint:
        forms: dict[str, dict[str, Any]] = {
            "reducing": {"kind": "reducing"},
            "aggregating": {"kind": "aggregating"},
            "list": {"kind": "list", "entry": "position"},
            "map": {"kind": "map", "entry": "slot"},
            "windowed": {"namespace": ("start", "end")},
            "timers": {"kind": "timers", "entry": "timestamp", "time_domain": "event"},
        }
        for name, frame in frames.items():
            form = forms.get(name, {})
            checkpoint.write_keyed("all", name, frame, key="person", max_parallelism=16, **form)
    return frames


def rows_of(frame: Any) -> Counter[str]:
    """Return the rows of a DataFrame as a multiset."""
    return as_multiset(frame.toArrow().to_pylist())


def spark_rows(frame: Any) -> Counter[str]:
    """Return a restored DataFrame's rows as a multiset, without ``key_group``."""
    return rows_of(frame.drop("key_group"))


def arrow_rows(restored: Any, parallelism: int) -> Counter[str]:
    """Return the rows of all subtasks as a multiset, read without Spark."""
    tables: list[pa.Table] = [restored.to_arrow(i) for i in range(parallelism)]
    return as_multiset(pa.concat_tables(tables).drop_columns(["key_group"]).to_pylist())


def placed(frame: Any) -> Counter[str]:
    """Return the rows of a DataFrame with the Spark partition of each row."""
    return rows_of(frame.withColumn("at", F.spark_partition_id()))


def as_multiset(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    """Return rows as a multiset, independent of the order of columns."""
    return Counter(repr(sorted(row.items())) for row in rows)
