"""Check a data file against its manifest, and describe the deviations.

===========  ==============================================  ====================================
level        reads                                           finds
===========  ==============================================  ====================================
shallow      the file's length, and its footer, every byte   missing, cut short, replaced by
                                                               another file, another footer
deep         every byte, and every row of every column       also any other byte, rows of another
                                                               key group, out of order, twice, or
                                                               without a key, another digest
===========  ==============================================  ====================================

One row group of a file is in memory at a time. A file of up to 32 MiB is read once, as a whole; a
larger one is read twice. Several files are checked in parallel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import (
    CorruptionError,
)
from statestore.format.digest import digest_text
from statestore.format.handles import GroupIndex, Handle, KeyedStateHandle
from statestore.format.layers import are_changes
from statestore.format.manifest import Entry, KeyedEntry, OperatorEntry
from statestore.format.names import (
    KEY_GROUP,
    MARK,
)
from statestore.format.state import KeyedState, Layout, StateKind
from statestore.keys.groups import KeyGroupRange
from statestore.parquet.file_sources import WHOLE_FILE_BYTES
from statestore.parquet.keyed_writer import file_schema
from statestore.parquet.operator_elements import count_misplaced, stored_schema
from statestore.parquet.reader import DataFile, open_data
from statestore.rows.delete_markers import count_invalid_marks, upserts_of
from statestore.rows.digests import row_hashes, rows_digest
from statestore.rows.key_group_runs import key_groups_of, null_keys
from statestore.rows.row_order import RowOrder
from statestore.storage import Storage

_THREADS = 8

_BYTES_AT_ONCE = 64 * 2**20
"""The most bytes of files that are read in parallel. A check needs several times the memory."""


@dataclass(frozen=True)
class FileCheck:
    """A file to check; ``first_row`` is the number of the state's elements in all earlier files."""

    storage: Storage
    entry: Entry
    handle: Handle
    first_row: int
    deep: bool

    @property
    def subject(self) -> Hashable:
        """The identity of the check: two checks with the same subject have the same result."""
        elements = (
            (self.entry.counts, self.first_row) if isinstance(self.entry, OperatorEntry) else ()
        )
        return self.entry.table.path, self.handle, elements

    @property
    def held_bytes(self) -> int:
        """The bytes of the file that are in memory at the same time, at most."""
        return min(self.handle.size_bytes, WHOLE_FILE_BYTES) if self.deep else 0

    def broken(self, flaws: Flaws, checkpoint_id: int) -> BrokenFile:
        """Return the file as a broken file of a checkpoint."""
        entry, handle = self.entry, self.handle
        return BrokenFile(
            file=entry.table.name_of(handle),
            kind=flaws.kind,
            what=flaws.what,
            checkpoint_id=checkpoint_id,
            operator=entry.state.uid,
            state=entry.state.name,
            key_groups=handle.key_groups if isinstance(handle, KeyedStateHandle) else None,
        )


def checks_of(
    storage: Storage, entry: Entry, handles: Iterable[Handle], *, deep: bool
) -> Iterator[FileCheck]:
    """Yield the checks of all files of a state's base, or of one layer."""
    first_row = 0
    for handle in handles:
        yield FileCheck(storage, entry, handle, first_row, deep)
        first_row += handle.rows


@dataclass(frozen=True, kw_only=True)
class BrokenFile:
    """A broken file, its owner, and its deviations.

    ``kind`` is the kind of error that reading it would raise. ``checkpoint_id`` is None for
    ``statestore.json``. Operator, state and key groups are None if a file has none.
    """

    file: str
    kind: str
    what: tuple[str, ...]
    checkpoint_id: int | None = None
    operator: str | None = None
    state: str | None = None
    key_groups: KeyGroupRange | None = None


@dataclass(frozen=True)
class Flaws:
    """The deviations of a file: the kind of error that a restore would raise, and the reasons."""

    kind: str
    what: tuple[str, ...]


def check_files(checks: Iterable[FileCheck]) -> Iterator[Flaws | None]:
    """Check files in parallel; yield the results of :func:`check_file` in the same order.

    Large files are checked a few at a time, so that the memory does not grow with their size.
    """
    under_way: deque[tuple[FileCheck, Future[Flaws | None]]] = deque()
    held_bytes = 0
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="statestore-check")
    try:
        for check in checks:
            while under_way and held_bytes + check.held_bytes > _BYTES_AT_ONCE:
                done, flaws = under_way.popleft()
                yield flaws.result()
                held_bytes -= done.held_bytes
            under_way.append((check, pool.submit(check_file, check)))
            held_bytes += check.held_bytes
        for _, flaws in under_way:
            yield flaws.result()
    finally:
        pool.shutdown(cancel_futures=True)


def check_file(check: FileCheck) -> Flaws | None:
    """Return the deviations of a file, or None if it matches the manifest.

    Raises StorageError if the file could not be read, which proves nothing about its content.
    """
    folder, handle = check.entry.table.path, check.handle
    try:
        with open_data(check.storage, folder, handle, verify=check.deep) as file:
            reasons = tuple(_flaws(file, check))
    except CorruptionError as error:
        where = f"{check.storage.url}/{folder}/{handle.path} "
        deviation = str(error).removeprefix(where).partition("; restore an older")[0]
        return Flaws(error.kind, (deviation,))
    return Flaws("damaged-file", reasons) if reasons else None


def _flaws(file: DataFile, check: FileCheck) -> Iterator[str]:
    entry = check.entry
    schema = (
        file_schema(entry.state)
        if isinstance(entry, KeyedEntry)
        else stored_schema(entry.state.schema)
    )
    names = file.parquet.schema_arrow.names
    if names != schema.names:
        columns = ", ".join(names)
        yield f"has the columns ({columns}), but the manifest says ({', '.join(schema.names)})"
    elif check.deep:
        yield from _row_flaws(file, schema, check)


def _row_flaws(file: DataFile, schema: pa.Schema, check: FileCheck) -> Iterator[str]:
    entry, handle = check.entry, check.handle
    rows: _KeyedRows | _ElementRows
    if isinstance(entry, KeyedEntry):
        assert isinstance(handle, KeyedStateHandle)
        rows = _KeyedRows(entry.state, handle)
    else:
        rows = _ElementRows(entry.counts, check.first_row)
    digest = 0
    for batch in file.batches(range(handle.row_groups), schema):
        digest = (digest + rows.check_batch(batch)) % 2**64
    yield from rows.flaws()
    if digest != handle.digest:
        yield (
            f"its rows have the digest {digest_text(digest)}, but the manifest says "
            f"{digest_text(handle.digest)}"
        )


class _KeyedRows:
    """Checks the rows of one file of keyed state.

    They must belong to its key groups, in order, without duplicates or null keys (I1, I7).
    """

    def __init__(self, state: KeyedState, handle: KeyedStateHandle) -> None:
        self._state, self._handle = state, handle
        placed = (KEY_GROUP,) if state.layout is Layout.RANGED else ()
        self._order = RowOrder((*placed, *state.identity))
        self._elsewhere = self._null_keys = self._null_entries = self._unmarked = 0
        self._counts = np.zeros(len(handle.key_groups), np.int64)
        self._digests = np.zeros(len(handle.key_groups), np.uint64)

    def check_batch(self, batch: pa.RecordBatch) -> int:
        """Check rows; return their digest, without the columns that the store has added."""
        hashes = row_hashes(batch.select(self._state.schema.names))
        self._check_rows(batch, hashes)
        return int(hashes.sum(dtype=np.uint64))

    def _check_rows(self, batch: pa.RecordBatch, hashes: npt.NDArray[np.uint64]) -> None:
        state, own = self._state, self._handle.key_groups
        self._order.check_batch(batch)
        without_key = null_keys(batch, state)
        self._null_keys += without_key
        comes = self._upserted_rows(batch)
        if state.kind in (StateKind.LIST, StateKind.TIMERS):
            entry = (name for name in state.entry if name != MARK)
            self._null_entries += sum(comes.column(name).null_count for name in entry)
        if without_key:  # rows with a null key have no key group
            return
        groups = key_groups_of(batch, state)
        wrong = (groups < own.first) | (groups > own.last)
        if state.layout is Layout.RANGED:
            named = batch.column(KEY_GROUP)
            wrong |= np.asarray(pc.fill_null(named, -1)) != groups
        self._elsewhere += int(wrong.sum())
        places = groups[~wrong] - own.first
        self._counts += np.bincount(places, minlength=len(own))
        np.add.at(self._digests, places, hashes[~wrong])

    def _upserted_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are not deletes; a delete has null outside of its identity."""
        state = self._state
        if not are_changes(state):
            return batch
        self._unmarked += count_invalid_marks(batch, state)
        return upserts_of(batch)

    def flaws(self) -> Iterator[str]:
        if self._null_keys:
            yield f"{self._null_keys} of its rows have a null key"
        if self._null_entries:
            yield f"{self._null_entries} of its rows have a null entry column"
        if self._unmarked:
            yield f"{self._unmarked} of its rows are neither an upsert nor a delete"
        if self._elsewhere:
            yield f"{self._elsewhere} of its rows belong to other key groups by their key's hash"
        if not self._order.is_sorted:
            yield "its rows are not sorted"
        if self._order.duplicates:
            yield f"{self._order.duplicates} of its rows have the same identity as the previous row"
        index = self._handle.index
        if index is not None and not np.array_equal(self._counts, index.row_counts()):
            yield "its key groups have other row counts than the manifest says"
        elif index is not None and index != GroupIndex.of(self._counts, self._digests):
            yield "its key groups have other digests than the manifest says"


class _ElementRows:
    """Checks the elements of one file of operator state.

    Each subtask must have its number of elements, in order (I7, I11).
    """

    def __init__(self, counts: tuple[int, ...], first_row: int) -> None:
        self._counts, self._at = counts, first_row
        self._wrong = 0

    def check_batch(self, batch: pa.RecordBatch) -> int:
        """Check elements; return their digest."""
        self._wrong += count_misplaced(batch, self._counts, self._at)
        self._at += batch.num_rows
        return rows_digest(batch)

    def flaws(self) -> Iterator[str]:
        if self._wrong:
            yield f"{self._wrong} of its elements have another subtask or position than recorded"
