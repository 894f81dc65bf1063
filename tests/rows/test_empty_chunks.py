"""Streams of sliced tables contain empty batches whose buffers are shorter than their offsets
require.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from statestore.engines.given_rows import as_table
from statestore.format.digest import combine
from statestore.keys.arrow import key_groups
from statestore.rows.digests import hash_array, rows_digest
from statestore.rows.equality import as_bytes
from tests.support.strategies import Kind, ordered_kinds, value_kinds

cuts = st.lists(st.integers(0, 4), max_size=4).map(lambda found: sorted([0, *found, 4]))


@given(kind=value_kinds, data=st.data(), cuts=cuts)
def test_empty_batches_add_no_rows(kind: Kind, data: st.DataObject, cuts: list[int]) -> None:
    values = data.draw(st.lists(st.none() | kind.values, min_size=6, max_size=6))
    whole = pa.table({"n": pa.array(range(6), pa.int64()), "v": pa.array(values, kind.type)})
    sliced = whole.slice(2, 4)
    chunks = [sliced.slice(a, b - a) for a, b in pairwise(cuts)]
    stream = pa.concat_tables(chunks).to_reader()
    rows = as_table(stream)
    assert repr(rows.to_pylist()) == repr(sliced.to_pylist())
    assert repr(rows.combine_chunks().to_pylist()) == repr(sliced.to_pylist())
    assert rows_digest(rows) == combine(rows_digest(batch) for batch in sliced.to_batches())
    found = key_groups([rows.column("n")], max_parallelism=128)
    assert found.tolist() == key_groups([sliced.column("n")], max_parallelism=128).tolist()


def test_an_empty_decimal_can_have_a_buffer_of_any_length() -> None:
    odd = pa.Array.from_buffers(pa.decimal128(38, 18), 0, [None, pa.py_buffer(b"\0")])
    assert len(hash_array(odd)) == 0
    empty = pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), odd)
    assert as_bytes(empty).to_pylist() == [b"\0"]


@given(kind=ordered_kinds, data=st.data(), cut=st.integers(0, 3))
def test_lists_in_order_are_the_same_in_a_stream(kind: Kind, data: st.DataObject, cut: int) -> None:
    """This holds for any slicing, also if a chunk has only lists without elements."""
    lists: st.SearchStrategy[Any] = (
        st.none() | st.just([]) | st.lists(kind.values, min_size=1, max_size=2)
    )
    values = data.draw(st.lists(lists, min_size=6, max_size=6))
    whole = pa.table({"v": pa.array(values, pa.list_(kind.type))})
    rows = as_table(pa.concat_tables([whole.slice(cut, 1), whole.slice(4, 0), whole]).to_reader())
    found = [one for chunk in rows.column("v").chunks for one in as_bytes(chunk).to_pylist()]
    alone = [as_bytes(pa.array([value], pa.list_(kind.type)))[0].as_py() for value in values]
    assert found == [alone[cut], *alone]
