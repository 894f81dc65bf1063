"""Columns of a store that are one value in Flink, with the conversions in both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.scalars import Scalar

NO_VALUE = Scalar("Void")
"""The type of values without columns."""

ToFlink: TypeAlias = Callable[[pa.Array], pa.Array]
FromFlink: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]
"""Converts values of Flink to a column of a type."""


@dataclass(frozen=True)
class Part:
    """Columns of a store that are one value in Flink, such as the key of a state.

    A field or element of such a value is also a part. It has no names.

    Attributes:
        stored: the type of the column. Several columns are a struct, and none are null.
        flink_type: the type of the value.
        to_flink: converts the column, or a struct of the columns.
        from_flink: converts values back to a column, or a struct of columns.
        names: the names of the columns.
        is_flat: whether the fields of ``stored`` are columns of their own.
        fields: for an imported value, the fields that are columns, with their types in Flink.
    """

    stored: pa.DataType
    flink_type: FlinkType
    to_flink: ToFlink
    from_flink: FromFlink
    names: tuple[str, ...] = ()
    is_flat: bool = False
    fields: tuple[pa.Field, ...] = ()

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        """The types of the columns."""
        if self.is_flat:
            return tuple(field.type for field in self.stored)
        return () if pa.types.is_null(self.stored) else (self.stored,)

    @property
    def text(self) -> str:
        """The fields with their types in Flink, as one line."""
        return ", ".join(f"{field.name} {field.type}".lstrip() for field in self.fields)

    def with_names(self, names: Sequence[str]) -> Part:
        """Return the part with names of its columns."""
        return replace(self, names=tuple(names)).with_types(self.types)

    def with_types(self, types: Sequence[pa.DataType]) -> Part:
        """Return the part with other types of its columns, which hold the same values."""
        if not self.is_flat:
            return replace(self, stored=types[0]) if types else self
        names = self.names or [field.name for field in self.stored]
        fields = [pa.field(*column) for column in zip(names, types, strict=True)]
        return replace(self, stored=pa.struct(fields))

    def values(self, rows: pa.Table | pa.RecordBatch) -> pa.Array:
        """Return the values of Flink in the columns of rows.

        Raises:
            InvalidArgumentError: for a value that the type of Flink cannot hold, with its column.
            UnsupportedTypeError: for a value that Flink cannot represent.
        """
        arrays = [single_chunk(rows.column(name)) for name in self.names]
        return self.join(arrays, rows.num_rows)

    def join(self, arrays: Sequence[pa.Array], count: int) -> pa.Array:
        """Return the ``count`` values in columns; errors as in :meth:`values`."""
        if not arrays:
            return self.to_flink(pa.nulls(count))
        if self.is_flat:
            return self.to_flink(pa.StructArray.from_arrays(arrays, names=self.names))
        return convert_column(arrays[0], self.to_flink, self.names[0])

    def columns(self, values: pa.Array) -> dict[str, pa.Array]:
        """Return the columns for values of Flink, by name.

        Raises UnsupportedTypeError for a value that its column cannot hold.
        """
        return dict(zip(self.names, self.split(values), strict=True))

    def split(self, values: pa.Array) -> list[pa.Array]:
        """Return the columns for values of Flink; errors as in :meth:`columns`."""
        converted = self.from_flink(values, self.stored)
        if not self.names:
            return []
        return converted.flatten() if self.is_flat else [converted]


def no_columns(flink_type: FlinkType = NO_VALUE) -> Part:
    """Return a part without columns, whose value is null."""
    return Part(pa.null(), flink_type, lambda array: array, lambda array, stored: array)


def single_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def convert_column(array: pa.Array, to_flink: ToFlink, name: str) -> pa.Array:
    """Convert a column; InvalidArgumentError names the first value that does not fit.

    The store's types are wider than some of Flink's: a character is a whole number, and a time has
    microseconds.
    """
    try:
        return to_flink(array)
    except pa.ArrowInvalid as error:
        place = _find_refused(array, to_flink)
        raise InvalidArgumentError(
            f"the column {name!r} has the value {array[place]}, which Flink's type cannot hold "
            f"({str(error).splitlines()[0]}): edit the value"
        ) from error


def _find_refused(array: pa.Array, to_flink: ToFlink) -> int:
    """Return the place of the first value that cannot be converted; there must be one."""
    begin, end = 0, len(array)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            to_flink(array.slice(begin, middle - begin))
        except pa.ArrowInvalid:
            end = middle
        else:
            begin = middle
    return begin
