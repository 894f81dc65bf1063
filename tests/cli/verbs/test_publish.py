"""``publish`` and ``unpublish`` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from pyiceberg.catalog import load_catalog

from statestore import StateStore

Run = Callable[..., Result]

STATE = ("--state", "totals-by-user/totals")


@pytest.fixture
def catalog(tmp_path: Path) -> tuple[str, ...]:
    """The options of a catalog in SQLite and of a table in it."""
    return (
        *("--iceberg", "lake", "--table", "fraud.totals", "--catalog-option", "type=sql"),
        *("--catalog-option", f"uri=sqlite:///{tmp_path}/catalog.db"),
        *("--catalog-option", f"warehouse=file://{tmp_path}/warehouse"),
    )


@pytest.mark.slow
def test_a_state_is_published_listed_and_removed(
    run: Run, damaged: Path, catalog: tuple[str, ...], tmp_path: Path
) -> None:
    planned = run("publish", *catalog, *STATE, "--dry-run", "--store", damaged)
    assert planned.stdout.startswith(
        f"would show checkpoint 2 of {damaged} as the Iceberg table lake.fraud.totals\n"
        "  state 'totals' of operator 'totals-by-user': 200 rows, "
    )
    done = run("publish", *catalog, *STATE, "--store", damaged)
    lines = done.stdout.splitlines()
    assert lines[0] == f"the Iceberg table lake.fraud.totals shows checkpoint 2 of {damaged}"
    assert lines[2] == "  before  no checkpoint"
    assert lines[3].endswith(" added to the table, 0 removed from it")
    assert lines[4].startswith("  kept by savepoint iceberg:lake.fraud.totals:")
    again = run("publish", *catalog, *STATE, "--store", damaged, "--output", "json")
    document = json.loads(again.stdout)
    assert (document["is_current"], document["snapshot"]) == (True, None)
    assert document["hold"] == lines[4].removeprefix("  kept by savepoint ")
    options = {"uri": f"sqlite:///{tmp_path}/catalog.db"}
    table = load_catalog("lake", type="sql", **options).load_table("fraud.totals")
    assert table.scan().count() == 200

    shown = run("list", "--store", damaged).stdout
    assert "is shown by the Iceberg table lake.fraud.totals" in shown
    gc = run("gc", "--dry-run", "--store", damaged).stdout
    assert "checkpoint 2 is held by the Iceberg table 'lake.fraud.totals' (savepoint '" in gc

    verified = run("verify", "--store", damaged).stdout
    assert "  checkpoint 2 is shown by the Iceberg table lake.fraud.totals\n" in verified
    document = json.loads(run("verify", "--store", damaged, "--output", "json").stdout)
    assert document["iceberg_tables"] == {"2": ["lake.fraud.totals"]}

    gone = run("publish", "--remove", *catalog, "--dry-run", "--store", damaged)
    assert gone.stdout.startswith(f"would remove the Iceberg table lake.fraud.totals of {damaged}")
    gone = run("publish", "--remove", *catalog, "--store", damaged)
    assert gone.stdout.splitlines()[1].startswith("  released savepoint iceberg:lake.fraud.totals:")
    assert StateStore.open(str(damaged)).maintenance.savepoints() == ()
    missing = run("publish", "--remove", *catalog, "--store", damaged)
    assert (missing.exit_code, "no Iceberg table" in missing.stderr) == (10, True)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("token=abc", "token may be a secret, which every user of this machine could read"),
        ("url=postgresql://me:word@host/db", "credentials must not be in a URL"),
        ("warehouse", "'warehouse' must have the form NAME=VALUE"),
    ],
)
def test_secrets_are_refused(
    run: Run, damaged: Path, catalog: tuple[str, ...], option: str, message: str
) -> None:
    done = run("publish", *catalog, *STATE, "--catalog-option", option, "--store", damaged)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "abc" not in done.stderr
    assert "word" not in done.stderr.replace("password", "")
