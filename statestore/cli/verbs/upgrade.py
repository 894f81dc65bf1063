"""``statestore upgrade``: raise a store's writer version, or undo that."""

from __future__ import annotations

import click

from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.options import dry_run_option
from statestore.cli.output import Output, Page
from statestore.maintenance.upgrade import UpgradedStore

__all__ = ["upgrade_store"]


@click.command(
    "upgrade",
    cls=Verb,
    section="Check and repair",
    prints=(
        "The writer version before and after, and the oldest release that can write to the "
        "store. Older releases still read the checkpoints that they understand. A running job "
        "can no longer commit until it reopens the store."
    ),
    examples=(
        "statestore upgrade --dry-run --store ./fraud",
        "statestore upgrade --store ./fraud",
        "statestore upgrade --back --store ./fraud",
    ),
)
@click.option("--back", is_flag=True, help="Undo the last upgrade.")
@dry_run_option
@pass_invocation
def upgrade_store(invocation: Invocation, back: bool, dry_run: bool) -> Output[UpgradedStore]:
    """Raise the writer version, so that older releases refuse to write."""
    done = invocation.store().maintenance.upgrade(back=back, dry_run=dry_run)
    return Output(done, write_upgraded)


def write_upgraded(page: Page, done: UpgradedStore) -> None:
    """Write the writer version as text."""
    if done.is_changed:
        verb = "would change" if done.dry_run else "changed"
        versions = f"from {done.previous_version} to {done.writer_version}"
        page.line(f"{verb} the writer version of {done.store} {versions}", "bold")
    else:
        page.line(f"{done.store} has writer version {done.writer_version} already", "bold")
    page.line(f"  it is written by statestore {done.needs_release} and later")
