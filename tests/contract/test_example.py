"""examples/state-in-ci: its lock is its job's, and the page shows the output of its checks."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from statestore.cli.main import cli
from tests.interop.spark.queries import settings
from tests.syntax import ROOT

EXAMPLE = ROOT / "examples" / "state-in-ci"
PAGE = ROOT / "docs" / "how" / "check-state-in-ci.md"
TOTALS = (
    '    return orders.groupBy("user").agg(F.count("*").alias("n"), '
    'F.sum("amount").alias("total"))\n'
)


def blocks() -> list[str]:
    """Return the blocks of the page that are neither a drawing nor a table."""
    parts = PAGE.read_text().split("\n```")
    return [part.partition("\n")[2] for part in parts[1::2]]


def console(line: str) -> str:
    """Run a command, and return it with its output as a page shows them."""
    done = CliRunner().invoke(cli, line.split()[1:], prog_name="statestore")
    return f"$ {line}\n{done.stdout}{done.stderr}".rstrip()


def test_the_lock_and_the_page_are_those_of_the_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "repository"
    shutil.copytree(EXAMPLE, folder)
    monkeypatch.chdir(folder)
    spec = importlib.util.spec_from_file_location("job_of_example", folder / "job.py")
    assert spec is not None
    assert spec.loader is not None
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    with settings(spark, {"spark.sql.shuffle.partitions": "4"}):
        job.main(str(folder / "totals"))
    committed = (folder / "state.lock").read_text()
    wrote = console("statestore contract ./totals --to state.lock")
    assert (folder / "state.lock").read_text() == committed
    shown = blocks()
    assert shown[0] == wrote.replace("unchanged:", "wrote")
    assert shown[1] in committed
    check = "statestore check --lock state.lock job.py:build --output-mode update"
    own = (folder / "job.py").read_text()
    assert "1 of 1 fit" in console(check)
    for change, output in ((shown[2], shown[3]), (shown[4], shown[5])):
        indented = "".join(f"    {line}\n" for line in change.splitlines())
        assert TOTALS in own
        (folder / "job.py").write_text(own.replace(TOTALS, indented))
        assert console(check) == output
    workflow = (folder / ".github" / "workflows" / "state.yml").read_text()
    assert f"{check} --output markdown" in workflow
