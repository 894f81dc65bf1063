"""Check that a table fits a state of a compiled plan, and convert its rows to the state's columns.

All differences of columns are named before a row is read. A value that its column cannot hold is
named with its row while the rows are read, before anything of the state is visible.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.interop.flink.columns.part_columns import empty_key
from statestore.interop.flink_plans.layouts import (
    LAST_ACCESS,
    NO_KEY,
    POSITION,
    PlanColumn,
    PlanState,
)
from statestore.rows.fit_columns import fit_column

_TIME = "TIME_WITHOUT_TIME_ZONE"
_LENGTHS = ("CHAR", "VARCHAR", "BINARY", "VARBINARY")
_MICROS, _NANOS = 6, 9
_MILLIS = 3
_POSITIONS = pa.int64()


def refuse_other_columns(schema: pa.Schema, state: PlanState, table: str) -> None:
    """Raise SchemaMismatchError, which names each column that differs from the state's.

    Args:
        schema: the columns of the table.
        state: the state that the table is to become.
        table: the table's name, for the message.
    """
    differences = list(_differences(schema, state))
    if differences:
        raise SchemaMismatchError(
            f"{table} cannot become {state}: {'; '.join(differences)}. Select and cast its "
            "columns, for example with --sql; 'statestore flink plan' lists the columns"
        )


def _differences(schema: pa.Schema, state: PlanState) -> Iterator[str]:
    names = schema.names
    for column in state.table_columns:
        count = names.count(column.name)
        if count != 1:
            how = "is missing" if count == 0 else f"occurs {count} times"
            yield f"the column {column.name!r} ({column.type}) {how}"
        elif not _fits(schema.field(column.name).type, column):
            own = schema.field(column.name).type
            yield f"the column {column.name!r} is {own}, but the plan has {column.type}"
    known = {column.name for column in state.table_columns} | {*state.optional_columns}
    for name in dict.fromkeys(names):
        if name not in known:
            yield f"the column {name!r} is not in the plan"


def _fits(source: pa.DataType, column: PlanColumn) -> bool:
    """Return whether some values of a type can be values of a column."""
    if column.logical.root == _TIME:
        return bool(pa.types.is_time(source))
    try:
        fit_column(pa.chunked_array([], source), column.stored, name=column.name, nearest=False)
    except InvalidArgumentError:
        return False
    return True


def stored_schema(schema: pa.Schema, state: PlanState) -> pa.Schema:
    """Return the stored columns of a state that is made from a table."""
    fields = [pa.field(column.name, column.stored) for column in state.columns]
    if not state.key.fields:
        fields.insert(0, pa.field(NO_KEY, _no_key_type(state)))
    if state.has_lists:
        fields.append(pa.field(POSITION, _POSITIONS))
    if state.ttl_ms and LAST_ACCESS in schema.names:
        fields.append(schema.field(LAST_ACCESS))
    return pa.schema(fields)


def _no_key_type(state: PlanState) -> pa.DataType:
    return pa.bool_() if state.is_single else pa.int32()


def convert_rows(rows: pa.Table, state: PlanState, table: str, first_row: int) -> pa.Table:
    """Return rows of a table as rows of a state.

    Args:
        rows: rows of the table.
        state: the state.
        table: the table's name, for messages.
        first_row: the number of rows of the table before these.

    Returns:
        The rows with the columns of :func:`stored_schema`.

    Raises:
        InvalidArgumentError: for a value that its column cannot hold, with its row.
    """
    schema = stored_schema(rows.schema, state)
    columns = {}
    for column in state.columns:
        values = rows.column(column.copy_of or column.name)
        converted = _convert_column(values, column, table, first_row)
        _refuse_other_values(converted, column, table, first_row)
        columns[column.name] = converted
    if not state.key.fields:
        columns[NO_KEY] = pa.chunked_array([pa.repeat(empty_key(_no_key_type(state)), len(rows))])
    if state.has_lists:
        columns[POSITION] = _positions(rows, table, first_row)
    if LAST_ACCESS in schema.names:
        columns[LAST_ACCESS] = rows.column(LAST_ACCESS)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _convert_column(
    values: pa.ChunkedArray, column: PlanColumn, table: str, first_row: int
) -> pa.ChunkedArray:
    if column.logical.root == _TIME:  # the store has no type for it
        return values.cast(pa.time64("ns")).cast(pa.int64())
    return fit_column(
        values,
        column.stored,
        name=column.name,
        subject=table,
        nearest=False,
        first_row=first_row,
    )


def _positions(rows: pa.Table, table: str, first_row: int) -> pa.ChunkedArray:
    """Return the positions of rows with equal sort keys; 0 for all if there is no such column."""
    if POSITION not in rows.column_names:
        return pa.chunked_array([pa.repeat(pa.scalar(0, _POSITIONS), len(rows))])
    places = fit_column(
        rows.column(POSITION), _POSITIONS, name=POSITION, subject=table, first_row=first_row
    )
    _refuse(places.is_null(), POSITION, "is null", table, first_row)
    return places


def _refuse_other_values(
    values: pa.ChunkedArray, column: PlanColumn, table: str, first_row: int
) -> None:
    """Refuse values of the column's Arrow type that its SQL type does not have."""
    logical = column.logical
    if column.is_required:
        _refuse(
            values.is_null(),
            column.name,
            f"is null, but the plan has {column.type}",
            table,
            first_row,
        )
    if column.least is not None:
        wrong = pc.less(values, column.least)
        _refuse(wrong, column.name, f"is less than {column.least}", table, first_row)
    if logical.root in _LENGTHS and logical.precision < (1 << 31) - 1:
        lengths = (pc.utf8_length if pa.types.is_string(values.type) else pc.binary_length)(values)
        text = f"is longer than {column.type}"
        _refuse(pc.greater(lengths, logical.precision), column.name, text, table, first_row)
    step = _step(column)
    if step > 1:
        whole = values.cast(pa.int64())
        rest = pc.subtract(whole, pc.multiply(pc.divide(whole, step), step))
        text = f"has more digits of the second than {column.type}"
        _refuse(pc.not_equal(rest, 0), column.name, text, table, first_row)


def _step(column: PlanColumn) -> int:
    """Return the step of a time type in stored units; each value must be a multiple of it."""
    logical = column.logical
    if logical.root == _TIME:  # Flink has milliseconds of a TIME, whatever its precision
        return int(10 ** (_NANOS - min(logical.precision, _MILLIS)))
    if logical.root.startswith("TIMESTAMP"):
        return int(10 ** max(_MICROS - logical.precision, 0))
    return 1


def _refuse(wrong: pa.ChunkedArray, name: str, text: str, table: str, first_row: int) -> None:
    """Raise InvalidArgumentError for the first value that is wrong."""
    place = pc.index(wrong.fill_null(False), True).as_py()
    if place >= 0:
        raise InvalidArgumentError(
            f"row {first_row + place + 1} of {table} has a value in the column {name!r} that "
            f"{text}: correct the row"
        )
