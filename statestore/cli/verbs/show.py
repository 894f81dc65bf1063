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
from statestore.cli.values import ShownCheckpoint
from statestore.commands.export import plan_of, select

__all__ = ["show_checkpoint"]


@click.command(
    "show",
    cls=Verb,
    prints=(
        "The checkpoint (latest unless named), its key groups cut for its parallelism, and "
        "per operator: id, max parallelism, each state with its columns, rows, bytes, files, "
        "digest and table, and what each subtask holds."
    ),
    examples=(
        "statestore show --store ./fraud",
        "statestore show 1 --operator totals-by-user --state totals --store ./fraud",
    ),
)
@checkpoint_argument
@state_options
@pass_invocation
def show_checkpoint(
    invocation: Invocation, checkpoint: str, uid: str | None, name: str | None
) -> ShownCheckpoint:
    """Show what a checkpoint holds."""
    store = invocation.store()
    manifest = store.manifest(checkpoint)
    return ShownCheckpoint(
        store=store.url,
        now_ms=time.time_ns() // 1_000_000,
        manifest=select(manifest, uid, name),
        plan=plan_of(manifest, manifest.parallelism, uid, name),
    )
