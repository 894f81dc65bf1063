"""A Delta log that stays short, whatever its table has gone through.

A reader begins at the newest checkpoint of the log (Delta protocol, "Checkpoints"), which names the
table's files at a version. Delta writes into it what was removed as well, for as long as VACUUM may
not delete it. These tables keep their old files for ever, as far as VACUUM is concerned, so that
such a checkpoint would name every file that ever was in the table. It does not need to: VACUUM goes
by the age of a file, and by the log's entries. So the store writes the checkpoints of its logs
itself, without what was removed.

Entries behind such a checkpoint are needed to travel to versions before it, and for nothing else.
The collection of garbage deletes those that are behind the versions of all kept checkpoints.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from statestore.format.names import table_of
from statestore.storage import Listed, Storage

__all__ = ["INTERVAL", "LogFile", "add_checkpoint", "cut", "log_file", "needless"]

INTERVAL = 10
"""A log gets a checkpoint each so many versions, as Delta's own do."""

_FILE = re.compile(r"(.+)/_delta_log/([0-9]{20})\.(json|checkpoint\.parquet)")
_CHECKSUM = re.compile(r"(.+)/_delta_log/\.?([0-9]{20})\.(?:.+\.)?crc")
_LAST = "_last_checkpoint"


class LogFile(NamedTuple):
    """A file of a log: its table's folder, the version it is of, and whether it is an entry, a
    checkpoint, or a checksum beside one of these.
    """

    folder: str
    version: int
    kind: Literal["entry", "checkpoint", "checksum"]


def log_file(name: str) -> LogFile | None:
    """Return what a file is to the Delta log of one of the store's tables; None where it is
    nothing, or a kind of file that neither Spark nor delta-rs write unless they are told to: a
    checkpoint in parts for one. A table that somebody else keeps below the store is none of ours.
    """
    kind: Literal["entry", "checkpoint", "checksum"] = "checksum"
    if found := _FILE.fullmatch(name):
        kind = "entry" if found[3] == "json" else "checkpoint"
    else:
        found = _CHECKSUM.fullmatch(name)
    if found is None or table_of(found[1]) is None:
        return None
    return LogFile(found[1], int(found[2]), kind)


def add_checkpoint(storage: Storage, folder: str, table: DeltaTable) -> None:
    """Give the log of a table a checkpoint of the version that is loaded, if it is time for one.

    A log that has checkpoints of another kind is left to whoever writes them. Raises DeltaError,
    OSError or StorageError; the log is as good as before then.
    """
    version = table.version()
    if version and version % INTERVAL == 0:
        _put_checkpoint(storage, folder, version)


def cut(storage: Storage, folder: str, version: int) -> bool:
    """Delete the entries of a log before a version, which gets a checkpoint.

    Readers of the table at this version and later find all that they need. Older versions can no
    longer be read (Delta protocol, "Metadata Cleanup"). If it is interrupted, the log is whole at
    every moment, and it can be run again.

    Returns:
        False if the log has checkpoints of another kind. It is then as before.

    Raises:
        DeltaError, OSError or StorageError: The log cannot be read or written.
    """
    if not _put_checkpoint(storage, folder, version):
        return False
    log = f"{folder}/_delta_log/"
    if _last(storage, folder) != version:  # it may name a checkpoint that goes; it is only a hint
        storage.delete(f"{log}{_LAST}")
    for item in storage.listed(log.removesuffix("/")):
        base = item.name.removeprefix(log).lstrip(".")
        if base[:20].isdigit() and int(base[:20]) < version:
            storage.delete(item.name)
    return True


def _put_checkpoint(storage: Storage, folder: str, version: int) -> bool:
    """Give a log a checkpoint of a version; return False if it has checkpoints of another kind."""
    log = f"{folder}/_delta_log"
    name = f"{log}/{version:020}.checkpoint.parquet"
    listed = storage.list(log)
    if any(".checkpoint." in one and log_file(one) is None for one in listed):
        return False
    if name in listed:
        return True
    with tempfile.TemporaryDirectory(prefix="statestore-") as copy:
        Path(copy, "_delta_log").mkdir()
        for needed in _needed(listed, version):
            to = Path(copy, "_delta_log", needed.rpartition("/")[2])
            to.write_bytes(storage.read(needed))
        DeltaTable(copy).create_checkpoint()
        actions = pq.read_table(Path(copy, "_delta_log", name.rpartition("/")[2]))
    actions = actions.filter(pc.is_null(actions["remove"]))
    sink = pa.BufferOutputStream()
    pq.write_table(actions, sink)
    data = sink.getvalue().to_pybytes()
    if not storage.put_if_absent(name, data):
        return True  # another writer's, who tells the readers of it
    # A hint for readers, who look for a checkpoint in the listing where there is none.
    storage.delete(f"{log}/{_LAST}")
    last = {"version": version, "size": len(actions), "sizeInBytes": len(data)}
    storage.put_if_absent(f"{log}/{_LAST}", json.dumps(last).encode())
    return True


def _needed(listed: Iterable[str], version: int) -> list[str]:
    """Return what tells the table at a version: a log's newest checkpoint till then, and the
    entries behind it.
    """
    files = [(of, name) for name in listed if (of := log_file(name)) and of.version <= version]
    newest = max((of.version for of, _ in files if of.kind == "checkpoint"), default=-1)
    return [
        name
        for of, name in files
        if (of.kind == "checkpoint" and of.version == newest)
        or (of.kind == "entry" and of.version > newest)
    ]


def needless(storage: Storage, old: Iterable[Listed], versions: Mapping[str, int]) -> list[Listed]:
    """Return those of some old files of logs that no kept checkpoint needs.

    ``versions`` has by a table's folder the oldest version that a kept checkpoint names. What stays
    begins with a checkpoint at that version or before it, one that every reader knows by now.
    """
    by_folder: dict[str, list[tuple[LogFile, Listed]]] = {}
    for item in old:
        if of := log_file(item.name):
            by_folder.setdefault(of.folder, []).append((of, item))
    found: list[Listed] = []
    for folder, files in by_folder.items():
        known = _last(storage, folder)
        most = min(known, versions.get(folder, known))
        checkpoints = [
            of.version for of, _ in files if of.kind == "checkpoint" and of.version <= most
        ]
        first = max(checkpoints, default=0)
        found += [item for of, item in files if of.version < first]
    return found


def _last(storage: Storage, folder: str) -> int:
    """Return the version of the checkpoint that readers of the log are sent to; 0 for none."""
    try:
        return int(json.loads(storage.read(f"{folder}/_delta_log/{_LAST}"))["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0
