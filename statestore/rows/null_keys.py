"""Finds rows with a null key, which have no key group."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import NullKeyError
from statestore.format.names import MARK
from statestore.format.state import KeyedState
from statestore.keys.key_types import fields_may_be_null
from statestore.rows.equality import leaf_columns
from statestore.rows.lossless_cast import shorten
from statestore.rows.python_values import display_rows

_MOST_EXAMPLES = 3


class NullKeys:
    """Counts the rows of a state that have a null key, and keeps the first ones as examples."""

    def __init__(self, state: KeyedState) -> None:
        """Begin without rows."""
        self._state = state
        self._examples: list[str] = []
        self.rows = 0

    @property
    def examples(self) -> tuple[str, ...]:
        """The first rows with a null key, as text."""
        return tuple(self._examples)

    def add(self, rows: pa.RecordBatch | pa.Table) -> bool:
        """Look at more rows; return whether any row so far has a null key."""
        for batch in [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches():
            self.without(batch)
        return self.rows > 0

    def without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Look at more rows; return those that have a key."""
        is_null = _find_null_keys(batch, self._state)
        if is_null is None:
            return batch
        places = np.flatnonzero(is_null)
        self.rows += len(places)
        wanted = places[: _MOST_EXAMPLES - len(self._examples)]
        names = [name for name in self._state.schema.names if name != MARK]
        shown = batch.select(names).take(pa.array(wanted))
        self._examples += [shorten(str(row)) for row in display_rows(shown)]
        return batch.filter(pa.array(~is_null))

    def add_errors(self, errors: Iterable[Exception]) -> bool:
        """Add the null keys that other processes found; return whether any row has a null key."""
        for error in errors:
            if isinstance(error, NullKeyError):
                self.rows += error.rows
                self._examples += islice(error.examples, _MOST_EXAMPLES - len(self._examples))
        return self.rows > 0

    def refuse(self) -> None:
        """Raise NullKeyError, with the number of rows and examples, if a row has a null key."""
        if self.rows:
            raise self.error()

    def error(self) -> NullKeyError:
        """Return the error for the rows with a null key."""
        state = self._state
        affected = f"row of {state} has" if self.rows == 1 else f"rows of {state} have"
        wanted = " AND ".join(f"{name} IS NOT NULL" for name in state.key)
        return NullKeyError(
            f"{self.rows} {affected} a null key ({', '.join(state.key)}), which has no key group, "
            f"such as {'; '.join(self._examples)}. Remove these rows, for example from a DataFrame "
            f"with df.where('{wanted}')",
            self.rows,
            self._examples,
        )


def null_keys(batch: pa.RecordBatch, state: KeyedState) -> int:
    """Return the number of rows with a null in a key column, unless null is a valid key."""
    is_null = _find_null_keys(batch, state)
    return 0 if is_null is None else int(is_null.sum())


def _find_null_keys(batch: pa.RecordBatch, state: KeyedState) -> npt.NDArray[np.bool_] | None:
    """Return which rows have a null key, None if no row has one."""
    if state.hash_scheme == "flink-sql":  # in this scheme NULL is an ordinary key
        return None
    leaves = []
    for name, key_type in zip(state.key, state.key_types, strict=True):
        column = batch.column(name)
        leaves += [column] if fields_may_be_null(key_type) else leaf_columns(column)
    if not any(leaf.null_count for leaf in leaves):
        return None
    any_null = np.zeros(batch.num_rows, bool)
    for leaf in leaves:
        any_null |= np.asarray(leaf.is_null())
    return any_null
