"""A sample of the random histories. `make fuzz` runs more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz import run
from tests.fuzz.draws import draw_history
from tests.fuzz.history import History, code
from tests.fuzz.kinds import depth
from tests.fuzz.run import Runner, main

pytestmark = pytest.mark.slow


@pytest.mark.long
@pytest.mark.parametrize("share", [5, 100])
def test_every_reader_agrees_with_a_dictionary(
    capsys: pytest.CaptureFixture[str], share: int
) -> None:
    """I1, I2, I7, I8: `make fuzz` runs more of them."""
    status = main(["--histories", str(share), "--seed", "101"])
    said = capsys.readouterr().out
    assert status == 0, said
    assert f"{share} histories, " in said
    assert ", 0 problems" in said


def test_a_seed_determines_one_history() -> None:
    assert code(draw_history(11)) == code(draw_history(11))
    assert code(draw_history(11)) != code(draw_history(12))


def test_a_printed_history_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluating the text of a history gives an equal history."""
    for seed in range(50):
        history = draw_history(seed)
        found: list[History] = []
        monkeypatch.setattr(run, "run_again", found.append)
        names: dict[str, Any] = {}
        exec(code(history), names)
        (again,) = found
        assert code(again) == code(history)


def test_types_are_three_levels_deep() -> None:
    drawn = [draw_history(seed).shape for seed in range(300)]
    for name in ("key", "namespace", "entry", "values"):
        depths = {depth(column.kind) for shape in drawn for column in getattr(shape, name)}
        assert depths >= {0, 1, 2, 3}, name


def test_a_runner_counts_steps_and_reads() -> None:
    runner = Runner()
    assert runner.failure(draw_history(2)) is None
    assert runner.histories == 1
    assert runner.steps.total() == len(draw_history(2).steps)
    assert runner.reads.total() >= len(runner.readers)
