"""``statestore savepoint``: keep a checkpoint by name or for a lease, and release it."""

from __future__ import annotations

from dataclasses import dataclass

import click

from statestore.catalog.holds import Pin
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.options import SPAN, checkpoint_argument, complete_savepoint
from statestore.cli.output import Output, Page
from statestore.errors import CheckpointNotFoundError
from statestore.store import StateStore

__all__ = ["Pinned", "Saved", "Unpinned", "keep_savepoint"]


@click.command(
    "savepoint",
    cls=Verb,
    section="Keep and delete",
    prints=(
        "The savepoint and the checkpoint that it keeps, which does not expire. Every command "
        "that takes a checkpoint also takes NAME. With --lease: the token of a pin, which keeps "
        "the checkpoint until the lease ends. With --remove: the savepoint or pin that was "
        "removed."
    ),
    examples=(
        "statestore savepoint before-upgrade --store ./fraud",
        "statestore savepoint end-of-january 1 --store ./fraud",
        "statestore savepoint 'monthly report' --lease 7d --store ./fraud",
        "statestore savepoint --remove before-upgrade --store ./fraud",
        "statestore savepoint --remove 0d2f61c8a1b94d7fb5f0c7a9e6d83b12 --store ./fraud",
    ),
    modes={
        "": ("name", "checkpoint"),
        "--lease": ("name", "checkpoint"),
        "--remove": ("name",),
    },
)
@click.argument("name", required=False, shell_complete=complete_savepoint)
@checkpoint_argument
@click.option(
    "--lease",
    type=SPAN,
    metavar="SPAN",
    help="Keep the checkpoint for at most this time: 90s, 15min, 2h. NAME is then the name of the "
    "reader. [this host and process]",
)
@click.option(
    "--remove", is_flag=True, help="Release the savepoint NAME, or the pin with this token."
)
@pass_invocation
def keep_savepoint(
    invocation: Invocation,
    name: str | None,
    checkpoint: str,
    lease: str | None,
    remove: bool,
) -> Output[Saved] | Output[Pinned] | Output[Unpinned]:
    """Keep a checkpoint under a name, or while it is being read."""
    store = invocation.store()
    if lease is not None:
        made = store.maintenance.pin(checkpoint, lease=lease, holder=name)
        pin = Pin(made.token, made.checkpoint_id, made.holder, made.until_ms)
        return Output(Pinned(store=store.url, pin=pin), write_pinned)
    if name is None:
        what = "a savepoint or the token of a pin" if remove else "a savepoint, or --lease SPAN"
        raise click.UsageError(f"pass the NAME of {what}")
    if remove:
        return _remove(store, name)
    kept = store.maintenance.savepoint(name, checkpoint)
    return Output(
        Saved(store=store.url, name=kept.name, checkpoint_id=kept.checkpoint_id), write_saved
    )


def _remove(store: StateStore, name: str) -> Output[Saved] | Output[Unpinned]:
    """Release the savepoint of this name, or the pin with this token."""
    try:
        gone = store.maintenance.delete_savepoint(name)
    except CheckpointNotFoundError as error:
        try:
            store.maintenance.unpin(name)
        except CheckpointNotFoundError as no_pin:
            error.add_note(str(no_pin))
            raise error from no_pin
        return Output(Unpinned(store=store.url, token=name), write_unpinned)
    number = None if gone is None else gone.checkpoint_id
    return Output(
        Saved(store=store.url, name=name, checkpoint_id=number, deleted=True), write_saved
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


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """A pin that was made."""

    store: str
    pin: Pin


def write_pinned(page: Page, pinned: Pinned) -> None:
    """Write the new pin as text."""
    # Nothing else is written, so that a shell can store the token in a variable.
    page.line(pinned.pin.token)


@dataclass(frozen=True, kw_only=True)
class Unpinned:
    """A released pin."""

    store: str
    token: str


def write_unpinned(page: Page, unpinned: Unpinned) -> None:
    """Write the released pin as text."""
    page.line(f"pin {unpinned.token} of {unpinned.store} was removed")
