"""One entry of a Delta log: the actions that make a checkpoint's files the content of a table.

The store puts entries itself, as it puts manifests. delta-rs has no commit that changes files and
the table's name together. When delta-rs replaces a table, it may add and remove the same file in
one entry, and Spark then loses the file.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from deltalake import Schema as DeltaSchema
from deltalake.transaction import create_table_with_add_actions

from statestore._version import __version__
from statestore.delta.log_cleanup import INTERVAL
from statestore.errors import UnsupportedTypeError
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.left_out import LeftOutState, left_out_text
from statestore.format.manifest import Entry, KeyedEntry, OperatorEntry
from statestore.format.names import KEY_GROUP, POSITION, SUBTASK
from statestore.format.schema import DataType, Field, Schema
from statestore.format.state import Layout
from statestore.parquet.reader import open_data
from statestore.parquet.statistics import file_statistics, statistics_columns
from statestore.storage import Storage

Action = dict[str, Any]

# Kept checkpoints read files that the newest table version has removed. Only the store's own
# garbage collection may delete them. In Delta, a hundred years stands for never.
_NEVER = "interval 36500 days"
_PROPERTIES = {
    "delta.deletedFileRetentionDuration": _NEVER,
    "delta.logRetentionDuration": _NEVER,
    "delta.checkpointInterval": str(INTERVAL),
    "delta.enableDeletionVectors": "false",
    "delta.autoOptimize.optimizeWrite": "false",
    "delta.autoOptimize.autoCompact": "false",
}

_STATISTICS = "delta.dataSkippingStatsColumns"
REQUIRED = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration", _STATISTICS)
"""The properties that a table must keep. Users of the table may change the others."""


_MISSING = " The table is only part of the state. Left out: "


def encode(actions: Iterable[Action]) -> bytes:
    """Return an entry's bytes: a line of JSON for each action, not escaped (see statistics.py)."""
    return "".join(f"{json.dumps(action, ensure_ascii=False)}\n" for action in actions).encode()


def label_of(entry: Entry, checkpoint_id: int, left_out: Iterable[LeftOutState]) -> dict[str, str]:
    """Return the table's name and description.

    They name the checkpoint that the table shows, and the part of the state that the table lacks
    according to the checkpoint's records of missing state.
    """
    uid, name = entry.state.uid, entry.state.name
    lacking = left_out_text(record for record in left_out if record.lacks(uid, name))
    return {
        "name": f"{entry.state}, checkpoint {checkpoint_id}",
        "description": (
            f"statestore: the rows of {entry.state} as of checkpoint {checkpoint_id}. Changes of "
            "later incremental checkpoints are not in this table; restore, query and "
            'spark.read.format("keyed_state") have them.'
            + (f"{_MISSING}{lacking}." if lacking else "")
        ),
    }


def missing_part(description: str | None) -> str | None:
    """Return the part of the state that a table lacks according to its description.

    None if the description mentions no such part.
    """
    _, marker, lacking = (description or "").partition(_MISSING)
    return lacking.removesuffix(".") if marker else None


def commit_info(entry: Entry, checkpoint_id: int) -> Action:
    """Return the author of the entry and, as user metadata, the checkpoint that it shows."""
    parameters = {"mode": "Overwrite", "partitionBy": json.dumps(partition_columns(entry))}
    return {
        "commitInfo": {
            "timestamp": _now_ms(),
            "operation": "WRITE",
            "operationParameters": parameters,
            "engineInfo": f"statestore/{__version__}",
            "userMetadata": f"statestore checkpoint {checkpoint_id}",
        }
    }


def application_id(entry: Entry) -> str:
    """Return the application of the table's transaction identifiers."""
    return f"statestore:{entry.table.path}"


def transaction(entry: Entry, checkpoint_id: int) -> Action:
    """Return the identifier that prevents publishing the same checkpoint twice."""
    identity = {"appId": application_id(entry), "version": checkpoint_id}
    return {"txn": identity | {"lastUpdated": _now_ms()}}


def define_table(entry: Entry, label: Mapping[str, str]) -> list[Action]:
    """Return the protocol and the metadata of a new table, as delta-rs makes them."""
    with tempfile.TemporaryDirectory(prefix="statestore-") as folder:
        create_table_with_add_actions(
            folder,
            DeltaSchema.from_json(json.dumps(table_schema(entry).to_json())),
            [],
            partition_by=partition_columns(entry),
            configuration=configuration_of(entry),
            name=label["name"],
            description=label["description"],
        )
        lines = Path(folder, "_delta_log", f"{0:020}.json").read_bytes().splitlines()
    actions = [json.loads(line) for line in lines]
    for action in actions:
        if "metaData" in action:  # delta-rs writes the properties in a random order
            properties = action["metaData"]["configuration"]
            action["metaData"]["configuration"] = dict(sorted(properties.items()))
    return [action for action in actions if action.keys() & {"protocol", "metaData"}]


def add_file(storage: Storage, entry: Entry, handle: Handle, *, is_new: bool = True) -> Action:
    """Return the action that adds a data file (Delta protocol, "Add File and Remove File").

    ``is_new`` is False if the table already has the file and gets new statistics for it. Raises
    MissingFileError, DamagedFileError or StorageError.
    """
    values = {}
    if isinstance(handle, KeyedStateHandle) and partition_columns(entry):
        values[KEY_GROUP] = str(handle.key_groups.first)
    return {
        "add": {
            "path": quote(handle.path, safe="/="),
            "partitionValues": values,
            "size": handle.size_bytes,
            "modificationTime": _now_ms(),
            "dataChange": is_new,
            "stats": handle.statistics or _statistics_of(storage, entry, handle),
        }
    }


def remove_file(path: str, size_bytes: int, partition: Mapping[str, Any]) -> Action:
    """Return the action that removes a data file."""
    values = {name: None if value is None else str(value) for name, value in partition.items()}
    return {
        "remove": {
            "path": quote(path, safe="/="),
            "deletionTimestamp": _now_ms(),
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": values,
            "size": size_bytes,
        }
    }


def partition_columns(entry: Entry) -> list[str]:
    """Return the key group's column if the table has a folder for each key group."""
    partitioned = isinstance(entry, KeyedEntry) and entry.state.layout is Layout.PARTITIONED
    return [KEY_GROUP] if partitioned else []


def table_schema(entry: Entry) -> Schema:
    """Return the table's columns: first those that the store adds, then the stored columns."""
    added = [Field(KEY_GROUP, "integer")]
    if isinstance(entry, OperatorEntry):
        added = [Field(SUBTASK, "integer"), Field(POSITION, "long")]
    return Schema((*added, *entry.state.schema.fields))


def configuration_of(entry: Entry) -> dict[str, str | None]:
    """Return the properties of the entry's table."""
    names = (field.name.replace("`", "``") for field in statistics_columns(entry.state))
    columns = ",".join(f"`{name}`" for name in names)
    return {**_PROPERTIES, _STATISTICS: columns}


def _statistics_of(storage: Storage, entry: Entry, handle: Handle) -> str:
    """Read the statistics of a file that an earlier checkpoint wrote."""
    with open_data(storage, entry.table.path, handle) as file:
        if handle.footer is None:  # without a checksum, wrong bounds could hide rows
            return json.dumps({"numRecords": handle.rows})
        return file_statistics(file.parquet.metadata, statistics_columns(entry.state))


def refuse_hidden_times(entry: Entry) -> None:
    """Refuse a table whose only timestamps without a zone are in maps.

    delta-rs does not look into maps, and creates the table without the feature that these types
    need (Delta protocol, "Timestamp without timezone").
    """
    fields = entry.state.schema.fields
    outside_maps = [field.name for field in fields if _has_local_times(field.type, in_maps=False)]
    hidden = [field.name for field in fields if _has_local_times(field.type, in_maps=True)]
    if hidden and not outside_maps:
        raise UnsupportedTypeError(
            f"{entry.state}: the column {hidden[0]!r} is a map that contains timestamps "
            "without a time zone, which a Delta table cannot store; add a time zone, make "
            "the map a list of structs, or open the store with table_format='parquet'"
        )


def _has_local_times(data_type: DataType, *, in_maps: bool) -> bool:
    """Return whether a type has timestamps without a zone, inside or outside of maps."""
    if isinstance(data_type, str):
        return data_type == "timestamp_ntz" and not in_maps
    if data_type["type"] == "map":
        both = (data_type["keyType"], data_type["valueType"])
        inner = (
            _has_local_times(inner_type, in_maps=is_in_map)
            for inner_type in both
            for is_in_map in (False, True)
        )
        return in_maps and any(inner)
    if data_type["type"] == "array":
        return _has_local_times(data_type["elementType"], in_maps=in_maps)
    return any(_has_local_times(field["type"], in_maps=in_maps) for field in data_type["fields"])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
