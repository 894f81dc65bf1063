"""Every command refuses what does not exist with the same exit status, before it does anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import Result

from statestore.cli.command import Root
from tests.cli.test_command import COMMANDS
from tests.support.iceberg_config import configure

Run = Callable[..., Result]

STATE = ("--state", "totals-by-user/totals")
OFFSETS = ("--state", "orders-source/offsets")
CLUSTERS = ("--from-cluster", "a=localhost:1", "--to-cluster", "b=localhost:2")
ON_A_STORE: dict[str, tuple[str, ...]] = {
    "bisect": (*STATE, "--where", "total < 0"),
    "compact": (),
    "copy": ("new",),
    "diff": ("1", "2"),
    "edit": (*STATE, "--delete", "u1"),
    "expire": ("--retain", "5"),
    "flink export": ("new",),
    "forget": ("--state", "totals-by-user", "--key", "u1"),
    "gc": (),
    "get": (*STATE, "--key", "u1"),
    "kafka translate": (*OFFSETS, *CLUSTERS),
    "list": (),
    "plan": (),
    "publish": ("--table", "lake.fraud.totals", *STATE),
    "query": ("SELECT 1",),
    "rekey": ("--state", "totals-by-user", "--max-parallelism", "64"),
    "repair": (),
    "restore": ("--to", "new"),
    "savepoint": ("name",),
    "show": (),
    "spark export": ("new", "--shuffle-partitions", "4"),
    "spark progress": ("new",),
    "trend": (),
    "ui": ("--to", "new.html"),
    "upgrade": (),
    "verify": (),
}
"""The required arguments of each command that reads an existing store."""
ELSEWHERE = {
    *("config", "demo", "flink gc", "flink plan", "flink repack", "flink show"),
    *("spark bootstrap", "spark repartition", "spark show"),  # need no store
    *("check", "contract"),  # take any place with state
    "rehearse",  # loads two jobs first: tests/contract/test_rehearsal.py
    *("bootstrap", "flink import", "spark import"),  # create the store
}
SAVED = {name for name, verb in COMMANDS.items() if not isinstance(verb, Root)} - ELSEWHERE


def parameters(name: str) -> set[str]:
    return {option for parameter in COMMANDS[name].params for option in parameter.opts}


def at(name: str, checkpoint: str) -> list[str]:
    """Return the arguments of a command with a checkpoint, as an argument or an option."""
    words = list(ON_A_STORE[name])
    known = parameters(name)
    if {"a", "b"} <= known:
        return [words[0], checkpoint, *words[2:]]
    if "checkpoint" in known:
        arguments = [one.name for one in COMMANDS[name].params if isinstance(one, click.Argument)]
        before = arguments.index("checkpoint")
        return [*words[:before], checkpoint, *words[before:]]
    return [*words, "--checkpoint", checkpoint]


def with_value(words: tuple[str, ...], option: str, value: str) -> list[str]:
    """Return arguments with another value of an option, which may be new."""
    if option not in words:
        return [*words, option, value]
    place = words.index(option) + 1
    return [*words[:place], value, *words[place + 1 :]]


def test_the_commands_on_a_store_are_all_known() -> None:
    assert set(ON_A_STORE) == SAVED


@pytest.mark.parametrize("name", sorted(ON_A_STORE))
def test_every_command_refuses_a_place_without_a_store(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no store")
    words = (*name.split(), *ON_A_STORE[name])
    for place, reason in (
        ("missing", "no store at {}"),
        ("empty", "no store at {}"),
        ("file", "{} is not a store: it is a file, or a path below a file; check the URL"),
    ):
        done = run(*words, "--store", place)
        assert (done.exit_code, done.stdout) == (10, ""), (place, done.stderr)
        assert done.stderr.startswith(f"error: {reason.format(tmp_path / place)}")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file"]


@pytest.mark.parametrize(
    "name",
    sorted(name for name in ON_A_STORE if {"checkpoint", "--checkpoint", "b"} & parameters(name)),
)
def test_every_command_refuses_an_unknown_checkpoint(
    run: Run, fraud: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    configure(monkeypatch, tmp_path)
    for checkpoint, reason in (("9", "no checkpoint 9 in"), ("nope", "no savepoint 'nope' in")):
        done = run(*name.split(), *at(name, checkpoint), "--store", "fraud")
        assert (done.exit_code, done.stdout) == (10, ""), done.stderr
        assert done.stderr.startswith(f"error: {reason} {fraud}")


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        (name, option, value)
        for name in sorted(ON_A_STORE)
        for option, value in (
            ("--operator", "other"),
            ("--state", "other/totals"),
            ("--state", "totals-by-user/other"),
        )
        if option in parameters(name)
    ],
)
def test_every_command_refuses_an_unknown_operator_or_state(
    run: Run,
    fraud: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    option: str,
    value: str,
) -> None:
    configure(monkeypatch, tmp_path)
    words = with_value(ON_A_STORE[name], option, value)
    done = run(*name.split(), *words, "--store", "fraud")
    assert (done.exit_code, done.stdout) == (10, ""), done.stderr
    assert "'other'" in done.stderr


@pytest.mark.parametrize(
    ("words", "is_folder"),
    [
        (("query", "SELECT 1 AS n", "--format", "csv"), False),
        (("ui",), False),
        (("restore",), True),
    ],
)
def test_every_command_checks_the_place_of_its_result(
    run: Run, fraud: Path, tmp_path: Path, words: tuple[str, ...], is_folder: bool
) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    refused = {"file/new", "folder"} if is_folder else {"missing/new", "file/new", "folder"}
    for place in refused:
        done = run(*words, "--to", place, "--store", "fraud")
        assert (done.exit_code, done.stdout) == (2, ""), (place, done.stderr)
        assert place in done.stderr
    assert (tmp_path / "file").read_text() == "kept"
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["inner"]
