"""The settings files in conf/ run unchanged, and document every setting."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from jobs import redistribute_offsets, restore, snapshot
from jobs.command import load_settings
from jobs.places import JobSettings
from jobs.settings import OffsetsSettings, RestoreSettings, SnapshotSettings
from statestore import StateStore
from statestore.jobgraph.restart import NoRestart
from statestore.jobgraph.restart_options import OPTIONS, strategy_of
from tests.syntax import ROOT

pytestmark = pytest.mark.spark

FILES: dict[str, type[JobSettings]] = {
    "snapshot": SnapshotSettings,
    "restore": RestoreSettings,
    "redistribute_offsets": OffsetsSettings,
}
NAMED = re.compile(r"^(?:# )?([a-z_]+) = |^\[+(?:[a-z_]+\.)?([a-z_]+)\]+$")


def path(name: str) -> Path:
    return ROOT / "conf" / f"{name}.toml"


def fields(kind: Any) -> Iterator[str]:
    """Return the names of a dataclass's fields, including nested ones, except the restart
    strategy.
    """
    for name, hint in get_type_hints(kind).items():
        if name != "restart_strategy":
            yield name
        for inner in (hint, *get_args(hint)):
            if dataclasses.is_dataclass(inner):
                yield from fields(inner)


@pytest.mark.parametrize(("name", "kind"), FILES.items())
def test_every_setting_is_documented_and_no_other(name: str, kind: type[Any]) -> None:
    lines = (before_restarts(name) + after_restarts(name)).splitlines()
    found = [match[1] or match[2] for match in map(NAMED.match, lines) if match]
    assert set(found) == set(fields(kind))


def before_restarts(name: str) -> str:
    return path(name).read_text().partition("\n[restart-strategy]\n")[0]


def after_restarts(name: str) -> str:
    return path(name).read_text().partition("\n[restart-strategy]\n")[2].partition("\n\n")[2]


def restart_options(name: str) -> dict[str, str]:
    """Return the options of the restart strategies in the file, including commented ones."""
    table = path(name).read_text().partition("\n[restart-strategy]\n")[2].partition("\n\n")[0]
    found = (re.match(r"(?:# )?([a-z.-]+) = (.*)", line) for line in table.splitlines())
    return {
        f"restart-strategy.{match[1]}": str(tomllib.loads(f"value = {match[2]}")["value"])
        for match in found
        if match
    }


@pytest.mark.parametrize("name", FILES)
def test_every_option_of_the_restart_strategies_is_documented_at_its_default(name: str) -> None:
    options = restart_options(name)
    assert {*options, "restart-strategy"} == set(OPTIONS)
    assert (
        strategy_of(options)
        == NoRestart()
        == load_settings(FILES[name], str(path(name))).restart_strategy
    )
    # The default is unlimited, which no number represents.
    del options["restart-strategy.exponential-delay.attempts-before-reset-backoff"]
    for kind in ("fixed-delay", "failure-rate", "exponential-delay"):
        chosen = {"restart-strategy.type": kind}
        assert strategy_of(options | chosen) == strategy_of(chosen)


@pytest.mark.parametrize("name", FILES)
def test_commented_settings_are_toml(name: str) -> None:
    settings = re.findall(r"^# ([a-z_.-]+ = .*)", path(name).read_text(), re.MULTILINE)
    assert settings
    for setting in settings:
        assert tomllib.loads(setting)


@pytest.mark.parametrize(("name", "kind"), FILES.items())
def test_the_file_is_valid(name: str, kind: type[Any]) -> None:
    assert load_settings(kind, str(path(name)))


@pytest.mark.usefixtures("spark")
def test_the_files_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    store = ("--set", f"store.url={tmp_path}/store")
    conf = "conf/{}.toml".format
    # The store has no Delta tables here, to save time. test_spark_submit.py writes Delta.
    parquet = ("--set", "store.table_format=parquet")
    assert snapshot.main(["--conf-file", conf("snapshot"), *store, *parquet]) == 0
    sinks = (("keyed[0]", "totals"), ("operator_state[0]", "offsets"))
    targets = [f"{state}.sink.path={tmp_path}/{name}" for state, name in sinks]
    for _ in range(2):
        again = [text for target in targets for text in ("--set", target)]
        assert restore.main(["--conf-file", conf("restore"), *store, *again]) == 0
    files = [f"files.{name}={tmp_path}/{{subtask}}" for name in ("per_subtask", "starting_offsets")]
    again = [text for file in files for text in ("--set", file)]
    name = "redistribute_offsets"
    assert redistribute_offsets.main(["--conf-file", conf(name), *store, *again]) == 0
    assert StateStore.open(f"{tmp_path}/store").manifest().rows == 18
    assert "orders          4    2200" in capsys.readouterr().out
    assert (tmp_path / "2").read_text() == '{"orders":{"4":2200}}\n'
