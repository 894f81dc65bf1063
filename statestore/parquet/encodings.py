"""The encodings of a data file's columns, chosen from its first rows.

Parquet's default dictionary costs time and bytes if nearly every value is distinct, as in keys.
Such columns are written without a dictionary: numbers and text as differences (Parquet format,
"Delta Encoding"), which Spark, DuckDB, Polars and Arrow can read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Encodings", "encodings", "leaf_paths"]


_SAMPLE_ROWS, _ENOUGH_ROWS = 4096, 1024


class Encodings:
    """The encodings for the files of one state.

    They are chosen again for the next file only if the sample was small.
    """

    def __init__(self) -> None:
        """Start without a choice."""
        self._chosen: dict[str, str] | None = None

    def choose(self, first: pa.Table) -> dict[str, str]:
        """Return :func:`encodings` for a file's first rows, or the earlier choice."""
        if self._chosen is not None:
            return self._chosen
        chosen = encodings(first)
        if first.num_rows >= _ENOUGH_ROWS:
            self._chosen = chosen
        return chosen


def encodings(first: pa.Table) -> dict[str, str]:
    """Return the encoding of each column that is better written without a dictionary.

    These are plain columns most of whose values differ in a sample of the rows. Sorted text is
    encoded as differences of neighbors, other text and bytes with separate lengths. Integers, dates
    and timestamps are encoded as differences, and floating-point numbers as plain values. Nested
    columns, decimals and booleans keep Arrow's default.
    """
    sample = first.slice(0, _SAMPLE_ROWS)
    # A column name with a dot would look like the path of a nested column.
    plain = [name for name in sample.column_names if "." not in name]
    by_column = {name: _encoding(sample.column(name)) for name in plain}
    return {name: encoding for name, encoding in by_column.items() if encoding is not None}


def leaf_paths(schema: pa.Schema) -> list[str]:
    """Return the columns by their names in Parquet; nested ones have a path: ``a.list.element``."""
    return [path for field in schema for path in _paths(field)]


def _encoding(column: pa.ChunkedArray) -> str | None:
    data_type = column.type
    text = pa.types.is_string(data_type) or pa.types.is_binary(data_type)
    whole = (
        pa.types.is_signed_integer(data_type)
        or pa.types.is_timestamp(data_type)
        or pa.types.is_date32(data_type)
    )
    if not (text or whole or pa.types.is_floating(data_type)):
        return None
    if 2 * pc.count_distinct(column, mode="all").as_py() <= len(column):
        return None
    if text:
        return "DELTA_BYTE_ARRAY" if _is_ascending(column) else "DELTA_LENGTH_BYTE_ARRAY"
    return "DELTA_BINARY_PACKED" if whole else "PLAIN"


def _is_ascending(column: pa.ChunkedArray) -> bool:
    values = column.combine_chunks()
    ascending = pc.less_equal(values.slice(0, len(values) - 1), values.slice(1))
    return pc.all(ascending, skip_nulls=True, min_count=0).as_py() is True


def _paths(field: pa.Field) -> Iterator[str]:
    data_type = field.type
    if pa.types.is_struct(data_type):
        inner = [data_type.field(index) for index in range(data_type.num_fields)]
        yield from (f"{field.name}.{path}" for part in inner for path in _paths(part))
    elif pa.types.is_map(data_type):
        for part in (data_type.key_field, data_type.item_field):
            yield from (f"{field.name}.key_value.{path}" for path in _paths(part))
    elif pa.types.is_list(data_type):
        part = data_type.value_field.with_name("element")
        yield from (f"{field.name}.list.{path}" for path in _paths(part))
    else:
        yield field.name
