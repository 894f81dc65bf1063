"""A data file's statistics as Delta keeps them, from the Parquet footer (Delta protocol, "Per-file
Statistics").

Key columns only, and only types whose bounds are exact in JSON; a missing bound is allowed, a wrong
one would hide rows from every Delta reader.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow.parquet as pq

from statestore.format.names import KEY_GROUP
from statestore.format.schema import DataType
from statestore.format.state import POSITION, SUBTASK, KeyedState, Layout, OperatorState

__all__ = ["LONGEST_TEXT", "file_statistics", "positions_of", "statistics_columns"]


LONGEST_TEXT = 32
"""A longer text is cut, or left out."""


def statistics_columns(state: KeyedState | OperatorState) -> tuple[str, ...]:
    """Return the columns that tell rows apart, as far as Delta keeps bounds of their types."""
    if isinstance(state, OperatorState):
        return (SUBTASK, POSITION)
    names = (name for name in state.identity if _has_bounds(state.schema.type_of(name)))
    return (*names,) if state.layout is Layout.PARTITIONED else (KEY_GROUP, *names)


def _has_bounds(data_type: DataType) -> bool:
    """Return whether Delta takes the type in ``delta.dataSkippingStatsColumns``."""
    if isinstance(data_type, str):
        return data_type not in ("boolean", "binary")
    inner = data_type["fields"] if data_type["type"] == "struct" else []
    return bool(inner) and all(_has_bounds(field["type"]) for field in inner)


def file_statistics(metadata: pq.FileMetaData, columns: tuple[str, ...]) -> str:
    """Return ``numRecords`` and, of the columns that have them, bounds and null counts, as JSON."""
    bounds: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    positions = positions_of(metadata)
    for name in columns:
        if name in positions:
            _add_bounds(bounds, name, metadata, positions[name])
    return json.dumps({"numRecords": metadata.num_rows, **bounds})


def positions_of(metadata: pq.FileMetaData) -> dict[str, int]:
    """Return where in the footer each column stands.

    A path that two have is left out: the column ``a.b`` and the field ``b`` of the struct ``a``
    look the same.
    """
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    return {path: i for i, path in enumerate(paths) if paths.count(path) == 1}


def _add_bounds(
    bounds: dict[str, dict[str, Any]], name: str, metadata: pq.FileMetaData, position: int
) -> None:
    groups = range(metadata.num_row_groups)
    found = [metadata.row_group(group).column(position).statistics for group in groups]
    if any(one is None for one in found):
        return
    if all(one.has_null_count for one in found):
        bounds["nullCount"][name] = sum(one.null_count for one in found)
    if not found or not all(one.has_min_max for one in found):
        return
    lowest, highest = min(one.min for one in found), max(one.max for one in found)
    if isinstance(lowest, bool) or not isinstance(lowest, int | str | dt.date):
        return
    if isinstance(lowest, dt.datetime):
        return
    if isinstance(lowest, str):
        # A cut lower bound is still one; an upper bound would have to be raised, so a long one is
        # left out.
        bounds["minValues"][name] = lowest[:LONGEST_TEXT]
        if len(highest) <= LONGEST_TEXT:
            bounds["maxValues"][name] = highest
        return
    dates = isinstance(lowest, dt.date)
    bounds["minValues"][name] = str(lowest) if dates else lowest
    bounds["maxValues"][name] = str(highest) if dates else highest
