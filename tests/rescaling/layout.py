"""Rows and columns of text for the drawings of docs/RESCALING.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from statestore.cli.drawing import UNICODE

GAP = "  "


def table(names: Sequence[str], rows: Iterable[Sequence[object]], *, left: str = "") -> str:
    """Return columns under their names, aligned to the right except those in ``left``.

    No cell is empty: a dot stands for zero or nothing.
    """
    cells = [list(names), *([str(value) for value in row] for row in rows)]
    for row in cells:
        assert len(row) == len(names)
        assert all(row), row
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = ["<" if name in left.split(",") else ">" for name in names]
    lines = (
        GAP.join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def cells(label: str, values: Iterable[object], *, indent: int, width: int) -> str:
    """Return one line of values, each centered in its cell."""
    return (f"{label:<{indent}}" + "".join(f"{value!s:^{width}}" for value in values)).rstrip()


def cut(label: str, parts: Iterable[tuple[object, int]], *, indent: int, width: int) -> str:
    """Return one line of segments; each has a name and a number of cells."""
    segments = (
        f"[{f' {name} '.center(size * width - 2, UNICODE.line)}]" for name, size in parts if size
    )
    return f"{label:<{indent}}" + "".join(segments)
