"""Real kills of a streaming job; ``python -m tests.streaming.kills --count 50`` does many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streaming.driver import PROCESSOR, UPDATE
from tests.streaming.kills import AHEAD, kill_many

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("form", "kills"), [(PROCESSOR, 1), pytest.param(UPDATE, 2, marks=pytest.mark.long)]
)
def test_a_killed_query_counts_every_event_once(tmp_path: Path, form: str, kills: int) -> None:
    """In the state, and in a Delta table that a processor's output goes to."""
    found = kill_many(kills, 29, tmp_path, form)
    assert found.problems == []
    assert found.events_files >= AHEAD
