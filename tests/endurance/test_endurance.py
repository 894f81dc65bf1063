"""A live query under interference for ten minutes; ``python -m tests.endurance`` runs it longer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.endurance.bounds import Row, bounds_of, percentile
from tests.endurance.report import write_report
from tests.endurance.run import run

MINUTES = 10.0


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.services
@pytest.mark.timeout(1800)
def test_nothing_grows_and_every_state_is_right(tmp_path: Path) -> None:
    problems = run(tmp_path, MINUTES)
    bounds = write_report(tmp_path)
    assert problems == []
    assert [str(bound) for bound in bounds if not bound.holds] == []


FIGURES = (
    "driver_rss",
    "maintenance_rss",
    "jvm_rss",
    "jvm_live_bytes",
    "jvm_non_heap_bytes",
    "driver_handles",
    "jvm_handles",
    "maintenance_handles",
    "driver_threads",
    "jvm_threads",
    "temporary",
    "store_data",
    "store_manifest",
    "store_longest_log",
    "store_tombstone",
    "copies_manifest",
    "store_claim",
    "copies_claim",
)


def samples(growing: str | None = None, by: float = 0.0) -> list[Row]:
    """Return a thousand constant samples, in which one figure may grow."""
    rows = [
        {"second": second * 7.0, "driver_pid": 9.0, **dict.fromkeys(FIGURES, 5.0)}
        for second in range(1000)
    ]
    for number, row in enumerate(rows):
        if growing is not None:
            row[growing] += number * by
    return list(rows)


def commits(slower_by: float = 0.0) -> list[Row]:
    return [
        {"second": n * 7.0, "checkpoint": float(n), "took_ms": 2000.0 + n * slower_by}
        for n in range(1000)
    ]


def broken(bounds_for: Sequence[Row], committed: Sequence[Row]) -> list[str]:
    return [bound.name for bound in bounds_of(bounds_for, committed, ()) if not bound.holds]


def test_a_thread_of_each_start_is_allowed() -> None:
    grown = samples("driver_threads", 0.02)
    starts = [second * 175.0 for second in range(40)]
    assert broken(grown, commits()) == ["threads of the driver's Python"]
    assert [bound.name for bound in bounds_of(grown, commits(), starts) if not bound.holds] == []


def test_constant_figures_break_no_bound() -> None:
    assert broken(samples(), commits()) == []


@pytest.mark.parametrize("figure", FIGURES)
def test_each_figure_that_grows_breaks_a_bound(figure: str) -> None:
    by = 3e6 if figure.endswith(("rss", "bytes")) else 2.0
    assert broken(samples(figure, by), commits()) != []


def test_commits_that_become_slower_break_a_bound() -> None:
    assert "median of the commit latency, last quarter" in broken(samples(), commits(20.0))


def test_a_long_commit_breaks_a_bound() -> None:
    slow = [*commits(), {"second": 7000.0, "checkpoint": 1000.0, "took_ms": 61_000.0}]
    assert broken(samples(), slow) == ["longest commit"]


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([3.0], 0.99, 3.0), ([2.0, 1.0], 0.5, 1.0), ([2.0, 1.0], 0.51, 2.0), ([4.0, 5.0], 0.0, 4.0)],
)
def test_a_percentile_is_one_of_the_values(
    values: list[float], share: float, expected: float
) -> None:
    assert percentile(values, share) == expected
