"""Other programs modify a state's Delta table: kept checkpoints stay intact, or ``verify`` names
the damaged files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.delta.log_cleanup import INTERVAL
from statestore.errors import MissingFileError
from statestore.format.state import Layout

pytestmark = pytest.mark.usefixtures("uncompiled")  # no row of a snapshot is processed by Spark

Hand = Callable[[SparkSession, str], Any]
COUNT = INTERVAL + 2
"""Enough versions that readers start at a log checkpoint, which names no removed file."""

KEYS = 40


def sql(statement: str) -> Hand:
    return lambda spark, table: spark.sql(statement.format(table=f"delta.`{table}`")).collect()


def append(spark: SparkSession, table: str) -> None:
    rows = "SELECT CAST(0 AS INT) AS key_group, 'foreign' AS k, 1L AS v"
    spark.sql(rows).write.format("delta").mode("append").save(table)


def overwrite(spark: SparkSession, table: str) -> None:
    rows = spark.sql("SELECT CAST(0 AS INT) AS key_group, 'other' AS k, 1.5D AS other")
    options = {"overwriteSchema": "true"}
    rows.write.format("delta").mode("overwrite").options(**options).save(table)


def optimize_and_vacuum(spark: SparkSession, table: str) -> None:
    sql("OPTIMIZE {table}")(spark, table)
    sql("VACUUM {table}")(spark, table)


HANDS: dict[str, Hand] = {
    "vacuum": sql("VACUUM {table}"),
    "vacuum lite": sql("VACUUM {table} LITE"),
    "optimize": sql("OPTIMIZE {table}"),
    "optimize and vacuum": optimize_and_vacuum,
    "zorder": sql("OPTIMIZE {table} ZORDER BY (k)"),
    "append": append,
    "overwrite": overwrite,
    "delete": sql("DELETE FROM {table} WHERE v % 2 = 0"),
    "update": sql("UPDATE {table} SET v = -1"),
    "restore": sql("RESTORE TABLE {table} TO VERSION AS OF 0"),
    "add a column": sql("ALTER TABLE {table} ADD COLUMNS (foreign INT)"),
    "delete with vectors": lambda spark, table: [
        sql("ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")(
            spark, table
        ),
        sql("DELETE FROM {table} WHERE v % 2 = 0")(spark, table),
    ],
}


def rows_at(number: int) -> pa.Table:
    return pa.table(
        {"k": [f"k{i}" for i in range(KEYS)], "v": [number * KEYS + i for i in range(KEYS)]}
    )


def take(store: StateStore, number: int, layout: str) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        options: dict[str, Any] = {"key": "k", "max_parallelism": 4, "layout": layout}
        checkpoint.write_keyed("u", "n", rows_at(number), **options)
        checkpoint.write_union("u", "offsets", [[{"offset": number}], []])


def assert_whole(store: StateStore, number: int) -> None:
    restored = store.restore(checkpoint=number, parallelism=3, verify=True)
    state = restored.keyed("u", "n")
    found = pa.concat_tables([state.to_arrow(i) for i in range(3)])
    assert found.drop_columns(["key_group"]).sort_by("v") == rows_at(number)
    assert restored.operator_state("u", "offsets").per_old_subtask() == [[{"offset": number}], []]


@pytest.fixture(scope="module")
def filled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The store for each layout, created on first use."""

    @cache
    def made(layout: str) -> Path:
        path = tmp_path_factory.mktemp("foreign") / "store"
        store = StateStore.open(str(path), spark=spark)
        for number in range(1, COUNT + 1):
            take(store, number, layout)
        return path

    return made


@pytest.fixture(params=[layout.value for layout in Layout])
def touched(
    request: pytest.FixtureRequest, filled: Callable[[str], Path], tmp_path: Path
) -> tuple[Path, str]:
    """A copy of the store, which the test modifies."""
    return Path(shutil.copytree(filled(request.param), tmp_path / "store")), request.param


def table_of(path: Path) -> str:
    return f"{path}/operators/u/keyed/n"


# The nightly has all, of which some need a table feature. Each run also has deleted and rewritten
# files, below.
IN_EACH_RUN = {("append", Layout.RANGED)}


@pytest.mark.parametrize(
    ("touched", "hand"),
    [
        pytest.param(
            layout.value, hand, marks=() if (hand, layout) in IN_EACH_RUN else pytest.mark.long
        )
        for hand in HANDS
        for layout in Layout
    ],
    indirect=["touched"],
)
def test_default_settings_damage_no_kept_checkpoint(
    spark: SparkSession, touched: tuple[Path, str], hand: str
) -> None:
    """Every checkpoint restores, the next one is taken, and its table has only its rows."""
    path, layout = touched
    HANDS[hand](spark, table_of(path))
    store = StateStore.open(str(path), spark=spark)
    assert store.maintenance.verify("all", deep=True).is_intact
    for number in (1, 2, COUNT):
        assert_whole(store, number)
    take(store, COUNT + 1, layout)
    newest = spark.read.format("delta").load(table_of(path)).drop("key_group").toArrow()
    assert newest.sort_by("v").cast(rows_at(0).schema) == rows_at(COUNT + 1)
    for number in (1, 2, COUNT, COUNT + 1):
        assert_whole(store, number)


@pytest.mark.long_cases("ranged")
@pytest.mark.parametrize(
    "touched",
    [Layout.RANGED.value, pytest.param(Layout.PARTITIONED.value, marks=pytest.mark.long)],
    indirect=True,
)
def test_files_that_a_forced_vacuum_deleted_are_named(
    spark: SparkSession, touched: tuple[Path, str]
) -> None:
    """Retention is unset and Delta's own check is off. VACUUM deletes all files of the older
    checkpoints in this table, and no others. The next checkpoint sets the retention again.
    """
    path, layout = touched
    table = table_of(path)
    names = "'delta.deletedFileRetentionDuration', 'delta.logRetentionDuration'"
    check = "spark.databricks.delta.retentionDurationCheck.enabled"
    store = StateStore.open(str(path), spark=spark)
    lost = {
        f"{entry.table.path}/{handle.path}"
        for number in range(1, COUNT)
        for entry in store.checkpoint(number).manifest.keyed
        for handle in entry.handles
    }
    spark.conf.set(check, "false")
    try:
        sql(f"ALTER TABLE {{table}} UNSET TBLPROPERTIES ({names})")(spark, table)
        sql("VACUUM {table} RETAIN 0 HOURS")(spark, table)
    finally:
        spark.conf.unset(check)
    report = store.maintenance.verify("all")
    assert {file.file for file in report.broken} == lost
    assert {(file.kind, file.operator, file.state) for file in report.broken} == {
        ("missing-file", "u", "n")
    }
    assert {file.checkpoint_id for file in report.broken} == {*range(1, COUNT)}
    with pytest.raises(MissingFileError, match="is missing, but the manifest references it"):
        assert_whole(store, 1)
    assert_whole(store, COUNT)
    take(store, COUNT + 1, layout)
    sql("VACUUM {table}")(spark, table)
    assert_whole(store, COUNT)
    assert_whole(store, COUNT + 1)
    [row] = sql("SHOW TBLPROPERTIES {table} ('delta.deletedFileRetentionDuration')")(spark, table)
    assert row.value == "interval 36500 days"


@pytest.mark.parametrize("deep", [False, True])
def test_a_deleted_file_is_named(touched: tuple[Path, str], deep: bool) -> None:
    path, _ = touched
    store = StateStore.open(str(path))
    [entry] = store.checkpoint(2).manifest.keyed
    name = f"{entry.table.path}/{entry.handles[0].path}"
    (path / name).unlink()
    [broken] = store.maintenance.verify("all", deep=deep).broken
    assert (broken.file, broken.kind, broken.checkpoint_id) == (name, "missing-file", 2)
    assert broken.key_groups == entry.handles[0].key_groups
    assert_whole(store, 1)
    assert_whole(store, 3)


def test_a_rewritten_file_is_named(touched: tuple[Path, str]) -> None:
    """Equal rows that another program writes have other bytes."""
    path, _ = touched
    store = StateStore.open(str(path))
    [entry] = store.checkpoint(2).manifest.keyed
    file = path / entry.table.path / entry.handles[0].path
    pq.write_table(pq.read_table(file, partitioning=None), file, compression="none")
    for deep in (False, True):
        [broken] = store.maintenance.verify("all", deep=deep).broken
        assert (broken.kind, broken.checkpoint_id) == ("damaged-file", 2)
        assert f"bytes, but the manifest says {entry.handles[0].size_bytes}" in broken.what[0]
