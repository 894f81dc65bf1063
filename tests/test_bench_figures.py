"""The figures of the bench: a median, and the figures that a median hides."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.measure import Failure, Figure, output_of, sample, times
from bench.run import HEADINGS, Section, line_of, measured, row_of
from bench.scale import Line


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


def test_a_loaded_machine_is_named_in_the_line() -> None:
    figure = Figure("B1", "snapshot", 1.0, "s", 0.9, 1.1)
    assert row_of(replace(figure, load=0.05))[-1] == ""
    assert row_of(replace(figure, load=1.26))[-1] == "1.3 cores busy"


def test_a_program_that_fails_tells_its_exit_code_and_its_last_lines() -> None:
    assert output_of([sys.executable, "-c", "print('a figure')"]) == "a figure\n"
    code = "import sys; print('begun'); print('no memory', file=sys.stderr); sys.exit(3)"
    with pytest.raises(RuntimeError, match=r"exit 3:\nbegun\nno memory"):
        output_of([sys.executable, "-c", code])


def test_a_line_through_times_has_its_fixed_part_and_its_distance() -> None:
    exact = [(1e9, 3.0), (4e9, 9.0), (16e9, 33.0)]
    line = Line.through(exact)
    assert line.fixed == pytest.approx(1.0)
    assert line.per_byte == pytest.approx(2e-9)
    assert line.residual(exact) == pytest.approx(0.0)
    assert line.residual([(1e9, 4.0), (4e9, 9.0)]) == pytest.approx(0.25)
    assert line.seconds(13e12 / 1000) == pytest.approx(27.0)


def killed(folder: Path, rows: int, repeats: int) -> list[Figure]:
    os._exit(9)


def failing(folder: Path, rows: int, repeats: int) -> list[Figure]:
    raise ValueError("a column is\nmissing")


@pytest.mark.long
@pytest.mark.parametrize(("figures", "words"), [(killed, "Broken"), (failing, "is / missing")])
def test_a_section_that_fails_is_a_line_with_its_last_words(
    figures: Callable[[Path, int, int], list[Figure]], words: str
) -> None:
    arguments = argparse.Namespace(directory=None, rows=None, repeats=1)
    lines = measured(Section(("B1", "B2"), figures, 10), arguments)
    assert [line.target for line in lines] == ["B1", "B2"]
    for line in lines:
        assert isinstance(line, Failure)
        assert words in line.reason
        assert len(row_of(line)) == len(HEADINGS)


def one(folder: Path, rows: int, repeats: int) -> list[Figure]:
    return [sample("", "snapshot", [float(rows)] * repeats)]


def test_a_section_gives_its_figures_with_its_target_and_the_load() -> None:
    arguments = argparse.Namespace(directory=None, rows=None, repeats=2)
    (figure,) = measured(Section(("B1",), one, 10), arguments)
    assert isinstance(figure, Figure)
    assert (figure.target, figure.value) == ("B1", 10.0)
    assert figure.load is not None
    assert 0 <= figure.load <= 1024
