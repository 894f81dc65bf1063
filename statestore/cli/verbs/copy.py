"""``statestore copy``: bring a checkpoint to another store, or share it with a new one."""

from __future__ import annotations

import click

from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import size_and_files
from statestore.cli.options import checkpoint_argument, dry_run_option
from statestore.cli.output import Output, Page, progress_bar
from statestore.maintenance.copy import CopiedCheckpoint

__all__ = ["copy_checkpoint"]


@click.command(
    "copy",
    cls=Verb,
    section="Move",
    prints=(
        "The new checkpoint's number in the store TARGET, and the files and bytes that TARGET "
        "lacked. TARGET is accessed with the same credentials. A copy that was killed continues "
        "when it is run again. With --linked, TARGET is a new store, and each file gets a name in "
        "both stores, so that each can expire, compact and collect without an effect on the other."
    ),
    examples=(
        "statestore copy ./backup --dry-run --store ./fraud",
        "statestore copy ./backup 1 --as-savepoint end-of-january --store ./fraud",
        "statestore copy ./what-if 1 --linked --store ./fraud",
    ),
    modes={"": ("--as-savepoint",), "--linked": ()},
)
@click.argument("target")
@checkpoint_argument
@click.option(
    "--as-savepoint", metavar="NAME", help="Create a savepoint with this name for the copy."
)
@click.option("--linked", is_flag=True, help="Create a new store that shares the files.")
@dry_run_option
@pass_invocation
def copy_checkpoint(
    invocation: Invocation,
    checkpoint: str,
    target: str,
    as_savepoint: str | None,
    linked: bool,
    dry_run: bool,
) -> Output[CopiedCheckpoint]:
    """Copy a checkpoint or savepoint to another store."""
    maintenance = invocation.store().maintenance
    with progress_bar("linking" if linked else "copying") as progress:
        copied = maintenance.copy(
            checkpoint,
            target,
            linked=linked,
            as_savepoint=as_savepoint,
            dry_run=dry_run,
            on_progress=progress,
        )
    return Output(copied, write_linked if linked else write_copied)


def write_copied(page: Page, copied: CopiedCheckpoint) -> None:
    """Write the result of a copy as text."""
    source = f"checkpoint {copied.checkpoint_id} of {copied.store}"
    all_of_it = size_and_files(copied.size_bytes, copied.files)
    lacked = size_and_files(copied.copied_bytes, copied.copied_files)
    if copied.found:
        there = f"checkpoint {copied.new_checkpoint_id} of {copied.target}"
        page.line(f"{source} was already copied: it is {there}")
    elif copied.dry_run:
        page.line(f"would copy {source} to {copied.target}", "bold")
        page.line(f"  {all_of_it} in total; the target does not have {lacked}")
    else:
        page.line(
            f"copied {source} to {copied.target} as checkpoint {copied.new_checkpoint_id}", "bold"
        )
        page.line(f"  {all_of_it} in total; the target did not have {lacked}")
    if copied.savepoint is not None:
        page.line(f"  savepoint {copied.savepoint}")
    write_left_out(page, copied.left_out)


def write_linked(page: Page, linked: CopiedCheckpoint) -> None:
    """Write the result of a linked copy as text."""
    source = f"checkpoint {linked.checkpoint_id} of {linked.store}"
    if linked.dry_run:
        page.line(f"would link {source} to {linked.target}", "bold")
    else:
        page.line(
            f"linked {source} to {linked.target} as checkpoint {linked.new_checkpoint_id}", "bold"
        )
    shared = size_and_files(
        linked.size_bytes - linked.copied_bytes, linked.files - linked.copied_files
    )
    page.line(f"  shared  {shared}")
    page.line(f"  copied  {size_and_files(linked.copied_bytes, linked.copied_files)}")
    if linked.savepoint is not None:
        page.line(f"  savepoint {linked.savepoint}")
    write_left_out(page, linked.left_out)
