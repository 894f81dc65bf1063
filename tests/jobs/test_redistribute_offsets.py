from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.redistribute_offsets import redistribute_offsets as job
from statestore import StateStore
from statestore.format.left_out import LeftOutState
from tests.jobs.conftest import RunJob
from tests.syntax import ROOT

pytestmark = pytest.mark.spark

SETTINGS = """
parallelism = 3
[offsets]
operator = "orders-source"
state = "offsets"
"""
OLD = [[("orders", 1, 1000), ("orders", 2, 1500)], [("orders", 3, 2000), ("orders", 4, 2200)]]


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """A store with two subtasks that have two partitions each, as split, union and
    broadcast state.
    """
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    fields = ("topic", "partition", "offset")
    elements = [[dict(zip(fields, offset, strict=True)) for offset in old] for old in OLD]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_split("orders-source", "offsets", elements)
        checkpoint.write_union("orders-source", "as_union", elements)
        checkpoint.write_broadcast("orders-source", "as_broadcast", elements[0])
        checkpoint.write_split("orders-source", "other", [[{"a": 1}], []])
    return store


@pytest.mark.usefixtures("store")
def test_two_consumers_become_three(run_job: RunJob) -> None:
    done = run_job(job, SETTINGS)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "checkpoint 1, split state 'offsets' of operator 'orders-source', parallelism 2 -> 3",
        "subtask  topic   partition  offset",
        "      0  orders          1    1000",
        "      0  orders          2    1500",
        "      1  orders          3    2000",
        "      2  orders          4    2200",
    ]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("name", ["offsets", "as_union"])
@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_every_partition_goes_to_exactly_one(run_job: RunJob, name: str, parallelism: int) -> None:
    arguments = ("--set", f"parallelism={parallelism}", "--set", f"offsets.state='{name}'")
    report = run_job(job, SETTINGS, *arguments, "--output", "json").report
    assert len(report["subtasks"]) == parallelism
    given = [
        (offset["topic"], offset["partition"], offset["offset"])
        for subtask in report["subtasks"]
        for offset in subtask["offsets"]
    ]
    assert sorted(given) == sorted(offset for old in OLD for offset in old)


def test_a_partial_state_is_named(store: StateStore, run_job: RunJob) -> None:
    """I16: a partition whose offset was lost is read from the source's default position."""
    lost, other = (
        LeftOutState(operator=uid, state=None, reason="damaged", command="salvage")
        for uid in ("orders-source", "sums")
    )
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.collected.record(left_out=[replace(lost, state="offsets"), other])
        checkpoint.carry_rest()
    done = run_job(job, SETTINGS)
    assert done.out.splitlines()[-1] == "left out  orders-source/offsets (damaged)"
    report = run_job(job, SETTINGS, "--output", "json").report
    assert report["left_out"] == ["orders-source/offsets (damaged)"]
    whole = run_job(job, SETTINGS, "--set", "offsets.state='as_union'", "--output", "json").report
    assert whole["left_out"] == []


@pytest.mark.usefixtures("store")
def test_consumers_without_a_partition_are_named(run_job: RunJob) -> None:
    done = run_job(job, SETTINGS, "--set", "parallelism=6")
    assert done.out.splitlines()[-1] == "subtasks without a partition: 4, 5"


@pytest.mark.usefixtures("store")
def test_the_files(run_job: RunJob, tmp_path: Path) -> None:
    files = '[files]\nper_subtask = "{here}/all.json"\nstarting_offsets = "{here}/s-{subtask}.json"'
    done = run_job(job, SETTINGS + files, "--output", "json")
    assert json.loads((tmp_path / "all.json").read_text()) | {"attempts": 1} == done.report
    assert [(tmp_path / f"s-{i}.json").read_text() for i in range(3)] == [
        '{"orders":{"1":1000,"2":1500}}\n',
        '{"orders":{"3":2000}}\n',
        '{"orders":{"4":2200}}\n',
    ]
    one = files.replace("s-{subtask}", "s")
    assert run_job(job, SETTINGS + one).code == 0
    assert (tmp_path / "s.json").read_text() == (
        '{"orders":{"1":1000,"2":1500,"3":2000,"4":2200}}\n'
    )


def test_a_file_inside_a_store_is_refused_before_any_is_written(
    run_job: RunJob, store: StateStore, tmp_path: Path
) -> None:
    files = f'[files]\nper_subtask = "{{here}}/all.json"\nstarting_offsets = "{store.url}/s.json"'
    done = run_job(job, SETTINGS + files)
    assert (done.code, "is inside the store" in done.err) == (2, True)
    assert not (tmp_path / "all.json").exists()


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ("--set offsets.state='as_broadcast'", 2, "offsets cannot be broadcast"),
        ("--set offsets.state='other'", 2, "an offset requires the field 'topic'"),
        ("--set offsets.state='offset'", 10, "no state 'offset' in operator 'orders-source'"),
        ("--set checkpoint=9", 10, "no checkpoint 9"),
        ("--store nowhere", 10, "no store at"),
        ("--store ftp://host/x", 2, "a store cannot use ftp://"),
    ],
)
def test_an_error_is_one_line_with_its_code(
    run_job: RunJob, change: str, code: int, message: str
) -> None:
    done = run_job(job, SETTINGS, *change.split())
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert message in done.err


def test_plain_python_is_enough(store: StateStore, tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(SETTINGS.replace("{here}", str(tmp_path)))
    code = (
        "import sys; from jobs.redistribute_offsets import redistribute_offsets as job; "
        "job(standalone_mode=False); "
        "print({'pyspark', 'py4j', 'delta', 'confluent_kafka'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "f.toml"), "--store", store.url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "set()"
    assert done.stderr == ""


@pytest.mark.usefixtures("store")
def test_a_dry_run_writes_no_file(run_job: RunJob, tmp_path: Path) -> None:
    files = '[files]\nper_subtask = "{here}/all.json"'
    done = run_job(job, SETTINGS + files, "--dry-run")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "dry run: nothing was written"
    assert not (tmp_path / "all.json").exists()


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("kafka", "message"),
    [
        ('group = "g"', "group is set but bootstrap is not"),
        ('topics = ["t"]', "topics is set but bootstrap is not"),
        ('options = {a = "b"}', "options is set but bootstrap is not"),
        ('gap = "latest"', "kafka.gap cannot be 'latest'; it can be earliest, fail"),
        ("seconds = 0", "kafka.seconds must be a number >= 0.1"),
        ('bootstrap = "localhost:1"\noptions = {nonsense = "b"}', 'property: "nonsense"'),
    ],
)
def test_settings_of_kafka_that_do_not_fit(run_job: RunJob, kafka: str, message: str) -> None:
    done = run_job(job, f"{SETTINGS}[kafka]\n{kafka}")
    assert (done.code, done.out) == (2, "")
    assert message in done.err
