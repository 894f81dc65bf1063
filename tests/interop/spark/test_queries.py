"""The queries say the same however often they are stopped, on each provider."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.interop.spark.queries import NO_DATA_BATCHES, QUERIES, events, run

ALL = [(name, provider) for name, query in QUERIES.items() for provider in query.providers]


@pytest.mark.parametrize(("name", "provider"), ALL)
def test_a_restart_changes_nothing(
    spark: SparkSession, tmp_path: Path, name: str, provider: str
) -> None:
    """Three files, and two more after a restart, against all five at once.

    Without data there is no micro-batch here: the first start would end with one, which tells the
    next one of its watermark, so that other events are late.
    """
    query, source = QUERIES[name], tmp_path / "in"

    def start(location: str) -> dict[int, list[str]]:
        return run(
            spark,
            query,
            source=source,
            location=str(tmp_path / location),
            provider=provider,
            partitions=4,
            conf={NO_DATA_BATCHES: "false"},
        )

    events(source, 0, 3)
    first = start("twice")
    events(source, 3, 5)
    second = start("twice")
    assert (list(first), list(second)) == ([0, 1, 2], [3, 4])
    assert first | second == start("once")
    assert any(second.values())
