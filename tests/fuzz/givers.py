"""Ways to pass rows to a writer: an Arrow table with one of many types for the same values, a
stream, dictionaries, or a pandas, Polars or DuckDB frame.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa

from tests.fuzz.history import Column, Row
from tests.fuzz.kinds import Kind, canonical, name_of, plain

__all__ = ["WRITERS", "arrow_kind", "arrow_table", "give", "rows_of"]

_PLAIN: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
Spell = Callable[[Kind], pa.DataType]


def arrow_kind(kind: Kind, spell: Spell | None = None) -> pa.DataType:
    """Return the Arrow type of a test type. ``spell`` chooses the types of its parts."""
    inner = spell or arrow_kind
    match name_of(kind):
        case "decimal":
            return pa.decimal128(kind[1], kind[2])
        case "array":
            return pa.list_(inner(kind[1]))
        case "map":
            return pa.map_(inner(kind[1]), inner(kind[2]))
        case "struct":
            return pa.struct([(name, inner(part)) for name, part in kind[1]])
    return _PLAIN[kind]


def arrow_table(rows: Sequence[Row], columns: Sequence[Column], types: Sequence[Any]) -> pa.Table:
    arrays = [
        pa.array([row[column.name] for row in rows], kind)
        for column, kind in zip(columns, types, strict=True)
    ]
    return pa.table(arrays, names=[column.name for column in columns])


def plain_table(rows: Sequence[Row], columns: Sequence[Column]) -> pa.Table:
    return arrow_table(rows, columns, [arrow_kind(column.kind) for column in columns])


def spelled_table(
    rows: Sequence[Row], columns: Sequence[Column], keys: Collection[str], draw: Random
) -> pa.Table:
    """Return rows in other Arrow types with the same values, in chunks that are slices of a larger
    table.
    """
    every = list(rows)
    before, after = draw.randrange(3), draw.randrange(3)
    if every:
        padding = [draw.choice(every) for _ in range(before + after)]
        every = [*padding[:before], *every, *padding[before:]]
    arrays = [_spelled([row[c.name] for row in every], c, c.name in keys, draw) for c in columns]
    table = pa.table(arrays, names=[column.name for column in columns])
    table = table.slice(before if rows else 0, len(rows))
    cuts = sorted(draw.randrange(len(rows) + 1) for _ in range(draw.randrange(3)))
    ends = [0, *cuts, len(rows)]
    parts = [table.slice(a, b - a) for a, b in pairwise(ends)]
    return pa.concat_tables(parts)


def _spelled(values: list[Any], column: Column, is_key: bool, draw: Random) -> pa.Array:
    def spell(kind: Kind) -> pa.DataType:
        usual = arrow_kind(kind, spell)
        others: list[pa.DataType] = []
        match name_of(kind):
            case "string":
                others = [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), usual)]
            case "binary":
                others = [pa.large_binary(), pa.binary_view()]
            case "array":
                others = [pa.large_list(usual.value_type)]
            case "timestamp":
                others = [pa.timestamp("us", tz) for tz in ("Europe/Berlin", "+05:30")]
        return draw.choice([usual, usual, *others])

    if name_of(column.kind) in ("timestamp", "timestamp_ntz") and not is_key:
        return _times(values, column.kind, draw)
    try:
        return pa.array(values, spell(column.kind))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return pa.array(values, arrow_kind(column.kind))


def _times(values: list[Any], kind: Kind, draw: Random) -> pa.Array:
    """Return times in a random unit that can represent all of them."""
    usual = arrow_kind(kind)
    low, high = datetime(1700, 1, 1), datetime(2200, 1, 1)
    if kind == "timestamp":
        low, high = low.replace(tzinfo=UTC), high.replace(tzinfo=UTC)
    given = [value for value in values if value is not None]
    units = ["us"]
    if all(low <= value < high for value in given):
        units.append("ns")
    if all(value.microsecond % 1000 == 0 for value in given):
        units.append("ms")
    if all(value.microsecond == 0 for value in given):
        units.append("s")
    return pa.array(values, pa.timestamp(draw.choice(units), tz=usual.tz))


def rows_of(table: Any, columns: Sequence[Column]) -> list[Row]:
    """Return the rows of a table from a reader; raise AssertionError for other columns or types."""
    names = [column.name for column in columns]
    assert sorted(table.column_names) == sorted(names), f"columns {table.column_names}"
    of = [[plain(v, c.kind) for v in table.column(c.name).to_pylist()] for c in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*of, strict=True)]


def give(
    rows: Sequence[Row], columns: Sequence[Column], keys: Collection[str], writer: str, spell: int
) -> Any:
    """Return rows in the form that a writer passes, or a table if that form cannot
    represent them.
    """
    draw = Random(spell)
    columns = draw.sample(list(columns), len(columns))
    names = [column.name for column in columns]
    rows = [{name: row[name] for name in names} for row in draw.sample(list(rows), len(rows))]
    given = WRITERS[writer](rows, columns, keys, draw)
    return spelled_table(rows, columns, keys, draw) if given is None else given


def _stream(rows: Any, columns: Any, keys: Any, draw: Random) -> Any:
    return spelled_table(rows, columns, keys, draw).to_reader()


def _dicts(rows: list[Row], columns: list[Column], keys: Any, draw: Random) -> Any:
    """Only for types that can be inferred. A decimal, for example, does not show its precision."""
    if any(_within(c.kind, ("decimal",)) for c in columns):
        return None
    try:
        seen = [pa.infer_type([row[c.name] for row in rows]) for c in columns]
    except pa.ArrowInvalid:  # pairs become a map only with a declared type
        return None
    return rows if rows and seen == [arrow_kind(c.kind) for c in columns] else None


def _pandas(rows: list[Row], columns: list[Column], keys: Any, draw: Random) -> Any:
    import pandas as pd

    table = plain_table(rows, columns)
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def _polars(rows: list[Row], columns: list[Column], keys: Any, draw: Random) -> Any:
    import polars as pl

    if any(_within(c.kind, ("map",)) for c in columns):
        return None
    return _faithful(pl.from_arrow(plain_table(rows, columns)), rows, columns)


def _duckdb(rows: list[Row], columns: list[Column], keys: Any, draw: Random) -> Any:
    import duckdb

    # DuckDB returns timestamps in the session's time zone.
    if any(_within(c.kind, ("timestamp",)) for c in columns):
        return None
    connection = duckdb.connect(":memory:")
    relation = connection.from_arrow(plain_table(rows, columns))
    return _faithful(relation.to_arrow_table(), rows, columns)


def _faithful(frame: Any, rows: list[Row], columns: list[Column]) -> Any:
    """Return a frame, or None if its library changed a value."""
    kinds = {column.name: column.kind for column in columns}
    try:
        found = rows_of(pa.table(frame), columns)
    except AssertionError:
        return None
    both = ([{n: canonical(row[n], kinds[n]) for n in kinds} for row in of] for of in (found, rows))
    one, other = both
    return frame if one == other else None


def _within(kind: Kind, names: tuple[str, ...]) -> bool:
    if name_of(kind) in names:
        return True
    inner = [part for _, part in kind[1]] if name_of(kind) == "struct" else kind[1:]
    return not isinstance(kind, str) and any(
        _within(part, names) for part in inner if not isinstance(part, int)
    )


WRITERS: dict[str, Callable[..., Any]] = {
    "table": spelled_table,
    "stream": _stream,
    "dicts": _dicts,
    "pandas": _pandas,
    "polars": _polars,
    "duckdb": _duckdb,
    "subtasks": spelled_table,
}
