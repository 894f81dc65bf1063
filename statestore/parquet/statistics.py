"""Delta statistics of a data file, from its Parquet footer (Delta protocol, "Per-file Statistics").

A table names the columns that have statistics in ``delta.dataSkippingStatsColumns``. If a file has
statistics and lacks a bound of such a column, the Arrow dataset of delta-rs compares the column
with null, and skips the file. DuckDB and Polars read through that dataset too. So a file has a null
count and both bounds of every named column, or the number of its rows and nothing else.

Only key columns are named. Floating-point columns are not: readers disagree on NaN, and Parquet
footers do not count it. Delta accepts no bounds of booleans and bytes. delta-rs ignores the bounds
of struct fields.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq

from statestore.format.names import KEY_GROUP, POSITION, SUBTASK
from statestore.format.schema import DataType, Field, decimal_parts
from statestore.format.state import KeyedState, Layout, OperatorState
from statestore.rows.column_types import arrow_type

LONGEST_TEXT = 32
"""Longer text is truncated, in code points; Spark truncates to the same length."""

_BOUNDED = ("byte", "short", "integer", "long", "string", "date", "timestamp", "timestamp_ntz")
_EPOCH = dt.datetime(1970, 1, 1)
_LAST_CODE_POINT, _FIRST_SURROGATE, _AFTER_SURROGATES = 0x10FFFF, 0xD800, 0xE000

Bounds = tuple[Any, Any]


def statistics_columns(state: KeyedState | OperatorState) -> tuple[Field, ...]:
    """Return the columns whose bounds the state's Delta table keeps."""
    if isinstance(state, OperatorState):
        return (Field(SUBTASK, "integer"), Field(POSITION, "long"))
    fields = (Field(name, state.schema.type_of(name)) for name in state.identity)
    bounded = tuple(field for field in fields if _has_bounds(field.type))
    if state.layout is Layout.PARTITIONED:
        return bounded
    return (Field(KEY_GROUP, "integer"), *bounded)


def _has_bounds(data_type: DataType) -> bool:
    return isinstance(data_type, str) and (
        data_type in _BOUNDED or decimal_parts(data_type) is not None
    )


def file_statistics(metadata: pq.FileMetaData, columns: tuple[Field, ...]) -> str:
    """Return a file's statistics as JSON.

    Args:
        metadata: The file's footer.
        columns: The columns of :func:`statistics_columns`.

    Returns:
        ``numRecords``, and if the footer gives bounds of all ``columns``, also ``minValues``,
        ``maxValues`` and ``nullCount``.
    """
    positions = positions_of(metadata)
    types = metadata.schema.to_arrow_schema()
    lowest, highest, nulls = {}, {}, {}
    for column in columns:
        position = positions.get(column.name)
        if position is None or types.field(column.name).type != arrow_type(column.type):
            return _json({"numRecords": metadata.num_rows})
        groups = range(metadata.num_row_groups)
        chunks = [metadata.row_group(group).column(position).statistics for group in groups]
        bounds = _bounds(chunks, column.type)
        if bounds is None:
            return _json({"numRecords": metadata.num_rows})
        lowest[column.name], highest[column.name] = bounds
        nulls[column.name] = sum(chunk.null_count for chunk in chunks)
    members = {"minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return _json({"numRecords": metadata.num_rows, **(members if columns else {})})


def positions_of(metadata: pq.FileMetaData) -> dict[str, int]:
    """Return the position of each column in the footer.

    A path that two columns share is left out: the column ``a.b`` and the field ``b`` of the struct
    ``a`` have the same path.
    """
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    counts = Counter(paths)
    return {path: i for i, path in enumerate(paths) if counts[path] == 1}


def _bounds(chunks: list[Any], data_type: DataType) -> Bounds | None:
    """Return bounds of a column in JSON form, from the statistics of its column chunks.

    Returns:
        None if a chunk has no bounds, or if JSON has no value for a bound.
    """
    known = (chunk and chunk.has_min_max and chunk.has_null_count for chunk in chunks)
    if not chunks or not all(known):
        return None
    if data_type in ("date", "timestamp", "timestamp_ntz"):
        # Python has no date before the year 1 or after 9999, the raw number always exists.
        low, high = min(chunk.min_raw for chunk in chunks), max(chunk.max_raw for chunk in chunks)
        return date_bounds(low, high) if data_type == "date" else time_bounds(low, high, data_type)
    lowest, highest = min(chunk.min for chunk in chunks), max(chunk.max for chunk in chunks)
    if data_type == "string":
        return lowest[:LONGEST_TEXT], upper_bound_text(highest)
    return lowest, highest


def upper_bound_text(text: str) -> str:
    """Return an upper bound of a text: the text itself, or a shorter one that is greater.

    Text is ordered by its UTF-8 bytes, which gives the same order as its code points.
    """
    if len(text) <= LONGEST_TEXT:
        return text
    prefix = text[:LONGEST_TEXT]
    kept = prefix.rstrip(chr(_LAST_CODE_POINT))
    if not kept:
        return text  # nothing shorter is greater
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_AFTER_SURROGATES if following == _FIRST_SURROGATE else following)


def date_bounds(lowest: int, highest: int) -> Bounds | None:
    """Return bounds in ISO format of days since 1970; None outside of the years 1 to 9999."""
    epoch = _EPOCH.date()
    try:
        return str(epoch + dt.timedelta(lowest)), str(epoch + dt.timedelta(highest))
    except OverflowError:
        return None


def time_bounds(lowest: int, highest: int, data_type: str) -> Bounds | None:
    """Return bounds in ISO format of microseconds since 1970.

    Delta's bounds are in milliseconds. The upper bound is rounded up, since not every reader adds
    the millisecond that Spark adds.

    Returns:
        None outside of the years 1 to 9999.
    """
    zone = "Z" if data_type == "timestamp" else ""
    rounded = lowest // 1000, -(-highest // 1000)
    try:
        times = [_EPOCH + dt.timedelta(milliseconds=value) for value in rounded]
    except OverflowError:
        return None
    low, high = (time.isoformat(timespec="milliseconds") + zone for time in times)
    return low, high


def bound_forms(value: Any) -> tuple[Any, ...]:
    """Return the JSON values that statistics may have for a key's value.

    A decimal stays one: compare it with JSON that was parsed with ``parse_float=Decimal``.
    """
    match value:
        case str():
            return (value, value[:LONGEST_TEXT], upper_bound_text(value))
        case dt.datetime():
            data_type = "timestamp" if value.tzinfo else "timestamp_ntz"
            since = value.replace(tzinfo=None) - _EPOCH
            micros = since // dt.timedelta(microseconds=1)
            return time_bounds(micros, micros, data_type) or ()
        case dt.date():
            return (value.isoformat(),)
        case bool():
            return ()
        case int() | Decimal():
            return (value,)
    return ()


def _json(value: Any) -> str:
    """Return a value as JSON.

    Decimals are exact numbers. Text is not escaped, since delta-rs misreads the escapes of many
    characters above U+FFFF: it reads U+20000 as U+10000.
    """
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_json(name)}: {_json(item)}' for name, item in value.items())}}}"
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(value, ensure_ascii=False)
