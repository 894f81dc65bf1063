"""The command line that the jobs share. No JVM starts here."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec import field

from jobs import redistribute_offsets, restore, snapshot
from jobs.job import Attempt, Job, JobSettings, job_options, load_settings, run_attempts
from statestore.cli.command import Invocation, pass_invocation
from statestore.cli.output import Output
from statestore.errors import CommitConflictError, SettingsError
from statestore.settings import SettingsTable

pytestmark = pytest.mark.spark

JOBS: tuple[click.Command, ...] = (
    snapshot.snapshot,
    restore.restore,
    redistribute_offsets.redistribute_offsets,
)


class Inner(SettingsTable, frozen=True, kw_only=True):
    path: str = "old"
    conf: dict[str, str] = field(default_factory=dict)


class Outer(JobSettings, frozen=True, kw_only=True):
    number: int = 1
    names: tuple[str, ...] = ()
    inner: Inner = field(default_factory=Inner)
    many: tuple[Inner, ...] = ()


FILE = 'number = 2\n[[many]]\npath = "a"\n[[many]]\npath = "b"\n'


def load(tmp_path: Path, *changes: str) -> Outer:
    file = tmp_path / "f.toml"
    file.write_text(FILE)
    return load_settings(str(file), changes, Outer)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("number=7", Outer(number=7)),
        ('names=["x", "y"]', Outer(names=("x", "y"))),
        ("inner.path='s3://lake/x=1'", Outer(inner=Inner(path="s3://lake/x=1"))),
        ("inner.conf.'spark.a.b'='x'", Outer(inner=Inner(conf={"spark.a.b": "x"}))),
        ("many.1.path='c'", Outer(many=(Inner(path="a"), Inner(path="c")))),
        ("many=[]", Outer(many=())),
    ],
)
def test_set_replaces_one_setting(tmp_path: Path, change: str, expected: Outer) -> None:
    name = change.partition("=")[0].partition(".")[0]
    unchanged = Outer(number=2, many=(Inner(path="a"), Inner(path="b")))
    found = load(tmp_path, change)
    for each in ("number", "names", "inner", "many"):
        assert getattr(found, each) == getattr(expected if each == name else unchanged, each)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("number", "--set 'number' is not a line of TOML"),
        ("inner.path=new", "a text needs quotes, as in --set"),
        ("many.2.path='c'", "the list has 2 elements, and none is 2"),
        ("number=1e400", "larger than the largest double"),
        ("number.x='c'", "with --set: number must be an integer, not a table"),
        ("numbr=7", "with --set: unknown setting 'numbr'; did you mean 'number'"),
        ("number='7'", "with --set: number must be an integer, not text"),
    ],
)
def test_changes_that_set_refuses(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, change)


def run_with(tmp_path: Path, work: Any, *arguments: str) -> int:
    (tmp_path / "f.toml").write_text(FILE)

    @click.command("job", cls=Job)
    @job_options
    @pass_invocation
    def job(invocation: Invocation, file: str, changes: tuple[str, ...]) -> Output[Any]:
        report = run_attempts(invocation, partial(load_settings, file, changes, Outer), work)
        return Output(report, lambda page, report: page.line(f"number {report['number']}"))

    return int(job.main([str(tmp_path / "f.toml"), *arguments], standalone_mode=False))


def test_the_report_goes_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def work(attempt: Attempt[Outer]) -> dict[str, Any]:
        attempt.say("half way")
        return {"number": attempt.settings.number}

    assert run_with(tmp_path, work) == 0
    assert capsys.readouterr() == ("number 2\n", "half way\n")
    assert run_with(tmp_path, work, "--output", "json") == 0
    assert capsys.readouterr() == ('{\n  "number": 2,\n  "attempts": 1\n}\n', "")


def test_an_error_is_one_sentence_and_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(attempt: Attempt[Outer]) -> dict[str, Any]:
        raise CommitConflictError("another writer was first")

    assert run_with(tmp_path, work) == 11
    assert capsys.readouterr() == ("", "error: another writer was first\n")


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing argument 'FILE'"),
        (["none.toml"], "the settings file none.toml does not exist"),
        (["f", "--output", "xml"], "'xml' is not one of"),
        (["f", "--fast"], "no such option"),
    ],
)
def test_a_wrong_command_line_is_refused(
    job: click.Command, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert job.main(arguments, standalone_mode=False) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


@pytest.mark.parametrize("job", JOBS)
def test_help_has_examples(job: click.Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert job.main(["--help"], standalone_mode=False) == 0
    assert f"python -m jobs.{job.name} conf/{job.name}.toml --store" in capsys.readouterr().out


@pytest.mark.parametrize("job", JOBS)
def test_settings_are_checked_before_anything_starts(
    job: click.Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "f.toml").write_text("parallelism = 1")
    monkeypatch.setattr(Attempt, "store", None)
    assert job.main([str(tmp_path / "f.toml")], standalone_mode=False) == 2
    err = capsys.readouterr().err
    assert "missing" in err or "the settings name no state" in err
