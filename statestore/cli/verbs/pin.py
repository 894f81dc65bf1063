"""``statestore pin`` and ``unpin``: keep a checkpoint while somebody reads it."""

from __future__ import annotations

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.spans import SPAN
from statestore.cli.values import Pinned, Unpinned
from statestore.format.documents import Pin

__all__ = ["pin_checkpoint", "unpin_checkpoint"]


@click.command(
    "pin",
    cls=Verb,
    prints=(
        "The pin's token, for unpin. A pinned checkpoint is neither expired nor collected until "
        "it is unpinned or the lease is over, whichever comes first."
    ),
    examples=(
        "statestore pin --lease 2h --store ./fraud",
        "statestore pin --checkpoint 1 --lease 7d --holder 'monthly report' --store ./fraud",
    ),
)
@click.option(
    "--checkpoint",
    default="latest",
    metavar="N",
    help="Its number, or the name of a savepoint; else the latest.",
)
@click.option(
    "--lease", type=SPAN, required=True, metavar="SPAN", help="How long at most: 90s, 15min, 2h."
)
@click.option("--holder", metavar="TEXT", help="Who reads; else this host and process.")
@pass_invocation
def pin_checkpoint(
    invocation: Invocation, checkpoint: str, lease: float, holder: str | None
) -> Pinned:
    """Keep a checkpoint while it is read."""
    store = invocation.store()
    made = store.pin(checkpoint, lease_s=lease, holder=holder)
    pin = Pin(made.token, made.checkpoint_id, made.holder, made.until_ms)
    return Pinned(store=store.url, pin=pin)


@click.command(
    "unpin",
    cls=Verb,
    prints="That the pin holds no more.",
    examples=("statestore unpin 0d2f61c8a1b94d7fb5f0c7a9e6d83b12 --store ./fraud",),
)
@click.argument("token")
@pass_invocation
def unpin_checkpoint(invocation: Invocation, token: str) -> Unpinned:
    """Let go of a checkpoint that was pinned."""
    store = invocation.store()
    store.unpin(token)
    return Unpinned(store=store.url, token=token)
