"""The settings files in conf/ run unchanged, and document every setting."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import Struct
from msgspec.structs import fields

from jobs import redistribute_offsets, restore, snapshot
from jobs.job import JobSettings, load_settings
from statestore import StateStore
from statestore.jobgraph.restart import OPTIONS, NoRestart, strategy_of
from tests.syntax import ROOT

pytestmark = pytest.mark.spark

FILES: dict[str, type[JobSettings]] = {
    "snapshot": snapshot.SnapshotSettings,
    "restore": restore.RestoreSettings,
    "redistribute_offsets": redistribute_offsets.OffsetsSettings,
}
NAMED = re.compile(r"^(?:# )?([a-z_]+) = |^\[+(?:[a-z_]+\.)?([a-z_-]+)\]+$")


def path(name: str) -> Path:
    return ROOT / "conf" / f"{name}.toml"


def names(table: Any) -> Iterator[str]:
    """Return the names of a table's members, including those of nested tables."""
    for part in (table, *get_args(table)):
        if isinstance(part, type) and issubclass(part, Struct):
            for each in fields(part):
                yield each.encode_name
                yield from names(each.type)
        elif part is not table:
            yield from names(part)


@pytest.mark.parametrize(("name", "kind"), FILES.items())
def test_every_setting_is_documented_and_no_other(name: str, kind: type[Any]) -> None:
    before, heading, after = path(name).read_text().partition("\n[restart-strategy]\n")
    rest = after.partition("\n\n")[2]  # without the options of the restart strategies
    lines = f"{before}{heading}{rest}".splitlines()
    found = [match[1] or match[2] for match in map(NAMED.match, lines) if match]
    assert set(found) == set(names(kind))


def test_every_option_of_the_restart_strategies_is_documented_at_its_default() -> None:
    table = path("snapshot").read_text().partition("\n[restart-strategy]\n")[2]
    found = (
        re.match(r"(?:# )?([a-z.-]+) = (.*)", line) for line in table.split("\n\n")[0].split("\n")
    )
    options = {
        f"restart-strategy.{match[1]}": str(tomllib.loads(f"value = {match[2]}")["value"])
        for match in found
        if match
    }
    assert {*options, "restart-strategy"} == set(OPTIONS)
    assert strategy_of(options) == NoRestart()
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
def test_the_file_is_valid(name: str, kind: type[JobSettings]) -> None:
    assert load_settings(str(path(name)), (), kind).restart_strategy == NoRestart()


@pytest.mark.usefixtures("spark")
def test_the_files_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    # The store has no Delta tables here, to save time. test_spark_submit.py writes Delta.
    monkeypatch.setenv("STATESTORE_TABLE_FORMAT", "parquet")
    store = ("--store", str(tmp_path / "store"))

    def run(job: Any, *changes: str) -> int:
        sets = [text for change in changes for text in ("--set", change)]
        return int(job.main([f"conf/{job.name}.toml", *store, *sets], standalone_mode=False))

    assert run(snapshot.snapshot) == 0
    sinks = (("keyed.0", "totals"), ("operator_state.0", "offsets"))
    targets = [f"{state}.sink.path='{tmp_path}/{name}'" for state, name in sinks]
    for _ in range(2):
        assert run(restore.restore, *targets) == 0
    files = [
        f"files.{name}='{tmp_path}/{{subtask}}'" for name in ("per_subtask", "starting_offsets")
    ]
    assert run(redistribute_offsets.redistribute_offsets, *files) == 0
    assert StateStore.open(f"{tmp_path}/store").checkpoint().manifest.rows == 18
    assert "orders          4    2200" in capsys.readouterr().out
    assert (tmp_path / "2").read_text() == '{"orders":{"4":2200}}\n'
