"""Keyed state from files: the rows of some slices, file by file, each opened once (I8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyarrow as pa

from statestore.errors import StateStoreError
from statestore.format.handles import KeyedStateSlice
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Schema
from statestore.format.state import Layout
from statestore.parquet.file_sources import PrefetchQueue
from statestore.parquet.reader import RowGroups, read_batches
from statestore.rows.column_types import arrow_schema
from statestore.storage import Storage

__all__ = ["add_key_group", "read_slices", "restored_schema"]


def restored_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a restored state: ``key_group``, then the stored columns."""
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *arrow_schema(schema)])


def read_slices(
    storage: Storage,
    entry: KeyedEntry,
    slices: Sequence[KeyedStateSlice],
    *,
    row_groups: RowGroups | None = None,
    verify: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the slices, in the order of ``slices``.

    With ``verify`` the SHA-256 of a file is checked before its first row is yielded.

    ``row_groups`` selects the row groups, and only the entry's columns are read. Raises
    MissingFileError or DamagedFileError with the names of file, state and operator.
    """
    stored, restored = arrow_schema(entry.state.schema), restored_schema(entry.state.schema)
    ranged = entry.state.layout is Layout.RANGED
    folder = entry.table.path
    read = partial(read_batches, storage, folder, row_groups=row_groups, verify=verify)
    files = [(part.handle, part.is_whole and row_groups is None) for part in slices]
    with PrefetchQueue(storage, folder, files, verify) as ahead:
        for part in slices:
            with _note_key_groups(entry, part):
                begun = ahead.next()
                if ranged:
                    yield from read(part.handle, restored, rows=_rows_of(part), begun=begun)
                    continue
                for batch in read(part.handle, stored, begun=begun):
                    yield add_key_group(batch, part.key_groups.first, restored)


@contextmanager
def _note_key_groups(entry: KeyedEntry, part: KeyedStateSlice) -> Iterator[None]:
    """Add a note to errors with the state and key groups that were being restored."""
    try:
        yield
    except StateStoreError as error:
        first, last = part.key_groups.first, part.key_groups.last
        groups = f"key group {first}" if first == last else f"key groups {first} to {last}"
        error.add_note(f"while restoring {entry.state}, {groups}")
        raise


def _rows_of(part: KeyedStateSlice) -> range | None:
    """Return a slice's range of rows in its file, None for all rows."""
    return None if part.is_whole else range(part.first_row, part.first_row + part.rows)


def add_key_group(batch: pa.RecordBatch, key_group: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of one key group with its number as first column; ``schema`` has it too."""
    groups = pa.array(np.full(batch.num_rows, key_group, np.int32))
    return pa.RecordBatch.from_arrays([groups, *batch.columns], schema=schema)
