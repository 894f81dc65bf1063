"""Rows of another max parallelism than the stored one: which are kept, and their new key groups."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pyarrow as pa

from statestore.format.names import KEY_GROUP
from statestore.format.slices import KeptGroups
from statestore.format.state import KeyedState
from statestore.keys.arrow import key_groups

__all__ = ["group_of_key", "kept_rows"]

T = TypeVar("T", pa.RecordBatch, pa.Table)


def kept_rows(rows: T, state: KeyedState, kept: KeptGroups | None) -> T:
    """Return the rows whose new key group is kept, with it as ``key_group``; all without ``kept``.

    Of fewer key groups the new one is what is left of the stored one; of more, the key is hashed.
    """
    if kept is None:
        return rows
    if kept.max_parallelism < state.max_parallelism:
        groups = np.asarray(rows.column(KEY_GROUP)) % kept.max_parallelism
    else:
        groups = key_groups(
            [rows.column(name) for name in state.key],
            max_parallelism=kept.max_parallelism,
            hash_scheme=state.hash_scheme,
            key_types=state.key_types,
        )
    own = (groups >= kept.own.first) & (groups <= kept.own.last)
    at = rows.schema.get_field_index(KEY_GROUP)
    field = rows.schema.field(at)
    renumbered = rows.set_column(at, field, pa.array(groups, pa.int32()))
    return renumbered if own.all() else renumbered.filter(pa.array(own))


def group_of_key(state: KeyedState, key: pa.RecordBatch, max_parallelism: int) -> int:
    """Return the key group of a key, one row of the state's key columns."""
    groups = key_groups(
        key.columns,
        max_parallelism=max_parallelism,
        hash_scheme=state.hash_scheme,
        key_types=state.key_types,
    )
    return int(groups[0])
