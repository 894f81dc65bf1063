"""Copy, purge and edit Delta tables, and read them with delta-rs and Spark."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from statestore import OperatorKey, StateStore
from statestore.snapshot.state_spec import Changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = "somebody@example.org"
# Between other values, and as the minimum and maximum: statistics contain it.
USERS = ["a", "zz", "user-1", "user-2"]


def take(store: StateStore, spark: SparkSession, users: list[str]) -> None:
    rows = spark.createDataFrame([(user, n) for n, user in enumerate(users)], "user string, n long")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("users", "totals", rows, key="user", max_parallelism=4)
        checkpoint.write_keyed("other", "totals", rows.where("user <> 'a'"), key="user")


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
    """A copy of the store, whose table the session has cached."""
    folder = Path(shutil.copytree(base, tmp_path / "store"))
    assert KEY in in_spark(spark, folder)
    return folder


def in_delta(url: Path, uid: str = "users", version: int | None = None) -> list[str]:
    """Return the users in a table as a Delta reader without Spark sees them."""
    table = DeltaTable(url / "operators" / uid / "keyed" / "totals", version=version)
    return sorted(table.to_pyarrow_table(columns=["user"]).column("user").to_pylist())


def in_spark(spark: SparkSession, url: Path) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = spark.read.format("delta").load(str(url / "operators/users/keyed/totals"))
        return sorted(row.user for row in frame.collect())


def label_in_spark(spark: SparkSession, url: Path) -> int:
    """Return the checkpoint of the table according to Spark."""
    table = f"delta.`{url}/operators/users/keyed/totals`"
    [detail] = spark.sql(f"DESCRIBE DETAIL {table}").collect()
    [newest] = spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").collect()
    number = int(newest.userMetadata.removeprefix("statestore checkpoint "))
    assert detail.name == f"state 'totals' of operator 'users', checkpoint {number}"
    assert f"as of checkpoint {number}. Changes" in detail.description
    return number


def log_of(url: Path, uid: str = "users") -> list[Path]:
    log = url / "operators" / uid / "keyed/totals/_delta_log"
    return sorted(path for path in log.rglob("*") if path.is_file())


@pytest.mark.long
def test_a_purge_starts_a_new_log(url: Path, spark: SparkSession) -> None:
    store = StateStore.open(str(url))
    assert any(
        "Delta log" in one.what
        for one in store.maintenance.find_subject(OperatorKey("users", KEY)).found
    )
    before = log_of(url, "other")
    done = store.maintenance.forget(OperatorKey("users", KEY), search=False)
    assert done.logs == ("operators/users/keyed/totals",)
    assert not {*before} - {*log_of(url, "other")}
    assert in_delta(url) == sorted(USERS) == in_spark(spark, url)
    version = store.checkpoint().manifest.keyed_entry("users", "totals").table.version
    assert in_delta(url, version=version) == sorted(USERS)
    store.maintenance.forget(OperatorKey("other", KEY), search=False)
    store.maintenance.gc(minimum_age="0")
    assert store.maintenance.find_subject(OperatorKey("users", KEY)).found == ()
    assert store.maintenance.find_subject(OperatorKey("other", KEY)).found == ()
    take(store, spark, [*USERS, "new"])
    assert in_delta(url) == sorted([*USERS, "new"]) == in_spark(spark, url)
    assert store.maintenance.verify("all", deep=True).is_intact


@pytest.mark.long
def test_an_edit_is_a_new_version_of_the_table(url: Path, spark: SparkSession) -> None:
    store = StateStore.open(str(url), spark=spark)
    store.maintenance.edit("users", "totals", delete=[KEY], put=[{"user": "new", "n": 1}])
    assert in_delta(url) == sorted([*USERS, "new"])
    assert label_in_spark(spark, url) == 3
    rows = spark.createDataFrame([("x", 1), ("y", 2)], "user string, n long")
    assert store.maintenance.edit("users", "totals", rows=rows, dry_run=True).rows_after == 2
    store.maintenance.edit("users", "totals", rows=rows)
    assert in_delta(url) == ["x", "y"] == in_spark(spark, url)
    layered = StateStore.open(str(url), spark=spark, compaction=None)
    with layered.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("users", "totals", Changes(deletes=[{"user": "x"}]))
        checkpoint.carry_rest()
    assert in_delta(url) == ["x", "y"] == in_spark(spark, url)
    assert label_in_spark(spark, url) == 4
    assert store.maintenance.verify("all", deep=True).is_intact


@pytest.mark.long
def test_a_copy_has_the_format_of_its_target(
    url: Path, tmp_path: Path, spark: SparkSession
) -> None:
    """It keeps the source's format, unless the target has another one or is created with one."""
    store = StateStore.open(str(url))
    plain = StateStore.open(str(tmp_path / "plain"), table_format="parquet")
    store.maintenance.copy("latest", plain)
    assert log_of(tmp_path / "plain") == []
    table = plain.checkpoint().manifest.keyed_entry("users", "totals").table
    assert (table.format, table.version) == ("parquet", None)
    store.maintenance.copy("latest", str(tmp_path / "delta"))
    target = StateStore.open(str(tmp_path / "delta"))
    assert (
        in_delta(tmp_path / "delta") == sorted([*USERS, KEY]) == in_spark(spark, Path(target.url))
    )
    assert target.checkpoint().manifest.keyed_entry("users", "totals").table.version == 0
    assert target.maintenance.verify(deep=True).is_intact
