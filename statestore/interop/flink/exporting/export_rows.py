"""Convert rows of keyed state to entries of a canonical savepoint, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.format.names import KEY_GROUP
from statestore.format.rescale_proof import RowSet
from statestore.format.state import StateKind
from statestore.interop.flink.columns.state_columns import FLINK_KEY_GROUP
from statestore.interop.flink.columns.store_types import as_millis
from statestore.interop.flink.exporting.export_types import KeyedExport
from statestore.interop.flink.exporting.flink_versions import migrate_rows
from statestore.interop.flink.read.composite import KeyLayout, length_marks
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES, Spans, join_parts
from statestore.interop.flink.types.encode import encode_list
from statestore.interop.flink.types.families.key_hash import HashCodes, groups_of_hashes
from statestore.interop.flink.types.flink_types import FlinkType, ListType, MapType, NullableType
from statestore.interop.flink.types.key_recipes import recipe_hash_codes
from statestore.interop.flink.write.entries import Groups, join_entries, prefixes
from statestore.rows.digests import rows_digest
from statestore.rows.key_group_runs import key_groups_of
from statestore.rows.python_values import display_rows

_ZERO = pa.scalar(b"\0", BYTES)


@dataclass(frozen=True, kw_only=True)
class HashedKey:
    """A key and the result of its ``hashCode()``, by which a user can check the recipe."""

    key: str
    hash_code: int


def hash_first_key(rows: pa.Table, plan: KeyedExport) -> HashedKey:
    """Return the first key of rows whose keys are a class of the job, with its hash."""
    first = rows.slice(0, 1)
    (key,) = display_rows(first.select(plan.state.key))
    (code,) = _hash_class_keys(first, plan).tolist()
    return HashedKey(key=str(key), hash_code=code)


def _hash_class_keys(rows: pa.Table, plan: KeyedExport) -> HashCodes:
    assert plan.flink.recipe is not None, "the hash of a class has a recipe"
    return recipe_hash_codes(plan.flink.recipe, plan.flink.key, plan.key.to_flink(rows))


def row_set(rows: pa.Table, plan: KeyedExport) -> RowSet:
    """Return the number and the digest of rows of a state."""
    return RowSet(len(rows), rows_digest(rows.select(plan.state.schema.names)))


def normalize_rows(rows: pa.Table, plan: KeyedExport) -> pa.Table:
    """Return rows in the form that a savepoint can represent.

    List positions count from 0, and TTL timestamps are whole milliseconds. Values that are migrated
    have the form of the new version of Flink.
    """
    state = plan.state
    if plan.is_migrated:
        rows = migrate_rows(rows, plan)
    if plan.has_flink_groups:
        return _replace_column(rows, FLINK_KEY_GROUP, rows.column(KEY_GROUP))
    if plan.columns is not None:
        return plan.columns.renumbered(rows)
    if plan.planned is not None and plan.planned.most_rows is not None and len(rows):
        _refuse_more_rows(rows, plan, plan.planned.most_rows)
    if state.ttl is not None:
        column = state.ttl.column
        column_type = plan.stored.field(column).type
        if pa.types.is_timestamp(column_type):
            whole = pc.floor_temporal(rows.column(column), unit="millisecond")
            rows = _replace_column(rows, column, whole.cast(column_type))
    if state.kind is StateKind.LIST and len(rows):
        column = state.entry[0]
        starts = _find_starts(_encode_keys(rows, plan))
        firsts = np.flatnonzero(starts)[np.cumsum(starts) - 1]
        places = np.arange(len(rows)) - firsts
        rows = _replace_column(rows, column, pa.array(places).cast(plan.stored.field(column).type))
        if plan.flink.kind == "map" and state.ttl is not None:
            rows = _join_times(rows, state.ttl.column, firsts)
    return rows


def _join_times(rows: pa.Table, column: str, firsts: npt.NDArray[np.int64]) -> pa.Table:
    """Return rows in which all elements of a list have the latest of their times.

    ``firsts`` has the place of the first element of each row's list. A list in a map has one time.
    """
    times = rows.column(column).combine_chunks()
    latest = np.asarray(times.cast(pa.int64())).copy()
    np.maximum.at(latest, firsts, latest)
    joined = pa.array(latest[firsts]).cast(times.type)
    return _replace_column(rows, column, joined)


def _refuse_more_rows(rows: pa.Table, plan: KeyedExport, most: int) -> None:
    """Refuse a key with more rows than a top-N keeps; all rows of a key are adjacent."""
    keys = _encode_part(plan, plan.key.names, plan.key.to_flink(rows), plan.key.flink_type)
    begins = np.flatnonzero(_find_starts(keys))
    counts = np.diff(np.append(begins, len(rows)))
    if counts.max() > most:
        place = int(begins[counts.argmax()])
        key = rows.select(list(plan.state.key)).slice(place, 1).to_pylist()[0]
        raise InvalidArgumentError(
            f"{plan.state} has {counts.max()} rows of the key {key}, but the job keeps the best "
            f"{most}: bootstrap the state with these rows alone"
        )


def _replace_column(rows: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    index = rows.schema.get_field_index(name)
    return rows.set_column(index, rows.schema.field(index), column)


def encode_rows(rows: pa.Table, plan: KeyedExport, max_parallelism: int) -> tuple[pa.Array, Groups]:
    """Encode rows as entries.

    Args:
        rows: rows from :func:`normalize_rows` with their new key groups. The elements of each list
            must be adjacent.
        plan: the export plan of the state.
        max_parallelism: the number of all key groups.

    Returns:
        The entries, and their key groups.

    Raises:
        UnsupportedTypeError: for a value that Flink cannot represent, such as a null number, with
            the state and its columns.
    """
    groups = rows.column(KEY_GROUP).to_numpy().astype(np.int32)
    if plan.columns is not None:
        return _encode_imported_rows(rows, plan, groups, max_parallelism)
    keys = _encode_keys(rows, plan, max_parallelism)
    values: pa.Array | pa.Scalar
    if plan.state.kind is StateKind.LIST:
        starts = _find_starts(keys)
        first = np.flatnonzero(starts)
        values = _encode_lists(rows, plan, np.append(first, len(rows)).astype(np.int32))
        keys, groups = keys.take(pa.array(first)), groups[first]
    elif plan.flink.kind == "timers":
        values = _empty_values(len(keys))
    else:
        value_type = plan.flink.value
        if plan.flink.kind == "map" and isinstance(value_type, MapType):
            value_type = NullableType(value_type.value)
        values = _encode_part(plan, plan.value.names, _build_values(rows, plan), value_type)
    return join_entries(keys, values), groups


def _encode_lists(rows: pa.Table, plan: KeyedExport, edges: npt.NDArray[np.int32]) -> pa.Array:
    """Return the values of a list state, or of a map of lists, whose lists begin at ``edges``."""
    value_type = plan.flink.value
    if isinstance(value_type, ListType):
        lists = pa.ListArray.from_arrays(pa.array(edges), _build_values(rows, plan))
        return _encode_part(plan, plan.value.names, lists, value_type.element, is_list=True)
    assert isinstance(value_type, MapType), "lists are values of a list or of a map"
    values = pa.ListArray.from_arrays(pa.array(edges), plan.value.to_flink(rows))
    if plan.state.ttl is not None:
        times = as_millis(_single_chunk(rows, plan.state.ttl.column)).take(pa.array(edges[:-1]))
        values = pa.StructArray.from_arrays([times, values], ["last_access", "value"])
    return _encode_part(plan, plan.value.names, values, NullableType(value_type.value))


@contextmanager
def _state_in_errors(plan: KeyedExport) -> Iterator[None]:
    """Add the operator and state to the error for a value that Flink's type cannot hold."""
    try:
        yield
    except InvalidArgumentError as error:
        raise UnsupportedTypeError(f"{plan.state}: {error}") from error


def _encode_imported_rows(
    rows: pa.Table, plan: KeyedExport, groups: Groups, max_parallelism: int
) -> tuple[pa.Array, Groups]:
    """Encode the rows of an imported state; return the entries and their key groups."""
    columns = plan.columns
    assert columns is not None, "the state was imported"
    with _state_in_errors(plan):
        flink_rows, value_type = columns.rows(rows, 0), plan.flink.value
    values: pa.Array = _empty_values(len(flink_rows))
    if plan.is_bytes:
        keys = flink_rows.key.cast(BYTES)
        values = values if flink_rows.value is None else flink_rows.value.cast(BYTES)
        return join_entries(join_parts(prefixes(groups, max_parallelism), keys), values), groups
    if columns.entry is not None and plan.flink.kind == "list" and flink_rows.value is not None:
        groups = groups[flink_rows.value.offsets.to_numpy(zero_copy_only=False)[:-1]]
    prefix = prefixes(groups, max_parallelism)
    names = plan.value.names
    if plan.flink.kind == "timers":
        parts = [flink_rows.time, flink_rows.key, flink_rows.namespace]
        timers = pa.StructArray.from_arrays(parts, ["time", "key", "namespace"])
        return join_entries(
            join_parts(prefix, _encode_part(plan, plan.key.names, timers, value_type)), values
        ), groups
    keys = _join_key_parts(prefix, plan, flink_rows.key, flink_rows.namespace, flink_rows.map_key)
    if flink_rows.value is not None and columns.form.has_value_bytes:
        values = flink_rows.value.cast(BYTES)
    elif plan.flink.kind == "list" and isinstance(value_type, ListType):
        values = _encode_part(plan, names, flink_rows.value, value_type.element, is_list=True)
    elif plan.flink.kind == "map" and isinstance(value_type, MapType):
        values = _encode_part(plan, names, flink_rows.value, NullableType(value_type.value))
    else:
        values = _encode_part(plan, names, flink_rows.value, value_type)
    return join_entries(keys, values), groups


def _join_key_parts(
    prefix: pa.Array,
    plan: KeyedExport,
    key: pa.Array,
    namespace: pa.Array,
    map_key: pa.Array | None,
) -> pa.Array:
    """Return the keys of entries, concatenated from their parts."""
    layout = KeyLayout.from_state(plan.flink)
    key_bytes = _encode_part(plan, plan.key.names, key, layout.key)
    namespace_bytes = _encode_part(plan, plan.namespace.names, namespace, layout.namespace)
    parts = [prefix, *layout.parts(key_bytes, namespace_bytes)]
    if layout.map_key is not None:
        parts.append(_encode_part(plan, plan.map_key.names, map_key, layout.map_key))
    return join_parts(*parts)


def _empty_values(count: int) -> pa.Array:
    return pa.array([b""], BYTES).take(pa.array(np.zeros(count, np.int64)))


def compute_flink_groups(
    rows: pa.RecordBatch, plan: KeyedExport, max_parallelism: int
) -> npt.NDArray[np.int32]:
    """Return the key group of each row in Flink.

    Imported rows whose key group the store cannot compute have a column with it. For another max
    parallelism, or if there is a recipe for their hash, their keys are decoded.

    Raises:
        UnsupportedTypeError: if the hash of the key type is not known, or a row has no key group.
    """
    if plan.has_class_keys:
        hashes = _hash_class_keys(pa.Table.from_batches([rows]), plan)
        return groups_of_hashes(hashes)(max_parallelism)
    if not plan.has_flink_groups:
        return key_groups_of(rows, plan.state, max_parallelism)
    stored = rows.column(FLINK_KEY_GROUP)
    is_moved = plan.is_rekeyed or max_parallelism != plan.state.max_parallelism
    if plan.flink.recipe is not None or is_moved:
        spans = _stored_keys(rows, plan)
        starts = spans.starts + (plan.flink.before_key if plan.is_bytes else 0)
        return plan.flink.key_groups(Cursor(spans, starts, spans.ends))(max_parallelism)
    if stored.null_count:
        raise UnsupportedTypeError(
            f"{plan.state} has {stored.null_count} rows without {FLINK_KEY_GROUP}: only the job "
            "can compute the key group of a new key. Add rows of keys that the state has, or give "
            "the hash to the import (--key-hash, key_hash=)"
        )
    groups: npt.NDArray[np.int32] = stored.to_numpy()
    return groups


def _stored_keys(rows: pa.RecordBatch, plan: KeyedExport) -> Spans:
    """Return the bytes of the keys of rows whose key group the store cannot compute."""
    columns = plan.columns
    assert columns is not None, "only imported states have Flink's key groups"
    with _state_in_errors(plan):
        keys = columns.key.array(rows)
    whole = keys if plan.is_bytes else plan.flink.key.write(keys)
    return Spans.from_array(whole.cast(BYTES), f"a key of {plan.state}")


def _encode_keys(rows: pa.Table, plan: KeyedExport, max_parallelism: int | None = None) -> pa.Array:
    """Return the keys of entries, with key-group prefixes unless ``max_parallelism`` is None."""
    parts: list[pa.Array | pa.Scalar] = []
    if max_parallelism is not None:
        parts.append(prefixes(_single_chunk(rows, KEY_GROUP).to_numpy(), max_parallelism))
    if plan.flink.kind == "timers":
        times = as_millis(_single_chunk(rows, plan.state.entry[0]))
        columns = [times, plan.key.to_flink(rows), plan.namespace.to_flink(rows)]
        timers = pa.StructArray.from_arrays(columns, ["time", "key", "namespace"])
        names = (*plan.key.names, *plan.namespace.names)
        return join_parts(*parts, _encode_part(plan, names, timers, plan.flink.value))
    layout = KeyLayout.from_state(plan.flink)
    key = _encode_part(plan, plan.key.names, plan.key.to_flink(rows), layout.key)
    parts += [key, *([length_marks(key)] if layout.has_marks else [])]
    if plan.namespace.column is None:
        parts.append(_ZERO)
    else:
        names = plan.namespace.names
        namespace = _encode_part(plan, names, plan.namespace.to_flink(rows), layout.namespace)
        parts += [namespace, *([length_marks(namespace)] if layout.has_marks else [])]
    if layout.map_key is not None:
        names = plan.map_key.names
        parts.append(_encode_part(plan, names, plan.map_key.to_flink(rows), layout.map_key))
    return join_parts(*parts)


def _build_values(rows: pa.Table, plan: KeyedExport) -> pa.Array:
    values = plan.value.to_flink(rows)
    ttl = plan.state.ttl
    if ttl is None:
        return values
    times = as_millis(_single_chunk(rows, ttl.column))
    return pa.StructArray.from_arrays([times, values], ["last_access", "value"])


def _encode_part(
    plan: KeyedExport,
    names: Sequence[str],
    array: pa.Array,
    flink_type: FlinkType,
    *,
    is_list: bool = False,
) -> pa.Array:
    """Return the bytes of values; an UnsupportedTypeError has the state and its columns."""
    try:
        return encode_list(array, flink_type) if is_list else flink_type.write(array)
    except InvalidArgumentError as error:
        raise UnsupportedTypeError(
            f"{plan.state}: the column {', '.join(names)} cannot be written as "
            f"{flink_type.java_name}: {error}"
        ) from error


def _single_chunk(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _find_starts(keys: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which rows have another key or namespace than the previous row."""
    starts = np.ones(len(keys), np.bool_)
    if len(keys) > 1:
        starts[1:] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))
    return starts
