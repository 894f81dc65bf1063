"""tests/MODULES.md lists the tests of each module, from a recording of coverage."""

from __future__ import annotations

from pathlib import Path

import pytest
from coverage import CoverageData

from tests.support.module_tests import (
    HEADING,
    PAGE,
    listed_tests,
    modules_with_functions,
    page,
    recorded_lines,
)

FENCE = "statestore/catalog/fence.py"
OWN, OTHER = "tests/catalog/test_fence.py", "tests/catalog/test_catalog.py"
STORY, GOLDEN, LAYERS = "tests/test_docs.py", "tests/test_golden.py", "tests/test_layers.py"
MATRIX = "tests/versions/test_matrix.py"
WHOLE = range(1, 101)


def record(path: Path, lines: dict[str, dict[str, range]]) -> Path:
    """Record the lines of modules by context, as pytest-cov does."""
    data = CoverageData(str(path))
    for context, files in lines.items():
        data.set_context(context)
        data.add_lines(files)
    data.write()
    return path


def fence_tests(text: str, path: Path, *runs: tuple[str, range]) -> list[str]:
    """Return the tests of a module on the page, after tests of some files ran lines of it."""
    path.unlink(missing_ok=True)
    contexts = {f"{file}::test_a|run": {FENCE: lines} for file, lines in runs}
    return listed_tests(page(text, record(path, contexts)))[FENCE]


def listing(*files: str) -> str:
    """Return a page that lists some test files for one module."""
    folder, _, module = FENCE.rpartition("/")
    names = ", ".join(f"`{file.removeprefix('tests/catalog/')}`" for file in files)
    return f"{HEADING}\n### `{folder}`\n\n| `{module}` | {names} |\n"


def test_the_page_has_each_module_and_only_tests_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run `make docs`"


def test_most_modules_have_tests() -> None:
    tests = listed_tests(PAGE.read_text(encoding="utf-8"))
    assert sum(map(bool, tests.values())) > 0.8 * len(tests)


def test_lines_of_imports_and_fixtures_do_not_count(tmp_path: Path) -> None:
    contexts = {
        "": {FENCE: range(1, 10)},
        f"{OWN}::test_a|setup": {FENCE: range(10, 20)},
        f"{OWN}::test_a|run": {FENCE: range(20, 22)},
        f"{OWN}::TestB::test_b[x|y::z]|run": {FENCE: range(21, 23)},
        f"{OWN}::test_a|teardown": {FENCE: range(30, 40)},
    }
    assert recorded_lines(record(tmp_path / "c", contexts)) == {FENCE: {OWN: {20, 21, 22}}}


def test_a_file_that_runs_everything_by_the_way_is_not_listed(tmp_path: Path) -> None:
    others = [(file, range(1, 71)) for file in (STORY, GOLDEN, LAYERS)]
    assert fence_tests("", tmp_path / "c", (MATRIX, WHOLE), *others) == [MATRIX]


def test_files_of_the_own_folder_count_double(tmp_path: Path) -> None:
    runs = [(STORY, range(1, 150)), (OTHER, range(201, 276))]
    assert fence_tests("", tmp_path / "c", *runs) == [OTHER, STORY]
    assert fence_tests("", tmp_path / "c", *runs, (OWN, range(301, 501))) == [OWN]


def test_at_most_three_are_listed_and_the_modules_own_is_first(tmp_path: Path) -> None:
    runs = [(file, WHOLE) for file in (STORY, GOLDEN, LAYERS, OTHER, OWN)]
    assert fence_tests("", tmp_path / "c", *runs[:4]) == [OTHER, STORY, GOLDEN]
    assert fence_tests("", tmp_path / "c", *runs) == [OWN, OTHER, STORY]


@pytest.mark.parametrize(
    ("lines", "listed", "found"),
    [(50, False, True), (49, False, False), (40, True, True), (39, True, False)],
)
def test_a_file_with_half_of_the_best_is_listed_and_stays_with_fewer(
    lines: int, listed: bool, found: bool, tmp_path: Path
) -> None:
    text = listing(OWN, OTHER) if listed else ""
    runs = [(OWN, WHOLE), (OTHER, range(101, 101 + lines))]
    assert fence_tests(text, tmp_path / "c", *runs) == [OWN, OTHER][: 1 + found]


def test_modules_and_files_that_are_gone_are_removed_and_new_modules_added() -> None:
    text = listing(STORY, "tests/test_gone.py").replace("fence.py", "gone.py")
    assert sorted(listed_tests(page(text))) == sorted(modules_with_functions())
    assert listed_tests(page(listing(STORY, "tests/test_gone.py")))[FENCE] == [STORY]


def test_recordings_add_up(tmp_path: Path) -> None:
    first = record(tmp_path / "1", {f"{OWN}::test_a|run": {FENCE: range(1, 3)}})
    second = record(tmp_path / "2", {f"{OWN}::test_b|run": {FENCE: range(2, 4)}})
    assert recorded_lines(first, second) == {FENCE: {OWN: {1, 2, 3}}}


def test_a_listed_file_that_was_not_recorded_stays(tmp_path: Path) -> None:
    assert fence_tests(listing(STORY), tmp_path / "c", (OWN, WHOLE)) == [OWN, STORY]


def test_the_rest_of_the_page_stays() -> None:
    text = f"# Title\n\n## Before\n\n{HEADING}\nprevious\n\n## After\n\ntext\n"
    written = page(text)
    assert written.startswith(f"# Title\n\n## Before\n\n{HEADING}\n")
    assert written.endswith(" |\n\n## After\n\ntext\n")
    assert "previous" not in written
    assert page(written) == written
