"""``statestore check`` and ``contract``: kinds of states and jobs, output, and errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession

from statestore import StateStore
from statestore.cli.main import cli
from statestore.streaming import QueryState, StatefulQuery
from tests.interop.flink.goldens import FOLDER, Golden
from tests.interop.spark.queries import settings

JOB = """
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from statestore import StateStore
from statestore.streaming import StatefulQuery


def declare(checkpoint):
    columns = pa.schema([("user", pa.string()), ("n", pa.{type}())])
    checkpoint.declare_keyed("totals", "by-user", columns, key="user")


def keep(spark):
    store = StateStore.open({store!r})
    states = {{"by-user": "user string, n {ddl}"}}
    return StatefulQuery(
        store=store, operator="totals", key="user", states=states, update=None, parallelism=1
    )


def count(spark):
    rows = spark.readStream.schema("user string, n long").json({folder!r})
    return rows.groupBy("user").agg(F.count("*").alias("n"))


def nothing(spark):
    return 7


class Counting(StatefulProcessor):
    def init(self, handle):
        self.n = handle.getValueState("by-user", "n {ddl}")

    def handleInputRows(self, key, rows, timerValues):
        yield from ()

    def close(self):
        pass
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A store with totals by user, and a job that declares the same."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    rows = [{"user": "ann", "n": 1}, {"user": "bob", "n": 2}]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("totals", "by-user", rows, key="user")
    (tmp_path / "orders").mkdir()
    return write_job(tmp_path, "int64", "long")


def write_job(folder: Path, arrow_type: str, ddl: str) -> Path:
    file = folder / "job.py"
    names = {"store": str(folder / "store"), "folder": str(folder / "orders")}
    file.write_text(JOB.format(type=arrow_type, ddl=ddl, **names))
    return file


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in arguments], prog_name="statestore")


def verdicts(*arguments: Any) -> tuple[int, dict[str, str]]:
    done = run("check", *arguments, "--output", "json")
    document = json.loads(done.stdout)
    states = document["states"]
    return done.exit_code, {
        f"{each['operator']}/{each['state']}": each["verdict"] for each in states
    }


def test_a_job_on_a_store_is_checked_from_the_store_and_from_a_lock(job: Path) -> None:
    store, lock = job.parent / "store", job.parent / "state.lock"
    assert run("contract", store, "--to", lock).exit_code == 0
    assert verdicts(store, f"{job}:declare") == (0, {"totals/by-user": "same"})
    write_job(job.parent, "string", "string")
    for old in ([store], ["--lock", lock]):
        assert verdicts(*old, f"{job}:declare") == (12, {"totals/by-user": "does not fit"})
    text = run("check", store, f"{job}:declare")
    assert "'n' was stored as long, which cannot be widened to string" in text.stdout
    assert "(2 rows, " in text.stdout
    assert "totals/by-user does not fit" in text.stderr


def test_markdown_is_a_table_for_a_pull_request(job: Path) -> None:
    done = run("check", job.parent / "store", f"{job}:declare", "--output", "markdown")
    lines = done.stdout.splitlines()
    assert lines[0] == f"### State: `{job}:declare` fits"
    assert lines[2:4] == [
        "| state | verdict | reason | cost | mend |",
        "| --- | --- | --- | --- | --- |",
    ]
    assert lines[4].startswith("| `totals/by-user` | same |")


def test_a_lost_state_is_allowed_by_name(job: Path) -> None:
    job.write_text(job.read_text().replace('"by-user"', '"by-shop"'))
    store = job.parent / "store"
    lost = {"totals/by-user": "is lost", "totals/by-shop": "begins empty"}
    assert verdicts(store, f"{job}:declare") == (12, lost)
    for name in ("totals/by-user", "totals"):
        assert verdicts(store, f"{job}:declare", "--allow", f"lost={name}") == (0, lost)
    typo = run("check", store, f"{job}:declare", "--allow", "lost=other")
    assert typo.exit_code == 2
    names = "totals, totals/by-shop, totals/by-user"
    assert f"--allow names 'other', which is none of {names}" in typo.stderr


def test_a_lock_says_whether_production_is_the_same(job: Path) -> None:
    store, lock = job.parent / "store", job.parent / "state.lock"
    run("contract", store, "--to", lock)
    again = run("contract", store, "--to", lock, "--output", "json")
    assert json.loads(again.stdout)["is_changed"] is False
    assert run("check", "--lock", lock, "--locked", store).exit_code == 0
    with StateStore.open(str(store)).snapshot(parallelism=1) as checkpoint:
        rows = [{"user": "ann", "n": 1, "last": 2}]
        checkpoint.write_keyed("totals", "by-user", rows)
    differs = run("check", "--lock", lock, "--locked", store)
    assert differs.exit_code == 1
    assert '+last = "long"' in differs.stdout
    assert run("check", "--lock", lock, "--locked", store, "--checkpoint", 1).exit_code == 0


def test_two_places_are_compared(job: Path) -> None:
    store = job.parent / "store"
    assert verdicts(store, store) == (0, {"totals/by-user": "same"})


def test_savepoints_and_a_store_of_one_are_compared_by_the_rules_of_flink(tmp_path: Path) -> None:
    savepoint = Golden("2.3_heap_canonical").unpack(tmp_path / "savepoint")
    store, lock = tmp_path / "store", tmp_path / "state.lock"
    assert run("flink", "import", savepoint, "--store", store).exit_code == 0
    assert run("contract", savepoint, "--to", lock).exit_code == 0
    assert run("check", "--lock", lock, "--locked", savepoint).exit_code == 0
    for old in ([savepoint], ["--lock", lock], [store]):
        status, found = verdicts(*old, savepoint)
        others = {name for name, verdict in found.items() if verdict != "same"}
        assert (status, others, len(found) > 30) == (12, {"kinds/opaque"}, True)
        assert verdicts(*old, savepoint, "--allow", "unknown=kinds/opaque")[0] == 0
    plan = FOLDER / "2.3_plan.json"
    status, found = verdicts(savepoint, plan)
    assert (status, "is lost" in found.values()) == (12, True)


def test_the_named_commands_mend_a_savepoint(tmp_path: Path) -> None:
    """The savepoint that they make has what the new version reads, and nothing else."""
    old = Golden("2.3_heap_canonical").unpack(tmp_path / "old")
    new, mended, table = (tmp_path / name for name in ("new", "mended", "added.parquet"))
    pq.write_table(pa.table({"key": pa.array([1], pa.int64()), "value": ["a"]}), table)

    def place(word: str) -> str:
        places = {"TABLE": table, "STORE": tmp_path / "store", "NEW": mended}
        return str(places.get(word, word))

    assert run("flink", "import", old, "--store", place("STORE")).exit_code == 0
    other = shutil.copytree(place("STORE"), tmp_path / "other")
    make = ("bootstrap", table, "--state", "by_long/added", "--store", other)
    assert run(*make, "--key-column", "key").exit_code == 0
    less = ("--leave-out", "by_long/texts", "--leave-out", "kinds", "--store", other)
    assert run("flink", "export", new, *less).exit_code == 0
    remedies: dict[str, set[str]] = {}
    for each in json.loads(run("check", old, new, "--output", "json").stdout)["states"]:
        remedies.setdefault(each["verdict"], set()).add(each["remedy"])
    (empty,) = remedies["begins empty"]
    assert empty == "statestore bootstrap TABLE --state by_long/added --store STORE"
    assert run(*map(place, empty.split()[1:]), "--key-column", "key").exit_code == 0
    texts, kinds = sorted(remedies["is lost"])
    words = [*kinds.split()[1:], *texts.split()[4:6]]
    assert run(*map(place, words)).exit_code == 0, (texts, kinds)
    assert verdicts(mended, new) == (0, dict.fromkeys(verdicts(mended, new)[1], "same"))


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["{store}"], 2, "name the OLD state or its --lock, and the NEW job"),
        (["{folder}", "{job}:declare"], 2, "has no state: it has no statestore.json"),
        (["{store}", "{job}:missing"], 2, "has no function 'missing'"),
        (["{store}", "{folder}/none.py:declare"], 2, "there is no file"),
        (["{store}", "{job}"], 2, "name the function of the job, as"),
        (["{store}", "{job}:declare", "--lock", "x"], 2, "or its --lock, not both"),
        (["{store}", "{job}:declare", "--allow", "totals"], 2, "must be lost=NAME"),
        (["--lock", "{folder}/none.lock", "{job}:declare"], 2, "cannot be read"),
        (["--locked", "{store}"], 2, "--locked compares a state with --lock FILE"),
    ],
)
def test_wrong_calls_are_refused(
    job: Path, arguments: list[str], status: int, message: str
) -> None:
    folder = job.parent
    names = {"job": job, "folder": folder, "store": folder / "store"}
    done = run("check", *(each.format(**names) for each in arguments))
    assert (done.exit_code, message in done.stderr) == (status, True), done.stderr


def test_queries_and_processors(job: Path, spark: SparkSession) -> None:
    """A StatefulQuery, a processor's class, and a query of Spark on the state of a store."""
    store = job.parent / "store"
    assert verdicts(store, f"{job}:keep") == (0, {"totals/by-user": "same"})
    done = run("check", store, f"{job}:nothing")
    assert "must return a streaming DataFrame, a StatefulQuery" in done.stderr
    assert "none of its parameters is named 'checkpoint'" in done.stderr
    done = run("check", store, f"{job}:count", "--output-mode", "update")
    assert "the old state is of engine 'store', and the new job of 'spark'" in done.stderr
    location = job.parent / "location"

    def update(events: DataFrame, states: object, batch: object) -> dict[str, DataFrame]:
        return {"by-user": events.groupBy("user").count().toDF("user", "n")}

    query = StatefulQuery(
        store=StateStore.open(str(job.parent / "other"), spark=spark),
        operator="totals",
        key="user",
        states={"by-user": QueryState("user string, n long")},
        update=update,
        parallelism=1,
    )
    events = spark.readStream.schema("user string").json(str(job.parent / "orders"))
    (job.parent / "orders" / "1.json").write_text('{"user": "ann"}\n')
    query.start(events, str(location), available_now=True).awaitTermination()
    assert verdicts(job.parent / "other", f"{job}:keep") == (0, {"totals/by-user": "same"})
    write_job(job.parent, "int64", "string")
    assert verdicts(job.parent / "other", f"{job}:keep") == (12, {"totals/by-user": "does not fit"})


def test_a_location_is_checked_from_a_lock_and_from_an_import(
    job: Path, spark: SparkSession
) -> None:
    location, lock = job.parent / "location", job.parent / "state.lock"
    (job.parent / "orders" / "1.json").write_text('{"user": "ann", "n": 1}\n')
    rows = spark.readStream.schema("user string, n long").json(str(job.parent / "orders"))
    totals = rows.groupBy("user").count().writeStream.outputMode("update")
    totals = totals.format("noop")
    with settings(spark, {"spark.sql.shuffle.partitions": "2"}):
        started = totals.option("checkpointLocation", str(location))
        started.trigger(availableNow=True).start().awaitTermination()
    assert run("contract", location, "--to", lock).exit_code == 0
    same = {"stateStoreSave-0/default": "same"}
    status, found = verdicts("--lock", lock, f"{job}:count", "--output-mode", "update")
    assert (status, found) == (0, same)
    told = run(
        *("check", "--lock", lock, f"{job}:count", "--output-mode", "update"),
        *("--conf", "spark.sql.shuffle.partitions=3"),
    )
    assert "keeps its 2 shuffle partitions; the session's 3 have no effect" in told.stdout
    assert "mend: statestore spark repartition" in told.stdout
    imported = job.parent / "imported"
    assert run("spark", "import", location, "--store", imported).exit_code == 0
    count = (imported, f"{job}:count", "--output-mode", "update")
    assert verdicts(*count) == (0, same)
    assert "stateStoreSave-0/default (1 row, " in run("check", *count).stdout
    assert verdicts(imported, imported) == (0, same)  # without the record of the import
    job.write_text(job.read_text().replace('F.count("*")', 'F.max("user")'))
    for old in (location, imported):
        status, found = verdicts(old, *count[1:])
        assert (status, found) == (12, {"stateStoreSave-0/default": "does not fit"})
