"""Converts Python values to Arrow columns, and back; each value must stay equal.

All dictionaries, lists and scalars are converted here: rows, elements, keys and conditions.
:mod:`statestore.rows.lossless_cast` defines which values fit a type.

A column without a declared type gets one type, and no mixture. Integers become long. Integers mixed
with fractions become double or decimal, if they stay equal. Dictionaries become structs with the
names of all dictionaries; a map has to be declared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.schema import Schema
from statestore.keys.arrow_types import arrow_type_text
from statestore.rows.column_types import arrow_schema, for_each_column
from statestore.rows.lossless_cast import (
    UnfitError,
    brief_text,
    exact_converter,
    is_list,
    is_missing,
    time_text,
    unwrap_numpy,
)

ROWS = "the rows"
"""The name of rows in messages if nothing else is known about them."""

Place = Callable[[int], str]
"""Returns the name of a column's value in messages, by its position."""

# Values of exactly these types need no conversion: Arrow checks their bounds, without any loss.
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


def row_place(index: int) -> str:
    """Return the name of a row in messages, counted from 0."""
    return f"row {index}"


def column_of(
    values: Sequence[Any],
    data_type: pa.DataType,
    *,
    name: str,
    subject: str = ROWS,
    place: Place = row_place,
) -> pa.Array:
    """Return values as a column of a stored type, in which each stays equal.

    Raises InvalidArgumentError for the first value that would not; it names ``subject``, the column
    and the path within it, the position, and the value.
    """
    plain = _plain_column(values, data_type)
    if plain is not None:
        return plain
    convert = exact_converter(data_type)
    converted = []
    for index, value in enumerate(values):
        try:
            converted.append(convert(value))
        except UnfitError as error:
            raise InvalidArgumentError(
                f"{place(index)} of {subject} has {brief_text(error.value)} in the column "
                f"{name + error.path!r} of type {error.type_text}: {error.reason}"
            ) from None
    try:
        return pa.array(converted, data_type)
    except _ARROW_ERRORS as error:
        raise InvalidArgumentError(
            f"the values of {name!r} of {subject} do not fit type {arrow_type_text(data_type)}: "
            f"{error}"
        ) from error


def _plain_column(values: Sequence[Any], data_type: pa.DataType) -> pa.Array | None:
    """Return values that have the type's own Python type; None if one of them does not."""
    if not {*map(type, values)} - {type(None)} <= _PLAIN.get(data_type, frozenset()):
        return None
    try:
        return pa.array(values, data_type)
    except _ARROW_ERRORS:
        return None


def guess_column(
    values: Sequence[Any], *, name: str, subject: str = ROWS, place: Place = row_place
) -> pa.Array:
    """Return values as a column of their common type, in which each stays equal.

    Raises InvalidArgumentError, which names ``subject``, the column, the position and the value.
    """
    try:
        data_type = guess_type(values)
    except UnfitError as error:
        index = bisect_left(
            range(len(values)), True, key=lambda position: not _is_alike(values[: position + 1])
        )
        raise InvalidArgumentError(
            f"the values of {name!r} do not have one type: {place(index)} of {subject} has "
            f"{brief_text(error.value)} in {name + error.path!r}, where other values are "
            f"{error.type_text}: {error.reason}"
        ) from None
    return column_of(values, data_type, name=name, subject=subject, place=place)


def _is_alike(values: Sequence[Any]) -> bool:
    try:
        guess_type(values)
    except UnfitError:
        return False
    return True


def is_dicts(rows: Any) -> bool:
    """Return whether rows are a list of dictionaries."""
    return isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows)


def table_of_dicts(
    rows: Sequence[Mapping[str, Any]],
    schema: Schema | None,
    *,
    subject: str = ROWS,
    place: Place = row_place,
) -> pa.Table:
    """Return dictionaries as a table with ``schema``, or with all names and their guessed types.

    A name that a dictionary lacks is null there. Raises SchemaMismatchError for a name that
    ``schema`` lacks, and InvalidArgumentError for a value that would not stay equal, or values
    without a common type.
    """
    names = column_names(rows, subject)

    def guessed(name: str) -> pa.Array:
        values = [row.get(name) for row in rows]
        return guess_column(values, name=name, subject=subject, place=place)

    def as_stored(field: pa.Field) -> pa.Array:
        values = [row.get(field.name) for row in rows]
        return column_of(values, field.type, name=field.name, subject=subject, place=place)

    if schema is None:
        return pa.table(for_each_column(names, guessed, subject), names=names)
    _refuse_unknown_names(rows, names, schema, subject, place)
    stored = arrow_schema(schema)
    return pa.table(for_each_column(stored, as_stored, subject), schema=stored)


def _refuse_unknown_names(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    schema: Schema,
    subject: str,
    place: Place,
) -> None:
    unknown = [name for name in names if name not in schema.names]
    if not unknown:
        return
    index = next(index for index, row in enumerate(rows) if unknown[0] in row)
    near = [name for name in schema.names if name.lower() == unknown[0].lower()]
    near = near or get_close_matches(unknown[0], schema.names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "leave it out"
    others = f", and {', '.join(map(repr, unknown[1:]))}" if unknown[1:] else ""
    raise SchemaMismatchError(
        f"{place(index)} of {subject} has a value for {unknown[0]!r}{others}, but its columns are "
        f"({schema}); {hint}"
    )


def column_names(rows: Sequence[Mapping[str, Any]], subject: str = ROWS) -> list[str]:
    """Return all names in dictionaries, in order. Raises InvalidArgumentError for another key."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        if not is_name(name):
            raise InvalidArgumentError(
                f"a column name of {subject} is not a string of valid Unicode: {name!r}; rename "
                "the column"
            )
    return names


def rows_to_dicts(rows: pa.Table | pa.RecordBatch, subject: str = ROWS) -> list[dict[str, Any]]:
    """Return rows as dictionaries.

    Raises InvalidArgumentError, which names the column, for a time outside the years 1 to 9999,
    which Python cannot hold.
    """
    try:
        items: list[dict[str, Any]] = rows.to_pylist()
    except (OverflowError, ValueError) as error:
        raise InvalidArgumentError(
            f"{subject} has a timestamp in {_undecodable_column(rows)!r} outside the "
            "years 1 to 9999, "
            "which Python's date and datetime cannot represent; read these rows as Arrow: "
            "subtask(i), keys(…) or query(…)"
        ) from error
    return items


def display_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as dictionaries for display; see :func:`display_values`."""
    columns = [display_values(column) for column in rows.columns]
    if not columns:
        return [{} for _ in range(rows.num_rows)]
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def display_values(column: pa.Array | pa.ChunkedArray, *, of_duckdb: bool = False) -> list[Any]:
    """Return the values of a column for display.

    If Python cannot hold one of its times, all of its times are text. They are in ISO 8601 in the
    years 1 to 9999. Other years have DuckDB's format, such as ``290309-12-22 (BC) 00:00:00``. Times
    of day are always text.

    Args:
        column: The column.
        of_duckdb: Whether DuckDB made it. Its greatest dates and timestamps are ``infinity``.
    """
    if not _has_times_beyond_python(column.type):
        with suppress(OverflowError, ValueError):  # a date or timestamp that Python lacks
            values: list[Any] = column.to_pylist()
            return values
    numbers = column.cast(times_as_integers(column.type)).to_pylist()
    return [_times_as_text(value, column.type, of_duckdb) for value in numbers]


def _has_times_beyond_python(data_type: pa.DataType) -> bool:
    """Return whether Python may change a value of a type without an error.

    Python turns 24:00 into 00:00. Without pandas, it has no nanoseconds.
    """
    types = pa.types
    if types.is_time(data_type) or (types.is_timestamp(data_type) and data_type.unit == "ns"):
        return True
    return any(
        _has_times_beyond_python(data_type.field(index).type)
        for index in range(data_type.num_fields)
    )


def times_as_integers(data_type: pa.DataType) -> pa.DataType:
    """Return a type in which times are replaced by the integers that Arrow stores for them."""
    types = pa.types
    if types.is_struct(data_type):
        return pa.struct(
            [pa.field(field.name, times_as_integers(field.type)) for field in data_type]
        )
    if types.is_map(data_type):
        return pa.map_(
            times_as_integers(data_type.key_type), times_as_integers(data_type.item_type)
        )
    if types.is_fixed_size_list(data_type):
        return pa.list_(times_as_integers(data_type.value_type), data_type.list_size)
    if types.is_list(data_type):
        return pa.list_(times_as_integers(data_type.value_type))
    if types.is_temporal(data_type):
        return pa.int32() if data_type.bit_width == 32 else pa.int64()
    return data_type


def _times_as_text(value: Any, data_type: pa.DataType, of_duckdb: bool) -> Any:
    """Return a value with its times, which are integers here, as text."""
    types = pa.types
    if value is None:
        return None
    if types.is_struct(data_type):
        return {
            field.name: _times_as_text(value[field.name], field.type, of_duckdb)
            for field in data_type
        }
    if types.is_map(data_type):
        pair = (data_type.key_type, data_type.item_type)
        return [
            tuple(_times_as_text(*part, of_duckdb) for part in zip(entry, pair, strict=True))
            for entry in value
        ]
    if types.is_list(data_type) or types.is_fixed_size_list(data_type):
        return [_times_as_text(item, data_type.value_type, of_duckdb) for item in value]
    if not types.is_temporal(data_type):
        return value
    if (
        of_duckdb
        and not types.is_time(data_type)
        and abs(value) == 2 ** (data_type.bit_width - 1) - 1
    ):
        return "infinity" if value > 0 else "-infinity"
    return time_text(value, data_type)


def _undecodable_column(rows: pa.Table | pa.RecordBatch) -> str:
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            column.to_pylist()
        except (OverflowError, ValueError):
            return str(name)
    raise AssertionError("every column can be read alone")


_KINDS: tuple[tuple[tuple[type, ...], str, pa.DataType], ...] = (
    ((bool,), "boolean", pa.bool_()),  # before int, because bool is a subclass of int
    ((int,), "whole number", pa.int64()),
    ((float,), "float", pa.float64()),
    ((Decimal,), "decimal", None),
    ((str,), "text", pa.string()),
    ((bytes, bytearray, memoryview), "bytes", pa.binary()),
    ((time,), "time of day", pa.time64("us")),
    ((timedelta, np.timedelta64), "duration", pa.duration("us")),
    ((np.datetime64,), "time without a zone", pa.timestamp("us")),
)
_TYPES = {word: data_type for _, word, data_type in _KINDS} | {
    "date": pa.date32(),
    "time without a zone": pa.timestamp("us"),
    "time with a zone": pa.timestamp("us", "UTC"),
}
_TYPE_OF_VALUES = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
}
"""For these Python types, the type alone determines the column type."""
_MOST_DIGITS = 76
"""Arrow's largest decimal; a decimal of more than 38 digits is refused when it is stored."""


def guess_type(values: Iterable[Any]) -> pa.DataType:
    """Return the type of the values; Arrow's null type if all are null.

    Raises UnfitError for a value whose type differs from an earlier one's, or is not supported.
    """
    values = [*values]
    types = {*map(type, values)} - {type(None)}
    if len(types) == 1 and (plain := _TYPE_OF_VALUES.get(*types)) is not None:
        return plain
    values_by_word: dict[str, list[Any]] = {}
    for value in values:
        if is_missing(value):
            continue
        word = _word(value)
        others = [other for other in values_by_word if not _have_common_type(word, other)]
        if others:
            raise UnfitError(
                value,
                others[0],
                f"it is a {word}, but all values of a column must have the same type",
            )
        values_by_word.setdefault(word, []).append(value)
    if not values_by_word:
        return pa.null()
    if "dictionary" in values_by_word:
        return _guess_struct(values_by_word["dictionary"])
    if "list" in values_by_word:
        return pa.list_(guess_type(_items(values_by_word["list"])))
    if "decimal" in values_by_word:
        return _guess_decimal([value for held in values_by_word.values() for value in held])
    return _TYPES["float" if "float" in values_by_word else next(iter(values_by_word))]


def _word(value: Any) -> str:
    value = unwrap_numpy(value)
    if isinstance(value, Mapping):
        return "dictionary"
    if is_list(value):
        return "list"
    if isinstance(value, datetime):
        return "time without a zone" if value.utcoffset() is None else "time with a zone"
    if isinstance(value, date):
        return "date"
    for types, word, _ in _KINDS:
        if isinstance(value, types):
            return word
    reason = f"Python type {type(value).__name__} is not supported"
    if isinstance(value, UUID):
        reason += (
            "; if it is a key, pass key_types='UUID', otherwise convert it to text "
            "or to its 16 bytes"
        )
    raise UnfitError(value, "one of the column types", reason)


def _have_common_type(first: str, second: str) -> bool:
    return first == second or {first, second} in (
        {"whole number", "float"},
        {"whole number", "decimal"},
    )


def _guess_struct(values: Sequence[Mapping[Any, Any]]) -> pa.DataType:
    names = list(dict.fromkeys(name for value in values for name in value))
    fields = []
    for name in names:
        if not is_name(name):
            reason = (
                "the field names of a struct must be strings of valid Unicode; to store a map, "
                "declare it with an Arrow schema"
            )
            raise UnfitError(name, "a dictionary", reason)
        try:
            fields.append((name, guess_type(value.get(name) for value in values)))
        except UnfitError as error:
            raise error.within(f".{name}") from None
    return pa.struct(fields)


def is_name(name: object) -> bool:
    """Return whether a column or field can have this name: a string without unpaired surrogates."""
    return isinstance(name, str) and name == name.encode(errors="replace").decode()


def _items(values: Sequence[Iterable[Any]]) -> Iterable[Any]:
    for value in values:
        yield from value


def _guess_decimal(values: Sequence[Any]) -> pa.DataType:
    before = behind = 0
    for value in values:
        _, digits, exponent = Decimal(unwrap_numpy(value)).as_tuple()
        if isinstance(exponent, int):
            before = max(before, len(digits) + exponent)
            behind = max(behind, -exponent)
    if before + behind > _MOST_DIGITS:
        reason = f"the values need {before + behind} digits, more than a decimal can have"
        raise UnfitError(values[-1], "decimals", reason)
    width = max(before + behind, 1)
    return (pa.decimal128 if width <= 38 else pa.decimal256)(width, behind)
