"""The order of lists: Python's order of lists of sort keys, and Spark's order."""

from __future__ import annotations

from itertools import pairwise
from math import copysign
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from statestore.rows.equality import as_bytes, equal_rows
from statestore.rows.row_order import RowOrder
from tests.fuzz.givers import plain_table
from tests.fuzz.history import Column
from tests.fuzz.kinds import Kind, name_of
from tests.fuzz.values import draw_ordered_kind, draw_value

pytestmark = pytest.mark.slow

VALUES = 60


def lists_of(seed: int) -> tuple[Kind, list[Any], pa.Array]:
    """Return a list type with at most three levels, some values of it, and their column."""
    draw = Random(seed)
    kind = ("array", draw_ordered_kind(draw, 2))
    values = [draw_value(draw, kind, draw.choice((0, 0.2))) for _ in range(VALUES)]
    table = plain_table([{"x": value} for value in values], [Column("x", kind)])
    return kind, values, table.column("x").combine_chunks()


def place(value: Any, kind: Kind, zeros_differ: bool = True) -> Any:
    """Return a sort key that orders values in Python: null first, NaN last."""
    if value is None:
        return (0,)
    match name_of(kind):
        case "array":
            return (1, [place(element, kind[1], zeros_differ) for element in value])
        case "struct":
            return (1, [place(value[name], part, zeros_differ) for name, part in kind[1]])
        case "float" | "double":
            is_nan = value != value
            sign = copysign(1, value) if zeros_differ and not is_nan else 0
            return (1, is_nan, 0.0 if is_nan else value, sign)
    return (1, value.encode() if isinstance(value, str) else value)


@pytest.mark.long_cases(
    "6",
    "7",
    "8",
    "9",
    "10",
    "11",
    "12",
    "13",
    "14",
    "15",
    "16",
    "17",
    "18",
    "19",
    "20",
    "21",
    "22",
    "23",
    "24",
)
@pytest.mark.parametrize(
    "seed", [*range(25), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(25, 100))]
)
def test_sort_bytes_have_the_order_of_the_lists(seed: int) -> None:
    """This includes slices. Equal lists have equal bytes, and a null list has none."""
    kind, values, column = lists_of(seed)
    skipped = seed % 3
    values, column = values[skipped:], column.slice(skipped)
    found = as_bytes(column)
    found.validate(full=True)
    assert found.is_null().to_pylist() == [value is None for value in values]
    places = [place(value, kind) for value in values]
    by = [("x", "ascending", "at_start")]
    order = pc.sort_indices(pa.table({"x": found}), sort_keys=by).to_pylist()
    assert [places[at] for at in order] == sorted(places)
    table = pa.table({"x": column})
    for at, one in enumerate(places):
        same = equal_rows(table, table.take(pa.array([at] * len(values))))
        assert same.tolist() == [other == one for other in places]


def test_no_lists_have_no_bytes() -> None:
    assert (
        as_bytes(pa.array([], pa.list_(pa.struct([("a", pa.list_(pa.string()))])))).to_pylist()
        == []
    )


def test_spark_has_the_same_order(spark: SparkSession) -> None:
    """Spark treats the two zeros as equal."""
    for seed in range(12):
        kind, values, column = lists_of(seed)
        rows = pa.table({"at": pa.array(range(VALUES), pa.int64()), "x": column})
        frame = spark.createDataFrame(rows).coalesce(1)
        by = F.col("x").asc_nulls_first()
        order = [row.at for row in frame.sortWithinPartitions(by).select("at").collect()]
        places = [place(value, kind, zeros_differ=False) for value in values]
        assert [places[at] for at in order] == sorted(places)


def test_verify_checks_the_order_in_files() -> None:
    """``verify`` reads the file batch by batch."""
    for seed in range(10):
        kind, values, column = lists_of(seed)
        order = sorted(range(VALUES), key=lambda at: place(values[at], kind))
        for wanted, at in ((True, order), (False, [*order[1:], order[0]])):
            seen = RowOrder(["x"])
            rows = pa.record_batch([column.take(pa.array(at))], ["x"])
            for first in range(0, VALUES, 7):
                seen.check_batch(rows.slice(first, 7))
            same = sum(place(values[a], kind) == place(values[b], kind) for a, b in pairwise(at))
            assert (seen.is_sorted, seen.duplicates) == (wanted, same)
