"""The checkpoint locations that Spark publishes of Spark 2.1 to 3.5, and queries that go on.

Spark's own tests continue the same locations. Each query here has the same state as the query of
the location: its keys, values and operator. Its input is another one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.errors import (
    DamagedFileError,
    FormatVersionError,
    InvalidArgumentError,
    MissingDependencyError,
    MissingFileError,
    StateStoreError,
    UnsupportedTypeError,
)
from statestore.interop.spark import export_checkpoint, import_checkpoint
from statestore.interop.spark.location import CheckpointLocation
from statestore.interop.spark.query_settings import SparkTarget
from statestore.spark.compat import INSTALLED
from statestore.storage import LocalStorage
from tests.interop.spark.memory_stream import MemoryStream
from tests.interop.spark.queries import PROVIDERS, settings, texts
from tests.servers.published import SPARK

ROCKSDB = ("spark.sql.streaming.stateStore.providerClass", PROVIDERS["rocksdb"])
FOLDER = "structured-streaming/checkpoint-version-"


def field(index: int) -> Column:
    """Return a field of the input as a number that is never null."""
    return F.coalesce(F.split("value", ",")[index].cast("int"), F.lit(0))


def text(index: int) -> Column:
    return F.split("value", ",")[index]


def counts(rows: DataFrame) -> DataFrame:
    pairs = rows.select(field(0).alias("key1"), field(1).alias("key2"))
    return pairs.repartition("key1").groupBy("key1", "key2").count()


def counts_of_one(rows: DataFrame) -> DataFrame:
    return rows.select(field(0).alias("value")).groupBy("value").count()


def distinct(rows: DataFrame) -> DataFrame:
    triples = rows.select(*(field(index).alias(f"f{index}") for index in range(3)))
    return triples.repartition("f0").dropDuplicates(["f0", "f1"])


def distinct_texts(rows: DataFrame) -> DataFrame:
    return rows.select(text(0).alias("_1"), field(1).alias("_2")).dropDuplicates(["_1"])


def sessions(rows: DataFrame) -> DataFrame:
    time = F.timestamp_seconds(field(2))
    events = rows.select(text(0).alias("sessionId"), text(1).alias("userId"), time.alias("t"))
    timed = events.withWatermark("t", "30 seconds").repartition("userId")
    return timed.groupBy(F.session_window("t", "10 seconds"), "sessionId", "userId").count()


def joined(kind: str) -> Callable[[DataFrame], DataFrame]:
    """Return the join of Spark's tests, of a kind that the state supports."""

    def build(rows: DataFrame) -> DataFrame:
        pairs = rows.select(field(0).alias("id"), F.timestamp_seconds(field(1)).alias("time"))
        left = pairs.select(F.col("id").alias("leftId"), F.col("time").alias("leftTime"))
        right = pairs.where("id % 2 = 0").selectExpr("id AS rightId", "time AS rightTime")
        in_time = (
            "leftId = rightId AND rightTime BETWEEN leftTime AND leftTime + INTERVAL '5' SECOND"
        )
        return left.withWatermark("leftTime", "5 seconds").join(
            right.withWatermark("rightTime", "5 seconds"), F.expr(in_time), kind
        )

    return build


@dataclass(frozen=True)
class Published:
    """A published location, a query that continues it, and texts for its next micro-batch."""

    folder: str
    operator: str
    rows: int
    added: int
    build: Callable[[DataFrame], DataFrame]
    mode: str
    texts: tuple[str, ...]
    is_named: bool = False
    conf: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> dict[int, str]:
        return {0: self.operator} if self.is_named else {}

    def resume(self, spark: SparkSession, location: Path) -> list[str]:
        """Run the query from a location; return the rows that it emits for the new texts."""
        source = MemoryStream(spark)
        for _ in range(self.added):
            source.add()
        source.add(*self.texts)
        emitted: list[str] = []

        def keep(batch: DataFrame, number: int) -> None:
            emitted.extend(texts(batch))

        query = self.build(source.rows()).writeStream.outputMode(self.mode).foreachBatch(keep)
        query = query.option("checkpointLocation", str(location)).trigger(availableNow=True)
        # ``repartition`` uses the session's number of partitions, and not that of the state.
        conf = {
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "5",
            **dict(self.conf),
        }
        with settings(spark, conf):
            started = query.start()
            try:
                assert started.awaitTermination(240)
            finally:
                started.stop()
        return sorted(emitted)


COUNTS = Published(
    "2.3.1-streaming-aggregate-state-format-1",
    "stateStoreSave",
    3,
    2,
    counts_of_one,
    "update",
    ("1", "2", "3", "4"),
    is_named=True,
)
OLD_JOIN = Published(
    "4.0.0-checkpoint-v2/rocksdb/join1",
    "symmetricHashJoin",
    18,
    3,
    joined("inner"),
    "append",
    ("1,13", "2,13", "4,14", "6,15"),
    conf=(("spark.sql.streaming.stateStore.checkpointFormatVersion", "2"), ROCKSDB),
)
AGGREGATION = Published(
    "3.2.0-streaming-aggregate-with-repartition",
    "stateStoreSave",
    2,
    2,
    counts,
    "update",
    ("0,0", "0,1", "1,0", "1,1", "2,2", "1,5"),
)
DEDUPLICATION = Published(
    "3.2.0-deduplication-with-repartition",
    "dedupe",
    4,
    2,
    distinct,
    "append",
    tuple(f"{first},{second},7" for first in range(4) for second in range(4)),
    is_named=True,
)
SESSIONS = Published(
    "3.2.0-session-window-with-repartition",
    "sessionWindowStateStoreSaveExec",
    8,
    2,
    sessions,
    "append",
    ("spark,key1,45", "hello,key2,150", "new,key3,151"),
)
JOIN = Published(
    "3.5.1-streaming-join",
    "symmetricHashJoin",
    8,
    1,
    joined("leftOuter"),
    "append",
    ("2,3", "4,5", "6,6", "7,60"),
)
OLD_DEDUPLICATION = Published(
    "3.3.0-streaming-deduplication",
    "dedupe",
    2,
    2,
    distinct_texts,
    "append",
    ("a,1", "b,2", "c,3", "d,4"),
    is_named=True,
)
NEW_DEDUPLICATION = Published(
    "3.5.1-streaming-deduplication",
    "dedupe",
    2,
    2,
    distinct_texts,
    "append",
    OLD_DEDUPLICATION.texts,
)


def unpack(folder: str, target: Path) -> Path:
    return SPARK.unpack(f"{FOLDER}{folder}", target)


# Each query with the provider after the move; the first two run each time.
WAYS = [
    (AGGREGATION, "hdfs"),
    (DEDUPLICATION, "hdfs"),
    (AGGREGATION, "rocksdb"),
    (DEDUPLICATION, "rocksdb"),
    (SESSIONS, "hdfs"),
    (SESSIONS, "rocksdb"),
    (JOIN, "hdfs"),
    (JOIN, "rocksdb"),
    (OLD_DEDUPLICATION, "hdfs"),
    (NEW_DEDUPLICATION, "rocksdb"),
    (OLD_JOIN, "rocksdb"),
]

REWRITTEN = [(SESSIONS, "rocksdb"), (OLD_JOIN, "rocksdb")]
"""What only Spark's own rewriter can write. Spark 4.0 and 4.1 export all other ways."""

FIRST_WITH_STATE_IDS, FIRST_WITH_REWRITER, FIRST_WITH_NAMED_OFFSETS = (4, 1), (4, 2), (4, 2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("published", "provider"),
    [pytest.param(*way, id=f"{way[0].folder}-{way[1]}") for way in WAYS],
)
def test_a_published_query_continues(
    spark: SparkSession, tmp_path: Path, published: Published, provider: Any
) -> None:
    location = unpack(published.folder, tmp_path)
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    if published is OLD_JOIN and INSTALLED < FIRST_WITH_STATE_IDS:
        with pytest.raises(MissingDependencyError, match="version 2 of the checkpoint format"):
            import_checkpoint(spark, str(location), store)
        return
    imported = import_checkpoint(spark, str(location), store, operator_names=published.names)
    (uid,) = {state.uid for state in imported.record.stores}
    assert uid == f"{published.operator}-0"
    assert sum(state.contents.rows for state in imported.record.stores) == published.rows
    if (published, provider) in REWRITTEN and INSTALLED < FIRST_WITH_REWRITER:
        with pytest.raises(MissingDependencyError, match=r"Spark 4\.2 or later is required"):
            export_checkpoint(
                store, str(tmp_path / "moved"), partitions=3, target=SparkTarget(provider=provider)
            )
        return
    export_checkpoint(
        store, str(tmp_path / "moved"), partitions=3, target=SparkTarget(provider=provider)
    )
    moved = published.resume(spark, tmp_path / "moved")
    assert moved == published.resume(spark, location)
    assert moved


def name_sources(plan: Path) -> None:
    """Turn a plan into one of version 2, in which the sources have numbers as names."""
    _, settings, *ends = plan.read_text().splitlines()
    named = [f"{number}:{end}" for number, end in enumerate(ends)]
    plan.write_text("\n".join(["v2", settings, *named]))
    plan.with_name(f".{plan.name}.crc").unlink(missing_ok=True)


def test_a_plan_of_version_2_needs_spark_4_2(spark: SparkSession, tmp_path: Path) -> None:
    location = unpack(NEW_DEDUPLICATION.folder, tmp_path)
    for plan in location.glob("offsets/[0-9]*"):
        name_sources(plan)
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    if INSTALLED < FIRST_WITH_NAMED_OFFSETS:
        with pytest.raises(MissingDependencyError, match="version 2 of the offset log"):
            import_checkpoint(spark, str(location), store)
        return
    (imported,) = import_checkpoint(spark, str(location), store).record.stores
    assert imported.contents.rows == NEW_DEDUPLICATION.rows


@pytest.mark.long
def test_spark_4_describes_a_location_of_spark_2(spark: SparkSession, tmp_path: Path) -> None:
    """The error gives this advice, and it works."""
    published = COUNTS
    location = unpack(published.folder, tmp_path)
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    with pytest.raises(FormatVersionError, match="run the query with Spark 4 and the copy"):
        import_checkpoint(spark, str(location), store)
    assert published.resume(spark, location)
    imported = import_checkpoint(spark, str(location), store)
    assert {state.uid for state in imported.record.stores} == {f"{published.operator}-0"}
    export_checkpoint(store, str(tmp_path / "moved"), partitions=3)
    again = replace(published, added=published.added + 1)
    moved = again.resume(spark, tmp_path / "moved")
    assert moved == again.resume(spark, location)
    assert moved


def operators_of(location: Path, names: Mapping[int, str] | None = None) -> list[str]:
    """Return the names of a location's operators at its newest micro-batch."""
    opened = CheckpointLocation(LocalStorage(str(location)), names or {})
    return [operator.name for operator in opened.operators(opened.batch())]


NAMES = {
    "3.2.0-session-window-with-repartition": "sessionWindowStateStoreSaveExec",
    "3.2.0-streaming-aggregate-with-repartition": "stateStoreSave",
    "3.5.1-streaming-deduplication": "dedupe",
    "3.5.1-streaming-join": "symmetricHashJoin",
    "4.0.1-dedup-spark-53942": "dedupe",
}
CHOICES = {
    "3.1.0-flatmapgroupswithstate-repartition": "flatMapGroupsWithState or applyInPandasWithState",
    "3.2.0-flatmapgroupswithstate1-repartition": "flatMapGroupsWithState or applyInPandasWithState",
    "3.2.0-flatmapgroupswithstate2-repartition": "flatMapGroupsWithState or applyInPandasWithState",
    "3.2.0-deduplication-with-repartition": "stateStoreSave or dedupe",
    "3.3.0-streaming-deduplication": "stateStoreSave or dedupe",
}
CONTINUE_A_COPY = "run the query with Spark 4 and the copy until it has completed a micro-batch"
NOT_READ = {
    "2.1.0": f"no commits: it was written by Spark 2.1 or before. .*{CONTINUE_A_COPY}",
    "2.3.1-flatMapGroupsWithState-state-format-1": f"before Spark 3.1. .*{CONTINUE_A_COPY}",
    "2.3.1-streaming-aggregate-state-format-1": f"before Spark 3.1. .*{CONTINUE_A_COPY}",
    "2.3.1-without-commit-log-metadata": f"before Spark 3.1. .*{CONTINUE_A_COPY}",
    "2.4.0-streaming-join": "join of Spark 2.4 or before .*Spark 4 cannot continue it",
    "2.4.5-for-compatibility-test-common-functions": f"before Spark 3.1. .*{CONTINUE_A_COPY}",
    "2.4.5-for-compatibility-test-deduplicate": f"before Spark 3.1. .*{CONTINUE_A_COPY}",
    "3.0.0-streaming-statestore-codec": f"before Spark 3.1. .*{CONTINUE_A_COPY}",
    "4.0.0-tws-avro": "preview of Spark 4.0",
    "4.0.0-tws-unsaferow": "preview of Spark 4.0",
}


@pytest.mark.parametrize("folder", NAMES)
def test_the_columns_tell_the_operator(tmp_path: Path, folder: str) -> None:
    assert operators_of(unpack(folder, tmp_path)) == [NAMES[folder]]


@pytest.mark.parametrize("folder", CHOICES)
def test_the_user_tells_the_operator(tmp_path: Path, folder: str) -> None:
    location = unpack(folder, tmp_path)
    last = CHOICES[folder].split()[-1]
    with pytest.raises(
        InvalidArgumentError, match=f"{CHOICES[folder]}: .*--operator-name 0={last}"
    ):
        operators_of(location)
    assert operators_of(location, {0: last}) == [last]


@pytest.mark.parametrize("folder", NOT_READ)
def test_a_location_that_no_reader_can_read(tmp_path: Path, folder: str) -> None:
    location = unpack(folder, tmp_path)
    for checksum in location.glob("offsets/.*.crc"):  # Spark's authors edited these files
        checksum.unlink()
    with pytest.raises(FormatVersionError, match=NOT_READ[folder]):
        operators_of(location)


@pytest.mark.parametrize(
    ("folder", "names", "error"),
    [
        ("3.5.1-streaming-join", {0: "dedupe"}, "cannot be dedupe: .*symmetricHashJoin"),
        ("3.5.1-streaming-join", {2: "dedupe"}, "has no operator 2; it has 0"),
        ("4.0.1-dedup-spark-53942", {0: "stateStoreSave"}, "is dedupe, .* not stateStoreSave"),
    ],
)
def test_a_wrong_name_of_an_operator(
    tmp_path: Path, folder: str, names: dict[int, str], error: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=error):
        operators_of(unpack(folder, tmp_path), names)


def lose_partition(location: Path) -> None:
    shutil.rmtree(location / "state" / "0" / "3")


def cut_schema(location: Path) -> None:
    schema = location / "state" / "0" / "0" / "_metadata" / "schema"
    schema.write_bytes(schema.read_bytes()[:-40])
    schema.with_name(".schema.crc").unlink(missing_ok=True)


def rename_store(location: Path) -> None:
    folder = location / "state" / "0" / "0" / "other"
    (folder / "_metadata").mkdir(parents=True)
    shutil.copy(location / "state" / "0" / "0" / "_metadata" / "schema", folder / "_metadata")


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lose_partition, MissingFileError, "operator 0 does not have the folders of all"),
        (cut_schema, DamagedFileError, "_metadata/schema is damaged: it is cut off"),
        (rename_store, UnsupportedTypeError, "stores are unknown: default, other"),
    ],
)
def test_a_damaged_location_of_spark_3(
    tmp_path: Path,
    damage: Callable[[Path], None],
    error: type[StateStoreError],
    message: str,
) -> None:
    location = unpack(AGGREGATION.folder, tmp_path)
    damage(location)
    with pytest.raises(error, match=message):
        operators_of(location)
