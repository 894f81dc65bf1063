"""Which durations of tests are kept, replaced and dropped."""

from __future__ import annotations

from tests.support.durations import merge_durations, seconds_of

RECORDED = {"a.py": {"test_kept": 1.0, "test_gone": 2.0}, "b.py": {"test_other": 3.0}}


def test_measured_tests_are_replaced_and_tests_that_are_gone_are_dropped() -> None:
    durations = merge_durations(
        RECORDED, {"a.py::test_new[x::y]": 0.126}, ["a.py::test_kept", "a.py::test_new[x::y]"]
    )
    assert durations == {
        "a.py": {"test_kept": 1.0, "test_new[x::y]": 0.13},
        "b.py": {"test_other": 3.0},
    }


def test_an_unmeasured_test_is_not_free() -> None:
    assert seconds_of("b.py::test_other", RECORDED) == 3.0
    assert seconds_of("b.py::test_unknown", RECORDED) > 0
    assert seconds_of("unknown.py::test", RECORDED) > 0
