"""The notebooks in examples/ run from top to bottom, show their stored outputs, and clean up."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.notebooks import (
    FOLDER,
    NOTEBOOKS,
    code_cells,
    masked,
    read,
    run,
    shown,
    temporary_folder,
)

pytestmark = pytest.mark.slow

WITH_SPARK = {"3_somebody_elses_checkpoint"}
SHOW_NOTHING = {"awaitTermination", "cleanup"}
ANEW = "if the new output is right, store it: make notebooks"


def test_there_are_four() -> None:
    assert [notebook.name[0] for notebook in NOTEBOOKS] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_the_outputs_of_one_run(path: Path) -> None:
    """A reader sees all results without running a cell."""
    cells = code_cells(read(path))
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert [
        cell.source for cell in cells if shows_something(cell.source) and not cell.outputs
    ] == []
    assert sum(bool(cell.outputs) for cell in cells) >= 6


def shows_something(source: str) -> bool:
    """Return whether a cell ends with an expression that has a value, or that prints."""
    last = ast.parse(source).body[-1]
    if not isinstance(last, ast.Expr):
        return False
    call = last.value
    name = call.func.attr if isinstance(call, ast.Call) and hasattr(call.func, "attr") else ""
    return name not in SHOW_NOTHING


@pytest.mark.long_cases("4_repair_a_damaged_store", "2_rescale_a_kafka_job")
@pytest.mark.parametrize(
    "path",
    [
        # In each run, tests/test_docs.py runs docs/how/spark-queries.md, which has the same calls.
        pytest.param(
            path,
            id=path.stem,
            marks=[pytest.mark.spark, pytest.mark.long] if path.stem in WITH_SPARK else (),
        )
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_shows_what_is_stored_and_cleans_up(path: Path) -> None:
    before = set(FOLDER.iterdir())
    with temporary_folder() as folder:
        notebook = run(path, Path(folder))
        assert {one.name for one in Path(folder).iterdir()} <= {"i"}
    assert set(FOLDER.iterdir()) == before
    for new, stored in zip(shown(notebook), shown(read(path)), strict=True):
        assert [masked(text) for text in new] == [masked(text) for text in stored], ANEW
    assert any('class="statestore"' in text for texts in shown(notebook) for text in texts)


def test_a_changed_output_is_found() -> None:
    taken = "taken 2026-01-02 03:04:05 UTC, by release 0.2.0: 54 rows"
    assert masked(taken) == masked(taken.replace("03:04", "13:14").replace("0.2.0", "0.3.0"))
    assert masked(taken) != masked(taken.replace("54", "55"))
