"""The changes of ``make nightly``'s mutants, and how their tests are selected and judged."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.mutants import run
from tests.mutants.changes import changes_of
from tests.mutants.covering import Recording
from tests.mutants.project import ProjectCopy
from tests.mutants.run import EQUIVALENT, ROOT, Mutants, draw_changes, sources_of

MODULE = '''"""Sums."""

LARGE = 10


def is_large(number: int) -> bool:
    """Return whether a number is large."""
    return number > LARGE


def count(stop: int) -> int:
    number = 0
    while number < stop:
        number += 1
    return number


def negate(number: int) -> int:
    return -number
'''
TESTS = """
from toy.sums import count, is_large, negate

def test_is_large():
    assert is_large(12) and not is_large(3)

def test_count():
    assert count(2) == 2

def test_negate_is_wrong():
    assert negate(1) == 5
"""
LINES = {"is_large": [8], "count": [12, 13, 14, 15], "negate_is_wrong": [19]}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A project with one module, its tests, and a recording of which test runs which line."""
    root = tmp_path / "project"
    (root / "toy").mkdir(parents=True)
    (root / "toy" / "sums.py").write_text(MODULE)
    (root / "test_sums.py").write_text(TESTS)
    (root / "pytest.ini").write_text("[pytest]\npythonpath = .\naddopts = --import-mode=importlib")
    data = CoverageData(str(root / "recording"))
    for name, lines in LINES.items():
        data.set_context(f"test_sums.py::test_{name}|run")
        data.add_lines({"toy/sums.py": lines})
    data.write()
    return root


def recording_of(root: Path) -> Recording:
    return Recording(root / "recording", sources_of(root, ["toy"]))


@pytest.mark.slow
@pytest.mark.search_program
def test_a_change_that_no_covering_test_notices_survives(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test counts only if it passes without the change. A loop without an end is noticed too."""
    monkeypatch.setattr(run, "LONGEST_SECONDS", 2.0)
    outcomes = {
        "LARGE = 11": "survived",
        "while number <= stop:": "killed",
        "number -= 1": "killed",
        "return number": "untested",
    }
    with ProjectCopy(toy, tmp_path / "copies") as project:
        mutants = Mutants(project, recording_of(toy))
        changes = changes_of("toy/sums.py", MODULE)
        results = [mutants.attempt(one) for one in changes if one.after in outcomes]
    assert {one.after: one.outcome for one in results} == outcomes
    assert {one.test for one in results} == {None, "test_sums.py::test_count"}
    assert results[0].tests == ("test_sums.py::test_is_large",)
    assert (toy / "toy" / "sums.py").read_text() == MODULE


def test_a_seed_draws_the_same_changes_and_each_once(toy: Path) -> None:
    recording, sources = recording_of(toy), sources_of(toy, ["toy"])
    known: set[tuple[str, str, str | None]] = {("toy/sums.py", "number = 0", None)}
    drawn, again, other = (
        list(draw_changes(recording, sources, seed, known)) for seed in (1, 1, 2)
    )
    assert drawn == again
    assert drawn != other
    assert len(drawn) == len(set(drawn)) == 7
    assert "number = 0" not in {one.before for one in drawn}


def test_the_tests_of_a_change_are_those_that_run_its_line(toy: Path) -> None:
    """For a constant of a module they are those of the functions that use it."""
    recording = recording_of(toy)
    tests = {change.after: recording.tests(change) for change in changes_of("toy/sums.py", MODULE)}
    assert tests["LARGE = 11"] == ["test_sums.py::test_is_large"]
    assert tests["number += 2"] == ["test_sums.py::test_count"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a <= b", ["a < b"]),
        ("a not in b", ["a in b"]),
        ("(a) is (b)", ["(a) is not (b)"]),
        ("a and b or c", ["a and b and c", "a or b or c"]),
        ("not a", ["a"]),
        ("-1", ["-2"]),
        ("2", ["3", "1"]),
        ("True", ["False"]),
        ("0.5", ["1.0"]),
        ("é(a) + b", ["é(a) - b"]),
        ("'key'", ["'keyX'"]),
        ("'a sentence'", []),
        ("f'{a} key'", []),
        ("'key %s' % a", []),
        ("f(\n    a\n    % b,  # %\n)", ["* b,  # %"]),
    ],
)
def test_each_operator_and_constant_has_its_changes(before: str, after: list[str]) -> None:
    found = [change.after for change in changes_of("m.py", f"x = {before}\n")]
    assert [line.removeprefix("x = ") for line in found] == after


@pytest.mark.parametrize(
    "text",
    [
        "'docstring'",
        "__all__ = ['a']",
        "T = TypeVar('T')",
        "a: Literal[1]",
        "def f(a: 'int | None') -> 'int': ...",
        "_log.warning('key', 1)",
        "@dataclass(frozen=True, slots=True)\nclass A: ...",
        "if TYPE_CHECKING:\n    x = 1",
    ],
)
def test_types_texts_and_names_are_not_changed(text: str) -> None:
    assert changes_of("m.py", text) == []


def test_each_equivalent_change_exists_and_has_a_reason() -> None:
    entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["equivalent"]
    for file in {entry["file"] for entry in entries}:
        listed = [entry for entry in entries if entry["file"] == file]
        lines = {entry["before"] for entry in listed}
        changes = changes_of(file, (ROOT / file).read_text(encoding="utf-8"), lines)
        possible = {(one.before, after) for one in changes for after in (one.after, None)}
        assert {(entry["before"], entry.get("after")) for entry in listed} <= possible
        assert all(entry["why"].endswith(".") for entry in listed)
