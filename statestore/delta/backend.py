"""The Delta backend: data files become the content of a Delta table, without a JVM.

The files are already written, by any process. An entry of the log removes the table's old files and
adds the new ones. delta-rs reads the log. Removed files stay on disk for the older checkpoints that
name them: table properties keep VACUUM and log clean-up from deleting them.

An entry also records (application, checkpoint id) as a Delta transaction identifier. Publishing the
same checkpoint twice therefore finds the first version instead of committing again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import create_table_with_add_actions

from statestore.delta.delta_rs import refuse_forked, retry_broken_answers
from statestore.delta.log_cleanup import add_checkpoint, delete_entries
from statestore.delta.log_entry import (
    REQUIRED,
    Action,
    add_file,
    application_id,
    commit_info,
    configuration_of,
    define_table,
    encode,
    label_of,
    partition_columns,
    refuse_hidden_times,
    remove_file,
    table_schema,
    transaction,
)
from statestore.errors import CommitConflictError, InvalidArgumentError, StorageError
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Entry, TableRef
from statestore.format.schema import same_columns, schema_from_json
from statestore.storage import Storage, put_once
from statestore.storage.addresses import GATEWAY_CODES, delta_proxy_advice, without_credentials

_ESCAPED = re.compile(r"%[0-9A-Fa-f]{2}|[\x00-\x1f\x7f]" + ("" if os.sep == "\\" else r"|\\"))
_VECTORS = "deletionVectors"
_FEATURES = {"appendOnly", "invariants", "timestampNtz"}
"""Features that an entry of the store supports. A table with other features is replaced."""


def refuse_escaped(url: str, instead: str) -> None:
    """Refuse a path that delta-rs would change; ``instead`` is the advice of the error."""
    match = _ESCAPED.search(url)
    if match is not None:
        raise InvalidArgumentError(
            f"a Delta table cannot be stored at {url!r}: delta-rs would use another path because "
            f"of {match[0]!r}. It decodes '%' and two digits, takes '\\' for '/', and has no "
            f"control characters; {instead}"
        )


class DeltaTables:
    """Publishes the states of one store as Delta tables."""

    format = "delta"

    def __init__(self, storage: Storage) -> None:
        """Take the tables' storage.

        Raises InvalidArgumentError for a path that delta-rs would unescape, and in a process in
        which delta-rs does not work.
        """
        refuse_escaped(storage.url, "choose another folder, or table_format='parquet'")
        refuse_forked(storage.url)
        self._storage = storage

    def publish(
        self, entry: Entry, checkpoint_id: int, left_out: Sequence[LeftOutState] = ()
    ) -> TableRef:
        """Make the entry's files the table's newest version; return the table with that version.

        The table's description includes the records of ``left_out`` about the state. Raises
        CommitConflictError when another writer changed the table in the meantime,
        UnsupportedTypeError for a column that a Delta table cannot have, or StorageError.
        """
        try:
            label = label_of(entry, checkpoint_id, left_out)
            # A repetition finds the version that an earlier attempt has put.
            version = retry_broken_answers(lambda: self._publish(entry, checkpoint_id, label))
        except CommitFailedError as error:
            raise _table_changed_error(entry) from error
        except (DeltaError, OSError) as error:
            raise StorageError(
                f"cannot write the Delta table of {entry.state}: "
                f"{error_text(error, self._storage)} "
                "('statestore repair' writes an entry that is missing from the log)"
            ) from error
        return replace(entry.table, version=version)

    def _publish(self, entry: Entry, checkpoint_id: int, label: Mapping[str, str]) -> int:
        table = self._load(entry)
        if table is None or not _is_published(table, entry, checkpoint_id):
            table = self._commit(table, entry, checkpoint_id, label)
        if not _has_same_files(table, entry):
            raise _table_changed_error(entry)
        version = table.version()
        self._storage.sync([self._name(entry, version)])
        return version

    def _load(self, entry: Entry) -> DeltaTable | None:
        try:
            return self._open(entry)
        except TableNotFoundError:
            return None

    def _open(self, entry: Entry) -> DeltaTable:
        return DeltaTable(self._url(entry), storage_options=self._storage.delta_options())

    def _url(self, entry: Entry) -> str:
        return f"{self._storage.url}/{entry.table.path}"

    def _name(self, entry: Entry, version: int) -> str:
        return f"{entry.table.path}/_delta_log/{version:020}.json"

    def _commit(
        self,
        table: DeltaTable | None,
        entry: Entry,
        checkpoint_id: int,
        label: Mapping[str, str],
    ) -> DeltaTable:
        """Put the log entry after ``table``'s version, or the first; return the new version.

        A file that the table already has is added again only if its statistics lack a bound, or if
        the table's definition changes.
        """
        refuse_hidden_times(entry)
        if table is not None and _VECTORS in _features(table):
            table = self._empty_table(entry, label)
        files = [] if table is None else _files(table)
        described: set[str] = set()
        if table is not None and _fits(table, entry):
            add_checkpoint(self._storage, entry.table.path, table)
            definition = [_relabel(table, label)]
            described = {file["path"] for file in files if _is_described(file)}
        else:
            definition = define_table(entry, label)
        named = {handle.path: handle for handle in entry.handles}
        present = {file["path"] for file in files}
        actions = [
            commit_info(entry, checkpoint_id),
            *definition,
            *(
                remove_file(file["path"], file["size_bytes"], file.get("partition") or {})
                for file in files
                if file["path"] not in named
            ),
            *(
                add_file(self._storage, entry, handle, is_new=path not in present)
                for path, handle in named.items()
                if path not in described
            ),
            transaction(entry, checkpoint_id),
        ]
        version = 0 if table is None else table.version() + 1
        if not put_once(self._storage, self._name(entry, version), encode(actions)):
            raise _table_changed_error(entry)
        if table is None:
            return self._open(entry)
        table.update_incremental()
        return table

    def _empty_table(self, entry: Entry, label: Mapping[str, str]) -> DeltaTable:
        """Replace the definition of a table and remove its files.

        Only delta-rs knows the deletion vectors that another writer added to the files, and a file
        is removed together with its vector. The next entry adds the files without vectors.
        """
        create_table_with_add_actions(
            self._url(entry),
            DeltaSchema.from_json(json.dumps(table_schema(entry).to_json())),
            [],
            mode="overwrite",
            partition_by=partition_columns(entry),
            configuration=configuration_of(entry),
            storage_options=dict(self._storage.delta_options()),
            post_commithook_properties=_HOOKS,
            name=label["name"],
            description=label["description"],
        )
        return self._open(entry)


def shown_files(storage: Storage, folder: str) -> frozenset[str] | None:
    """Return the files that the newest version of a Delta table names.

    Args:
        storage: the store.
        folder: the table's folder in the store.

    Returns:
        The names of the files in the store; empty for a table without a log. None if the log cannot
        be read.
    """
    try:
        table = _load_table(storage, folder)
        return frozenset(f"{folder}/{file['path']}" for file in _files(table))
    except TableNotFoundError:
        return frozenset()
    except (DeltaError, OSError):
        return None


def _load_table(storage: Storage, folder: str, version: int | None = None) -> DeltaTable:
    url, options = f"{storage.url}/{folder}", storage.delta_options()
    return retry_broken_answers(lambda: DeltaTable(url, version=version, storage_options=options))


def cut_log(storage: Storage, folder: str, version: int | None = None) -> bool:
    """Delete the entries of a Delta log before a version.

    Args:
        storage: the store.
        folder: the table's folder in the store.
        version: the oldest version that stays; None for the newest one.

    Returns:
        False if the log cannot be read, or if another writer keeps checkpoints of another kind in
        it. The log is then unchanged.

    Raises:
        StorageError: the log cannot be written.
    """
    try:
        table = _load_table(storage, folder, version)
    except (DeltaError, OSError):
        return False
    try:
        return delete_entries(storage, folder, table.version())
    except (DeltaError, OSError) as error:
        raise StorageError(
            f"cannot clean up the Delta log of {storage.url}/{folder}: {error_text(error, storage)}"
        ) from error


_COLOR = re.compile(r"\x1b\[\d*m")
# Among delta-rs's causes, this one says that no server answered.
_UNANSWERED = "error sending request"


# The store itself decides what a log keeps: see delta_log.py.
_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def _table_changed_error(entry: Entry) -> CommitConflictError:
    return CommitConflictError(
        f"another writer changed the Delta table of {entry.state} during this commit; nothing "
        "of this checkpoint is visible. Take the snapshot again"
    )


def error_text(error: Exception, storage: Storage) -> str:
    """Return the message of a delta-rs error, without the internal details that follow it.

    A failed request has a list of causes, of which the last one is the reason. If the server did
    not answer, the message names the proxy that is set for it.
    """
    text, *causes = _COLOR.sub("", without_credentials(str(error))).split("\n")
    for noise in ("Kernel error: ", "Generic delta kernel error: ", "Kernel error -> "):
        text = text.removeprefix(noise)
    text = text.partition(": ParsedLogPath")[0]
    reasons = [cause.strip(" ↳") for cause in causes if cause.lstrip().startswith("↳ ")]
    reasons = [reason for reason in reasons if not reason.startswith("<")]  # no XML
    if not reasons:
        return text
    advice = None
    if any(reason == _UNANSWERED or reason[:3] in GATEWAY_CODES for reason in reasons):
        advice = delta_proxy_advice(storage.url, storage.delta_options())
    return f"{text}: {reasons[-1]}" + (f"; {advice}" if advice else "")


def _relabel(table: DeltaTable, label: Mapping[str, str]) -> Action:
    """Return the table's metadata with another name and description."""
    metadata = table.metadata()
    return {
        "metaData": {
            "id": metadata.id,
            **label,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": table.schema().to_json(),
            "partitionColumns": metadata.partition_columns,
            "configuration": dict(sorted(metadata.configuration.items())),
            "createdTime": metadata.created_time,
        }
    }


def _fits(table: DeltaTable, entry: Entry) -> bool:
    """Return whether a new entry can keep the table's definition.

    The table must have the entry's columns, layout and properties, and no feature that an entry of
    the store would violate.
    """
    columns = schema_from_json(json.loads(table.schema().to_json()))
    metadata, protocol = table.metadata(), table.protocol()
    configuration = metadata.configuration
    wanted = configuration_of(entry)
    return (
        same_columns(columns, table_schema(entry))
        and metadata.partition_columns == partition_columns(entry)
        and all(configuration.get(name) == wanted[name] for name in REQUIRED)
        and configuration.get("delta.appendOnly", "false") == "false"
        and _features(table) <= _FEATURES
        and (protocol.min_writer_version <= 2 or protocol.writer_features is not None)
    )


def _features(table: DeltaTable) -> set[str]:
    protocol = table.protocol()
    return {*(protocol.reader_features or ()), *(protocol.writer_features or ())}


def _is_published(table: DeltaTable, entry: Entry, checkpoint_id: int) -> bool:
    """Return whether the table already shows the checkpoint."""
    return (
        _fits(table, entry)
        and table.transaction_version(application_id(entry)) == checkpoint_id
        and _has_same_files(table, entry)
    )


def _has_same_files(table: DeltaTable, entry: Entry) -> bool:
    """Return whether the table has the same files as the entry."""
    return {file["path"] for file in _files(table)} == {handle.path for handle in entry.handles}


def _files(table: DeltaTable) -> list[dict[str, Any]]:
    """Return path, ``size_bytes``, ``partition`` values and bounds of the table's files."""
    actions = pa.table(table.get_add_actions(flatten=False))
    wanted = ("path", "size_bytes", "partition", "min", "max")
    files: list[dict[str, Any]] = actions.select(
        [name for name in wanted if name in actions.column_names]
    ).to_pylist()
    return files


def _is_described(file: dict[str, Any]) -> bool:
    """Return whether a file has both bounds of all columns that have bounds, or no bounds at all.

    Older releases left out some bounds, so that readers could wrongly skip the file: see
    statistics.py.
    """
    bounds = [file.get("min") or {}, file.get("max") or {}]
    return all(value is not None for values in bounds for value in values.values())
