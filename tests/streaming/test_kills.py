"""A few real kills of a streaming job; ``python -m tests.streaming.kills --count 50`` does many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streaming.driver import PROCESSOR, UPDATE
from tests.streaming.kills import AHEAD, kill_many

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("form", [UPDATE, PROCESSOR])
def test_a_killed_query_counts_every_event_once(tmp_path: Path, form: str) -> None:
    """In the state, and in a Delta table that its output goes to."""
    found = kill_many(2 if form == UPDATE else 1, 29, tmp_path, form)
    assert found.problems == []
    assert found.events_files >= AHEAD
