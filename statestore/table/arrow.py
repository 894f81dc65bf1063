"""Keyed state from Arrow rows, without Spark: hash, sort and write in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.model.handles import KeyedStateHandle
from statestore.model.paths import KEY_GROUP
from statestore.model.schema import Schema
from statestore.model.state import KeyedState
from statestore.table.hashing import check_key_type, key_groups
from statestore.table.keyed import KeyedTarget, leaf_columns, null_key_error, write_grouped
from statestore.table.types import arrow_schema, schema_of_arrow, table_of_dicts

__all__ = ["as_table", "key_types", "rows_known", "schema_of", "write_keyed"]


def as_table(rows: Any) -> pa.Table:
    """Return rows as an Arrow table: a table, a list of dictionaries, or any Arrow-speaking frame.

    pandas, Polars and DuckDB results speak Arrow. InvalidArgumentError for anything else.
    """
    if isinstance(rows, pa.Table):
        return rows
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    if isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows):
        return table_of_dicts(rows, None)
    raise InvalidArgumentError(
        "rows are a Spark DataFrame, an Arrow table (or pandas, Polars, DuckDB frame) or a list "
        f"of dictionaries, not {type(rows).__name__}"
    )


def schema_of(rows: pa.Table) -> Schema:
    """Return the stored columns of a table."""
    return schema_of_arrow(rows.schema)


def key_types(rows: pa.Table, key: tuple[str, ...], hash_scheme: str) -> tuple[str, ...]:
    """Return per key column the type whose hash is taken; UnsupportedTypeError when there is
    none.
    """
    return tuple(check_key_type(rows.schema.field(name).type, hash_scheme) for name in key)


def rows_known(rows: pa.Table) -> int | None:
    """Return how many rows there are."""
    return int(rows.num_rows)


def write_keyed(
    rows: pa.Table, parallelism: int, target: KeyedTarget
) -> tuple[KeyedStateHandle, ...]:
    """Write a keyed state; return its handles in order of key group.

    ``parallelism`` plays no part: one process writes all key groups. Raises NullKeyError,
    DuplicateKeyError, or StorageError, each before anything is visible.
    """
    state = target.state
    try:
        table = rows.select(state.schema.names).cast(arrow_schema(state.schema)).combine_chunks()
    except pa.ArrowException as error:
        raise InvalidArgumentError(
            f"the rows of {state} cannot be stored as ({state.schema}): {error}"
        ) from error
    _refuse_null_keys(table, state)
    groups = key_groups(
        [table.column(name) for name in state.key],
        max_parallelism=state.max_parallelism,
        hash_scheme=state.hash_scheme,
        key_types=state.key_types,
    )
    # Few small numbers sort fast, and the writer puts each key group's rows into their order.
    order = np.argsort(groups.astype(np.uint16), kind="stable")
    keyed = table.add_column(0, KEY_GROUP, pa.array(groups, pa.int32())).take(pa.array(order))
    return write_grouped(keyed.to_batches(max_chunksize=target.options.row_group_rows), target)


def _refuse_null_keys(table: pa.Table, state: KeyedState) -> None:
    if state.hash_scheme == "flink-sql":
        return
    nulls = np.zeros(table.num_rows, bool)
    for name in state.key:
        for leaf in _leaves(table, name):
            nulls |= np.asarray(leaf.is_null())
    if nulls.any():
        raise null_key_error(state, int(nulls.sum()))


def _leaves(table: pa.Table, name: str) -> list[pa.Array]:
    chunks = table.column(name).combine_chunks()
    column = chunks if isinstance(chunks, pa.Array) else pa.concat_arrays(chunks.chunks)
    return leaf_columns(column)
