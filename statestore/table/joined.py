"""The state at one checkpoint beside that at another, row by row of the same key: a full join.

Both are read side by side, a run of key groups at a time, which is all that is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.files.equality import common_schema, found, hashes_of
from statestore.files.merge import read_reads, side_by_side
from statestore.files.runs import runs_of
from statestore.files.types import arrow_schema
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.schema import same_type, type_text
from statestore.format.slices import reads_of
from statestore.keys.groups import KeyGroupRange
from statestore.storage import Storage

__all__ = ["CHANGE", "CHANGES", "joined"]

CHANGE = "change"
"""The column that says what became of a row, one of :data:`CHANGES`."""
CHANGES = ("same", "changed", "added", "removed")
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class _Sides:
    a: KeyedEntry
    b: KeyedEntry

    @property
    def schema(self) -> pa.Schema:
        """The joined columns: key group, what happened, identity, values of a, values of b."""
        identity = arrow_schema(self.a.state.schema.select(self.a.state.identity))
        values = [
            pa.field(f"{field.name}_{side}", field.type)
            for side, entry in (("a", self.a), ("b", self.b))
            for field in arrow_schema(entry.state.schema.select(entry.state.values))
        ]
        first = [pa.field(KEY_GROUP, pa.int32()), pa.field(CHANGE, pa.string())]
        return pa.schema([*first, *identity, *values])


def joined(
    storage: Storage,
    a: KeyedEntry,
    b: KeyedEntry,
    *,
    now_ms: int | None = None,
) -> pa.RecordBatchReader:
    """Return the rows of a state at two checkpoints, each beside the one of its identity.

    Columns: ``key_group``, ``change``, those of the identity, and each value column as ``<name>_a``
    and ``<name>_b``, null where the side has no such row. A row is ``changed`` when a column that
    both checkpoints have differs. Raises InvalidArgumentError when the two have not the same
    identity, key groups and hash scheme, or two columns would have one name; reading raises
    MissingFileError or DamagedFileError.
    """
    _refuse_unlike(a, b)
    sides = _Sides(a, b)
    names = sides.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgumentError(
            f"{a.state} beside itself would have two columns {twice[0]!r}: key and entry columns "
            f"keep their names, values become <name>_a and <name>_b, and {CHANGE!r} is ours; use "
            "'statestore diff'"
        )
    return pa.RecordBatchReader.from_batches(sides.schema, _batches(storage, sides, now_ms))


def _refuse_unlike(a: KeyedEntry, b: KeyedEntry) -> None:
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
            f"{a.state} is known by {facts[0]} at the one checkpoint and by {facts[1]} at the "
            "other (identity, max parallelism, hash scheme, types); rows of the two cannot be told "
            "to be the same. Use 'statestore diff'"
        )


def _batches(storage: Storage, sides: _Sides, now_ms: int | None) -> Iterator[pa.RecordBatch]:
    every = KeyGroupRange(0, sides.a.state.max_parallelism - 1)
    runs = [
        runs_of(read_reads(storage, entry, reads_of(entry, every), now_ms=now_ms))
        for entry in (sides.a, sides.b)
    ]
    for old, new in side_by_side(runs):
        yield from _joined(old, new, sides).to_batches()


def _joined(old: pa.Table | None, new: pa.Table | None, sides: _Sides) -> pa.Table:
    identity = list(sides.a.state.identity)
    a, b = (_rows(rows, entry) for rows, entry in ((old, sides.a), (new, sides.b)))
    in_a, in_b = found(a.select(identity), b.select(identity))
    alone_a = np.setdiff1d(np.arange(a.num_rows), in_a)
    alone_b = np.setdiff1d(np.arange(b.num_rows), in_b)
    left = np.concatenate((in_a, alone_a, np.full(len(alone_b), -1)))
    right = np.concatenate((in_b, np.full(len(alone_a), -1), alone_b))
    change = np.where(left < 0, "added", np.where(right < 0, "removed", "same")).astype(object)
    change[: len(in_a)][_differ(a, b, in_a, in_b, sides)] = "changed"
    first = [_either(a, b, name, left, right) for name in (KEY_GROUP, *identity)]
    values = [_taken(a.column(name), left) for name in sides.a.state.values]
    values += [_taken(b.column(name), right) for name in sides.b.state.values]
    columns = [first[0], pa.array(change, pa.string()), *first[1:], *values]
    rows = pa.table(columns, schema=sides.schema)
    return rows.take(pa.array(np.argsort(np.asarray(rows.column(KEY_GROUP)), kind="stable")))


def _rows(rows: pa.Table | None, entry: KeyedEntry) -> pa.Table:
    if rows is not None:
        return rows.combine_chunks()
    stored = arrow_schema(entry.state.schema)
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *stored]).empty_table()


def _differ(
    a: pa.Table, b: pa.Table, in_a: Places, in_b: Places, sides: _Sides
) -> npt.NDArray[np.bool_]:
    """Return which pairs differ in a column that both have."""
    one, other = sides.a.state.schema, sides.b.state.schema
    old = hashes_of(a.take(pa.array(in_a)), common_schema(one, other))
    different: npt.NDArray[np.bool_] = old != hashes_of(
        b.take(pa.array(in_b)), common_schema(other, one)
    )
    return different


def _either(a: pa.Table, b: pa.Table, name: str, left: Places, right: Places) -> pa.ChunkedArray:
    both = pa.chunked_array(
        [*a.column(name).chunks, *b.column(name).cast(a.column(name).type).chunks]
    )
    return both.take(pa.array(np.where(left >= 0, left, right + a.num_rows)))


def _taken(column: pa.ChunkedArray, places: Places) -> pa.ChunkedArray:
    return column.take(pa.array(places, mask=places < 0))
