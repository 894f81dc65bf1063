"""A stream of tables is a list if it fits in memory; otherwise it stays a stream."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from statestore.rows.sorting import fit_or_stream

ROW_BYTES = 8


def make_tables(counts: list[int]) -> list[pa.Table]:
    return [pa.table({"a": pa.array([number] * count)}) for number, count in enumerate(counts)]


@given(st.lists(st.integers(0, 3), max_size=5), st.integers(0, 12))
def test_all_tables_are_returned_in_order(counts: list[int], most_rows: int) -> None:
    tables = make_tables(counts)
    found = fit_or_stream(iter(tables), most_rows * ROW_BYTES)
    assert isinstance(found, list) is (sum(counts) <= most_rows)
    assert [*found] == tables


def test_a_yielded_table_is_not_kept() -> None:
    kept: list[weakref.ref[pa.Table]] = []

    def stream() -> Iterator[pa.Table]:
        for _ in range(3):
            (table,) = make_tables([1])
            kept.append(weakref.ref(table))
            yield table

    found = fit_or_stream(stream(), ROW_BYTES)
    assert not isinstance(found, list)
    assert len(kept) == 2  # the second one shows that they do not fit
    next(found)
    next(found)
    assert kept[0]() is None
