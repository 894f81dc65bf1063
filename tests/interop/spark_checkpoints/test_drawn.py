"""Drawn queries: after a move they emit the same rows and have the same state as without it."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.interop.spark_checkpoints.export_state import export_checkpoint
from statestore.interop.spark_checkpoints.import_state import import_checkpoint
from statestore.interop.spark_checkpoints.spark_target import SparkTarget
from tests.interop.spark_checkpoints.drawn import Move, moves, write_batches
from tests.interop.spark_checkpoints.queries import QUERIES, copy_location, run, state_rows
from tests.interop.spark_checkpoints.queries import settings as session_settings

FEW, MANY = 3, 200
# The session is the same for all examples.
SHARED = settings(
    deadline=None, print_blob=True, suppress_health_check=[*HealthCheck], database=None
)


@given(move=moves())
@settings(SHARED, max_examples=FEW)
def test_a_drawn_query_continues(spark: SparkSession, move: Move) -> None:
    check(spark, move)


@pytest.mark.long
@pytest.mark.timeout(7200)
@given(move=moves())
@settings(SHARED, max_examples=MANY)
def test_many_drawn_queries_continue(spark: SparkSession, move: Move) -> None:
    check(spark, move)


def check(spark: SparkSession, move: Move) -> None:
    """Run a query, move it, and compare how it and an unmoved copy continue."""
    folder = Path(mkdtemp(prefix="drawn-"))
    query, source, conf = QUERIES[move.query], folder / "events", dict(move.conf)

    def continued(location: str, provider: str) -> dict[int, list[str]]:
        return run(
            spark,
            query,
            source=source,
            location=str(folder / location),
            provider=provider,
            partitions=move.partitions[0],
            conf=conf,
        )

    before, after = move.providers
    try:
        write_batches(source, 0, move.before)
        continued("first", before)
        copy_location(folder / "first", folder / "plain")
        store = StateStore.open(str(folder / "store"), spark=spark, layout="auto")
        with session_settings(spark, {**query.conf, **conf}):
            import_checkpoint(spark, str(folder / "first"), store)
            export_checkpoint(
                store,
                str(folder / "moved"),
                partitions=move.partitions[1],
                target=SparkTarget(provider=after),
            )
        write_batches(source, len(move.before), move.after)
        assert continued("moved", after) == continued("plain", before)
        # The expiration times of a TTL in processing time differ between two runs.
        if move.query != "tws_ttl":
            assert state_rows(spark, folder / "moved") == state_rows(spark, folder / "plain")
    finally:
        shutil.rmtree(folder)
