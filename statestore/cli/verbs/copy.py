"""``statestore copy`` and ``fork``: bring a checkpoint to another store, or to a new one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import click

from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, checkpoint_argument, pass_invocation
from statestore.cli.drawing import amount
from statestore.cli.output import Page, Result, progress_bar
from statestore.format.manifest_json import left_out_to_json
from statestore.maintenance.copy import CopiedCheckpoint

__all__ = ["Copied", "Forked", "copy_checkpoint", "fork_checkpoint"]


@click.command(
    "copy",
    cls=Verb,
    prints=(
        "The checkpoint's number in the target, and how many files and bytes the target lacked. "
        "Each file's SHA-256 is checked while it is copied, and the checkpoint is visible in the "
        "target once the last one is there. A copy that was killed goes on where it was; one that "
        "is made again finds the first. CHECKPOINT may be the name of a savepoint, which is then "
        "one of that name in the target. Both stores are reached with the same credentials. With "
        "--dry-run: what would be copied, and nothing is written."
    ),
    examples=(
        "statestore copy --to ./backup --dry-run --store ./fraud",
        "statestore copy 1 --to ./backup --as-savepoint end-of-january --store ./fraud",
    ),
)
@checkpoint_argument
@click.option("--to", "target", metavar="URL", required=True, help="Path or URL to copy to.")
@click.option("--as-savepoint", metavar="NAME", help="Keep the copy under this name there.")
@click.option("--dry-run", is_flag=True, help="Say what would be copied and stop.")
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


@dataclass(frozen=True, kw_only=True)
class Copied(Result):
    """The copied checkpoint."""

    copied: CopiedCheckpoint

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        document = asdict(self.copied)
        document["left_out"] = left_out_to_json(self.copied.left_out)
        return {"store": document.pop("store"), "id": document.pop("checkpoint_id"), **document}

    def write(self, page: Page) -> None:
        """Write it as text."""
        done = self.copied
        source = f"checkpoint {done.checkpoint_id} of {done.store}"
        all_of_it = amount(done.size_bytes, done.files)
        copied = amount(done.copied_bytes, done.copied_files)
        if done.found:
            there = f"checkpoint {done.new_id} of {done.target}"
            page.line(f"{source} was copied before: it is {there}")
        elif done.dry_run:
            page.line(f"would copy {source} to {done.target}", "bold")
            page.line(f"  {all_of_it}, of which the target lacks {copied}")
        else:
            page.line(f"copied {source} to {done.target}: checkpoint {done.new_id} there", "bold")
            page.line(f"  {all_of_it}, of which the target lacked {copied}")
        if done.savepoint is not None:
            page.line(f"  savepoint {done.savepoint}")
        write_left_out(page, done.left_out)


@click.command(
    "fork",
    cls=Verb,
    prints=(
        "How many files and bytes the new store shares with this one, and how many had to be "
        "copied. On one file system none are: a file has a name in each store, and goes when both "
        "have let go of it, so whatever is expired, compacted, purged or collected in one, the "
        "other keeps what it has. From and to a bucket, and to another disk, files are copied. A "
        "file that is damaged in place is damaged in both. CHECKPOINT may be the name of a "
        "savepoint, which is then one there. With --dry-run: the same, and nothing is written."
    ),
    examples=(
        "statestore fork --to ./what-if --dry-run --store ./fraud",
        "statestore fork 1 --to ./what-if --store ./fraud",
    ),
)
@checkpoint_argument
@click.option("--to", "target", metavar="URL", required=True, help="Where the new store will be.")
@click.option("--dry-run", is_flag=True, help="Say what would be shared and stop.")
@pass_invocation
def fork_checkpoint(invocation: Invocation, checkpoint: str, target: str, dry_run: bool) -> Forked:
    """Begin a new store with a checkpoint of this one, without copying it."""
    store = invocation.store()
    with progress_bar("forking") as progress:
        forked = store.maintenance.fork(target, checkpoint, dry_run=dry_run, on_progress=progress)
    return Forked(forked=forked)


@dataclass(frozen=True, kw_only=True)
class Forked(Result):
    """The new store, and the files that it shares."""

    forked: CopiedCheckpoint

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        done = self.forked
        return {
            "store": done.store,
            "id": done.checkpoint_id,
            "target": done.target,
            "dry_run": done.dry_run,
            "new_id": done.new_id,
            "savepoint": done.savepoint,
            "files": done.files,
            "size_bytes": done.size_bytes,
            "copied_files": done.copied_files,
            "copied_bytes": done.copied_bytes,
            "left_out": left_out_to_json(done.left_out),
        }

    def write(self, page: Page) -> None:
        """Write it as text."""
        done = self.forked
        source = f"checkpoint {done.checkpoint_id} of {done.store}"
        if done.dry_run:
            page.line(f"would fork {source} to {done.target}", "bold")
        else:
            page.line(f"forked {source} to {done.target}: checkpoint {done.new_id} there", "bold")
        shared = amount(done.size_bytes - done.copied_bytes, done.files - done.copied_files)
        page.line(f"  shared  {shared}")
        page.line(f"  copied  {amount(done.copied_bytes, done.copied_files)}")
        if done.savepoint is not None:
            page.line(f"  savepoint {done.savepoint}")
        write_left_out(page, done.left_out)
