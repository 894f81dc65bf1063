"""A table that is read as a stream of batches, and columns of text that get another type.

Each text is exactly one value, or it is refused. Arrow's cast accepts more: ``0x10`` as 16, ``1``
as true, and ``1e-400`` as 0. So it converts only texts of a form that it converts exactly. All
other texts are parsed one by one.
"""

from __future__ import annotations

import re
from binascii import unhexlify
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from struct import pack, unpack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.schema import Field, Schema
from statestore.keys.arrow_types import arrow_type_text
from statestore.parsing import nearest_double, nearest_float, parse_number
from statestore.rows.column_types import arrow_schema
from statestore.rows.lossless_cast import UnfitError, exact_converter, far_time

_FORMS: Mapping[str, str] = {
    "boolean": " (true or false)",
    "binary": " (hex digits)",
    "timestamp": " (a time with Z or an offset, such as 2026-01-31T12:00:00Z)",
    "timestamp_ntz": " (a time without a zone)",
}
"""The form of a type's texts, for messages."""

QUERY_HINT = "a query (--sql, or --from-sql of 'spark bootstrap'; in Python open_query)"
"""How errors name the way to read a table through DuckDB."""

_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
# With more than 38 digits, Arrow's cast returns another number.
_DECIMAL = r"^[+-]?([0-9]{1,38}|[0-9]{1,19}\.[0-9]{1,19})$"
# A decimal number of 15 digits is one double, and of 6 digits one float.
_DOUBLE = r"^[+-]?([0-9]{1,15}|[0-9]{1,9}\.[0-9]{1,6}|0\.[0-9]{1,15})([eE][+-]?[0-9]{1,2})?$"
_FLOAT = r"^[+-]?([0-9]{1,6}|[0-9]{1,3}\.[0-9]{1,3}|0\.[0-9]{1,6})$"


@dataclass(frozen=True)
class SourceTable:
    """A table of another system; its rows can be read any number of times.

    ``name`` is the place or the query. ``rows`` is the number of rows, None if it is not known
    before they are read. ``missing`` is the part of the state that a Delta table of a store lacks.
    ``untyped`` are columns of text that the format has no types for.
    """

    name: str
    schema: pa.Schema
    read: Callable[[], Iterator[pa.RecordBatch]]
    rows: int | None = None
    missing: str | None = None
    untyped: tuple[str, ...] = ()

    def batches(self, on_rows: Callable[[int], None] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield an empty batch, which has the columns, and then the rows.

        Args:
            on_rows: is called with the number of rows read so far.

        Yields:
            Batches of the table's schema.

        Raises:
            InvalidArgumentError: for a text that is not of the column's type, with its row.
            SchemaMismatchError: if the table got other columns since it was opened.
            StateStoreError: if the table cannot be read.
        """
        yield pa.RecordBatch.from_pylist([], self.schema)
        rows = 0
        for batch in self.read():
            yield batch
            rows += batch.num_rows
            if on_rows is not None:
                on_rows(rows)


def convert_text(table: SourceTable, types: Mapping[str, str]) -> SourceTable:
    """Return a table whose columns of text have other types.

    Args:
        table: the table.
        types: the types of columns, in Delta's notation.

    Returns:
        The table with these types. Its rows are converted while they are read.

    Raises:
        InvalidArgumentError: for a column that does not exist or is not text, and for an unknown
            type.
    """
    typed = arrow_schema(Schema(tuple(Field(name, text) for name, text in types.items())))
    wanted = {field.name: field.type for field in typed}
    fields = {field.name: field for field in table.schema}
    for name in wanted:
        if name not in fields:
            raise InvalidArgumentError(
                f"{table.name} has no column {name!r}; its columns are {', '.join(fields)}"
            )
        if not pa.types.is_string(fields[name].type):
            raise InvalidArgumentError(
                f"column {name!r} of {table.name} is {arrow_type_text(fields[name].type)}: only "
                f"columns of text get another type. Cast it in {QUERY_HINT}"
            )
    schema = pa.schema(
        [field.with_type(wanted.get(field.name, field.type)) for field in table.schema]
    )
    return replace(
        table, schema=schema, read=lambda: _convert_batches(table, wanted, types, schema)
    )


def _convert_batches(
    table: SourceTable,
    wanted: Mapping[str, pa.DataType],
    types: Mapping[str, str],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows with some columns cast; ``types`` names their new types in messages."""
    rows = 0
    for batch in table.read():
        if not batch.schema.equals(table.schema):
            raise SchemaMismatchError(
                f"{table.name} was changed while it was read: it had the columns "
                f"({schema_text(table.schema)}), and has ({schema_text(batch.schema)}). Start "
                "again"
            )
        columns = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            converted = _parse_texts(column, wanted[name]) if name in wanted else column
            if converted is None:
                place = _find_other(column, wanted[name])
                raise InvalidArgumentError(
                    f"row {rows + place + 1} of {table.name} has {column[place].as_py()!r:.100} in "
                    f"the column {name!r}, which is not of the type {types[name]}"
                    f"{_FORMS.get(types[name], '')}: correct the row, or leave the column text"
                )
            columns.append(converted)
        rows += batch.num_rows
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def schema_text(schema: pa.Schema) -> str:
    """Return columns with their types, for messages."""
    return ", ".join(f"{field.name} {arrow_type_text(field.type)}" for field in schema)


def _find_other(column: pa.Array, data_type: pa.DataType) -> int:
    """Return the position of the first text that is not a value of a type."""
    rows = range(len(column))
    return next(row for row in rows if _parse_texts(column.slice(row, 1), data_type) is None)


def _parse_texts(texts: pa.Array, data_type: pa.DataType) -> pa.Array | None:
    """Return texts as values of a type; None if one of them is not a value of the type.

    Args:
        texts: the texts; null stays null.
        data_type: the type of a stored column without parts.
    """
    if pa.types.is_string(data_type):
        return texts
    form, parse = _form_of(data_type)
    is_plain = pc.match_substring_regex(texts, form)
    others = np.asarray(pc.fill_null(pc.invert(is_plain), False))
    try:
        values = pc.if_else(is_plain, texts, None) if others.any() else texts
        if pa.types.is_decimal(data_type):
            # Arrow's cast of text does not notice that a number overflows with its new scale.
            values = pc.cast(values, pa.decimal256(76, data_type.scale))
        values = pc.cast(values, data_type)
        if not others.any():
            return values
        if parse is None:
            return None
        parsed = pa.array(map(parse, texts.filter(pa.array(others)).to_pylist()), data_type)
    except (pa.ArrowInvalid, OverflowError, UnfitError, ValueError):
        return None
    return pc.replace_with_mask(values, pa.array(others), parsed)


def _form_of(data_type: pa.DataType) -> tuple[str, Callable[[str], Any] | None]:
    """Return the texts that Arrow's cast converts exactly, and the parser of all other texts."""
    types = pa.types
    if types.is_integer(data_type):
        return r"^-?[0-9]+$", None
    if types.is_decimal(data_type):
        convert = exact_converter(data_type)
        return _DECIMAL, lambda text: convert(_exact_number(text))
    if types.is_boolean(data_type):
        return r"^(?i:true|false)$", None
    if types.is_binary(data_type):
        return r"^$", unhexlify
    if types.is_float64(data_type):
        return _DOUBLE, _parse_double
    if types.is_float32(data_type):
        return _FLOAT, _parse_float
    form = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}($|[T ][0-9].*$)"
    return form, partial(_parse_far_time, data_type=data_type)


def _parse_double(text: str) -> float:
    number = float(text)
    if repr(number) == text or _NOT_FINITE.fullmatch(text):
        return number
    return nearest_double(_exact_number(text))


def _parse_float(text: str) -> float:
    number = float(text)
    if _NOT_FINITE.fullmatch(text):
        return number
    if repr(number) == text and unpack("<f", pack("<f", number)) == (number,):
        return number
    return nearest_float(_exact_number(text))


def _parse_far_time(text: str, data_type: pa.DataType) -> int:
    far = far_time(text, data_type)
    if far is None:
        raise ValueError("the text is no date or time")
    return far.number


def _exact_number(text: str) -> int | Decimal:
    if text != text.strip():
        raise ValueError("there are blanks around the number")
    return parse_number(text)
