"""The rows that a state cannot have are counted as a dictionary would count them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.engines.row_check import CheckedRows, check_rows
from statestore.engines.rows import ArrowRows
from statestore.errors import InvalidArgumentError
from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState, Layout, StateKind
from statestore.parquet.writer import ParquetOptions

SMALL = ParquetOptions(memory_bytes=2**16)


def keyed_state(scheme: str = "java") -> KeyedState:
    return KeyedState(
        uid="u",
        name="s",
        kind=StateKind.VALUE,
        schema=Schema((Field("k", "string"), Field("w", "long"), Field("v", "long"))),
        key=("k",),
        namespace=("w",),
        entry=(),
        key_types=("String" if scheme == "java" else "STRING",),
        max_parallelism=4,
        hash_scheme=scheme,
        time_domain=None,
        layout=Layout.RANGED,
        ttl=None,
    )


def table(rows: list[tuple[Any, Any]]) -> pa.Table:
    keys, windows = [key for key, _ in rows], [window for _, window in rows]
    columns = {"k": pa.array(keys, pa.string()), "w": pa.array(windows, pa.int64())}
    return pa.table({**columns, "v": pa.array(range(len(rows)), pa.int64())})


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.integers(0, 2)), max_size=30),
    st.integers(1, 7),
    st.booleans(),
)
def test_null_keys_and_duplicates_are_counted(
    rows: list[tuple[Any, int]], size: int, is_stream: bool
) -> None:
    whole = table(rows)
    tables = iter([pa.Table.from_batches([batch]) for batch in whole.to_batches(size)])
    given_rows = ArrowRows(whole.schema, tables) if is_stream else ArrowRows.of(whole)
    checked = check_rows(given_rows, keyed_state(), SMALL)
    with_keys = Counter(row for row in rows if row[0] is not None)
    repeated = {row for row, count in with_keys.items() if count > 1}
    assert checked.rows == len(rows)
    assert checked.null_keys == sum(key is None for key, _ in rows)
    assert checked.duplicates == sum(with_keys.values()) - len(with_keys)
    assert checked.is_valid is not (None in dict(rows) or bool(repeated))
    shown = {str({"k": key, "w": window}) for key, window in repeated}
    assert {*checked.duplicate_examples} <= shown
    assert len(checked.duplicate_examples) == min(len(shown), 3)
    nulls = [str({"k": None, "w": w, "v": v}) for v, (key, w) in enumerate(rows) if key is None]
    assert list(checked.null_key_examples) == nulls[:3]


@pytest.mark.slow
def test_duplicates_far_apart_are_found_on_disk() -> None:
    """The rows do not fit in memory, and equal ones are in different runs of the sort."""
    rows = [(f"{number:060}", 0) for number in range(3000)]
    checked = check_rows(ArrowRows.of(table([*rows, *rows[:7]])), keyed_state(), SMALL)
    assert (checked.rows, checked.null_keys, checked.duplicates) == (3007, 0, 7)


def test_in_flink_sql_a_null_is_a_key() -> None:
    checked = check_rows(
        ArrowRows.of(table([(None, 0), (None, 0)])), keyed_state("flink-sql"), SMALL
    )
    expected = CheckedRows(
        rows=2,
        null_keys=0,
        null_key_examples=(),
        duplicates=1,
        duplicate_examples=("{'k': None, 'w': 0}",),
    )
    assert checked == expected


def test_a_value_that_does_not_fit_is_named() -> None:
    rows = pa.table({"k": ["a", "b"], "w": [1.0, 2.5], "v": [1, 2]})
    with pytest.raises(InvalidArgumentError, match=r"2\.5 in the column 'w'"):
        check_rows(ArrowRows.of(rows), keyed_state(), SMALL)
