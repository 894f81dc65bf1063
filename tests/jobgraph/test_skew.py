"""Skewed subpartitions are split where records need not stay together, at the bounds of
the rule.
"""

from __future__ import annotations

import json

import pytest

from statestore.jobgraph.adaptive import ConsumedInput, Options, decide
from statestore.jobgraph.input_slices import (
    Slice,
    aligned_slices,
    cutter_of,
    groups_of,
    joined_slices,
)

Table = list[list[int]]


def _slices(
    table: Table, limit: int, *, factor: float = 1.0, threshold: int = 1, split: bool = True
) -> list[tuple[tuple[int, int], int, int]]:
    """Return the (partitions, subpartition, bytes) of a single side."""
    (side,) = joined_slices([([table], split)], limit, factor, threshold)
    return [((one.partitions[0], one.partitions[1]), one.subpartitions.first, one.size)
            for one in side]  # fmt: skip


def test_a_piece_stays_strictly_below_its_target() -> None:
    """Pieces of 60 and 40 would reach a target of 100, and pieces of 60 and 39 do not."""
    assert _slices([[60, 1, 1], [40, 0, 0]], 100)[:2] == [((0, 0), 0, 60), ((1, 1), 0, 40)]
    assert _slices([[60, 1, 1], [39, 0, 0]], 100)[:1] == [((0, 1), 0, 99)]


def test_a_piece_holds_one_partition_however_large() -> None:
    pieces = _slices([[500, 1, 1], [0, 0, 0], [3, 0, 0]], 10)[:2]
    assert pieces == [((0, 0), 0, 500), ((1, 2), 0, 3)]


def test_pieces_are_as_large_as_the_average_unskewed_input() -> None:
    """The others have 40 and 60 bytes, so the limit is 50. Pieces of 30 and 19 fit, and pieces of
    30 and 20 do not. A larger limit takes precedence.
    """
    rows = [[30, 40, 60], [20, 0, 0], [90, 0, 0]]
    assert [piece[0] for piece in _slices(rows, 1)[:3]] == [(0, 0), (1, 1), (2, 2)]
    rows[1][0] = 19
    assert [piece[0] for piece in _slices(rows, 1)[:2]] == [(0, 1), (2, 2)]
    assert [piece[0] for piece in _slices(rows, 120)[:2]] == [(0, 1), (2, 2)]
    assert [piece[0] for piece in _slices(rows, 140)[:1]] == [(0, 2)]


def test_a_subpartition_is_skewed_above_the_factor_times_the_median() -> None:
    """The median of 100, 50 and 10 is 50. Twice the median means no skew, and just below it there
    is skew.
    """
    rows = [[50, 50, 10], [50, 0, 0]]
    assert len(_slices(rows, 1, factor=2.0)) == 3
    assert len(_slices(rows, 1, factor=1.99)) == 4


def test_the_median_of_an_even_number_is_between_the_middle_two() -> None:
    """The median of 7, 4, 1 and 0 is 2, truncated. 4 is skewed above 3 bytes, and not above 4."""
    rows = [[6, 3, 1, 0], [1, 1, 0, 0]]
    assert len(_slices(rows, 1, factor=1.5)) == 6
    assert len(_slices(rows, 1, factor=2.0)) == 5


def test_no_subpartition_is_skewed_up_to_the_threshold() -> None:
    rows = [[50, 1, 1], [50, 0, 0]]
    assert len(_slices(rows, 1, threshold=100)) == 3
    assert len(_slices(rows, 1, threshold=99)) == 4


def test_inputs_that_must_stay_together_are_not_split() -> None:
    assert _slices([[500, 1, 1], [500, 0, 0]], 1, split=False)[0] == ((0, 1), 0, 1000)


def test_inputs_of_one_side_are_summed_and_split_alike() -> None:
    """Sides with different numbers of partitions have no common split."""
    two, three = [[50, 1], [50, 0]], [[50, 1], [50, 0], [1, 0]]
    (side,) = joined_slices([([two, two], True)], 1, 1.0, 1)
    assert [one.size for one in side] == [100, 100, 2]
    (side,) = joined_slices([([two, three], True)], 1, 1.0, 1)
    assert [tuple(one.partitions) for one in side] == [(0, 2), (0, 2)]


def test_every_piece_of_one_side_meets_every_piece_of_the_other() -> None:
    """The first side varies most slowly."""
    left, right = joined_slices([([[[9], [8]]], True), ([[[7], [6], [5]]], True)], 1, 0.1, 1)
    assert [one.size for one in left] == [9, 9, 9, 8, 8, 8]
    assert [one.size for one in right] == [7, 6, 5, 7, 6, 5]


def test_a_range_counts_repeated_reads_once() -> None:
    """The left sizes 2, 2, 1, 1, 1, 1 meet the right sizes 10 and 20 in turn. A new range has read
    nothing yet, and then it reads its first pieces.
    """
    left, right = joined_slices([([[[2], [1], [1]]], True), ([[[10], [20]]], True)], 1, 0.1, 1)
    cutter = cutter_of([left, right])
    assert (cutter.total, cutter.smallest) == (98, 11)
    assert cutter.stops(34, 9) == [6]
    assert cutter.stops(33, 9) == [4, 6]
    assert cutter.stops(32, 9) == [2, 6]
    assert cutter.stops(30, 9) == [1, 2, 3, 4, 5, 6]
    assert cutter.stops(30, 2) == [1, 2]


def test_aligned_slices_are_whole_partitions_or_parts_of_one() -> None:
    table = [[1, 2, 4], [8, 16, 32], [64, 128, 256]]
    assert [aligned_slice.size for aligned_slice in aligned_slices(table, 2)] == [
        7,
        8 + 16 + 32 + 64 + 128 + 256,
    ]
    assert [aligned_slice.size for aligned_slice in aligned_slices(table, 4)] == [7, 56, 64, 384]
    assert [aligned_slice.size for aligned_slice in aligned_slices(table, 9)] == [
        2**power for power in range(9)
    ]


def test_groups_are_few_and_know_their_input() -> None:
    """For all-to-all inputs a complete column is one group. An input with fewer partitions than the
    largest input of its side has only its own partitions.
    """
    (side,) = joined_slices([([[[1, 1], [1, 1], [1, 1]]], False)], 9, 4.0, 9)
    assert groups_of(side, 2, pointwise=False) == (((0, 1), (0, 1)),)
    parts = aligned_slices([[1, 1], [1, 1], [1, 1]], 6)[1:]
    assert groups_of(parts, 3, pointwise=True) == (((0, 0), (1, 1)), ((1, 2), (0, 1)))
    assert groups_of(parts, 3, pointwise=False) == (((0, 2), (1, 1)), ((1, 2), (0, 0)))
    assert isinstance(parts[0], Slice)


# Answers of DefaultVertexParallelismAndInputInfosDecider, Flink 2.3.0, for mixed kinds of inputs.
_MIXED = [
    (
        Options(bytes_per_task=2674, max_parallelism=2),
        [ConsumedInput([[0, 7]]), ConsumedInput([[69, 75912]], 1, pointwise=True)],
        "[[[[[0,0],[0,0]]],[[[0,0],[1,1]]]],[[[[0,0],[0,0]]],[[[0,0],[1,1]]]]]",
    ),
    (
        Options(bytes_per_task=100_000, min_parallelism=2, max_parallelism=10),
        [
            ConsumedInput(
                [[0, 6, 685, 667, 9], [0, 691, 0, 243, 0], [775, 28666, 371, 956, 341]], 2
            ),
            ConsumedInput(
                [
                    [10, 21293, 0, 713, 0],
                    [1, 634, 0, 10443, 8],
                    [0, 63580, 44251, 53896, 0],
                    [0, 881, 0, 3, 94598],
                    [0, 3, 0, 598, 0],
                ],
                inter_correlated=False,
                intra_correlated=False,
            ),
        ],
        (
            "[[[[[0,2],[0,0]]],[[[0,2],[1,1]]],[[[0,2],[2,4]]]],"
            "[[[[0,1],[2,4]],[[0,2],[0,1]]],[[[2,2],[2,4]],[[3,3],[0,0]]],"
            "[[[3,4],[1,4]],[[4,4],[0,0]]]]]"
        ),
    ),
    (
        Options(bytes_per_task=100_000, min_parallelism=3, max_parallelism=6, skewed_threshold=1),
        [
            ConsumedInput([[668, 0, 95226, 5], [100, 0, 0, 100]], 1, intra_correlated=False),
            ConsumedInput([[0, 3, 39697, 0]], pointwise=True),
        ],
        (
            "[[[[[0,1],[0,1]]],[[[0,0],[2,2]]],[[[0,1],[3,3]],[[1,1],[2,2]]]],"
            "[[[[0,0],[0,0]]],[[[0,0],[1,1]]],[[[0,0],[2,3]]]]]"
        ),
    ),
    (
        Options(bytes_per_task=1000, max_parallelism=11),
        [
            ConsumedInput([[505, 0, 0, 0, 5]], pointwise=True, intra_correlated=False),
            ConsumedInput([[98921, 0, 0, 54898, 100]], 1, broadcast=True, intra_correlated=False),
        ],
        (
            "[[[[[0,0],[0,0]]],[[[0,0],[1,3]]],[[[0,0],[4,4]]]],"
            "[[[[0,0],[0,4]]],[[[0,0],[0,4]]],[[[0,0],[0,4]]]]]"
        ),
    ),
    (
        Options(bytes_per_task=5000, max_parallelism=7),
        [
            ConsumedInput([[9, 461, 329]], 1, intra_correlated=False),
            ConsumedInput([[0, 100, 7490], [16, 0, 5]], 2, inter_correlated=False),
        ],
        "[[[[[0,0],[0,1]]],[[[0,0],[2,2]]]],[[[[0,1],[0,1]]],[[[0,1],[2,2]]]]]",
    ),
]
# fmt: on


@pytest.mark.parametrize(("options", "inputs", "answer"), _MIXED)
def test_inputs_of_several_kinds_are_cut_as_flink_does(
    options: Options, inputs: list[ConsumedInput], answer: str
) -> None:
    """Each input is cut by its share of the bytes, pointwise inputs first, and all into equally
    many ranges.
    """
    got = decide(inputs, options)
    assert json.loads(json.dumps(got.inputs)) == json.loads(answer)
    assert {len(subtasks) for subtasks in got.inputs} == {got.parallelism}
