"""Keyed state out of files: the rows of some slices, file by file, each opened once (I8)."""

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
from statestore.storage import Storage
from statestore.table.fetching import Begun
from statestore.table.reading import read_batches
from statestore.table.types import arrow_schema

__all__ = ["placed", "read_slices", "restored_schema"]


def restored_schema(schema: Schema) -> pa.Schema:
    """Return what a restored state looks like in Arrow: ``key_group``, then the stored columns."""
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *arrow_schema(schema)])


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
    stored, restored = arrow_schema(entry.state.schema), restored_schema(entry.state.schema)
    ranged = entry.state.layout is Layout.RANGED
    read = partial(read_batches, storage, entry.table.path, verify=verify)
    files = [(part.handle, part.is_whole) for part in slices]
    with Begun(storage, entry.table.path, files, verify) as ahead:
        for part in slices:
            with _noting(entry, part):
                begun = ahead.next()
                if ranged:
                    yield from read(part.handle, restored, rows=_rows_of(part), begun=begun)
                    continue
                for batch in read(part.handle, stored, begun=begun):
                    yield placed(batch, part.key_groups.first, restored)


@contextmanager
def _noting(entry: KeyedEntry, part: KeyedStateSlice) -> Iterator[None]:
    """Note on an error which state and key groups were being restored."""
    try:
        yield
    except StateStoreError as error:
        first, last = part.key_groups.first, part.key_groups.last
        groups = f"key group {first}" if first == last else f"key groups {first} to {last}"
        error.add_note(f"while restoring {entry.state}, {groups}")
        raise


def _rows_of(part: KeyedStateSlice) -> range | None:
    """The place of its rows in a file of several key groups, None for all of them."""
    return None if part.is_whole else range(part.first_row, part.first_row + part.rows)


def placed(batch: pa.RecordBatch, key_group: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of one key group with its number as first column; ``schema`` has it too."""
    groups = pa.array(np.full(batch.num_rows, key_group, np.int32))
    return pa.RecordBatch.from_arrays([groups, *batch.columns], schema=schema)
