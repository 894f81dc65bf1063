"""``statestore restore``: write a checkpoint's rows to files, one folder per subtask."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import click

from statestore.cli.arguments import graph_of
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, size
from statestore.cli.options import (
    checkpoint_argument,
    parallelism_option,
    restore_options,
    state_option,
)
from statestore.cli.output import Output, Page, progress_bar, table_of
from statestore.cli.restore_records import keep_restore, kept_restores, measured_restore
from statestore.format.digest import digest_text
from statestore.restore.export import ExportedCheckpoint, ExportedState
from statestore.restore.row_files import EXPORT_FORMATS

__all__ = ["Restored", "restore_checkpoint"]


@click.command(
    "restore",
    cls=Verb,
    section="Plan and restore",
    prints=(
        "The written states, rows, bytes and files, and the rows and digest of each subtask; "
        "these digests add up to the stored one. The rows of subtask 3 are in "
        "DIR/<operator>/<state>/subtask=00003/part-0.parquet. DIR must be empty or new, and it "
        "is empty after an error. With the setting verify_files, each file's SHA-256 is "
        "checked. 'statestore plan' shows before what would be read."
    ),
    examples=(
        "statestore restore --parallelism 7 --to ./restored --store ./fraud",
        "statestore restore 1 --to ./one --state totals-by-user --format jsonl --store ./fraud",
        "statestore restore --parallelism 256MiB --to ./auto --store ./fraud",
        "statestore restore --max-parallelism 16 --state totals-by-shop --to up --store ./fraud",
        "statestore restore --parallelism 3 --balance bytes --to ./balanced --store ./fraud",
        "statestore restore --graph new-job.toml --to ./new --store ./fraud",
    ),
)
@checkpoint_argument
@parallelism_option()
@restore_options
@click.option(
    "--allow-non-restored-state",
    is_flag=True,
    help="Drop the state that no operator of the graph claims.",
)
@click.option("--to", "directory", required=True, metavar="DIR", help="The directory to write to.")
@click.option(
    "--format",
    "form",
    type=click.Choice(EXPORT_FORMATS),
    default="parquet",
    help="The file format. [parquet]",
)
@state_option()
@pass_invocation
def restore_checkpoint(
    invocation: Invocation,
    /,
    graph: str | None,
    allow_non_restored_state: bool,
    directory: str,
    form: str,
    operator: str | None,
    state: str | None,
    **target: Any,
) -> Output[Restored]:
    """Write the restored rows to files, one directory per subtask."""
    store = invocation.store()
    target |= {"graph": graph_of(graph), "checkpoint": store.checkpoint(target["checkpoint"])}
    plan = store.plan(operator=operator, state=state, **target)
    with progress_bar("restoring") as progress:
        restored = store.restore(
            allow_non_restored_state=allow_non_restored_state,
            verify=invocation.settings.verify_files,
            **target,
        )
        exported = restored.export(
            directory,
            operator=operator,
            state=state,
            format=form,
            parquet=store.parts.parquet,
            progress=progress,
        )
    store_id = restored.manifest.store_id
    measured = measured_restore(plan, exported, kept_restores(os.environ, store_id))
    if measured is not None and form == "parquet":
        keep_restore(os.environ, store_id, measured)
    return Output(Restored(store=store.url, exported=exported), write_restored)


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The written files."""

    store: str
    exported: ExportedCheckpoint


def write_restored(page: Page, restored: Restored) -> None:
    """Write the written files as text."""
    done = restored.exported
    page.line(
        f"checkpoint {done.checkpoint_id} restored at parallelism {done.parallelism} "
        f"to {done.directory}",
        "bold",
    )
    table = table_of(
        "operator", "state", "rows", "bytes", "files", right={"rows", "bytes", "files"}
    )
    for state in done.states:
        numbers = (count(state.rows), size(state.size_bytes), count(state.files))
        table.add_row(state.operator, state.state, *numbers)
    page.table(table)
    write_left_out(page, done.left_out)
    for state in done.states:
        _write_proof(page, state)


def _write_proof(page: Page, state: ExportedState) -> None:
    """Write each subtask's share of a state, with the proof that it matches the store (I7)."""
    proof = state.proof
    page.line()
    page.line(f"state {state.state} of operator {state.operator}", "bold")
    table = table_of("subtask", "rows", "digest", right={"subtask", "rows"})
    rows = [(str(i), found) for i, found in enumerate(proof.subtasks)]
    rows.append(("each" if proof.copies else "sum", proof.together))
    for name, found in (*rows, ("stored", proof.stored)):
        cells = (name, count(found.rows), digest_text(found.digest))
        table.add_row(*cells)
    page.table(table)
