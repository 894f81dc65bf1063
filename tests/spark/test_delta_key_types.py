"""A Delta table supports every type that identifies rows: key, map key, namespace."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.format.state import Layout

pytestmark = pytest.mark.usefixtures("uncompiled")  # Spark only reads the tables

TYPES = {
    "boolean": pa.array([True, False]),
    "binary": pa.array([b"a", b""]),
    "fields": pa.array([{"a": True, "b": b"x"}, {"a": False, "b": b"y"}]),
    "deep": pa.array([{"a": {"c": True}, "b": 1}, {"a": {"c": False}, "b": 2}]),
    "text": pa.array(["a", "b"]),
    "double": pa.array([1.5, -0.0]),
    "decimal": pa.array([Decimal("1E-38"), Decimal("-1E-38")], pa.decimal128(38, 38)),
    "date": pa.array([0, 1], pa.date32()),
    "instant": pa.array([0, 1], pa.timestamp("us", "UTC")),
    "local": pa.array([0, 1], pa.timestamp("us")),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "layout",
    [Layout.RANGED.value, Layout.PARTITIONED.value],
)
def test_every_type_can_identify_rows(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    """Delta has no bounds for booleans and bytes, so no table property names such a column."""
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    rows = pa.table({"k": ["x", "y"], **TYPES, "v": [1, 2]})
    with store.snapshot(parallelism=1) as checkpoint:
        told: dict[str, Any] = {"max_parallelism": 2, "layout": layout}
        checkpoint.write_keyed("u", "namespace", rows, key="k", namespace=list(TYPES), **told)
        checkpoint.write_keyed("u", "entry", rows, key="k", kind="map", entry=list(TYPES), **told)
        checkpoint.write_keyed(
            "v", "keys", rows, key=["boolean", "binary"], hash_scheme="flink-sql", **told
        )
        checkpoint.write_keyed("w", "flags", rows, key="boolean", max_parallelism=2, layout=layout)
    for uid, name in (("u", "namespace"), ("u", "entry"), ("v", "keys"), ("w", "flags")):
        stored = spark.read.format("delta").load(f"{store.url}/operators/{uid}/keyed/{name}")
        assert sorted(row.v for row in stored.collect()) == [1, 2]
        restored = store.restore(parallelism=1).keyed(uid, name).to_arrow(0)
        assert sorted(restored["v"].to_pylist()) == [1, 2]
    assert store.restore(parallelism=1).keyed("v", "keys").get((False, b""))[0]["v"] == 2
