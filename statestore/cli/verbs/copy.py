"""``statestore copy`` and ``fork``: bring a checkpoint to another store, or to a new one."""

from __future__ import annotations

from dataclasses import dataclass

import click
from msgspec import field

from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, checkpoint_argument, pass_invocation
from statestore.cli.documents import Document, LeftOutDocument
from statestore.cli.drawing import amount
from statestore.cli.output import Page, Result, progress_bar
from statestore.maintenance.copy import CopiedCheckpoint

__all__ = ["Copied", "Forked", "copy_checkpoint", "fork_checkpoint"]


@click.command(
    "copy",
    cls=Verb,
    prints=(
        "The new checkpoint's number in the target store, and the files and bytes that the "
        "target did not have. Each file's SHA-256 is checked during the copy, and the "
        "checkpoint becomes visible after the last file is copied. If a copy was killed, "
        "running the command again continues it. If the checkpoint was already copied, the "
        "command reports that copy. If CHECKPOINT is the name of a savepoint, the target "
        "gets a savepoint with that name. Both stores are accessed with the same "
        "credentials. With --dry-run: what would be copied, and nothing is written."
    ),
    examples=(
        "statestore copy --to ./backup --dry-run --store ./fraud",
        "statestore copy 1 --to ./backup --as-savepoint end-of-january --store ./fraud",
    ),
)
@checkpoint_argument
@click.option(
    "--to", "target", metavar="URL", required=True, help="The path or URL of the target store."
)
@click.option(
    "--as-savepoint", metavar="NAME", help="Create a savepoint with this name for the copy."
)
@click.option("--dry-run", is_flag=True, help="Report what would be copied, and write nothing.")
@pass_invocation
def copy_checkpoint(
    invocation: Invocation, checkpoint: str, target: str, as_savepoint: str | None, dry_run: bool
) -> Copied:
    """Copy a checkpoint or savepoint to another store."""
    store = invocation.store()
    with progress_bar("copying") as progress:
        copied = store.maintenance.copy(
            checkpoint, target, as_savepoint=as_savepoint, dry_run=dry_run, on_progress=progress
        )
    return Copied(copied=copied)


class CopiedDocument(Document):
    """The copy of a checkpoint.

    ``new_id`` is null in a dry run without an earlier copy. ``found`` is true if the target has an
    earlier copy.
    """

    store: str
    checkpoint_id: int = field(name="id")
    target: str
    dry_run: bool
    new_id: int | None
    found: bool
    savepoint: str | None
    files: int
    size_bytes: int
    copied_files: int
    copied_bytes: int
    left_out: list[LeftOutDocument]


@dataclass(frozen=True, kw_only=True)
class Copied(Result):
    """The copied checkpoint."""

    copied: CopiedCheckpoint

    def document(self) -> CopiedDocument:
        """Return it for ``--output json``."""
        return CopiedDocument.of(self.copied)

    def write(self, page: Page) -> None:
        """Write it as text."""
        done = self.copied
        source = f"checkpoint {done.checkpoint_id} of {done.store}"
        all_of_it = amount(done.size_bytes, done.files)
        copied = amount(done.copied_bytes, done.copied_files)
        if done.found:
            there = f"checkpoint {done.new_id} of {done.target}"
            page.line(f"{source} was already copied: it is {there}")
        elif done.dry_run:
            page.line(f"would copy {source} to {done.target}", "bold")
            page.line(f"  {all_of_it} in total; the target does not have {copied}")
        else:
            page.line(f"copied {source} to {done.target} as checkpoint {done.new_id}", "bold")
            page.line(f"  {all_of_it} in total; the target did not have {copied}")
        if done.savepoint is not None:
            page.line(f"  savepoint {done.savepoint}")
        write_left_out(page, done.left_out)


@click.command(
    "fork",
    cls=Verb,
    prints=(
        "The files and bytes that the new store shares with this store, and those that had "
        "to be copied. On one file system nothing is copied: each file gets a name in both "
        "stores and exists until both have deleted it. Therefore each store can expire, "
        "compact, purge and collect without an effect on the other. Files are copied from or "
        "to a bucket, and to another disk. A shared file that is damaged in place is damaged "
        "in both stores. If CHECKPOINT is the name of a savepoint, the new store gets a "
        "savepoint with that name. With --dry-run: the same output, and nothing is written."
    ),
    examples=(
        "statestore fork --to ./what-if --dry-run --store ./fraud",
        "statestore fork 1 --to ./what-if --store ./fraud",
    ),
)
@checkpoint_argument
@click.option(
    "--to", "target", metavar="URL", required=True, help="The path or URL of the new store."
)
@click.option("--dry-run", is_flag=True, help="Report what would be shared, and write nothing.")
@pass_invocation
def fork_checkpoint(invocation: Invocation, checkpoint: str, target: str, dry_run: bool) -> Forked:
    """Create a new store from a checkpoint without copying its files."""
    store = invocation.store()
    with progress_bar("forking") as progress:
        forked = store.maintenance.fork(target, checkpoint, dry_run=dry_run, on_progress=progress)
    return Forked(forked=forked)


class ForkedDocument(Document):
    """A new store. Files that were not copied are shared."""

    store: str
    checkpoint_id: int = field(name="id")
    target: str
    dry_run: bool
    new_id: int | None
    savepoint: str | None
    files: int
    size_bytes: int
    copied_files: int
    copied_bytes: int
    left_out: list[LeftOutDocument]


@dataclass(frozen=True, kw_only=True)
class Forked(Result):
    """The new store, and the files that it shares."""

    forked: CopiedCheckpoint

    def document(self) -> ForkedDocument:
        """Return it for ``--output json``."""
        return ForkedDocument.of(self.forked)

    def write(self, page: Page) -> None:
        """Write it as text."""
        done = self.forked
        source = f"checkpoint {done.checkpoint_id} of {done.store}"
        if done.dry_run:
            page.line(f"would fork {source} to {done.target}", "bold")
        else:
            page.line(f"forked {source} to {done.target} as checkpoint {done.new_id}", "bold")
        shared = amount(done.size_bytes - done.copied_bytes, done.files - done.copied_files)
        page.line(f"  shared  {shared}")
        page.line(f"  copied  {amount(done.copied_bytes, done.copied_files)}")
        if done.savepoint is not None:
            page.line(f"  savepoint {done.savepoint}")
        write_left_out(page, done.left_out)
