"""A full outer join of a state at two checkpoints by identity.

Both are read in parallel, one run of key groups at a time, so only that run is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.schema import same_type, type_text
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.aligned_streams import paired_tables, sorted_tables
from statestore.layers.merge import read_state
from statestore.rows.column_types import arrow_schema
from statestore.rows.digests import Places
from statestore.rows.equality import comparable_tables, matching_rows
from statestore.rows.key_group_runs import RUN_BYTES
from statestore.storage import Storage

CHANGE = "change"
"""The column with the outcome of a row, one of :data:`CHANGES`."""
CHANGES = ("same", "changed", "added", "removed")


@dataclass(frozen=True)
class _JoinedSides:
    a: KeyedEntry
    b: KeyedEntry

    @property
    def schema(self) -> pa.Schema:
        """The joined columns: key group, change, identity, values of a, values of b."""
        identity = arrow_schema(self.a.state.schema.select(self.a.state.identity))
        values = [
            pa.field(f"{field.name}_{side}", field.type)
            for side, entry in (("a", self.a), ("b", self.b))
            for field in arrow_schema(entry.state.schema.select(entry.state.values))
        ]
        first = [pa.field(KEY_GROUP, pa.int32()), pa.field(CHANGE, pa.string())]
        return pa.schema([*first, *identity, *values])


def join_checkpoints(
    storage: Storage,
    a: KeyedEntry,
    b: KeyedEntry,
    *,
    now_ms: int | None = None,
    run_bytes: int = RUN_BYTES,
) -> pa.RecordBatchReader:
    """Return the rows of a state at two checkpoints, joined by identity.

    The columns are ``key_group``, ``change``, the identity columns, and each value column as
    ``<name>_a`` and ``<name>_b``, which are null if that side lacks the row. A row is ``changed``
    if a column that both checkpoints have differs. Raises InvalidArgumentError if identity, key
    groups or hash scheme differ, or if two columns would have the same name. Reading raises
    MissingFileError or DamagedFileError.
    """
    _refuse_different_identity(a, b)
    sides = _JoinedSides(a, b)
    names = sides.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgumentError(
            f"comparing {a.state} with itself would give two columns {twice[0]!r}: key and "
            "entry columns keep their names, value columns become <name>_a and <name>_b, and "
            f"{CHANGE!r} is reserved; use 'statestore diff'"
        )
    batches = _batches(storage, sides, now_ms, run_bytes)
    return pa.RecordBatchReader.from_batches(sides.schema, batches)


def _refuse_different_identity(a: KeyedEntry, b: KeyedEntry) -> None:
    facts = [
        (
            entry.state.identity,
            entry.state.max_parallelism,
            entry.state.hash_scheme,
            tuple(type_text(entry.state.schema.type_of(name)) for name in entry.state.identity),
        )
        for entry in (a, b)
    ]
    same = all(
        same_type(a.state.schema.type_of(name), b.state.schema.type_of(name))
        for name in a.state.identity
        if name in b.state.schema.names
    )
    if not same or facts[0][:3] != facts[1][:3]:
        raise InvalidArgumentError(
            f"{a.state} has {facts[0]} at one checkpoint and {facts[1]} at the other "
            "(identity, max parallelism, hash scheme, types), so their rows cannot be "
            "matched. Use 'statestore diff'"
        )


def _batches(
    storage: Storage, sides: _JoinedSides, now_ms: int | None, run_bytes: int
) -> Iterator[pa.RecordBatch]:
    every = KeyGroupRange.every(sides.a.state.max_parallelism)

    def rows_of(entry: KeyedEntry) -> tuple[KeyedState, Iterator[pa.Table]]:
        reads = reads_of(entry, every)
        rows = read_state(storage, entry, reads, now_ms=now_ms, run_bytes=run_bytes)
        return entry.state, sorted_tables(rows, entry.state, run_bytes)

    for old, new in paired_tables(rows_of(sides.a), rows_of(sides.b)):
        yield from _join_piece(old.combine_chunks(), new.combine_chunks(), sides).to_batches()


def _join_piece(a: pa.Table, b: pa.Table, sides: _JoinedSides) -> pa.Table:
    identity = list(sides.a.state.identity)
    both = comparable_tables((a, sides.a.state.schema), (b, sides.b.state.schema))
    in_a, in_b, same = matching_rows(*both, identity)
    alone_a = np.setdiff1d(np.arange(a.num_rows), in_a)
    alone_b = np.setdiff1d(np.arange(b.num_rows), in_b)
    left = np.concatenate((in_a, alone_a, np.full(len(alone_b), -1)))
    right = np.concatenate((in_b, np.full(len(alone_a), -1), alone_b))
    change = np.where(left < 0, "added", np.where(right < 0, "removed", "same")).astype(object)
    change[: len(in_a)][~same] = "changed"
    first = [_first_not_null(a, b, name, left, right) for name in (KEY_GROUP, *identity)]
    values = [_take_column(a.column(name), left) for name in sides.a.state.values]
    values += [_take_column(b.column(name), right) for name in sides.b.state.values]
    columns = [first[0], pa.array(change, pa.string()), *first[1:], *values]
    rows = pa.table(columns, schema=sides.schema)
    return rows.take(pa.array(np.argsort(np.asarray(rows.column(KEY_GROUP)), kind="stable")))


def _first_not_null(
    a: pa.Table, b: pa.Table, name: str, left: Places, right: Places
) -> pa.ChunkedArray:
    both = pa.chunked_array(
        [*a.column(name).chunks, *b.column(name).cast(a.column(name).type).chunks]
    )
    return both.take(pa.array(np.where(left >= 0, left, right + a.num_rows)))


def _take_column(column: pa.ChunkedArray, places: Places) -> pa.ChunkedArray:
    return column.take(pa.array(places, mask=places < 0))
