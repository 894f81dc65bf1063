"""Sinks that rely on micro-batch ids contain each row once, after an export and restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.interop.spark import export_checkpoint, import_checkpoint
from statestore.interop.spark.query_settings import SparkTarget
from statestore.interop.spark.state_files import Provider
from tests.interop.spark.queries import events, planned_only, settings, stream, texts

# State maintenance as often as possible, and as few kept micro-batches as possible.
EAGER = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.maintenanceInterval": "100ms",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def windowed(rows: DataFrame) -> DataFrame:
    by_window = rows.withWatermark("t", "10 minutes").groupBy(F.window("t", "5 minutes"), "k")
    return by_window.agg(F.sum("v").alias("total"))


def start(
    spark: SparkSession, source: Path, location: Path, sink: Path | None, form: str
) -> list[str]:
    """Run the query over new files. Without a sink, return the emitted rows."""
    emitted: list[str] = []
    with settings(spark, EAGER):
        query = windowed(stream(spark, source)).writeStream.outputMode("append")
        query = query.option("checkpointLocation", str(location)).trigger(availableNow=True)
        if sink is None:
            started = query.foreachBatch(lambda rows, _: emitted.extend(texts(rows))).start()
        else:
            started = query.format(form).start(str(sink))
        try:
            assert started.awaitTermination(300)
        finally:
            started.stop()
    return emitted


@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "provider", "steps"),
    [
        ("parquet", "hdfs", (4, 5, 6)),
        ("delta", "rocksdb", (4,)),
    ],
)
def test_sinks_have_each_row_once_over_an_export_and_restarts(
    spark: SparkSession, tmp_path: Path, form: str, provider: Provider, steps: tuple[int, ...]
) -> None:
    source, sink = tmp_path / "events", tmp_path / "sink"
    store = StateStore.open(str(tmp_path / "store"), spark=spark, layout="auto")
    events(source, 0, 3)
    start(spark, source, tmp_path / "first", sink, form)
    before, after = rows_of(spark, sink, form), list[str]()
    import_checkpoint(spark, str(tmp_path / "first"), store)
    export_checkpoint(
        store, str(tmp_path / "second"), partitions=3, target=SparkTarget(provider=provider)
    )
    for last in steps:
        events(source, last - 1, last)
        start(spark, source, tmp_path / "second", sink, form)
        after += start(spark, source, tmp_path / "first", None, "")
    assert rows_of(spark, sink, form) == sorted(before + after)
    assert before
    assert after


def rows_of(spark: SparkSession, sink: Path, form: str) -> list[str]:
    return texts(spark.read.format(form).load(str(sink)))


@pytest.mark.long
def test_a_sink_that_skips_a_planned_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    """It also skips the state, and Spark reports that in the next micro-batch, so no row is doubled
    or lost. After the old location has finished the micro-batch, a new export continues.
    """
    source, sink, first = (tmp_path / name for name in ("events", "sink", "first"))
    store = StateStore.open(str(tmp_path / "store"), spark=spark, layout="auto")
    events(source, 0, 2)
    start(spark, source, first, sink, "parquet")
    before, last = rows_of(spark, sink, "parquet"), planned_only(first)
    import_checkpoint(spark, str(first), store)
    export_checkpoint(store, str(tmp_path / "second"), partitions=3)
    events(source, 2, 3)
    with pytest.raises(StreamingQueryException, match=f"{last + 1}.delta does not exist"):
        start(spark, source, tmp_path / "second", sink, "parquet")
    assert rows_of(spark, sink, "parquet") == before
    (source / "00002.json").rename(tmp_path / "aside")
    start(spark, source, first, sink, "parquet")
    import_checkpoint(spark, str(first), store)
    export_checkpoint(store, str(tmp_path / "third"), partitions=3)
    (tmp_path / "aside").rename(source / "00002.json")
    start(spark, source, tmp_path / "third", sink, "parquet")
    after = start(spark, source, first, None, "")
    assert rows_of(spark, sink, "parquet") == sorted(before + after)
    assert after
