"""``statestore flink import``: import the state of a savepoint as a checkpoint of a store."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.arguments import distinct, named_values, toml_of
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count
from statestore.cli.options import operators_option
from statestore.cli.output import Output, Page, progress_bar, table_of
from statestore.cli.verbs.flink import (
    access_option,
    dropping,
    hash_recipes,
    key_recipes,
    savepoint_access,
)
from statestore.durations import milliseconds_of
from statestore.errors import IncompleteError, InvalidArgumentError
from statestore.format.left_out import LeftOutState, left_out_text
from statestore.jobgraph.operators import operator_id

if TYPE_CHECKING:
    from statestore.interop.flink.importing.import_state import ImportedSavepoint
    from statestore.interop.flink.read.plausibility import ImplausibleState

__all__ = ["import_state"]

_ID = re.compile(r"[0-9a-f]{32}")


@click.command(
    "import",
    cls=Verb,
    section="Flink savepoints",
    prints=(
        "The new checkpoint, and each of its states. Values without a column form are kept as "
        "bytes and named. The exit status is 18 if state is left out that was not excluded. A "
        "later savepoint of the job becomes an incremental checkpoint. FILE has a table for "
        "each operator, with key = [NAME, …], and tables states.STATE with key, namespace, "
        "map_key, value, and for PyFlink a type such as 'ListState<LONG>'. The setting "
        "import_threads limits the threads."
    ),
    examples=(
        "statestore flink import ./savepoint --store ./orders",
        (
            "statestore flink import ./savepoint --store ./orders --operator kinds --state-ttl "
            "ttl_value=7d"
        ),
        "statestore flink import ./savepoint --store ./orders --columns columns.toml",
        "statestore flink import ./chk-7 --store ./orders --uid kinds --allow /flink=./copy",
    ),
)
@click.argument("savepoint")
@operators_option
@click.option(
    "--uid",
    "uids",
    multiple=True,
    metavar="[ID=]UID",
    help=(
        "The uid of an operator, if the savepoint has none; the uid must hash to the operator's id."
    ),
)
@click.option(
    "--columns",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The names of columns, and the types of PyFlink states, as TOML.",
)
@click.option(
    "--state-ttl",
    "ttl",
    multiple=True,
    metavar="STATE=TIME",
    help="The TTL of a state, for example 7d, 36h or 90min; savepoints do not contain it.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Fail if a value would be kept as bytes, or state would be left out.",
)
@access_option
@hash_recipes
@dropping
@pass_invocation
def import_state(
    invocation: Invocation,
    savepoint: str,
    operators: tuple[str, ...],
    uids: tuple[str, ...],
    columns: Path | None,
    ttl: tuple[str, ...],
    strict: bool,
    allow: tuple[str, ...],
    recipes: tuple[str, ...],
    drop: tuple[str, ...],
) -> Output[FlinkImportSummary]:
    """Import the state of a savepoint as a checkpoint."""
    module: Any = importlib.import_module("statestore.interop.flink.importing.import_state")
    store = invocation.store()
    with progress_bar("importing") as progress:
        imported = module.import_savepoint(
            savepoint,
            store,
            operators=operators,
            strict=strict,
            drop=drop,
            threads=invocation.settings.import_threads,
            on_progress=progress,
            access=savepoint_access(allow),
            hints=module.SavepointHints(
                uids=distinct("--uid", map(_uid, uids)),
                columns=None if columns is None else _tables(columns),
                key_hash=key_recipes(recipes),
                ttl={
                    state: _duration(time)
                    for state, time in named_values(
                        "--state-ttl", "STATE=TIME", ttl, at_last=True
                    ).items()
                },
            ),
        )
    return Output(_summary(imported), write_imported, _problem(imported))


def _problem(imported: ImportedSavepoint) -> IncompleteError | None:
    """Return the error that lists operators left out without a request, or None."""
    if not imported.not_read:
        return None
    return IncompleteError(
        f"checkpoint {imported.checkpoint_id} of {imported.store} is only part of "
        f"{imported.place}: {left_out_text(imported.not_read)}. An export of it fails unless "
        "--leave-out names these parts. To import only some operators, name them with "
        "--operator; to refuse such savepoints, pass --strict"
    )


def _uid(text: str) -> tuple[str, str]:
    number, equals, uid = text.partition("=")
    if equals and uid and _ID.fullmatch(number):
        return number, uid
    return operator_id(text), text


def _duration(text: str) -> str:
    try:
        milliseconds_of(text)
    except InvalidArgumentError as error:
        raise click.UsageError(f"--state-ttl: {error}") from error
    return text


def _tables(file: Path) -> dict[str, Any]:
    tables = toml_of("--columns", file)
    for name, table in tables.items():
        states = table.get("states", {}) if isinstance(table, dict) else None
        if not isinstance(states, dict) or not all(isinstance(x, dict) for x in states.values()):
            raise click.UsageError(
                f"--columns: {name!r} in {file} must be a table with key, namespace and states"
            )
    return tables


@dataclass(frozen=True, kw_only=True)
class ImportedStateSummary:
    """A state. ``kind`` is None for operator state.

    ``kept_as_bytes`` is the reason why some or all values have no columns; None if all have
    columns. ``form`` is ``bytes`` if no value has columns.
    """

    operator: str
    state: str
    sort: str
    kind: str | None
    rows: int
    form: str
    key: tuple[str, ...]
    kept_as_bytes: str | None


@dataclass(frozen=True, kw_only=True)
class FlinkImportSummary:
    """A savepoint that was imported as checkpoint ``checkpoint_id``.

    ``flink_checkpoint_id`` is the savepoint's number in Flink. ``found`` is True if the savepoint
    had been imported before. ``warnings`` name timers that may be lost. ``implausible`` are states
    with a sign of damage that is no error.
    """

    savepoint: str
    flink_checkpoint_id: int
    store: str
    checkpoint_id: int
    found: bool
    is_incremental: bool
    states: tuple[ImportedStateSummary, ...]
    left_out: tuple[LeftOutState, ...]
    warnings: tuple[str, ...]
    implausible: tuple[ImplausibleState, ...]


def write_imported(page: Page, imported: FlinkImportSummary) -> None:
    """Write the imported operators and states as text."""
    what = f"{imported.savepoint}, checkpoint {imported.flink_checkpoint_id} of its job,"
    where = f"checkpoint {imported.checkpoint_id} of {imported.store}"
    for left_out in imported.left_out:
        page.line(f"{left_out.label} is left out: {left_out.reason}", "bold")
    if imported.found:
        page.line(f"{what} was already imported: it is {where}", "bold")
    else:
        scope = " (only the changes since the previous one)" if imported.is_incremental else ""
        page.line(f"imported {what} as {where}{scope}", "bold")
    table = table_of("operator", "state", "kind", "rows", "key", right={"rows"})
    for state in imported.states:
        key = ", ".join(state.key)
        row = (state.operator, state.state, state.kind or state.sort, count(state.rows), key)
        table.add_row(*row)
    page.table(table)
    for state in imported.states:
        if state.kept_as_bytes is not None:
            kept = "is" if state.form == "bytes" else "has values that are"
            line = f"{state.state} of {state.operator} {kept} kept as bytes"
            page.line(f"{line}: {state.kept_as_bytes}")
    for warning in imported.warnings:
        page.line(f"warning: {warning}")
    for sign in imported.implausible:
        page.line(f"implausible: {sign.state} of {sign.operator}: {sign.problem}")


def _summary(imported: ImportedSavepoint) -> FlinkImportSummary:
    """Return an import without the serializers of its record."""
    return FlinkImportSummary(
        savepoint=imported.place,
        flink_checkpoint_id=imported.record.checkpoint,
        store=imported.store,
        checkpoint_id=imported.checkpoint_id,
        found=imported.found,
        is_incremental=imported.is_incremental,
        states=tuple(
            ImportedStateSummary(
                operator=state.operator,
                state=state.state,
                sort=state.sort,
                kind=state.kind or None,
                rows=state.rows,
                form=state.form,
                key=tuple(state.names.get("key", ())),
                kept_as_bytes=state.why,
            )
            for state in imported.record.states
        ),
        left_out=imported.left_out,
        warnings=imported.warnings,
        implausible=imported.implausible,
    )
