"""Convert rows of keyed state to entries of a canonical savepoint, column by column."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.format.names import KEY_GROUP
from statestore.format.rescale_proof import RowSet
from statestore.interop.flink.columns.state_columns import (
    FLINK_KEY_GROUP,
    find_begins,
    replace_column,
)
from statestore.interop.flink.exporting.export_types import KeyedExport
from statestore.interop.flink.exporting.flink_versions import migrate_rows
from statestore.interop.flink.read.keyed_states import Encoding, PartWriter
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES, Spans, join_parts
from statestore.interop.flink.types.key_hash import HashCodes, groups_of_hashes
from statestore.interop.flink.types.key_recipes import recipe_hash_codes
from statestore.interop.flink.write.entries import Groups, join_entries, prefixes
from statestore.rows.digests import rows_digest
from statestore.rows.key_group_runs import key_groups_of
from statestore.rows.python_values import display_rows


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


def _hash_class_keys(rows: pa.Table | pa.RecordBatch, plan: KeyedExport) -> HashCodes:
    assert plan.flink.recipe is not None, "the hash of a class has a recipe"
    return recipe_hash_codes(plan.flink.recipe, plan.flink.key, plan.columns.key.values(rows))


def row_set(rows: pa.Table, plan: KeyedExport) -> RowSet:
    """Return the number and the digest of rows of a state."""
    return RowSet(len(rows), rows_digest(rows.select(plan.state.schema.names)))


def normalize_rows(rows: pa.Table, plan: KeyedExport) -> pa.Table:
    """Return rows in the form that a savepoint can represent.

    Values that are migrated have the form of the new version of Flink.
    """
    if plan.is_migrated:
        rows = migrate_rows(rows, plan)
    if plan.has_flink_groups:
        rows = replace_column(rows, FLINK_KEY_GROUP, rows.column(KEY_GROUP))
    if plan.planned is not None and plan.planned.most_rows is not None and len(rows):
        _refuse_more_rows(rows, plan, plan.planned.most_rows)
    return plan.columns.normalized(rows)


def _refuse_more_rows(rows: pa.Table, plan: KeyedExport, most: int) -> None:
    """Refuse a key with more rows than a top-N keeps; all rows of a key are adjacent."""
    keys = rows.select(list(plan.state.key)).combine_chunks()
    begins = find_begins(keys.to_batches()[0])
    counts = np.diff(np.append(begins, len(rows)))
    if counts.max() > most:
        key = keys.slice(int(begins[counts.argmax()]), 1).to_pylist()[0]
        raise InvalidArgumentError(
            f"{plan.state} has {counts.max()} rows of the key {key}, but the job keeps the best "
            f"{most}: bootstrap the state with these rows alone"
        )


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
    with _state_in_errors(plan):
        entries, begins = plan.columns.rows(rows)
    groups = groups if begins is None else groups[begins]
    prefix = prefixes(groups, max_parallelism)
    state, write = plan.flink, _make_part_writer(plan)
    if plan.is_bytes:
        keys = join_parts(prefix, entries.key.cast(BYTES))
    else:
        keys = state.encode_keys(entries, prefix, write)
    if entries.value is not None and (plan.is_bytes or plan.columns.form.has_value_bytes):
        values = entries.value.cast(BYTES)
    else:
        values = state.encode_values(entries.value, len(entries), write)
    return join_entries(keys, values), groups


def _make_part_writer(plan: KeyedExport) -> PartWriter:
    """Return a function whose UnsupportedTypeError has the state, and the columns of the part."""

    def write(part: str, array: pa.Array, flink_type: FlinkType, encode: Encoding) -> pa.Array:
        try:
            return encode(array, flink_type)
        except InvalidArgumentError as error:
            names = ", ".join(plan.columns.names.get(part, ()))
            raise UnsupportedTypeError(
                f"{plan.state}: the column {names} cannot be written as "
                f"{flink_type.java_name}: {error}"
            ) from error

    return write


@contextmanager
def _state_in_errors(plan: KeyedExport) -> Iterator[None]:
    """Add the operator and state to the error for a value that Flink's type cannot hold."""
    try:
        yield
    except InvalidArgumentError as error:
        raise UnsupportedTypeError(f"{plan.state}: {error}") from error


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
        hashes = _hash_class_keys(rows, plan)
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
    with _state_in_errors(plan):
        keys = plan.columns.key.values(rows)
    whole = keys if plan.is_bytes else plan.flink.key.write(keys)
    return Spans.from_array(whole.cast(BYTES), f"a key of {plan.state}")
