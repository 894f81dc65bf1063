"""``statestore show``: what one checkpoint holds."""

from __future__ import annotations

import time

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import (
    Invocation,
    checkpoint_argument,
    pass_invocation,
    state_options,
)
from statestore.cli.values import ShownCheckpoint, ShownGraph
from statestore.errors import InvalidArgumentError
from statestore.restore.target import select

__all__ = ["show_checkpoint"]


@click.command(
    "show",
    cls=Verb,
    prints=(
        "The checkpoint (latest unless named), its key groups cut for its parallelism, and "
        "per operator: id, max parallelism, each state with its columns, rows, bytes, files, "
        "digest and table, and what each subtask holds. With --graph: the job graph that was "
        "stored, which operators chain, and what state each holds."
    ),
    examples=(
        "statestore show --store ./fraud",
        "statestore show --graph --store ./fraud",
        "statestore show 1 --operator totals-by-user --state totals --store ./fraud",
    ),
)
@checkpoint_argument
@state_options
@click.option("--graph", is_flag=True, help="Draw the job graph instead.")
@pass_invocation
def show_checkpoint(
    invocation: Invocation, checkpoint: str, uid: str | None, name: str | None, graph: bool
) -> ShownCheckpoint | ShownGraph:
    """Show what a checkpoint holds."""
    store = invocation.store()
    manifest = store.manifest(checkpoint)
    if graph:
        if manifest.graph is None:
            raise InvalidArgumentError(
                f"checkpoint {manifest.checkpoint_id} has no job graph: give one when it is taken, "
                "store.snapshot(graph=…), or the setting graph of the snapshot job"
            )
        return ShownGraph(store=store.url, manifest=select(manifest, uid, name))
    return ShownCheckpoint(
        store=store.url,
        now_ms=time.time_ns() // 1_000_000,
        manifest=select(manifest, uid, name),
        plan=store.plan(checkpoint=manifest.checkpoint_id, uid=uid, name=name),
    )
