from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from jobs.restore import restore as job
from statestore import KeyGroupAssignment, StateStore, key_group_of
from statestore.format.left_out import LeftOutState
from tests.jobs.conftest import RunJob

SETTINGS = "parallelism = 7\n"
KEYED = """
[[keyed]]
operator = "totals-by-user"
state = "totals"
[keyed.sink]
format = "parquet"
path = "{here}/totals"
"""
OFFSETS = """
[[operator_state]]
operator = "orders-source"
state = "offsets"
[operator_state.sink]
format = "json"
path = "{here}/offsets"
"""
USERS = range(100)


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    rows = [{"user_id": user, "total": user * 10} for user in USERS]
    with store.snapshot(parallelism=4) as checkpoint:
        checkpoint.write_keyed("totals-by-user", "totals", rows, key="user_id", max_parallelism=128)
        checkpoint.write_keyed("places", "places", [{"k": 1, "Subtask": 2}], key="k")
        elements = [{"topic": "t", "partition": i, "offset": i} for i in range(4)]
        checkpoint.write_split("orders-source", "offsets", [[element] for element in elements])
    return store


pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark", "store")]


def users_by_directory(path: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for file in sorted(path.rglob("*.parquet")):
        table = pq.ParquetFile(file).read()
        assert table.column_names == ["user_id", "total"]
        found.setdefault(file.parent.name, []).extend(table.column("user_id").to_pylist())
    return found


@pytest.mark.parametrize("parallelism", [7, 1])
def test_each_subtask_gets_a_directory(
    parallelism: int, run_job: RunJob, store: StateStore, tmp_path: Path
) -> None:
    done = run_job(job, SETTINGS + KEYED, "--set", f"parallelism={parallelism}")
    assert (done.code, done.err) == (0, f"totals-by-user/totals: written to {tmp_path}/totals\n")
    assert done.out.splitlines()[0] == f"checkpoint 1, parallelism 4 -> {parallelism}"
    found = users_by_directory(tmp_path / "totals")
    state = store.restore(parallelism=parallelism).keyed("totals-by-user", "totals")
    # A reader without Spark returns the same rows in the same order.
    assert found == {
        f"subtask={subtask}": state.to_arrow(subtask).column("user_id").to_pylist()
        for subtask in range(parallelism)
    }
    assignment = KeyGroupAssignment(max_parallelism=128, parallelism=parallelism)
    for subtask in range(parallelism):
        groups = {key_group_of(u, max_parallelism=128) for u in found[f"subtask={subtask}"]}
        assert all(group in assignment.range_of(subtask) for group in groups)


def test_the_report(run_job: RunJob, tmp_path: Path) -> None:
    done = run_job(job, SETTINGS + KEYED + OFFSETS, "--output", "json")
    assert done.err == ""
    assert {
        name: done.report[name] for name in ("checkpoint", "old_parallelism", "parallelism")
    } == {
        "checkpoint": 1,
        "old_parallelism": 4,
        "parallelism": 7,
    }
    assert done.report["states"][0] == {
        "operator": "totals-by-user",
        "state": "totals",
        "parallelism": 7,
        "stored_rows": 100,
        "target": f"{tmp_path}/totals",
        "per_subtask": True,
    }


def test_operator_state_as_its_new_subtasks_get_it(
    run_job: RunJob, spark: SparkSession, tmp_path: Path
) -> None:
    assert run_job(job, SETTINGS + OFFSETS, "--set", "parallelism=3").code == 0
    rows = spark.read.json(str(tmp_path / "offsets")).orderBy("subtask", "position").collect()
    assert [(row.subtask, row.position, row.partition) for row in rows] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 2),
        (2, 0, 3),
    ]


@pytest.mark.long
@pytest.mark.parametrize("sink_format", ["delta", "csv"])
def test_any_sink_of_spark_gets_the_rows(
    sink_format: str, run_job: RunJob, spark: SparkSession, tmp_path: Path
) -> None:
    arguments = [f"keyed.0.sink.{t}" for t in (f"format='{sink_format}'", "per_subtask=false")]
    done = run_job(job, SETTINGS + KEYED, *(a for text in arguments for a in ("--set", text)))
    assert done.code == 0
    reader = spark.read.format(sink_format)
    if sink_format == "csv":
        reader = reader.schema("user_id BIGINT, total BIGINT")
    rows = reader.load(str(tmp_path / "totals"))
    assert rows.columns == ["user_id", "total"]
    assert {row.user_id: row.total for row in rows.collect()} == {u: u * 10 for u in USERS}


@pytest.mark.long
def test_an_existing_table_is_not_overwritten(run_job: RunJob, spark: SparkSession) -> None:
    sink = '[keyed.sink]\nformat = "delta"\ntable = "restored_totals"\n'
    settings = SETTINGS + KEYED[: KEYED.index("[keyed.sink]")] + sink
    assert run_job(job, settings).code == 0
    assert spark.table("restored_totals").where("subtask = 6").count() > 0
    again = run_job(job, settings)
    assert (again.code, again.out) == (2, "")
    assert "restored_totals already exists; choose another path" in again.err
    spark.sql("DROP TABLE restored_totals")


def test_a_target_that_exists_is_refused_before_anything_is_written(
    run_job: RunJob, tmp_path: Path
) -> None:
    (tmp_path / "offsets").mkdir()
    done = run_job(job, SETTINGS + KEYED + OFFSETS)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"error: state 'offsets' of operator 'orders-source': {tmp_path}/offsets already exists; "
        "choose another path or table, or set mode to overwrite, append or ignore\n"
    )
    assert not (tmp_path / "totals").exists()


def test_overwriting_leaves_no_directory_of_the_old_parallelism(
    run_job: RunJob, spark: SparkSession, tmp_path: Path
) -> None:
    assert run_job(job, SETTINGS + KEYED).code == 0
    again = ("--set", "parallelism=2", "--set", "keyed.0.sink.mode='overwrite'")
    mode = "spark.sql.sources.partitionOverwriteMode"
    before = spark.conf.get("spark.sql.maxConcurrentOutputFileWriters")
    spark.conf.set(mode, "dynamic")
    try:
        assert run_job(job, SETTINGS + KEYED, *again).code == 0
    finally:
        spark.conf.unset(mode)
    found = users_by_directory(tmp_path / "totals")
    assert sorted(found) == ["subtask=0", "subtask=1"]
    assert sorted(user for users in found.values() for user in users) == list(USERS)
    assert spark.conf.get("spark.sql.maxConcurrentOutputFileWriters") == before


def test_other_modes(run_job: RunJob, tmp_path: Path) -> None:
    def restore(mode: str) -> int:
        assert run_job(job, SETTINGS + KEYED, "--set", f"keyed.0.sink.mode='{mode}'").code == 0
        return sum(map(len, users_by_directory(tmp_path / "totals").values()))

    assert restore("append") == 100
    assert restore("ignore") == 100
    assert restore("append") == 200


def test_a_column_named_subtask(run_job: RunJob, spark: SparkSession, tmp_path: Path) -> None:
    settings = SETTINGS + KEYED.replace("totals-by-user", "places").replace("totals", "places")
    done = run_job(job, settings)
    assert (done.code, done.out) == (2, "")
    assert "set per_subtask = false" in done.err
    assert run_job(job, settings, "--set", "keyed.0.sink.per_subtask=false").code == 0
    assert spark.read.parquet(f"{tmp_path}/places").columns == ["k", "Subtask"]


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ("--set checkpoint=9", 10, "no checkpoint 9"),
        ("--store nowhere", 10, "no store at"),
        ("--set keyed.0.state='totalz'", 10, "no state 'totalz'"),
        ("--set operator_state.0.operator='orders'", 10, "no operator 'orders'"),
        ("--set parallelism=129", 12, "128"),
        ("--set max_parallelism=100", 12, "128"),
    ],
)
def test_a_wrong_name_or_number_starts_no_spark(
    change: str,
    code: int,
    message: str,
    run_job: RunJob,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_session(*_: Any, **__: Any) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr("jobs.restore.session", no_session)
    done = run_job(job, SETTINGS + KEYED + OFFSETS, *change.split())
    assert (done.code, done.out, done.err.count("error: ")) == (code, "", 1)
    assert message in done.err


def test_a_damaged_file_is_an_error_of_the_job(run_job: RunJob, tmp_path: Path) -> None:
    for file in (tmp_path / "store" / "operators" / "orders-source").rglob("*.parquet"):
        file.unlink()
    done = run_job(job, SETTINGS + OFFSETS)
    assert (done.code, done.out) == (13, "")


def test_rows_are_neither_exchanged_nor_sorted(run_job: RunJob, spark: SparkSession) -> None:
    assert run_job(job, SETTINGS + KEYED).code == 0
    queries: Any = spark._jsparkSession.sharedState().statusStore().executionsList()
    plan = queries.apply(queries.size() - 1).physicalPlanDescription()
    assert "InsertIntoHadoopFsRelationCommand" in plan
    assert "MapInArrow" in plan
    assert "Exchange" not in plan
    assert "Sort" not in plan


def test_missing_state_of_the_checkpoint_is_reported(
    run_job: RunJob, store: StateStore, tmp_path: Path
) -> None:
    lost = LeftOutState(
        operator="totals-by-user", state="totals", reason="damaged", command="salvage"
    )
    other = LeftOutState(operator="other", state=None, reason="not read", command="flink import")
    with store.snapshot(parallelism=4) as checkpoint:
        checkpoint.collected.record(left_out=[lost, other])
        checkpoint.carry_rest()
    done = run_job(job, SETTINGS + KEYED)
    assert done.code == 0
    assert done.out.splitlines()[-1] == "left out  totals-by-user/totals (damaged)"
    assert "not read" not in done.out
