"""Real kills of a streaming job; ``python -m tests.streaming.kills --count 50`` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streaming.driver import PROCESSOR, UPDATE
from tests.streaming.kills import AHEAD, kill_many

pytestmark = pytest.mark.spark

SEED = 66
"""A seed whose first kill is in the second micro-batch, after a commit."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "kills", "ahead"),
    [
        (PROCESSOR, 1, 3),
        pytest.param(PROCESSOR, 2, AHEAD),
        pytest.param(UPDATE, 2, AHEAD),
    ],
)
def test_a_killed_query_counts_every_event_once(
    tmp_path: Path, form: str, kills: int, ahead: int
) -> None:
    """In the state, and in a Delta table with a processor's output."""
    found = kill_many(kills, SEED, tmp_path, form, ahead)
    assert found.problems == []
    assert found.events_files >= ahead
