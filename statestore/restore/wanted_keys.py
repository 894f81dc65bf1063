"""The keys of a lookup: one key in Python's form, or many keys as rows of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.engines.given_rows import as_table
from statestore.errors import InvalidArgumentError
from statestore.format.handles import KeyedStateSlice
from statestore.format.schema import type_text
from statestore.format.slices import ReadSlices
from statestore.format.state import KeyedState
from statestore.rows.column_types import arrow_schema, uuid_as_stored, uuid_columns
from statestore.rows.digests import U64Array
from statestore.rows.equality import hashes_of, matching_positions
from statestore.rows.fit_columns import fit_table
from statestore.rows.key_group_runs import key_groups_of, take_rows
from statestore.rows.lossless_cast import brief_text
from statestore.rows.python_values import column_of


@dataclass(frozen=True)
class WantedKeys:
    """Keys to look up, in order of key group: their columns, hashes and key groups.

    Within a key group the hashes are in order.
    """

    rows: pa.Table
    hashes: U64Array
    groups: npt.NDArray[np.int32]

    @classmethod
    def of(cls, rows: Any, state: KeyedState) -> WantedKeys:
        """Return the keys in the key columns of a table, an Arrow-compatible frame or dictionaries.

        Keys may be repeated. Raises InvalidArgumentError when a key column is missing, or has a
        value that :func:`key_batch` would refuse; NullKeyError for a null key.
        """
        rows = as_table(rows, f"the keys of {state}", lambda untyped: untyped.keys(state))
        missing = [name for name in state.key if name not in rows.column_names]
        if missing:
            raise InvalidArgumentError(
                f"the keys of {state} must have the columns ({', '.join(state.key)}); "
                f"{missing[0]!r} is missing"
            )
        schema = state.schema.select(state.key)
        try:
            keys = fit_table(rows, schema).combine_chunks()
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"invalid keys of {state}: {error}") from error
        groups = np.asarray(key_groups_of(keys, state), np.int32)
        hashes = hashes_of(keys)
        order = np.lexsort((hashes, groups))
        return cls(keys.take(pa.array(order)), hashes[order], groups[order])

    @classmethod
    def of_key(cls, key: Any, state: KeyedState) -> WantedKeys:
        """Return one key; raises the errors of :func:`key_batch`, and NullKeyError."""
        batch = key_batch(state, key)
        keys = pa.Table.from_batches([batch])
        groups = np.asarray(key_groups_of(batch, state), np.int32)
        return cls(keys, hashes_of(keys), groups)

    def of_reads(self, reads: ReadSlices) -> WantedKeys:
        """Return the keys whose key groups are in these reads."""
        lies = np.zeros(len(self.groups), np.bool_)
        for part in reads.slices:
            lies[self._places_in(part)] = True
        positions = np.flatnonzero(lies)
        return WantedKeys(
            self.rows.take(pa.array(positions)), self.hashes[positions], self.groups[positions]
        )

    def hashes_in(self, part: KeyedStateSlice) -> U64Array:
        """Return the distinct hashes of the keys in the key groups of a slice, in order."""
        hashes = self.hashes[self._places_in(part)]
        if len(part.key_groups) > 1:
            hashes = np.sort(hashes)
        again = hashes[1:] == hashes[:-1]
        return hashes[np.append(~again, True)] if again.any() else hashes

    def values_in(self, part: KeyedStateSlice) -> dict[str, pa.ChunkedArray]:
        """Return the key values in the key groups of a slice, for simple key columns.

        These are the columns whose values Arrow compares exactly as this module does.
        """
        own = self._places_in(part)
        own = self.rows.slice(own.start, own.stop - own.start)
        kinds = zip(own.column_names, own.schema.types, strict=True)
        return {name: own.column(name) for name, data_type in kinds if _has_exact_bounds(data_type)}

    def match(self, rows: pa.Table) -> pa.Table:
        """Return the rows that have one of the keys; hashes may collide, values do not."""
        places, _ = matching_positions(rows.select(self.rows.column_names), self.rows)
        return rows if len(places) == rows.num_rows else take_rows(rows, places)

    def _places_in(self, part: KeyedStateSlice) -> slice:
        groups = part.key_groups
        return slice(*np.searchsorted(self.groups, (groups.first, groups.last + 1)).tolist())


def key_group_of(
    state: KeyedState, wanted: pa.RecordBatch, max_parallelism: int | None = None
) -> int:
    """Return the key group of a key that :func:`key_batch` returned.

    It is one of the stored key groups, or of ``max_parallelism`` key groups.
    """
    return int(key_groups_of(wanted, state, max_parallelism)[0])


def key_batch(state: KeyedState, key: Any) -> pa.RecordBatch:
    """Return a key as one row of the state's key columns, which ``key`` itself can be.

    Raises InvalidArgumentError when the value does not fit the key's type.
    """
    if isinstance(key, pa.RecordBatch):
        return key.select(state.key)
    schema = arrow_schema(state.schema.select(state.key))
    columns = uuid_columns(state)
    values = [
        uuid_as_stored(value, columns[field.name]) if field.name in columns else value
        for value, field in zip(_key_values(state, key), schema, strict=True)
    ]
    try:
        arrays = [
            column_of(
                [value], field.type, name=field.name, subject=brief_text(key), place=_key_place
            )
            for value, field in zip(values, schema, strict=True)
        ]
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{brief_text(key, 200)} is not a key of {state} ({_key_text(state)}): {error}"
        ) from error
    for value, column in zip(values, schema, strict=True):
        if not _has_all_fields(value, column.type):
            raise InvalidArgumentError(
                f"{brief_text(key, 200)} is not a key of {state} ({_key_text(state)}): name every "
                "key field"
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _has_all_fields(value: Any, data_type: pa.DataType) -> bool:
    """Return whether a value's dictionaries have all fields of their structs."""
    if pa.types.is_struct(data_type):
        return value is not None and all(
            field.name in value and _has_all_fields(value[field.name], field.type)
            for field in data_type
        )
    if pa.types.is_list(data_type) and value is not None:
        return all(item is None or _has_all_fields(item, data_type.value_type) for item in value)
    return True


def _key_place(index: int) -> str:
    return "the key"


def _key_values(state: KeyedState, key: Any) -> list[Any]:
    if isinstance(key, Mapping) and set(key) == set(state.key):
        return [key[name] for name in state.key]
    if len(state.key) == 1:
        return [key]
    if isinstance(key, tuple | list) and len(key) == len(state.key):
        return list(key)
    raise InvalidArgumentError(
        f"{brief_text(key)} is not a key of {state}; its key is ({_key_text(state)})"
    )


def _key_text(state: KeyedState) -> str:
    return ", ".join(f"{name} {type_text(state.schema.type_of(name))}" for name in state.key)


def _has_exact_bounds(data_type: pa.DataType) -> bool:
    """Return whether Parquet's bounds of a column decide which keys are in it."""
    return bool(
        pa.types.is_integer(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_date(data_type)
    )
