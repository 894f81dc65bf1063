"""Whether a data file is what its manifest says: what is wrong with it, in words, or nothing.

===========  ================================================  ====================================
level        reads                                             finds
===========  ================================================  ====================================
shallow      the file's length, and its footer, every byte     missing, cut short, replaced by
                                                               another file, another footer
deep         every byte, and every row of every column         also any other byte, rows of another
                                                               key group, out of order, twice, or
                                                               without a key, another digest
===========  ================================================  ====================================

One row group is in memory; a file of up to 32 MiB is read once, as a whole, a larger one twice.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import CorruptionError
from statestore.files.digest import row_hashes, rows_digest
from statestore.files.elements import misplaced, stored_schema
from statestore.files.keyed import file_schema, null_keys
from statestore.files.reader import DataFile, open_data
from statestore.files.runs import RowOrder
from statestore.format.digest import digest_text
from statestore.format.handles import GroupIndex, Handle, KeyedStateHandle
from statestore.format.layers import MARK
from statestore.format.manifest import Entry, KeyedEntry, OperatorEntry
from statestore.format.names import KEY_GROUP
from statestore.format.state import KeyedState, Layout, StateKind
from statestore.keys.arrow import key_groups
from statestore.storage import Storage

__all__ = ["FileCheck", "Flaws", "check_file"]


@dataclass(frozen=True)
class FileCheck:
    """One file to be checked; ``first_row`` is how many elements of its state lie before it."""

    storage: Storage
    entry: Entry
    handle: Handle
    first_row: int
    deep: bool

    @property
    def subject(self) -> Hashable:
        """What is checked: two checks of one subject find the same."""
        elements = (
            (self.entry.counts, self.first_row) if isinstance(self.entry, OperatorEntry) else ()
        )
        return self.entry.table.path, self.handle, elements


@dataclass(frozen=True)
class Flaws:
    """What is wrong with a file: the kind of error that a restore would raise, and the reasons."""

    kind: str
    what: tuple[str, ...]


def check_file(check: FileCheck) -> Flaws | None:
    """Return what is wrong with a file, None when it is what the manifest says.

    Raises StorageError when the file could not be read, which says nothing about what it holds.
    """
    folder, handle = check.entry.table.path, check.handle
    try:
        with open_data(check.storage, folder, handle, verify=check.deep) as file:
            found = tuple(_flaws(file, check))
    except CorruptionError as error:
        where = f"{check.storage.url}/{folder}/{handle.path} "
        what = str(error).removeprefix(where).partition("; restore an older")[0]
        return Flaws(error.kind, (what,))
    return Flaws("damaged-file", found) if found else None


def _flaws(file: DataFile, check: FileCheck) -> Iterator[str]:
    entry = check.entry
    schema = (
        file_schema(entry.state)
        if isinstance(entry, KeyedEntry)
        else stored_schema(entry.state.schema)
    )
    names = file.parquet.schema_arrow.names
    if names != schema.names:
        found = ", ".join(names)
        yield f"has the columns ({found}), the manifest says ({', '.join(schema.names)})"
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
        digest = (digest + rows.see(batch)) % 2**64
    yield from rows.flaws()
    if digest != handle.digest:
        yield (
            f"its rows have the digest {digest_text(digest)}, the manifest says "
            f"{digest_text(handle.digest)}"
        )


class _KeyedRows:
    """The rows of one file of keyed state: of its key groups, in order, none twice, all with key
    (I1, I7).
    """

    def __init__(self, state: KeyedState, handle: KeyedStateHandle) -> None:
        self._state, self._handle = state, handle
        placed = (KEY_GROUP,) if state.layout is Layout.RANGED else ()
        self._order = RowOrder((*placed, *state.identity))
        self._elsewhere = self._null_keys = self._null_entries = self._unmarked = 0
        self._counts = np.zeros(len(handle.key_groups), np.int64)
        self._digests = np.zeros(len(handle.key_groups), np.uint64)

    def see(self, batch: pa.RecordBatch) -> int:
        """Look at rows; return their digest, without what the store has added."""
        hashes = row_hashes(batch.select(self._state.schema.names))
        self._look(batch, hashes)
        return int(hashes.sum(dtype=np.uint64))

    def _look(self, batch: pa.RecordBatch, hashes: npt.NDArray[np.uint64]) -> None:
        state, own = self._state, self._handle.key_groups
        self._order.see(batch)
        without_key = null_keys(batch, state)
        self._null_keys += without_key
        comes = self._coming(batch)
        if state.kind in (StateKind.LIST, StateKind.TIMERS):
            entry = (name for name in state.entry if name != MARK)
            self._null_entries += sum(comes.column(name).null_count for name in entry)
        if without_key:  # these have no key group
            return
        groups = key_groups(
            [batch.column(name) for name in state.key],
            max_parallelism=state.max_parallelism,
            hash_scheme=state.hash_scheme,
            key_types=state.key_types,
        )
        wrong = (groups < own.first) | (groups > own.last)
        if state.layout is Layout.RANGED:
            named = batch.column(KEY_GROUP)
            wrong |= np.asarray(pc.fill_null(named, -1)) != groups
        self._elsewhere += int(wrong.sum())
        places = groups[~wrong] - own.first
        self._counts += np.bincount(places, minlength=len(own))
        np.add.at(self._digests, places, hashes[~wrong])

    def _coming(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that come: of changes not the deletes, which name what they delete and
        have null elsewhere.
        """
        state = self._state
        if MARK not in state.entry:
            return batch
        marks = np.asarray(pc.fill_null(batch.column(MARK), -1))
        self._unmarked += int(((marks < 0) | (marks >= len(state.identity))).sum())
        return batch.filter(pa.array(marks == 0))

    def flaws(self) -> Iterator[str]:
        if self._null_keys:
            yield f"{self._null_keys} of its rows have a null key"
        if self._null_entries:
            yield f"{self._null_entries} of its rows have a null entry column"
        if self._unmarked:
            yield f"{self._unmarked} of its rows neither come nor name what they delete"
        if self._elsewhere:
            yield f"{self._elsewhere} of its rows belong to other key groups by their key's hash"
        if not self._order.is_sorted:
            yield "its rows are not sorted"
        if self._order.duplicates:
            yield f"{self._order.duplicates} of its rows claim the entry of the row before them"
        index = self._handle.index
        if index is not None and not np.array_equal(self._counts, index.row_counts()):
            yield "its key groups have other numbers of rows than the manifest says"
        elif index is not None and index != GroupIndex.of(self._counts, self._digests):
            yield "its key groups have other digests than the manifest says"


class _ElementRows:
    """The elements of one file of operator state: the counted ones of each subtask, in order (I7,
    I11).
    """

    def __init__(self, counts: tuple[int, ...], first_row: int) -> None:
        self._counts, self._at = counts, first_row
        self._wrong = 0

    def see(self, batch: pa.RecordBatch) -> int:
        """Look at elements; return their digest."""
        self._wrong += misplaced(batch, self._counts, self._at)
        self._at += batch.num_rows
        return rows_digest(batch)

    def flaws(self) -> Iterator[str]:
        if self._wrong:
            yield f"{self._wrong} of its elements are at another subtask or position than counted"
