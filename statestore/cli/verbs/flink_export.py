"""``statestore flink export``: write a checkpoint as a savepoint that Flink can restore."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.arguments import named_values
from statestore.cli.command import Invocation, Verb, checkpoint_option, pass_invocation
from statestore.cli.completion import complete_operator
from statestore.cli.drawing import count, size
from statestore.cli.output import Output, Page, cell, progress_bar, table_of
from statestore.cli.verbs.flink import allowed_places, moved_folders, parse_moved
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.parsing import parse_toml

if TYPE_CHECKING:
    from statestore.interop.flink.exporting.export_state import ExportedSavepoint

__all__ = ["export_state"]

_OPERATOR_KINDS = tuple(map(str, RedistributionMode))


@click.command(
    "export",
    cls=Verb,
    had_store=True,
    prints=(
        "The savepoint, each operator with its id, key groups, subtasks, rows and bytes, and each "
        "state with its name in Flink and its types. The types of a state that was not imported "
        "follow from its columns, and several columns are a Row. --type says other types of the "
        "job, such as Tuple, List<Long> or com.acme.Account, whose fields have the names of "
        "columns. Columns that do not fit are refused before anything is written, each by name. "
        "Imported state is written with the job's own serializers. State that was left out is "
        "listed at the end. If the checkpoint lacks some state of its source, the export fails "
        "unless --leave-out names that state. Alternatively, --carry copies it from the imported "
        "savepoint, which must still exist. State that Flink cannot represent is refused with its "
        "operator, state and column. Before the savepoint becomes visible, all rows are read back "
        "and compared with the store. Flink restores the savepoint at any parallelism up to the "
        "maximum, with any state backend. Set pipeline.max-parallelism of the job to that "
        "maximum. With --flink 2.3, values that Kryo of Flink 1 wrote are converted: Flink 2 "
        "reads other values from them, without an error. With "
        "--dry-run: what each subtask would get, and nothing is written."
    ),
    examples=(
        "statestore flink export ./savepoint --flink 2.3 --store ./orders",
        "statestore flink export ./typed --type kinds/tuple=Tuple --store ./orders",
        "statestore flink export ./savepoint --max-parallelism 720 --dry-run --store ./orders",
        (
            "statestore flink export ./some --operator by_long --leave-out by_long/texts "
            "--store ./orders"
        ),
        ("statestore flink export ./less --leave-out kinds --leave-out by_tuple --store ./orders"),
    ),
)
@click.argument("savepoint")
@click.option(
    "--operator",
    "operators",
    multiple=True,
    metavar="OPERATOR",
    help="Only this operator. Repeatable.",
    shell_complete=complete_operator,
)
@click.option(
    "--parallelism",
    type=int,
    metavar="N",
    help="The number of subtasks that share the state. [as stored]",
)
@click.option(
    "--max-parallelism",
    type=int,
    metavar="N",
    help="The number of key groups. [as stored]",
)
@checkpoint_option("The checkpoint to export")
@click.option(
    "--leave-out",
    multiple=True,
    metavar="OPERATOR[/STATE]",
    help="State to leave out, or that the checkpoint lacks. Repeatable.",
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
    "--type",
    "types",
    multiple=True,
    metavar="UID[/STATE]=TYPE",
    help="The type of an operator's keys, or of a state, as in Java. Repeatable.",
)
@click.option(
    "--flink",
    "version",
    metavar="VERSION",
    help="The job's version of Flink, such as 2.3: state of Flink 1 is converted for Flink 2.",
)
@click.option(
    "--written-by",
    metavar="VERSION",
    help="The Flink that wrote the imported savepoint. [from its metadata, since Flink 1.16]",
)
@click.option(
    "--classes",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The classes of the job in --type, and what replaces classes of Scala, as TOML.",
)
@click.option("--dry-run", is_flag=True, help="Report what would be written, and write nothing.")
@pass_invocation
def export_state(
    invocation: Invocation,
    savepoint: str,
    operators: tuple[str, ...],
    parallelism: int | None,
    max_parallelism: int | None,
    checkpoint: str,
    leave_out: tuple[str, ...],
    carry: tuple[str, ...],
    moved: tuple[str, ...],
    allow: tuple[str, ...],
    types: tuple[str, ...],
    version: str | None,
    written_by: str | None,
    classes: Path | None,
    dry_run: bool,
) -> Output[ExportedSavepoint]:
    """Export a checkpoint as a savepoint that Flink can restore."""
    module: Any = importlib.import_module("statestore.interop.flink.exporting.export_state")
    with progress_bar("exporting") as progress:
        exported = module.export_savepoint(
            invocation.store(),
            savepoint,
            checkpoint=checkpoint,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            target=module.FlinkTarget(
                types=named_values("--type", "UID/STATE=TYPE or UID=TYPE", types),
                version=version,
                written_by=written_by,
                classes=None if classes is None else _read_classes(classes),
            ),
            dry_run=dry_run,
            on_progress=progress,
            access=module.SavepointAccess(moved=parse_moved(moved), allow=allow),
            selection=module.ExportSelection(
                operators=operators or None, leave_out=leave_out, carry=carry
            ),
        )
    return Output(exported, write_exported)


def _read_classes(file: Path) -> dict[str, Any]:
    try:
        return parse_toml(file.read_text("utf-8"))
    except ValueError as error:
        raise click.UsageError(f"--classes: {file} is not valid TOML: {error}") from error


def write_exported(page: Page, exported: ExportedSavepoint) -> None:
    """Write the exported operators and states as text."""
    verb = "would export" if exported.dry_run else "exported"
    what = "checkpoint" if exported.is_complete else "part of checkpoint"
    page.line(f"{verb} {what} {exported.checkpoint_id} of {exported.store}", "bold")
    page.line(f"  to           {exported.savepoint}")
    if not exported.dry_run:
        page.line("  read back    rows, values and key groups equal those of the store")
    for operator in exported.operators:
        page.line()
        page.line(f"operator {operator.operator}, id {operator.operator_id}", "bold")
        page.line(f"  key groups   {count(operator.max_parallelism)}")
        most, largest = max(operator.rows), max(operator.size_bytes)
        page.line(
            f"  subtasks     {operator.parallelism}, with at most {count(most)} rows and "
            f"{size(largest)} each; {count(sum(operator.rows))} rows and "
            f"{size(sum(operator.size_bytes))} in total"
        )
        keyed = [state for state in operator.states if state.kind not in _OPERATOR_KINDS]
        for state in keyed[:1]:
            hashed = "" if state.key_hash is None else f", hashed by {state.key_hash}"
            page.line(f"  keys         {state.key_type}{hashed}")
        example = next((state.key_example for state in keyed if state.key_example), None)
        if example is not None:
            page.line(f"  check        {example.key} has the hashCode() {example.hash_code}")
        table = table_of("state", "in Flink", "kind", "type", "rows", right={"rows"})
        for state in operator.states:
            row = (state.state, state.flink_name, state.kind, state.value_type)
            table.add_row(*map(cell, (*row, count(state.rows))))
        page.table(table)
    for carried in exported.carried:
        page.line(f"carried unchanged: {carried}")
    for left in exported.left_out:
        name = f"{left.operator}/{left.state}" if left.state else left.operator
        page.line(f"left out: {name}, {left.reason}")
