"""pandas between two Arrow tables: untouched values are identical bit for bit, and others are
exact.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.rows.dataframes import pandas_of
from statestore.rows.pandas_rows import pandas_as_stored, table_of_pandas
from tests.support.bits import bits, columns, kinds


@st.composite
def tables(draw: Any) -> pa.Table:
    """Draw a table of one to three columns."""
    length = draw(st.integers(0, 4))
    types = draw(st.lists(kinds(), min_size=1, max_size=3))
    arrays = [draw(columns(kind, length)) for kind in types]
    return pa.table(arrays, names=[f"c{at}" for at in range(len(types))])


@settings(deadline=None)
@given(rows=tables())
def test_untouched_values_are_identical_bit_for_bit(rows: pa.Table) -> None:
    """This holds for every type and both conversions, also after a frame was sliced, copied and
    reversed.
    """
    frame = pandas_of(rows)
    turned = frame.iloc[::-1].copy().iloc[::-1]
    for one in (frame, turned.reset_index(drop=True)):
        for back in (pandas_as_stored(one, rows.schema), table_of_pandas(one)):
            assert back.schema.equals(rows.schema)
            assert [*map(bits, back.columns)] == [*map(bits, rows.columns)]


INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("series", "kind", "values"),
    [
        (pd.Series([1.0, np.nan]), pa.int64(), [1, None]),
        (pd.Series([2.0**53 - 1]), pa.int64(), [2**53 - 1]),
        (pd.Series([[2.0**53 - 1, np.nan]]), pa.list_(pa.int64()), [[2**53 - 1, None]]),
        (pd.Series([1, 2]), pa.float64(), [1.0, 2.0]),
        (pd.Series([1, 2]), pa.int8(), [1, 2]),
        (pd.Series([1.5, np.nan]), pa.float64(), [1.5, "nan"]),
        (pd.Series([1.5, np.nan], dtype="object"), pa.float64(), [1.5, "nan"]),
        (pd.Series([1.5, None], dtype="object"), pa.float64(), [1.5, None]),
        (pd.Series([1.5, pd.NA], dtype="double[pyarrow]"), pa.float64(), [1.5, None]),
        (pd.Series([1, pd.NA], dtype="Int64"), pa.int64(), [1, None]),
        (pd.Series([2**62, None], dtype="object"), pa.int64(), [2**62, None]),
        (pd.Series([np.int64(7), pd.NA, np.nan], dtype="object"), pa.int64(), [7, None, None]),
        (pd.Series([np.nan, np.nan]), pa.string(), [None, None]),
        (pd.Series([], dtype="float64"), INSTANT, []),
        (pd.Series(["a", np.nan]), pa.string(), ["a", None]),
        (pd.Series(["a", None], dtype="category"), pa.string(), ["a", None]),
        (pd.Series([True, None]), pa.bool_(), [True, None]),
        (pd.Series([NOON, pd.NaT]), INSTANT, [NOON, None]),
        (pd.Series([pd.Timestamp(NOON).tz_convert("Asia/Tokyo")]), INSTANT, [NOON]),
        (pd.Series([pd.Timestamp("2024-05-06 12:00")]), LOCAL, [NOON.replace(tzinfo=None)]),
        (pd.Series([date(1, 1, 1), None]), pa.date32(), [date(1, 1, 1), None]),
        (pd.Series([Decimal("1.5")]), pa.decimal128(5, 2), [Decimal("1.50")]),
        (pd.Series([0.5]), pa.decimal128(5, 2), [Decimal("0.50")]),
        (pd.Series([[1, None], np.array([2]), None]), pa.list_(pa.int64()), [[1, None], [2], None]),
        (pd.Series([np.array([1, np.nan])]), pa.list_(pa.int32()), [[1, None]]),
        (pd.Series([np.array([1, np.nan], "f")]), pa.list_(pa.int16()), [[1, None]]),
        (pd.Series([np.array([[1, np.nan]])]), pa.list_(pa.list_(pa.int64())), [[[1, None]]]),
        (pd.Series([{"a": np.nan}]), pa.struct([("a", pa.int64())]), [{"a": None}]),
        (pd.Series([[("x", np.nan)]]), pa.map_(pa.string(), pa.int64()), [[("x", None)]]),
        (pd.Series([{"a": 1}, {}]), pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": None}]),
        (pd.Series([{"x": 1}]), pa.map_(pa.string(), pa.int64()), [[("x", 1)]]),
    ],
)
def test_an_equal_value_of_another_type_is_accepted(
    series: Any, kind: pa.DataType, values: list[Any]
) -> None:
    """pandas creates such types from Python values. NaN stays NaN if the column can hold it."""
    frame = pd.DataFrame({"v": series})
    frame.index = pd.Index([*range(7, 7 + len(frame))])  # the conversion ignores the index
    column = pandas_as_stored(frame, pa.schema([("v", kind)])).column("v")
    assert column.type == kind
    found = ["nan" if value != value else value for value in column.to_pylist()]
    assert found == values


@pytest.mark.parametrize(
    ("series", "kind", "message"),
    [
        (pd.Series([1.0, 4873214862074860545.0]), pa.int64(), r"row 1 .*4.87.*'v'.* long"),
        (pd.Series([-(2.0**53)]), pa.int64(), "row 0 .*-9007199254740992.0"),
        (pd.Series([2.0**53], dtype="double[pyarrow]"), pa.int64(), "int64.pyarrow"),
        (pd.Series([2.0**24], dtype="float32"), pa.int64(), "row 0 .*16777216.0"),
        (pd.Series([1, 2.0**53], dtype="object"), pa.int64(), "row 1 .*9007199254740992.0"),
        (pd.Series([[1], np.array([2.0**53, np.nan])]), pa.list_(pa.int64()), "row 1 .*'v'"),
        (pd.Series([[2.0**60]]), pa.list_(pa.decimal128(38, 0)), "row 0 .*may have been rounded"),
        (pd.Series([{"a": -(2.0**53)}]), pa.struct([("a", pa.int64())]), "row 0 .*rounded"),
        (pd.Series([[("x", 2.0**53)]]), pa.map_(pa.string(), pa.int64()), "row 0 .*rounded"),
        (pd.Series([[np.float32(2.0**24)]]), pa.list_(pa.int32()), "row 0 .*float.*rounded"),
        (
            pd.Series([[1.0], [2.0**60]], dtype=pd.ArrowDtype(pa.list_(pa.float64()))),
            pa.list_(pa.int64()),
            "row 1 .*double.*rounded",
        ),
        (pd.Series([1e20]), pa.decimal128(38, 0), "row 0 .*1e.20"),
        (pd.Series([1.5]), pa.int64(), r"1\.5 .*'v'.*long"),
        (pd.Series([300]), pa.int8(), "300 .*'v'.*byte"),
        (pd.Series([2**53 + 1]), pa.float64(), "9007199254740993 .*'v'.*double"),
        (pd.Series([0.1]), pa.decimal128(5, 2), "0.1"),
        (pd.Series([pd.Timestamp("2024-05-06 12:00")]), INSTANT, "'v'.*timestamp_ntz.*timestamp"),
        (pd.Series([pd.Timestamp(NOON)]), LOCAL, "'v'"),
        (pd.Series([pd.Timestamp(NOON)]), pa.date32(), "'v'"),
        (pd.Series([pd.Timestamp("2024-05-06 12:00:00.000000001")]), LOCAL, "'v'"),
        (pd.Series(["1"]), pa.int64(), "'1' .*'v'.*long"),
        (pd.Series([1]), pa.string(), "'v'.*string"),
        (pd.Series([True]), pa.int64(), "'v'.*long"),
        (pd.Series([[1.5]]), pa.list_(pa.int64()), r"1\.5 .*'v\[0\]'"),
        (pd.Series([{"b": 1}]), pa.struct([("a", pa.int64())]), "'v.b'"),
        (pd.Series([pd.Timedelta(1)]), pa.int64(), "'v'.*long"),
    ],
)
def test_a_value_that_would_change_is_refused(series: Any, kind: pa.DataType, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        pandas_as_stored(pd.DataFrame({"v": series}), pa.schema([("v", kind)]))
