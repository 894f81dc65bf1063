"""The parallelism of Flink 1.15 and 1.16: a power of two that depends only on bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.adaptive import ConsumedInput
from statestore.jobgraph.parallelism import parallelism_of_flink_1_16
from tests.support.vectors import cases

CASES = cases("parallelism_2022", "decide_2022")
OPTIONS = {
    "per_task": "bytes_per_task",
    "min": "min_parallelism",
    "max": "max_parallelism",
    "vertex_max": "vertex_max_parallelism",
    "default_source": "default_source_parallelism",
}


def _decide(given_: dict[str, Any]) -> int:
    inputs = [
        ConsumedInput([one["sizes"] or [0]], broadcast=one.get("broadcast", False))
        for one in given_["inputs"]
    ]
    options = {ours: given_[theirs] for theirs, ours in OPTIONS.items() if theirs in given_}
    return parallelism_of_flink_1_16(inputs, **options)


def test_the_parallelism_equals_flinks() -> None:
    assert len(CASES) == 94
    for case in CASES:
        if "error" in case:
            with pytest.raises(InvalidArgumentError):
                _decide(case["in"])
        else:
            assert _decide(case["in"]) == case["out"], case["in"]


@given(
    st.integers(0, 2**50),
    st.integers(0, 2**40),
    st.integers(1, 2**35),
    st.integers(1, 128),
    st.integers(256, 32_768),
)
def test_it_is_a_power_of_two_within_the_bounds(
    size: int, broadcast: int, per_task: int, least: int, most: int
) -> None:
    inputs = [ConsumedInput([[size]]), ConsumedInput([[broadcast]], broadcast=True)]
    got = parallelism_of_flink_1_16(
        inputs, bytes_per_task=per_task, min_parallelism=least, max_parallelism=most
    )
    assert least <= got <= most
    assert got.bit_count() == 1


@pytest.mark.parametrize(
    ("number", "rounded"), [(1, 1), (2, 2), (3, 4), (5, 4), (6, 8), (11, 8), (12, 16)]
)
def test_the_nearest_power_of_two_is_taken_ties_upwards(number: int, rounded: int) -> None:
    assert parallelism_of_flink_1_16([ConsumedInput([[number * 10]])], bytes_per_task=10) == rounded


def test_broadcast_bytes_take_half_of_a_task_at_most() -> None:
    """There are 16 tasks of 100 bytes, or of 50 if the broadcast input is large."""
    data = ConsumedInput([[1600]])
    assert parallelism_of_flink_1_16([data], bytes_per_task=100) == 16
    for broadcast in (50, 10**9):
        both = [data, ConsumedInput([[broadcast]], broadcast=True)]
        assert parallelism_of_flink_1_16(both, bytes_per_task=100) == 32


def test_one_byte_per_task_leaves_no_room_after_broadcast_bytes() -> None:
    """Half of one byte is rounded up to one byte. This avoids a division by zero and leaves no
    other bytes.
    """
    broadcast = ConsumedInput([[7]], broadcast=True)
    assert (
        parallelism_of_flink_1_16(
            [ConsumedInput([[5]]), broadcast], bytes_per_task=1, max_parallelism=8
        )
        == 8
    )
    assert (
        parallelism_of_flink_1_16(
            [broadcast], bytes_per_task=1, min_parallelism=2, max_parallelism=8
        )
        == 2
    )


def test_more_tasks_than_flink_can_count_are_the_maximum() -> None:
    assert (
        parallelism_of_flink_1_16([ConsumedInput([[2**60]])], bytes_per_task=1, max_parallelism=100)
        == 64
    )


def test_negative_bytes_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"partition 0, subpartition 1 .* not -5"):
        ConsumedInput([[1, -5]])


@pytest.mark.parametrize("per_task", [0, -1, 1.5, True])
def test_bytes_per_task_must_be_positive(per_task: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="bytes_per_task"):
        parallelism_of_flink_1_16([ConsumedInput([[1]])], bytes_per_task=per_task)
