"""Which durations of tests are kept, replaced and dropped."""

from __future__ import annotations

from tests.support.durations import merge_durations


def test_measured_tests_are_replaced_and_tests_that_are_gone_are_dropped() -> None:
    recorded = {"a.py::test_kept": 1.0, "a.py::test_gone": 2.0, "b.py::test_other": 3.0}
    collected = ["a.py::test_kept", "a.py::test_new[x::y]"]
    assert merge_durations(recorded, {"a.py::test_new[x::y]": 0.126}, collected) == {
        "a.py::test_kept": 1.0,
        "a.py::test_new[x::y]": 0.13,
        "b.py::test_other": 3.0,
    }
