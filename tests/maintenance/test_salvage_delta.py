"""A salvaged checkpoint with Delta tables: their logs name its files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from statestore.store import StateStore

pytestmark = pytest.mark.slow


def test_delta_tables_get_the_salvaged_files(spark: SparkSession, tmp_path: Path) -> None:
    """I5: their newest version equals the new manifest. The table of an intact state is
    unchanged.
    """
    store = StateStore.open(str(tmp_path / "store"), layout="partitioned")
    for factor in (1, 2):
        rows = pa.table({"key": range(40), "n": [n * factor for n in range(40)]})
        with store.snapshot(parallelism=1) as checkpoint:
            for name in ("totals", "others"):
                checkpoint.write_keyed("job", name, rows, key="key", max_parallelism=4)
    entry = store.checkpoint(2).manifest.keyed_entry("job", "totals")
    lost = entry.handles[1]
    Path(store.url, entry.table.path, lost.path).unlink()

    report = store.maintenance.salvage(2, from_older=True)
    assert report.new_checkpoint_id == 3
    for name in ("totals", "others"):
        new = store.checkpoint(3).manifest.keyed_entry("job", name)
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


def test_a_table_describes_the_missing_part_of_its_state(tmp_path: Path) -> None:
    """I16: this remains until the state is written in full, because a reader of the table sees no
    manifest.
    """
    store = StateStore.open(str(tmp_path / "store"), layout="partitioned")
    rows = pa.table({"key": range(40), "n": range(40)})
    with store.snapshot(parallelism=1) as checkpoint:
        for name in ("totals", "others"):
            checkpoint.write_keyed("job", name, rows, key="key", max_parallelism=4)
    entry = store.checkpoint().manifest.keyed_entry("job", "totals")
    Path(store.url, entry.table.path, entry.handles[1].path).unlink()

    def description(name: str) -> str:
        return DeltaTable(f"{store.url}/operators/job/keyed/{name}").metadata().description

    store.maintenance.salvage(1)
    (record,) = store.checkpoint().manifest.left_out
    lacking = f"The table is only part of the state. Left out: {record}."
    assert lacking in description("totals")
    assert "job/totals:1-1 (" in lacking
    assert "only part" not in description("others")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.carry_rest()
    assert lacking in description("totals")

    store.maintenance.copy("latest", StateStore.open(str(tmp_path / "copied")))
    copied = DeltaTable(str(tmp_path / "copied" / "operators/job/keyed/totals"))
    assert lacking in copied.metadata().description

    lost = store.checkpoint().manifest.keyed_entry("job", "totals").table
    Path(store.url, lost.path, f"_delta_log/{1:020}.json").unlink()
    store.maintenance.repair()
    assert lacking in description("totals")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("job", "totals", rows, key="key", max_parallelism=4)
        checkpoint.carry_rest()
    assert "only part" not in description("totals")
