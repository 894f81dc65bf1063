"""The notebooks in examples/ run from top to bottom, and leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.syntax import ROOT

pytestmark = pytest.mark.slow

FOLDER = ROOT / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
WITH_SPARK = {"3_somebody_elses_checkpoint"}


def test_there_are_four() -> None:
    assert [notebook.name[0] for notebook in NOTEBOOKS] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_its_outputs(path: Path) -> None:
    for cell in read(path).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


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
def test_a_notebook_runs_and_cleans_up(path: Path, tmp_path: Path) -> None:
    before = set(FOLDER.iterdir())
    notebook = read(path)
    places = {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "IPYTHONDIR": str(tmp_path / "i")}
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(FOLDER)}})
    client.execute(env=os.environ | places)
    assert {one.name for one in tmp_path.iterdir()} <= {"i"}
    assert set(FOLDER.iterdir()) == before
    drawn = [data["text/html"] for data in outputs(notebook) if "text/html" in data]
    assert any('class="statestore"' in html for html in drawn)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def outputs(notebook: Any) -> list[dict[str, Any]]:
    """Return what each cell showed, by MIME type."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return [output.data for cell in cells for output in cell.outputs if "data" in output]
