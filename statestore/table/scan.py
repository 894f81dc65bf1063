"""Keyed state out of files: the rows of some slices, file by file, each opened once (I8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from statestore.errors import StateStoreError
from statestore.model.handles import KeyedStateSlice
from statestore.model.manifest import KeyedEntry
from statestore.model.paths import KEY_GROUP
from statestore.model.schema import Schema
from statestore.model.state import Layout
from statestore.storage import Storage
from statestore.table.reading import read_batches
from statestore.table.types import arrow_schema

__all__ = ["read_slices", "record_batch_reader", "restored_schema"]


def restored_schema(schema: Schema) -> pa.Schema:
    """Return what a restored state looks like in Arrow: ``key_group``, then the stored columns."""
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *arrow_schema(schema)])


def record_batch_reader(
    storage: Storage,
    entry: KeyedEntry,
    slices: Sequence[KeyedStateSlice],
    *,
    verify: bool = False,
) -> pa.RecordBatchReader:
    """Return the rows of the slices as a stream of Arrow batches; one row group is in memory."""
    schema = restored_schema(entry.state.schema)
    batches = read_slices(storage, entry, slices, verify=verify)
    return pa.RecordBatchReader.from_batches(schema, batches)


def read_slices(
    storage: Storage,
    entry: KeyedEntry,
    slices: Sequence[KeyedStateSlice],
    *,
    verify: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the slices, in the given order; with ``verify`` SHA-256 is checked first.

    Raises MissingFileError or DamagedFileError, naming file, state and operator.
    """
    read = _ranged_rows if entry.state.layout is Layout.RANGED else _partitioned_rows
    for part in slices:
        try:
            yield from read(storage, entry, part, verify)
        except StateStoreError as error:
            first, last = part.key_groups.first, part.key_groups.last
            groups = f"key group {first}" if first == last else f"key groups {first} to {last}"
            error.add_note(f"while restoring {entry.state}, {groups}")
            raise


def _partitioned_rows(
    storage: Storage, entry: KeyedEntry, part: KeyedStateSlice, verify: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of a file of one key group, which its folder's name says."""
    stored = arrow_schema(entry.state.schema)
    restored = restored_schema(entry.state.schema)
    key_group = pa.scalar(part.key_groups.first, pa.int32())
    for batch in read_batches(storage, entry.table.path, part.handle, stored, verify=verify):
        groups = pa.repeat(key_group, batch.num_rows)
        yield pa.RecordBatch.from_arrays([groups, *batch.columns], schema=restored)


def _ranged_rows(
    storage: Storage, entry: KeyedEntry, part: KeyedStateSlice, verify: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of a part of a file, which say their key group themselves."""
    first = part.first_row
    yield from read_batches(
        storage,
        entry.table.path,
        part.handle,
        restored_schema(entry.state.schema),
        rows=None if part.is_whole else range(first, first + part.rows),
        verify=verify,
    )
