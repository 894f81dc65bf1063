"""A table's Delta log as files, without Spark: which entries it has, and what a lost one held.

A lost entry is put again only where it is known to the last file: a manifest names the files of the
table at that version, Delta's own checksum file of it (``.crc``) agrees in their number and bytes,
and has metadata, protocol and transactions; and the entries around it fit.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import CorruptionError
from statestore.format.manifest import Entry
from statestore.storage import Storage, put_once
from statestore.table.delta_actions import add_action

__all__ = ["DeltaLog", "LostEntry", "lost_entries"]

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
