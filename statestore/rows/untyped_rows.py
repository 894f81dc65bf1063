"""Rows without declared types as tables with the stored types, as far as these fit the values.

Dictionaries have no types, and pandas has no type for some stored values: it turns integers next to
a missing value into floats, and decimals into Python objects. Such columns keep the stored type if
each value stays equal. Otherwise they get the type of their values, if that is wider.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.names import KEY_GROUP
from statestore.format.schema import DataType, Schema, same_type, widens
from statestore.format.state import KeyedState
from statestore.rows.change_rows import width_of
from statestore.rows.column_types import (
    arrow_schema,
    arrow_type,
    for_each_column,
    schema_of_arrow,
    uuid_columns,
    with_uuids,
)
from statestore.rows.key_group_runs import with_groups
from statestore.rows.pandas_rows import (
    column_of_series,
    frame_columns,
    series_as_stored,
    table_of_pandas,
)
from statestore.rows.python_values import (
    column_names,
    column_of,
    guess_column,
    row_place,
    table_of_dicts,
)


@dataclass(frozen=True, eq=False)
class UntypedRows:
    """Rows whose types depend on the stored ones: a list of dictionaries, or a pandas DataFrame.

    ``subject`` is the name of the rows in messages.
    """

    values: Any
    subject: str

    @property
    def are_dicts(self) -> bool:
        """Whether the rows are dictionaries, and not a DataFrame."""
        return isinstance(self.values, list)

    def with_uuids(self, columns: Mapping[str, bool]) -> UntypedRows:
        """Return the rows with the UUIDs of these columns in their stored form."""
        if not self.are_dicts:
            return self
        return UntypedRows(with_uuids(self.values, columns), self.subject)

    def guessed(self) -> pa.Table:
        """Return the rows in the types of their values.

        Raises InvalidArgumentError for values without a common type, and for an index or column
        names that :func:`table_of_pandas` refuses.
        """
        if self.are_dicts:
            return table_of_dicts(self.values, None, subject=self.subject)
        return table_of_pandas(self.values, self.subject)

    def widening(self, stored: Schema, fixed: Collection[str]) -> pa.Table:
        """Return the rows in the stored types, or where they do not fit, in wider ones.

        Arguments and errors are those of :func:`table_like` and :func:`frame_like`.
        """
        convert = table_like if self.are_dicts else frame_like
        return convert(self.values, stored, fixed, subject=self.subject)

    def exact(self, state: KeyedState) -> pa.Table:
        """Return the rows in the state's types; dictionaries get all columns of the state.

        Raises InvalidArgumentError or SchemaMismatchError for values that do not fit.
        """
        if not self.are_dicts:
            return self.widening(state.schema, state.schema.names)
        used = {name for row in self.values for name in row}
        dicts = with_uuids(self.values, uuid_columns(state))
        return table_of_dicts(dicts, with_groups(state.schema, used), subject=self.subject)

    def changes(self, state: KeyedState) -> pa.Table:
        """Return the rows in the state's types, with the columns that occur in them.

        No dictionaries have all columns. Raises SchemaMismatchError for a name that the state
        lacks, and for a value that its column cannot hold.
        """
        if not self.are_dicts:
            return self.exact(state)
        rows = self.values
        used = {name for row in rows for name in row}
        names = [name for name in state.schema.names if name in used]
        is_known = used and used <= {*names, KEY_GROUP}
        schema = with_groups(state.schema.select(names) if is_known else state.schema, used)
        try:
            return table_of_dicts(
                with_uuids(rows, uuid_columns(state)), schema, subject=self.subject
            )
        except InvalidArgumentError as error:
            raise SchemaMismatchError(str(error)) from error
        except SchemaMismatchError as error:
            raise SchemaMismatchError(
                f"{error} (a full snapshot, with write_keyed(…), can change the columns)"
            ) from error

    def deletes(self, state: KeyedState, argument: str) -> list[pa.Table]:
        """Return deletes as tables, each of which names the same columns in all of its rows.

        Dictionaries may mix whole keys and single entries. In a DataFrame, the identity columns get
        the stored types, or a rounded key would delete another one. ``argument`` is the name of the
        deletes in messages. Raises the errors of :func:`width_of` and :meth:`changes`.
        """
        if not self.are_dicts:
            return [self.widening(state.schema.select(state.identity), state.identity)]
        rows = self.values
        if not rows:
            return [arrow_schema(state.schema.select(state.key)).empty_table()]
        of_width: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            width = width_of([*row], state, f"{row_place(index)} of {argument}")
            of_width.setdefault(width, []).append(index)
        return [
            self._delete_table(places, state.identity[:width], state)
            for width, places in of_width.items()
        ]

    def keys(self, state: KeyedState) -> pa.Table:
        """Return keys in the state's types; dictionaries get the key columns that occur in them.

        No dictionaries have all key columns. Raises InvalidArgumentError for values that do not
        fit: a rounded key would find another key's rows.
        """
        if not self.are_dicts:
            try:
                return self.widening(state.schema.select(state.key), state.key)
            except SchemaMismatchError as error:
                raise InvalidArgumentError(str(error)) from error
        rows = self.values
        names = [name for name in state.key if not rows or any(name in row for row in rows)]
        keys = [{name: row.get(name) for name in names} for row in rows]
        return table_of_dicts(
            with_uuids(keys, uuid_columns(state)), state.schema.select(names), subject=self.subject
        )

    def _delete_table(
        self, places: Sequence[int], names: Sequence[str], state: KeyedState
    ) -> pa.Table:
        rows = [self.values[index] for index in places]
        wanted = with_groups(state.schema.select(names), {name for row in rows for name in row})
        named = [{name: row.get(name) for name in wanted.names} for row in rows]
        return table_of_dicts(
            with_uuids(named, uuid_columns(state)),
            wanted,
            subject=self.subject,
            place=lambda index: row_place(places[index]),
        )


def table_like(
    rows: Sequence[Mapping[str, Any]], stored: Schema, fixed: Collection[str], *, subject: str
) -> pa.Table:
    """Return dictionaries as a table of all names that occur in them.

    A stored column keeps its type if it can hold every value. Otherwise it gets the type of its
    values, if that is wider.

    Args:
        rows: The dictionaries.
        stored: The stored columns.
        fixed: The stored columns whose type cannot change.
        subject: The name of the rows in messages.

    Returns:
        The table.

    Raises:
        SchemaMismatchError: For values that fit neither the stored type nor a wider one.
        InvalidArgumentError: For values of a new column without a common type.
    """

    def like_stored(name: str) -> pa.Array:
        values = [row.get(name) for row in rows]
        return _column_like(values, name, stored, fixed, subject)

    names = column_names(rows, subject)
    with mismatch_of_values():
        return pa.table(for_each_column(names, like_stored, subject), names=names)


def frame_like(frame: Any, stored: Schema, fixed: Collection[str], *, subject: str) -> pa.Table:
    """Return a pandas DataFrame as a table.

    A column with a type keeps it, if it is the stored type or a wider one. Any other column, also
    one of Python objects, keeps the stored type if it can hold every value. So does a column of
    floats that is stored with integers.

    Args:
        frame: The DataFrame.
        stored: The stored columns.
        fixed: The stored columns whose type cannot change.
        subject: The name of the rows in messages.

    Returns:
        The table, with the columns of the DataFrame.

    Raises:
        SchemaMismatchError: For values that fit neither the stored type nor a wider one.
        InvalidArgumentError: For an index or column names that :func:`table_of_pandas` refuses.
    """
    named = frame_columns(frame, subject)
    with mismatch_of_values():
        columns = for_each_column(
            named,
            lambda column: _series_like(column[1], column[0], stored, fixed, subject),
            subject,
        )
    return pa.Table.from_arrays(columns, names=[name for name, _ in named])


@contextmanager
def mismatch_of_values() -> Iterator[None]:
    """Convert the error of a block for values that do not fit to a SchemaMismatchError."""
    try:
        yield
    except InvalidArgumentError as error:
        raise SchemaMismatchError(str(error)) from error


def _column_like(
    values: list[Any], name: str, stored: Schema, fixed: Collection[str], subject: str
) -> pa.Array:
    if name not in stored.names:
        return guess_column(values, name=name, subject=subject)
    stored_type = stored.type_of(name)
    try:
        return column_of(values, arrow_type(stored_type), name=name, subject=subject)
    except InvalidArgumentError as error:
        try:
            column = guess_column(values, name=name, subject=subject)
        except InvalidArgumentError:
            raise error from None
        if not _may_become(column.type, stored_type, is_fixed=name in fixed):
            raise
        return column


def _series_like(
    series: Any, name: str, stored: Schema, fixed: Collection[str], subject: str
) -> pa.Array | pa.ChunkedArray:
    if name not in stored.names:
        return column_of_series(series, name, subject)
    stored_type = stored.type_of(name)
    field = pa.field(name, arrow_type(stored_type))
    own = _own_column(series, name, subject)
    if own is None or not _may_become(own.type, stored_type, is_fixed=name in fixed):
        return series_as_stored(series, field, subject, nearest=False)
    if not _is_untyped(series, own.type, field.type):
        return own
    try:
        return series_as_stored(series, field, subject, nearest=False)
    except InvalidArgumentError:
        return own


def _is_untyped(series: Any, own: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether pandas may have a series in another type because it lacks the stored one."""
    is_object = isinstance(series.dtype, np.dtype) and series.dtype.kind == "O"
    return is_object or (pa.types.is_floating(own) and pa.types.is_integer(stored))


def _own_column(series: Any, name: str, subject: str) -> pa.Array | pa.ChunkedArray | None:
    """Return a column in its own type; None if it has none, as for the pairs of a map."""
    try:
        return column_of_series(series, name, subject)
    except InvalidArgumentError:
        return None


def _may_become(data_type: pa.DataType, stored: DataType, *, is_fixed: bool) -> bool:
    """Return whether a stored column may have an Arrow type from now on."""
    try:
        [field] = schema_of_arrow(pa.schema([("column", data_type)])).fields
    except InvalidArgumentError:  # it cannot be stored
        return False
    return same_type(stored, field.type) if is_fixed else widens(stored, field.type)
