"""The Delta backend: data files become the content of a Delta table, by delta-rs, without a JVM.

The files are already written, by whoever; a commit removes the table's old files from its log and
adds the new ones (Delta protocol, "Add File and Remove File"). Removed files stay on disk for the
older checkpoints that name them: table properties hold VACUUM and log clean-up off.

A commit also records (application, checkpoint id) as a Delta transaction identifier, so that
publishing the same checkpoint twice finds the first one's version instead of committing again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from statestore.errors import (
    CommitConflictError,
    InvalidArgumentError,
    StorageError,
    UnsupportedTypeError,
)
from statestore.files.delta_log import INTERVAL, add_checkpoint
from statestore.files.reader import open_data
from statestore.files.statistics import file_statistics, statistics_columns
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Entry, KeyedEntry, OperatorEntry, TableRef
from statestore.format.names import KEY_GROUP
from statestore.format.schema import DataType, Field, Schema, same_columns, schema_from_json
from statestore.format.state import POSITION, SUBTASK, Layout
from statestore.storage import Storage

__all__ = ["DeltaTables", "add_action", "new_table", "refuse_escaped", "said"]

# Kept checkpoints read files that the newest table version no longer has: nothing but the store's
# own clean-up may delete them. A hundred years is Delta's way to say never.
_NEVER = "interval 36500 days"
_KEEPING = {
    "delta.deletedFileRetentionDuration": _NEVER,
    "delta.logRetentionDuration": _NEVER,
}
_PROPERTIES = _KEEPING | {
    "delta.checkpointInterval": str(INTERVAL),
    "delta.enableDeletionVectors": "false",
    "delta.autoOptimize.optimizeWrite": "false",
    "delta.autoOptimize.autoCompact": "false",
}
_ESCAPED = re.compile(r"%[0-9A-Fa-f]{2}")


def refuse_escaped(url: str, instead: str) -> None:
    """Refuse a path that delta-rs takes for another one: InvalidArgumentError with ``instead``."""
    if _ESCAPED.search(url):
        raise InvalidArgumentError(
            f"a Delta table cannot lie in {url}: delta-rs takes '%' and two digits for one "
            f"character, and would look elsewhere; {instead}"
        )


class DeltaTables:
    """Publishes the states of one store as Delta tables."""

    format = "delta"

    def __init__(self, storage: Storage) -> None:
        """Take where the tables lie; InvalidArgumentError for a path that delta-rs takes for
        another one.
        """
        refuse_escaped(storage.url, "choose another folder, or table_format='parquet'")
        self._storage = storage

    def publish(self, entry: Entry, checkpoint_id: int) -> TableRef:
        """Make the entry's files the table's newest version; return the table with that version.

        Raises CommitConflictError when somebody else changed the table meanwhile,
        UnsupportedTypeError for a column that no table is made of, or StorageError.
        """
        try:
            version = self._publish(entry, checkpoint_id)
        except CommitFailedError as error:
            raise _changed(entry) from error
        except (DeltaError, OSError) as error:
            raise StorageError(
                f"the Delta table of {entry.state} cannot be written: {said(error)} (an entry "
                "that its log lacks is put again by 'statestore repair')"
            ) from error
        return replace(entry.table, version=version)

    def _publish(self, entry: Entry, checkpoint_id: int) -> int:
        table = self._load(entry)
        application = f"statestore:{entry.table.path}"
        if table is None or not _fits(table, entry):
            table = self._replace(entry, application, checkpoint_id)
        elif table.transaction_version(application) != checkpoint_id or not _has(table, entry):
            add_checkpoint(self._storage, entry.table.path, table)
            table = self._exchange(table, entry, application, checkpoint_id)
        if not _has(table, entry):
            raise _changed(entry)
        version = table.version()
        self._storage.sync([f"{entry.table.path}/_delta_log/{version:020}.json"])
        return version

    def _load(self, entry: Entry) -> DeltaTable | None:
        try:
            return DeltaTable(self._url(entry), storage_options=self._storage.delta_options())
        except TableNotFoundError:
            return None

    def _url(self, entry: Entry) -> str:
        return f"{self._storage.url}/{entry.table.path}"

    def _replace(self, entry: Entry, application: str, checkpoint_id: int) -> DeltaTable:
        """Make the table anew, or for the first time: its columns, layout and properties may be
        others than before, and files of which somebody has hidden rows are whole again.
        """
        _refuse_hidden_times(entry)
        adds = [add_action(self._storage, entry, handle) for handle in entry.handles]
        options = self._storage.delta_options()
        new_table(self._url(entry), entry, adds, options, _commit(application, checkpoint_id))
        return DeltaTable(self._url(entry), storage_options=options)

    def _exchange(
        self, table: DeltaTable, entry: Entry, application: str, checkpoint_id: int
    ) -> DeltaTable:
        """Take out the files that are not the entry's, and put in those that are new."""
        named = {handle.path: handle for handle in entry.handles}
        there = {file["path"]: file for file in _files(table)}
        gone = [_remove(file) for path, file in there.items() if path not in named]
        new = [
            add_action(self._storage, entry, handle)
            for path, handle in named.items()
            if path not in there
        ]
        table.create_write_transaction(
            [*gone, *new],
            "append",
            table.schema(),
            _partition_columns(entry),
            commit_properties=_commit(application, checkpoint_id),
            post_commithook_properties=_HOOKS,
        )
        table.update_incremental()
        return table


def add_action(storage: Storage, entry: Entry, handle: Handle) -> AddAction:
    """Return the action that adds a data file (Delta protocol, "Add File and Remove File").

    Raises MissingFileError, DamagedFileError or StorageError.
    """
    values = {}
    if isinstance(handle, KeyedStateHandle) and _partition_columns(entry):
        values[KEY_GROUP] = str(handle.key_groups.first)
    statistics = handle.statistics or _statistics_of(storage, entry, handle)
    return AddAction(handle.path, handle.size_bytes, values, _now_ms(), True, statistics)


def _statistics_of(storage: Storage, entry: Entry, handle: Handle) -> str:
    """Return the statistics of a file that this checkpoint has not written."""
    with open_data(storage, entry.table.path, handle) as file:
        # Bounds of a footer without checksum are not believed: they could hide rows.
        names = statistics_columns(entry.state) if handle.footer is not None else ()
        return file_statistics(file.parquet.metadata, names)


def _changed(entry: Entry) -> CommitConflictError:
    return CommitConflictError(
        f"another writer changed the Delta table of {entry.state} while this checkpoint was being "
        "committed; nothing of this one is visible. Take the snapshot again"
    )


def said(error: Exception) -> str:
    """Return what delta-rs says in an error, without the insides that it shows after it."""
    text = str(error).partition("\n")[0]
    for noise in ("Kernel error: ", "Generic delta kernel error: "):
        text = text.removeprefix(noise)
    return text.partition(": ParsedLogPath")[0]


def new_table(
    url: str,
    entry: Entry,
    adds: list[AddAction],
    options: Mapping[str, str],
    commit: CommitProperties,
) -> None:
    """Make a version whose columns, layout, properties and files are these alone, of a new table
    if there is none.
    """
    create_table_with_add_actions(
        url,
        _delta_schema(entry),
        adds,
        mode="overwrite",
        partition_by=_partition_columns(entry),
        description=f"statestore: {entry.state}",
        configuration=_configuration(entry),
        storage_options=dict(options),
        commit_properties=commit,
        post_commithook_properties=_HOOKS,
    )


# What a log keeps the store says itself: see delta_log.py.
_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def _commit(application: str, checkpoint_id: int) -> CommitProperties:
    """Return what identifies a checkpoint's commit, for the store and, as Delta's user metadata,
    for who reads the table's history; one that meets another's is not tried again.
    """
    return CommitProperties(
        custom_metadata={"userMetadata": f"statestore checkpoint {checkpoint_id}"},
        app_transactions=[Transaction(application, checkpoint_id, _now_ms())],
        max_commit_retries=0,
    )


def _fits(table: DeltaTable, entry: Entry) -> bool:
    """Return whether the table has the entry's columns and layout, keeps its old files, and hides
    no row of a file.
    """
    columns = schema_from_json(json.loads(table.schema().to_json()))
    metadata = table.metadata()
    return (
        same_columns(columns, _table_schema(entry))
        and metadata.partition_columns == _partition_columns(entry)
        and _KEEPING.items() <= metadata.configuration.items()
        and "deletionVectors" not in (table.protocol().writer_features or ())
    )


def _has(table: DeltaTable, entry: Entry) -> bool:
    """Return whether the table's files are the entry's."""
    return {file["path"] for file in _files(table)} == {handle.path for handle in entry.handles}


def _files(table: DeltaTable) -> list[dict[str, Any]]:
    """Return path, ``size_bytes`` and ``partition`` values of the table's files."""
    actions = pa.table(table.get_add_actions(flatten=False))
    names = [name for name in ("path", "size_bytes", "partition") if name in actions.column_names]
    found: list[dict[str, Any]] = actions.select(names).to_pylist()
    return found


def _remove(file: Mapping[str, Any]) -> RemoveAction:
    partition = file.get("partition") or {}
    values = {name: None if value is None else str(value) for name, value in partition.items()}
    return RemoveAction(file["path"], True, _now_ms(), file["size_bytes"], values)


def _configuration(entry: Entry) -> dict[str, str | None]:
    names = ",".join(f"`{name.replace('`', '``')}`" for name in statistics_columns(entry.state))
    return {**_PROPERTIES, "delta.dataSkippingStatsColumns": names}


def _refuse_hidden_times(entry: Entry) -> None:
    """Refuse times without a zone that only maps have: delta-rs does not look into maps, and makes
    a table without the feature that they need (Delta protocol, "Timestamp without timezone").
    """
    fields = entry.state.schema.fields
    seen = [one.name for one in fields if _has_local_times(one.type, in_maps=False)]
    hidden = [one.name for one in fields if _has_local_times(one.type, in_maps=True)]
    if hidden and not seen:
        raise UnsupportedTypeError(
            f"{entry.state}: the column {hidden[0]!r} has times without a zone within a map, which "
            "no Delta table is made of here; give them a zone, make the map a list of structs, or "
            "open the store with table_format='parquet'"
        )


def _has_local_times(kind: DataType, *, in_maps: bool) -> bool:
    """Return whether a type has times without a zone, within maps or outside of them."""
    if isinstance(kind, str):
        return kind == "timestamp_ntz" and not in_maps
    if kind["type"] == "map":
        both = (kind["keyType"], kind["valueType"])
        inner = (_has_local_times(one, in_maps=at) for one in both for at in (False, True))
        return in_maps and any(inner)
    if kind["type"] == "array":
        return _has_local_times(kind["elementType"], in_maps=in_maps)
    return any(_has_local_times(one["type"], in_maps=in_maps) for one in kind["fields"])


def _partition_columns(entry: Entry) -> list[str]:
    """Return the key group's column if the table has a folder for each."""
    partitioned = isinstance(entry, KeyedEntry) and entry.state.layout is Layout.PARTITIONED
    return [KEY_GROUP] if partitioned else []


def _delta_schema(entry: Entry) -> DeltaSchema:
    return DeltaSchema.from_json(json.dumps(_table_schema(entry).to_json()))


def _table_schema(entry: Entry) -> Schema:
    """Return the table's columns: the stored ones after those that the store adds."""
    added = [Field(KEY_GROUP, "integer")]
    if isinstance(entry, OperatorEntry):
        added = [Field(SUBTASK, "integer"), Field(POSITION, "long")]
    return Schema((*added, *entry.state.schema.fields))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
