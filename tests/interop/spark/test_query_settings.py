"""Settings that a query's plan lacks, and queries whose rows are not where their keys imply."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.errors import DuplicateKeyError
from statestore.interop.spark import export_checkpoint, import_checkpoint
from statestore.interop.spark.query_settings import OLDEST, STRICT
from tests.interop.spark.queries import Query, copy_location, events, run

DEFAULTS = "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata$"
PARTITIONS = 3


def repartitioned(rows: DataFrame) -> DataFrame:
    """Spark 3.2 and before used the partitions of ``k`` also for the keys ``k, small``."""
    return rows.repartition("k").groupBy("k", "small").agg(F.count("*"), F.sum("v"))


QUERY = Query("repartitioned", "update", repartitioned)


def test_a_missing_setting_has_the_value_that_spark_uses(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    owner = jvm.java.lang.Class.forName(DEFAULTS)
    field = owner.getDeclaredField("relevantSQLConfDefaultValues")
    field.setAccessible(True)
    defaults = field.get(owner.getField("MODULE$").get(None))
    assert {name: defaults.apply(name) for name in OLDEST} == OLDEST


@pytest.fixture(scope="module")
def started(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A query after two micro-batches that was started as Spark 3.2 did, and its events."""
    folder = tmp_path_factory.mktemp("started")
    events(folder / "events", 0, 2)
    resume(spark, folder, folder / "before", {STRICT: "false"})
    return folder


def resume(
    spark: SparkSession, folder: Path, location: Path, conf: dict[str, str] | None = None
) -> dict[int, list[str]]:
    return run(
        spark,
        QUERY,
        source=folder / "events",
        location=str(location),
        provider="hdfs",
        partitions=PARTITIONS,
        conf=conf,
    )


def misplaced(spark: SparkSession, location: Path) -> int:
    """Return the number of rows outside the partition that the hash of their key implies."""
    assert spark.streams is not None  # reading requires the coordinator of state stores
    rows = spark.read.format("statestore").load(str(location))
    owner = F.pmod(F.hash("key.k", "key.small"), F.lit(PARTITIONS))
    return rows.where(F.col("partition_id") != owner).count()


@pytest.mark.long
def test_a_query_with_rows_in_other_partitions_continues(
    spark: SparkSession, tmp_path: Path, started: Path
) -> None:
    assert misplaced(spark, started / "before") > 0
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    import_checkpoint(spark, str(started / "before"), store)
    export_checkpoint(store, str(tmp_path / "moved"), partitions=PARTITIONS)
    assert misplaced(spark, tmp_path / "moved") == 0
    copy_location(started / "before", tmp_path / "plain")
    events(started / "events", 2, 3)
    moved = resume(spark, started, tmp_path / "moved")
    assert moved == resume(spark, started, tmp_path / "plain")
    assert moved[2]


def test_a_key_in_two_partitions_is_refused(
    spark: SparkSession, tmp_path: Path, started: Path
) -> None:
    """Which of its rows is right cannot be known."""
    copy_location(started / "before", tmp_path / "location")
    for file in (tmp_path / "location" / "state" / "0" / "0").glob("*.delta"):
        shutil.copy(file, tmp_path / "location" / "state" / "0" / "1" / file.name)
        crc = f".{file.name}.crc"
        shutil.copy(file.with_name(crc), tmp_path / "location" / "state" / "0" / "1" / crc)
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    with pytest.raises(DuplicateKeyError, match=r"stateStoreSave-0"):
        import_checkpoint(spark, str(tmp_path / "location"), store)
    assert store.checkpoints() == ()
