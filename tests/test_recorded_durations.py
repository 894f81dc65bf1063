"""Which durations of tests are kept, replaced and dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.durations import DurationRecorder, merge_durations, without_group, work_unit


def test_measured_tests_are_replaced_and_tests_that_are_gone_are_dropped() -> None:
    recorded = {"a.py::test_kept": 1.0, "a.py::test_gone": 2.0, "b.py::test_other": 3.0}
    collected = ["a.py::test_kept", "a.py::test_new[x::y]"]
    assert merge_durations(recorded, {"a.py::test_new[x::y]": 0.126}, collected) == {
        "a.py::test_kept": 1.0,
        "a.py::test_new[x::y]": 0.13,
        "b.py::test_other": 3.0,
    }


def test_the_seconds_of_a_test_include_those_of_its_subtests() -> None:
    recorder = DurationRecorder(Path())
    for kind in (pytest.SubtestReport, pytest.TestReport):
        report = kind("a.py::test", ("a.py", 1, "test"), {}, "passed", None, "call", duration=2.0)
        recorder.pytest_runtest_logreport(report)
    assert recorder._seconds == {"a.py::test": 2.0}


@pytest.mark.parametrize(
    ("nodeid", "test", "unit"),
    [
        ("a.py::test", "a.py::test", "a.py"),
        ("a.py::test@spark", "a.py::test", "@spark"),
        ("a.py::test[x@y]@spark", "a.py::test[x@y]", "@spark"),
        ("a.py::test[x@y]", "a.py::test[x@y]", "a.py"),
        ("a@b.py::test", "a@b.py::test", "a@b.py"),
    ],
)
def test_the_group_of_a_worker_is_no_part_of_the_recorded_id(
    nodeid: str, test: str, unit: str
) -> None:
    assert (without_group(nodeid), work_unit(nodeid)) == (test, unit)
