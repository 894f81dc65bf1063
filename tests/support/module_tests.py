"""Write the tests of each module into tests/MODULES.md: ``python -m tests.support.module_tests``.

A recording of coverage, with a context for each test, says which test files run which lines. Import
and fixtures do not count. A line counts less the more files run it: a file that runs a whole module
by the way is not its test. Without a recording, only modules and files that are gone are removed,
and new modules are added.

`make nightly` records the quick tests. Arguments name other recordings, for example of tests with
Spark, which stay listed as long as nothing records their files again:

    COVERAGE_FILE=build/spark pytest -m "spark and not long" --cov --cov-context=test
    python -m tests.support.module_tests build/nightly/coverage build/spark
"""

from __future__ import annotations

import ast
import re
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path, PurePath

from coverage.numbits import numbits_to_nums, numbits_union

from tests.syntax import ROOT, modules

__all__ = ["PAGE", "RECORDING", "listed_tests", "modules_with_functions", "page", "recorded_lines"]

PAGE = ROOT / "tests" / "MODULES.md"
RECORDING = ROOT / "build" / "nightly" / "coverage"
HEADING = "# Tests of each module\n"
INTRODUCTION = """
These test files run most of a module, by a recording of coverage. A line counts less the more files
run it. A name without a folder is in the folder of `tests/` that mirrors the package. A dash means
that no recorded test runs the module in its own process. `make docs` writes the tables, from the
recording of the last `make nightly` if there is one.
"""
MOST_FILES = 3
LEAST_SHARE = 1 / 2
"""Of the score of a module's best file, what another file needs to be listed."""
OF_OWN_FOLDER = 2
"""What the score of a file in the folder that mirrors the package is multiplied by."""
OF_LISTED = 1.25
"""What the score of a listed file is multiplied by, so that files of equal use do not alternate."""
_ROW = re.compile(r"^### `(.+)`$|^\| `(.+\.py)` \| (.+) \|$", re.MULTILINE)
_NEXT_HEADING = re.compile(r"^## ", re.MULTILINE)

Tests = dict[str, list[str]]
"""The test files of each module."""
Lines = dict[str, dict[str, frozenset[int]]]
"""The lines of each module that each test file runs."""


def page(text: str, *recordings: Path) -> str:
    """Return the page with its tables written anew.

    Args:
        text: the page. A file that it lists and that was not recorded stays.
        recordings: data files of coverage.
    """
    before, _, rest = text.partition(HEADING)
    after = _NEXT_HEADING.search(rest)
    lines = recorded_lines(*recordings)
    recorded = {file for files in lines.values() for file in files}
    listed = listed_tests(text)
    tests = {
        module: _chosen(module, lines.get(module, {}), listed.get(module, []), recorded)
        for module in modules_with_functions()
    }
    tables = "".join(_tables(tests)) + ("\n" + rest[after.start() :] if after else "")
    return before + HEADING + INTRODUCTION + tables


def modules_with_functions() -> list[str]:
    """Return the path of each module of the product that a test can run after its import."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = (
        PurePath(*module.name.split("."))
        for module in modules("statestore", "jobs")
        if any(isinstance(node, functions) for node in module.statements)
        or any(isinstance(node, ast.Lambda) for node in module.nodes)
    )
    return [
        str(file if (ROOT / (file := path.with_suffix(".py"))).exists() else path / "__init__.py")
        for path in found
    ]


def recorded_lines(*recordings: Path) -> Lines:
    """Return the lines of modules that test files run while their tests do."""
    numbits: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
    for module, context, bits in (row for path in recordings for row in _rows(path)):
        test, _, phase = context.rpartition("|")
        if phase == "run":
            file = test.partition("::")[0]
            numbits[module][file] = numbits_union(numbits[module].get(file, b""), bits)
    return {
        module: {file: frozenset(numbits_to_nums(bits)) for file, bits in files.items()}
        for module, files in numbits.items()
    }


def _rows(recording: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield module, context and lines from the tables of a data file, which coverage documents."""
    with closing(sqlite3.connect(f"file:{recording}?mode=ro", uri=True)) as connection:
        yield from connection.execute(
            "SELECT path, context, numbits FROM line_bits"
            " JOIN file ON file.id = file_id JOIN context ON context.id = context_id"
        )


def listed_tests(text: str) -> Tests:
    """Return the test files that a page lists for each module."""
    tests: Tests = {}
    folder = PurePath()
    for heading, module, files in _ROW.findall(text.partition(HEADING)[2]):
        folder = PurePath(heading or folder)
        if module:
            names = map(PurePath, re.findall("`(.+?)`", files))
            tests[str(folder / module)] = [
                str(_mirror(folder) / name if name.parent == PurePath() else name) for name in names
            ]
    return tests


def _chosen(
    module: str, lines: Mapping[str, frozenset[int]], listed: Sequence[str], recorded: set[str]
) -> list[str]:
    """Return the test files to list for a module: its own, then those of its folder."""
    own = _mirror(PurePath(module).parent)
    mirror = own / f"test_{PurePath(module).name}"
    files_of = Counter(line for covered in lines.values() for line in covered)
    scores = {
        file: round(sum(1 / files_of[line] for line in covered), 6)
        * (OF_OWN_FOLDER if PurePath(file).parent == own else 1)
        for file, covered in lines.items()
        if (ROOT / file).exists()
    }
    least = LEAST_SHARE * max(scores.values(), default=0)
    ranks = {file: score * (OF_LISTED if file in listed else 1) for file, score in scores.items()}
    best = sorted((file for file in ranks if ranks[file] >= least), key=lambda f: (-ranks[f], f))
    kept = [file for file in listed if file not in recorded and (ROOT / file).exists()]
    return sorted(
        [*kept, *best][:MOST_FILES],
        key=lambda file: (PurePath(file) != mirror, PurePath(file).parent != own, file),
    )


def _mirror(folder: PurePath) -> PurePath:
    """Return the folder of a package's tests."""
    parts = folder.parts[1:] if folder.parts[0] == "statestore" else folder.parts
    return PurePath("tests", *parts)


def _tables(tests: Tests) -> Iterator[str]:
    order = sorted(tests, key=lambda path: (PurePath(path).parent, path))
    for folder, paths in groupby(order, key=lambda path: PurePath(path).parent):
        yield f"\n### `{folder}`\n\n| module | tests |\n| --- | --- |\n"
        for path in paths:
            files = ", ".join(f"`{_shown(PurePath(file), folder)}`" for file in tests[path])
            yield f"| `{PurePath(path).name}` | {files or '–'} |\n"


def _shown(file: PurePath, folder: PurePath) -> str:
    return file.name if file.parent == _mirror(folder) else str(file)


if __name__ == "__main__":
    recordings = [*map(Path, sys.argv[1:])] or [RECORDING] * RECORDING.exists()
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), *recordings), encoding="utf-8")
