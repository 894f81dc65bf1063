"""The store's own column among rows that a caller gives back: the key group of each, as a restore
told it. It is checked where the key groups are computed, and not stored again.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState

__all__ = ["beside", "check_groups", "given_groups", "with_groups", "without_groups"]


def beside(names: Iterable[str], among: Iterable[str]) -> tuple[str, ...]:
    """Return some columns, and the store's own if the rows have it."""
    return (*names, KEY_GROUP) if KEY_GROUP in among else tuple(names)


def without_groups(schema: Schema) -> Schema:
    """Return the columns that are the caller's."""
    return schema.select(name for name in schema.names if name != KEY_GROUP)


def with_groups(schema: Schema, among: Iterable[str]) -> Schema:
    """Return the columns of a state, and the store's own if the rows have it."""
    own = (Field(KEY_GROUP, "integer"),) if KEY_GROUP in among else ()
    return Schema((*schema.fields, *own))


def given_groups(rows: pa.Table, state: KeyedState) -> pa.ChunkedArray | None:
    """Return the store's own column as whole numbers, None where the rows have none."""
    if KEY_GROUP not in rows.schema.names:
        return None
    given = rows.column(KEY_GROUP)
    if not (pa.types.is_integer(given.type) or pa.types.is_null(given.type)):
        raise InvalidArgumentError(
            f"the column {KEY_GROUP!r} of {state} holds {given.type}: it is the store's own, the "
            "key group of each row, which is a whole number. Leave it out; it is not stored"
        )
    return given.cast(pa.int64(), safe=False)


def check_groups(rows: pa.Table, groups: npt.NDArray[np.int32], state: KeyedState) -> None:
    """Refuse rows whose own column says another key group than their key has; nulls say none.

    InvalidArgumentError names the first such row's key, and both.
    """
    given = given_groups(rows, state)
    if given is None:
        return
    other = pc.fill_null(pc.not_equal(given, pa.array(groups, pa.int64())), False)
    at = pc.index(other, True).as_py()
    if at < 0:
        return
    [key] = rows.select(state.key).slice(at, 1).to_pylist()
    raise InvalidArgumentError(
        f"the row of {state} with the key {key} says {KEY_GROUP} {given[at].as_py()}, and that key "
        f"is in key group {groups[at]} of {state.max_parallelism}. The column is the store's own: "
        "it is checked and not stored. Leave it out, if it is of rows of another max parallelism "
        "or key, or of your own making"
    )
