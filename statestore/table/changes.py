"""Changes of a keyed state as rows: what comes, and marks of what goes, checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import DuplicateKeyError, InvalidArgumentError
from statestore.model.changes import MARK, delete_widths
from statestore.model.paths import KEY_GROUP
from statestore.model.state import KeyedState
from statestore.table.equality import equal_rows
from statestore.table.given import is_dicts
from statestore.table.matching import found
from statestore.table.runs import in_order
from statestore.table.types import arrow_schema, table_of_dicts

__all__ = ["change_table", "consistent", "stored_again", "width_of"]


def width_of(names: Sequence[str], state: KeyedState) -> int:
    """Return how many columns of the identity a delete with these columns names.

    Columns of values play no part. InvalidArgumentError unless it is the key, the key with its
    namespace, or all.
    """
    for width in reversed(delete_widths(state)):
        wanted = state.identity[:width]
        if all(name in names for name in wanted):
            rest = [name for name in state.identity[width:] if name in names]
            if rest:
                break
            return width
    raise InvalidArgumentError(
        f"a delete of {state} names the columns ({', '.join(names)}); give its key "
        f"({', '.join(state.key)}), or all of ({', '.join(state.identity)})"
    )


def with_types(rows: Any, state: KeyedState, names: Sequence[str]) -> Any:
    """Return a list of dictionaries as a table; other rows as they are.

    A column without a value has the type that the state is stored with, and so have ``names``, the
    columns of no rows at all. InvalidArgumentError for values without a common type.
    """
    if not is_dicts(rows):
        return rows
    stored = arrow_schema(state.schema)
    if not any(rows):
        return pa.schema([stored.field(name) for name in names]).empty_table()
    table = table_of_dicts(rows, None)
    for at, field in enumerate(table.schema):
        if pa.types.is_null(field.type) and field.name in stored.names:
            typed = stored.field(field.name)
            table = table.set_column(at, typed, table.column(at).cast(typed.type))
    return table


def change_table(
    given: Iterable[tuple[pa.Table, int]], state: KeyedState, changes: KeyedState
) -> pa.Table:
    """Return rows with their marks as changes: with 0 rows of the state, else what goes.

    InvalidArgumentError when a column cannot be stored.
    """
    return pa.concat_tables([_marked(rows, mark, state, changes) for rows, mark in given])


def _marked(rows: pa.Table, mark: int, state: KeyedState, changes: KeyedState) -> pa.Table:
    names = state.schema.names if mark == 0 else state.identity[: abs(mark)]
    schema = arrow_schema(changes.schema)
    columns = []
    for field in schema:
        if field.name == MARK:
            columns.append(pa.array(np.full(rows.num_rows, mark, np.int64)))
        elif field.name in names:
            columns.append(_stored(rows.column(field.name), field, state))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.table(columns, schema=schema)


def _stored(column: pa.ChunkedArray, field: pa.Field, state: KeyedState) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidArgumentError(
            f"the column {field.name!r} of changes of {state} cannot be stored as {field.type}: "
            f"{error}"
        ) from error


def consistent(runs: Iterable[pa.Table], changes: KeyedState) -> Iterator[pa.Table]:
    """Pass runs of changes on, each delete once; a negative mark is a delete that rows of the same
    key may follow.

    Raises DuplicateKeyError for rows that come and are deleted in one checkpoint.
    """
    for run in runs:
        marks = run.column(MARK)
        comes, goes = run.filter(pc.equal(marks, 0)), run.filter(pc.greater(marks, 0))
        _refuse_both(comes, goes, changes)
        every = run.filter(pc.not_equal(marks, 0))
        if not every.num_rows:
            yield run
            continue
        at = every.column_names.index(MARK)
        every = every.set_column(at, MARK, pc.abs(every.column(MARK)))
        rows = pa.concat_tables([comes, _each_once(every, changes)])
        order = np.argsort(np.asarray(rows.column(KEY_GROUP)), kind="stable")
        yield rows.take(pa.array(order))


def stored_again(rows: pa.Table) -> pa.Table:
    """Return stored changes as :func:`consistent` takes them once more: each delete may have rows
    of its key beside it, whoever gave them.
    """
    at = rows.column_names.index(MARK)
    return rows.set_column(at, MARK, pc.negate(rows.column(MARK)))


def _refuse_both(comes: pa.Table, goes: pa.Table, changes: KeyedState) -> None:
    marks = np.asarray(goes.column(MARK))
    for width in np.unique(marks).tolist():
        names = list(changes.identity[:width])
        deleted = goes.filter(pa.array(marks == width)).select(names)
        both, _ = found(comes.select(names), deleted)
        if len(both):
            entry = comes.select(changes.identity[:-1]).slice(int(both[0]), 1).to_pylist()[0]
            raise DuplicateKeyError(
                f"the entry {entry} of {changes} comes and is deleted in one checkpoint; give it "
                "to one of upserts and deletes. To write a key anew, without what it had, name it "
                "in cleared"
            )


def _each_once(deletes: pa.Table, changes: KeyedState) -> pa.Table:
    rows = in_order(deletes, changes)
    names = [KEY_GROUP, *changes.identity]
    last = rows.num_rows - 1
    same = equal_rows(rows.slice(0, last).select(names), rows.slice(1).select(names))
    return rows.filter(pa.array(np.concatenate(([True], ~same))))
