"""Convert values from Arrow to Python for a processor, and back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from statestore.errors import InvalidArgumentError
from statestore.format.state import StateKind
from statestore.rows.lossless_cast import UnfitError
from statestore.streaming.handle import MapState, ProcessorClock, Variable
from statestore.streaming.python_values import arrow_column, first_unreadable, python_values
from tests.support.bits import bits, columns, kinds

ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia")
INSTANT = T.TimestampType()


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    """Set a time zone for the test."""
    yield from in_zone(request.param)


def in_zone(name: str) -> Iterator[str]:
    """Set the time zone of the process, and restore it."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    yield name
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


def again(column: pa.Array, kind: T.DataType) -> pa.Array:
    """Return a column after a conversion to Python and back."""
    return arrow_column(python_values(column, kind), kind, name="v", subject="state 's'")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_values_are_equal_or_refused(zone: str, data: st.DataObject) -> None:
    """For every type and time zone, and for slices."""
    kind = from_arrow_type(data.draw(kinds()), prefer_timestamp_ntz=True)
    rows = data.draw(columns(to_arrow_type(kind, timezone="UTC"), 5))
    column = rows[1:]
    try:
        found = again(column, kind)
    except (UnfitError, OverflowError, TypeError, ValueError):
        at, _, _ = first_unreadable(column, lambda part: python_values(part, kind))
        with pytest.raises((UnfitError, OverflowError, TypeError, ValueError)):
            python_values(column[at : at + 1], kind)
    else:
        assert bits(found) == bits(rows.take([1, 2, 3, 4]))


@pytest.mark.parametrize("pattern", [0x7F800001, 0x7FBFFFFF, -0x7FFFFF, -0x400001])
@pytest.mark.parametrize("level", ["float", "array", "struct", "map", "structs in an array"])
def test_a_signalling_nan_is_refused(pattern: int, level: str) -> None:
    """Python's double makes it quiet, at every level; the others keep their bits."""
    plain = T.FloatType()
    struct = T.StructType([T.StructField("a", plain)])
    kind = {
        "float": plain,
        "array": T.ArrayType(plain),
        "struct": struct,
        "map": T.MapType(T.IntegerType(), plain),
        "structs in an array": T.ArrayType(struct),
    }[level]

    def column(bit: int) -> pa.Array:
        values = pa.array([bit], pa.int32()).view(pa.float32())
        if level.startswith("struct"):
            values = pa.StructArray.from_arrays([values], names=["a"])
        if level == "map":
            return pa.MapArray.from_arrays([0, 1], pa.array([1], pa.int32()), values)
        return pa.ListArray.from_arrays([0, 1], values) if "array" in level else values

    with pytest.raises(UnfitError, match=f"0x{pattern & 0xFFFFFFFF:08X} are a signalling NaN"):
        python_values(column(pattern), kind)
    for other in (0x7FC00001, -0x3FFFFF, 0x7F800000, -0x800000, 1):
        assert bits(again(column(other), kind)) == bits(column(other))


TURNS = [
    datetime(2025, 10, 26, 0, 30, tzinfo=UTC),  # the repeated hour in Berlin
    datetime(2025, 10, 26, 1, 30, tzinfo=UTC),
    datetime(2025, 4, 5, 14, 45, tzinfo=UTC),  # the repeated half hour on Lord Howe
    datetime(2025, 4, 5, 15, 15, tzinfo=UTC),
    datetime(2011, 12, 30, 9, 59, 59, 999999, tzinfo=UTC),  # the day that Apia skipped
    datetime(1850, 1, 1, 12, tzinfo=UTC),
    datetime(1, 1, 1, 12, tzinfo=UTC),
    datetime(9999, 12, 31, 11, 59, 59, 999999, tzinfo=UTC),
    None,
]


def test_instants_are_the_same_in_every_zone(zone: str) -> None:
    """Also if they share a local time, or are a day from the limits of Python's years."""
    column = pa.array(TURNS[:6] + TURNS[-1:], pa.timestamp("us", "UTC"))
    assert again(column, INSTANT).equals(column)
    assert again(column.cast(pa.timestamp("us", "Europe/Berlin")), INSTANT).equals(column)
    for moment in TURNS[6:8]:
        column = pa.array([moment], pa.timestamp("us", "UTC"))
        try:
            values = python_values(column, INSTANT)
        except (OverflowError, ValueError):
            # outside Python's years in that zone
            assert zone in ("America/St_Johns", "Pacific/Apia")
        else:
            assert values[0].tzinfo is None
            assert again(column, INSTANT).equals(column)


def test_a_map_with_two_instants_of_one_local_time() -> None:
    """A map state can have both; a dictionary cannot, and is refused."""
    for _ in in_zone("Europe/Berlin"):
        keys = pa.array(TURNS[:2], pa.timestamp("us", "UTC"))
        first, second = python_values(keys, INSTANT)
        assert first == second
        entry = T.StructType([T.StructField("at", INSTANT)])
        value = T.StructType([T.StructField("n", T.LongType())])
        state = MapState(Variable("s", StateKind.MAP, value, entry), ProcessorClock("none"))
        state.begin([(first, 1), (second, 2)])
        assert [state.getValue((one,)) for one in (first, second)] == [(1,), (2,)]
        assert state.getValue((TURNS[1],)) == (2,)
        assert state.getValue((first.replace(tzinfo=None, fold=1),)) == (2,)
        state.removeKey((first,))
        assert state.changed().deletes == [(first,)]
        assert next(state.keys())[0].fold == 1
        maps = pa.MapArray.from_arrays([0, 2], keys, pa.array([1, 2]))
        with pytest.raises(UnfitError, match="equal in Python"):
            python_values(maps, T.MapType(INSTANT, T.LongType()))


DECIMAL = T.DecimalType(4, 2)
PAIR = T.StructType([T.StructField("x", T.LongType()), T.StructField("y", T.ArrayType(INSTANT))])


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (2.5, T.LongType(), "2.5 in the column 'v' of type long"),
        (float("nan"), T.LongType(), "nan in the column 'v'"),
        (True, T.LongType(), "True in the column 'v'"),
        (2**53 + 1, T.DoubleType(), "9007199254740993 in the column 'v'"),
        (Decimal("1.005"), DECIMAL, "1.005.* decimal places"),
        (5, T.StringType(), "5 in the column 'v' of type string"),
        (datetime(2024, 1, 1), T.DateType(), "column 'v' of type date"),
        (date(2024, 1, 1), INSTANT, "column 'v' of type timestamp"),
        (datetime(2024, 1, 1, tzinfo=UTC), T.TimestampNTZType(), "it has a time zone"),
        (pd.Timestamp("2024-01-01 00:00:00.000000001"), INSTANT, "1 ns"),
        ((1, 2, 3), PAIR, "column 'v' of type struct"),
        (Row(x=1, y=[None, "x"]), PAIR, r"'x' in the column 'v\.y\[1\]' of type timestamp"),
        ({"x": 1, "z": 2}, PAIR, r"no field 'z'"),
    ],
)
def test_values_that_would_change_are_refused(value: Any, kind: T.DataType, message: str) -> None:
    """The error has the position of the value."""
    with pytest.raises(InvalidArgumentError, match=f"row 1 of state 's' has .*{message}"):
        arrow_column([None, value], kind, name="v", subject="state 's'")


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (2.0, T.LongType(), 2),
        (np.int32(7), T.DecimalType(4, 2), Decimal("7.00")),
        (bytearray(b"\0"), T.BinaryType(), b"\0"),
        (
            np.datetime64("2024-01-01T00:00:00.5", "ms"),
            INSTANT,
            datetime(2024, 1, 1, 0, 0, 0, 500000),
        ),
        (pd.Timestamp("2024-01-01"), INSTANT, datetime(2024, 1, 1)),
        (pd.Timestamp("2024-01-01", tz="Europe/Berlin"), INSTANT, datetime(2023, 12, 31, 23)),
        (pd.NaT, INSTANT, None),
        ((1, [datetime(2024, 1, 1)]), PAIR, Row(x=1, y=[datetime(2024, 1, 1)])),
        (Row(y=None, x=1), PAIR, Row(x=1, y=None)),
        ({"x": 1}, PAIR, Row(x=1, y=None)),
    ],
)
def test_equal_values_of_other_python_types_are_accepted(
    value: Any, kind: T.DataType, expected: Any
) -> None:
    """Naive times are local times."""
    for _ in in_zone("UTC"):
        column = arrow_column([value], kind, name="v", subject="s")
        assert python_values(column, kind) == [expected]
