"""Copy, purge and edit of Delta tables, with a real Spark, and without one."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from statestore import StateStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = "somebody@example.org"
# Between others, and the least and the greatest of all: statistics hold it.
USERS = ["a", "zz", "user-1", "user-2"]


def take(store: StateStore, spark: SparkSession, users: list[str]) -> None:
    rows = spark.createDataFrame([(user, n) for n, user in enumerate(users)], "user string, n long")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.keyed("users", "totals", rows, key="user", max_parallelism=4)
        checkpoint.keyed("other", "totals", rows.where("user <> 'a'"), key="user")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """Checkpoint 1 without the key, 2 with it."""
    folder = tmp_path_factory.mktemp("delta") / "store"
    store = StateStore.open(str(folder), spark=spark)
    for users in (USERS, [*USERS, KEY]):
        take(store, spark, users)
    return folder


@pytest.fixture
def url(base: Path, tmp_path: Path, spark: SparkSession) -> Path:
    """A copy of the store, whose table the session has in its cache."""
    folder = Path(shutil.copytree(base, tmp_path / "store"))
    assert KEY in in_spark(spark, folder)
    return folder


def in_delta(url: Path, uid: str = "users", version: int | None = None) -> list[str]:
    """Return the users of a table as a Delta reader without Spark sees them."""
    table = DeltaTable(url / "operators" / uid / "keyed" / "totals", version=version)
    return sorted(table.to_pyarrow_table(columns=["user"]).column("user").to_pylist())


def in_spark(spark: SparkSession, url: Path) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = spark.read.format("delta").load(str(url / "operators/users/keyed/totals"))
        return sorted(row.user for row in frame.collect())


def log_of(url: Path, uid: str = "users") -> list[Path]:
    log = url / "operators" / uid / "keyed/totals/_delta_log"
    return sorted(path for path in log.rglob("*") if path.is_file())


def test_a_purge_without_spark_deletes_the_log_and_a_snapshot_begins_a_new_one(
    url: Path, spark: SparkSession
) -> None:
    alone = StateStore.open(str(url))
    assert any("Delta log" in one.what for one in alone.maintenance.find_key("users", KEY).found)
    before = log_of(url, "other")
    done = alone.maintenance.purge("users", KEY)
    assert done.logs == ("operators/users/keyed/totals",)
    assert log_of(url) == []
    assert log_of(url, "other") == before
    table = alone.manifest().keyed_entry("users", "totals").table
    assert (table.format, table.version) == ("delta", None)
    alone.maintenance.purge("other", KEY)
    alone.maintenance.gc(minimum_age_s=0)
    assert alone.maintenance.find_key("users", KEY).found == ()
    assert alone.maintenance.find_key("other", KEY).found == ()
    with pytest.raises(Exception, match=r"(?i)log|not a delta|no files"):
        in_delta(url)
    store = StateStore.open(str(url), spark=spark)
    take(store, spark, [*USERS, "new"])
    assert in_delta(url) == sorted([*USERS, "new"]) == in_spark(spark, url)
    version = store.manifest().keyed_entry("users", "totals").table.version
    assert in_delta(url, version=version) == sorted([*USERS, "new"])
    take(store, spark, USERS)
    assert in_delta(url) == sorted(USERS) == in_spark(spark, url)
    assert store.maintenance.verify("all", deep=True).is_intact


def test_a_purge_with_spark_begins_a_new_log_itself(url: Path, spark: SparkSession) -> None:
    store = StateStore.open(str(url), spark=spark)
    store.maintenance.purge("users", KEY)
    assert in_delta(url) == sorted(USERS) == in_spark(spark, url)
    version = store.manifest().keyed_entry("users", "totals").table.version
    assert in_delta(url, version=version) == sorted(USERS)
    store.maintenance.purge("other", KEY)
    store.maintenance.gc(minimum_age_s=0)
    assert store.maintenance.find_key("users", KEY).found == ()
    take(store, spark, [*USERS, "new"])
    assert in_delta(url) == sorted([*USERS, "new"]) == in_spark(spark, url)
    assert store.maintenance.verify("all", deep=True).is_intact


def test_an_edit_with_spark_is_a_new_version_of_the_table(url: Path, spark: SparkSession) -> None:
    store = StateStore.open(str(url), spark=spark)
    store.maintenance.edit("users", "totals", delete=[KEY], put=[{"user": "new", "n": 1}])
    assert in_delta(url) == sorted([*USERS, "new"])
    rows = spark.createDataFrame([("x", 1), ("y", 2)], "user string, n long")
    assert store.maintenance.edit("users", "totals", rows=rows, dry_run=True).rows_after == 2
    store.maintenance.edit("users", "totals", rows=rows)
    assert in_delta(url) == ["x", "y"] == in_spark(spark, url)
    assert store.maintenance.verify("all", deep=True).is_intact


def test_a_copy_is_delta_where_the_target_has_spark(
    url: Path, tmp_path: Path, spark: SparkSession
) -> None:
    store = StateStore.open(str(url))
    plain = store.maintenance.copy("latest", str(tmp_path / "plain"))
    assert plain.tables_without_log == 2
    assert log_of(tmp_path / "plain") == []
    table = StateStore.open(str(tmp_path / "plain")).manifest().keyed_entry("users", "totals").table
    assert (table.format, table.version) == ("parquet", None)
    target = StateStore.open(str(tmp_path / "delta"), spark=spark)
    assert store.maintenance.copy("latest", target).tables_without_log == 0
    assert in_delta(tmp_path / "delta") == sorted([*USERS, KEY])
    assert target.manifest().keyed_entry("users", "totals").table.version == 0
    assert target.maintenance.verify(deep=True).is_intact
