"""Compare a checkpoint on S3 with one on disk, and salvage a damaged one on S3."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statestore import StateStore
from statestore.parquet.writer import ParquetOptions
from statestore.storage.s3 import S3Storage
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.services, pytest.mark.slow]


def take(store: StateStore, value: int) -> None:
    rows = pa.table({"user": [f"u{i}" for i in range(200)], "n": [value, *range(1, 200)]})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("users", "totals", rows, key="user", max_parallelism=8)


@pytest.mark.long_cases("ranged")
@pytest.mark.parametrize("layout", ["partitioned", "ranged"])
def test_disk_and_s3(s3: S3Server, url: str, tmp_path: Path, layout: str) -> None:
    disk = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    options = ParquetOptions(row_group_rows=32)
    bucket = StateStore.open(
        url, table_format="parquet", layout=layout, storage_options=s3.options, parquet=options
    )
    take(disk, 0)
    take(bucket, 0)
    same = disk.inspect.diff(1, bucket.checkpoint(1))
    assert (same.differs, same.b.read_bytes) == (False, 0)
    take(bucket, -1)
    (state,) = disk.inspect.diff(1, bucket.checkpoint(2)).states
    assert (state.added, state.removed, state.changed) == (0, 0, 1)

    entry = bucket.checkpoint(2).manifest.keyed[0]
    storage = S3Storage(url, s3.options)
    name = f"{entry.table.path}/{entry.handles[0].path}"
    raw = bytearray(storage.read(name))
    column = pq.ParquetFile(pa.BufferReader(bytes(raw))).metadata.row_group(0).column(0)
    raw[column.data_page_offset + column.total_compressed_size - 1] ^= 0xFF
    storage.delete(name)
    storage.put_if_absent(name, bytes(raw))
    report = bucket.maintenance.salvage(2, from_older=True)
    (salvaged,) = report.states
    assert salvaged.lost
    assert {part.filled_from for part in salvaged.lost} == {1}
    assert bucket.maintenance.verify(3, deep=True).broken == ()
    assert bucket.checkpoint(3).manifest.rows == 200
