"""DuckDB's extension and Spark with Iceberg's runtime read what is published.

Each is a process in an environment of its own, which ``make nightly`` creates: neither exists for
the version in the tests' environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from statestore.errors import CommitConflictError
from statestore.spark.session import java_environment
from tests.publishing.tables import load, publish, rows_of, stored_rows, take
from tests.publishing.test_publish import every_type
from tests.servers.iceberg_rest import SPARK_RUNTIME, IcebergRest
from tests.syntax import ROOT

if TYPE_CHECKING:
    from statestore import StateStore

pytestmark = [pytest.mark.long, pytest.mark.slow]

HERE = Path(__file__).parent
DUCKDB = Path(sys.prefix) / "duckdb-iceberg" / "bin" / "python"
SPARK = ROOT / "build" / "spark-4.0.5" / "bin" / "python"
BOTH = pytest.mark.parametrize("layout", ["partitioned", "ranged"])


def run(command: list[str], text: str = "") -> Any:
    """Return the JSON document that a process prints last."""
    # Each uses the Spark and the packages of its own environment.
    environment = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "PYTHONPATH")}
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=500, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def duckdb(sql: str) -> Any:
    """Return the rows of a query in DuckDB."""
    return run([str(DUCKDB), str(HERE / "duckdb_reader.py"), sql])


def spark(server: IcebergRest, *statements: str) -> Any:
    """Return the answer of Spark to each statement."""
    java_environment("local")
    script = [str(SPARK), str(HERE / "spark_reader.py"), str(SPARK_RUNTIME.file), server.uri]
    return run(script, json.dumps(statements))


@BOTH
def test_duckdb_reads_each_type(store: StateStore, sql: Catalog, layout: str) -> None:
    take(store, every_type(), layout=layout)
    publish(store, sql)
    table = load(sql)
    scan = f"iceberg_scan('{table.metadata_location}')"
    names = [field.name for field in table.schema().fields if field.name != "instant"]
    columns = ", ".join(f'"{name}"' for name in names)
    found = duckdb(f"SELECT {columns} FROM {scan} ORDER BY k")
    expected = sorted(stored_rows(store), key=lambda row: row["k"])
    for row, own in zip(found, expected, strict=True):
        for name, value in zip(names, row, strict=True):
            assert_equal(name, value, own[name])
    assert duckdb(f"SELECT v.k FROM {scan} v WHERE text = 'text 17 €'") == [[17]]
    group = expected[0]["key_group"]
    own = sum(row["key_group"] == group for row in expected)
    assert duckdb(f"SELECT count(*) FROM {scan} WHERE key_group = {group}") == [[own]]
    micros = f"SELECT sum(epoch_us(instant)) FROM {scan}"
    [[total]] = duckdb(f"SELECT CAST(({micros}) AS VARCHAR)")
    assert int(total) == sum(round(row["instant"].timestamp() * 10**6) for row in expected)


def assert_equal(name: str, read: Any, stored: Any) -> None:
    """Compare a value that went through JSON with a stored value."""
    if isinstance(stored, list) and stored and isinstance(stored[0], tuple):
        stored = dict(stored)  # a map
    text = json.loads(json.dumps(stored, default=repr))
    assert repr(read) == repr(text), name


@BOTH
def test_spark_reads_each_type(store: StateStore, rest_server: IcebergRest, layout: str) -> None:
    catalog = load_catalog("lake", **rest_server.options)
    take(store, every_type(), layout=layout)
    table = f"db.spark_{layout}"
    publish(store, catalog, table)
    first = catalog.load_table(table).metadata.current_snapshot_id
    expected = sorted(stored_rows(store), key=lambda row: row["k"])
    more = every_type(220).append_column("new", [["x"] * 220])
    take(store, more, layout=layout)
    publish(store, catalog, table)
    place = f"lake.{table}"
    group = expected[0]["key_group"]
    # Without nested columns, Iceberg decodes whole batches. Both ways must know the encodings.
    flat = "k, text, bytes, date, instant, local, small, large, short, int, double"
    old, batch, one, count, bounds, purge, expire, orphans, *deleted = spark(
        rest_server,
        f"SELECT * FROM {place} VERSION AS OF {first} ORDER BY k",
        f"SELECT {flat} FROM {place} ORDER BY k",
        f"SELECT k, new FROM {place} WHERE text = 'text 17 €'",
        f"SELECT count(*) n FROM {place} WHERE key_group = {group}",
        f"SELECT min(k) low, max(k) high, count(*) n FROM {place}",
        f"DROP TABLE {place} PURGE",
        f"CALL lake.system.expire_snapshots(table => '{table}', retain_last => 1)",
        f"CALL lake.system.remove_orphan_files(table => '{table}')",
        f"ALTER TABLE {place} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
        f"DELETE FROM {place} WHERE k % 100 = 17",
        f"SELECT count(*) n FROM {place}",
    )
    current = sorted(stored_rows(store), key=lambda row: row["k"])
    for row, own in zip(old, expected, strict=True):
        assert row.keys() == own.keys()
        for name in row.keys() - {"bytes", "instant", "local"}:
            assert_equal(name, row[name], own[name])
    for row, own in zip(batch, current, strict=True):
        for name in row.keys() - {"bytes", "instant", "local"}:
            assert_equal(name, row[name], own[name])
    assert one == [{"k": 17, "new": "x"}]
    assert count == [{"n": sum(row["key_group"] == group for row in current)}]
    assert bounds == [{"low": 0, "high": 219, "n": 220}]
    for refused in (purge, expire, orphans):
        assert "GC is disabled" in refused[1], refused
    assert deleted == [[], [], [{"n": 217}]]
    with pytest.raises(CommitConflictError, match="of another program"):
        publish(store, catalog, table)
    publish(store, catalog, table, replace=True)
    assert repr(rows_of(catalog.load_table(table))) == repr(stored_rows(store))
    # Spark's position deletes no longer apply, although the files are the same.
    assert spark(rest_server, f"SELECT count(*) n FROM {place}") == [[{"n": 220}]]
    assert store.maintenance.verify("all", deep=True).is_intact


def test_a_state_without_rows_is_an_empty_table(
    store: StateStore, rest_server: IcebergRest
) -> None:
    catalog = load_catalog("lake", **rest_server.options)
    take(store, pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], pa.string())}))
    publish(store, catalog, "db.empty")
    [rows] = spark(rest_server, "SELECT * FROM lake.db.empty")
    assert rows == []
