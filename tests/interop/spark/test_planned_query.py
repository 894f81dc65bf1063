"""Plans of queries that have never run, and what cannot be planned."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore.errors import (
    InvalidArgumentError,
    SchemaMismatchError,
    StorageError,
    UnsupportedTypeError,
)
from statestore.interop.spark.bootstrap_location import bootstrap_location
from statestore.interop.spark.location import CheckpointLocation
from statestore.interop.spark.planned_query import plan_query
from statestore.spark.session_settings import session_settings
from statestore.storage import LocalStorage, Storage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.interop.spark.queries import QUERIES, Query, events, stream

JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
UID = "stateStoreSave-0/default"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    events(folder, 0, 2)
    return folder


def counts(spark: SparkSession, source: Path) -> DataFrame:
    return stream(spark, source).groupBy("k").count()


def test_a_plan_reads_nothing_and_names_what_the_query_wants(
    spark: SparkSession, source: Path
) -> None:
    plan = plan_query(counts(spark, source), output_mode="update")
    assert [state.name for state in plan.states] == [UID]
    assert [(source.folder, source.begins, source.files) for source in plan.sources] == [
        ("0", '{"logOffset": -1}', 0)
    ]
    assert not spark.streams.active


def test_files_that_are_not_newer_count_as_read(spark: SparkSession, source: Path) -> None:
    at = datetime.fromtimestamp(1_000_000_000, UTC)  # of the first file
    (position,) = plan_query(counts(spark, source), output_mode="update", files_after=at).sources
    assert (json.loads(position.begins), position.files) == ({"logOffset": 0}, 1)
    before = datetime.fromtimestamp(999_999_999, UTC)
    (position,) = plan_query(
        counts(spark, source), output_mode="update", files_after=before
    ).sources
    assert (json.loads(position.begins), position.files) == ({"logOffset": -1}, 0)


def test_a_source_tells_its_own_first_position(spark: SparkSession) -> None:
    rates = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=5, startTimestamp=7)
    (position,) = plan_query(rates.load().groupBy("value").count(), output_mode="update").sources
    assert json.loads(position.begins) == {"offset": 0, "timestamp": 7}


@pytest.mark.parametrize(
    ("build", "mode", "error", "message"),
    [
        (lambda rows: rows.select("k"), "append", InvalidArgumentError, "no stateful operator"),
        (lambda rows: rows.groupBy("k").count(), "append", InvalidArgumentError, "watermark"),
        (QUERIES["limit"].build, "complete", InvalidArgumentError, "cannot plan the query"),
    ],
    ids=["no state", "append without a watermark", "a wrong output mode"],
)
def test_a_query_that_spark_does_not_start_is_refused(
    spark: SparkSession,
    source: Path,
    build: Callable[[DataFrame], DataFrame],
    mode: str,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        plan_query(build(stream(spark, source)), output_mode=mode)
    assert not spark.streams.active


def test_wrong_arguments_are_refused(spark: SparkSession, source: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="streaming DataFrame"):
        plan_query(spark.range(3).groupBy("id").count())
    with pytest.raises(InvalidArgumentError, match="time zone"):
        plan_query(counts(spark, source), files_after=datetime(2026, 1, 1))
    rates = spark.readStream.format("rate").load().groupBy("value").count()
    with pytest.raises(InvalidArgumentError, match="reads no files"):
        plan_query(rates, files_after=datetime.now(UTC))


@pytest.mark.long_cases("a join in column families", "a processor in Avro")
@pytest.mark.parametrize(
    ("query", "conf", "message"),
    [
        (QUERIES["join"], {JOIN_FORMAT: "3"}, "join.stateFormatVersion=2"),
        (QUERIES["tws_avro"], {}, "set it to unsaferow"),
        (Query("arrays", "update", lambda rows: rows.groupBy(F.array("k")).count()), {}, "array"),
    ],
    ids=["a join in column families", "a processor in Avro", "a key without columns"],
)
def test_state_that_cannot_be_a_table_is_refused(
    spark: SparkSession, source: Path, query: Query, conf: dict[str, str], message: str
) -> None:
    provider = "spark.sql.streaming.stateStore.providerClass"
    rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    with (
        session_settings(spark, {provider: rocksdb, **query.conf, **conf}),
        pytest.raises(UnsupportedTypeError, match=message),
    ):
        plan_query(query.build(stream(spark, source)), output_mode=query.mode)


def test_a_changed_plan_is_refused_before_anything_is_written(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    plan = plan_query(counts(spark, source), output_mode="update")
    other = plan_query(stream(spark, source).groupBy("id").count(), output_mode="update")
    assert plan_query(counts(spark, source), output_mode="update").fingerprint == plan.fingerprint
    new = tmp_path / "new"
    with pytest.raises(SchemaMismatchError, match=f"{plan.fingerprint}, not {other.fingerprint}"):
        bootstrap_location(plan, str(new), {UID: None}, fingerprint=other.fingerprint)
    with (
        session_settings(spark, {"spark.sql.streaming.aggregation.stateFormatVersion": "1"}),
        pytest.raises(SchemaMismatchError, match="settings of the session have changed"),
    ):
        bootstrap_location(plan, str(new), {UID: None})
    assert not new.exists()


def test_tables_must_be_given_for_all_states(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    plan = plan_query(counts(spark, source), output_mode="update")
    with pytest.raises(InvalidArgumentError, match=f"no table is given for {UID}.*no state other"):
        bootstrap_location(plan, str(tmp_path / "new"), {"other": None})
    used = tmp_path / "used"
    used.mkdir()
    (used / "file").touch()
    with pytest.raises(InvalidArgumentError, match="not empty"):
        bootstrap_location(plan, str(used), {UID: None})
    with pytest.raises(InvalidArgumentError, match="time zone"):
        bootstrap_location(plan, str(tmp_path / "new"), {UID: None}, watermark=datetime(2026, 1, 1))
    with pytest.raises(InvalidArgumentError, match="the query has no watermark"):
        bootstrap_location(plan, str(tmp_path / "new"), {UID: None}, watermark=datetime.now(UTC))


@pytest.mark.long
def test_a_dry_run_reports_rows_by_partition(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    plan = plan_query(counts(spark, source), output_mode="update")
    table = spark.createDataFrame(
        [(f"k{number}", 1) for number in range(50)], "k string, count long"
    )
    new = tmp_path / "new"
    made = bootstrap_location(plan, str(new), {UID: table}, partitions=3, dry_run=True)
    assert made.dry_run
    assert not new.exists()
    (store,) = made.stores
    assert (len(store.rows), sum(store.rows)) == (3, 50)


@pytest.mark.long
@pytest.mark.parametrize("step", ["offsets/0", "commits/0"])
def test_a_start_that_dies_leaves_no_location_that_starts(
    spark: SparkSession,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """An error of the storage in the first or the last step before the location is unblocked."""
    plan = plan_query(counts(spark, source), output_mode="update")
    module = "statestore.interop.spark.bootstrap_location"

    def write_to(storage: Storage) -> None:
        monkeypatch.setattr(f"{module}.open_storage", lambda _url, _options: storage)
        bootstrap_location(plan, "unused", {UID: None})

    calls = calls_of(LocalStorage(str(tmp_path / "watched")), write_to)
    number = next(c.number for c in calls if (c.operation, c.name) == ("put_if_absent", step))
    new = LocalStorage(str(tmp_path / "new"))
    with pytest.raises(StorageError):
        write_to(FaultyStorage(new, Fault(number, FaultKind.ERROR, lasting=True)))
    assert CheckpointLocation(new).is_unfinished
