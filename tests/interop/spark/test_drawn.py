"""Drawn queries: after a move they emit the same rows and have the same state as without it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.interop.spark.export_state import export_checkpoint
from statestore.interop.spark.import_state import import_checkpoint
from statestore.interop.spark.query_settings import SparkTarget
from tests.interop.spark.drawn import FEATURES, Move, moves, write_batches
from tests.interop.spark.drawn_queries import FAMILIES, Family
from tests.interop.spark.queries import copy_location, run, state_rows
from tests.interop.spark.queries import settings as session_settings

FEW, EACH = 3, 12
MANY = EACH * len(FAMILIES)
"""The draws in ``make nightly``."""
# The session is the same for all examples.
SHARED = settings(
    deadline=None, print_blob=True, suppress_health_check=[*HealthCheck], database=None
)


class Draws:
    """A session, and how often each feature was drawn."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark, self.count, self.features = spark, 0, Counter[str]()

    def add(self, move: Move) -> None:
        """Count a move that passed."""
        self.count += 1
        self.features.update(set(move.features()))


@pytest.fixture(scope="module")
def drawn(spark: SparkSession) -> Iterator[Draws]:
    """Count the draws of this module, and check that a whole run drew each feature."""
    draws = Draws(spark)
    yield draws
    assert draws.features.keys() <= FEATURES
    if draws.count >= MANY:
        assert not FEATURES - draws.features.keys(), draws.features


@pytest.mark.long
@given(move=moves())
@settings(SHARED, max_examples=FEW)
def test_a_drawn_query_continues(drawn: Draws, move: Move) -> None:
    check(drawn, move)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(SHARED, max_examples=EACH)
def test_many_drawn_queries_continue(drawn: Draws, family: Family, data: st.DataObject) -> None:
    check(drawn, data.draw(moves(family)))


def check(drawn: Draws, move: Move) -> None:
    """Run a query, move it, and compare how it and an unmoved copy continue."""
    folder = Path(mkdtemp(prefix="drawn-"))
    try:
        _check(drawn.spark, move, folder)
    finally:
        shutil.rmtree(folder)
    drawn.add(move)


def _check(spark: SparkSession, move: Move, folder: Path) -> None:
    query, source, conf = move.query.query(), folder / "events", dict(move.conf)

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
    if move.query.is_in_processing_time:
        # The expiration times of later events differ between two runs.
        assert state_rows(spark, folder / "moved") == state_rows(spark, folder / "plain")
    write_batches(source, len(move.before), move.after)
    assert continued("moved", after) == continued("plain", before)
    if not move.query.is_in_processing_time:
        assert state_rows(spark, folder / "moved") == state_rows(spark, folder / "plain")
