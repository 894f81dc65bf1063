"""A query reads only the parts of the files that it needs."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.parquet.writer import ParquetOptions
from statestore.testing.faults import CountingStorage


@pytest.mark.parametrize("streams", [1, 4])
def test_other_columns_and_row_groups_are_not_read(tmp_path: Path, streams: int) -> None:
    storage = CountingStorage(str(tmp_path), streams)
    store = StateStore.open(
        storage, table_format="parquet", parquet=ParquetOptions(row_group_rows=64)
    )
    random = Random(1)
    rows = pa.table({"k": range(640), "text": [random.randbytes(99).hex() for _ in range(640)]})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=1, layout="ranged")
    [handle] = store.checkpoint().manifest.keyed[0].handles

    def read(sql: str) -> int:
        """Return how many bytes of the data file were read."""
        storage.ranges.clear()
        store.query(sql).read_all()
        return sum(stop - start for name, start, stop in storage.ranges if name.endswith("parquet"))

    assert read("SELECT * FROM s") == handle.size_bytes
    assert read("SELECT k FROM s") < handle.size_bytes / 2
    assert read("SELECT * FROM s WHERE k = 7") < handle.size_bytes / 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("true", pa.bool_()),
        ("1::FLOAT", pa.float32()),
        ("1::DOUBLE", pa.float64()),
        ("1::DECIMAL(9, 2)", pa.decimal128(9, 2)),
        ("'a'", pa.string()),
        ("'a'::BLOB", pa.binary()),
        ("1::TINYINT", pa.int8()),
        ("1::UBIGINT", pa.uint64()),
        ("DATE '2026-01-01'", pa.date32()),
        ("TIME '01:02:03'", pa.time64("us")),
        ("TIMESTAMP '2026-01-01 00:00:00'", pa.timestamp("us")),
        ("INTERVAL 3 MONTHS", pa.string()),
        ("[true]", pa.list_(pa.bool_())),
    ],
)
def test_only_types_that_arrow_lacks_become_text(
    tmp_path: Path, value: str, expected: pa.DataType
) -> None:
    store = StateStore.open(str(tmp_path), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_broadcast("u", "s", [{"a": 1}])
    assert store.query(f"SELECT {value} AS x FROM s").schema.field("x").type == expected
