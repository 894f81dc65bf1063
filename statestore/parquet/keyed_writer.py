"""Writes keyed state to files: one file per key group, or per range of key groups.

The rows of a writer arrive in order of key group. They are sorted by the state's identity columns
in bounded memory (:mod:`statestore.rows.sorting`), and one file is open at a time. Null keys and
duplicate entries stop the writer. Its files are then deleted; they were never visible.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.format.handles import GroupIndex, KeyedStateHandle
from statestore.format.layers import are_changes
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP, partition_file, ranged_file
from statestore.format.state import KeyedState, Layout
from statestore.keys.groups import KeyGroupRange
from statestore.parquet.statistics import statistics_columns
from statestore.parquet.writer import Encodings, FileWriter, ParquetOptions, UncommittedFiles
from statestore.rows.change_rows import merge_deletes
from statestore.rows.column_types import arrow_schema
from statestore.rows.digests import row_hashes
from statestore.rows.key_group_runs import FEW_COLUMNS, check_and_sort
from statestore.rows.sorting import key_group_pieces
from statestore.storage import CachedStorage, Storage

_SYNC_FILES = 16


@dataclass(frozen=True)
class KeyedTarget:
    """The target of a keyed state in one checkpoint, and its options; can be pickled to a worker.

    ``co_located`` means that a DataFrame's rows are already in the right Spark partitions.
    ``logged`` means that a log needs the files' statistics. With ``synced_later`` the files are not
    durable when they are written: the caller syncs them, together with others, before a manifest
    names them.
    """

    storage: Storage
    folder: str
    checkpoint_id: int
    state: KeyedState
    options: ParquetOptions = field(default_factory=ParquetOptions)
    co_located: bool = False
    logged: bool = False
    synced_later: bool = False


class CheckpointFiles(UncommittedFiles):
    """Writes new files of stored states for one checkpoint, which is not committed yet."""

    def __init__(self, storage: Storage, checkpoint_id: int, options: ParquetOptions) -> None:
        """Start with no files."""
        super().__init__(storage)
        self.checkpoint_id, self.options = checkpoint_id, options

    def target(self, entry: KeyedEntry, *, co_located: bool = False) -> KeyedTarget:
        """Return the target for files of a state."""
        return KeyedTarget(
            self.storage,
            entry.table.path,
            self.checkpoint_id,
            entry.state,
            self.options,
            co_located=co_located,
            logged=entry.table.format == "delta",
        )

    def write(self, entry: KeyedEntry, pieces: Iterable[pa.Table]) -> tuple[KeyedStateHandle, ...]:
        """Write ascending pieces as additional files of a stored state.

        Raises the errors of :func:`write_pieces`.
        """
        handles = write_pieces(pieces, self.target(entry))
        self.add(entry.table.path, handles)
        return handles


def write_grouped(
    rows: Iterable[pa.RecordBatch | pa.Table], target: KeyedTarget
) -> tuple[KeyedStateHandle, ...]:
    """Write rows that are in order of ``key_group``; return a handle per file.

    The rows of a key group may arrive in any number of batches or tables, in any order.

    Raises NullKeyError with the number of rows, DuplicateKeyError with the entry,
    InvalidArgumentError for a key group that occurs again or a row that is too large, or
    StorageError.
    """
    options = target.options
    pieces = key_group_pieces(rows, target.state, options.run_bytes, options.memory_bytes)
    return write_pieces(pieces, target)


def write_pieces(pieces: Iterable[pa.Table], target: KeyedTarget) -> tuple[KeyedStateHandle, ...]:
    """Write ascending pieces, as :mod:`statestore.rows.sorting` produces them.

    Raises the errors of :func:`write_grouped`.
    """
    writer = _GroupWriter(target)
    try:
        if are_changes(target.state):
            pieces = merge_deletes(pieces, target.state)
        for rows in check_and_sort(pieces, target.state):
            for batch in rows.to_batches(target.options.row_group_rows):
                writer.write(batch)
        return writer.finish()
    except BaseException as error:
        writer.abandon(error)
        raise


class _GroupWriter:
    """The open file, the row counts of its key groups, and the handles of finished files.

    In the partitioned layout a file has one key group, which its folder names. In the ranged layout
    a file grows until it is large, and every row has its key group as a column.
    """

    def __init__(self, target: KeyedTarget) -> None:
        self._target = target
        self._ranged = target.state.layout is Layout.RANGED
        self._schema = file_schema(target.state)
        self._stored = target.state.schema.names
        self._is_wide = len(self._stored) > FEW_COLUMNS
        self._bounded = statistics_columns(target.state) if target.logged else ()
        # New for every attempt: a retried task never collides with files of an earlier attempt.
        self._token = uuid.uuid4().hex[:16]
        self._file: FileWriter | None = None
        self._groups: dict[int, tuple[int, int]] = {}
        self._handles: list[KeyedStateHandle] = []
        self._syncer = _Syncer(target.storage)
        self._encodings = Encodings()
        # The location of local copies helps to place subtasks. Without a local cache it is useless.
        self._host = socket.gethostname() if isinstance(target.storage, CachedStorage) else ""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write sorted rows of one or several key groups."""
        groups = np.asarray(batch.column(KEY_GROUP))
        starts = np.concatenate(([0], np.flatnonzero(np.diff(groups)) + 1))
        digests = np.add.reduceat(row_hashes(batch.select(self._stored)), starts)
        counts = np.diff(starts, append=len(groups))
        rows, size = batch.select(self._schema.names), batch.nbytes
        first = 0
        while first < len(starts):
            begin = int(starts[first])
            file = self._file_of(int(groups[begin]))
            most = self._rows_of_write(file, batch.num_rows, size)
            stop = max(int(np.searchsorted(starts, begin + most)), first + 1)
            these = slice(first, stop)
            self._count_rows(groups[starts[these]], counts[these], digests[these])
            count = int(counts[these].sum())
            file.write(rows.slice(begin, count), int(digests[these].sum()))
            first = stop

    def _rows_of_write(self, file: FileWriter, rows: int, size_bytes: int) -> int:
        """Return after how many rows, of a batch with this size, a write ends with a key group.

        Many small key groups are written together: a call for each would cost more than its rows.
        The resulting files are the same, since no row group or file may end between them. The last
        key groups of a row group are written one by one. If they have many columns, their size is
        estimated instead, and the row group may end within one of them.
        """
        if not self._ranged:
            return 1
        if size_bytes < file.room_bytes:
            return file.rows_before_group_end
        estimated = rows * file.room_bytes // size_bytes if self._is_wide else 1
        return min(file.rows_before_group_end, estimated)

    def _count_rows(
        self,
        groups: npt.NDArray[np.int32],
        counts: npt.NDArray[np.int64],
        digests: npt.NDArray[np.uint64],
    ) -> None:
        for group, rows, digest in zip(
            groups.tolist(), counts.tolist(), digests.tolist(), strict=True
        ):
            known, known_digest = self._groups.get(group, (0, 0))
            self._groups[group] = (known + rows, (known_digest + digest) % 2**64)

    def _file_of(self, key_group: int) -> FileWriter:
        """Return the file for the next rows of a key group."""
        if self._file is None or key_group not in self._groups:
            self._file = self._begin(key_group)
        return self._file

    def finish(self) -> tuple[KeyedStateHandle, ...]:
        self._close()
        self._syncer.finish()
        return tuple(self._handles)

    def abandon(self, reason: BaseException) -> None:
        self._syncer.abandon()
        written = UncommittedFiles(self._target.storage)
        if self._file is not None:
            self._file.abandon()
            written.names.append(self._file.name)
        written.add(self._target.folder, self._handles)
        written.delete(reason)

    def _begin(self, key_group: int) -> FileWriter:
        """Open the file of a new key group, or continue with the previous key group's file."""
        options = self._target.options
        if self._file is not None and self._ranged:
            self._file.end_group()
            if self._file.written_bytes < options.file_bytes:
                return self._file
        self._close()
        target = self._target
        name = (
            ranged_file(target.checkpoint_id, key_group, f"{self._token}-{len(self._handles)}")
            if self._ranged
            else partition_file(target.checkpoint_id, key_group, self._token)
        )
        self._path = name
        path = f"{target.folder}/{name}"
        return FileWriter(target.storage, path, self._schema, options, self._encodings)

    def _close(self) -> None:
        if self._file is None:
            return
        groups, self._groups = self._groups, {}
        key_groups = KeyGroupRange(min(groups), max(groups))
        index = None
        if self._ranged:
            totals = [groups.get(group, (0, 0)) for group in key_groups]
            index = GroupIndex.of([rows for rows, _ in totals], [digest for _, digest in totals])
        facts = self._file.close()
        if self._target.logged:
            facts["statistics"] = self._file.statistics(self._bounded)
        handle = KeyedStateHandle(self._path, key_groups, **facts, host=self._host, index=index)
        self._handles.append(handle)
        if not self._target.synced_later:
            self._syncer.add(self._file.name)
        self._file = None


class _Syncer:
    """Makes files durable while the next ones are written, in batches."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._names: list[str] = []
        self._under_way: list[Future[None]] = []

    def add(self, name: str) -> None:
        self._names.append(name)
        if len(self._names) >= _SYNC_FILES:
            self._submit()

    def finish(self) -> None:
        """Return when all files are durable; StorageError if one cannot be synced."""
        if not self._under_way:  # a thread for one batch of files costs more than it saves
            self._storage.sync(self._names)
            return
        self._submit()
        with self._pool:
            for future in self._under_way:
                future.result()

    def abandon(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _submit(self) -> None:
        if not self._names:
            return
        names, self._names = self._names, []
        self._under_way.append(self._pool.submit(self._storage.sync, names))


def file_schema(state: KeyedState) -> pa.Schema:
    """Return the columns of the state's files; the ranged layout adds the key group first."""
    stored = arrow_schema(state.schema)
    if state.layout is Layout.PARTITIONED:
        return stored
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *stored])
