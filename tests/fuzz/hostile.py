"""Invalid arguments, and valid but unusual ones."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

__all__ = ["FRAMES", "VALUES", "draw_hostile", "draw_rows"]

FAR = timezone(timedelta(hours=-23, minutes=-59))
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, -(2**63), 2**64, 10**400),
    *(0.5, -0.0, float("nan"), float("inf"), 1e308, 1 + 2j, Fraction(1, 3)),
    *(
        "",
        "a",
        "ann",
        "latest",
        "all",
        "\0",
        "\ud800",
        "a/../b",
        ".",
        "..",
        "x" * 300,
        "0-3",
        "9-0",
    ),
    *("SELECT", "SELECT * FROM totals", "SELECT 1 AS key_group", "auto", "bytes", "é" * 99, "1.5"),
    *(b"", b"ann", bytearray(b"a"), memoryview(b"a"), object(), object, Ellipsis, NotImplemented),
    *([], [1], ["ann"], [None], [[]], [{}], (), ("ann",), ("ann", 1), {}, {"user": "ann"}),
    *(
        {"user": None},
        {"": 1},
        {1: 2},
        {"user": "ann", "n": 2**70},
        set(),
        frozenset([1]),
        range(3),
    ),
    *(
        datetime(1, 1, 1),
        datetime(9999, 12, 31, 23, 59, 59, 999999),
        datetime.min.replace(tzinfo=UTC),
    ),
    *(datetime.max.replace(tzinfo=FAR), date.min, date.max, time(1), timedelta.max, timedelta(-1)),
    *(Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), Decimal("1E+400"), Decimal("1.5")),
    *(np.int64(3), np.float32(1.5), np.datetime64("NaT"), np.datetime64("2020-01-01"), np.nan),
    *(np.array([1, 2]), np.array(["a"], object), np.bool_(True), np.str_("ann"), np.bytes_(b"a")),
    *(pd.NaT, pd.NA, pd.Timestamp("2020-01-01T00:00:00.000000001"), pd.Series([1]), pd.Index([1])),
    *(uuid.UUID(int=5), OrderedDict(user="ann"), len, lambda state: "ann", lambda: None),
    *(pa.scalar(1), pa.array([1]), pa.array(["ann"]), pa.schema([]), pa.int64(), pa.nulls(2)),
)


def _mixed() -> Any:
    return pd.DataFrame({"user": ["a", 1, None], "n": [1, 2, 3]})


def _twice() -> Any:
    return pa.Table.from_arrays([pa.array(["a"]), pa.array([1])], names=["user", "user"])


def _pandas_twice() -> Any:
    return pd.DataFrame([["a", 1]], columns=["user", "user"])


def _levels() -> Any:
    columns = pd.MultiIndex.from_tuples([("user", "a"), ("n", "b")])
    return pd.DataFrame([["a", 1]], columns=columns)


def _reader() -> Any:
    def fails() -> Any:
        yield pa.record_batch({"user": ["a"], "n": pa.array([1], pa.int64())})
        raise RuntimeError("the caller's own")

    schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    return pa.RecordBatchReader.from_batches(schema, fails())


def _objects() -> Any:
    return pl.DataFrame({"user": ["a"], "n": pl.Series([object()], dtype=pl.Object)})


def _sliced_union() -> Any:
    types = pa.array([0, 0], pa.int8())
    return pa.table({"user": ["a", "b"], "n": pa.UnionArray.from_sparse(types, [pa.array([1, 2])])})


def _one(kind: Any, values: list[Any]) -> Any:
    return lambda: pa.table({"user": ["a"], "n": pa.array(values, kind)})


FRAMES: tuple[Any, ...] = (
    lambda: pa.table({"user": ["a", "b"], "n": [1, 2]}),
    lambda: [{"user": "a", "n": 1}],
    lambda: iter([{"user": "a", "n": 1}]),
    lambda: pd.DataFrame({"user": ["a"], "n": [1]}, index=["x"]),
    lambda: pd.DataFrame({"user": pd.Categorical(["a"]), "n": [1]}),
    lambda: pd.DataFrame({"user": ["a"], "n": [float("nan")]}),
    lambda: pd.DataFrame({1: ["a"], 2: [1]}),
    lambda: pd.DataFrame({"user": ["a"], "n": [1 + 2j]}),
    lambda: pd.DataFrame({"user": ["a"], "n": pd.period_range("2020", periods=1)}),
    lambda: pd.DataFrame({"user": ["a"], "n": pd.interval_range(0, 1)}),
    lambda: pd.DataFrame({"user": ["a"], "n": pd.arrays.SparseArray([1])}),
    lambda: pl.DataFrame({"user": pl.Series(["a"], dtype=pl.Categorical), "n": [1]}),
    lambda: pl.DataFrame({"user": pl.Series(["a"], dtype=pl.Enum(["a"])), "n": [1]}),
    lambda: pl.DataFrame({"user": ["a"], "n": [timedelta(1)]}),
    lambda: pl.DataFrame({"user": ["a"], "n": [time(1)]}),
    lambda: pl.DataFrame({"user": ["a"], "n": pl.Series([None])}),
    lambda: pl.DataFrame({"user": ["a"], "n": pl.Series([[1]], dtype=pl.Array(pl.Int64, 1))}),
    lambda: pl.LazyFrame({"user": ["a"], "n": [1]}),
    lambda: duckdb.sql("SELECT 'a' AS \"user\", 1::HUGEINT AS n"),
    lambda: duckdb.sql("SELECT 'a' AS \"user\", INTERVAL 1 DAY AS n"),
    *(_mixed, _twice, _pandas_twice, _levels, _reader, _objects, _sliced_union),
    lambda: pa.table({"User": ["a"], "user": [1]}),
    lambda: pa.table({"user": pa.array(["a"]), "n": [{}]}),
    lambda: pa.table({"user": pa.array([None], pa.string()), "n": [1]}),
    lambda: pa.table({}),
    lambda: pa.table({"user": ["a", "a"], "n": [1, 2]}),
    lambda: pa.table({"n": [1]}),
    lambda: pa.table({"user": ["a"], "n": [1], "key_group": [0]}),
    lambda: pa.table({"user": ["a"], "n": [1], "a.b": [1], "": [2]}),
    lambda: [{"user": "a", "n": 2**70}],
    lambda: [{"user": "a", "n": Decimal("1e60")}],
    lambda: [{"user": "a", "n": Decimal("NaN")}],
    lambda: [{"user": "\ud800", "n": 1}],
    lambda: [{"user": "a", "n": object()}],
    lambda: [{"user": "a", "n": [1, "a"]}],
    lambda: [{"user": "a", "n": {1: 2}}],
    lambda: [{"user": "a", "n": {"b": {"b": datetime.max.replace(tzinfo=FAR)}}}],
    lambda: [{"user": "a", "n": datetime.max.replace(tzinfo=FAR)}],
    lambda: [{"user": "a", "n": float("nan")}, {"user": "b", "n": 1}],
    lambda: [{1: "a"}],
    lambda: [{"user": b"\xff", "n": 1}, {"user": "a", "n": 1}],
    lambda: [{"user": np.str_("a"), "n": np.int64(1)}],
    lambda: [{"user": "a", "n": pd.NaT}],
    lambda: [{"user": "a", "n": pa.scalar(1)}],
    lambda: [1, 2],
    lambda: "rows",
    lambda: pa.record_batch({"user": ["a"], "n": [1]}),
    lambda: [pa.record_batch({"user": ["a"], "n": [1]}), pa.record_batch({"user": ["b"]})],
    _one(pa.timestamp("s"), [2**40]),
    _one(pa.timestamp("s", "UTC"), [2**62]),
    _one(pa.timestamp("us"), [2**62]),
    _one(pa.timestamp("us", "Mars/Base"), [1]),
    _one(pa.date32(), [2**31 - 1]),
    _one(pa.date64(), [2**50]),
    _one(pa.time64("ns"), [1]),
    _one(pa.duration("s"), [2**62]),
    _one(pa.uint64(), [2**63]),
    _one(pa.float16(), [1.5]),
    _one(pa.decimal256(76, 0), [10**75]),
    _one(pa.decimal128(38, -5), [10**6]),
    _one(pa.null(), [None]),
    _one(pa.list_(pa.int64(), 2), [[1, 2]]),
    _one(pa.list_view(pa.int64()), [[1]]),
    _one(pa.binary(2), [b"ab"]),
    _one(pa.struct([]), [{}]),
    _one(pa.map_(pa.string(), pa.int64()), [[("a", 1), ("a", 2)]]),
    _one(pa.run_end_encoded(pa.int32(), pa.int64()), [1]),
    lambda: pa.table({"user": ["a"], "n": pa.array([datetime(2020, 1, 1)]).dictionary_encode()}),
    _one(pa.month_day_nano_interval(), [(1, 2, 3)]),
    _one(pa.uuid(), [b"0" * 16]),
    _one(pa.json_(), ["{}"]),
    _one(pa.struct([("a", pa.int64()), ("A", pa.int64())]), [{"a": 1, "A": 2}]),
)


def draw_hostile(draw: Random) -> Any:
    return draw.choice(VALUES)


def draw_rows(draw: Random) -> Any:
    """Return rows of any kind, or an invalid value."""
    return draw.choice(FRAMES)() if draw.random() < 0.85 else draw_hostile(draw)
