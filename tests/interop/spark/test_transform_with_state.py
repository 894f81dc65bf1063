"""States of a transformWithState: imported, looked at, and exported at other parallelisms."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.interop.spark.export_state import export_checkpoint
from statestore.interop.spark.import_state import ImportedCheckpoint, import_checkpoint
from tests.interop.spark.queries import QUERIES, events, run, state_rows

UID = "transformWithStateInPandasExec-0"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
STATES = {
    "tws_value": ["default", "timers", "last", "totals"],
    "tws_list": ["default", "timers", "last", "seen"],
    "tws_map": ["default", "timers", "byId", "last"],
    "tws_avro": ["default", "timers", "byId", "last"],
    "tws_ttl": ["default", "timers", "byId", "n", "seen"],
}
FORMATS = {"tws_map": "2"}


class Moves:
    """A query that is moved from place to place, and one that is not; both read the same files."""

    def __init__(self, spark: SparkSession, folder: Path, name: str) -> None:
        self.spark, self.folder, self.query = spark, folder, QUERIES[name]
        self.conf = {FORMAT: FORMATS.get(name, "1")}
        self.source = folder / "events"
        self.store = StateStore.open(str(folder / "store"), spark=spark, layout="auto")

    def run(self, where: str) -> dict[int, list[str]]:
        return run(
            self.spark,
            self.query,
            source=self.source,
            location=str(self.folder / where),
            provider="rocksdb",
            partitions=4,
            conf=self.conf,
        )

    def take(self, where: str) -> ImportedCheckpoint:
        return import_checkpoint(self.spark, str(self.folder / where), self.store)

    def give(self, where: str, partitions: int) -> None:
        location = str(self.folder / where)
        export_checkpoint(self.spark, self.store, location, partitions=partitions)

    def rows(self, where: str) -> Mapping[str, list[str]]:
        return state_rows(self.spark, self.folder / where, partitions=False)


@pytest.mark.parametrize("name", STATES)
def test_a_query_goes_on_at_other_parallelisms(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    moves = Moves(spark, tmp_path, name)
    events(moves.source, 0, 2)
    moves.run("at-4")
    first = moves.take("at-4")
    moves.give("at-7", 7)
    assert [one.state for one in first.record.stores] == STATES[name]
    assert moves.rows("at-7") == moves.rows("at-4")

    events(moves.source, 2, 3)
    middle, plain = moves.run("at-7"), moves.run("at-4")
    second = moves.take("at-7")
    moves.give("at-3", 3)
    assert second.is_incremental

    events(moves.source, 3, 4)
    last = moves.run("at-3")
    plain |= moves.run("at-4")
    assert {**middle, **last} == plain
    assert all(map(any, (middle.values(), last.values())))
