"""Python values into Arrow columns, and back: a value goes in only if it comes out equal.

The one way in for dictionaries, lists and scalars, whoever gives them: rows, elements, keys,
conditions. :mod:`statestore.table.exact` says which values a type has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

import pyarrow as pa

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.schema import Schema
from statestore.table.exact import UnfitError, exactly
from statestore.table.guessing import guessed_kind
from statestore.table.types import arrow_schema

__all__ = [
    "ROWS",
    "column_of",
    "dictionaries",
    "guessed_column",
    "row_place",
    "shown",
    "table_like",
    "table_of_dicts",
]

ROWS = "the rows"
"""How messages name rows of which nothing else is known."""

Place = Callable[[int], str]
"""How messages name the value at a place of a column."""

# Exactly these go in as they are: Arrow looks at their bounds, and there is nothing to lose.
_PLAIN: dict[pa.DataType, frozenset[type]] = {
    pa.string(): frozenset({str}),
    pa.binary(): frozenset({bytes}),
    pa.bool_(): frozenset({bool}),
    pa.int8(): frozenset({int}),
    pa.int16(): frozenset({int}),
    pa.int32(): frozenset({int}),
    pa.int64(): frozenset({int}),
    pa.float64(): frozenset({float}),
    pa.date32(): frozenset({date}),
}
_ARROW_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError)


def row_place(at: int) -> str:
    """Return how messages name a row, counted from 0."""
    return f"row {at}"


def column_of(
    values: Sequence[Any],
    kind: pa.DataType,
    *,
    name: str,
    subject: str = ROWS,
    place: Place = row_place,
) -> pa.Array:
    """Return values as a column of a stored type, in which each comes out equal.

    InvalidArgumentError names ``subject``, the column and what is within it, the place, and the
    first value that does not.
    """
    found = _plain_column(values, kind)
    if found is not None:
        return found
    convert = exactly(kind)
    converted = []
    for at, value in enumerate(values):
        try:
            converted.append(convert(value))
        except UnfitError as error:
            raise InvalidArgumentError(
                f"{place(at)} of {subject} has {error.value!r:.80} in the column "
                f"{name + error.path!r}, which holds {error.kind}: {error.reason}"
            ) from None
    try:
        return pa.array(converted, kind)
    except _ARROW_ERRORS as error:
        raise InvalidArgumentError(
            f"the values of {name!r} of {subject} are none of {kind}: {error}"
        ) from error


def _plain_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array | None:
    """Return values that are of the type's own in Python, None if one of them is not."""
    if not {*map(type, values)} - {type(None)} <= _PLAIN.get(kind, frozenset()):
        return None
    try:
        return pa.array(values, kind)
    except _ARROW_ERRORS:
        return None


def guessed_column(
    values: Sequence[Any], *, name: str, subject: str = ROWS, place: Place = row_place
) -> pa.Array:
    """Return values as a column of their one type, in which each comes out equal.

    InvalidArgumentError names ``subject``, the column, the place and the value.
    """
    try:
        kind = guessed_kind(values)
    except UnfitError as error:
        at = bisect_left(range(len(values)), True, key=lambda at: not _is_alike(values[: at + 1]))
        raise InvalidArgumentError(
            f"the values of {name!r} do not form a column of one type: {place(at)} of {subject} "
            f"has {error.value!r:.80} in {name + error.path!r}, beside {error.kind}: {error.reason}"
        ) from None
    try:
        return column_of(values, kind, name=name, subject=subject, place=place)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"the values of {name!r} do not form a column of one type: {error}"
        ) from error


def _is_alike(values: Sequence[Any]) -> bool:
    try:
        guessed_kind(values)
    except UnfitError:
        return False
    return True


def table_of_dicts(
    rows: Sequence[Mapping[str, Any]],
    schema: Schema | None,
    *,
    subject: str = ROWS,
    place: Place = row_place,
) -> pa.Table:
    """Return dictionaries as a table: of ``schema``, or of every name that one of them has, with
    the type that Arrow sees in the values. A name that a dictionary lacks is null there.

    Raises SchemaMismatchError for a name that ``schema`` lacks, and InvalidArgumentError for a
    value that does not come out equal, or values without a common type.
    """
    names = _names(rows, subject)
    if schema is None:
        columns = [
            guessed_column([row.get(name) for row in rows], name=name, subject=subject, place=place)
            for name in names
        ]
        return pa.table(columns, names=names)
    for name in names:
        if name not in schema.names:
            raise SchemaMismatchError(
                f"{subject} has a value of {name!r}, and the state was stored with the columns "
                f"({schema}); leave it out, or use a new state name"
            )
    stored = arrow_schema(schema)
    columns = [
        column_of(
            [row.get(field.name) for row in rows],
            field.type,
            name=field.name,
            subject=subject,
            place=place,
        )
        for field in stored
    ]
    return pa.table(columns, schema=stored)


def table_like(rows: Sequence[Mapping[str, Any]], stored: Schema, *, subject: str) -> pa.Table:
    """Return dictionaries as a table of every name that one of them has: a column that is stored
    keeps its type where it holds every value, each other one has the type of its values.

    Raises InvalidArgumentError for values without a common type.
    """
    names = _names(rows, subject)
    columns = [
        _column_like([row.get(name) for row in rows], name, stored, subject) for name in names
    ]
    return pa.table(columns, names=names)


def _names(rows: Sequence[Mapping[str, Any]], subject: str) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"the names of columns are strings, in {subject} too")
    return names


def _column_like(values: list[Any], name: str, stored: Schema, subject: str) -> pa.Array:
    if name in stored.names:
        kind = arrow_schema(stored.select([name])).field(0).type
        with suppress(InvalidArgumentError):  # what is new here has a type of its own
            return column_of(values, kind, name=name, subject=subject)
    return guessed_column(values, name=name, subject=subject)


def dictionaries(rows: pa.Table | pa.RecordBatch, subject: str = ROWS) -> list[dict[str, Any]]:
    """Return rows as dictionaries.

    InvalidArgumentError names the column with a time that Python has not, outside the years 1 to
    9999.
    """
    try:
        found: list[dict[str, Any]] = rows.to_pylist()
    except (OverflowError, ValueError) as error:
        raise InvalidArgumentError(
            f"{subject} has a time in {_unreadable(rows)!r} that Python's date and datetime cannot "
            "hold, which end at the years 1 and 9999; read these rows as Arrow: subtask(i), "
            "keys(…) or query(…)"
        ) from error
    return found


def shown(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as dictionaries for somebody to look at; see :func:`shown_values`."""
    columns = [shown_values(column) for column in rows.columns]
    if not columns:
        return [{} for _ in range(rows.num_rows)]
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def shown_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column for somebody to look at: all of its times are text when Python
    lacks one of them.
    """
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        found = column.cast(_with_text(column.type)).to_pylist()
    return found


def _with_text(kind: pa.DataType) -> pa.DataType:
    """Return a type with text in the place of times."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([(field.name, _with_text(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_with_text(kind.key_type), _with_text(kind.item_type))
    if types.is_list(kind):
        return pa.list_(_with_text(kind.value_type))
    return pa.string() if types.is_temporal(kind) else kind


def _unreadable(rows: pa.Table | pa.RecordBatch) -> str:
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            column.to_pylist()
        except (OverflowError, ValueError):
            return str(name)
    raise AssertionError("every column can be read alone")
