"""The seconds that each test took when ``make durations`` or ``make nightly`` ran last.

The file has the form of pytest-split, which splits the tests of the nightly into shards.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from tests.nightly import results

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

__all__ = [
    "DURATIONS",
    "SECONDS_OF_AN_UNMEASURED_TEST",
    "DurationRecorder",
    "file_of",
    "merge_durations",
    "recorded_durations",
    "report_collected",
    "without_group",
    "work_unit",
]

DURATIONS = Path(__file__).parents[1] / "durations.json"
SECONDS_OF_AN_UNMEASURED_TEST = 0.2

Durations = dict[str, float]
"""Seconds by the id of a test."""


class DurationRecorder:
    """Adds up the seconds of each test and writes them at the end of the session.

    Tests that the session did not select keep their seconds. Tests that are gone lose them:
    ``collected`` has the ids of all tests in the files that the session read.
    """

    NAME: ClassVar[str] = "duration-recorder"

    def __init__(self, root: Path) -> None:
        self.collected: set[str] = set()
        self._root = root
        self._seconds: Durations = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the duration of a test's setup, call or teardown, which includes its subtests."""
        if isinstance(report, pytest.SubtestReport):
            return
        nodeid = without_group(report.nodeid)
        self._seconds[nodeid] = self._seconds.get(nodeid, 0.0) + report.duration

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Learn which tests an xdist worker collected."""
        self.collected.update(node.workeroutput.get(self.NAME, ()))

    def pytest_sessionfinish(self) -> None:
        """Write the seconds of all files that exist."""
        recorded = recorded_durations() | results.seconds_of_tests(results.read())
        durations = merge_durations(recorded, self._seconds, self.collected)
        kept = {
            nodeid: seconds
            for nodeid, seconds in durations.items()
            if (self._root / file_of(nodeid)).exists()
        }
        DURATIONS.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")


def report_collected(config: pytest.Config, nodeids: Sequence[str]) -> None:
    """Tell the recorder which tests were collected, also from an xdist worker."""
    recorder = config.pluginmanager.get_plugin(DurationRecorder.NAME)
    if isinstance(recorder, DurationRecorder):
        recorder.collected.update(nodeids)
    else:
        config.workeroutput[DurationRecorder.NAME] = list(nodeids)  # type: ignore[attr-defined]


def merge_durations(
    recorded: Durations, measured: Durations, collected: Collection[str]
) -> Durations:
    """Return the recorded durations with the measured ones, without tests that are gone.

    Args:
        recorded: the durations until now.
        measured: the durations of the session.
        collected: the ids of all tests in the files that were collected.

    Returns:
        The durations, rounded to hundredths of a second. A test is gone if its file was collected,
        and the test was not.
    """
    files = {file_of(nodeid) for nodeid in collected}
    known = {
        nodeid: seconds
        for nodeid, seconds in recorded.items()
        if file_of(nodeid) not in files or nodeid in collected
    }
    return known | {nodeid: round(seconds, 2) for nodeid, seconds in measured.items()}


def recorded_durations() -> Durations:
    """Return the durations of the last ``make durations``."""
    durations: Durations = json.loads(DURATIONS.read_text())
    return durations


def file_of(nodeid: str) -> str:
    """Return the path of a test's file from the root of the project."""
    return nodeid.partition("::")[0]


def without_group(nodeid: str) -> str:
    """Return the id of a test without the group that pytest-xdist appends: ``test_a[1]@spark``."""
    before, mark, group = nodeid.rpartition("@")
    return before if mark and "]" not in group and "::" not in group else nodeid


def work_unit(nodeid: str) -> str:
    """Return the group of a test that one worker runs, or its file."""
    group = nodeid.removeprefix(without_group(nodeid))
    return group or file_of(nodeid)
