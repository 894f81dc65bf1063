"""Change some columns of the rows of some keys; the other columns keep their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.arguments import checked_fields
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.restore.key_set_lookup import WantedKeys, rows_of_keys
from statestore.restore.lookup import key_batch
from statestore.rows.matching import matching_positions
from statestore.rows.python_values import table_of_dicts
from statestore.rows.uuids import uuid_columns, with_uuids
from statestore.storage import Storage

__all__ = ["RowUpdate", "updated_rows"]


@checked_fields
@dataclass(frozen=True, kw_only=True)
class RowUpdate:
    """New values of some columns, for all rows of ``keys`` that have the values in ``where``.

    Attributes:
        keys: the keys, each in the form of a lookup: a value, or a tuple for several key columns.
        values: the new values, by column. Identity columns cannot change.
        where: the values that a row must have to be updated, by column; by default none.

    Raises:
        InvalidArgumentError: for a value of another type, such as one key instead of a list.
    """

    keys: Sequence[Any]
    values: Mapping[str, Any]
    where: Mapping[str, Any] = field(default_factory=dict)


def updated_rows(storage: Storage, entry: KeyedEntry, update: RowUpdate) -> pa.Table:
    """Return the rows of an update with their new values; rows that do not change are left out.

    Raises InvalidArgumentError for a key without such a row, for an identity column and for a value
    that its column cannot have, SchemaMismatchError for an unknown column, MissingFileError or
    DamagedFileError.
    """
    state = entry.state
    for name in update.values:
        if name in state.identity:
            raise InvalidArgumentError(
                f"{name!r} identifies the rows of {state}, so an update cannot change it: delete "
                "the key, and put a row with the new value"
            )
    new, wanted = (_one_row(state, values) for values in (update.values, update.where))
    before = _rows_of(storage, entry, update, wanted)
    after = before
    first = pa.array(np.zeros(before.num_rows, np.int64))
    for name in new.column_names:
        values = new.column(name).take(first)
        after = after.set_column(after.schema.get_field_index(name), before.field(name), values)
    same, _ = matching_positions(before, after)
    changes = np.ones(before.num_rows, np.bool_)
    changes[same] = False
    return after.filter(pa.array(changes))


def _one_row(state: KeyedState, values: Mapping[str, Any]) -> pa.Table:
    """Return a row with these values, in columns of the state's types."""
    names = [name for name in state.schema.names if name in values]
    unknown = [name for name in values if name not in names]
    if unknown:
        raise InvalidArgumentError(
            f"{state} has no column {unknown[0]!r}; its columns are ({state.schema})"
        )
    rows = with_uuids([dict(values)], uuid_columns(state))
    return table_of_dicts(rows, state.schema.select(names), subject=str(state))


def _rows_of(storage: Storage, entry: KeyedEntry, update: RowUpdate, where: pa.Table) -> pa.Table:
    """Return the stored rows of the update's keys that have the values in ``where``.

    Raises InvalidArgumentError.
    """
    state = entry.state
    keys = pa.Table.from_batches([key_batch(state, key) for key in update.keys])
    reads = reads_of(entry, KeyGroupRange.every(state.max_parallelism))
    rows = rows_of_keys(storage, entry, reads, WantedKeys.of(keys, state), verify=True)
    rows = rows.select(state.schema.names).combine_chunks()
    if where.column_names:
        places, _ = matching_positions(rows.select(where.column_names), where)
        rows = rows.take(pa.array(places))
    found, _ = matching_positions(keys, rows.select(state.key))
    missing = [key for place, key in enumerate(update.keys) if place not in found]
    if missing:
        values = f" with {dict(update.where)}" if update.where else ""
        raise InvalidArgumentError(
            f"{state} has no row of the key {missing[0]!r:.200}{values}, so there is nothing to "
            "update; put a row with all of its columns instead"
        )
    return rows
