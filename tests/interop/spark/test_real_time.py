"""Checkpoint locations of queries in real-time mode, which Spark 4.3 wrote.

``make test-spark SPARK=4.3.0`` with these tests also continues the queries. Spark before 4.3 does
not have this mode for queries with state.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.interop.spark import export_checkpoint, import_checkpoint
from statestore.spark.compat import INSTALLED
from tests.interop.spark.real_time import BEFORE, run_real_time

pytestmark = pytest.mark.spark

GOLDEN = Path(__file__).parents[2] / "golden" / "spark_real_time"
UIDS = {"aggregation": "StatefulStreamlineAggregate-0", "deduplication": "dedupe-0"}
ROWS = {
    "aggregation": [("a", 3), ("b", 1), ("c", 1)],
    "deduplication": [("a",), ("b",), ("c",)],
}
AFTER = ("a", "d", "c")
CONTINUED = {
    "aggregation": [("a", 4), ("b", 1), ("c", 2), ("d", 1)],
    "deduplication": [("a",), ("b",), ("c",), ("d",)],
}
FIRST_WITH_STATE = (4, 3)


def rows(store: StateStore, uid: str) -> list[tuple[object, ...]]:
    table = store.restore().keyed(uid, "default").to_arrow().drop_columns(["key_group"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.long
@pytest.mark.parametrize("name", ["aggregation", "deduplication"])
def test_a_query_in_real_time_mode_moves(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Spark's reader verifies the export. The rewriter does not know the aggregation by name."""
    location, uid = tmp_path / "before", UIDS[name]
    shutil.copytree(GOLDEN / name, location)
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    done = import_checkpoint(spark, str(location), store)
    assert [part.uid for part in done.record.stores] == [uid]
    assert rows(store, uid) == ROWS[name]
    export_checkpoint(store, str(tmp_path / "wide"), partitions=3)
    moved = str(tmp_path / "narrow")
    export_checkpoint(store, moved, partitions=1)
    description = Path(moved, "state", "0", "_metadata", "metadata").read_text()
    assert f'"operatorName":"{uid.removesuffix("-0")}"' in description
    if INSTALLED >= FIRST_WITH_STATE:
        run_real_time(spark, name, moved, (*BEFORE, *AFTER), partitions=1, batches=1)
        import_checkpoint(spark, moved, store)
        assert rows(store, uid) == CONTINUED[name]
