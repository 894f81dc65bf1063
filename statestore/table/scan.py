"""Keyed state out of files: the rows of some handles, file by file, each opened once (I8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from statestore.errors import StateStoreError
from statestore.model.handles import KeyedStateHandle
from statestore.model.manifest import KeyedEntry
from statestore.model.paths import KEY_GROUP
from statestore.model.schema import Schema
from statestore.storage import Storage
from statestore.table.files import read_batches
from statestore.table.types import arrow_schema

__all__ = ["read_handles", "record_batch_reader", "restored_schema"]


def restored_schema(schema: Schema) -> pa.Schema:
    """Return what a restored state looks like in Arrow: ``key_group``, then the stored columns."""
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *arrow_schema(schema)])


def record_batch_reader(
    storage: Storage,
    entry: KeyedEntry,
    handles: Sequence[KeyedStateHandle],
    *,
    verify: bool = False,
) -> pa.RecordBatchReader:
    """Return the rows of the handles as a stream of Arrow batches; one row group is in memory."""
    schema = restored_schema(entry.state.schema)
    batches = read_handles(storage, entry, handles, verify=verify)
    return pa.RecordBatchReader.from_batches(schema, batches)


def read_handles(
    storage: Storage,
    entry: KeyedEntry,
    handles: Sequence[KeyedStateHandle],
    *,
    verify: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the handles, in the given order; with ``verify`` SHA-256 is checked first.

    Raises MissingFileError or DamagedFileError, naming file, state and operator.
    """
    stored = arrow_schema(entry.state.schema)
    restored = restored_schema(entry.state.schema)
    for handle in handles:
        key_group = pa.scalar(handle.key_groups.first, pa.int32())
        try:
            for batch in read_batches(storage, entry.table.path, handle, stored, verify=verify):
                groups = pa.repeat(key_group, batch.num_rows)
                yield pa.RecordBatch.from_arrays([groups, *batch.columns], schema=restored)
        except StateStoreError as error:
            error.add_note(f"while restoring {entry.state}, key group {handle.key_groups.first}")
            raise
