"""How the columns of a data file are encoded: by a look at its first rows.

Parquet's usual dictionary costs time and bytes where nearly every value is another one, as keys
are. Such columns are written without one, numbers and text as differences (Parquet format, "Delta
Encoding"), which Spark, DuckDB, Polars and Arrow read.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Encodings", "encodings", "leaf_paths"]

_SAMPLE_ROWS, _ENOUGH_ROWS = 4096, 1024


class Encodings:
    """How the files of one state are encoded: chosen again only while there were few rows to go
    by.
    """

    def __init__(self) -> None:
        """Choose nothing yet."""
        self._chosen: dict[str, str] | None = None

    def of(self, first: pa.Table) -> dict[str, str]:
        """Return :func:`encodings` of a file's first rows, or what was chosen before."""
        if self._chosen is not None:
            return self._chosen
        chosen = encodings(first)
        if first.num_rows >= _ENOUGH_ROWS:
            self._chosen = chosen
        return chosen


def encodings(first: pa.Table) -> dict[str, str]:
    """Return the encoding of each column that is better off without a dictionary.

    That is one of plain values most of which differ, in a sample of the rows: text in order as
    differences of neighbours, other text and bytes with their lengths apart, whole numbers, dates
    and times as differences, floating-point numbers as they are. Nested columns, decimals and
    booleans keep what Arrow does by default.
    """
    sample = first.slice(0, _SAMPLE_ROWS)
    # A dot would make the name of a column that of a nested one.
    plain = [name for name in sample.column_names if "." not in name]
    found = {name: _encoding(sample.column(name)) for name in plain}
    return {name: encoding for name, encoding in found.items() if encoding is not None}


def leaf_paths(schema: pa.Schema) -> list[str]:
    """Return the columns as Parquet names them: nested ones by their path, ``a.list.element``."""
    return [path for field in schema for path in _paths(field)]


def _encoding(column: pa.ChunkedArray) -> str | None:
    kind = column.type
    text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    whole = (
        pa.types.is_signed_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)
    )
    if not (text or whole or pa.types.is_floating(kind)):
        return None
    if 2 * pc.count_distinct(column, mode="all").as_py() <= len(column):
        return None
    if text:
        return "DELTA_BYTE_ARRAY" if _in_order(column) else "DELTA_LENGTH_BYTE_ARRAY"
    return "DELTA_BINARY_PACKED" if whole else "PLAIN"


def _in_order(column: pa.ChunkedArray) -> bool:
    values = column.combine_chunks()
    ascending = pc.less_equal(values.slice(0, len(values) - 1), values.slice(1))
    return pc.all(ascending, skip_nulls=True, min_count=0).as_py() is True


def _paths(field: pa.Field) -> Iterator[str]:
    kind = field.type
    if pa.types.is_struct(kind):
        inner = [kind.field(at) for at in range(kind.num_fields)]
        yield from (f"{field.name}.{path}" for part in inner for path in _paths(part))
    elif pa.types.is_map(kind):
        for part in (kind.key_field, kind.item_field):
            yield from (f"{field.name}.key_value.{path}" for path in _paths(part))
    elif pa.types.is_list(kind):
        part = kind.value_field.with_name("element")
        yield from (f"{field.name}.list.{path}" for path in _paths(part))
    else:
        yield field.name
