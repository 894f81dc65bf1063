"""Which durations of tests are kept, replaced and dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.durations import DurationRecorder, merge_durations


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
