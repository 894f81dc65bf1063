"""Unusual names and types of Spark columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import SchemaMismatchError
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.state_spec import Changes
from statestore.spark import state_lookup as read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ["k.x", "a`b", "s.t"]


def test_a_column_can_have_a_dot_in_its_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not select a field of a struct; it is written, changed, read and looked up."""
    store = StateStore.open(str(tmp_path / "s"), spark=spark, table_format="parquet")
    rows = spark.createDataFrame(
        [("x", 1, (1,)), ("y", 2, (2,))], "k string, n long, s struct<t:int>"
    )
    rows = rows.toDF(*NAMES)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "n", rows, key="k.x")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes(
            "u", "n", Changes(deletes=spark.createDataFrame([("y",)], "`k.x` string")), key="k.x"
        )
    found = store.restore(parallelism=2).keyed("u", "n")
    wanted: list[Any] = [("x", 1, (1,))]
    assert [tuple(row)[1:] for row in found.to_spark().collect()] == wanted
    keys = pa.table({"k.x": ["x", "y"]})
    for most in (read._FEW_KEYS_BYTES, 0):  # by the driver, and in tasks
        monkeypatch.setattr(read, "_FEW_KEYS_BYTES", most)
        assert [tuple(row)[1:] for row in found.lookup_in_spark(keys).collect()] == wanted
        some = found.lookup_in_spark(keys, ["s.t", "k.x"])
        assert [tuple(row) for row in some.collect()] == [((1,), "x")]
    assert found.get("x") == [dict(zip(NAMES, ("x", 1, {"t": 1}), strict=True))]


@pytest.mark.parametrize("most_bytes", [1, 2**20])
def test_a_delete_of_a_narrower_type_is_refused(
    spark: SparkSession, tmp_path: Path, most_bytes: int
) -> None:
    """The type decides, for few rows and many: Spark's cast would produce other keys."""
    parquet = ParquetOptions(driver_bytes=most_bytes)
    store = StateStore.open(
        str(tmp_path / "s"), spark=spark, table_format="parquet", parquet=parquet
    )
    with store.snapshot(parallelism=1) as checkpoint:
        rows = spark.sql("SELECT DATE'2026-01-31' AS k, 1L AS v")
        checkpoint.write_keyed("u", "n", rows, key="k")
    gone = spark.sql("SELECT TIMESTAMP_NTZ'2026-01-31 12:00:00' AS k")
    with (
        pytest.raises(
            SchemaMismatchError, match=r"'k' of changes .* timestamp_ntz but is stored as date"
        ),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        checkpoint.write_changes("u", "n", Changes(deletes=gone), key="k")
    assert store.checkpoints() == (1,)
