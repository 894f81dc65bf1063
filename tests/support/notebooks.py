"""Run the notebooks in examples/, and store their outputs.

    python -m tests.support.notebooks

A stored output has no execution times, and one name for every temporary folder. An output that
differs only in times and random names stays as it is, so a new run of an unchanged tree changes no
notebook.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.syntax import ROOT

__all__ = [
    "FOLDER",
    "NOTEBOOKS",
    "code_cells",
    "masked",
    "read",
    "run",
    "shown",
    "temporary_folder",
]

FOLDER = ROOT / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
TEMPORARY = "/tmp/example"
TIME_LIMIT_SECONDS = 120
# What differs between two runs: dates and durations, and random names of files, ids and elements.
VARIABLE = (
    re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?( ?Z| UTC)?"),
    re.compile(r"\b\d+(\.\d+)?( ms| s)\b"),
    re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"),
    re.compile(r"\b[0-9a-f]{16}\b"),
    re.compile(r"\b\d{13}\b"),
    re.compile(r"\brelease \d+\.\d+\.\w+"),
)


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder whose path always has the same length.

    An import from Flink stores the savepoint's path in its files, and the notebook shows their
    sizes.
    """
    return tempfile.TemporaryDirectory(prefix="", dir="/tmp")


def read(path: Path) -> Any:
    """Return a notebook."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def run(path: Path, temporary: Path) -> Any:
    """Return the notebook with the outputs of a new run, which keeps its files in ``temporary``."""
    notebook = read(path)
    places = {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(temporary),
        "IPYTHONDIR": str(temporary / "i"),
    }
    client = NotebookClient(
        notebook,
        timeout=TIME_LIMIT_SECONDS,
        record_timing=False,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    client.execute(env=os.environ | places)
    for cell in code_cells(notebook):
        cell.outputs = [renamed(output, temporary) for output in cell.outputs]
    notebook.metadata.language_info = {"name": "python"}  # without the version of this Python
    return notebook


def renamed(output: Any, temporary: Path) -> Any:
    """Return an output that calls each folder in ``temporary`` by the same name."""
    place = re.compile(rf"{re.escape(str(temporary))}/tmp\w+")
    text = place.sub(TEMPORARY, nbformat.v4.writes(wrapped(output)))  # type: ignore[no-untyped-call]
    return nbformat.v4.reads(text).cells[0].outputs[0]  # type: ignore[no-untyped-call]


def wrapped(output: Any) -> Any:
    """Return a notebook with one output."""
    cell = nbformat.v4.new_code_cell(outputs=[output])  # type: ignore[no-untyped-call]
    return nbformat.v4.new_notebook(cells=[cell])  # type: ignore[no-untyped-call]


def code_cells(notebook: Any) -> list[Any]:
    """Return the cells that run."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(notebook: Any) -> list[list[str]]:
    """Return the texts of each code cell's outputs, in order."""
    return [
        [text for output in cell.outputs for text in texts(output)] for cell in code_cells(notebook)
    ]


def texts(output: Any) -> list[str]:
    """Return the texts of an output: a stream's, or one for each MIME type."""
    if output.output_type == "stream":
        return [output.text]
    return [f"{kind}: {text}" for kind, text in sorted(output.data.items())]


def masked(text: str) -> str:
    """Return a text without the parts that differ between two runs."""
    for part in VARIABLE:
        text = part.sub("#", text)
    return text


def keep_equal(notebook: Any, stored: Any) -> None:
    """Give cells the stored outputs if the new ones differ only in times and random names."""
    cells = zip(
        code_cells(notebook), code_cells(stored), shown(notebook), shown(stored), strict=True
    )
    for cell, stored_cell, new, old in cells:
        if [masked(text) for text in new] == [masked(text) for text in old]:
            cell.outputs = stored_cell.outputs


def main() -> None:
    """Run each notebook, and write it with its outputs."""
    for path in NOTEBOOKS:
        with temporary_folder() as folder:
            notebook = run(path, Path(folder))
        keep_equal(notebook, read(path))
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
