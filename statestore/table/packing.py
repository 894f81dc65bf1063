"""Rows on their way through an exchange: those of one key group packed together, as one value.

The JVM exchanges and sorts some thousand values instead of millions of rows. These stay columns all
the way: hashed, divided and packed in Arrow, and unpacked where they are written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.files.given import check_groups
from statestore.files.runs import null_key_error, null_keys
from statestore.files.types import arrow_schema
from statestore.format.names import KEY_GROUP
from statestore.format.state import KeyedState
from statestore.keys.arrow import key_groups
from statestore.keys.ranges import Assignment

__all__ = ["PACKED", "keyed_batches", "pack", "unpack"]

PACKED = pa.schema([("subtask", pa.int32()), ("bundle", pa.int32()), ("rows", pa.binary())])
"""What :func:`pack` yields: whose rows, of which part of the key groups, and the rows."""

_ROWS_AT_A_TIME = 1 << 18
_BYTES_AT_A_TIME = 32 * 2**20

# A bundle is a key group, or where there are very many of them, neighbours.
_MOST_BUNDLES = 1024


def pack(
    batches: Iterable[pa.RecordBatch], state: KeyedState, owners: Assignment
) -> Iterator[pa.RecordBatch]:
    """Yield the rows as :data:`PACKED`, each value with rows of one subtask and bundle.

    Bundles are in order of key group. Some 32 MB of rows are held. Raises NullKeyError with the
    number of rows, after all of them, and what hashing a key raises.
    """
    subtasks = np.array([owners.subtask_of(group) for group in range(state.max_parallelism)])
    bundles = np.arange(state.max_parallelism) * _bundles(state) // state.max_parallelism
    for rows in _pieces(keyed_batches(batches, state)):
        groups = np.asarray(rows.column(0))
        # Few small numbers: numpy sorts them by radix.
        order = np.argsort(groups.astype(np.uint16), kind="stable")
        groups = groups[order]
        part = bundles[groups] * owners.parallelism + subtasks[groups]
        starts = np.concatenate(([0], np.flatnonzero(np.diff(part)) + 1))
        [sorted_rows] = rows.take(pa.array(order)).combine_chunks().to_batches()
        first_groups = groups[starts]
        columns = [
            pa.array(subtasks[first_groups].astype(np.int32)),
            pa.array(bundles[first_groups].astype(np.int32)),
            _values(sorted_rows, [*starts.tolist(), len(groups)]),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=PACKED)


def unpack(packed: Iterable[pa.RecordBatch], state: KeyedState) -> Iterator[pa.RecordBatch]:
    """Yield the rows in order of key group, which stands first; the bundles come in order."""
    single = _bundles(state) == state.max_parallelism
    held: list[pa.RecordBatch] = []
    last = -1
    for batch in packed:
        for bundle, value in zip(batch.column(1).to_pylist(), batch.column(2), strict=True):
            if bundle != last:
                yield from _in_order(held, single)
                held, last = [], bundle
            held.extend(pa.ipc.open_stream(value.as_buffer()))
    yield from _in_order(held, single)


def keyed_batches(batches: Iterable[pa.RecordBatch], state: KeyedState) -> Iterator[pa.RecordBatch]:
    """Yield the rows as they are stored, their key group first.

    Raises NullKeyError with the number of rows, after all of them, what hashing a key raises, and
    what :func:`check_groups` raises.
    """
    stored = arrow_schema(state.schema)
    schema = pa.schema([pa.field(KEY_GROUP, pa.int32()), *stored])
    nulls = 0
    for batch in batches:
        nulls += null_keys(batch, state)
        if nulls:
            continue
        rows = batch.select(stored.names).cast(stored)
        groups = key_groups(
            [rows.column(name) for name in state.key],
            max_parallelism=state.max_parallelism,
            hash_scheme=state.hash_scheme,
            key_types=state.key_types,
        )
        check_groups(pa.Table.from_batches([batch]), groups, state)
        yield pa.RecordBatch.from_arrays([pa.array(groups), *rows.columns], schema=schema)
    if nulls:
        raise null_key_error(state, nulls)


def _bundles(state: KeyedState) -> int:
    return min(state.max_parallelism, _MOST_BUNDLES)


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _ROWS_AT_A_TIME or size >= _BYTES_AT_A_TIME:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)


def _values(rows: pa.RecordBatch, borders: list[int]) -> pa.BinaryArray:
    """Return the rows between each two borders as an Arrow stream."""
    sink = pa.BufferOutputStream()
    ends = [0]
    for first, stop in itertools.pairwise(borders):
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows.slice(first, stop - first))
        ends.append(sink.tell())
    offsets = pa.py_buffer(np.array(ends, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(borders) - 1, [None, offsets, sink.getvalue()])


def _in_order(held: list[pa.RecordBatch], single: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a bundle in order of key group."""
    if single or not held:
        yield from held
        return
    rows = pa.Table.from_batches(held)
    groups: npt.NDArray[np.int32] = np.asarray(rows.column(0))
    order = np.argsort(groups.astype(np.uint16), kind="stable")
    yield from rows.take(pa.array(order)).to_batches()
