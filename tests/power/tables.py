"""A Delta table with numbered appends, and what a power failure may leave of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from statestore.delta.append_once import append_once

__all__ = ["append_rows", "create_table", "table_problems"]

_APPLICATION = "query/output"
_INTERVAL = {"delta.checkpointInterval": "3"}


def create_table(folder: Path) -> None:
    """Create a table whose log gets a checkpoint after every third version."""
    schema = pa.schema([("number", pa.int64())])
    DeltaTable.create(str(folder), schema, configuration=_INTERVAL)


def append_rows(folder: Path, number: int, rows: list[int]) -> None:
    """Append the rows of a number, as the output of a query does."""
    own = pa.table({"number": pa.array([number] * rows[number], pa.int64())})
    append_once(str(folder), lambda: own, application=_APPLICATION, number=number, options={})


def table_problems(folder: Path, facts: Mapping[str, Any], *, go_on: bool) -> list[str]:
    """Return the promises of a mark ``table`` that are broken.

    With ``go_on`` all appends are repeated afterwards, and must then be complete.
    """
    rows = facts["rows"]
    try:
        problems = _wrong_rows(folder, rows, facts["number"], len(rows) - 1)
        if go_on and not problems:
            for number in range(len(rows)):
                append_rows(folder, number, rows)
            problems = _wrong_rows(folder, rows, len(rows) - 1, len(rows) - 1)
    except (DeltaError, OSError, pa.ArrowException) as error:
        problems = [f"{type(error).__name__}: {error}"]
    return [f"{folder.name}: {problem}" for problem in problems]


def _wrong_rows(folder: Path, rows: list[int], least: int, most: int) -> list[str]:
    if not DeltaTable.is_deltatable(str(folder)):
        return ["the table is lost"] if least >= 0 else []
    table = DeltaTable(str(folder))
    last = table.transaction_version(_APPLICATION)
    last = -1 if last is None else last
    if not least <= last <= most:
        return [f"the table ends with number {last}, not {least}"]
    found = sorted(table.to_pyarrow_table()["number"].to_pylist())
    expected = [number for number in range(last + 1) for _ in range(rows[number])]
    return [] if found == expected else [f"the table has the numbers {found}"]
