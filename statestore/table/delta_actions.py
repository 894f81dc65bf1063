"""What a Delta log says of a data file, as a value; no Spark is needed to know it."""

from __future__ import annotations

import json
from typing import Any

from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Entry, KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.schema import DataType
from statestore.format.state import POSITION, SUBTASK, Layout
from statestore.storage import Storage
from statestore.table.reading import open_data
from statestore.table.statistics import file_statistics

__all__ = ["add_action", "is_partitioned", "statistics_columns"]


def add_action(storage: Storage, entry: Entry, handle: Handle, now_ms: int) -> dict[str, Any]:
    """Return the action that adds a data file (Delta protocol, "Add File and Remove File").

    Raises MissingFileError, DamagedFileError or StorageError.
    """
    values = {}
    if isinstance(handle, KeyedStateHandle) and is_partitioned(entry):
        values[KEY_GROUP] = str(handle.key_groups.first)
    with open_data(storage, entry.table.path, handle) as file:
        # Bounds of a footer without checksum are not believed: they could hide rows.
        names = statistics_columns(entry) if handle.footer is not None else ()
        statistics = file_statistics(file.parquet.metadata, names)
    return {
        "path": handle.path,
        "partitionValues": values,
        "size": handle.size_bytes,
        "modificationTime": now_ms,
        "dataChange": True,
        "stats": json.dumps(statistics),
    }


def statistics_columns(entry: Entry) -> tuple[str, ...]:
    """Return the columns that tell rows apart, as far as Delta keeps bounds of their types."""
    if not isinstance(entry, KeyedEntry):
        return (SUBTASK, POSITION)
    schema = entry.state.schema
    bounded = tuple(name for name in entry.state.identity if _has_bounds(schema.type_of(name)))
    return bounded if is_partitioned(entry) else (KEY_GROUP, *bounded)


def _has_bounds(data_type: DataType) -> bool:
    """Return whether Delta takes the type in ``delta.dataSkippingStatsColumns``."""
    if isinstance(data_type, str):
        return data_type not in ("boolean", "binary")
    inner = data_type["fields"] if data_type["type"] == "struct" else []
    return bool(inner) and all(_has_bounds(field["type"]) for field in inner)


def is_partitioned(entry: Entry) -> bool:
    """Return whether the table has a folder for each key group."""
    return isinstance(entry, KeyedEntry) and entry.state.layout is Layout.PARTITIONED
