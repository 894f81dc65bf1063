"""A few real kills of a streaming job; ``python -m tests.streaming.kills --count 50`` does many."""

from __future__ import annotations

from pathlib import Path

from tests.streaming.kills import AHEAD, kill_many


def test_a_killed_query_counts_every_event_once(tmp_path: Path) -> None:
    found = kill_many(2, 29, tmp_path)
    assert found.problems == []
    assert found.events_files > AHEAD
