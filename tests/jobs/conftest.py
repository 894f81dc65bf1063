"""Settings files for the jobs' tests, and the output of a finished job."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Main = Callable[[list[str]], int]


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
def run_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> RunJob:
    """Run a job's ``main`` in this process, with TOML settings in which {here} is the test's
    folder.
    """

    def run(main: Main, toml: str, *arguments: str) -> Outcome:
        file = tmp_path / "settings.toml"
        file.write_text(toml.replace("{here}", str(tmp_path)), encoding="utf-8")
        capfd.readouterr()
        code = main(["--conf-file", str(file), *arguments])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
