"""A table that is read as a stream of batches, and columns of text that get another type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.schema import Field, Schema
from statestore.interop.tables.text_values import parse_texts
from statestore.keys.arrow_type_names import arrow_type_text
from statestore.rows.column_types import arrow_schema


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


_FORMS: Mapping[str, str] = {
    "boolean": " (true or false)",
    "binary": " (hex digits)",
    "timestamp": " (a time with Z or an offset, such as 2026-01-31T12:00:00Z)",
    "timestamp_ntz": " (a time without a zone)",
}
"""The form of a type's texts, for messages."""


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
                "columns of text get another type. Cast it in a query (--sql, or open_query)"
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
    """Yield the rows with columns of other types; ``types`` are their names."""
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
            converted = parse_texts(column, wanted[name]) if name in wanted else column
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
    return next(row for row in rows if parse_texts(column.slice(row, 1), data_type) is None)
