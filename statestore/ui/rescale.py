"""Show a restore at another parallelism before it runs: the reads of each subtask, and the moves.

Key groups flow from their old subtasks to the subtasks that would read them. The elements of
operator state are distributed according to Flink's rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from statestore.catalog.catalog import Checkpoint
from statestore.cli.drawing import UNICODE, counted
from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.format.manifest import Manifest
from statestore.jobgraph.redistribution import ElementRun
from statestore.restore.key_group_weights import Weight
from statestore.restore.plan import RestorePlan, redistribution_of
from statestore.store import StateStore
from statestore.ui.charts import draw_flow, flows_of
from statestore.ui.pages import PageView

RATE: Final = 100_000_000
"""The default read rate of a subtask, in bytes per second."""

REQUEST_MS: Final = 20
"""The default time in ms until the first byte of a request arrives, as from object storage."""

_SUBTASKS: Final = 64
_DRAWN: Final = 256
_RUNS: Final = 6


def highest_parallelism(manifest: Manifest) -> int:
    """Return the highest possible parallelism of a restore."""
    return min((entry.state.max_parallelism for entry in manifest.keyed), default=32_768)


def rescale(
    store: StateStore,
    checkpoint: Checkpoint,
    parallelism: int | None = None,
    *,
    balance: Weight | str | None = None,
    rate: int = RATE,
    request_ms: int = REQUEST_MS,
) -> PageView:
    """Return what a restore at a parallelism would move and read.

    If no restore is possible at this parallelism, the view has the form and the error.
    """
    manifest = checkpoint.manifest
    wanted = manifest.parallelism if parallelism is None else parallelism
    facts: dict[str, Any] = {
        "manifest": manifest,
        "parallelism": wanted,
        "highest": highest_parallelism(manifest),
        "balance": balance,
        "rate": rate,
        "request_ms": request_ms,
        "option": None,
    }
    problem = None
    try:
        facts |= _plan_facts(store, checkpoint, wanted, balance, rate, request_ms)
    except (ParallelismError, InvalidArgumentError) as error:
        problem = error
    title = f"Rescale checkpoint {checkpoint.checkpoint_id}"
    return PageView(title, "rescale.html", facts, "rescale", checkpoint.checkpoint_id, problem)


def _plan_facts(
    store: StateStore,
    checkpoint: Checkpoint,
    wanted: int,
    balance: Weight | str | None,
    rate: int,
    request_ms: int,
) -> dict[str, Any]:
    if request_ms < 0:
        raise InvalidArgumentError(f"must be at least 0, not {request_ms}", argument="request_ms")
    manifest = checkpoint.manifest
    plan = store.plan(checkpoint=checkpoint, parallelism=wanted, balance=balance)
    compared = store.inspect.compare([wanted], checkpoint=checkpoint, balance=balance, rate=rate)
    return {
        "option": compared.options[0],
        "seconds": read_seconds(plan, rate, request_ms),
        "flows": [
            (one.uids, one.key_groups, draw_flow(one, "Key groups") if one.can_be_drawn else None)
            for one in flows_of(manifest, plan, _DRAWN)
        ],
        "operators": [(operator, operator.subtasks[:_SUBTASKS]) for operator in plan.operators],
        "uneven": store.inspect.balance(plan),
        "dealt": list(_dealt_elements(manifest, wanted)),
    }


def read_seconds(plan: RestorePlan, rate: int, request_ms: int) -> float:
    """Return the time in which the slowest subtask reads its files one after another."""
    return max(
        (
            subtask.size_bytes / rate + subtask.requests * request_ms / 1000
            for operator in plan.operators
            for subtask in operator.subtasks
        ),
        default=0.0,
    )


def _dealt_elements(manifest: Manifest, parallelism: int) -> Iterator[dict[str, Any]]:
    """Yield each operator state, with the elements that each subtask would read."""
    plans = {
        uid: redistribution_of(manifest, uid, parallelism)
        for uid in {entry.state.uid for entry in manifest.operator}
    }
    for entry in manifest.operator:
        plan = plans[entry.state.uid]
        subtasks = range(min(parallelism, _SUBTASKS))
        runs = [plan.runs(subtask)[entry.state.name] for subtask in subtasks]
        yield {
            "entry": entry,
            "subtasks": [
                (subtask, sum(run.stop - run.first for run in own), _runs(own))
                for subtask, own in enumerate(runs)
            ],
        }


def _runs(runs: Sequence[ElementRun]) -> str:
    shown = [
        f"{run.first}{UNICODE.dash}{run.stop - 1} of old {run.subtask}"
        if run.stop - run.first > 1
        else f"{run.first} of old {run.subtask}"
        for run in runs[:_RUNS]
        if run.stop > run.first
    ]
    more = [f"and {counted(len(runs) - _RUNS, 'more list')}"] if len(runs) > _RUNS else []
    return ", ".join(shown + more)
