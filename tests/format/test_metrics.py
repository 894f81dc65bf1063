"""The metrics of a checkpoint: sums, shares, and their form in a manifest."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from statestore.format.metrics import (
    Amount,
    CheckpointMetrics,
    PhaseTimes,
    StateMetrics,
    amount_of,
    metrics_from_json,
    metrics_to_json,
    share_of,
)
from tests.support.key_values import metrics


def state(rows: int, base: int | None, files: int = 1) -> StateMetrics:
    return StateMetrics(
        operator="u", state=f"s{rows}", written=Amount(rows, 10, files), base_rows=base
    )


def read(document: Any) -> CheckpointMetrics:
    return metrics_from_json(json.loads(json.dumps(document)), "m", ".metrics")


@given(metrics)
def test_metrics_survive_a_round_trip_through_json(given: CheckpointMetrics) -> None:
    assert read(metrics_to_json(given)) == given


def test_a_missing_phase_is_zero_and_an_unknown_one_is_ignored() -> None:
    document = metrics_to_json(CheckpointMetrics(duration_ms=7, phases=PhaseTimes(write_ms=5)))
    document["phases"] = {"write_ms": 5, "added_later_ms": 2}
    assert read(document) == CheckpointMetrics(duration_ms=7, phases=PhaseTimes(write_ms=5))
    assert "put_ms" not in metrics_to_json(read(document))["phases"]


def test_phases_are_ordered_and_the_put_is_optional() -> None:
    names = ["begin", "write", "compaction", "wait", "check", "publish"]
    assert [name for name, _ in PhaseTimes().items()] == names
    assert PhaseTimes(put_ms=3).items()[-1] == ("put", 3)


def test_the_slowest_phase_excludes_background_work() -> None:
    phases = PhaseTimes(write_ms=5, compaction_ms=90, wait_ms=6, put_ms=2)
    assert phases.slowest == ("wait", 6)
    assert replace(phases, put_ms=7).slowest == ("put", 7)


def test_the_parts_of_the_time_leave_compaction_out() -> None:
    phases = PhaseTimes(begin_ms=1, write_ms=5, compaction_ms=90, wait_ms=6, put_ms=2)
    figures = CheckpointMetrics(duration_ms=15, phases=phases)
    assert figures.took_ms == 17
    assert figures.spent == (
        ("begin", 1),
        ("write", 5),
        ("wait", 6),
        ("check", 0),
        ("publish", 0),
        ("put", 2),
        ("other", 3),
    )


def test_concurrent_processes_report_at_most_the_elapsed_time() -> None:
    figures = CheckpointMetrics(duration_ms=10, phases=PhaseTimes(write_ms=25, check_ms=2))
    assert dict(figures.spent) == {
        "begin": 0,
        "write": 8,
        "wait": 0,
        "check": 2,
        "publish": 0,
        "other": 0,
    }


@given(metrics)
def test_the_parts_of_the_time_sum_to_the_duration(given: CheckpointMetrics) -> None:
    assert sum(spent for _, spent in given.spent) == given.took_ms


@pytest.mark.parametrize(
    ("states", "share"),
    [
        ([], None),
        ([state(5, None)], None),  # operator state has no base
        ([state(5, 0)], None),
        ([state(5, 5)], 1.0),
        ([state(5, 5), state(9, None)], 1.0),
        ([state(1, 10), state(0, 10)], 0.05),
        ([state(3, 0), state(0, 10)], 0.3),  # a new state is changed completely
        ([state(20, 10)], 2.0),
    ],
)
def test_the_changed_share_is_of_the_rows_of_the_bases(
    states: list[StateMetrics], share: float | None
) -> None:
    assert share_of(states) == share
    figures = CheckpointMetrics(duration_ms=0, phases=PhaseTimes(), states=tuple(states))
    assert figures.changed_share == share


def test_sums_cover_the_states_and_files_include_compaction() -> None:
    figures = CheckpointMetrics(
        duration_ms=0,
        phases=PhaseTimes(),
        states=(state(5, 10, files=2), state(7, None, files=1)),
        compaction=Amount(100, 1000, 4),
    )
    assert figures.written == Amount(12, 20, 3)
    assert figures.files_written == 7
    assert amount_of([Amount(1, 2), Amount(3, 4)]) == Amount(4, 6, 2)
