"""A sample of the histories, and a check that the machine detects deliberate defects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase

from statestore.catalog.holds import Holds
from statestore.maintenance import gc
from tests.histories import run
from tests.histories.run import main, run_histories

pytestmark = pytest.mark.slow

FIND = (Phase.generate,)


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.long)])
def test_no_live_file_goes_and_no_dead_file_stays(count: int) -> None:
    """I4, I6, I9, I10: `make histories` runs more."""
    steps, histories = run_histories(count, seed=2)
    assert steps.total() >= count
    assert histories > count // 40


def test_the_command_prints_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--steps", "20", "--seed", "5"]) == 0
    assert ", 0 problems: " in capsys.readouterr().out


def broken_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Savepoints and pins protect nothing."""
    monkeypatch.setattr(Holds, "held", lambda self, now_ms, listed=(): {})


def broken_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage collection deletes new files of active writers."""
    monkeypatch.setattr(gc, "is_old", lambda *_: True)


def broken_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests of expired checkpoints stay."""
    of = gc._ExpiredFiles.of
    monkeypatch.setattr(
        gc._ExpiredFiles, "of", lambda *given: replace(of(*given), without_files=())
    )


@pytest.mark.parametrize(
    ("break_it", "seed"),
    [
        (broken_ages, 4),
        pytest.param(broken_holds, 4, marks=pytest.mark.long),
        pytest.param(broken_sweep, 6, marks=pytest.mark.long),
    ],
)
def test_the_machine_detects_a_defect(
    break_it: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This seed is the first one that detects the defect quickly."""
    monkeypatch.setattr(run, "PHASES", FIND)
    break_it(monkeypatch)
    assert main(["--steps", "3000", "--seed", str(seed)]) == 1
