"""Look up the rows of one key, from at most one data file, without a scan of the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.format.manifest import KeyedEntry
from statestore.format.schema import type_text
from statestore.format.slices import Slices, reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.expiry import drop_expired
from statestore.layers.merge import merged_rows
from statestore.parquet.keyed_reader import add_key_group, restored_schema
from statestore.parquet.reader import open_data, row_groups_of
from statestore.parquet.statistics import positions_of
from statestore.rows.column_types import arrow_schema
from statestore.rows.key_group_runs import key_groups_of
from statestore.rows.lossless_cast import brief_text
from statestore.rows.matching import matching_positions
from statestore.rows.python_values import column_of, display_rows, rows_to_dicts
from statestore.rows.uuids import uuid_as_stored, uuid_columns
from statestore.storage import Storage

__all__ = ["has_exact_bounds", "key_batch", "key_group_of", "rows_of_key", "table_of_key"]


def rows_of_key(
    storage: Storage,
    entry: KeyedEntry,
    key: Any,
    *,
    verify: bool = False,
    now_ms: int | None = None,
    times_as_text: bool = False,
) -> list[dict[str, Any]]:
    """Return a key's rows as dictionaries, in stored order; empty when the state lacks the key.

    With ``times_as_text`` times that Python lacks are text, as in
    :func:`statestore.rows.python_values.display_values`. Otherwise the same as
    :func:`table_of_key`.
    """
    table = table_of_key(storage, entry, key, verify=verify, now_ms=now_ms)
    return display_rows(table) if times_as_text else rows_to_dicts(table, str(entry.state))


def table_of_key(
    storage: Storage,
    entry: KeyedEntry,
    key: Any,
    *,
    verify: bool = False,
    now_ms: int | None = None,
) -> pa.Table:
    """Return the rows of a key, in stored order and columns.

    ``key`` is a value, or for several key columns a tuple or a dictionary. This reads the file of
    the key's group, and one file of each layer of changes, but only row groups whose bounds include
    the key. With ``verify`` it reads the whole file to check its SHA-256. If ``now_ms`` is given,
    expired rows are left out if the state hides them. Raises InvalidArgumentError when the value
    does not fit the key's type.
    """
    wanted = key_batch(entry.state, key)
    group = key_group_of(entry.state, wanted)
    reads = reads_of(entry, KeyGroupRange(group, group))
    rows = _rows_of(storage, entry, reads.base, wanted, verify)
    layers = [
        _rows_of(storage, layer.entry, layer.slices, wanted, verify) for layer in reads.layers
    ]
    merged = drop_expired(merged_rows(rows, layers, entry.state), entry.state, now_ms)
    return merged.select(entry.state.schema.names)


def _rows_of(
    storage: Storage, entry: KeyedEntry, slices: Slices, wanted: pa.RecordBatch, verify: bool
) -> pa.Table:
    """Return the rows of a key in some slices of one key group, ``key_group`` first."""
    schema = arrow_schema(entry.state.schema)
    restored = restored_schema(entry.state.schema)
    keys = pa.Table.from_batches([wanted])
    pieces: list[pa.RecordBatch] = []
    for part in slices:
        with open_data(storage, entry.table.path, part.handle, verify=verify) as file:
            metadata = file.parquet.metadata
            own, _ = row_groups_of(metadata, range(part.first_row, part.first_row + part.rows))
            # Bounds in a footer without a checksum are not trusted: they could hide rows.
            known = part.handle.footer is not None
            for index in _row_groups(metadata, wanted, own) if known else own:
                for batch in file.batches([index], schema):
                    own = pa.Table.from_batches([batch.select(wanted.schema.names)])
                    rows = batch.take(pa.array(matching_positions(own, keys)[0]))
                    pieces.append(add_key_group(rows, part.key_groups.first, restored))
    return pa.Table.from_batches(pieces, restored)


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


def _row_groups(metadata: Any, wanted: pa.RecordBatch, among: range) -> list[int]:
    """Return the row groups whose bounds include the key, or that have no bounds."""
    positions = positions_of(metadata)
    kept = []
    for group in among:
        row_group = metadata.row_group(group)
        bounds = (
            (row_group.column(positions[name]).statistics, _stored_value(wanted.column(name)[0]))
            for name in wanted.schema.names
            if name in positions and has_exact_bounds(wanted.schema.field(name).type)
        )
        if all(_may_contain(statistics, value) for statistics, value in bounds):
            kept.append(group)
    return kept


def has_exact_bounds(data_type: pa.DataType) -> bool:
    """Return whether Parquet's bounds of a column decide which keys are in it."""
    return bool(
        pa.types.is_integer(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_date(data_type)
    )


def _stored_value(value: pa.Scalar) -> int | bytes | None:
    """Return a value as Parquet stores it: a date as days, text as UTF-8 bytes."""
    if pa.types.is_date(value.type):
        value = value.cast(pa.int32())
    stored = value.as_py()
    return stored.encode() if isinstance(stored, str) else stored


def _may_contain(statistics: Any, value: int | bytes | None) -> bool:
    if value is None or statistics is None or not statistics.has_min_max:
        return True
    # Python has no date after the year 9999, but the number of days always exists. Parquet orders
    # text by its bytes.
    return bool(statistics.min_raw <= value <= statistics.max_raw)
