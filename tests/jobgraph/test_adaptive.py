"""The parallelism from Flink's current adaptive batch scheduler, and key-group ranges cut
by bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.adaptive import BatchDecision, ConsumedInput, Options, decide
from statestore.jobgraph.input_slices import Slice, cutter_of, groups_by_number
from statestore.jobgraph.parallelism import (
    KeyGroupDecision,
    SizeCutter,
    Span,
    decide_for_key_groups,
    spans_by_bytes,
)
from statestore.keys.groups import KeyGroupAssignment
from tests.support.vectors import cases

CASES = cases("parallelism", "decide")
OPTIONS = {
    "per_task": "bytes_per_task",
    "min": "min_parallelism",
    "max": "max_parallelism",
    "default_source": "default_source_parallelism",
    "vertex_initial": "vertex_parallelism",
    "vertex_min": "vertex_min_parallelism",
    "vertex_max": "vertex_max_parallelism",
    "skewed_factor": "skewed_factor",
    "skewed_threshold": "skewed_threshold",
}
# Two groups of one subtask start at the same partition. The vectors list only the first.
ABRIDGED = (30, 111)


def _inputs(given_: dict[str, Any]) -> list[ConsumedInput]:
    return [
        ConsumedInput(
            one["bytes"],
            one.get("type", 0),
            broadcast=one.get("broadcast", False),
            pointwise=one.get("pointwise", False),
            inter_correlated=one.get("inter", True),
            intra_correlated=one.get("intra", True),
        )
        for one in given_["inputs"]
    ]


def _options(given_: dict[str, Any]) -> Options:
    return Options(**{ours: given_[theirs] for theirs, ours in OPTIONS.items() if theirs in given_})


def _decide(given_: dict[str, Any]) -> BatchDecision:
    return decide(_inputs(given_), _options(given_))


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _cells(decision: BatchDecision, number: int) -> Counter[tuple[int, int]]:
    """Count how often each (partition, subpartition) of an input is read."""
    return Counter(
        (row, column)
        for groups in decision.inputs[number]
        for rows, columns in groups
        for row in range(rows.first, rows.last + 1)
        for column in range(columns.first, columns.last + 1)
    )


# --- Flink's answers ------------------------------------------------------------------------------


def test_parallelism_and_ranges_equal_flinks() -> None:
    assert len(CASES) == 143
    for number, case in enumerate(CASES):
        if "error" in case:
            with pytest.raises(InvalidArgumentError):
                _decide(case["in"])
        else:
            got = _decide(case["in"])
            assert got.parallelism == case["out"]["parallelism"], case["in"]
            assert _plain(got.by_first_partition()) == case["out"]["inputs"], case["in"]
            assert (got.inputs == got.by_first_partition()) is (number not in ABRIDGED)


# Answers of the same Flink class for all groups. The vectors list only the first of two, or none.
_SKEWED = {
    "per_task": 200, "min": 1, "max": 4, "skewed_threshold": 100,
    "inputs": [{"bytes": [[10, 500, 10, 5]] * 3, "intra": False}],
}  # fmt: skip
_FINE = {
    "per_task": 1, "min": 1, "max": 7, "skewed_threshold": 1000,
    "inputs": [{"bytes": [[53924, 0, 0, 66875, 728], [0, 0, 4, 1, 0]], "intra": False}],
}  # fmt: skip


def test_a_slice_that_begins_where_another_group_does_is_not_lost() -> None:
    first, *_ = _decide(_SKEWED).inputs[0]
    assert first == (((0, 0), (1, 1)), ((0, 2), (0, 0)))


def test_more_subtasks_than_subpartitions_are_refused_even_if_slices_would_do() -> None:
    with pytest.raises(InvalidArgumentError, match=r"5 subpartitions of input 0 .* 6"):
        _decide(_FINE)


def test_a_set_parallelism_is_for_sources() -> None:
    options = Options(vertex_parallelism=3)
    assert decide([], options).parallelism == 3
    with pytest.raises(InvalidArgumentError, match="vertex_parallelism 3"):
        decide([ConsumedInput(((1, 2, 3),))], options)


def test_a_source_takes_the_largest_parallelism_by_default() -> None:
    assert decide([]).parallelism == 128
    assert decide([], Options(max_parallelism=5, vertex_max_parallelism=3)).parallelism == 3


def test_partitions_are_shared_by_number_as_a_last_resort() -> None:
    """Five subtasks read three partitions of four subpartitions: 2, 2 and 1 readers."""
    got = [groups[0] for groups in groups_by_number(3, 4, 5)]
    assert [group.partitions.first for group in got] == [0, 0, 1, 1, 2]
    assert [tuple(group.subpartitions) for group in got] == [(0, 1), (2, 3), (0, 1), (2, 3), (0, 3)]


# --- properties of every decision -----------------------------------------------------------------

sizes = st.sampled_from([0, 0, 1, 100]) | st.integers(0, 1000) | st.integers(0, 2**40)


@st.composite
def vertices(draw: st.DrawFn) -> tuple[list[ConsumedInput], Options]:
    width = draw(st.integers(1, 8))
    intra = draw(st.lists(st.booleans(), min_size=3, max_size=3))
    inputs = []
    for _ in range(draw(st.integers(1, 3))):
        type_number = draw(st.integers(0, 2))
        row = st.lists(sizes, min_size=width, max_size=width)
        kind = draw(st.sampled_from(["joined", "joined", "alone", "pointwise", "broadcast"]))
        inputs.append(
            ConsumedInput(
                draw(st.lists(row, min_size=1, max_size=4).map(tuple)),
                type_number,
                broadcast=kind == "broadcast",
                pointwise=kind == "pointwise",
                inter_correlated=kind == "joined",
                intra_correlated=intra[type_number],
            )
        )
    least, most = sorted(draw(st.tuples(st.integers(1, 4), st.integers(1, 12))))
    options = Options(
        bytes_per_task=draw(st.integers(1, 5000)),
        min_parallelism=least,
        max_parallelism=most,
        skewed_threshold=draw(st.sampled_from([1, 100, 256 << 20])),
        skewed_factor=draw(st.sampled_from([0.5, 4.0])),
    )
    return inputs, options


@pytest.mark.slow
@given(vertices())
def test_everything_is_read_within_the_bounds(vertex: tuple[list[ConsumedInput], Options]) -> None:
    """Every cell is read exactly once, unless a split side must meet it several times."""
    inputs, options = vertex
    try:
        got = decide(inputs, options)
    except InvalidArgumentError:
        reject()
    assert options.min_parallelism <= got.parallelism <= options.max_parallelism
    joined = sum(one.inter_correlated for one in inputs)
    for number, one in enumerate(inputs):
        assert len(got.inputs[number]) == got.parallelism
        read = _cells(got, number)
        rows, columns = range(len(one.partitions)), range(one.subpartitions)
        assert set(read) == {(row, column) for row in rows for column in columns}
        if one.broadcast:
            assert set(read.values()) == {got.parallelism}
        elif not one.inter_correlated or joined == 1:
            assert set(read.values()) == {1}


@given(vertices())
def test_inputs_that_must_stay_together_do(vertex: tuple[list[ConsumedInput], Options]) -> None:
    inputs, options = vertex
    only = [one for one in inputs if one.intra_correlated and not one.broadcast][:1]
    assume(only and not only[0].pointwise)
    try:
        got = decide(only, options)
    except InvalidArgumentError:
        reject()
    whole = Span(0, len(only[0].partitions) - 1)
    assert {group.partitions for groups in got.inputs[0] for group in groups} == {whole}


# --- cutting --------------------------------------------------------------------------------------


class NaiveCutter:
    """Ranges that are filled one element after another."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.total, self.smallest = sizes, sum(sizes), min(sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def stops(self, limit: int, most: int) -> list[int]:
        found: list[int] = []
        held = 0
        for index, size in enumerate(self.sizes):
            if index not in (0, *found[-1:]) and held + size > limit:
                found.append(index)
                held = 0
            held += size
        return [*found, len(self)][:most]


@given(
    st.lists(sizes, min_size=1, max_size=40),
    st.integers(0, 3000),
    st.integers(1, 50),
    st.integers(0, 50),
)
def test_the_fast_search_finds_the_ranges_of_the_naive_one(
    row: list[int], limit: int, least: int, more: int
) -> None:
    fast, slow = SizeCutter(row), NaiveCutter(row)
    assert fast.stops(limit, len(row)) == slow.stops(limit, len(row))
    assert fast.stops(-1, 3) == slow.stops(-1, 3)
    bounds = (limit, least, least + more)
    assert spans_by_bytes(fast, *bounds) == spans_by_bytes(slow, *bounds)


def test_a_slice_that_recurs_counts_once_in_a_range() -> None:
    """The left pieces 5 and 5 meet one right piece of 8: together 18 bytes, not 26."""
    left = [Slice(Span(0, 0), Span(0, 0), 5), Slice(Span(1, 1), Span(0, 0), 5)]
    right = [Slice(Span(0, 1), Span(0, 0), 8)] * 2
    cutter = cutter_of([left, right])
    assert cutter.total == 26
    assert cutter.stops(18, 9) == [2]
    assert cutter.stops(17, 9) == [1, 2]


# --- key groups -----------------------------------------------------------------------------------


def _for_key_groups(row: list[int], per_task: int, least: int, most: int) -> KeyGroupDecision:
    return decide_for_key_groups(
        row, bytes_per_task=per_task, min_parallelism=least, max_parallelism=most
    )


@given(
    st.lists(sizes, min_size=1, max_size=60),
    st.integers(1, 5000),
    st.integers(1, 8),
    st.integers(0, 60),
)
def test_key_groups_are_decided_as_one_keyed_input(
    row: list[int], per_task: int, least: int, more: int
) -> None:
    least = min(least, len(row))
    got = _for_key_groups(row, per_task, least, least + more)
    options = Options(bytes_per_task=per_task, min_parallelism=least, max_parallelism=least + more)
    flink = decide([ConsumedInput((tuple(row),))], options)
    assert got.parallelism == flink.parallelism == len(got.byte_ranges)
    assert [((0, 0), (byte_range.first, byte_range.last)) for byte_range in got.byte_ranges] == [
        groups[0] for groups in flink.inputs[0]
    ]
    assert [group for byte_range in got.byte_ranges for group in byte_range] == list(
        range(len(row))
    )
    assert sum(got.byte_range_bytes) == sum(got.even_range_bytes) == got.total_bytes == sum(row)
    even = KeyGroupAssignment(max_parallelism=len(row), parallelism=got.parallelism)
    assert len(got.even_range_bytes) == len(even.ranges())


def test_a_decision_explains_itself() -> None:
    """480 bytes at 100 per task give 5 tasks, or 6 complete ranges. 4 are allowed, with up to 150
    bytes.
    """
    got = _for_key_groups([90, 90, 60, 60, 90, 90], 100, 1, 4)
    assert (got.first_guess, got.ranges_at_limit, got.parallelism) == (4, 6, 4)
    assert list(map(str, got.byte_ranges)) == ["0..0", "1..2", "3..4", "5..5"]
    assert got.byte_range_bytes == (90, 150, 150, 90)
    assert got.even_range_bytes == (180, 60, 150, 90)


def test_cutting_by_bytes_balances_better_than_cutting_by_number() -> None:
    got = _for_key_groups([300, 300, 10, 10, 10, 10, 10, 10], 300, 1, 128)
    assert got.parallelism == 3
    assert (got.largest_by_bytes, got.largest_by_number) == (300, 610)


def test_there_is_never_a_subtask_without_a_key_group() -> None:
    assert _for_key_groups([10] * 8, 1, 1, 32_768).parallelism == 8
    with pytest.raises(InvalidArgumentError, match=r"min_parallelism 9 .* key groups, 8"):
        _for_key_groups([10] * 8, 1, 9, 128)


@pytest.mark.slow
@pytest.mark.parametrize(("least", "most"), [(1, 128), (200, 300), (1, 20_000), (20_000, 32_768)])
def test_all_key_groups_that_there_can_be_are_decided(least: int, most: int) -> None:
    row = [(index * 7919) % 100_003 for index in range(32_768)]
    got = _for_key_groups(row, 60_000, least, most)
    assert least <= got.parallelism <= most


# --- invalid input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: _for_key_groups([1, -2], 1, 1, 1), "key group 1 .* not -2"),
        (lambda: _for_key_groups([True], 1, 1, 1), "key group 0"),
        (lambda: _for_key_groups([1], -1, 1, 1), "bytes_per_task"),
        (lambda: _for_key_groups([], 1, 1, 1), "0 key groups"),
        (lambda: _for_key_groups([1] * 32_769, 1, 1, 1), "32769 key groups"),
        (lambda: ConsumedInput(()), "partition with at least one subpartition"),
        (lambda: ConsumedInput(((),)), "partition with at least one subpartition"),
        (lambda: ConsumedInput(((1, 2), (3,))), "partition 1 has 1 .* partition 0 has 2"),
        (lambda: ConsumedInput(((1,), (-4,))), "partition 1, subpartition 0 .* not -4"),
        (lambda: ConsumedInput(((1,),), pointwise=True, broadcast=True), "not both"),
        (lambda: Options(bytes_per_task=0), "bytes_per_task"),
        (lambda: Options(skewed_factor=0), "skewed_factor"),
        (lambda: Options(skewed_factor=float("nan")), "skewed_factor"),
        (lambda: Options(skewed_threshold=0), "skewed_threshold"),
        (lambda: Options(vertex_max_parallelism=0), "vertex_max_parallelism"),
        (
            lambda: Options(vertex_parallelism=3, vertex_max_parallelism=2),
            "vertex_parallelism 3 is above",
        ),
        (lambda: Options(default_source_parallelism=0), "default_source_parallelism"),
        (
            lambda: decide(
                [ConsumedInput(((1,),))], Options(vertex_min_parallelism=6, max_parallelism=4)
            ),
            "vertex_min_parallelism 6 is above max_parallelism 4",
        ),
        (lambda: decide([ConsumedInput(((1,),)), ConsumedInput(((1, 2),))]), r"\[1, 2\] subpart"),
        (
            lambda: decide(
                [ConsumedInput(((1,),)), ConsumedInput(((1,),), intra_correlated=False)]
            ),
            "type number 0 differ",
        ),
    ],
)
def test_an_invalid_argument_is_named(call: Any, names: str) -> None:
    with pytest.raises(InvalidArgumentError, match=names):
        call()
