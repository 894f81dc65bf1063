"""The column ``key_group`` of rows, and the rows to keep at another max parallelism.

If a caller passes back rows of a restore, the store checks the column when the key groups are
computed, and does not store it again. At another max parallelism than the stored one, its values
are replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Field, Schema
from statestore.format.slices import KeptGroups
from statestore.format.state import KeyedState
from statestore.keys.arrow_types import arrow_type_text
from statestore.rows.key_group_runs import key_groups_of

T = TypeVar("T", pa.RecordBatch, pa.Table)


def with_key_group(names: Iterable[str], among: Iterable[str]) -> tuple[str, ...]:
    """Return some column names, and ``key_group`` if the rows have this column."""
    return (*names, KEY_GROUP) if KEY_GROUP in among else tuple(names)


def without_groups(schema: Schema) -> Schema:
    """Return the caller's columns, without ``key_group``."""
    return schema.select([name for name in schema.names if name != KEY_GROUP])


def with_groups(schema: Schema, among: Iterable[str]) -> Schema:
    """Return the columns of a state, and ``key_group`` if the rows have this column."""
    own = (Field(KEY_GROUP, "integer"),) if KEY_GROUP in among else ()
    return Schema((*schema.fields, *own))


def key_group_column(rows: pa.Table, state: KeyedState) -> pa.ChunkedArray | None:
    """Return the column ``key_group`` as integers, or None if the rows lack it."""
    if KEY_GROUP not in rows.schema.names:
        return None
    groups = rows.column(KEY_GROUP)
    if not (pa.types.is_integer(groups.type) or pa.types.is_null(groups.type)):
        raise InvalidArgumentError(
            f"the column {KEY_GROUP!r} of {state} has type {arrow_type_text(groups.type)}, but it "
            "is reserved for the key group of each row, which is an integer. Remove the column; it "
            "is not stored"
        )
    return groups.cast(pa.int64(), safe=False)


def check_groups(rows: pa.Table, groups: npt.NDArray[np.int32], state: KeyedState) -> None:
    """Refuse rows whose own column has another key group than their key; nulls are accepted.

    Raises InvalidArgumentError with the key of the first such row, and both key groups.
    """
    own_groups = key_group_column(rows, state)
    if own_groups is None:
        return
    other = pc.fill_null(pc.not_equal(own_groups, pa.array(groups, pa.int64())), False)
    index = pc.index(other, True).as_py()
    if index < 0:
        return
    [key] = rows.select(state.key).slice(index, 1).to_pylist()
    raise InvalidArgumentError(
        f"the row of {state} with the key {key} has {KEY_GROUP} "
        f"{own_groups[index].as_py()}, but the "
        f"key belongs to key group {groups[index]} of {state.max_parallelism}. This column is "
        "reserved for the store: it is checked and not stored. Remove it if it comes from "
        "another max parallelism or key, or has another meaning"
    )


def rows_in_kept_groups(rows: T, state: KeyedState, kept: KeptGroups | None) -> T:
    """Return the rows whose new key group is kept, with it as ``key_group``; all without ``kept``.

    For fewer key groups, the new key group is the stored one modulo their number; for more, the key
    is hashed again.
    """
    if kept is None:
        return rows
    if kept.max_parallelism < state.max_parallelism:
        groups = np.asarray(rows.column(KEY_GROUP)) % kept.max_parallelism
    else:
        groups = key_groups_of(rows, state, kept.max_parallelism)
    own = (groups >= kept.own.first) & (groups <= kept.own.last)
    index = rows.schema.get_field_index(KEY_GROUP)
    field = rows.schema.field(index)
    renumbered = rows.set_column(index, field, pa.array(groups, pa.int32()))
    return renumbered if own.all() else renumbered.filter(pa.array(own))
