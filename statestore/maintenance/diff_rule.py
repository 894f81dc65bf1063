"""Which differences between two rows count: all, or only some columns, amounts and rows.

Rows are always matched by their identity, and equal rows stay equal under every rule. So digests
still decide which key groups are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.format.manifest import Entry, KeyedEntry
from statestore.format.schema import Schema
from statestore.format.state import KeyedState
from statestore.restore.duck import copy_slices, duckdb, error_text, sandbox
from statestore.rows.column_types import arrow_schema
from statestore.rows.digests import Flags, Places
from statestore.rows.equality import equal_rows, equal_values

_NUMBER = "statestore_row"


@dataclass(frozen=True, kw_only=True)
class DiffRule:
    """The differences that count in a comparison; by default all of them.

    Attributes:
        ignore: Value columns that are not compared.
        tolerance: For columns of numbers, the largest difference that does not count.
        where: A condition in DuckDB's SQL. A row counts if it holds for the row of either side.

    Raises:
        InvalidArgumentError: For a tolerance that is negative or not a number.
    """

    ignore: tuple[str, ...] = ()
    tolerance: Mapping[str, float] = field(default_factory=dict)
    where: str | None = None

    def __post_init__(self) -> None:
        """Refuse tolerances without a meaning."""
        for name, amount in self.tolerance.items():
            if not amount >= 0:
                raise InvalidArgumentError(
                    f"the tolerance of column {name!r} must be 0 or more, not {amount}"
                )

    def check(self, states: Iterable[KeyedState]) -> None:
        """Refuse columns that no state has, that identify rows, or that are not numbers.

        Args:
            states: The states of both sides of the comparison.

        Raises:
            InvalidArgumentError: With the column and the reason.
        """
        states = tuple(states)
        for name in (*self.ignore, *self.tolerance):
            owners = [state for state in states if name in state.schema.names]
            if not owners:
                known = sorted({column for state in states for column in state.values})
                raise InvalidArgumentError(
                    f"no compared state has a column {name!r}; the columns are {', '.join(known)}"
                )
            for state in owners:
                if name in state.identity:
                    raise InvalidArgumentError(
                        f"column {name!r} identifies the rows of {state}: it is always compared"
                    )
                data_type = arrow_schema(state.schema).field(name).type
                if name in self.tolerance and not _is_number(data_type):
                    raise InvalidArgumentError(
                        f"column {name!r} of {state} is {data_type}: only numbers have a tolerance"
                    )

    @cached_property
    def _database(self) -> Any:
        connection = duckdb().connect()
        sandbox(connection)
        return connection


ALL = DiffRule()
"""The rule by which all differences count."""


def without_ignored(rule: DiffRule, schema: Schema) -> Schema:
    """Return the columns of a state that are compared."""
    return schema.select(name for name in schema.names if name not in rule.ignore)


def reduced(rule: DiffRule, entry: Entry) -> Entry:
    """Return a state without the columns that are not compared."""
    if not isinstance(entry, KeyedEntry):
        return entry
    state = replace(entry.state, schema=without_ignored(rule, entry.state.schema))
    return replace(entry, state=state)


def close_rows(rule: DiffRule, old: pa.Table, new: pa.Table) -> Flags:
    """Return which rows differ by no more than the tolerances from those at their position."""
    inexact = [name for name in old.column_names if name in rule.tolerance]
    close: Flags = equal_rows(old.drop_columns(inexact), new.drop_columns(inexact))
    for name in inexact:
        left, right = (rows.column(name).combine_chunks() for rows in (old, new))
        if left.type != right.type:  # without a common type no two numbers are equal
            close &= equal_rows(old.select([name]), new.select([name]))
            continue
        distance = pc.abs(pc.subtract(_exact(left), _exact(right))).cast(pa.float64())
        near = pc.fill_null(pc.less_equal(distance, rule.tolerance[name]), False)
        close &= np.asarray(near) | equal_values(left, right)
    return close


def _exact(column: pa.Array) -> pa.Array:
    """Return numbers in a type whose differences are exact, as far as the numbers are."""
    if pa.types.is_floating(column.type):
        return column.cast(pa.float64())
    if pa.types.is_integer(column.type):
        return column.cast(pa.decimal256(20, 0))
    return column.cast(pa.decimal256(column.type.precision + 1, column.type.scale))


def holds(rule: DiffRule, rows: pa.Table, state: KeyedState) -> Flags:
    """Return for which rows the condition holds; for all of them without a condition.

    Raises:
        InvalidArgumentError: If DuckDB cannot evaluate the condition.
        MissingDependencyError: If DuckDB is not installed.
    """
    if rule.where is None:
        return np.ones(rows.num_rows, np.bool_)
    numbered = rows.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
    batches = copy_slices(numbered.to_batches())
    rule._database.register("rows", pa.Table.from_batches(batches, numbered.schema))
    try:
        found = rule._database.sql(f"SELECT {_NUMBER} FROM rows WHERE ({rule.where}\n)")
        places: Places = found.fetchnumpy()[_NUMBER]
    except duckdb().Error as error:
        raise InvalidArgumentError(
            f"cannot evaluate {rule.where!r} for the rows of {state}: {error_text(error)}; "
            "restrict the comparison to the states that have the columns"
        ) from error
    flags = np.zeros(rows.num_rows, np.bool_)
    flags[places] = True
    return flags


def _is_number(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(data_type) or types.is_floating(data_type) or types.is_decimal(data_type)
    )
