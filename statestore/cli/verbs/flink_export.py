"""``statestore flink export``: write a checkpoint as a savepoint that Flink can restore."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.completion import complete_checkpoint, complete_operator
from statestore.cli.drawing import count, size
from statestore.cli.output import Page, Result, cell, progress_bar, table_of
from statestore.cli.verbs.flink import allowed_places, folder_pair, moved_folders

if TYPE_CHECKING:
    from statestore.interop.flink_savepoints.exporting.export_state import ExportedSavepoint

__all__ = ["FlinkExportResult", "export_state"]


@click.command(
    "export",
    cls=Verb,
    prints=(
        "The savepoint, each operator with its id, key groups, subtasks, rows and bytes, and each "
        "state with what Flink calls it and its types; several values are a Row, whose fields "
        "have the order of the columns, or a tuple with --tuple. A state that was imported is "
        "written as it came, with the job's own serializers. Then what was left out. If the "
        "checkpoint does not have all state of its source, the export refuses to run unless "
        "--leave-out names what is missing, or --carry copies it from the imported savepoint, "
        "which must still be there. What Flink "
        "cannot have is refused, by operator, state and column. All rows are read back and "
        "compared with the store before there is a savepoint. Flink restores it at any "
        "parallelism up to the maximum, with any state backend: set pipeline.max-parallelism of "
        "the job to that. STORE is the same as --store. With --dry-run: what each subtask would "
        "get, and nothing is written."
    ),
    examples=(
        "statestore flink export ./orders ./savepoint",
        "statestore flink export ./savepoint --max-parallelism 720 --dry-run --store ./orders",
        "statestore flink export ./orders ./some --operator by_long --leave-out by_long/texts",
        "statestore flink export ./orders ./less --leave-out kinds --leave-out by_tuple",
    ),
)
@click.argument("places", nargs=-1, required=True, metavar="[STORE] SAVEPOINT")
@click.option(
    "--operator",
    "operators",
    multiple=True,
    metavar="UID",
    help="Only this operator. Repeatable.",
    shell_complete=complete_operator,
)
@click.option(
    "--parallelism",
    type=int,
    metavar="N",
    help="Subtasks that share the state; by default as stored.",
)
@click.option(
    "--max-parallelism",
    type=int,
    metavar="N",
    help="The number of key groups; by default as stored.",
)
@click.option(
    "--checkpoint",
    default="latest",
    metavar="N",
    help="Its number, or a savepoint of the store.",
    shell_complete=complete_checkpoint,
)
@click.option(
    "--leave-out",
    multiple=True,
    metavar="OPERATOR[/STATE]",
    help="State that is not written, or that the checkpoint lacks. Repeatable.",
)
@click.option(
    "--carry",
    multiple=True,
    metavar="OPERATOR",
    help="Copy an operator that the import left out, unchanged, from its savepoint. Repeatable.",
)
@moved_folders
@allowed_places
@click.option(
    "--tuple",
    "tuples",
    multiple=True,
    metavar="UID/STATE",
    help="A state whose several values are a tuple in the job, not a Row. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be written and stop.")
@pass_invocation
def export_state(
    invocation: Invocation,
    places: tuple[str, ...],
    operators: tuple[str, ...],
    parallelism: int | None,
    max_parallelism: int | None,
    checkpoint: str,
    leave_out: tuple[str, ...],
    carry: tuple[str, ...],
    moved: tuple[str, ...],
    allow: tuple[str, ...],
    tuples: tuple[str, ...],
    dry_run: bool,
) -> FlinkExportResult:
    """Make a savepoint of a checkpoint, from which Flink restores."""
    *stores, savepoint = places
    if len(stores) > 1:
        raise click.UsageError(f"one store and one savepoint are named, not {len(places)} places")
    if stores:
        invocation.arguments["store"] = stores[0]
    module: Any = importlib.import_module(
        "statestore.interop.flink_savepoints.exporting.export_state"
    )
    with progress_bar("exporting") as progress:
        exported = module.export_savepoint(
            invocation.store(),
            savepoint,
            checkpoint=checkpoint,
            operators=operators or None,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            leave_out=leave_out,
            carry=carry,
            moved=dict(map(folder_pair, moved)),
            allow=allow,
            tuples=tuple(_state("--tuple", one) for one in tuples),
            dry_run=dry_run,
            on_progress=progress,
        )
    return FlinkExportResult(exported=exported)


def _state(option: str, text: str) -> tuple[str, str]:
    uid, slash, name = text.partition("/")
    if not (uid and slash and name):
        raise click.UsageError(f"{option} {text!r} is not UID/STATE")
    return uid, name


@dataclass(frozen=True, kw_only=True)
class FlinkExportResult(Result):
    """A savepoint that was made for Flink."""

    exported: ExportedSavepoint

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        done = self.exported
        return {
            "store": done.store,
            "id": done.checkpoint_id,
            "savepoint": done.savepoint,
            "dry_run": done.dry_run,
            "operators": [
                {
                    "uid": operator.uid,
                    "id": operator.id,
                    "parallelism": operator.parallelism,
                    "max_parallelism": operator.max_parallelism,
                    "states": [
                        vars(state) | {"columns": [*state.columns]} for state in operator.states
                    ],
                    "subtasks": [
                        {"subtask": number, "rows": rows, "size_bytes": size_bytes}
                        for number, (rows, size_bytes) in enumerate(
                            zip(operator.rows, operator.size_bytes, strict=True)
                        )
                    ],
                }
                for operator in done.operators
            ],
            "complete": done.is_complete,
            "carried": list(done.carried),
            "left_out": [vars(one) for one in done.left_out],
        }

    def write(self, page: Page) -> None:
        """Write it as text."""
        done = self.exported
        verb = "would export" if done.dry_run else "exported"
        what = "checkpoint" if done.is_complete else "part of checkpoint"
        page.line(f"{verb} {what} {done.checkpoint_id} of {done.store}", "bold")
        page.line(f"  to           {done.savepoint}")
        if not done.dry_run:
            page.line("  read back    rows, values and key groups are those of the store")
        for one in done.operators:
            page.line()
            page.line(f"operator {one.uid}, id {one.id}", "bold")
            page.line(f"  key groups   {count(one.max_parallelism)}")
            most, largest = max(one.rows), max(one.size_bytes)
            page.line(
                f"  subtasks     {one.parallelism}, of {count(most)} rows and {size(largest)} at "
                f"most; {count(sum(one.rows))} rows and {size(sum(one.size_bytes))} in all"
            )
            table = table_of("state", "in Flink", "kind", "type", "rows", right={"rows"})
            for state in one.states:
                row = (state.name, state.flink_name, state.kind, state.value_type)
                table.add_row(*map(cell, (*row, count(state.rows))))
            page.table(table)
        for operator in done.carried:
            page.line(f"carried unchanged: {operator}")
        for left in done.left_out:
            name = f"{left.operator}/{left.state}" if left.state else left.operator
            page.line(f"left out: {name}, {left.reason}")
