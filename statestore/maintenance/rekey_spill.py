"""Spill the rows of a rekey into a locked working folder by range of new key groups; write them.

The rows of a new key group can be anywhere in the old ones. So they are first divided into ranges
of new key groups on a local disk. Then each range is sorted and written.

A run locks a file in the folder. If it ends early, the next run in the folder resumes its work. The
operating system releases the lock when the process dies, for whatever reason, and not before. So a
stalled run keeps the folder, and no process has to guess whether a run is dead. File systems
without locks are refused. If a network file system is mounted with locks that are local to each
host, runs on two hosts could still use one folder. In that case the digests reveal any damage that
they do to each other's rows, and neither run deletes a file of the store that the other one has
named.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from statestore.errors import (
    CorruptionError,
    DamagedFileError,
    InvalidArgumentError,
    StorageError,
)
from statestore.format.digest import combine
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.merge import read_state
from statestore.parquet.keyed_writer import KeyedTarget, write_pieces
from statestore.rows.column_types import arrow_schema
from statestore.rows.digests import rows_digest
from statestore.rows.key_group_runs import NullKeys, key_groups_of
from statestore.rows.sorting import sorted_pieces
from statestore.storage import Storage
from statestore.storage.base import report_os_errors
from statestore.storage.local import sync_parents, sync_path, sync_paths
from statestore.storage.locks import lock, temporary_folder

_LOCK, _JOB = "rekey.lock", "rekey.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkingFolder:
    """A folder and the documents in it; ``kept`` is True if another run may resume from it."""

    path: Path
    kept: bool

    def subfolder(self, name: str) -> WorkingFolder:
        """Return a subfolder, and create it if necessary."""
        (self.path / name).mkdir(exist_ok=True)
        if self.kept:
            sync_path(self.path)
        return WorkingFolder(self.path / name, self.kept)

    def read(self, name: str) -> Any:
        """Return a document, or None. Raises CorruptionError if it is truncated."""
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CorruptionError(
                f"{path} is incomplete; choose an empty working folder"
            ) from error

    def put(self, name: str, content: Any) -> None:
        """Write a document atomically; in a folder that is kept, also make all files durable."""
        beside = (self.path / name).with_suffix(".new")
        beside.write_text(json.dumps(content))
        if self.kept:
            sync_paths([path for path in sorted(self.path.iterdir()) if path.is_file()])
        beside.replace(self.path / name)
        if self.kept:
            sync_path(self.path)


@contextmanager
def working_folder(path: Path | None, job: dict[str, Any]) -> Iterator[WorkingFolder]:
    """Yield the working folder for ``job``, or a temporary folder.

    If the block ends without an error, the folder is emptied.

    Raises InvalidArgumentError if another run holds the folder, or if it belongs to another job or
    has other files. Raises StorageError if the folder cannot be used, also within the block.
    """
    with ExitStack() as held:
        if path is None:
            folder = WorkingFolder(held.enter_context(temporary_folder("rekey")), kept=False)
        else:
            folder = WorkingFolder(path, kept=True)
        with report_os_errors("use the working folder", str(folder.path)):
            if folder.kept:
                _take_folder(folder, job, held)
            yield folder
        if folder.kept:
            _clear_folder(folder.path)


def _take_folder(folder: WorkingFolder, job: dict[str, Any], held: ExitStack) -> None:
    """Lock the folder, and record the job in it."""
    folder.path.mkdir(parents=True, exist_ok=True)
    _refuse_strangers(folder)
    _lock(folder.path / _LOCK, held)
    _refuse_strangers(folder)
    known = folder.read(_JOB)
    if known is None:
        folder.put(_JOB, job)
        sync_parents(folder.path)
    elif known != job:
        raise InvalidArgumentError(
            f"{folder.path} is the working folder of another rekey; choose an empty folder"
        )


def _refuse_strangers(folder: WorkingFolder) -> None:
    """Refuse a non-empty folder that is not a working folder yet."""
    own = {_LOCK, Path(_JOB).with_suffix(".new").name}
    others = {path.name for path in folder.path.iterdir()} - own
    if others and _JOB not in others:
        raise InvalidArgumentError(f"{folder.path} is not empty; choose an empty working folder")


def _lock(path: Path, held: ExitStack) -> None:
    """Lock a file against all other processes, and write the holder into it."""
    while True:
        # HasContext for writing, because network file systems lock no other files.
        file: BinaryIO = held.enter_context(path.open("a+b"))
        try:
            lock(file.fileno())
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read(200).decode(errors="replace") or "another process"
            raise InvalidArgumentError(
                f"another rekey is running in {path.parent}: {holder}; wait until it ends, "
                "stop it, or choose another working folder"
            ) from None
        except OSError as error:
            raise StorageError(
                f"cannot lock {path}: {error.strerror}; choose a working folder on a file "
                "system that supports locks"
            ) from error
        if _is_named(path, file):
            break
    file.truncate(0)
    file.write(f"{socket.gethostname()}:{os.getpid()}".encode())
    file.flush()


def _is_named(path: Path, file: BinaryIO) -> bool:
    """Return whether the file still exists; the previous holder may have deleted it at its end."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _clear_folder(work: Path) -> None:
    """Empty the folder, the lock last; a failure here does not undo the commit."""
    try:
        for path in sorted(work.rglob("*"), reverse=True):
            if path.name != _LOCK:
                path.rmdir() if path.is_dir() else path.unlink()
        with suppress(PermissionError):  # Windows deletes no open file: the next run has it again
            (work / _LOCK).unlink()
    except OSError as error:
        _log.warning("the working folder %s could not be emptied: %s; delete it", work, error)


_MOST_RANGES = 256
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Spread:
    """The spilled rows: files by range of new key groups, and the digest of all rows."""

    rows: int
    digest: int
    ranges: int


def spill_rows(
    storage: Storage,
    entry: KeyedEntry,
    state: KeyedState,
    folder: Path,
    progress: Progress,
    most_bytes: int,
) -> Spread:
    """Spill all rows of a stored state into ``folder``, by range of its new key groups.

    ``state`` has the new key groups, and a range takes about ``most_bytes`` in memory. Each file's
    SHA-256 is checked before it is read. ``progress`` is called with numbers of rows. Raises
    NullKeyError for rows whose new key is null, MissingFileError or DamagedFileError.
    """
    ranges = ranges_for(entry, state, most_bytes)
    every = KeyGroupRange.every(entry.state.max_parallelism)
    stored = arrow_schema(state.schema)
    rows = digest = 0
    nulls = NullKeys(state)
    with ExitStack() as stack:
        writers: dict[int, pa.RecordBatchFileWriter] = {}
        for batch in read_state(storage, entry, reads_of(entry, every), verify=True):
            own = batch.select(stored.names)
            if nulls.add(own):
                continue
            rows, digest = rows + own.num_rows, combine((digest, rows_digest(own)))
            for number, part in _by_range(own, state, ranges):
                if number not in writers:
                    path = str(_path(folder, number))
                    sink = stack.enter_context(pa.OSFile(path, "wb"))
                    writers[number] = stack.enter_context(pa.ipc.new_file(sink, part.schema))
                writers[number].write_batch(part)
            progress(own.num_rows)
    nulls.refuse()
    return Spread(rows, digest, ranges)


def write_range(folder: Path, number: int, target: KeyedTarget) -> tuple[KeyedStateHandle, ...]:
    """Write one range of key groups from its spilled rows; return its files.

    A range that does not fit in ``ParquetOptions.memory_bytes`` is sorted on disk, because a large
    key group cannot be split into several ranges.

    Raises DuplicateKeyError for two rows with the same new key, InvalidArgumentError for a row that
    is too large, DamagedFileError for a truncated spill file, or StorageError.
    """
    path = _path(folder, number)
    if not path.exists():
        return ()
    with pa.OSFile(str(path)) as source:  # the pages of a memory map would count as used memory
        try:
            spilled = pa.ipc.open_file(source)
        except pa.ArrowInvalid as error:
            raise DamagedFileError(
                f"{path} is incomplete; choose an empty working folder"
            ) from error
        batches = (spilled.get_batch(number) for number in range(spilled.num_record_batches))
        return write_pieces(
            sorted_pieces(batches, target.state, target.options.memory_bytes), target
        )


def ranges_for(entry: KeyedEntry, state: KeyedState, most_bytes: int) -> int:
    """Return the number of ranges; rows take about four times their stored bytes in memory."""
    wanted = -(-4 * entry.size_bytes // most_bytes)
    return max(min(wanted, _MOST_RANGES, state.max_parallelism), 1)


def _by_range(
    rows: pa.RecordBatch, state: KeyedState, ranges: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    groups = key_groups_of(rows, state)
    schema = pa.schema([pa.field(KEY_GROUP, pa.int32()), *rows.schema])
    keyed = pa.RecordBatch.from_arrays([pa.array(groups, pa.int32()), *rows.columns], schema=schema)
    of_row = groups.astype(np.int64) * ranges // state.max_parallelism
    order = np.argsort(of_row, kind="stable")
    ordered = keyed.take(pa.array(order))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(of_row[order])) + 1, [len(order)]))
    for first, stop in pairwise(starts.tolist()):
        if first < stop:
            yield int(of_row[order[first]]), ordered.slice(first, stop - first)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:05}.arrow"
