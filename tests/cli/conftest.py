"""Stores created from Arrow rows without a JVM, and a way to run the command on them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from statestore import StateStore
from statestore.cli.main import cli
from statestore.jobgraph.graph import JobGraph
from statestore.settings import CONFIG_VARIABLE, ENVIRONMENT

Run = Callable[..., Result]

USERS = 200

JOB = """
[job]
parallelism = 4

[[operator]]
name = "orders"
uid = "orders-source"

[[operator]]
name = "clean"
inputs = ["orders"]

[[operator]]
name = "by user"
uid = "totals-by-user"
max_parallelism = 16
inputs = [{ from = "clean", partitioner = "hash" }]

[[operator]]
name = "by shop"
uid = "totals-by-shop"
inputs = [{ from = "clean", partitioner = "hash" }]

[[operator]]
name = "by card"
uid = "totals-by-card"
inputs = [{ from = "clean", partitioner = "hash" }]
"""
"""The job that owns the state. Checkpoint 2 records its graph."""


def fill(path: Path) -> None:
    store = StateStore.open(str(path), table_format="parquet", layout="partitioned")
    names = [f"u{i}" for i in range(USERS)]
    totals = pa.table({"user_id": names, "total": list(range(USERS))})
    countries = pa.table({"user_id": names, "country": ["DE", "FR"] * 100, "n": range(USERS)})
    shops = pa.table({"country": ["DE", "DE", "FR"], "shop": [17, 18, 17], "total": [1, 2, 3]})
    cards = pa.table({"card": [-5, 0, 7], "total": [1.5, float("nan"), 3.0]})
    for graph in (None, JobGraph.from_toml(JOB)):
        with store.snapshot(parallelism=4, graph=graph) as checkpoint:
            checkpoint.write_keyed(
                "totals-by-user", "totals", totals, key="user_id", max_parallelism=16
            )
            checkpoint.write_keyed(
                "totals-by-user",
                "per_country",
                countries,
                kind="map",
                key="user_id",
                entry="country",
                max_parallelism=16,
            )
            checkpoint.write_keyed(
                "totals-by-shop", "totals", shops, key=["country", "shop"], max_parallelism=8
            )
            checkpoint.write_keyed("totals-by-card", "totals", cards, key="card", max_parallelism=8)
            offsets = [[{"partition": p, "offset": 10 * p}] for p in range(4)]
            checkpoint.write_union("orders-source", "offsets", offsets)
            checkpoint.write_split(
                "orders-source", "files", [[{"file": "a"}, {"file": "b"}], [], [], []]
            )
            checkpoint.write_broadcast("orders-source", "rules", [{"rule": "r1"}])


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "fraud"
    fill(path)
    return path


@pytest.fixture
def fraud(filled: Path, tmp_path: Path) -> Path:
    """The store as ``./fraud`` in the test's working folder, for tests that only read."""
    (tmp_path / "fraud").symlink_to(filled)
    return tmp_path / "fraud"


@pytest.fixture
def damaged(filled: Path, tmp_path: Path) -> Path:
    """A copy of the store, which the test can damage."""
    return Path(shutil.copytree(filled, tmp_path / "damaged"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in an empty folder, without settings or rates from outside."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}-cache")
    for variable in (CONFIG_VARIABLE, *ENVIRONMENT.values()):
        monkeypatch.delenv(variable, raising=False)

    def invoke(*arguments: object, env: dict[str, str] | None = None) -> Result:
        return CliRunner().invoke(cli, [str(argument) for argument in arguments], env=env)

    return invoke
