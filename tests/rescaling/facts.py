"""Single numbers and words in the text of docs/RESCALING.md; ``CONSTANTS`` need no checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from jobs.job import JobSettings
from statestore import StateStore
from statestore.cli.drawing import duration, size
from statestore.durations import milliseconds_of
from statestore.errors import StateStoreError
from statestore.jobgraph import JobGraph
from statestore.jobgraph.adaptive import BYTES_PER_TASK
from statestore.jobgraph.graph import Node
from statestore.jobgraph.matching import StoredOperator, match
from statestore.jobgraph.operators import operator_id
from statestore.jobgraph.parallelism import (
    BYTES_PER_TASK_2022,
    KeyGroupDecision,
    decide_for_key_groups,
)
from statestore.jobgraph.partitioners import Rebalance
from statestore.jobgraph.restart import ExponentialDelay, FailureRate, strategy_of
from statestore.keys.groups import MAX_PARALLELISM, default_max_parallelism
from statestore.restore.placement import preferred_hosts
from tests.rescaling.job import ELEMENT_BYTES, NEW, OLD, ROW_BYTES, STORE, Job

PER_TASK = 8_000_000
RATE = FailureRate(max_failures=3, interval="1m", delay="5s")
RATE_SECONDS = milliseconds_of(RATE.interval) // 1000

CONSTANTS = {
    "row_size": size(ROW_BYTES),
    "element_size": size(ELEMENT_BYTES),
    "default_max": str(default_max_parallelism(OLD)),
    "default_per_task": f"{BYTES_PER_TASK >> 20} MiB",
    "default_2022": f"{BYTES_PER_TASK_2022 >> 30} GiB",
    "highest": str(MAX_PARALLELISM),
    "rate": f"more than {RATE.max_failures} failures within {RATE_SECONDS} s",
    "reset": duration(milliseconds_of(ExponentialDelay().reset_after)),
    "default_restart": type(JobSettings().restart_strategy).__name__,
}


def max_parallelism(job: Job) -> str:
    return str(job.max_parallelism)


def users(job: Job) -> str:
    return str(len(job.users))


def moved(job: Job) -> str:
    old, new = job.assignment(OLD), job.assignment(NEW)
    groups = map(job.key_group_of, job.users)
    return str(sum(old.subtask_of(group) != new.subtask_of(group) for group in groups))


def decision(job: Job, per_task: int = PER_TASK) -> KeyGroupDecision:
    return decide_for_key_groups(
        job.bytes_of_key_groups, bytes_per_task=per_task, max_parallelism=job.max_parallelism
    )


def per_task(job: Job) -> str:
    return size(PER_TASK)


def first_guess(job: Job) -> str:
    return str(decision(job).first_guess)


def parallelism(job: Job) -> str:
    return str(decision(job).parallelism)


def chosen_for_half(job: Job) -> str:
    return f"{decision(job, PER_TASK // 2).parallelism} are chosen for {size(PER_TASK // 2)} each"


def hosts(job: Job) -> str:
    wanted = preferred_hosts(job.on_hosts().handles, job.assignment(NEW))
    return f"{', '.join(wanted[:-1])} and {wanted[-1]}, for subtasks 0 to {len(wanted) - 1}"


def kept_by_hint(job: Job) -> str:
    """Apply the plan's hint for new.toml; return the number of elements that ``clean`` restores."""
    store = StateStore.open(STORE)
    graph = JobGraph.from_toml(Path("new.toml").read_text(encoding="utf-8"))
    matching = store.plan(graph=graph).matching
    assert matching is not None
    (hint,) = matching.hints
    nodes = [hint.applied_to(node) if node.name == hint.node else node for node in graph.nodes]
    restored = store.restore(graph=replace(graph, nodes=tuple(nodes)))
    found = restored.operator_state("clean", "held_back")
    return str(sum(len(found.subtask(subtask)) for subtask in range(NEW)))


def refused_subtask(job: Job) -> str:
    return _refusal(lambda: job.assignment(NEW).range_of(NEW))


def refused_claim(job: Job) -> str:
    stored = StoredOperator(operator_id("totals"), uid="totals", rows=1)
    twins = (Node("totals", uid="totals"), Node("other", uid_hash=stored.operator_id))
    return _refusal(lambda: match([stored], JobGraph(twins)))


def refused_option(job: Job) -> str:
    return _refusal(lambda: strategy_of({"restart-strategy.typ": "fixed-delay"}))


def refused_start(job: Job) -> str:
    return _refusal(lambda: Rebalance().channel(NEW))


def _refusal(call: Callable[[], object]) -> str:
    """Return the error message of a call that must be refused."""
    try:
        call()
    except StateStoreError as error:
        return str(error)
    raise AssertionError("nothing is refused")
