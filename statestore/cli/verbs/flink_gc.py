"""``statestore flink gc``: delete the files under a checkpoint folder that nothing names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, counted, duration, size, size_and_files, when
from statestore.cli.options import dry_run_option, minimum_age_option
from statestore.cli.output import Output, Page, progress_bar, table_of, write_first

if TYPE_CHECKING:
    from statestore.interop.flink.checkpoint_gc import CollectedFlinkFiles

__all__ = ["collect_files"]

_DAY_MS = 24 * 3_600_000


@click.command(
    "gc",
    cls=Verb,
    section="Flink savepoints",
    has_store=False,
    prints=(
        "The files under FOLDER by job and kind: the files that no '_metadata' below it names, by "
        "age, and why others stay. FOLDER is execution.checkpointing.dir of all jobs that use its "
        "files. Nothing is deleted without --yes, or if a '_metadata' cannot be read. A running "
        "job keeps files that it may still use: files that are not older, by the minimum age, "
        "than its newest checkpoint, and files that may be open."
    ),
    examples=(
        "statestore flink gc ./checkpoints --dry-run",
        "statestore flink gc ./checkpoints --minimum-age 14d --also-keep ./savepoints --yes",
    ),
)
@click.argument("folder")
@minimum_age_option(
    "7d",
    "Keep files that were written less than this time ago, or before the job's newest checkpoint. "
    "It must exceed the time of a checkpoint, and of a changelog's materialization.",
)
@click.option(
    "--also-keep",
    multiple=True,
    metavar="PATH",
    help=(
        "A folder elsewhere with savepoints, or with checkpoints of jobs that claimed one of this "
        "folder. The files that they name stay."
    ),
)
@click.option(
    "--ended",
    multiple=True,
    metavar="JOB",
    help=(
        "The id of a job that will never run again: all its old files that nothing names are "
        "deleted, also without a checkpoint of it."
    ),
)
@dry_run_option
@click.option("--yes", is_flag=True, help="Delete the files.")
@pass_invocation
def collect_files(
    invocation: Invocation,
    folder: str,
    minimum_age: str,
    also_keep: tuple[str, ...],
    ended: tuple[str, ...],
    dry_run: bool,
    yes: bool,
) -> Output[CollectedFlinkFiles]:
    """Delete old files of Flink's checkpoints that no checkpoint or savepoint names."""
    if dry_run == yes:
        raise click.UsageError("pass --dry-run to see the files, or --yes to delete them")
    module: Any = importlib.import_module("statestore.interop.flink.checkpoint_gc")
    with progress_bar("searching" if dry_run else "deleting") as progress:
        collected = module.collect_flink_files(
            folder,
            minimum_age=minimum_age,
            dry_run=dry_run,
            also_keep=also_keep,
            ended=ended,
            on_progress=progress,
        )
    return Output(collected, write_collected_files)


def write_collected_files(page: Page, collected: CollectedFlinkFiles) -> None:
    """Write the deleted and kept files as text."""
    verb = "would delete" if collected.dry_run else "deleted"
    removed = size_and_files(collected.removed.size_bytes, collected.removed.files)
    page.line(f"{verb} {removed} of {collected.folder}", "bold")
    for age in collected.by_age:
        oldest = duration(age.days * _DAY_MS)
        page.line(f"  {oldest} or older  {size_and_files(age.size_bytes, age.files)}")
    write_first(page, collected.names, indent="    ")
    page.line(f"  read  {counted(collected.checkpoints, 'metadata file')}")
    table = table_of("job", "kind", "outcome", "files", "bytes", "oldest", right={"files", "bytes"})
    for group in collected.groups:
        outcome = verb if group.kept is None else f"kept: {group.kept}"
        amounts = (count(group.files), size(group.size_bytes), when(group.oldest_ms))
        table.add_row(group.job or "", group.kind, outcome, *amounts)
    page.table(table)
