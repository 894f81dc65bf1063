"""``publish`` and ``unpublish`` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from pyiceberg.catalog import load_catalog

from statestore import StateStore
from tests.support.iceberg_config import configure

Run = Callable[..., Result]

STATE = ("--state", "totals-by-user/totals")


CATALOG = ("--table", "lake.fraud.totals")


@pytest.mark.slow
def test_a_state_is_published_listed_and_removed(
    run: Run, damaged: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configure(monkeypatch, tmp_path)
    planned = run("publish", *CATALOG, *STATE, "--dry-run", "--store", damaged)
    assert planned.stdout.startswith(
        f"would show checkpoint 2 of {damaged} as the Iceberg table lake.fraud.totals\n"
        "  state 'totals' of operator 'totals-by-user': 200 rows, "
    )
    done = run("publish", *CATALOG, *STATE, "--store", damaged)
    lines = done.stdout.splitlines()
    assert lines[0] == f"the Iceberg table lake.fraud.totals shows checkpoint 2 of {damaged}"
    assert lines[2] == "  before  no checkpoint"
    assert lines[3].endswith(" added to the table, 0 removed from it")
    assert lines[4].startswith("  kept by savepoint iceberg:lake.fraud.totals:")
    again = run("publish", *CATALOG, *STATE, "--store", damaged, "--output", "json")
    document = json.loads(again.stdout)
    assert (document["is_current"], document["snapshot"]) == (True, None)
    assert document["hold"] == lines[4].removeprefix("  kept by savepoint ")
    table = load_catalog("lake").load_table("fraud.totals")
    assert table.scan().count() == 200

    shown = run("list", "--store", damaged).stdout
    assert "is shown by the Iceberg table lake.fraud.totals" in shown
    gc = run("gc", "--dry-run", "--store", damaged).stdout
    assert "checkpoint 2 is held by the Iceberg table 'lake.fraud.totals' (savepoint '" in gc

    verified = run("verify", "--store", damaged).stdout
    assert "  checkpoint 2 is shown by the Iceberg table lake.fraud.totals\n" in verified
    document = json.loads(run("verify", "--store", damaged, "--output", "json").stdout)
    assert document["iceberg_tables"] == {"2": ["lake.fraud.totals"]}

    gone = run("publish", "--remove", *CATALOG, "--dry-run", "--store", damaged)
    assert gone.stdout.startswith(f"would remove the Iceberg table lake.fraud.totals of {damaged}")
    gone = run("publish", "--remove", *CATALOG, "--store", damaged)
    assert gone.stdout.splitlines()[1].startswith("  released savepoint iceberg:lake.fraud.totals:")
    assert StateStore.open(str(damaged)).maintenance.savepoints() == ()
    missing = run("publish", "--remove", *CATALOG, "--store", damaged)
    assert (missing.exit_code, "no Iceberg table" in missing.stderr) == (10, True)


def test_a_table_has_a_catalog_and_a_namespace(run: Run, damaged: Path) -> None:
    done = run("publish", "--table", "lake", *STATE, "--store", damaged)
    assert done.exit_code == 2
    assert "'lake' must have the form CATALOG.NAMESPACE.NAME" in done.stderr
