"""Stores created from Arrow rows without a JVM, and a way to run the command on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click import Context
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from docs.json_schema import documents, reference, schema
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
    """Run the command in an empty folder, without settings or rates from outside.

    What it prints as JSON must satisfy the schema of the command.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}-cache")
    for variable in (CONFIG_VARIABLE, *ENVIRONMENT.values()):
        monkeypatch.delenv(variable, raising=False)

    def invoke(*arguments: object, env: dict[str, str] | None = None) -> Result:
        words = [str(argument) for argument in arguments]
        done = CliRunner().invoke(cli, words, env=env)
        if "json" in words and done.stdout.startswith("{"):
            validate(words, done.stdout)
        return done

    return invoke


def validate(words: Sequence[str], text: str) -> None:
    """Check that a command printed documents of its own, by the words of its command line."""
    context = Context(cli)
    start = next(place for place, word in enumerate(words) if cli.get_command(context, word))
    named = [" ".join(words[start : start + length]) for length in (1, 2)]
    validator = next(validators()[name] for name in named if name in validators())
    decoder, text = json.JSONDecoder(), text.strip()
    while text:
        document, end = decoder.raw_decode(text)
        validator.validate(document)
        text = text[end:].strip()


@cache
def validators() -> dict[str, Any]:
    """Return the validator of each command's documents."""
    definitions = schema()["$defs"]
    return {
        name: Draft202012Validator({**reference(name), "$defs": definitions})
        for name, _ in documents(cli, "")
    }
