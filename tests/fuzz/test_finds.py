"""The histories detect deliberate defects, and shorten the failing history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from statestore.format.names import MARK
from statestore.layers import merge
from statestore.parquet.reader import DataFile
from statestore.restore import lookup
from statestore.restore.restored import RestoredKeyedState, RestoredOperatorState
from statestore.rows import change_rows, equality
from statestore.snapshot import state_writer
from statestore.store import StateStore
from tests.fuzz.draws import draw_history
from tests.fuzz.run import Runner, failures, shortest

pytestmark = [pytest.mark.slow, pytest.mark.search_program]

Patch = pytest.MonkeyPatch
FRAMELESS = ("table", "subtasks")


def a_delete_is_ignored(patch: Patch) -> None:
    real = change_rows.change_stream

    def broken(given: Any, *states: Any) -> Any:
        schema, tables = real(given, *states)
        return schema, (rows.filter(pc.less_equal(rows.column(MARK), 0)) for rows in tables)

    patch.setattr(state_writer, "change_stream", broken)


def the_last_row_group_is_skipped(patch: Patch) -> None:
    real = DataFile.batches

    def broken(self: DataFile, row_groups: Any, *rest: Any) -> Iterator[Any]:
        numbers = [*row_groups]
        return real(self, numbers[:-1] if len(numbers) > 1 else numbers, *rest)

    patch.setattr(DataFile, "batches", broken)
    patch.setattr("tests.fuzz.world.PARQUET_ROWS", 2)


def zeros_are_one(patch: Patch) -> None:
    """-0.0 and 0.0 count as one value when rows are merged."""
    patch.setattr(equality, "equal_rows", lambda a, b: np.ones(a.num_rows, np.bool_))


def two_subtasks_are_swapped(patch: Patch) -> None:
    real = RestoredKeyedState.to_batches

    def broken(self: RestoredKeyedState, subtask: int | None = None) -> Any:
        swapped = {0: 1, 1: 0} if len(self.assignment.ranges()) > 1 else {}
        return real(self, subtask if subtask is None else swapped.get(subtask, subtask))

    patch.setattr(RestoredKeyedState, "to_batches", broken)


def a_lookup_skips_the_newest_layer(patch: Patch) -> None:
    real = merge.merged_rows
    patch.setattr(lookup, "merged_rows", lambda rows, layers, state: real(rows, layers[:-1], state))


def older_changes_win(patch: Patch) -> None:
    real = merge._newest_first
    patch.setattr(merge, "_newest_first", lambda parts: real(parts[::-1]))


def a_query_reads_the_newest_checkpoint(patch: Patch) -> None:
    real = StateStore.query

    def broken(self: Any, sql: str, checkpoint: Any = "latest", **options: Any) -> Any:
        return real(self, sql, "latest", **options)

    patch.setattr(StateStore, "query", broken)


def expired_rows_come_back(patch: Patch) -> None:
    patch.setattr(merge, "drop_expired", lambda rows, state, now_ms: rows)


def union_state_is_split(patch: Patch) -> None:
    real = RestoredOperatorState.subtask

    def broken(self: RestoredOperatorState, subtask: int, **options: Any) -> Any:
        return real(self, subtask, **options)[subtask:]

    patch.setattr(RestoredOperatorState, "subtask", broken)


@pytest.mark.parametrize(
    ("broken", "first"),
    [
        (a_delete_is_ignored, 3),
        (the_last_row_group_is_skipped, 1),
        pytest.param(zeros_are_one, 60, marks=pytest.mark.long),
        pytest.param(two_subtasks_are_swapped, 1, marks=pytest.mark.long),
        (a_lookup_skips_the_newest_layer, 3),
        pytest.param(older_changes_win, 3, marks=pytest.mark.long),
        pytest.param(a_query_reads_the_newest_checkpoint, 3, marks=pytest.mark.long),
        (expired_rows_come_back, 4),
        (union_state_is_split, 5),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_defect_is_detected(
    broken: Callable[[Patch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier histories do not trigger the defect."""
    broken(monkeypatch)
    found = failures(
        Runner(), range(first, 200), lambda seed: draw_history(seed, writers=FRAMELESS)
    )
    ((what, _),) = found.items()
    assert what.startswith(("AssertionError", "DamagedFileError", "CorruptionError")), what


def test_a_history_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ignored delete needs a snapshot of one row, and its delete."""
    a_delete_is_ignored(monkeypatch)
    ((_, history, failure),) = failures(Runner(), range(20, 200)).values()
    short = shortest(history, failure)
    assert len(short.steps) <= 2
    assert sum(len(getattr(step, "rows", ())) for step in short.steps) <= 2
    again = Runner().failure(short)
    assert again is not None
    assert again.what == failure.what
