"""The command line that the jobs share. No JVM starts here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jobs import redistribute_offsets, restore, snapshot
from jobs.command import Job, Progress, Report, columns, load_settings, run, write_file
from jobs.metrics import Listeners
from jobs.places import JobSettings
from statestore.errors import CommitConflictError, SettingsError

pytestmark = pytest.mark.spark


@dataclass(frozen=True, kw_only=True)
class Inner:
    path: str = "old"
    conf: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Outer(JobSettings):
    number: int = 1
    names: tuple[str, ...] = ()
    inner: Inner = field(default_factory=Inner)
    many: tuple[Inner, ...] = ()


FILE = 'number = 2\n[[many]]\npath = "a"\n[[many]]\npath = "b"\n'


def load(tmp_path: Path, *overrides: str) -> Outer:
    file = tmp_path / "f.toml"
    file.write_text(FILE)
    return load_settings(Outer, str(file), overrides)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("number=7", Outer(number=7)),
        ('names=["x", "y"]', Outer(names=("x", "y"))),
        ("inner.path=s3://lake/x=1", Outer(inner=Inner(path="s3://lake/x=1"))),
        ("inner.path=country = 'DE'", Outer(inner=Inner(path="country = 'DE'"))),
        ('inner.path="7"', Outer(inner=Inner(path="7"))),
        ('inner.conf."spark.a.b"=x', Outer(inner=Inner(conf={"spark.a.b": "x"}))),
        ("many[1].path=c", Outer(many=(Inner(path="a"), Inner(path="c")))),
    ],
)
def test_set_replaces_one_setting(tmp_path: Path, override: str, expected: Outer) -> None:
    plain = {"number": 2, "names": (), "inner": Inner(), "many": (Inner(path="a"), Inner(path="b"))}
    changed = {name for name in plain if getattr(expected, name) != getattr(Outer(), name)}
    found = load(tmp_path, override)
    for name, value in plain.items():
        assert getattr(found, name) == (getattr(expected, name) if name in changed else value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("number", "--set takes NAME=VALUE"),
        ("=3", "--set takes NAME=VALUE"),
        ("many[.path=3", "--set takes NAME=VALUE"),
        ("many[2].path=c", r"index \[2\] does not exist; the list has 2 elements"),
        ("number.x=c", "cannot set 'x' because the value that contains it is not a table"),
        ("numbr=7", "with --set: unknown setting 'numbr'; did you mean 'number'"),
        ("number=seven", "with --set: number must be an integer"),
    ],
)
def test_overrides_that_set_refuses(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, override)


def job(work: Any) -> Job[Outer]:
    return Job("job", "Does.", Outer, work, lambda report: f"number {report['number']}")


def run_with(tmp_path: Path, work: Any, *arguments: str) -> int:
    (tmp_path / "f.toml").write_text(FILE)
    return run(job(work), ["--conf-file", str(tmp_path / "f.toml"), *arguments])


def test_the_report_goes_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def work(settings: Outer, progress: Progress, listeners: Listeners) -> Report:
        progress("half way")
        return {"number": settings.number}

    assert run_with(tmp_path, work) == 0
    assert capsys.readouterr() == ("number 2\n", "half way\n")
    assert run_with(tmp_path, work, "--output", "json") == 0
    assert capsys.readouterr() == ('{\n  "number": 2,\n  "attempts": 1\n}\n', "")


def test_an_error_is_one_sentence_and_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(settings: Outer, progress: Progress, listeners: Listeners) -> Report:
        error = CommitConflictError("another writer was first")
        error.add_note("for state 'totals'")
        raise error

    assert run_with(tmp_path, work) == 11
    assert capsys.readouterr() == ("", "error: another writer was first (for state 'totals')\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: --conf-file; --help shows examples"),
        (["--conf-file", "none.toml"], "the settings file none.toml does not exist"),
        (["--conf-file", "f", "--output", "xml"], "invalid choice: 'xml'"),
        (["--conf-file", "f", "--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(job(dict), arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


@pytest.mark.parametrize("module", [snapshot, restore, redistribute_offsets])
def test_help_has_examples(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        module.main(["--help"])
    assert done.value.code == 0
    name = module.__name__.rpartition(".")[2]
    shown = capsys.readouterr().out
    assert f"python -m jobs.{name} --conf-file conf/{name}.toml" in shown
    assert f"jobs/{name}.py --conf-file conf/{name}.toml" in shown


@pytest.mark.parametrize("module", [snapshot, restore, redistribute_offsets])
def test_settings_are_checked_before_anything_starts(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f.toml").write_text("")
    monkeypatch.setattr(module, "StateStore", None)
    monkeypatch.setattr(module, "session", None, raising=False)
    assert module.main(["--conf-file", str(tmp_path / "f.toml")]) == 2
    assert "missing" in capsys.readouterr().err


def test_columns_are_aligned() -> None:
    assert columns(("name", "rows"), [["a", 10], ["total", 9]]) == (
        "name   rows\na        10\ntotal     9"
    )
    assert columns(("name", "rows"), []) == "name  rows"


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "f.json"
    write_file(str(target), "1")
    write_file(str(target), "2")
    assert target.read_text() == "2\n"
    assert list(target.parent.iterdir()) == [target]
    with pytest.raises(SettingsError, match=r"cannot write .*: File exists; name another"):
        write_file(f"{target}/g.json", "3")
