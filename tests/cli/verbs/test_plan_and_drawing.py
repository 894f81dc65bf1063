from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console

from statestore import StateStore
from statestore.cli.checkpoints import write_subtasks
from statestore.cli.drawing import ASCII, UNICODE, Pen, bar, key_group_bars, spans
from statestore.cli.output import Page
from statestore.keys.groups import KeyGroupRange
from statestore.restore.plan import OperatorPlan, SubtaskPlan

Run = Callable[..., Result]


def test_plan_as_text(run: Run, fraud: Path) -> None:
    done = run("plan", "--parallelism", "7", "--store", fraud)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"restore of checkpoint 2 of {fraud}: parallelism 4 to 7"
    assert sum(line.startswith("key groups  ") for line in lines) == 2  # one per max parallelism
    assert max(map(len, lines[1:])) <= 100
    assert re.search(r"^ +6 +14–15 +\d+ +█", done.stdout, re.MULTILINE)


def test_plan_as_json(run: Run, fraud: Path) -> None:
    done = run("plan", "--parallelism", "7", "1", "--store", fraud, "--output", "json")
    document = json.loads(done.stdout)["plan"]
    plan = StateStore.open(str(fraud)).plan(parallelism=7, checkpoint=1)
    assert document["checkpoint_id"] == 1
    assert (document["old_parallelism"], document["parallelism"]) == (4, 7)
    assert (document["size_bytes"], document["files"]) == (plan.size_bytes, plan.files)
    operators = {operator["operator"]: operator for operator in document["operators"]}
    users = operators["totals-by-user"]
    assert users["states"] == ["totals", "per_country"]
    assert users["subtasks"][3]["key_groups"] == {"first": 7, "last": 9}
    assert sum(subtask["rows"] for subtask in users["subtasks"]) == 400
    assert set(users["subtasks"][0]) == {
        *("subtask", "key_groups", "rows", "size_bytes", "local_bytes", "files", "requests"),
        *("elements", "changed_rows"),
    }
    source = operators["orders-source"]
    assert source["subtasks"][0]["key_groups"] is None
    assert sum(subtask["elements"] for subtask in source["subtasks"]) == 7 * 4 + 2 + 7 * 1


@pytest.mark.slow
@pytest.mark.parametrize("pen", [UNICODE, ASCII])
@pytest.mark.parametrize("width", [30, 80, 100, 173])
@pytest.mark.parametrize("max_parallelism", [1, 2, 7, 128, 32768])
def test_bars_fill_the_width_at_every_parallelism(
    max_parallelism: int, width: int, pen: Pen
) -> None:
    for parallelism in {1, 2, 3, 7, 20, 63, 128, 1000, 32768}:
        if parallelism > max_parallelism:
            continue
        ruler, cut = key_group_bars(max_parallelism, [parallelism], width=width, pen=pen)
        drawing = cut.partition("  ")[2].strip()
        assert len(cut) == max(width, len(cut) - len(drawing) + 20)
        assert re.fullmatch(r"(\[[^][]*\])+", drawing)
        assert drawing.count("[") in (parallelism, 1)
        assert ruler.split() == ["key", "groups", *{"0", str(max_parallelism - 1)}] or "0 " in ruler
        assert pen is UNICODE or (ruler + cut).isascii()


def test_cuts_match_the_range_boundaries() -> None:
    _, two, three = key_group_bars(128, [2, 3], width=15 + 64, pen=ASCII)
    assert two == "parallelism 2  [------------ 0-63 ------------][----------- 64-127 -----------]"
    assert (
        three == "parallelism 3  [------- 0-42 ------][------ 43-85 -------][------ 86-127 -----]"
    )


def test_too_many_cuts_are_summarized() -> None:
    _, line = key_group_bars(1000, [300], width=100, pen=UNICODE)
    assert " 300 subtasks, 3–4 key groups each " in line
    _, line = key_group_bars(32768, [32768], width=100, pen=ASCII)
    assert " 32768 subtasks, 1 key group each " in line


def test_a_bar_is_visible_for_any_nonzero_size() -> None:
    assert bar(0, 10, width=8, pen=UNICODE) == ""
    assert bar(0, 0, width=8, pen=UNICODE) == ""
    assert bar(1, 10**9, width=8, pen=UNICODE) == "▏"
    assert bar(1, 10**9, width=8, pen=ASCII) == "#"
    assert bar(10, 10, width=8, pen=UNICODE) == "█" * 8
    assert bar(5, 10, width=3, pen=UNICODE) == "█▌"


def test_spans_tile() -> None:
    for count in (1, 5, 64, 65, 32768):
        parts = spans(count, 64)
        assert len(parts) == min(count, 64)
        assert [number for part in parts for number in part] == list(range(count))


def operator_plan(parallelism: int) -> OperatorPlan:
    subtasks = tuple(
        SubtaskPlan(i, KeyGroupRange(i, i), 10, 100, 1, 3, 0) for i in range(parallelism)
    )
    return OperatorPlan("u", parallelism, ("s",), subtasks, stored_operator="u")


def written(parallelism: int, *, terminal: bool, width: int = 100) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, no_color=True) if terminal else None
    write_subtasks(Page(file, width, UNICODE, console), operator_plan(parallelism))
    return file.getvalue().splitlines()


def test_a_terminal_gets_a_summary_of_many_subtasks_and_a_pipe_gets_all() -> None:
    pipe = written(1000, terminal=False)
    assert sum("█" in line for line in pipe) == 1000
    terminal = written(1000, terminal=True)
    assert sum("█" in line for line in terminal) == 64
    assert "each line summarizes up to 16 subtasks; --output json lists each of them" in terminal
    assert any("0–14" in line for line in terminal)


def test_a_narrow_terminal_shortens_bars_not_numbers() -> None:
    lines = written(64, terminal=True, width=60)
    assert max(map(len, lines[:-1])) <= 60
    assert not [line for line in lines if "…" in line]
