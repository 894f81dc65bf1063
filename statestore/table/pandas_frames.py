"""pandas' frames as Arrow tables: every column as it is, and nothing that is none.

NaN in a column of floats is NaN. In a column of objects pandas writes NaN for what is missing, so
there it is null, as None, NaT and NA are everywhere, unless the column holds floats. The index is
no column: one that is more than row numbers is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.table.values import ROWS, guessed_column

__all__ = ["is_pandas", "table_of_pandas"]


def is_pandas(rows: Any) -> bool:
    """Return whether the value is a pandas frame; pandas is not loaded for it."""
    kind = type(rows)
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def table_of_pandas(frame: Any, subject: str = ROWS) -> pa.Table:
    """Return a frame as a table.

    InvalidArgumentError names ``subject`` for an index that is more than row numbers, names of
    columns that are no strings or come twice, or values that do not form one type.
    """
    _refuse_index(frame.index, subject)
    names = list(frame.columns)
    if not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(
            f"the names of the columns of {subject} are strings, not {names!r:.80}; rename them "
            "with frame.columns = […]"
        )
    columns = [_column(frame.iloc[:, at], name, subject) for at, name in enumerate(names)]
    return pa.Table.from_arrays(columns, names=names)


def _refuse_index(index: Any, subject: str) -> None:
    if type(index).__name__ == "RangeIndex" and index.name is None:
        return
    named = [name for name in index.names if name is not None]
    what = f"an index named {', '.join(map(repr, named))}" if named else "an index of its own"
    raise InvalidArgumentError(
        f"the pandas frame of {subject} has {what}, which is no column: "
        "frame.reset_index() makes one of it, frame.reset_index(drop=True) leaves it out"
    )


def _column(series: Any, name: str, subject: str) -> pa.Array | pa.ChunkedArray:
    kind = series.dtype
    if isinstance(kind, np.dtype) and kind.kind == "O":
        return _of_objects(series.tolist(), name, subject)
    is_float = isinstance(kind, np.dtype) and kind.kind == "f"
    try:
        return pa.array(series.to_numpy()) if is_float else pa.array(series, from_pandas=True)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"the column {name!r} of {subject}, of pandas' type {kind}, cannot be read as Arrow: "
            f"{error}; give it another type with astype"
        ) from error


def _of_objects(values: list[Any], name: str, subject: str) -> pa.Array:
    if any(_is_nan(value) for value in values):
        known = [value for value in values if value is not None and not _is_nan(value)]
        if not all(isinstance(value, float | int) for value in known):
            values = [None if _is_nan(value) else value for value in values]
    return guessed_column(values, name=name, subject=subject)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value
