"""The function of a job is loaded from its file, and forgotten with the modules next to it."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from statestore.cli.job_function import call_job, job_function
from statestore.errors import InvalidArgumentError


def write_version(folder: Path, rate: int) -> str:
    (folder / "rates").mkdir(parents=True)
    (folder / "rates" / "__init__.py").touch()
    (folder / "rates" / "of_today.py").write_text(f"RATE = {rate}\n")
    text = "from rates.of_today import RATE\ndef build(amount):\n    return amount * RATE\n"
    (folder / "job.py").write_text(text)
    return f"{folder / 'job.py'}:build"


def test_two_versions_with_equal_names_have_their_own_modules(tmp_path: Path) -> None:
    before, path = {*sys.modules}, [*sys.path]
    results = []
    for rate in (2, 3):
        with job_function(write_version(tmp_path / str(rate), rate)) as build:
            assert "rates.of_today" in sys.modules
            results.append(call_job(build, 10, "job.py:build"))
    assert results == [20, 30]
    assert {*sys.modules} == before
    assert sys.path == path


def test_a_package_of_the_working_folder_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_version(tmp_path, 5)
    monkeypatch.chdir(tmp_path)
    with job_function("job:build") as build:
        assert build(2) == 10
    assert "job" not in sys.modules


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ("job.py:none", "job.py has no function 'none'"),
        ("lost.py:build", r"there is no file lost.py with the job"),
        ("broken.py:build", "cannot load broken.py: ZeroDivisionError"),
    ],
)
def test_a_job_that_does_not_load_is_named(
    job: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_version(tmp_path, 1)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=problem), job_function(job):
        pass
    assert str(tmp_path) not in sys.path


def test_a_job_without_a_function_is_a_usage_error() -> None:
    with pytest.raises(click.UsageError, match="must name a function"), job_function("job.py"):
        pass


def test_a_function_that_fails_is_named(tmp_path: Path) -> None:
    with (
        job_function(write_version(tmp_path, 1)) as build,
        pytest.raises(InvalidArgumentError, match=r"job.py:build failed: TypeError"),
    ):
        call_job(build, None, "job.py:build")
