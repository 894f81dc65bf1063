"""A salvaged checkpoint of Delta tables: with Spark the log names its files, without it is left."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from statestore.store import StateStore


def test_delta_tables_get_the_salvaged_files(spark: SparkSession, tmp_path: Path) -> None:
    """I5: their newest version is what the new manifest says; of a intact state it stays whole."""
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    for factor in (1, 2):
        rows = spark.range(40).selectExpr("id AS key", f"id * {factor} AS n")
        with store.snapshot(parallelism=1) as checkpoint:
            for name in ("totals", "others"):
                checkpoint.keyed("job", name, rows, key="key", max_parallelism=4)
    entry = store.manifest(2).keyed_entry("job", "totals")
    lost = entry.handles[1]
    Path(store.url, entry.table.path, lost.path).unlink()

    report = store.maintenance.salvage(2, from_older=True)
    assert report.new_checkpoint_id == 3
    for name in ("totals", "others"):
        new = store.manifest(3).keyed_entry("job", name)
        table = DeltaTable(Path(store.url, new.table.path), version=new.table.version)
        assert {Path(uri).name for uri in table.file_uris()} == {
            Path(handle.path).name for handle in new.handles
        }
    frame = store.restore(checkpoint=3, parallelism=2).keyed("job", "totals").to_spark()
    found = {row["key"]: (row["key_group"], row["n"]) for row in frame.collect()}
    group = lost.key_groups.first
    assert found == {k: (g, k if g == group else 2 * k) for k, (g, _) in found.items()}
    assert len(found) == 40

    alone = StateStore.open(store.url)  # without Spark
    assert alone.maintenance.salvage(2).new_checkpoint_id == 4
    assert alone.manifest(4).keyed_entry("job", "totals").table.version is None
    assert alone.maintenance.verify(4, deep=True).broken == ()
    assert not alone.inspect.diff(3, 4, name="others").differs
