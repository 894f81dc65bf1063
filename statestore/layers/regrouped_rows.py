"""Rows at another max parallelism than the stored one: which rows to keep, and their key groups."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pyarrow as pa

from statestore.format.names import KEY_GROUP
from statestore.format.slices import KeptGroups
from statestore.format.state import KeyedState
from statestore.rows.key_group_runs import key_groups_of

__all__ = ["T", "rows_in_kept_groups"]


T = TypeVar("T", pa.RecordBatch, pa.Table)


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
