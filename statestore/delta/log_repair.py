"""Finds and reconstructs entries that a table's Delta log lacks.

An entry is put again only if all of its files are known: a manifest names the files of the table at
that version, and the adjacent entries are consistent with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from statestore.delta.log_cleanup import log_file
from statestore.delta.log_entry import (
    Action,
    add_file,
    commit_info,
    define_table,
    encode,
    label_of,
    remove_file,
)
from statestore.errors import CorruptionError
from statestore.format.manifest import Entry, Manifest
from statestore.storage import Storage, put_once

_LOG = "_delta_log"
_COLUMNS = ("add", "metaData", "protocol")


@dataclass(frozen=True)
class LostEntry:
    """A missing entry: its file, its bytes or None if they are unknown, and a description."""

    file: str
    data: bytes | None
    what: str


@dataclass
class _Table:
    """The content of a table at a version: its files, metadata and protocol."""

    files: dict[str, Action] = field(default_factory=dict)
    metadata: Action | None = None
    protocol: Action | None = None

    def apply(self, actions: list[Action]) -> bool:
        """Apply an entry; return whether it is consistent: every removed file was in the table."""
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
        """List the files of the log."""
        self.storage, self.folder = storage, folder
        files = [log for name in storage.list(f"{folder}/{_LOG}") if (log := log_file(name))]
        self.entries = {log.version for log in files if log.kind == "entry"}
        self._checkpoints = {log.version for log in files if log.kind == "checkpoint"}

    @property
    def first(self) -> int:
        """The first version whose entry is needed: the version after the newest checkpoint."""
        return max(self._checkpoints, default=-1) + 1

    def name(self, version: int, ending: str) -> str:
        """Return the name of a file of the log in the store."""
        return f"{self.folder}/{_LOG}/{version:020}.{ending}"

    def entry(self, version: int) -> list[Action]:
        """Return an entry; CorruptionError when it cannot be read."""
        name = self.name(version, "json")
        try:
            return [json.loads(line) for line in self.storage.read(name).splitlines() if line]
        except (ValueError, FileNotFoundError) as error:
            raise CorruptionError(f"cannot read {self.storage.url}/{name}: {error}") from error

    def at_checkpoint(self) -> _Table:
        """Return the table at the newest checkpoint; without a checkpoint it has no files."""
        table = _Table()
        if self.first == 0:
            return table
        name = self.name(self.first - 1, "checkpoint.parquet")
        try:
            with self.storage.open_read(name) as file, pq.ParquetFile(file) as parquet:
                for batch in parquet.iter_batches(columns=list(_COLUMNS), use_threads=False):
                    table.apply([_as_entry_action(action) for action in batch.to_pylist()])
        except (pa.ArrowException, FileNotFoundError) as error:
            raise CorruptionError(f"cannot read {self.storage.url}/{name}: {error}") from error
        return table

    def put(self, name: str, data: bytes) -> None:
        """Put a missing entry; first delete checksum files that Delta and Hadoop made for it."""
        folder, _, base = name.rpartition("/")
        for companion in (f".{base}.crc", base.replace(".json", ".crc")):
            self.storage.delete(f"{folder}/{companion}")
        put_once(self.storage, name, data)


def lost_entries(
    log: DeltaLog, entries: Mapping[int, tuple[Manifest, Entry]]
) -> Iterator[LostEntry]:
    """Yield the missing entries before the newest entry, oldest first.

    The iteration stops at the first version whose state is unknown.

    ``entries`` has, by version, the state that the table shows at that version, with its
    checkpoint. Raises CorruptionError when another entry, or a data file, cannot be read.
    """
    existing = sorted(version for version in log.entries if version >= log.first)
    missing = sorted(set(range(log.first, max(existing, default=0))) - set(existing))
    if not missing:
        return
    table = log.at_checkpoint()
    for version in range(log.first, existing[-1] + 1):
        if version not in missing:
            table.apply(log.entry(version))
            continue
        lost = _reconstruct_entry(log, version, table, entries.get(version))
        yield lost
        if lost.data is None:
            return


def _reconstruct_entry(
    log: DeltaLog, version: int, table: _Table, published: tuple[Manifest, Entry] | None
) -> LostEntry:
    """Reconstruct a missing entry, and bring the table to its version."""
    name = log.name(version, "json")
    if published is None:
        why = "no readable checkpoint references this version of the table"
    else:
        actions = _actions(log, table, *published)
        table.apply(actions)
        if _is_followed(log, version, table):
            proof = "rewritten; a checkpoint and the next entry prove its content"
            return LostEntry(name, encode(actions), proof)
        why = "the next entry removes files that the checkpoint of this version does not reference"
    return LostEntry(
        name,
        None,
        (
            f"the entry is missing, and {why}: copy it from a backup, or move the folder "
            f"{log.folder}/{_LOG} away; checkpoints need no log, and the next snapshot begins a "
            "new one"
        ),
    )


def _actions(log: DeltaLog, table: _Table, manifest: Manifest, entry: Entry) -> list[Action]:
    """Return the actions from the previous table to the table of the entry.

    The definition is reused if it differs from the previous one only in the checkpoint's label.
    """
    label = label_of(entry, manifest.checkpoint_id, manifest.left_out)
    definition = define_table(entry, label)
    (metadata,) = (action["metaData"] for action in definition if "metaData" in action)
    if table.metadata is not None and _definition(table.metadata) == _definition(metadata):
        definition = [{"metaData": table.metadata | label}]
    named = {handle.path for handle in entry.handles}
    removed = [
        remove_file(path, add["size"], add.get("partitionValues") or {})
        for path, add in table.files.items()
        if path not in named
    ]
    added = [
        add_file(log.storage, entry, handle)
        for handle in entry.handles
        if handle.path not in table.files
    ]
    return [commit_info(entry, manifest.checkpoint_id), *definition, *removed, *added]


def _definition(metadata: Action) -> object:
    """Return a table's definition: without its id, its label and its creation time."""
    columns = json.loads(metadata["schemaString"])
    return columns, metadata["partitionColumns"], metadata["configuration"]


def _is_followed(log: DeltaLog, version: int, table: _Table) -> bool:
    """Return whether the next entry, if it exists, is consistent with this table."""
    if version + 1 not in log.entries:
        return True
    after = _Table(dict(table.files))
    return after.apply(log.entry(version + 1))


def _as_entry_action(action: Action) -> Action:
    """Return an action of a checkpoint in an entry's form, with maps instead of lists of pairs."""
    add, metadata = action.get("add"), action.get("metaData")
    if add and isinstance(add.get("partitionValues"), list):
        return action | {"add": add | {"partitionValues": dict(add["partitionValues"])}}
    if metadata:
        options = metadata["format"] | {"options": dict(metadata["format"]["options"])}
        configuration = dict(metadata["configuration"])
        return action | {"metaData": metadata | {"format": options, "configuration": configuration}}
    return action
