"""A sample of ``make damages``, in every run of the tests."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.damages.run import run_damages

pytestmark = pytest.mark.slow


@pytest.mark.long
@pytest.mark.parametrize(
    ("subject", "count"),
    [
        pytest.param("footers", 150),
        ("unsealed", 6),
        pytest.param("unsealed", 40),
        pytest.param("savepoints", 2),
        pytest.param("savepoints", 100),
    ],
)
def test_no_reader_returns_other_rows_for_a_damaged_file(subject: str, count: int) -> None:
    """I5, I7: for all readers, with limited memory and time. No process dies, except of a footer
    without a known checksum.
    """
    result = run_damages(subject, count, seed=1)
    assert result.bad == []
    assert result.total == count
    assert result.outcomes["found"] > count // 5


@pytest.mark.parametrize(
    ("subject", "outcomes"),
    [
        ("footers", {"found": 1, "bad": 3}),
        ("unsealed", {"found": 1, "bad": 2, "crash": 1}),
        ("savepoints", {"found": 1, "bad": 2, "changed": 1}),
    ],
)
def test_a_process_that_dies_is_counted(
    subject: str, outcomes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure names the attempt that was running. The next one runs in another process."""
    first = "0: show, g/f, x\nfound\n1: show, g/f, x\nwrong\n2: show, g/f, x\n"
    answers = iter(
        [
            subprocess.CompletedProcess([], -9, first, ""),
            subprocess.CompletedProcess([], 0, "3: show, g/f, x\nchanged\n", ""),
        ]
    )

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        answer = next(answers)
        assert words[3] == subject
        assert words[-2:] == (["0", "4"] if answer.returncode else ["3", "1"])
        return answer

    monkeypatch.setattr(subprocess, "run", run)
    result = run_damages(subject, 4, seed=1)
    assert result.outcomes == outcomes
    assert result.changed == ({"g": 1} if subject == "savepoints" else {})
    assert result.bad[0] == "1: show, g/f, x: wrong"
    assert ("2: show, g/f, x: signal 9" in result.bad) is (subject != "unsealed")
