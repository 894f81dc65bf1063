"""Real Flink gives the recorded answers, and the contracts of its savepoints are the recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.flink_answers import ask, ask_sql, read_answers, real_flink
from tests.contract.flink_pairs import PAIRS

pytestmark = [pytest.mark.flink, pytest.mark.long, pytest.mark.timeout(1800)]


def test_flink_gives_the_recorded_answers(tmp_path: Path) -> None:
    recorded = read_answers()
    with real_flink(tmp_path) as real:
        for pair in PAIRS:
            assert ask(real, pair) == recorded[pair.name], pair.name


def test_flink_sql_gives_the_recorded_answers(tmp_path: Path) -> None:
    recorded = read_answers()
    for name, answer in ask_sql(tmp_path).items():
        assert answer == recorded[name], name
