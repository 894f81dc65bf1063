"""A salvaged checkpoint of Delta tables: their logs name its files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from statestore.store import StateStore

pytestmark = pytest.mark.slow


def test_delta_tables_get_the_salvaged_files(spark: SparkSession, tmp_path: Path) -> None:
    """I5: their newest version is what the new manifest says; of a intact state it stays whole."""
    store = StateStore.open(str(tmp_path / "store"), layout="partitioned")
    for factor in (1, 2):
        rows = pa.table({"key": range(40), "n": [n * factor for n in range(40)]})
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
    read = spark.read.format("delta").load(f"{store.url}/operators/job/keyed/totals")
    found = {row["key"]: (row["key_group"], row["n"]) for row in read.collect()}
    group = lost.key_groups.first
    assert found == {k: (g, k if g == group else 2 * k) for k, (g, _) in found.items()}
    assert len(found) == 40
    assert store.maintenance.verify(3, deep=True).broken == ()
