"""``statestore flink show`` and ``repack``: inspect and repack savepoints of Flink jobs."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.arguments import distinct, named_values
from statestore.cli.command import Invocation, Root, Verb, pass_invocation
from statestore.cli.drawing import count, size
from statestore.cli.options import max_parallelism_option, subtasks_option
from statestore.cli.output import Output, Page, progress_bar, table_of
from statestore.errors import DamagedFileError

if TYPE_CHECKING:
    from statestore.interop.flink.exporting.repack import RepackResult
    from statestore.interop.flink.options import SavepointAccess
    from statestore.interop.flink.read.show_savepoint import (
        ShownKeyedState,
        ShownOperator,
        ShownSavepoint,
    )

__all__ = [
    "access_option",
    "dropping",
    "flink",
    "hash_recipes",
    "key_recipes",
    "repack_state",
    "savepoint_access",
    "show_state",
]

_KAFKA_OFFSETS = {-1: "latest", -2: "earliest", -3: "as committed to Kafka"}
"""The meaning of the negative offsets in a Kafka source's splits, for partitions not read yet."""
_MOVED = re.compile(r"(.+?)=((?:[A-Za-z][\w+.-]*:|\.{0,2}/|\.{1,2}$).*)")


@click.group(
    "flink",
    cls=Root,
    section="Move",
    examples=(
        "statestore flink show ./savepoint",
        "statestore flink import ./savepoint --store ./orders",
        "statestore flink export ./edited --max-parallelism 720 --store ./orders",
        "statestore flink repack ./savepoint ./larger --max-parallelism 720",
    ),
    sections=("Flink savepoints",),
)
def flink() -> None:
    """Show, import, export and repack Flink savepoints, without Flink."""


access_option = click.option(
    "--allow",
    multiple=True,
    metavar="[OLD=]URL",
    help=(
        "A folder or file elsewhere that the savepoint is allowed to reference. OLD is its former "
        "path, if it was moved and the savepoint has an absolute path."
    ),
)
"""The option for files that a savepoint references outside of its folder."""


dropping = click.option(
    "--drop",
    multiple=True,
    metavar="WHAT",
    help=(
        "Omit content that is otherwise refused: in-flight, changelog, raw, async or transactions."
    ),
)
"""The option of what is lost on purpose."""


hash_recipes = click.option(
    "--key-hash",
    "recipes",
    multiple=True,
    metavar="OPERATOR=RECIPE",
    help=(
        "How the class of an operator's keys hashes its fields: record(FIELD, …), objects(FIELD, "
        "…), lombok(FIELD, …), or scala for a case class, such as 'by_id=record(name, id)'. It "
        "must give the stored key group of every key."
    ),
)
"""The option of hashes that only the job has."""


@click.command(
    "show",
    cls=Verb,
    section="Flink savepoints",
    has_store=False,
    prints=(
        "Each operator with its id, parallelism, uid and name. Each keyed state has its types, "
        "and its entries and bytes by key group. Unreadable parts are listed with the reason, "
        "and so is state that may have been lost."
    ),
    examples=(
        "statestore flink show ./savepoint",
        "statestore flink show ./chk-7 --allow /flink=./copy --output json",
    ),
)
@click.argument("savepoint")
@access_option
@pass_invocation
def show_state(
    invocation: Invocation, savepoint: str, allow: tuple[str, ...]
) -> Output[ShownSavepoint]:
    """Show what a savepoint or checkpoint contains."""
    module: Any = importlib.import_module("statestore.interop.flink.read.show_savepoint")
    with progress_bar("reading") as progress:
        shown = module.show_savepoint(
            savepoint,
            on_progress=progress,
            access=savepoint_access(allow),
        )
    return Output(shown, write_savepoint, _find_damage(shown))


@click.command(
    "repack",
    cls=Verb,
    section="Flink savepoints",
    has_store=False,
    prints=(
        "Each operator with its entries by state. Flink restores the new savepoint at any "
        "parallelism up to the new maximum, with any state backend; set "
        "pipeline.max-parallelism of the job to it. Values are copied unchanged. Keys must have "
        "types with a known hash, or one that --key-hash gives."
    ),
    examples=(
        "statestore flink repack ./savepoint ./larger --max-parallelism 720",
        "statestore flink repack ./chk-7 ./small --max-parallelism 96 --allow /flink=./copy",
    ),
)
@click.argument("savepoint")
@click.argument("target", metavar="NEW")
@max_parallelism_option(
    "The new number of key groups of all operators that have more than one.", required=True
)
@subtasks_option("The number of subtasks that share keyed state. [as in the savepoint]")
@access_option
@hash_recipes
@dropping
@pass_invocation
def repack_state(
    invocation: Invocation,
    savepoint: str,
    target: str,
    max_parallelism: int,
    parallelism: int | None,
    allow: tuple[str, ...],
    recipes: tuple[str, ...],
    drop: tuple[str, ...],
) -> Output[RepackResult]:
    """Rewrite a savepoint with another number of key groups."""
    module: Any = importlib.import_module("statestore.interop.flink.exporting.repack")
    with progress_bar("repacking") as progress:
        repacked = module.repack_savepoint(
            savepoint,
            target,
            max_parallelism=max_parallelism,
            parallelism=parallelism,
            drop=drop,
            on_progress=progress,
            key_hash=key_recipes(recipes),
            access=savepoint_access(allow),
        )
    return Output(repacked, write_repacked)


def savepoint_access(allow: tuple[str, ...]) -> SavepointAccess:
    """Return how a savepoint is read, from the values of ``--allow``.

    The name of a folder can contain ``=``. So it only separates two places if an absolute path, a
    path that begins with a dot, or a URL follows.
    """
    options: Any = importlib.import_module("statestore.interop.flink.options")
    moved = [found for text in allow if (found := _MOVED.fullmatch(text))]
    access: SavepointAccess = options.SavepointAccess(
        moved=distinct("--allow", ((found[1], found[2]) for found in moved)),
        allow=[text for text in allow if not _MOVED.fullmatch(text)],
    )
    return access


def key_recipes(recipes: tuple[str, ...]) -> dict[str, str]:
    """Return the recipes of ``--key-hash`` by operator, whose name can contain ``=``."""
    return named_values("--key-hash", "OPERATOR=RECIPE", recipes, at_last=True)


def _find_damage(shown: ShownSavepoint) -> DamagedFileError | None:
    """Return the error that ends the command after the readable operators are shown."""
    damaged = [
        operator.uid or operator.operator_id for operator in shown.operators if operator.is_damaged
    ]
    if not damaged:
        return None
    return DamagedFileError(
        f"{shown.savepoint} has damaged or missing files of {', '.join(damaged)}"
    )


def write_savepoint(page: Page, shown: ShownSavepoint) -> None:
    """Write the contents of a savepoint as text."""
    page.line(f"checkpoint {shown.checkpoint_id} in {shown.savepoint}", "bold")
    page.line(f"  metadata     version {shown.version}")
    for operator in shown.operators:
        _write_operator(page, operator)


def _write_operator(page: Page, operator: ShownOperator) -> None:
    title = operator.uid or operator.name or operator.operator_id
    page.line()
    page.line(f"operator {title}", "bold")
    page.line(f"  id           {operator.operator_id}")
    if operator.name not in (None, title):
        page.line(f"  name         {operator.name}")
    page.line(f"  parallelism  {operator.parallelism} (max parallelism {operator.max_parallelism})")
    if operator.is_finished:
        page.line("  finished     the operator has finished; it has no state and cannot get any")
    if operator.coordinator_bytes is not None:
        page.line(f"  coordinator  {size(operator.coordinator_bytes)}")
    if operator.problem is not None:
        page.line(f"  not read     {operator.problem}")
    for warning in operator.warnings:
        page.line(f"  warning      {warning}")
    for sign in operator.implausible:
        page.line(f"  implausible  {sign.state}: {sign.problem}")
    if operator.keyed:
        numbers = ("entries", "key groups", "fullest", "bytes")
        table = table_of("keyed state", *numbers, "kind", "key", "value", right=set(numbers))
        for state in operator.keyed:
            table.add_row(*_keyed_row(state))
        page.table(table)
    for state in operator.keyed:
        if state.note is not None:
            page.line(f"  {state.state} has no columns: {state.note}")
    if operator.operator:
        table = table_of("operator state", "mode", "type", "elements by subtask", "bytes")
        for listed in operator.operator:
            by_subtask = ", ".join(map(count, listed.elements.values()))
            row = (listed.state, listed.mode, listed.type, by_subtask, size(listed.size_bytes))
            table.add_row(*row)
        page.table(table)
    for elements in operator.operator:
        for split in elements.splits or ():
            offset = _KAFKA_OFFSETS.get(split.offset, str(split.offset))
            page.line(f"  {split.topic}, partition {split.partition}: next offset: {offset}")


def _keyed_row(state: ShownKeyedState) -> tuple[str, ...]:
    kind_text = f"{state.kind} with TTL" if state.has_ttl else state.kind
    key = state.key if state.namespace is None else f"{state.key} in {state.namespace}"
    if state.entries is None or state.size_bytes is None:
        return (state.state, "?", "?", "?", "?", kind_text, key, state.value)
    fullest = max(state.entries.items(), key=lambda group: group[1], default=None)
    return (
        state.state,
        count(sum(state.entries.values())),
        count(len(state.entries)),
        "" if fullest is None else f"{fullest[0]}: {count(fullest[1])}",
        size(state.size_bytes),
        kind_text,
        key,
        state.value,
    )


def write_repacked(page: Page, repacked: RepackResult) -> None:
    """Write the repacked operators as text."""
    page.line(f"repacked {repacked.source} to {repacked.savepoint}", "bold")
    page.line(f"  key groups   {repacked.max_parallelism}")
    for operator in repacked.operators:
        for part, reason in operator.left_out.items():
            page.line(f"  left out     {operator.operator}/{part} ({reason})")
    page.line()
    numbers = ("states", "entries", "subtasks", "key groups before")
    table = table_of("operator", *numbers, right=set(numbers))
    for operator in repacked.operators:
        sums = (
            len(operator.entries),
            sum(operator.entries.values()),
            operator.parallelism,
            operator.max_parallelism_before,
        )
        table.add_row(operator.operator, *map(count, sums))
    page.table(table)
