"""``statestore savepoint``, ``pin`` and ``unpin``: keep a checkpoint, and release it."""

from __future__ import annotations

from dataclasses import dataclass

import click

from statestore.cli.arguments import SPAN
from statestore.cli.command import (
    CHECKPOINT_WAS_OPTION,
    Invocation,
    Verb,
    checkpoint_argument,
    checkpoint_option,
    pass_invocation,
)
from statestore.cli.completion import complete_savepoint
from statestore.cli.output import Output, Page
from statestore.format.hold_documents import Pin

__all__ = ["Pinned", "Saved", "Unpinned", "keep_savepoint", "pin_checkpoint", "unpin_checkpoint"]


@click.command(
    "savepoint",
    cls=Verb,
    prints=(
        "The savepoint and the checkpoint that it keeps. That checkpoint does not expire, "
        "and its files are not collected. Every command that takes a checkpoint also accepts "
        "the name. NAME must not be a number, 'latest' or 'all'. With --delete the savepoint "
        "is deleted, and its checkpoint can expire again."
    ),
    examples=(
        "statestore savepoint before-upgrade --store ./fraud",
        "statestore savepoint end-of-january --checkpoint 1 --store ./fraud",
        "statestore savepoint --delete before-upgrade --store ./fraud",
    ),
)
@click.argument("name", shell_complete=complete_savepoint)
@checkpoint_option("The checkpoint to keep", default=None)
@click.option("--delete", is_flag=True, help="Delete the savepoint.")
@pass_invocation
def keep_savepoint(
    invocation: Invocation, name: str, checkpoint: str | None, delete: bool
) -> Output[Saved]:
    """Keep a checkpoint under a name."""
    if delete and checkpoint is not None:
        raise click.UsageError("--delete takes only the name of the savepoint: remove --checkpoint")
    store = invocation.store()
    if delete:
        gone = store.maintenance.delete_savepoint(name)
        number = None if gone is None else gone.checkpoint_id
        return Output(
            Saved(store=store.url, name=name, checkpoint_id=number, deleted=True), write_saved
        )
    made = store.maintenance.savepoint(name, "latest" if checkpoint is None else checkpoint)
    return Output(
        Saved(store=store.url, name=made.name, checkpoint_id=made.checkpoint_id), write_saved
    )


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A savepoint that was made or deleted; the checkpoint of a damaged one is unknown."""

    store: str
    name: str
    checkpoint_id: int | None
    deleted: bool = False


def write_saved(page: Page, saved: Saved) -> None:
    """Write the made or deleted savepoint as text."""
    verb = "was deleted; it kept" if saved.deleted else "keeps"
    kept = f"checkpoint {saved.checkpoint_id}"
    if saved.checkpoint_id is None:
        kept = "an unknown checkpoint, because its document was damaged"
    page.line(f"savepoint {saved.name} of {saved.store} {verb} {kept}")


@click.command(
    "pin",
    cls=Verb,
    replaced=CHECKPOINT_WAS_OPTION,
    prints=(
        "The pin's token, for unpin. A pinned checkpoint does not expire, and its files are "
        "not collected, until it is unpinned or the lease ends."
    ),
    examples=(
        "statestore pin --lease 2h --store ./fraud",
        "statestore pin 1 --lease 7d --holder 'monthly report' --store ./fraud",
    ),
)
@checkpoint_argument
@click.option(
    "--lease",
    type=SPAN,
    required=True,
    metavar="SPAN",
    help="The maximum time to hold the pin: 90s, 15min, 2h.",
)
@click.option("--holder", metavar="TEXT", help="The name of the reader. [this host and process]")
@pass_invocation
def pin_checkpoint(
    invocation: Invocation, checkpoint: str, lease: str, holder: str | None
) -> Output[Pinned]:
    """Keep a checkpoint while it is being read."""
    store = invocation.store()
    made = store.maintenance.pin(checkpoint, lease=lease, holder=holder)
    pin = Pin(made.token, made.checkpoint_id, made.holder, made.until_ms)
    return Output(Pinned(store=store.url, pin=pin), write_pinned)


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """A pin that was made."""

    store: str
    pin: Pin


def write_pinned(page: Page, pinned: Pinned) -> None:
    """Write the new pin as text."""
    # Nothing else is written, so that a shell can store the token in a variable.
    page.line(pinned.pin.token)


@click.command(
    "unpin",
    cls=Verb,
    prints="The token of the pin that was removed.",
    examples=("statestore unpin 0d2f61c8a1b94d7fb5f0c7a9e6d83b12 --store ./fraud",),
)
@click.argument("token")
@pass_invocation
def unpin_checkpoint(invocation: Invocation, token: str) -> Output[Unpinned]:
    """Release a pinned checkpoint."""
    store = invocation.store()
    store.maintenance.unpin(token)
    return Output(Unpinned(store=store.url, token=token), write_unpinned)


@dataclass(frozen=True, kw_only=True)
class Unpinned:
    """A released pin."""

    store: str
    token: str


def write_unpinned(page: Page, unpinned: Unpinned) -> None:
    """Write the released pin as text."""
    page.line(f"pin {unpinned.token} of {unpinned.store} was removed")
