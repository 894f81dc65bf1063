"""One key's rows, from at most one data file: a point lookup without scanning the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.format.manifest import KeyedEntry
from statestore.format.schema import type_text
from statestore.format.slices import Slices, reads_of
from statestore.format.state import KeyedState
from statestore.keys.arrow import key_groups
from statestore.keys.groups import KeyGroupRange
from statestore.storage import Storage
from statestore.table.digest import row_hashes
from statestore.table.expiry import unexpired
from statestore.table.merge import merged_rows
from statestore.table.reading import open_data, row_groups_of
from statestore.table.scan import placed, restored_schema
from statestore.table.statistics import positions_of
from statestore.table.types import arrow_schema
from statestore.table.uuids import uuid_as_stored, uuid_columns
from statestore.table.values import column_of, dictionaries

__all__ = ["key_batch", "key_group_of", "rows_of_key", "table_of_key"]


def rows_of_key(
    storage: Storage,
    entry: KeyedEntry,
    key: Any,
    *,
    verify: bool = False,
    now_ms: int | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of a key as dictionaries, in stored order; none when the state lacks the key.

    Else as :func:`table_of_key`.
    """
    table = table_of_key(storage, entry, key, verify=verify, now_ms=now_ms)
    return dictionaries(table, str(entry.state))


def table_of_key(
    storage: Storage,
    entry: KeyedEntry,
    key: Any,
    *,
    verify: bool = False,
    now_ms: int | None = None,
) -> pa.Table:
    """Return the rows of a key, in stored order and columns.

    ``key`` is a value, or for several key columns a tuple or a dictionary. Reads the one file of
    the key's group, and of each layer of changes one, in it only row groups whose bounds admit the
    key; with ``verify`` the whole file, to check its SHA-256. With a clock, ``now_ms``, rows that
    have expired are left out where the state says so. Raises InvalidArgumentError when the value
    does not fit the key's type.
    """
    wanted = key_batch(entry.state, key)
    group = key_group_of(entry.state, wanted)
    reads = reads_of(entry, KeyGroupRange(group, group))
    rows = _rows_of(storage, entry, reads.base, wanted, verify)
    layers = [
        _rows_of(storage, layer.entry, layer.slices, wanted, verify) for layer in reads.layers
    ]
    merged = unexpired(merged_rows(rows, layers, entry.state), entry.state, now_ms)
    return merged.select(entry.state.schema.names)


def _rows_of(
    storage: Storage, entry: KeyedEntry, slices: Slices, wanted: pa.RecordBatch, verify: bool
) -> pa.Table:
    """Return the rows of a key in some slices of one key group, ``key_group`` first."""
    schema = arrow_schema(entry.state.schema)
    restored = restored_schema(entry.state.schema)
    wanted_hash = row_hashes(wanted)[0]
    found: list[pa.RecordBatch] = []
    for part in slices:
        with open_data(storage, entry.table.path, part.handle, verify=verify) as file:
            metadata = file.parquet.metadata
            own, _ = row_groups_of(metadata, range(part.first_row, part.first_row + part.rows))
            # What a footer without checksum says of bounds is not believed: it could hide rows.
            known = part.handle.footer is not None
            for index in _row_groups(metadata, wanted, own) if known else own:
                for batch in file.batches([index], schema):
                    # Hashes tell 0.0 from -0.0 and find NaN, which comparing values would not.
                    match = row_hashes(batch.select(wanted.schema.names)) == wanted_hash
                    rows = batch.filter(pa.array(match))
                    found.append(placed(rows, part.key_groups.first, restored))
    return pa.Table.from_batches(found, restored)


def key_group_of(state: KeyedState, wanted: pa.RecordBatch) -> int:
    """Return the key group of a key, as :func:`key_batch` returns it."""
    groups = key_groups(
        wanted.columns,
        max_parallelism=state.max_parallelism,
        hash_scheme=state.hash_scheme,
        key_types=state.key_types,
    )
    return int(groups[0])


def key_batch(state: KeyedState, key: Any) -> pa.RecordBatch:
    """Return a key as one row of the state's key columns.

    Raises InvalidArgumentError when the value does not fit the key's type.
    """
    schema = arrow_schema(state.schema.select(state.key))
    columns = uuid_columns(state)
    values = [
        uuid_as_stored(value, columns[field.name]) if field.name in columns else value
        for value, field in zip(_key_values(state, key), schema, strict=True)
    ]
    try:
        arrays = [
            column_of([value], field.type, name=field.name, subject=f"{key!r:.80}", place=_of_key)
            for value, field in zip(values, schema, strict=True)
        ]
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{key!r:.200} is no key of {state} ({_key_text(state)}): {error}"
        ) from error
    for value, field in zip(values, schema, strict=True):
        if not _names_all(value, field.type):
            raise InvalidArgumentError(
                f"{key!r:.200} is no key of {state} ({_key_text(state)}): a key names every field"
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _names_all(value: Any, kind: pa.DataType) -> bool:
    """Return whether a value's dictionaries have all fields of their structs."""
    if pa.types.is_struct(kind):
        return value is not None and all(
            field.name in value and _names_all(value[field.name], field.type) for field in kind
        )
    if pa.types.is_list(kind) and value is not None:
        return all(one is None or _names_all(one, kind.value_type) for one in value)
    return True


def _of_key(at: int) -> str:
    return "the key"


def _key_values(state: KeyedState, key: Any) -> list[Any]:
    if isinstance(key, Mapping) and set(key) == set(state.key):
        return [key[name] for name in state.key]
    if len(state.key) == 1:
        return [key]
    if isinstance(key, tuple | list) and len(key) == len(state.key):
        return list(key)
    raise InvalidArgumentError(f"{key!r} is no key of {state}; it has the key ({_key_text(state)})")


def _key_text(state: KeyedState) -> str:
    return ", ".join(f"{name} {type_text(state.schema.type_of(name))}" for name in state.key)


def _row_groups(metadata: Any, wanted: pa.RecordBatch, among: range) -> list[int]:
    """Return those row groups whose bounds admit the key; all of them where bounds say nothing."""
    positions = positions_of(metadata)
    kept = []
    for group in among:
        row_group = metadata.row_group(group)
        bounds = (
            (row_group.column(positions[name]).statistics, wanted.column(name)[0].as_py())
            for name in wanted.schema.names
            if name in positions and _comparable(wanted.schema.field(name).type)
        )
        if all(_admits(statistics, value) for statistics, value in bounds):
            kept.append(group)
    return kept


def _comparable(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind))


def _admits(statistics: Any, value: Any) -> bool:
    if value is None or statistics is None or not statistics.has_min_max:
        return True
    lowest, highest = statistics.min, statistics.max
    if isinstance(value, str):  # Parquet orders strings by their UTF-8 bytes
        return bool(lowest.encode() <= value.encode() <= highest.encode())
    return bool(lowest <= value <= highest)
