"""Spark imports of older releases are exported without change, because the format is stable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.interop.spark import export_checkpoint
from tests.interop.spark.queries import state_rows

STORES = sorted((Path(__file__).parents[2] / "golden").glob("spark_v*"))


def test_there_is_an_old_import() -> None:
    """The test below did not run over an empty list."""
    assert [path.name for path in STORES] == ["spark_v1", "spark_v2"]


@pytest.mark.parametrize("path", STORES, ids=lambda path: path.name)
def test_an_old_import_is_exported(spark: SparkSession, tmp_path: Path, path: Path) -> None:
    store = StateStore.open(str(path), spark=spark)
    export_checkpoint(store, str(tmp_path / "new"), partitions=3)
    found = state_rows(spark, tmp_path / "new")
    assert found == json.loads((path / "rows.txt").read_text())
    assert all(found.values())
