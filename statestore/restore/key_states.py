"""Look one key up in all states of a checkpoint, or in one state at all kept checkpoints.

At most one file of each base is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from statestore.catalog.catalog import Catalog, Checkpoint
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
from statestore.format.schema import Schema, type_text
from statestore.format.state import KeyedState, StateKind, clock_ms
from statestore.restore.lookup import rows_of_key
from statestore.restore.target import keyed_entries
from statestore.rows.column_types import arrow_schema
from statestore.rows.dataframes import as_pandas, as_polars
from statestore.rows.equality import same_rows
from statestore.rows.python_values import display_rows, rows_to_dicts

_MOST_NAMED = 10


@dataclass(frozen=True)
class KeyedRows:
    """The rows of a key in one state, in stored order; empty if the state lacks the key."""

    entry: KeyedEntry = field(repr=False)
    rows: tuple[dict[str, Any], ...]
    table: pa.Table = field(repr=False, compare=False)

    json_properties: ClassVar[tuple[str, ...]] = ("operator", "state", "kind")

    @property
    def operator(self) -> str:
        """The operator of the state."""
        return self.entry.state.uid

    @property
    def state(self) -> str:
        """The name of the state."""
        return self.entry.state.name

    @property
    def kind(self) -> StateKind:
        """The kind of the state."""
        return self.entry.state.kind

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table."""
        return self.table

    to_pandas = as_pandas
    to_polars = as_polars


@dataclass(frozen=True)
class SkippedState:
    """A state whose key has another type, and the reason why the key does not fit."""

    entry: KeyedEntry = field(repr=False)
    reason: str

    json_properties: ClassVar[tuple[str, ...]] = ("operator", "state")

    @property
    def operator(self) -> str:
        """The operator of the state."""
        return self.entry.state.uid

    @property
    def state(self) -> str:
        """The name of the state."""
        return self.entry.state.name

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
            + html_table(state.table.schema.names, map(_cells, display_rows(state.table)))
            for state in self.states
            if state.rows
        )
        return figure(self._summary(), bars(drawn), *tables)

    def _summary(self) -> str:
        return (
            f"checkpoint {self.checkpoint_id}: {counted(self.rows, 'row')} of the key in "
            f"{counted(len(self.states), 'state')}"
        )


def _cells(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values of a row for a table, in which ``null`` replaces None."""
    return tuple("null" if value is None else value for value in row.values())


def key_states(
    checkpoint: Checkpoint,
    key_of: Callable[[KeyedState], Any],
    *,
    uid: str | None = None,
    name: str | None = None,
    now_ms: int | None = None,
    times_as_text: bool = False,
) -> KeyStates:
    """Return a key's rows in every keyed state, filtered by operator ``uid`` and state ``name``.

    Rows that expired by ``now_ms`` (default: this machine's clock) are omitted. ``key_of`` returns
    the key in the form of a state. An InvalidArgumentError from it, or a value that does not fit,
    skips the state. Raises StateNotFoundError if no such keyed state exists, InvalidArgumentError
    if the key fits none of the states, MissingFileError or DamagedFileError.
    """
    manifest, now_ms = checkpoint.manifest, clock_ms(now_ms)
    states, skipped = [], []
    for entry in keyed_entries(manifest, uid, name):
        try:
            table = rows_of_key(checkpoint.storage, entry, key_of(entry.state), now_ms=now_ms)
            rows = tuple(
                display_rows(table) if times_as_text else rows_to_dicts(table, str(entry.state))
            )
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

    to_pandas = as_pandas
    to_polars = as_polars


def key_history(
    catalog: Catalog,
    key_of: Callable[[KeyedState], Any],
    uid: str,
    name: str,
    *,
    now_ms: int | None,
    times_as_text: bool = False,
) -> Iterator[KeyAt]:
    """Yield a key's rows at each kept checkpoint, oldest first.

    At most one file of each base is read, and none if the previous checkpoint had the same files.

    The key must fit the state in the newest checkpoint. Rows that expired by ``now_ms`` (default:
    this machine's clock) are omitted. Raises StateNotFoundError if no kept checkpoint has the
    state, and the errors of a lookup.
    """
    numbers = catalog.kept_ids()
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
            after = _FoundRows(entry.state, rows_of_key(catalog.storage, entry, key, now_ms=now_ms))
        previous = entry
        rows = None
        if entry is not None:
            found, subject = after.rows, str(entry.state)
            rows = tuple(display_rows(found) if times_as_text else rows_to_dicts(found, subject))
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
