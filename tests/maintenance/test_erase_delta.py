"""After a purge no Delta log names a deleted file, even for a state with layers of changes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from statestore import OperatorKey
from statestore.store import StateStore
from tests.support.forms import break_file

pytestmark = pytest.mark.slow


def test_the_log_of_a_layered_state_is_deleted_and_restarted(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = StateStore.open(str(tmp_path / "store"), spark=spark, compaction=None)
    options: dict[str, Any] = {"key": "key", "layout": "ranged", "max_parallelism": 4}
    with store.snapshot(parallelism=1) as checkpoint:
        rows = pa.table({"key": range(40), "n": range(40)})
        checkpoint.write_keyed("job", "totals", rows, **options)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes(
            "job", "totals", [{"key": key, "n": -1} for key in (3, 50)], **options
        )
    log = Path(
        store.url,
        store.checkpoint(1).manifest.keyed_entry("job", "totals").table.path,
        "_delta_log",
    )
    assert [*log.iterdir()]

    done = store.maintenance.forget(OperatorKey("job", 3), search=False)
    assert [one.states[0].rows for one in done.replaced] == [1, 2]
    assert store.maintenance.gc(minimum_age="0").removed.files
    entry = store.checkpoint().manifest.keyed_entry("job", "totals")
    assert (len(entry.layers), entry.table.version) == (1, None)
    assert not [file for file in log.rglob("*") if file.is_file()]
    assert store.maintenance.find_subject(OperatorKey("job", 3, "totals")).found == ()
    rows = store.restore(parallelism=1).keyed("job", "totals").to_arrow(0)
    left = {key: key for key in range(40) if key != 3} | {50: -1}
    assert {row["key"]: row["n"] for row in rows.to_pylist()} == left

    break_file(store, f"{entry.layers[0].entry.table.path}/{entry.layers[0].entry.handles[0].path}")
    store.maintenance.salvage(
        "latest", from_older=True
    )  # its state has no layers, so it has a log again
    new = store.checkpoint().manifest.keyed_entry("job", "totals")
    table = DeltaTable(Path(store.url, new.table.path), version=new.table.version)
    assert {Path(uri).name for uri in table.file_uris()} == {
        Path(handle.path).name for handle in new.handles
    }


@pytest.mark.long
def test_spark_reads_a_log_without_its_old_entries(spark: SparkSession, tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    for keys in ([7, 8], [8], [8, 9]):
        with store.snapshot(parallelism=1) as checkpoint:
            rows = pa.table({"k": keys, "v": keys})
            checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=1)
    folder = f"{store.url}/operators/u/keyed/s"
    reader = spark.read.format("delta")
    assert len(reader.load(folder).collect()) == 2  # Spark caches the table at this version
    store.maintenance.expire(retain=1)
    assert store.maintenance.forget(OperatorKey("u", 7), search=False).cut_logs == (
        "operators/u/keyed/s",
    )
    store.maintenance.gc(minimum_age="0")
    assert store.maintenance.find_subject(OperatorKey("u", 7)).is_gone
    for state in (reader.load(folder), reader.option("versionAsOf", 2).load(folder)):
        assert sorted(row.k for row in state.collect()) == [8, 9]
    spark.catalog.clearCache()
    with store.snapshot(parallelism=1) as checkpoint:
        rows = pa.table({"k": [9], "v": [1]})
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=1)
    assert [row.k for row in spark.read.format("delta").load(folder).collect()] == [9]
    spark.sql(f"VACUUM delta.`{folder}` DRY RUN").collect()


INSTANT = dt.datetime(2025, 1, 1, 12, 0, 0, 123456, dt.UTC)


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(["a" * 40, "b" * 40]),
        pa.array([INSTANT, INSTANT + dt.timedelta(microseconds=5000)], pa.timestamp("us", "UTC")),
        pa.array([Decimal("2.50"), Decimal("7.00")], pa.decimal128(10, 2)),
        pa.array([dt.date(2025, 1, 1), dt.date(2025, 1, 2)]),
        pa.array([1, 2]),
    ],
    ids=lambda keys: str(keys.type),
)
def test_a_key_is_found_in_the_bounds_of_a_log(tmp_path: Path, keys: pa.Array) -> None:
    """This includes bounds that differ from the key: truncated text, incremented text, and rounded
    times.
    """
    store = StateStore.open(str(tmp_path / "store"))
    with store.snapshot(parallelism=1) as checkpoint:
        rows = pa.table({"k": keys, "v": [1, 2]})
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=1)
    for key in keys.to_pylist():
        found = store.maintenance.find_subject(OperatorKey("u", key)).found
        assert "statistics of a Delta log" in {one.what for one in found}
