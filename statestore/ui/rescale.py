"""Show a restore at another parallelism before it runs: the reads of each subtask, and the moves.

Key groups flow from their old subtasks to the subtasks that would read them. The elements of
operator state are distributed according to Flink's rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

from statestore.cli.drawing import UNICODE, counted, range_text, size
from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.format.manifest import Manifest
from statestore.jobgraph.redistribution import ElementRun
from statestore.keys.groups import KeyGroupRange
from statestore.restore.key_group_weights import Weight, weights_of
from statestore.restore.plan import RestorePlan, owners_of, redistribution_of
from statestore.store import StateStore
from statestore.ui.charts import Chart, flow
from statestore.ui.pages import PageView

__all__ = ["RATE", "REQUEST_MS", "highest_parallelism", "rescale"]

RATE: Final = 100_000_000
"""The default read rate of a subtask, in bytes per second."""

REQUEST_MS: Final = 20
"""The default time in ms until the first byte of a request arrives, as from object storage."""

_SUBTASKS: Final = 64
_DRAWN: Final = 256
_RUNS: Final = 6
_STEPS: Final = 12
_SPACE: Final = 0.3  # the share of the height that is left between subtasks


def highest_parallelism(manifest: Manifest) -> int:
    """Return the highest possible parallelism of a restore."""
    return min((entry.state.max_parallelism for entry in manifest.keyed), default=32_768)


def rescale(
    store: StateStore,
    which: int | str,
    parallelism: int | None = None,
    *,
    balance: Weight | str | None = None,
    rate: int = RATE,
    request_ms: int = REQUEST_MS,
) -> PageView:
    """Return what a restore at a parallelism would move and read.

    If no restore is possible at this parallelism, the view has the form and the error.
    """
    manifest = store.manifest(which)
    number = manifest.checkpoint_id
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
        facts |= _plan_facts(store, manifest, wanted, balance, rate, request_ms)
    except (ParallelismError, InvalidArgumentError) as error:
        problem = error
    title = f"Rescale checkpoint {number}"
    return PageView(title, "rescale.html", facts, "rescale", number, problem)


def _plan_facts(
    store: StateStore,
    manifest: Manifest,
    wanted: int,
    balance: Weight | str | None,
    rate: int,
    request_ms: int,
) -> dict[str, Any]:
    if request_ms < 0:
        raise InvalidArgumentError(f"the ms of a request must be at least 0, not {request_ms}")
    number = manifest.checkpoint_id
    plan = store.plan(checkpoint=number, parallelism=wanted, balance=balance)
    compared = store.inspect.compare([wanted], checkpoint=number, balance=balance, rate=rate)
    return {
        "option": compared.options[0],
        "seconds": _read_seconds(plan, rate, request_ms),
        "flows": list(_flows(manifest, plan)),
        "operators": [(operator, operator.subtasks[:_SUBTASKS]) for operator in plan.operators],
        "uneven": store.inspect.balance(parallelism=wanted, checkpoint=number),
        "dealt": list(_dealt_elements(manifest, wanted)),
    }


def _read_seconds(plan: RestorePlan, rate: int, request_ms: int) -> float:
    """Return the time in which the slowest subtask reads its files one after another."""
    return max(
        (
            subtask.size_bytes / rate + subtask.requests * request_ms / 1000
            for operator in plan.operators
            for subtask in operator.subtasks
        ),
        default=0.0,
    )


def _flows(manifest: Manifest, plan: RestorePlan) -> Iterator[tuple[list[str], int, Any]]:
    """Yield the operators that share a picture, their max parallelism, and the picture.

    The picture is None if there are too many subtasks to draw.
    """
    alike: dict[tuple[Any, Any], list[str]] = {}
    for operator in plan.operators:
        if operator.assignment is not None:
            old = owners_of(manifest, operator.stored_operator).ranges()
            ranges = old, operator.assignment.ranges()
            alike.setdefault(ranges, []).append(operator.stored_operator)
    for index, ((old, new), uids) in enumerate(alike.items()):
        groups = new[-1].last + 1
        if old[-1].last + 1 != groups or max(len(old), len(new)) > _DRAWN:
            yield uids, groups, None
            continue
        entries = [entry for entry in manifest.keyed if entry.state.uid in uids]
        yield uids, groups, _picture(f"flow-{index}", old, new, weights_of(entries))


def _picture(
    name: str, old: Sequence[KeyGroupRange], new: Sequence[KeyGroupRange], weights: Sequence[int]
) -> Chart:
    upto = [*accumulate(weights, initial=0)]
    left, right = _heights(old), _heights(new)
    bands = []
    for i, a in enumerate(old):
        for j, b in enumerate(new):
            first, last = max(a.first, b.first), min(a.last, b.last)
            if first > last:
                continue
            moves = "stays" if i == j else "moves"
            held = size(upto[last + 1] - upto[first])
            shown = range_text(KeyGroupRange(first, last), UNICODE)
            text = f"key groups {shown}, {held}: subtask {i} to subtask {j}"
            for step in range(_STEPS + 1):
                x = step / _STEPS
                part = x * x * (3 - 2 * x)
                low = left(i, first) + (right(j, first) - left(i, first)) * part
                high = left(i, last + 1) + (right(j, last + 1) - left(i, last + 1)) * part
                band = {"band": f"{i}-{j}", "x": x, "low": low, "high": high}
                bands.append(band | {"moves": moves, "text": text})
    labels = [
        {
            "x": x,
            "y": (heights(subtask, span.first) + heights(subtask, span.last + 1)) / 2,
            "label": f"{subtask}",
        }
        for x, ranges, heights in ((-0.05, old, left), (1.05, new, right))
        for subtask, span in enumerate(ranges)
        if len(ranges) <= _SUBTASKS
    ]
    return flow(name, bands, labels, min(120 + 14 * max(len(old), len(new)), 700))


def _heights(ranges: Sequence[KeyGroupRange]) -> Any:
    """Return a function from a key group's border to a height from 0 to 1, with gaps."""
    groups = ranges[-1].last + 1
    space = _SPACE / max(len(ranges) - 1, 1) if len(ranges) > 1 else 0.0
    scale = (1 - _SPACE if len(ranges) > 1 else 1.0) / groups
    return lambda subtask, border: border * scale + subtask * space


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
