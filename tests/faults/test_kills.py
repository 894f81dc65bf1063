"""Real kills of Python, JVM and workers. ``make kills COUNT=200`` runs many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.kills import kill_many

pytestmark = pytest.mark.slow


@pytest.mark.long  # in each run, tests/faults/test_processes.py kills a snapshot at any call
def test_a_killed_job_loses_nothing(tmp_path: Path) -> None:
    """I4, I5, I6, I10: with Spark and Delta, and SIGKILL during the first snapshots."""
    evidence = kill_many(3, 1, tmp_path)
    assert evidence.problems == []
    assert evidence.visible
