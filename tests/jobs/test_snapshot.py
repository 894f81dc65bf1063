from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs.snapshot import snapshot as job
from statestore import StateStore
from tests.jobs.conftest import RunJob

pytestmark = pytest.mark.spark

SETTINGS = "parallelism = 4\n"
KEYED = """
[[keyed]]
operator = "totals-by-user"
state = "totals"
key = ["user_id"]
max_parallelism = 128
"""
PARQUET = '[keyed.source]\nformat = "parquet"\npath = "{here}/rows.parquet"\n'
ROWS = {user: user * 10 for user in range(50)}


@pytest.fixture(scope="module")
def rows_in(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same 50 rows in four formats."""
    here = tmp_path_factory.mktemp("sources")
    rows = spark.createDataFrame(list(ROWS.items()), "user_id BIGINT, total BIGINT").coalesce(1)
    for name in ("parquet", "delta", "csv", "json"):
        rows.write.format(name).option("header", True).save(f"{here}/rows.{name}")
    return here


def subtasks(state: Any, parallelism: int) -> Iterator[dict[str, Any]]:
    for subtask in range(parallelism):
        yield from state.to_arrow(subtask).drop_columns("key_group").to_pylist()


def restored(tmp_path: Path, name: str, parallelism: int = 7) -> list[dict[str, Any]]:
    store = StateStore.open(str(tmp_path / "store"))
    state = store.restore(parallelism=parallelism).keyed("totals-by-user", name)
    return list(subtasks(state, parallelism))


@pytest.mark.long
def test_a_job_that_runs_again_with_its_id_writes_nothing(
    rows_in: Path, run_job: RunJob, tmp_path: Path
) -> None:
    settings = SETTINGS + KEYED + PARQUET.replace("{here}", str(rows_in))
    for again in (False, True):
        done = run_job(job, settings, "--output", "json", "--set", "checkpoint_id=7")
        assert (done.code, done.report["checkpoint"]) == (0, 7)
        assert done.report["already_committed"] is again
        assert done.report["rows"] == 50
    done = run_job(job, settings, "--set", "checkpoint_id=7")
    assert done.out.splitlines()[0].endswith(
        "at parallelism 4 by an earlier run; this run wrote nothing"
    )
    assert StateStore.open(str(tmp_path / "store")).checkpoints() == (7,)
    assert run_job(job, settings, "--set", "checkpoint_id=3").code == 2


def test_a_batch_that_is_run_again_is_written_once(
    rows_in: Path, run_job: RunJob, tmp_path: Path
) -> None:
    """An edit has meanwhile taken the next checkpoint id."""
    settings = SETTINGS + KEYED + PARQUET.replace("{here}", str(rows_in))
    batches = [("--set", "job='totals'", "--set", f"batch={number}") for number in (7, 7, 8)]
    url, found = str(tmp_path / "store"), []
    for batch in batches:
        done = run_job(job, settings, "--output", "json", *batch)
        found.append((done.report["checkpoint"], done.report["already_committed"]))
        StateStore.open(url).maintenance.edit("totals-by-user", "totals", delete=[3])
    assert found == [(1, False), (1, True), (3, False)]
    assert run_job(job, settings, *batches[0]).code == 11
    assert run_job(job, settings, "--set", "batch=9").code == 2


SCHEMA = 'schema = "user_id BIGINT, total BIGINT"\n'


@pytest.mark.long_cases("parquet-")
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("parquet", ""),
        ("delta", ""),
        ("csv", f"options = {{header = true}}\n{SCHEMA}"),
        ("json", SCHEMA),
    ],
)
def test_every_source_format_is_read(
    name: str, more: str, rows_in: Path, run_job: RunJob, tmp_path: Path
) -> None:
    source = f'[keyed.source]\nformat = "{name}"\npath = "{rows_in}/rows.{name}"\n{more}'
    done = run_job(job, SETTINGS + KEYED + source, "--output", "json")
    assert (done.code, done.err) == (0, "")
    (state,) = done.report["states"]
    assert state["bytes"] > 0
    assert state | {"bytes": 0} == {
        "operator": "totals-by-user",
        "state": "totals",
        "kind": "value",
        "max_parallelism": 128,
        "rows": 50,
        "bytes": 0,
        "files": done.report["files"],
    }
    assert {row["user_id"]: row["total"] for row in restored(tmp_path, "totals")} == ROWS


def test_sql_over_the_source(rows_in: Path, run_job: RunJob, tmp_path: Path) -> None:
    sql = 'sql = "SELECT user_id, total / 10 AS tens FROM {source} WHERE total < 30"'
    source = PARQUET.replace("{here}", str(rows_in)) + sql
    assert run_job(job, SETTINGS + KEYED + source).code == 0
    rows = sorted(restored(tmp_path, "totals"), key=lambda row: row["user_id"])
    assert rows == [{"user_id": user, "tens": float(user)} for user in range(3)]


# Few key groups, because a row that is half of its key group would immediately be folded into the
# base.
FEW_GROUPS = KEYED.replace("128", "4")


@pytest.mark.parametrize(
    ("changes", "now"),
    [
        # All rows: user 7 has changed, and the job does not declare it.
        ("against-latest", "user_id, if(user_id = 7, 1L, total) AS total FROM {source}"),
        # Only the changed rows.
        ("upserts", "user_id, 1L AS total FROM {source} WHERE user_id = 7"),
    ],
)
def test_a_state_may_be_written_as_its_changes(
    changes: str, now: str, rows_in: Path, run_job: RunJob, tmp_path: Path
) -> None:
    source = PARQUET.replace("{here}", str(rows_in))
    state = SETTINGS + FEW_GROUPS + f'changes = "{changes}"\n' + source
    first = run_job(job, state, "--output", "json").report
    assert "changes" not in first["states"][0], "there was nothing to build on"
    # The second run uses the same checkpoint number, so it writes nothing.
    for again in (False, True):
        numbered = ("--set", "checkpoint_id=2", "--output", "json")
        report = run_job(job, state + f'sql = "SELECT {now}"', *numbered).report
        assert (report["already_committed"], report["states"][0]["changes"]) == (again, 1)
        assert report["states"][0]["files"] == first["states"][0]["files"] + 1
    rows = {row["user_id"]: row["total"] for row in restored(tmp_path, "totals", parallelism=3)}
    assert rows == ROWS | {7: 1}
    assert len(StateStore.open(str(tmp_path / "store")).checkpoint().manifest.keyed[0].layers) == 1


def test_sql_may_group_rows_or_replace_the_format(
    rows_in: Path, run_job: RunJob, tmp_path: Path
) -> None:
    sql = '''[keyed.source]
sql = """
SELECT user_id % 3 AS user_id, count(*) AS n, sum(total) AS total
FROM parquet.`{here}/rows.parquet` WHERE user_id < 9 GROUP BY user_id % 3"""
'''.replace("{here}", str(rows_in))
    assert run_job(job, SETTINGS + KEYED + sql).code == 0
    assert sorted(restored(tmp_path, "totals"), key=lambda row: row["user_id"]) == [
        {"user_id": 0, "n": 3, "total": 90},
        {"user_id": 1, "n": 3, "total": 120},
        {"user_id": 2, "n": 3, "total": 150},
    ]


KINDS = """
[[keyed]]
operator = "totals-by-user"
state = "visits"
kind = "list"
key = ["user"]
entry = ["at"]
source = {format = "json", path = "{here}/visits.json"}
[[keyed]]
operator = "totals-by-user"
state = "per_country"
kind = "map"
key = ["user"]
entry = ["country"]
source = {format = "json", path = "{here}/countries.json"}
[[keyed]]
operator = "totals-by-user"
state = "alarms"
kind = "timers"
key = ["user"]
namespace = ["window"]
entry = ["timestamp"]
time_domain = "event"
source = {format = "json", path = "{here}/alarms.json"}
[[operator_state]]
operator = "orders-source"
state = "offsets"
mode = "union"
source = {format = "json", path = "{here}/offsets.json"}
[[operator_state]]
operator = "rules"
state = "rules"
mode = "broadcast"
source = {format = "json", path = "{here}/rules.json"}
"""


@pytest.mark.usefixtures("spark")
def test_all_kinds_become_visible_together(run_job: RunJob, tmp_path: Path) -> None:
    for name, text in {
        "visits": '{"user": "a", "at": 0, "page": "x"}\n{"user": "a", "at": 1, "page": "y"}',
        "countries": '{"user": "a", "country": "DE", "n": 1}\n{"user": "a", "country": "FR"}',
        "alarms": '{"user": "a", "window": 1, "timestamp": 99}',
        "offsets": '{"subtask": 3, "topic": "t", "partition": 0, "offset": 5}',
        "rules": '{"rule": "block"}',
    }.items():
        (tmp_path / f"{name}.json").write_text(text)
    report = run_job(job, SETTINGS + KINDS, "--output", "json").report
    assert report["checkpoint"] == 1
    assert {(each["state"], each["kind"], each["rows"]) for each in report["states"]} == {
        ("visits", "list", 2),
        ("per_country", "map", 2),
        ("alarms", "timers", 1),
        ("offsets", "union", 1),
        ("rules", "broadcast", 1),
    }
    checkpoint = StateStore.open(str(tmp_path / "store")).restore(parallelism=2)
    offset = {"topic": "t", "partition": 0, "offset": 5}
    offsets = checkpoint.operator_state("orders-source", "offsets")
    assert offsets.per_old_subtask() == [[], [], [], [offset]]
    assert checkpoint.operator_state("rules", "rules").subtask(1) == [{"rule": "block"}]


@pytest.mark.long
def test_as_text_and_as_delta_table(
    spark: SparkSession,
    rows_in: Path,
    run_job: RunJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STATESTORE_TABLE_FORMAT", "delta")
    source = PARQUET.replace("{here}", str(rows_in))
    done = run_job(job, SETTINGS + KEYED + source)
    assert done.err == "totals-by-user/totals: 50 rows\n"
    first, header, line = done.out.splitlines()
    assert first == f"checkpoint 1 of {tmp_path}/store, taken at parallelism 4"
    assert header.split() == ["operator", "state", "kind", "rows", "bytes", "files"]
    assert line.split()[:4] == ["totals-by-user", "totals", "value", "50"]
    table = f"{tmp_path}/store/operators/totals-by-user/keyed/totals"
    assert spark.read.format("delta").load(table).count() == 50


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            "path='/nowhere'",
            2,
            "state 'totals' of operator 'totals-by-user': Spark rejected the settings: [PATH",
        ),
        ("sql='nonsense >'", 2, "Spark rejected the settings: [PARSE_SYNTAX_ERROR]"),
        ("sql='SELECT amount FROM {source}'", 2, "rejected the settings: [UNRESOLVED_COLUMN"),
        ("format='parkuet'", 2, "Spark rejected the settings: [DATA_SOURCE_NOT_FOUND]"),
        ("sql='SELECT total FROM {source}'", 2, "user_id"),
        ("sql='SELECT NULL AS user_id FROM {source}'", 2, "user_id"),
        ("sql='SELECT CAST(NULL AS BIGINT) AS user_id FROM {source}'", 2, "null"),
        ("sql='SELECT 1 AS user_id FROM {source}'", 2, "user_id"),
    ],
)
def test_an_error_is_one_sentence_and_commits_nothing(
    change: str, code: int, message: str, rows_in: Path, run_job: RunJob, tmp_path: Path
) -> None:
    source = PARQUET.replace("{here}", str(rows_in))
    done = run_job(job, SETTINGS + KEYED + source, "--set", f"keyed.0.source.{change}")
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert message in done.err
    assert StateStore.open(str(tmp_path / "store")).checkpoints() == ()
