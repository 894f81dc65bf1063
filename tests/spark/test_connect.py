"""A session of Spark Connect stores the same bytes as a classic session, and needs no JVM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from statestore.keys.key_types import HASH_SCHEMES
from tests.servers.spark_connect import client_environment, connect_server
from tests.spark.connect_story import run_story, take_checkpoints
from tests.spark.test_hashing import allowed, every_type
from tests.syntax import ROOT

CLIENT = ROOT / "build" / "spark-client" / "bin" / "python"
CHANGED, DELETED = 120, 40


def write_tables(folder: Path) -> None:
    """Write the rows, changes and deletes that both sessions read, and the key of each scheme."""
    table = every_type()
    words = table["string"].to_pylist()
    table = table.append_column("list", pa.array([[word, None] for word in words]))
    table = table.append_column(
        "map", pa.array([[(word, 1.5)] for word in words], pa.map_(pa.string(), pa.float64()))
    )
    longs = table["long"]
    changed = table.slice(0, CHANGED).set_column(
        table.column_names.index("list"), "list", pa.array([["new"]] * CHANGED)
    )
    assert len(set(longs.to_pylist())) == len(longs)
    deleted = table.slice(CHANGED, DELETED)
    for name, rows in {"rows": table, "changed": changed, "deleted": deleted}.items():
        pq.write_table(rows, folder / f"{name}.parquet")
    names = [name for name in every_type().column_names if name != "binary"]  # no part of a tuple
    keys = {scheme: [name for name in names if allowed(name, scheme)] for scheme in HASH_SCHEMES}
    (folder / "keys.json").write_text(json.dumps(keys))


def compare(spark: SparkSession, folder: Path, python: str) -> bool:
    """Let both sessions take the same checkpoints; return whether the client has py4j."""
    with connect_server(folder, {"spark.sql.shuffle.partitions": "2"}) as url:
        write_tables(folder)
        classic = take_checkpoints(spark, folder, "classic")
        story = run_story(python, url, folder)
    assert story["digests"] == [[*handle] for handle in classic]
    assert len(classic) > len(HASH_SCHEMES)
    return bool(story["py4j"])


def test_both_sessions_store_the_same(spark: SparkSession, tmp_path: Path) -> None:
    compare(spark, tmp_path, sys.executable)


@pytest.mark.long
def test_a_client_without_a_jvm(spark: SparkSession, tmp_path: Path) -> None:
    """The environment of pyspark-client has neither py4j nor Java's jars."""
    assert not compare(spark, tmp_path, str(CLIENT))
    command = [str(CLIENT), "-m", "statestore.spark.session"]
    environment = client_environment("")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "pyspark-client cannot start Spark: set SPARK_REMOTE" in done.stderr
