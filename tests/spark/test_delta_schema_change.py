"""Schema evolution of a Delta table: each version has the columns of its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import DataFrame, SparkSession

from statestore import StateStore
from statestore.errors import SchemaMismatchError
from statestore.format.state import Layout
from statestore.snapshot import commit

STEPS: list[tuple[str, str, dict[str, Any]]] = [
    ("k string, v int", "('a', 1), ('b', null)", {}),
    ("k string, v long, w string", "('a', 1099511627776, 'x'), ('c', 2, null)", {}),
    ("k string, total long, w string", "('a', 3, 'x')", {"renamed": {"v": "total"}}),
    ("k string, w string", "('a', 'y'), ('b', 'z')", {}),
    ("k string, w string, at date", "('a', 'y', date'2026-01-31')", {}),
    ("k string, w string, at timestamp_ntz", "('a', 'y', timestamp_ntz'2026-01-31 12:00')", {}),
    ("k string, d decimal(4,1)", "('a', 1.5)", {"dropped": ["w", "at"]}),
    ("k string, d decimal(9,2)", "('a', 1.25)", {}),
]


def frame(spark: SparkSession, columns: str, rows: str) -> DataFrame:
    names = ", ".join(column.split()[0] for column in columns.split(", "))
    casts = ", ".join(
        f"CAST({name} AS {kind}) AS {name}"
        for name, kind in (column.split() for column in columns.split(", "))
    )
    return spark.sql(f"SELECT {casts} FROM VALUES {rows} AS t({names})")


def rows_of(table: Any) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in table.to_pylist())


@pytest.mark.long_cases("ranged-looked_at0")
@pytest.mark.parametrize(
    ("layout", "looked_at"),
    [
        (Layout.RANGED, {1, 3, 6}),
        pytest.param(Layout.RANGED, {*range(1, 9)}, id="ranged-all", marks=pytest.mark.long),
        pytest.param(
            Layout.PARTITIONED, {*range(1, 9)}, id="partitioned-all", marks=pytest.mark.long
        ),
    ],
)
def test_versions_and_checkpoints_keep_their_columns(
    spark: SparkSession, tmp_path: Path, layout: Layout, looked_at: set[int]
) -> None:
    """The newest version and every restore with Spark, time travel, and delta-rs."""
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    table = f"{store.url}/operators/u/keyed/n"
    options: dict[str, Any] = {"key": "k", "max_parallelism": 4, "layout": layout.value}
    wanted = []
    for columns, rows, told in STEPS:
        df = frame(spark, columns, rows)
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("u", "n", df, **options, **told)
        arrow = df.toArrow()
        wanted.append((arrow.column_names, rows_of(arrow)))
        polars = pl.read_delta(table).to_arrow().drop_columns(["key_group"])
        assert rows_of(polars) == rows_of(arrow)
    newest = spark.read.format("delta").load(table).drop("key_group").toArrow()
    assert (newest.column_names, rows_of(newest)) == wanted[-1]
    for number, expected in enumerate(wanted, 1):
        version = store.checkpoint(number).manifest.keyed[0].table.version
        assert version == number - 1
        if number not in looked_at:
            continue
        reader = spark.read.format("delta").option("versionAsOf", version)
        then = reader.load(table).drop("key_group").toArrow()
        assert (then.column_names, rows_of(then)) == expected
        state = store.restore(checkpoint=number, parallelism=3).keyed("u", "n")
        found = state.to_spark().drop("key_group").toArrow()
        assert (found.column_names, rows_of(found)) == expected
    assert store.maintenance.verify("all", deep=True).is_intact


def test_a_refused_change_leaves_table_and_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    """The Delta log has no new version."""
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    kept, refused = (frame(spark, columns, rows) for columns, rows, _ in (STEPS[1], STEPS[0]))
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", kept, key="k", max_parallelism=2)
    change = pytest.raises(
        SchemaMismatchError, match="'v' was stored as long, which cannot be widened"
    )
    with change, store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", refused, key="k")
    assert store.checkpoints() == (1,)
    log = Path(store.url, "operators/u/keyed/n/_delta_log")
    assert [path.name for path in log.glob("*.json")] == [f"{0:020}.json"]


@pytest.mark.long
def test_an_uncommitted_checkpoint_leaves_no_columns_behind(
    spark: SparkSession, tmp_path: Path
) -> None:
    """I10: its table version had other columns; the next checkpoint has its own."""
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    table = f"{store.url}/operators/u/keyed/n"
    kept, lost = (frame(spark, columns, rows) for columns, rows, _ in STEPS[:2])
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", kept, key="k", max_parallelism=2)
    crashed = store.snapshot(parallelism=1)
    crashed.__enter__()
    crashed.write_keyed("u", "n", lost, key="k")
    commit._manifest(crashed.collected)
    assert "w" in spark.read.format("delta").load(table).columns
    with StateStore.open(store.url, spark=spark).snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", kept, key="k")
    newest = spark.read.format("delta").load(table).drop("key_group").toArrow()
    assert rows_of(newest) == rows_of(kept.toArrow())
