"""A sample of the flips of ``make flips``, in every run of the tests."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.flips.run import run_flips

pytestmark = pytest.mark.slow


@pytest.mark.long_cases("25")
@pytest.mark.parametrize("count", [25, pytest.param(150, marks=pytest.mark.long)])
def test_no_reader_returns_other_rows_for_a_damaged_footer(count: int) -> None:
    """I5, I7: for all readers, both layouts, keyed and operator state. No process dies."""
    result = run_flips(count, seed=1, unsealed=False)
    assert result.bad == []
    assert result.total == count
    assert result.outcomes["found"] > count // 5


@pytest.mark.parametrize("count", [6, pytest.param(40, marks=pytest.mark.long)])
def test_no_reader_returns_other_rows_without_a_known_checksum(count: int) -> None:
    """With manifests of older releases, Arrow can crash the process, which is a known limit."""
    result = run_flips(count, seed=1, unsealed=True)
    assert [line for line in result.bad if ": signal " not in line] == []
    assert result.total == count


def test_a_process_that_dies_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure names the flip that was running. The next one runs in another process."""
    answers = iter(
        [
            subprocess.CompletedProcess([], -6, "flip 0\nfound\nflip 1\nwrong\nflip 2\n", ""),
            subprocess.CompletedProcess([], 0, "flip 3\nright\n", ""),
        ]
    )

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        answer = next(answers)
        assert words[-2:] == (["0", "4"] if answer.returncode else ["3", "1"])
        return answer

    monkeypatch.setattr(subprocess, "run", run)
    result = run_flips(4, seed=1, unsealed=False)
    assert result.outcomes == {"found": 1, "wrong": 1, "crash": 1, "right": 1}
    assert result.bad == ["flip 1: wrong", "flip 2: signal 6"]
