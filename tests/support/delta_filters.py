"""Filters on the columns of a state's Delta table, and the answers of every Delta reader.

Every column is named after its type. The columns ``n_…`` identify the rows, and the log may have
bounds for them. The columns ``v_…`` are values, for which the log never has bounds.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial, reduce
from typing import Any, NamedTuple

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ROWS = 12


def _instants(zone: dt.tzinfo | None) -> list[Any]:
    """Return times with microseconds, which the bounds in the log round down or up."""
    start = dt.datetime(2025, 1, 1, 12, 0, 0, 123456, zone)
    return [
        dt.datetime(1850, 3, 4, 5, 6, 7, 1, zone),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, zone),
        *(start + dt.timedelta(hours=hours, microseconds=hours) for hours in range(4)),
    ]


def _decimals(*texts: str) -> list[Any]:
    return [Decimal(text) for text in texts]


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "uuid": (pa.string(), [str(uuid.UUID(int=n * 7919**9)) for n in range(1, 7)]),
    "text": (
        pa.string(),
        [
            "",
            "short",
            'quoted "text" \\ and a line\n',
            "/products/red-shoes?campaign=spring&size=41",
            "x" * 31 + "\ud7ff and more",
            "\U0010ffff" * 40 + "\U00020000",
        ],
    ),
    "long": (pa.int64(), [-(2**63), 2**63 - 1, 2**53 + 1, 0, -1, 7]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1, 0, -1, 7, 8]),
    "short": (pa.int16(), [-(2**15), 2**15 - 1, 0, -1, 7, 8]),
    "byte": (pa.int8(), [-128, 127, 0, -1, 7, 8]),
    "date": (pa.date32(), [dt.date(1850, 1, month) for month in range(1, 6)] + [dt.date.max]),
    "instant": (pa.timestamp("us", "UTC"), _instants(dt.UTC)),
    "local": (pa.timestamp("us"), _instants(None)),
    "decimal": (pa.decimal128(10, 2), _decimals("-1.25", "-0.05", "0", "0.05", "7", "99999999.99")),
    "fraction": (pa.decimal128(38, 38), _decimals("-1E-38", "0.5", "0." + "9" * 38, "0", "-0.25")),
    "double": (pa.float64(), [-0.0, 1.5, -2.5, 1e300, -1e-300, float("inf")]),
    "float": (pa.float32(), [0.0, 1.5, -2.5, float("-inf"), 0.25, 8.0]),
    "boolean": (pa.bool_(), [True, False]),
    "binary": (pa.binary(), [b"", b"\x00", b"\xff" * 40, b"a", b"b"]),
}


def column(name: str, first: int = 0, *, with_null: bool) -> pa.Array:
    """Return a column of ``ROWS`` values; the fourth may be null."""
    kind, values = VALUES[name]
    given = [values[(first + n) % len(values)] for n in range(ROWS)]
    if with_null:
        given[3] = None
    return pa.array(given, kind)


def table() -> pa.Table:
    """Return rows with a number ``k`` and two columns of each type."""
    columns: dict[str, Any] = {"k": pa.array(range(ROWS), pa.int64())}
    for shift, name in enumerate(VALUES):
        columns[f"n_{name}"] = column(name, shift, with_null=True)
        columns[f"v_{name}"] = column(name, shift, with_null=True)
    return pa.table(columns)


class Filter(NamedTuple):
    """A condition on a column; ``operator`` is SQL with one placeholder for each value."""

    column: str
    operator: str
    values: tuple[Any, ...]

    @property
    def kind(self) -> str:
        """The column's type, a key of ``VALUES``."""
        named = {"k": "long", "key_group": "int"}
        return named.get(self.column) or self.column.partition("_")[2]

    def holds(self, value: Any) -> bool:
        """Return True if the condition is true for a value."""
        if value is None or self.operator == "IS NULL":
            return value is None and self.operator == "IS NULL"
        match self.operator:
            case "= ?":
                return bool(value == self.values[0])
            case ">= ?":
                return bool(value >= self.values[0])
            case "< ?":
                return bool(value < self.values[0])
            case "BETWEEN ? AND ?":
                return bool(self.values[0] <= value <= self.values[1])
            case "IN (?, ?)":
                return value in self.values
        return self.operator == "IS NOT NULL"


def filters(rows: pa.Table, columns: list[str] | None = None) -> Iterator[Filter]:
    """Yield conditions on each column, with each of its values."""
    for name in columns or rows.column_names:
        present = sorted({value for value in rows[name].to_pylist() if value is not None})
        for value in present:
            yield Filter(name, "= ?", (value,))
        yield Filter(name, ">= ?", (present[-1],))
        yield Filter(name, "< ?", (present[-1],))
        yield Filter(name, "BETWEEN ? AND ?", (present[0], present[len(present) // 2]))
        yield Filter(name, "IN (?, ?)", (present[0], present[-1]))
        yield Filter(name, "IS NULL", ())
        yield Filter(name, "IS NOT NULL", ())


Answer = Callable[[Filter], list[int]]
"""Returns the numbers ``k`` of the rows that a filter finds, in order."""


def expected(rows: pa.Table) -> Answer:
    """Return the correct answers."""
    numbers = rows["k"].to_pylist()
    return lambda wanted: sorted(
        k
        for k, value in zip(numbers, rows[wanted.column].to_pylist(), strict=True)
        if wanted.holds(value)
    )


def readers(url: str) -> dict[str, Answer]:
    """Return the readers without a JVM; each has opened the table."""
    opened = DeltaTable(url)
    dataset = opened.to_pyarrow_dataset()
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("d", dataset)
    engine = QueryBuilder().register("d", opened)
    return {
        "deltalake filters": partial(_by_filters, opened),
        "pyarrow": lambda wanted: _numbers(dataset.to_table(["k"], filter=_arrow(wanted))),
        "duckdb": lambda wanted: [
            k
            for (k,) in connection.execute(
                f'SELECT k FROM d WHERE "{wanted.column}" {wanted.operator} ORDER BY k',
                list(wanted.values),
            ).fetchall()
        ],
        "polars": partial(_by_polars, pl.scan_delta(url)),
        "polars through pyarrow": partial(_by_polars, pl.scan_delta(url, use_pyarrow=True)),
        "datafusion": lambda wanted: _numbers(
            pa.table(engine.execute(f"SELECT k FROM d WHERE {_datafusion(wanted)}").read_all())
        ),
    }


def wrong(rows: pa.Table, answers: dict[str, Answer], asked: list[Filter]) -> list[str]:
    """Return the filters for which a reader returns wrong rows."""
    right = expected(rows)
    return [
        f"{name}: {wanted} finds {found}, not {right(wanted)}"
        for wanted in asked
        for name, answer in answers.items()
        if (found := answer(wanted)) != right(wanted)
    ]


def spark_answers(spark: SparkSession, url: str, asked: list[Filter]) -> Answer:
    """Return Spark's answers; dozens of filters share one Spark job."""
    frame = spark.read.format("delta").load(url)
    found: dict[int, list[int]] = {number: [] for number in range(len(asked))}
    for first in range(0, len(asked), 25):
        parts = [
            frame.where(_spark(wanted)).select(F.lit(number).alias("number"), "k")
            for number, wanted in enumerate(asked[first : first + 25], first)
        ]
        for number, k in reduce(DataFrame.union, parts).collect():
            found[number].append(k)
    numbers = {wanted: number for number, wanted in enumerate(asked)}
    return lambda wanted: sorted(found[numbers[wanted]])


def _numbers(table: pa.Table) -> list[int]:
    return sorted(table["k"].to_pylist())


def _by_filters(opened: DeltaTable, wanted: Filter) -> list[int]:
    name, values = wanted.column, wanted.values
    conditions: dict[str, Any] = {
        "= ?": lambda: [(name, "=", values[0])],
        ">= ?": lambda: [(name, ">=", values[0])],
        "< ?": lambda: [(name, "<", values[0])],
        "BETWEEN ? AND ?": lambda: [(name, ">=", values[0]), (name, "<=", values[1])],
        "IN (?, ?)": lambda: [(name, "in", [*values])],
    }
    condition = conditions.get(wanted.operator, lambda: _arrow(wanted))()
    return _numbers(opened.to_pyarrow_table(columns=["k"], filters=condition))


def _arrow(wanted: Filter) -> pc.Expression:
    field, kind = pc.field(wanted.column), VALUES[wanted.kind][0]
    values = [pa.scalar(value, kind) for value in wanted.values]
    match wanted.operator:
        case "= ?":
            return field == values[0]
        case ">= ?":
            return field >= values[0]
        case "< ?":
            return field < values[0]
        case "BETWEEN ? AND ?":
            return (field >= values[0]) & (field <= values[1])
        case "IN (?, ?)":
            return field.isin(pa.array(wanted.values, kind))
    return field.is_null() if wanted.operator == "IS NULL" else field.is_valid()


def _by_polars(frame: pl.LazyFrame, wanted: Filter) -> list[int]:
    field, values = pl.col(wanted.column), [pl.lit(value) for value in wanted.values]
    conditions: dict[str, Callable[[], pl.Expr]] = {
        "= ?": lambda: field == values[0],
        ">= ?": lambda: field >= values[0],
        "< ?": lambda: field < values[0],
        "BETWEEN ? AND ?": lambda: field.is_between(values[0], values[1]),
        "IN (?, ?)": lambda: field.is_in([*wanted.values]),
        "IS NULL": field.is_null,
        "IS NOT NULL": field.is_not_null,
    }
    found = frame.filter(conditions[wanted.operator]()).select("k").collect()
    return sorted(found["k"].to_list())


_DATAFUSION = {
    "uuid": "Utf8",
    "text": "Utf8",
    "long": "Int64",
    "int": "Int32",
    "short": "Int16",
    "byte": "Int8",
    "date": "Date32",
    "instant": 'Timestamp(Microsecond, Some("UTC"))',
    "local": "Timestamp(Microsecond, None)",
    "decimal": "Decimal128(10, 2)",
    "fraction": "Decimal128(38, 38)",
    "double": "Float64",
    "float": "Float32",
}
_SPARK = {
    "uuid": "STRING",
    "text": "STRING",
    "long": "BIGINT",
    "int": "INT",
    "short": "SMALLINT",
    "byte": "TINYINT",
    "date": "DATE",
    "instant": "TIMESTAMP",
    "local": "TIMESTAMP_NTZ",
    "decimal": "DECIMAL(10,2)",
    "fraction": "DECIMAL(38,38)",
    "double": "DOUBLE",
    "float": "FLOAT",
}


def _datafusion(wanted: Filter) -> str:
    def literal(value: Any) -> str:
        if isinstance(value, bytes):
            return f"X'{value.hex()}'"
        if isinstance(value, bool):
            return str(value)
        text = _text(value).replace("'", "''")
        return f"arrow_cast('{text}', '{_DATAFUSION[wanted.kind]}')"

    return _filled(wanted, '"', literal)


def _spark(wanted: Filter) -> str:
    def literal(value: Any) -> str:
        if isinstance(value, bytes):
            return f"X'{value.hex()}'"
        if isinstance(value, bool):
            return str(value)
        if isinstance(value, str):
            return f"CAST(X'{value.encode().hex()}' AS STRING)"
        return f"CAST('{_text(value)}' AS {_SPARK[wanted.kind]})"

    return _filled(wanted, "`", literal)


def _filled(wanted: Filter, quote: str, literal: Callable[[Any], str]) -> str:
    marks = wanted.operator.split("?")
    values = [*map(literal, wanted.values), ""]
    condition = "".join(part + value for part, value in zip(marks, values, strict=True))
    return f"{quote}{wanted.column}{quote} {condition}"


def _text(value: Any) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    return value.isoformat() if isinstance(value, dt.date) else str(value)
