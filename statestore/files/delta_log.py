"""A table's Delta log as files, without Spark: which entries it has, and what a lost one held.

A lost entry is put again only where it is known to the last file: a manifest names the files of the
table at that version, Delta's own checksum file of it (``.crc``) agrees in their number and bytes,
and has metadata, protocol and transactions; and the entries around it fit.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import CorruptionError, InvalidArgumentError, NotFoundError
from statestore.files.reader import open_data
from statestore.files.writer import file_statistics
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Entry, KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.schema import DataType
from statestore.format.state import POSITION, SUBTASK, Layout
from statestore.storage import Storage, open_storage, put_once

__all__ = [
    "DeltaLog",
    "LostEntry",
    "add_action",
    "input_bytes",
    "is_partitioned",
    "lost_entries",
    "statistics_columns",
]


# What a Delta log says of a data file, as a value; no Spark is needed to know it.


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


_LOG = "_delta_log"
_NAME = re.compile(r"([0-9]{20})\.(json|crc|checkpoint\.parquet)")
_COLUMNS = ("add", "metaData", "protocol")

Action = dict[str, Any]


@dataclass(frozen=True)
class LostEntry:
    """An entry that is missing: its file, the bytes to put there, None when nobody knows, and that
    in words.
    """

    file: str
    data: bytes | None
    what: str


@dataclass
class _Table:
    """What a table is at a version: its files, metadata and protocol."""

    files: dict[str, Action] = field(default_factory=dict)
    metadata: Action | None = None
    protocol: Action | None = None

    def apply(self, actions: list[Action]) -> bool:
        """Go on by an entry; return whether it fits: nothing comes twice or goes that is not."""
        fits = True
        for action in actions:
            if remove := action.get("remove"):
                fits &= self.files.pop(remove["path"], None) is not None
            if add := action.get("add"):
                self.files[add["path"]] = add
            self.metadata = action.get("metaData") or self.metadata
            self.protocol = action.get("protocol") or self.protocol
        return fits


class DeltaLog:
    """The log of the table in ``folder`` of a store."""

    def __init__(self, storage: Storage, folder: str) -> None:
        """List it."""
        self.storage, self.folder = storage, folder
        self.versions: dict[str, list[int]] = {"json": [], "crc": [], "checkpoint.parquet": []}
        for name in storage.list(f"{folder}/{_LOG}"):
            if found := _NAME.fullmatch(name.rpartition("/")[2]):
                self.versions[found[2]].append(int(found[1]))

    @property
    def first(self) -> int:
        """The version from which entries are needed: the one behind the newest checkpoint."""
        return max(self.versions["checkpoint.parquet"], default=-1) + 1

    def name(self, version: int, ending: str) -> str:
        """Return the name of a file of the log in the store."""
        return f"{self.folder}/{_LOG}/{version:020}.{ending}"

    def entry(self, version: int) -> list[Action]:
        """Return an entry; CorruptionError when it cannot be read."""
        name = self.name(version, "json")
        try:
            return [json.loads(line) for line in self.storage.read(name).splitlines() if line]
        except (ValueError, FileNotFoundError) as error:
            raise CorruptionError(f"{self.storage.url}/{name} cannot be read: {error}") from error

    def at_checkpoint(self) -> _Table:
        """Return the table at the newest checkpoint, without files where there is none."""
        table = _Table()
        if self.first == 0:
            return table
        name = self.name(self.first - 1, "checkpoint.parquet")
        try:
            with self.storage.open_read(name) as file, pq.ParquetFile(file) as parquet:
                for batch in parquet.iter_batches(columns=list(_COLUMNS)):
                    table.apply([_without_pairs(action) for action in batch.to_pylist()])
        except (pa.ArrowException, FileNotFoundError) as error:
            raise CorruptionError(f"{self.storage.url}/{name} cannot be read: {error}") from error
        return table

    def checksum(self, version: int) -> Mapping[str, Any] | None:
        """Return what Delta's checksum file says of a version, None when there is none."""
        try:
            found: Any = json.loads(self.storage.read(self.name(version, "crc")))
        except (ValueError, FileNotFoundError):
            return None
        return found if isinstance(found, dict) else None

    def put(self, name: str, data: bytes) -> None:
        """Put an entry that is lost; what a file system of Hadoop knew of its bytes goes before."""
        folder, _, base = name.rpartition("/")
        self.storage.delete(f"{folder}/.{base}.crc")
        put_once(self.storage, name, data)


def lost_entries(log: DeltaLog, entries: Mapping[int, Entry]) -> Iterator[LostEntry]:
    """Yield what is missing below the newest entry, oldest first, up to the first that is not
    known; ``entries`` has the states that are the table at a version.

    Raises CorruptionError when another entry, or a data file, cannot be read.
    """
    there = sorted(version for version in log.versions["json"] if version >= log.first)
    missing = sorted(set(range(log.first, max(there, default=0))) - set(there))
    if not missing:
        return
    table = log.at_checkpoint()
    for version in range(log.first, there[-1] + 1):
        if version not in missing:
            table.apply(log.entry(version))
            continue
        lost = _lost(log, version, table, entries.get(version))
        yield lost
        if lost.data is None:
            return


def _lost(log: DeltaLog, version: int, table: _Table, entry: Entry | None) -> LostEntry:
    """Return what a missing entry held, and bring the table to its version."""
    name, checksum = log.name(version, "json"), log.checksum(version)
    if entry is None:
        why = "no checkpoint that can be read names this version of the table"
    elif checksum is None:
        why = "Delta's checksum file of it is missing too"
    elif not _agree(entry, checksum):
        why = "Delta's checksum file of it has another number of files, or of bytes"
    else:
        actions = _actions(log, table, entry, checksum)
        table.apply(actions)
        if _is_followed(log, version, table):
            data = "".join(f"{json.dumps(action)}\n" for action in actions).encode()
            return LostEntry(name, data, "put again, as a checkpoint and Delta's checksum prove")
        why = "what follows it removes files that the checkpoint of this version does not name"
    return LostEntry(
        name,
        None,
        f"it is missing, and {why}: copy it from a backup, or move the folder {log.folder}/{_LOG} "
        "away; checkpoints need no log, and the next snapshot with Spark begins a new one",
    )


def _agree(entry: Entry, checksum: Mapping[str, Any]) -> bool:
    """Return whether a checksum file is of a table with the files of this state."""
    size = sum(handle.size_bytes for handle in entry.handles)
    told = checksum.get("numFiles"), checksum.get("tableSizeBytes")
    whole = all(isinstance(checksum.get(name), dict) for name in ("metadata", "protocol"))
    return whole and told == (len(entry.handles), size)


def _actions(
    log: DeltaLog, table: _Table, entry: Entry, checksum: Mapping[str, Any]
) -> list[Action]:
    """Return what leads from the table before to that of the entry."""
    now_ms = time.time_ns() // 1_000_000
    named = {handle.path: handle for handle in entry.handles}
    info = {"timestamp": now_ms, "operation": "Manual Update", "operationParameters": {}}
    if "txnId" in checksum:
        info["txnId"] = checksum["txnId"]
    actions: list[Action] = [{"commitInfo": info}]
    if table.metadata != checksum["metadata"]:
        actions.append({"metaData": checksum["metadata"]})
    if table.protocol != checksum["protocol"]:
        actions.append({"protocol": checksum["protocol"]})
    actions += [{"txn": one} for one in checksum.get("setTransactions") or ()]
    for path, add in table.files.items():
        if path not in named:
            known = {key: add[key] for key in ("partitionValues", "size") if key in add}
            removed = {"path": path, "deletionTimestamp": now_ms, "dataChange": True}
            actions.append({"remove": removed | {"extendedFileMetadata": True} | known})
    for path, handle in named.items():
        if path not in table.files:
            actions.append({"add": add_action(log.storage, entry, handle, now_ms)})
    return actions


def _is_followed(log: DeltaLog, version: int, table: _Table) -> bool:
    """Return whether the entry behind this one, if it is there, goes on from this table."""
    if version + 1 not in log.versions["json"]:
        return True
    after = _Table(dict(table.files))
    return after.apply(log.entry(version + 1))


def _without_pairs(action: Action) -> Action:
    """Return an action of a checkpoint as an entry has it: maps are no lists of pairs."""
    add = action.get("add")
    if add and isinstance(add.get("partitionValues"), list):
        return action | {"add": add | {"partitionValues": dict(add["partitionValues"])}}
    return action


# How many bytes a batch input has, file by file, without reading its rows and without Spark.
#
# What a job needs to choose its own parallelism before it starts. A Delta table's files are those
# of its newest version, by its log; any other folder's are all that Spark would read as data.


_COMMIT = re.compile(rf"{_LOG}/(\d{{20}})\.json")
_CHECKPOINT = re.compile(rf"{_LOG}/(\d{{20}})\.checkpoint(?:\.(\d{{10}})\.(\d{{10}}))?\.parquet")
_MAGIC = (b"PAR1", b"PARE")  # PARE: with an encrypted footer
# Those that a checkpoint has not are passed over.
_CHECKPOINT_COLUMNS = ["add.path", "add.size", "add.deletionVector", "sidecar.path"]
_SHORTEST = 12  # the magic twice, and the length of the footer


def input_bytes(url: str, storage_options: Mapping[str, Any] | None = None) -> tuple[int, ...]:
    """The bytes of each data file of a Parquet file, a folder of them, or a Delta table.

    In order of path; below a folder, files and folders that begin with ``_`` or ``.`` are not data
    (a folder ``_x=1`` is a partition). A Delta table without rows gives none.

    Costs one short read per file, of a Delta table its log alone. Raises NotFoundError when there
    is nothing at ``url``, InvalidArgumentError for a folder without data files, a file that is not
    Parquet, and a Delta log that only Spark can read (checkpoints of version 2), CorruptionError
    for a log with a gap, and StorageError when reading fails.
    """
    storage = open_storage(url, storage_options)
    path = storage.native_path("")
    if path is not None and not Path(path).exists():
        raise _missing(url)
    if path is not None and not Path(path).is_dir():
        return _single(path, storage_options)
    if log := storage.list(_LOG):
        return _delta_bytes(storage, log)
    names = storage.list("")
    if not names and path is None:
        return _single(storage.url, storage_options)
    data = [name for name in names if _is_data(name)]
    if not data:
        raise InvalidArgumentError(f"{url} holds no data files: name a folder of Parquet files")
    return tuple(_parquet_bytes(storage, name) for name in data)


def _missing(url: str) -> NotFoundError:
    return NotFoundError(f"there is nothing at {url}: check the path")


def _single(url: str, storage_options: Mapping[str, Any] | None) -> tuple[int, ...]:
    folder, _, name = url.rpartition("/")
    if folder.endswith(":/"):  # a bucket, and nothing in it
        raise _missing(url)
    return (_parquet_bytes(open_storage(folder or "/", storage_options), name),)


def _is_data(name: str) -> bool:
    """Whether Spark reads a file as data, by its name and those of the folders above it."""
    return not any(
        part.startswith(".") or (part.startswith("_") and "=" not in part)
        for part in name.split("/")
    )


def _parquet_bytes(storage: Storage, name: str) -> int:
    where = f"{storage.url}/{name}"
    try:
        with storage.open_read(name) as file:
            size = file.seek(0, os.SEEK_END)
            if size >= _SHORTEST:
                file.seek(size - 4)
                if file.read(4) in _MAGIC:
                    return size
    except FileNotFoundError as error:
        raise _missing(where) from error
    raise InvalidArgumentError(
        f"{where} is not a Parquet file ({size} bytes, without Parquet's mark at their end): "
        "remove it, or name what is"
    )


def _delta_bytes(storage: Storage, log: Iterable[str]) -> tuple[int, ...]:
    """The sizes of a table's active files: the newest checkpoint, then the commits after it."""
    commits = {int(found[1]): name for name in log if (found := _COMMIT.fullmatch(name))}
    version, parts = _newest_checkpoint(log)
    if not commits and not parts:
        raise InvalidArgumentError(f"{storage.url}/{_LOG} holds no commit: this is no Delta table")
    active: dict[tuple[str, str], int] = {}
    for name in parts:
        _apply(active, _checkpoint_actions(storage, name), f"{storage.url}/{name}")
    newest = max(commits, default=version)
    for number in range(version + 1, newest + 1):
        if number not in commits:
            raise CorruptionError(
                f"the Delta log {storage.url}/{_LOG} lacks version {number}, and has no checkpoint "
                "after it that can be read here: read the table with Spark"
            )
        name = commits[number]
        _apply(active, _commit_actions(storage, name), f"{storage.url}/{name}")
    return tuple(size for _, size in sorted(active.items()))


def _newest_checkpoint(log: Iterable[str]) -> tuple[int, list[str]]:
    """The version and the files of the newest checkpoint that is complete; -1 without one."""
    found: dict[tuple[int, int], list[str]] = {}
    for name in log:
        if match := _CHECKPOINT.fullmatch(name):
            found.setdefault((int(match[1]), int(match[3] or 1)), []).append(name)
    whole = [(version, names) for (version, count), names in found.items() if len(names) == count]
    return max(whole, default=(-1, []))


def _checkpoint_actions(storage: Storage, name: str) -> Iterator[dict[str, Any]]:
    try:
        with storage.open_read(name) as file, pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(columns=_CHECKPOINT_COLUMNS):
                for action in batch.to_pylist():
                    if action.get("sidecar"):
                        raise InvalidArgumentError(
                            f"{storage.url}/{name} is a checkpoint of version 2: read the table "
                            "with Spark"
                        )
                    yield action
    except pa.ArrowException as error:
        raise CorruptionError(f"{storage.url}/{name} cannot be read: {error}") from error


def _commit_actions(storage: Storage, name: str) -> Iterator[dict[str, Any]]:
    try:
        lines = storage.read(name).decode().splitlines()
        yield from (json.loads(line) for line in lines if line.strip())
    except ValueError as error:
        raise CorruptionError(f"{storage.url}/{name} cannot be read: {error}") from error


def _apply(
    active: dict[tuple[str, str], int], actions: Iterable[dict[str, Any]], where: str
) -> None:
    for action in actions:
        try:
            if add := action.get("add"):
                active[_file_key(add)] = _size(add["size"])
            elif remove := action.get("remove"):
                active.pop(_file_key(remove), None)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptionError(
                f"{where} is no Delta log ({error!r} in {action!s:.60}): read the table with "
                "Spark, or name another input"
            ) from error


def _size(value: Any) -> int:
    size = int(value)
    if size < 0:
        raise ValueError(f"a file of {size} bytes")
    return size


def _file_key(action: Mapping[str, Any]) -> tuple[str, str]:
    """What Delta knows a file by: its path, and which of its rows are marked deleted."""
    vector = action.get("deletionVector") or {}
    parts = (vector.get(part) for part in ("storageType", "pathOrInlineDv", "offset"))
    return action["path"], "/".join(str(part) for part in parts if part is not None)
