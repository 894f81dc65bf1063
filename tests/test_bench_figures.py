"""The figures of the bench: a median, and the figures that a median hides."""

from __future__ import annotations

import pytest

from bench.measure import Figure, sample, times
from bench.run import HEADINGS, line_of, row_of


def test_a_tail_shows_the_run_that_the_median_hides() -> None:
    seconds = [0.1] * 197 + [5.0, 6.0, 7.0]
    figure = sample("B17", "checkpoint", seconds, tail=True)
    assert (figure.value, figure.low, figure.high) == (0.1, 0.1, 7.0)
    assert figure.p99 == 5.0
    assert figure.total == pytest.approx(0.1 * 197 + 18)
    assert "| 5 | 37.7 |" in line_of(figure)


def test_the_percentile_of_few_runs_is_the_largest() -> None:
    assert sample("B18", "micro-batch", [3.0, 1.0, 2.0], tail=True).p99 == 3.0


def test_a_ratio_keeps_its_tail() -> None:
    seconds = {"ours": [2.0, 2.0, 9.0], "floor": [1.0, 1.0, 1.0]}
    figure = times("B18", "ours", seconds, floor="floor", goal=1.5, tail=True)
    assert (figure.ratio, figure.p99, figure.total, figure.reached) == (2.0, 9.0, 13.0, False)


def test_a_line_has_a_cell_for_each_heading() -> None:
    without_tail = Figure("B1", "snapshot", 1.0, "s", 0.9, 1.1)
    with_tail = sample("B1", "snapshot", [1.0, 2.0], tail=True)
    assert len(row_of(without_tail)) == len(row_of(with_tail)) == len(HEADINGS)
