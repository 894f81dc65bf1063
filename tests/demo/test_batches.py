"""Micro-batches cover the input exactly once at any speed, and stop at the given limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.demo.job import micro_batches, partitions_by_subtask

pytestmark = pytest.mark.spark

ENDS = st.dictionaries(st.integers(1, 12), st.integers(0, 300), min_size=1)


@given(ENDS, st.integers(1, 16), st.integers(0, 4000))
def test_batches_are_contiguous_up_to_the_limit(
    ends: dict[int, int], parallelism: int, limit: int
) -> None:
    here = dict.fromkeys(ends, 0)
    rows = 0
    for batch in micro_batches(here, ends, parallelism, limit):
        assert batch.starts == here
        assert all(here[p] <= batch.stops[p] <= ends[p] for p in ends)
        assert batch.rows > 0
        here = dict(batch.stops)
        rows += batch.rows
    assert rows == min(limit, sum(ends.values()))


@given(ENDS, st.integers(1, 16))
def test_every_partition_is_read_by_one_subtask(ends: dict[int, int], parallelism: int) -> None:
    assigned = partitions_by_subtask(ends, parallelism)
    assert len(assigned) == parallelism
    assert sorted(p for mine in assigned for p in mine) == sorted(ends)


def test_half_of_the_input_is_three_uneven_batches_that_finish_no_partition() -> None:
    ends = dict.fromkeys(range(1, 13), 28_000)
    batches = micro_batches(dict.fromkeys(ends, 0), ends, 4, 168_000)
    assert len(batches) == 3
    stops = batches[-1].stops.values()
    assert sum(stops) == 168_000
    assert len(set(stops)) >= 4
    assert all(0 < stop < 28_000 for stop in stops)
