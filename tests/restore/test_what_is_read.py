"""A restore reads exactly the files that its plan names: each once, by the planned subtask."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from statestore.format.slices import ReadSlices
from statestore.restore.plan import OperatorPlan
from statestore.spark.data_source import resolve
from tests.support.forms import GROUPS, RANGED_IN_EACH_RUN, Checkpoints, users

pytestmark = pytest.mark.slow

TARGETS: list[dict[str, Any]] = [
    {"parallelism": 1},
    {"parallelism": 3},
    {"parallelism": GROUPS},
    {"parallelism": 3, "balance": "rows"},
    {"parallelism": 3, "max_parallelism": GROUPS // 4},
    {"parallelism": 5, "max_parallelism": GROUPS * 4},
]


@pytest.fixture(params=RANGED_IN_EACH_RUN)
def layered(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoints:
    """A state with several base files, and three layers that do not cover all key groups."""
    made = Checkpoints(tmp_path / "store", layout=request.param)
    made.full(users(60, 2), parallelism=5)
    made.change(users(3, 1, value=7))
    made.change(users(40, 2, value=8), cleared=["u050"])
    made.change(entries=[("u000", 0)])
    made.opened()
    return made


def reads_of(plan: OperatorPlan, subtask: int) -> ReadSlices:
    key_groups = plan.subtasks[subtask].key_groups
    assert key_groups is not None
    return plan.keyed_state("s").of_groups(key_groups)


def named(plan: OperatorPlan, subtask: int) -> Counter[str]:
    """Return how often each file occurs in the plan of a subtask."""
    return Counter(reads_of(plan, subtask).names(plan.keyed_state("s").entry))


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_restore_opens_what_its_plan_names(layered: Checkpoints, target: dict[str, Any]) -> None:
    """I8: the numbers in a plan come from the same slices. Small layers are opened once."""
    restored = layered.store.restore(**target)
    (plan,) = restored.plan.operators
    state, opened = restored.keyed("u", "s"), layered.opened()
    decoded: set[str] = set()
    for subtask, counted in enumerate(plan.subtasks):
        assert opened == {}, "a plan opens no data file"
        rows = sum(batch.num_rows for batch in state.to_batches(subtask))
        opened, reads = layered.opened(), reads_of(plan, subtask)
        names = named(plan, subtask)
        assert opened == Counter(name for name in names.elements() if name not in decoded)
        decoded |= {name for name in names if "/changes/" in name}
        assert counted.files == names.total()
        assert counted.rows == sum(part.rows for part in reads.slices) >= rows
        assert counted.changed_rows == sum(part.rows for part in reads.changes)
        assert counted.size_bytes == sum(part.size_bytes for part in reads.slices)
        opened = layered.opened()


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_an_export_opens_what_its_plan_names(
    layered: Checkpoints, target: dict[str, Any], tmp_path: Path
) -> None:
    """The first pass, which counts the rows, reads whole files, so the second opens none."""
    (plan,) = layered.store.plan(**target).operators
    layered.store.restore(**target).export(tmp_path / "rows")
    wanted = sum((named(plan, subtask) for subtask in range(len(plan.subtasks))), Counter[str]())
    for name in wanted:
        if "/changes/" in name:  # small layers are decoded once
            wanted[name] = 1
    assert layered.opened() == wanted


@pytest.mark.parametrize("parallelism", [1, 3, GROUPS])
def test_the_data_source_reads_what_a_plan_names(layered: Checkpoints, parallelism: int) -> None:
    options = {"store": layered.store.url, "operator": "u", "state": "s"}
    read = resolve(options | {"parallelism": str(parallelism)})
    (plan,) = layered.store.plan(parallelism=parallelism).operators
    assert read.per_subtask == plan.keyed_state("s").of_all()
    counted = [subtask.files for subtask in plan.subtasks]
    assert [len(reads.slices) for reads in read.per_subtask] == counted
