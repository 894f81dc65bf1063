"""Show a restore at another parallelism before it runs: the reads of each subtask, and the moves.

Key groups flow from their old subtasks to the subtasks that would read them. The elements of
operator state are distributed according to Flink's rules.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from statestore.catalog.catalog import Checkpoint
from statestore.cli.drawing import UNICODE, counted, span_text
from statestore.cli.restore_records import kept_restores, speed_source, speed_text
from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.format.manifest import Manifest
from statestore.jobgraph.redistribution import ElementRun
from statestore.restore.compare_plans import highest_parallelism
from statestore.restore.key_group_weights import Weight
from statestore.restore.plan import redistribution_of
from statestore.restore.restart_time import (
    MeasuredRestore,
    RestoreSpeed,
    fitted_speed,
    predict,
)
from statestore.store import StateStore
from statestore.ui.charts import draw_flow, flows_of
from statestore.ui.checkpoint import addressed
from statestore.ui.pages import PageView

RATE: Final = 100
"""The guessed read rate of a subtask, in MB/s."""

REQUEST_MS: Final = 20
"""The guessed time in ms until the first byte of a request arrives, as from object storage."""

_SUBTASKS: Final = 64  # of an operator
_ALL_SUBTASKS: Final = 400
_DRAWN: Final = 256
_RUNS: Final = 6


@dataclass(frozen=True)
class PageSpeed:
    """What a subtask takes on a page: as measured here, as the reader passed it, or a guess.

    ``rate`` (MB/s) and ``request_ms`` are the fields of the form; None if they are measured.
    """

    speed: RestoreSpeed
    source: str
    rate: int | None
    request_ms: int | None
    restores: tuple[MeasuredRestore, ...]

    @classmethod
    def of(cls, store: StateStore, rate: int | None, request_ms: int | None) -> PageSpeed:
        """Return the speed of a rate in MB/s and the time of a request; by default as measured."""
        restores = kept_restores(os.environ, store.parts.catalog().store_id)
        measured = fitted_speed(restores)
        if measured is not None and rate is None and request_ms is None:
            return cls(measured, speed_source(restores), None, None, restores)
        source = "a guess" if rate is None and request_ms is None else "as passed"
        rate = RATE if rate is None else rate
        request_ms = REQUEST_MS if request_ms is None else request_ms
        if request_ms < 0:
            raise InvalidArgumentError(
                f"must be at least 0, not {request_ms}", argument="request_ms"
            )
        speed = replace(RestoreSpeed.of(rate * 10**6), seconds_per_request=request_ms / 1000)
        return cls(speed, source, rate, request_ms, restores)

    @property
    def text(self) -> str:
        """The speed and its source."""
        return f"{speed_text(self.speed)}: {self.source}"


def rescale(
    store: StateStore,
    checkpoint: Checkpoint,
    parallelism: int | None = None,
    *,
    balance: Weight | str | None = None,
    rate: int | None = None,
    request_ms: int | None = None,
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
        "restores": (),
        "option": None,
    }
    problem = None
    try:
        speed = PageSpeed.of(store, rate, request_ms)
        facts |= {"rate": speed.rate, "request_ms": speed.request_ms, "restores": speed.restores}
        facts |= _plan_facts(store, checkpoint, wanted, balance, speed)
    except (ParallelismError, InvalidArgumentError) as error:
        problem = error
    title = f"Rescale checkpoint {checkpoint.checkpoint_id}"
    return PageView(title, "rescale.html", facts, "rescale", checkpoint.checkpoint_id, problem)


def _plan_facts(
    store: StateStore,
    checkpoint: Checkpoint,
    wanted: int,
    balance: Weight | str | None,
    speed: PageSpeed,
) -> dict[str, Any]:
    manifest = checkpoint.manifest
    plan = store.plan(checkpoint=checkpoint, parallelism=wanted, balance=balance)
    most = max(min(_SUBTASKS, _ALL_SUBTASKS // len(plan.operators)), 1) if plan.operators else 0
    compared = store.inspect.compare(
        [wanted], checkpoint=checkpoint, balance=balance, rate=speed.speed
    )
    return {
        **addressed(store, checkpoint),
        "option": compared.options[0],
        "speed": speed,
        "predicted": predict(wanted, [*plan.subtasks], speed.restores),
        "flows": [
            (one.uids, one.key_groups, draw_flow(one, "Key groups") if one.can_be_drawn else None)
            for one in flows_of(manifest, plan, _DRAWN)
        ],
        "operators": [(operator, operator.subtasks[:most]) for operator in plan.operators],
        "uneven": store.inspect.balance(plan),
        "dealt": list(_dealt_elements(manifest, wanted)),
    }


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
            "subtasks": [*_alike(runs)],
        }


def _alike(runs: Sequence[Sequence[ElementRun]]) -> Iterator[tuple[str, int, str]]:
    """Yield consecutive subtasks with the same elements, the number of these, and their text."""
    for own, subtasks in groupby(range(len(runs)), lambda subtask: runs[subtask]):
        first, *others = subtasks
        elements = sum(run.stop - run.first for run in own)
        yield span_text(first, (first, *others)[-1], UNICODE), elements, _runs(own)


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
