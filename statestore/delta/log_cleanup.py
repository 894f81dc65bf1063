"""Keeps a Delta log short, however many versions its table has had.

A reader begins at the newest checkpoint of the log (Delta protocol, "Checkpoints"), which names the
table's files at a version. Delta also writes removed files into it until VACUUM may delete them.
These tables forbid VACUUM to delete old files, so such a checkpoint would name every file that was
ever in the table. That is not necessary: VACUUM uses the age of a file, and the log's entries. The
store therefore writes the checkpoints of its logs itself, without the removed files.

Entries before such a checkpoint are only needed to read versions before it. Garbage collection
deletes the entries that precede the versions of all kept checkpoints.
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

INTERVAL = 10
"""A log gets a checkpoint after this many versions, which is also Delta's own default."""

_FILE = re.compile(r"(.+)/_delta_log/([0-9]{20})\.(json|checkpoint\.parquet)")
_CHECKSUM = re.compile(r"(.+)/_delta_log/\.?([0-9]{20})\.(?:.+\.)?crc")
_LAST = "_last_checkpoint"


class LogFile(NamedTuple):
    """A file of a log: the folder of its table, its version, and its kind.

    The kind is an entry, a checkpoint, or a checksum of one of these.
    """

    folder: str
    version: int
    kind: Literal["entry", "checkpoint", "checksum"]


def log_file(name: str) -> LogFile | None:
    """Return the role of a file in the Delta log of one of the store's tables.

    None if it has no role, or if it is a kind of file that Spark and delta-rs do not write by
    default, such as a multi-part checkpoint. A table that another program keeps inside the store's
    folder does not count as a table of the store.
    """
    role: Literal["entry", "checkpoint", "checksum"] = "checksum"
    if match := _FILE.fullmatch(name):
        role = "entry" if match[3] == "json" else "checkpoint"
    else:
        match = _CHECKSUM.fullmatch(name)
    if match is None or table_of(match[1]) is None:
        return None
    return LogFile(match[1], int(match[2]), role)


def add_checkpoint(storage: Storage, folder: str, table: DeltaTable) -> None:
    """Give the log of a table a checkpoint of the loaded version, if one is due.

    A log that has checkpoints of another kind is left to their writer. Raises DeltaError, OSError
    or StorageError; the log then stays valid.
    """
    version = table.version()
    if version and version % INTERVAL == 0:
        _put_checkpoint(storage, folder, version)


def delete_entries(storage: Storage, folder: str, version: int) -> bool:
    """Delete the entries of a log before a version, which gets a checkpoint.

    Readers of the table at this version and later find all files that they need. Older versions can
    no longer be read (Delta protocol, "Metadata Cleanup"). If the operation is interrupted, the log
    stays valid, and the operation can be run again.

    Returns:
        False if the log has checkpoints of another kind. It is then unchanged.

    Raises:
        DeltaError, OSError or StorageError: The log cannot be read or written.
    """
    if not _put_checkpoint(storage, folder, version):
        return False
    log = f"{folder}/_delta_log/"
    if (
        _hinted_version(storage, folder) != version
    ):  # the hint may name a checkpoint that is deleted below
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
    if any(".checkpoint." in name and log_file(name) is None for name in listed):
        return False
    if name in listed:
        return True
    with tempfile.TemporaryDirectory(prefix="statestore-") as copy:
        Path(copy, "_delta_log").mkdir()
        for needed in _needed_files(listed, version):
            to = Path(copy, "_delta_log", needed.rpartition("/")[2])
            to.write_bytes(storage.read(needed))
        DeltaTable(copy).create_checkpoint()
        actions = pq.read_table(Path(copy, "_delta_log", name.rpartition("/")[2]))
    actions = actions.filter(pc.is_null(actions["remove"]))
    sink = pa.BufferOutputStream()
    pq.write_table(actions, sink)
    data = sink.getvalue().to_pybytes()
    if not storage.put_if_absent(name, data):
        return True  # another writer put it, and also updates the hint
    # A hint for readers. Without it they search the listing for a checkpoint.
    storage.delete(f"{log}/{_LAST}")
    last = {"version": version, "size": len(actions), "sizeInBytes": len(data)}
    storage.put_if_absent(f"{log}/{_LAST}", json.dumps(last).encode())
    return True


def _needed_files(listed: Iterable[str], version: int) -> list[str]:
    """Return the log files that define the table at a version.

    They are the log's newest checkpoint up to the version, and the entries after it.
    """
    files = [(log, name) for name in listed if (log := log_file(name)) and log.version <= version]
    newest = max((log.version for log, _ in files if log.kind == "checkpoint"), default=-1)
    return [
        name
        for log, name in files
        if (log.kind == "checkpoint" and log.version == newest)
        or (log.kind == "entry" and log.version > newest)
    ]


def unneeded_files(
    storage: Storage, old: Iterable[Listed], versions: Mapping[str, int]
) -> list[Listed]:
    """Return the old log files that no kept checkpoint needs.

    ``versions`` has, by table folder, the oldest version that a kept checkpoint names. The
    remaining log begins with a checkpoint at or before that version, which all readers know by now.
    """
    by_folder: dict[str, list[tuple[LogFile, Listed]]] = {}
    for item in old:
        if log := log_file(item.name):
            by_folder.setdefault(log.folder, []).append((log, item))
    unneeded: list[Listed] = []
    for folder, files in by_folder.items():
        known = _hinted_version(storage, folder)
        most = min(known, versions.get(folder, known))
        checkpoints = [
            log.version for log, _ in files if log.kind == "checkpoint" and log.version <= most
        ]
        first = max(checkpoints, default=0)
        unneeded += [item for log, item in files if log.version < first]
    return unneeded


def _hinted_version(storage: Storage, folder: str) -> int:
    """Return the version of the checkpoint that the hint for readers names; 0 without a hint."""
    try:
        return int(json.loads(storage.read(f"{folder}/_delta_log/{_LAST}"))["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0
