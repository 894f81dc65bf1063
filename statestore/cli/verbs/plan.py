"""``statestore plan``: what a restore would read, and which operator would find its state."""

from __future__ import annotations

from typing import Literal

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, checkpoint_argument, pass_invocation
from statestore.cli.targets import graph_of, target_options
from statestore.cli.values import PlannedRestore

__all__ = ["plan_restore"]


@click.command(
    "plan",
    cls=Verb,
    prints=(
        "The key groups cut for the old and the new parallelism, and for every operator and "
        "subtask its key groups, rows, bytes, files, requests and elements of operator state. "
        "With auto: how the parallelism was chosen. With a local cache: how many bytes are on "
        "this host. With a job graph: which operators find state, which start empty, what "
        "would be dropped, and what uid would keep it."
    ),
    examples=(
        "statestore plan --parallelism 7 --store ./fraud",
        "statestore plan --parallelism auto --bytes-per-task 256MiB --store ./fraud",
        "statestore plan --graph new-job.toml 1 --store ./fraud --output json",
    ),
)
@target_options
@checkpoint_argument
@pass_invocation
def plan_restore(
    invocation: Invocation,
    parallelism: int | Literal["auto"] | None,
    bytes_per_task: int | None,
    graph: str | None,
    checkpoint: str,
) -> PlannedRestore:
    """Say what a restore for another parallelism or job would read and find."""
    store = invocation.store()
    plan = store.plan(
        parallelism=parallelism,
        checkpoint=checkpoint,
        bytes_per_task=bytes_per_task,
        graph=graph_of(graph),
    )
    return PlannedRestore(store=store.url, plan=plan)
