"""Settings files for the jobs' tests, and the output of a finished job."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def report(self) -> Any:
        return json.loads(self.out)


RunJob = Callable[..., Outcome]


@pytest.fixture
def run_job(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> RunJob:
    """Run a job in this process on the store in the test's folder, which keeps Parquet tables.

    In its TOML settings, {here} is the folder.
    """
    monkeypatch.setenv("STATESTORE_TABLE_FORMAT", "parquet")

    def run(job: click.Command, toml: str, *arguments: str) -> Outcome:
        file = tmp_path / "settings.toml"
        file.write_text(toml.replace("{here}", str(tmp_path)), encoding="utf-8")
        capfd.readouterr()
        store = ("--store", str(tmp_path / "store"))
        code = job.main([str(file), *store, *arguments], standalone_mode=False)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
