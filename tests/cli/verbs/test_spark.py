"""``statestore spark``: show, import and export a query's checkpoint location."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.cli.command import Verb
from statestore.cli.main import cli
from statestore.cli.verbs import spark as verbs
from statestore.errors import StateNotFoundError
from tests.interop.spark.queries import QUERIES, events
from tests.interop.spark.queries import run as run_query

Run = Callable[..., Result]
UID = "stateStoreSave-0"


@pytest.fixture(scope="module")
def orders(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint location with four partitions after micro-batch 1."""
    folder = tmp_path_factory.mktemp("orders")
    location = str(folder / "checkpoints")
    events(folder / "events", 0, 2)
    run_query(
        spark,
        QUERIES["agg"],
        source=folder / "events",
        location=location,
        provider="hdfs",
        partitions=4,
    )
    return folder / "checkpoints"


@pytest.fixture
def here(orders: Path, run: Run) -> Path:
    """A working folder with the location in ``checkpoints/orders``. ``run`` has changed to it."""
    shutil.copytree(orders, "checkpoints/orders")
    return Path.cwd()


def document(done: Result) -> Any:
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


def write_job() -> None:
    """Write a query that has never run, a table for its state, and an event."""
    Path("events").mkdir()
    Path("events/1.json").write_text('{"k": "a", "v": 5}')
    Path("job.py").write_text(
        "from pathlib import Path\n\n"
        "def build(spark):\n"
        "    events = str(Path('events').resolve())\n"
        "    rows = spark.readStream.schema('k string, v long').json(events)\n"
        "    return rows.groupBy('k').sum('v')\n"
    )
    pq.write_table(pa.table({"k": ["a", "b"], "sum": [7, None]}), "totals.parquet")


@pytest.mark.long
def test_examples_work(here: Path, run: Run) -> None:
    examples = list(verbs.spark.examples)
    shutil.copytree("checkpoints/orders", "before")
    write_job()
    for name in ("show", "repartition", "import", "export", "progress", "bootstrap"):
        verb = verbs.spark.get_command(click.Context(cli), name)
        assert isinstance(verb, Verb)
        examples += verb.examples
    assert len(examples) == 18
    for example in examples:
        for place in ("./new", "./progress", "./checkpoints/orders-7", "./orders-7", "./at-7"):
            shutil.rmtree(place, ignore_errors=True)
        done = run(*shlex.split(example)[1:])
        assert (done.exit_code, done.stderr) == (0, ""), example
        assert done.stdout


@pytest.mark.long
def test_show_describes_the_location(here: Path, run: Run) -> None:
    shown = document(run("spark", "show", "checkpoints/orders", "--output", "json"))
    assert (shown["batch"], shown["kept"]) == (1, [0, 1])
    assert (shown["uncommitted"], shown["provider"]) == (None, "hdfs")
    assert shown["sources"] == ['{"logOffset":1}']
    (operator,) = shown["operators"]
    assert (operator["name"], operator["does"]) == ("stateStoreSave", "aggregation")
    (store,) = operator["stores"]
    assert (store["name"], store["key"]) == ("default", "struct<k:string>")
    assert len(store["rows"]) == len(store["file_bytes"]) == 4
    assert sum(store["rows"]) == 12
    text = run("spark", "show", "checkpoints/orders", "0").stdout
    for line in (
        f"query {shown['query_id']} in ",
        "  micro-batch  0 (0 to 1 are completed and kept)",
        "  provider     hdfs, checkpoint format 1",
        'ends at {"logOffset":0}',
        "operator 0: stateStoreSave, aggregation",
        "  store default: 12 rows, ",
    ):
        assert line in text


def test_a_planned_micro_batch_is_shown(here: Path, run: Run) -> None:
    Path("checkpoints/orders/commits/1").unlink()
    done = run("spark", "show", "checkpoints/orders")
    assert "1 is planned and will run again" in done.stdout


def test_state_that_cannot_be_imported_is_shown_with_the_reason(here: Path, run: Run) -> None:
    metadata = Path("checkpoints/orders/state/0/_metadata/metadata")
    metadata.with_name(".metadata.crc").unlink()
    metadata.write_text(metadata.read_text().replace("stateStoreSave", "somethingNew"))
    done = run("spark", "show", "checkpoints/orders")
    assert "cannot be imported: the operator somethingNew is not supported" in done.stdout
    refused = run("spark", "import", "checkpoints/orders", "--store", "./orders")
    assert "operator 0 of " in refused.stderr
    assert not Path("orders").exists()


def test_import_and_export_report_their_work(here: Path, run: Run) -> None:
    first = document(
        run("spark", "import", "checkpoints/orders", "0", "--store", "o", "--output=json")
    )
    assert (first["checkpoint_id"], first["batch"]) == (1, 0)
    assert (first["found"], first["is_incremental"]) == (False, False)
    assert run("list", "--store", "o").stdout.splitlines()[1].endswith("  spark import")
    done = run("spark", "import", "checkpoints/orders", "--store", "o")
    assert done.stdout.startswith("imported micro-batch 1 of query ")
    assert "as checkpoint 2 of " in done.stdout
    assert "only the changes since the previous one" in done.stdout
    again = run("spark", "import", "checkpoints/orders", "--store", "o")
    assert "was already imported: it is checkpoint 2 of " in again.stdout
    (row,) = StateStore.open("o").restore().keyed(UID, "default").get("k1")
    assert (row["k"], row["count"]) == ("k1", row["count_2"])

    planned = document(
        run(
            *("spark", "export", "new", "--shuffle-partitions", "3", "--dry-run"),
            *("--store", "o", "--output", "json"),
        )
    )
    assert not Path("new").exists()
    exported = run("spark", "export", "new", "--shuffle-partitions", "3", "--store", "o")
    assert "read back    by Spark: rows, values and partitions are correct" in exported.stdout
    shown = document(run("spark", "show", "new", "--output", "json"))
    (before,), (after,) = planned["stores"], shown["operators"][0]["stores"]
    assert before["rows"] == after["rows"]
    assert shown["query_id"] == planned["query_id"] == first["query_id"]


@pytest.fixture
def salvaged(here: Path, run: Run) -> StateStore:
    """The imported query after a salvage that gave up a file of its state."""
    document(run("spark", "import", "checkpoints/orders", "--store", "o", "--output", "json"))
    store = StateStore.open("o")
    (entry,) = (one for one in store.checkpoint().manifest.keyed if one.state.uid == UID)
    file = Path("o", entry.table.name_of(entry.handles[0]))
    file.write_bytes(file.read_bytes()[:-9])
    done = run("repair", "latest", "--store", "o")
    assert done.exit_code == 0
    assert store.checkpoint().manifest.left_out
    assert all(f"  left out  {one}" in done.stdout for one in store.checkpoint().manifest.left_out)
    return store


EXPORT = ("spark", "export", "new", "--shuffle-partitions", "3", "--store", "o")


def test_an_export_refuses_to_lose_rows(salvaged: StateStore, run: Run) -> None:
    refused = run(*EXPORT)
    assert (refused.exit_code, refused.stdout) == (12, "")
    assert f"--leave-out '{salvaged.checkpoint().manifest.left_out[0].label}'" in refused.stderr
    unknown = run(*EXPORT, "--leave-out", f"{UID}/other")
    assert (unknown.exit_code, unknown.stdout) == (StateNotFoundError.exit_code, "")
    assert f"'{UID}/other' cannot be left out" in unknown.stderr
    assert not Path("new").exists()
    progress = run("spark", "progress", "progress", "--store", "o")
    assert all(
        f"  left out  {one}" in progress.stdout for one in salvaged.checkpoint().manifest.left_out
    )


@pytest.mark.long
def test_a_query_continues_without_rows_that_are_named(
    salvaged: StateStore, here: Path, orders: Path, run: Run, spark: SparkSession
) -> None:
    """Spark starts with no state for the lost keys, and continues with the other ones."""
    records = salvaged.checkpoint().manifest.left_out
    named = [part for record in records for part in ("--leave-out", record.label)]
    planned = document(run(*EXPORT, *named, "--dry-run", "--output", "json"))
    assert len(planned["left_out"]) == len(records)
    done = run(*EXPORT, *named)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("exported part of checkpoint 2 of ")
    assert all(f"  left out     {record}" in done.stdout for record in records)

    source = orders.parent / "events"
    events(source, 2, 3)
    emitted = run_query(
        spark,
        QUERIES["agg"],
        source=source,
        location=str(here / "new"),
        provider="hdfs",
        partitions=3,
    )
    assert list(emitted) == [2]
    counts = {row.get("k"): row["n"] for row in map(json.loads, emitted[2])}
    rows = salvaged.restore(parallelism=1).keyed(UID, "default").to_arrow(0).to_pylist()
    old = Counter({row["k"]: row["count"] for row in rows})
    lines = (source / "00002.json").read_text().splitlines()
    new = Counter(json.loads(line)["k"] for line in lines)
    assert counts == {key: new[key] + old[key] for key in new}
    assert old.keys() & new.keys()
    assert new.keys() - old.keys()


def test_an_invalid_location_is_refused_before_spark_starts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "open_session", lambda location: pytest.fail("Spark is started"))
    for arguments in (("show",), ("import", "--store", "s")):
        done = run("spark", *arguments, str(tmp_path))
        assert done.exit_code == 2
        assert "is not a checkpoint location of a query" in done.stderr


@pytest.mark.long
def test_repartition_reports_the_new_location(here: Path, run: Run) -> None:
    words = ("spark", "repartition", "checkpoints/orders", "new", "--shuffle-partitions", "3")
    planned = document(run(*words, "--dry-run", "--output", "json"))
    assert (planned["dry_run"], Path("new").exists()) == (True, False)
    done = run(*words)
    assert (done.exit_code, done.stderr) == (0, "")
    first, to, query, partitions, source, proof, *_ = done.stdout.splitlines()
    assert first == f"repartitioned micro-batch 1 of {here}/checkpoints/orders"
    assert (to, query) == (f"  to           {here}/new", f"  query        {planned['query_id']}")
    assert partitions == "  partitions   3, provider hdfs"
    assert source == '  source 0     continues after {"logOffset":1}'
    assert proof == "  read back    by Spark: rows, values and partitions are correct"
    shown = document(run("spark", "show", "new", "--output", "json"))
    (store,) = shown["operators"][0]["stores"]
    assert store["rows"] == planned["stores"][0]["rows"]
    again = run(*words)
    assert again.exit_code == 2
    assert "new is not empty" in again.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("sources", "positions"),
    [
        (("0=orders", "=returns"), {"orders": '{"logOffset":1}'}),
        (("=0",), {"0": "-", "1": '{"logOffset":1}'}),
    ],
)
def test_sources_are_changed_on_the_way(
    here: Path, run: Run, sources: tuple[str, ...], positions: dict[str, str]
) -> None:
    words = ("spark", "repartition", "checkpoints/orders", "new", "--shuffle-partitions", "3")
    changes = [word for source in sources for word in ("--rename-source", source)]
    done = document(run(*words, *changes, "--dry-run", "--output", "json"))
    assert done["sources"] == positions


def test_the_name_of_an_operator_is_passed_once(here: Path, run: Run) -> None:
    names = ("--operator-name", "0=a", "--operator-name", "00=b")
    done = run("spark", "show", "checkpoints/orders", *names)
    assert done.exit_code == 2
    assert "--operator-name is passed twice for 0" in done.stderr


@pytest.mark.parametrize(
    ("source", "message"), [("0", "is not OLD=NEW"), ("7=x", "has no source '7'; it has 0")]
)
def test_wrong_changes_of_sources_are_refused(
    here: Path, run: Run, source: str, message: str
) -> None:
    words = ("spark", "repartition", "checkpoints/orders", "new", "--shuffle-partitions", "3")
    done = run(*words, "--rename-source", source)
    assert done.exit_code == 2
    assert message in done.stderr


ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
NEW = ("spark", "bootstrap", "job.py:build", "./new", "--output-mode", "update")
STATE = "stateStoreSave-0/default"


@pytest.mark.long
@pytest.mark.spark
def test_a_new_query_is_planned_and_starts_with_a_csv_file(run: Run) -> None:
    write_job()
    Path("totals.csv").write_text("k,sum\na,7\nb,\n")
    plan = document(run("spark", "bootstrap", "job.py:build", *NEW[4:], "--output", "json"))
    (state,) = plan["states"]
    assert (f"{state['operator']}/{state['state']}", state["does"]) == (STATE, "aggregation")
    assert [(column["name"], column["type"]) for column in state["columns"]] == [
        ("k", "string"),
        ("sum", "bigint"),
    ]
    words = (
        *(*NEW, "--from-table", f"{STATE}=totals.csv"),
        *("--conf", "spark.sql.shuffle.partitions=3"),
        *("--conf", f"spark.sql.streaming.stateStore.providerClass={ROCKSDB}"),
    )
    done = run(*words, "--fingerprint", plan["fingerprint"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"wrote {Path.cwd()}/new" in done.stdout
    assert "  partitions   3, provider rocksdb" in done.stdout
    shown = document(run("spark", "show", "new", "--output", "json"))
    assert sum(shown["operators"][0]["stores"][0]["rows"]) == 2
    again = run(*words)
    assert again.exit_code == 2
    assert "new is not empty" in again.stderr


@pytest.mark.spark
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("job.py:none",), "job.py has no function 'none'"),
        (("none.py:build",), "there is no file none.py with the job"),
        (("job.py",), "must name a function"),
        (("job.py:Path", "./new"), "job.py:Path failed: TypeError"),
        (("broken.py:build",), "cannot load broken.py: NameError: name 'spark' is not defined"),
        (("job.py:build", "--from-table", f"{STATE}="), "name the NEW location"),
        (
            ("job.py:build", "--fingerprint", "f", "--dry-run"),
            "--fingerprint, --dry-run have an effect only with the NEW location",
        ),
        (
            ("job.py:build", "--watermark", "2026-11-27T10:00:00Z"),
            "--watermark has an effect only with the NEW location",
        ),
        (
            (
                "job.py:build",
                "./new",
                "--from-table",
                f"{STATE}=",
                "--watermark",
                "2026-11-27T10:00:00Z",
            ),
            "the query has no watermark",
        ),
        (("job.py:build", "./new", "--from-table", "x="), f"no table is given for {STATE}"),
        (("job.py:build", "./new", "--from-table", "x=y"), "the query has no state 'x'"),
        (("job.py:build", "./new", "--from-table", "x"), "must have the form STATE=[PLACE]"),
        (("job.py:build", "./new", "--watermark", "soon"), "a time is 2026-11-27T10:00:00Z"),
        (("job.py:build", "./new", "--files-after", "2026-11-27"), "has no time zone; add Z for"),
        (("job.py:build", "./new", "--from-sql", f"{STATE}=SELECT 1 AS k"), "column 'k' is int"),
        (
            (
                "job.py:build",
                "./new",
                "--from-table",
                f"{STATE}=",
                "--from-table",
                f"{STATE}=totals.parquet",
            ),
            "is passed twice for stateStoreSave-0/default",
        ),
    ],
)
def test_what_is_wrong_with_a_new_query_is_said(
    run: Run, words: tuple[str, ...], message: str
) -> None:
    write_job()
    Path("broken.py").write_text("rows = spark.readStream\n")
    done = run("spark", "bootstrap", *words, "--output-mode", "update")
    assert done.exit_code in (2, 12)
    assert message in done.stderr
    assert not Path("new").exists()


def processes_with(variable: str) -> list[str]:
    """Return the commands of all processes with a variable in their environment."""
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or is another user's
            if variable in (folder / "environ").read_text(errors="replace").split("\0"):
                commands.append((folder / "cmdline").read_text().replace("\0", " "))
    return commands


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.0, 1.0, 3.0])
def test_ctrl_c_ends_a_command_that_runs_spark(tmp_path: Path, seconds: float) -> None:
    """Neither Spark's own handler nor Py4J adds a traceback, and no JVM stays, even a new one."""
    location = Path(__file__).parents[2] / "golden" / "spark_real_time" / "aggregation"
    command = (sys.executable, "-m", "statestore", "spark", "import", str(location))
    mark = f"STATESTORE_TEST={tmp_path}"
    with subprocess.Popen(
        [*command, "--store", str(tmp_path / "store")],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "STATESTORE_TEST": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stderr is not None
        while not any("SparkSubmit" in command for command in processes_with(mark)):
            time.sleep(0.05)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    assert (process.returncode, errors.strip()) == (130, "interrupted")
    deadline = time.monotonic() + 30
    while processes_with(mark):
        assert time.monotonic() < deadline, "the JVM still runs"
        time.sleep(0.1)
