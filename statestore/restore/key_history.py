"""As of: join a state at two checkpoints, and list one key over all kept checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.catalog.catalog import Catalog
from statestore.display import NotebookBar, bars, counted, figure, text
from statestore.display import table as html_table
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    StateNotFoundError,
    StateStoreError,
)
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Schema, same_type, type_text
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState, clock_ms
from statestore.keys.groups import KeyGroupRange
from statestore.layers.aligned_streams import align_streams, sorted_tables
from statestore.layers.merge import read_state
from statestore.restore.lookup import table_of_key
from statestore.rows.column_types import arrow_schema
from statestore.rows.dataframes import RowStream, as_pandas, as_polars
from statestore.rows.equality import comparable_tables
from statestore.rows.key_group_runs import RUN_BYTES
from statestore.rows.matching import matching_rows, same_rows
from statestore.rows.python_values import display_rows, rows_to_dicts
from statestore.storage import Storage

__all__ = [
    "CHANGE",
    "CHANGES",
    "KeyAt",
    "KeyHistory",
    "KeyStates",
    "KeyedRows",
    "SkippedState",
    "as_of",
    "join_checkpoints",
    "key_history",
    "key_states",
]


# Key: look one key up in all states of all operators; at most one file of each base is read.


_MOST_NAMED = 10


@dataclass(frozen=True)
class KeyedRows:
    """The rows of a key in one state, in stored order; empty if the state lacks the key."""

    entry: KeyedEntry
    rows: tuple[dict[str, Any], ...]
    table: pa.Table = field(repr=False, compare=False)

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table."""
        return self.table

    to_pandas, to_polars = as_pandas, as_polars


@dataclass(frozen=True)
class SkippedState:
    """A state whose key has another type, and the reason why the key does not fit."""

    entry: KeyedEntry
    reason: str

    @property
    def key(self) -> Schema:
        """The key columns of the state."""
        return self.entry.state.schema.select(self.entry.state.key)


@dataclass(frozen=True)
class KeyStates:
    """A key's rows in a checkpoint: states are sorted by operator, then in stored order."""

    checkpoint_id: int
    states: tuple[KeyedRows, ...]
    skipped: tuple[SkippedState, ...]

    @property
    def rows(self) -> int:
        """The number of rows in all states."""
        return sum(len(state.rows) for state in self.states)

    def __repr__(self) -> str:
        return f"KeyStates({self._summary()})"

    def _repr_html_(self) -> str:
        """Return the notebook view: the number of rows of the key in each state, and the rows."""
        drawn = [
            NotebookBar(
                f"{state.entry.state.uid} · {state.entry.state.name}",
                ((len(state.rows), "plain"),),
                counted(len(state.rows), "row"),
            )
            for state in self.states
        ]
        tables = (
            text(str(state.entry.state))
            + html_table(
                state.table.schema.names, map(tuple, map(dict.values, display_rows(state.table)))
            )
            for state in self.states
            if state.rows
        )
        return figure(self._summary(), bars(drawn), *tables)

    def _summary(self) -> str:
        return (
            f"checkpoint {self.checkpoint_id}: {counted(self.rows, 'row')} of the key in "
            f"{counted(len(self.states), 'state')}"
        )


def key_states(
    catalog: Catalog,
    key_of: Callable[[KeyedState], Any],
    *,
    checkpoint: int | str,
    uid: str | None = None,
    name: str | None = None,
    now_ms: int | None = None,
) -> KeyStates:
    """Return a key's rows in every keyed state, filtered by operator ``uid`` and state ``name``.

    Rows that expired by ``now_ms`` (default: this machine's clock) are omitted. ``key_of`` returns
    the key in the form of a state. An InvalidArgumentError from it, or a value that does not fit,
    skips the state. Raises CheckpointNotFoundError, StateNotFoundError if no such keyed state
    exists, InvalidArgumentError if the key fits none of the states, MissingFileError or
    DamagedFileError.
    """
    manifest, now_ms = catalog.load(checkpoint), clock_ms(now_ms)
    states, skipped = [], []
    for entry in _select_entries(manifest, uid, name):
        try:
            table = table_of_key(catalog.storage, entry, key_of(entry.state), now_ms=now_ms)
            rows = tuple(rows_to_dicts(table, str(entry.state)))
        except InvalidArgumentError as error:
            skipped.append(SkippedState(entry, str(error)))
        except StateStoreError as error:
            error.add_note(f"while looking the key up in {entry.state}")
            raise
        else:
            states.append(KeyedRows(entry, rows, table))
    if skipped and not states:
        raise InvalidArgumentError(
            f"the key does not fit any state of checkpoint {manifest.checkpoint_id}: "
            f"{'; '.join(state.reason for state in skipped[:_MOST_NAMED])}"
        )
    return KeyStates(manifest.checkpoint_id, tuple(states), tuple(skipped))


def _select_entries(
    manifest: Manifest, uid: str | None, name: str | None
) -> tuple[KeyedEntry, ...]:
    if uid is not None and name is not None:
        return (manifest.keyed_entry(uid, name),)
    entries = tuple(
        entry
        for entry in manifest.keyed
        if uid in (None, entry.state.uid) and name in (None, entry.state.name)
    )
    if entries or (uid is None and name is None):
        return entries
    known = ", ".join(sorted({e.state.uid if uid else e.state.name for e in manifest.keyed}))
    what = f"operator {uid!r} has no keyed state" if uid else f"no keyed state {name!r}"
    raise StateNotFoundError(
        f"{what} in checkpoint {manifest.checkpoint_id}; the checkpoint has {known or 'none'}"
    )


# A full outer join of a state at two checkpoints by identity.
#
# Both are read in parallel, one run of key groups at a time, so only that run is in memory.


CHANGE = "change"
"""The column with the outcome of a row, one of :data:`CHANGES`."""
CHANGES = ("same", "changed", "added", "removed")
Places = npt.NDArray[np.intp]


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
    streams = [
        read_state(storage, entry, reads_of(entry, every), now_ms=now_ms, run_bytes=run_bytes)
        for entry in (sides.a, sides.b)
    ]
    tables = [
        sorted_tables(stream, entry.state, run_bytes)
        for stream, entry in zip(streams, (sides.a, sides.b), strict=True)
    ]
    for piece in align_streams(tables, sides.a.state.identity):
        old, new = piece.rows
        yield from _join_piece(old, new, sides).to_batches()


def _join_piece(old: pa.Table | None, new: pa.Table | None, sides: _JoinedSides) -> pa.Table:
    identity = list(sides.a.state.identity)
    a, b = (_rows(rows, entry) for rows, entry in ((old, sides.a), (new, sides.b)))
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


def _rows(rows: pa.Table | None, entry: KeyedEntry) -> pa.Table:
    if rows is not None:
        return rows.combine_chunks()
    stored = arrow_schema(entry.state.schema)
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *stored]).empty_table()


def _first_not_null(
    a: pa.Table, b: pa.Table, name: str, left: Places, right: Places
) -> pa.ChunkedArray:
    both = pa.chunked_array(
        [*a.column(name).chunks, *b.column(name).cast(a.column(name).type).chunks]
    )
    return both.take(pa.array(np.where(left >= 0, left, right + a.num_rows)))


def _take_column(column: pa.ChunkedArray, places: Places) -> pa.ChunkedArray:
    return column.take(pa.array(places, mask=places < 0))


@dataclass(frozen=True)
class KeyAt:
    """A key at one checkpoint: its rows, or None if the state is missing or has another key type.

    ``is_changed`` tells whether the rows differ from those at the previous checkpoint. ``left_out``
    lists parts of the state that the checkpoint lacks, so rows of the key may be missing.
    """

    checkpoint_id: int
    created_at_ms: int
    rows: tuple[dict[str, Any], ...] | None
    is_changed: bool
    table: pa.Table | None = field(repr=False, compare=False)
    left_out: tuple[LeftOutState, ...] = ()


class KeyHistory(tuple[KeyAt, ...]):
    """A key at each kept checkpoint, oldest first."""

    __slots__ = ()

    def to_arrow(self) -> pa.Table:
        """Return all rows, each preceded by its checkpoint id."""
        known = [(version, version.table) for version in self if version.table is not None]
        tables = [
            rows.add_column(
                0, "checkpoint_id", pa.array([version.checkpoint_id] * len(rows), pa.int64())
            )
            for version, rows in known
        ]
        return pa.concat_tables(tables, promote_options="permissive")

    to_pandas, to_polars = as_pandas, as_polars


def as_of(
    catalog: Catalog,
    a: int | str,
    b: int | str,
    uid: str,
    name: str,
    *,
    now_ms: int | None,
) -> RowStream:
    """Return a keyed state at two checkpoints as :func:`join_checkpoints` joins them.

    Rows that expired by ``now_ms`` (default: this machine's clock) are omitted on both sides.
    Raises CheckpointNotFoundError, StateNotFoundError, or InvalidArgumentError if the two cannot be
    joined.
    """
    old, new = (catalog.load(number).keyed_entry(uid, name) for number in (a, b))
    return RowStream(join_checkpoints(catalog.storage, old, new, now_ms=clock_ms(now_ms)))


def key_history(
    catalog: Catalog,
    key_of: Callable[[KeyedState], Any],
    uid: str,
    name: str,
    *,
    now_ms: int | None,
) -> Iterator[KeyAt]:
    """Yield a key's rows at each kept checkpoint, oldest first.

    At most one file of each base is read, and none if the previous checkpoint had the same files.

    The key must fit the state in the newest checkpoint. Rows that expired by ``now_ms`` (default:
    this machine's clock) are omitted. Raises StateNotFoundError if no kept checkpoint has the
    state, and the errors of a lookup.
    """
    held = {savepoint.checkpoint_id for savepoint in catalog.holds.savepoints()}
    numbers = sorted({*catalog.checkpoint_ids(), *held})
    newest = _newest_form(catalog, reversed(numbers), uid, name)
    key, key_schema, now_ms = key_of(newest), _key_of(newest), clock_ms(now_ms)
    before = after = none = _FoundRows(newest, arrow_schema(newest.schema).empty_table())
    previous: KeyedEntry | None = None
    for number in numbers:
        manifest = _load(catalog, number)
        if manifest is None:
            continue
        entry = _entry(manifest, uid, name)
        if entry is None or _key_of(entry.state) != key_schema:
            entry, after = None, none
        elif entry != previous:
            after = _FoundRows(
                entry.state, table_of_key(catalog.storage, entry, key, now_ms=now_ms)
            )
        previous = entry
        rows = None if entry is None else tuple(rows_to_dicts(after.rows, str(entry.state)))
        table = None if entry is None else after.rows
        lacking = tuple(record for record in manifest.left_out if record.lacks(uid, name))
        changed = after.differs(before)
        yield KeyAt(number, manifest.created_at_ms, rows, changed, table, lacking)
        before = after


@dataclass(frozen=True)
class _FoundRows:
    """The rows of a key in a state at a checkpoint."""

    state: KeyedState
    rows: pa.Table

    def differs(self, before: _FoundRows) -> bool:
        """Return whether these rows differ from earlier ones, in the columns that both have."""
        if self is before or not (self.rows.num_rows or before.rows.num_rows):
            return False
        known = sorted(self.state.identity) == sorted(before.state.identity)
        return not known or not same_rows(
            (self.rows, self.state.schema), (before.rows, before.state.schema)
        )


def _newest_form(catalog: Catalog, numbers: Iterable[int], uid: str, name: str) -> KeyedState:
    for number in numbers:
        manifest = _load(catalog, number)
        entry = None if manifest is None else _entry(manifest, uid, name)
        if entry is not None:
            return entry.state
    raise StateNotFoundError(
        f"no kept checkpoint has a keyed state {name!r} of operator {uid!r}; 'statestore "
        "show' lists the existing states"
    )


def _load(catalog: Catalog, number: int) -> Manifest | None:
    """Return a manifest; None if it expired after the listing."""
    try:
        return catalog.load_header(number)
    except CheckpointNotFoundError:
        return None


def _entry(manifest: Manifest, uid: str, name: str) -> KeyedEntry | None:
    try:
        return manifest.keyed_entry(uid, name)
    except StateNotFoundError:
        return None


def _key_of(state: KeyedState) -> tuple[tuple[str, str], ...]:
    return tuple((name, type_text(state.schema.type_of(name))) for name in state.key)
