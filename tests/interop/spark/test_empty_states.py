"""A state without rows has files in each partition, so that its query continues."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.interop.spark.export_state import export_checkpoint
from statestore.interop.spark.import_state import import_checkpoint
from statestore.interop.spark.query_settings import SparkTarget
from tests.interop.spark.queries import (
    QUERIES,
    SPAN,
    START,
    Query,
    copy_location,
    events,
    run,
    settings,
    state_rows,
)

QUIET = 2
"""The number of the first file with events that reach the state."""


def in_bytes(rows: DataFrame) -> DataFrame:
    """Count the events by a key that has no column type, so that the state has Spark's bytes."""
    return rows.groupBy(F.array("small").alias("key")).count()


@pytest.mark.long
@pytest.mark.parametrize(
    ("query", "conf"),
    [
        pytest.param(
            QUERIES["join"],
            {"spark.sql.streaming.join.stateFormatVersion": "3"},
            id="join in column families",
        ),
        pytest.param(Query("bytes", "update", in_bytes), {}, id="keys as bytes"),
        pytest.param(QUERIES["tws_listed"], {}, id="variables"),
    ],
)
def test_a_query_without_state_continues(
    spark: SparkSession, tmp_path: Path, query: Query, conf: dict[str, str]
) -> None:
    begin = F.lit((START + timedelta(seconds=QUIET * SPAN)).isoformat()).cast("timestamp")
    late = Query(
        query.name,
        query.mode,
        lambda rows: query.build(rows.where(F.col("t") >= begin)),
        query.providers,
        query.conf,
    )
    source = tmp_path / "events"

    def continued(location: str) -> dict[int, list[str]]:
        return run(
            spark,
            late,
            source=source,
            location=str(tmp_path / location),
            provider="rocksdb",
            partitions=2,
            conf=conf,
        )

    events(source, 0, QUIET)
    continued("first")
    copy_location(tmp_path / "first", tmp_path / "plain")
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    with settings(spark, {**query.conf, **conf}):
        import_checkpoint(spark, str(tmp_path / "first"), store)
        export_checkpoint(
            store, str(tmp_path / "moved"), partitions=3, target=SparkTarget(provider="rocksdb")
        )
    events(source, QUIET, QUIET + 1)
    emitted = continued("moved")
    assert any(emitted.values())
    assert emitted == continued("plain")
    assert state_rows(spark, tmp_path / "moved") == state_rows(spark, tmp_path / "plain")
