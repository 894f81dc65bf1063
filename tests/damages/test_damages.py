"""A sample of the corruptions of ``make damages``, in every run of the tests."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.damages.run import run_damages

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.long)])
def test_no_damage_loses_or_adds_rows_without_an_error(count: int) -> None:
    """A sample over all files, golden snapshots and readers, with limited memory and time."""
    result = run_damages(count, seed=1)
    assert result.bad == []
    assert result.total == count
    assert result.outcomes["found"] >= count // 2


def test_a_process_that_dies_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure names the corruption that was running. The next one runs in another process."""
    first = "0: show, g/f, x\nfound\n1: show, g/f, x\nwrong\n2: show, g/f, x\n"
    answers = iter(
        [
            subprocess.CompletedProcess([], -9, first, ""),
            subprocess.CompletedProcess([], 0, "3: show, g/f, x\nchanged\n", ""),
        ]
    )

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        answer = next(answers)
        assert words[-2:] == (["0", "4"] if answer.returncode else ["3", "1"])
        return answer

    monkeypatch.setattr(subprocess, "run", run)
    result = run_damages(4, seed=1)
    assert result.outcomes == {"found": 1, "bad": 2, "changed": 1}
    assert result.changed == {"g": 1}
    assert result.bad == ["1: show, g/f, x: wrong", "2: show, g/f, x: signal 9"]
