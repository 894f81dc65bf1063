"""``statestore flink export``: write a checkpoint as a savepoint that Flink can restore."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.arguments import named_values, toml_of
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, size
from statestore.cli.options import (
    checkpoint_argument,
    dry_run_option,
    leave_out_option,
    max_parallelism_option,
    operators_option,
    subtasks_option,
)
from statestore.cli.output import Output, Page, progress_bar, table_of
from statestore.cli.verbs.flink import access_option, savepoint_access
from statestore.format.names import unescape
from statestore.jobgraph.redistribution import RedistributionMode

if TYPE_CHECKING:
    from statestore.interop.flink.exporting.export_state import ExportedSavepoint

__all__ = ["export_state"]

_OPERATOR_KINDS = tuple(map(str, RedistributionMode))


@click.command(
    "export",
    cls=Verb,
    section="Flink savepoints",
    prints=(
        "The savepoint, its operators, and the name and types of each state in Flink. The "
        "export fails if the checkpoint lacks state that neither --leave-out nor --carry names. "
        "All rows are read back before the savepoint becomes visible. Set "
        "pipeline.max-parallelism of the job to its max parallelism."
    ),
    examples=(
        "statestore flink export ./savepoint --flink 2.3 --store ./orders",
        "statestore flink export ./typed --java-type kinds/tuple=Tuple --store ./orders",
        "statestore flink export ./savepoint 1 --max-parallelism 720 --dry-run --store ./orders",
        (
            "statestore flink export ./some --operator by_long --leave-out by_long/texts "
            "--store ./orders"
        ),
        ("statestore flink export ./less --leave-out kinds --leave-out by_tuple --store ./orders"),
    ),
)
@click.argument("savepoint")
@checkpoint_argument
@operators_option
@subtasks_option("The number of subtasks that share the state. [as stored]")
@max_parallelism_option("The number of key groups. [as stored]")
@leave_out_option("State to leave out, or that the checkpoint lacks.")
@click.option(
    "--carry",
    multiple=True,
    metavar="OPERATOR",
    help="Copy an operator that the import left out, unchanged, from its savepoint.",
)
@access_option
@click.option(
    "--java-type",
    "types",
    multiple=True,
    metavar="OPERATOR[/STATE]=TYPE",
    help="The type of an operator's keys, or of a state, as in Java.",
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
    help="The classes of the job in --java-type, and what replaces classes of Scala, as TOML.",
)
@dry_run_option
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
                types={
                    unescape(name): text
                    for name, text in named_values(
                        "--java-type", "OPERATOR[/STATE]=TYPE", types
                    ).items()
                },
                version=version,
                written_by=written_by,
                classes=None if classes is None else toml_of("--classes", classes),
            ),
            dry_run=dry_run,
            on_progress=progress,
            access=savepoint_access(allow),
            selection=module.ExportSelection(
                operators=operators or None, leave_out=leave_out, carry=carry
            ),
        )
    return Output(exported, write_exported)


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
            table.add_row(*row, count(state.rows))
        page.table(table)
    for carried in exported.carried:
        page.line(f"carried unchanged: {carried}")
    for left in exported.left_out:
        name = f"{left.operator}/{left.state}" if left.state else left.operator
        page.line(f"left out: {name}, {left.reason}")
