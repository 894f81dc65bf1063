"""``statestore bootstrap``: begin a state with the rows of a table."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import click

from statestore.cli.arguments import distinct, named_values
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, counted, size_and_files
from statestore.cli.options import (
    dry_run_option,
    hash_scheme_option,
    key_column_option,
    max_parallelism_option,
    one_state_option,
    sql_option,
    type_option,
)
from statestore.cli.output import Bar, Output, Page, page, progress_bar, table_of
from statestore.cli.verbs.flink_plan import read_plan
from statestore.engines.row_check import CheckedRows
from statestore.errors import (
    DuplicateKeyError,
    InvalidArgumentError,
    LeftOutStateError,
    NullKeyError,
)
from statestore.format.state import StateKind, TimeDomain, TimeToLive
from statestore.interop.tables.source_table import SourceTable, convert_text
from statestore.interop.tables.table_formats import open_query, open_table
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.snapshot.bootstrap import BootstrappedState

__all__ = ["bootstrap_state"]

Bootstrap: TypeAlias = Callable[..., BootstrappedState]
"""Makes a state of rows, or with ``dry_run`` checks rows or a schema."""

_TTL_COLUMN = "last_access"
_PLANNED = {
    name: f"--{name.replace('_', '-')}"
    for name in ("key", "namespace", "kind", "entry", "ttl", "hash_scheme")
} | {"key": "--key-column"}
"""Options that describe a state without a plan, by the names of their parameters."""
_TIMERS = {f"{domain}-timers": domain for domain in TimeDomain}
_KEYED_KINDS = (*(str(kind) for kind in StateKind if kind is not StateKind.TIMERS), *_TIMERS)
_OPERATOR_KINDS = tuple(map(str, RedistributionMode))
_KEYED_OPTIONS = {name: flag for name, flag in _PLANNED.items() if name != "kind"} | {
    "max_parallelism": "--max-parallelism"
}


@dataclass(frozen=True, kw_only=True)
class BootstrapSummary(BootstrappedState):
    """A state that was made from a table, or in a dry run the state that would be made.

    ``checked`` is None if the rows were written. ``replaced_rows`` is the number of rows that the
    state had before; None for a new state.
    """

    source: str
    dry_run: bool


@click.command(
    "bootstrap",
    cls=Verb,
    section="Move",
    prints=(
        "The columns of the state with their types, and then the new checkpoint. SOURCE is a "
        "Parquet or CSV file, a folder of Parquet files, or a Delta table. Null keys and "
        "repeated keys are refused with examples. With --flink-plan the state is that of an "
        "operator of a Flink SQL job; 'statestore flink plan' lists its columns, and its uids "
        "follow from the setting flink_uid_format. A running job can no longer commit."
    ),
    examples=(
        (
            "statestore bootstrap totals.parquet --state totals-by-user/totals "
            "--key-column user_id --store ./fraud"
        ),
        (
            "statestore bootstrap totals.csv --state totals-by-user/totals "
            "--key-column user_id --type total=long --dry-run --store ./fraud"
        ),
        (
            "statestore bootstrap rules.parquet --state checks/rules --kind broadcast "
            "--store ./fraud"
        ),
        (
            'statestore bootstrap --sql "SELECT user_id, sum(amount) AS total FROM '
            "'events/*.parquet' GROUP BY user_id\" --state totals-by-user/totals "
            "--key-column user_id --ttl 30d --store ./fraud"
        ),
        (
            "statestore bootstrap purchases.csv --flink-plan job.json --state "
            "3_group-aggregate/accState --store ./fraud"
        ),
    ),
)
@click.argument("source", required=False)
@one_state_option
@sql_option
@click.option(
    "--flink-plan",
    metavar="PLAN",
    help="The compiled plan of a Flink SQL job that has the operator. It replaces --key-column.",
)
@key_column_option(
    "A key column, and what it is hashed as if not as its own type. Operator state has none.",
    "COLUMN[=TYPE]",
)
@click.option("--namespace", multiple=True, metavar="COLUMN", help="A namespace column.")
@click.option(
    "--kind",
    type=click.Choice([*_KEYED_KINDS, *_OPERATOR_KINDS]),
    help="What a row is: a value, an element of a list, an entry of a map, or a timer of a time "
    "domain; in operator state, an element of a split or union list, or of broadcast state. "
    "[value]",
)
@click.option(
    "--entry", multiple=True, metavar="COLUMN", help="The position, map key or time of an entry."
)
@click.option(
    "--ttl",
    metavar="[COLUMN=]TIME",
    help="How long rows live, for example 7d or 36h, and the column with the time of a row's last "
    f"use, which rows may lack: {_TTL_COLUMN} unless it is named.",
)
@max_parallelism_option("The number of key groups. [128, as in Flink]")
@hash_scheme_option("How keys are hashed. [java]")
@type_option
@click.option("--replace", is_flag=True, help="Replace the rows of a state that the store has.")
@dry_run_option
@pass_invocation
def bootstrap_state(
    invocation: Invocation,
    source: str | None,
    operator: str,
    state: str,
    sql: str | None,
    flink_plan: str | None,
    key: tuple[str, ...],
    namespace: tuple[str, ...],
    kind: str | None,
    entry: tuple[str, ...],
    ttl: str | None,
    max_parallelism: int | None,
    hash_scheme: str | None,
    types: tuple[str, ...],
    replace: bool,
    dry_run: bool,
) -> Output[BootstrapSummary]:
    """Begin a state with the rows of a table, as a new checkpoint."""
    table = _open(source, sql, named_values("--type", "COLUMN=TYPE", types))
    if flink_plan is not None:
        bootstrap, table = _of_flink(
            invocation, table, (flink_plan, operator, state), max_parallelism
        )
    elif kind in _OPERATOR_KINDS:
        _refuse_keyed_options(kind)
        bootstrap = partial(invocation.store().bootstrap, operator, state, mode=kind)
    else:
        if not key:
            raise click.UsageError(
                "name the key columns with --key-column; operator state, which has none, has the "
                f"--kind {', '.join(_OPERATOR_KINDS)}"
            )
        columns = distinct("--key-column", map(_key_column, key))
        bootstrap = partial(
            invocation.store().bootstrap,
            operator,
            state,
            key=tuple(columns),
            namespace=namespace,
            max_parallelism=max_parallelism,
            ttl=None if ttl is None else _time_to_live(ttl),
            kind=StateKind.TIMERS if kind in _TIMERS else kind,
            entry=entry or None,
            time_domain=None if kind is None else _TIMERS.get(kind),
            hash_scheme=hash_scheme,
            key_types={name: form for name, form in columns.items() if form} or None,
        )
    planned = bootstrap(table.schema, dry_run=True)
    if invocation.settings.output == "text":
        _write_columns(page(), table, planned)
    made = _check(bootstrap, table) if dry_run else _write(bootstrap, table, replace_stored=replace)
    summary = BootstrapSummary(**vars(made), source=table.name, dry_run=dry_run)
    return Output(summary, write_summary, _problem(made.checked))


def _refuse_keyed_options(kind: str) -> None:
    """Refuse the options of keyed state for a kind of operator state."""
    given = click.get_current_context().params
    for option, flag in _KEYED_OPTIONS.items():
        if given[option]:
            raise click.UsageError(
                f"--kind {kind} is operator state, which has no keys: remove {flag}"
            )


def _write(bootstrap: Bootstrap, table: SourceTable, *, replace_stored: bool) -> BootstrappedState:
    with progress_bar("bootstrapping") as progress:
        try:
            return bootstrap(_read(table, progress), replace=replace_stored)
        except (DuplicateKeyError, NullKeyError) as error:
            raise _problem(_check(bootstrap, table).checked) or error from error


def _of_flink(
    invocation: Invocation,
    table: SourceTable,
    state: tuple[str, str, str],
    max_parallelism: int | None,
) -> tuple[Bootstrap, SourceTable]:
    """Return the bootstrap of a state of a compiled plan, and the table with the plan's types.

    Args:
        invocation: the options of the command.
        table: the table.
        state: the file of the plan, the operator, and its state.
        max_parallelism: the number of key groups; None for the default.

    Raises:
        click.UsageError: for an option that the plan replaces.
    """
    place, operator, name = state
    given = click.get_current_context().params
    for option, flag in _PLANNED.items():
        if given[option]:
            raise click.UsageError(f"{flag} follows from the plan: leave it out with --flink-plan")
    plan = read_plan(invocation, place)
    layout = plan.find_state(operator, name)
    table = convert_text(table, layout.text_types(table.untyped))
    module: Any = importlib.import_module("statestore.interop.flink_plans.bootstrap_plan")
    bootstrap = partial(
        module.bootstrap_flink_state,
        invocation.store(),
        plan,
        operator,
        name,
        max_parallelism=max_parallelism,
        table=table.name,
    )
    return bootstrap, table


def _open(source: str | None, sql: str | None, types: Mapping[str, str]) -> SourceTable:
    if (source is None) == (sql is None):
        raise click.UsageError("name either a SOURCE or --sql SELECT")
    if sql is not None:
        return open_query(sql, types=types)
    assert source is not None, "one of the two is given"
    table = open_table(source, types=types)
    if table.missing is not None:
        raise LeftOutStateError(
            f"{source} is a table of a store and lacks a part of its state: {table.missing}. Copy "
            "the rows that are there with --sql if that is intended"
        )
    return table


def _key_column(text: str) -> tuple[str, str]:
    """Return a column and what it is hashed as, or an empty text; a name can contain ``=``."""
    name, equals, form = text.rpartition("=")
    if not equals:
        return text, ""
    if not (name and form):
        raise click.UsageError(f"--key-column {text!r} must have the form COLUMN[=TYPE]")
    return name, form


def _time_to_live(text: str) -> TimeToLive:
    column, _, ttl = text.rpartition("=")
    try:
        return TimeToLive(ttl, column or _TTL_COLUMN)
    except InvalidArgumentError as error:
        raise click.UsageError(f"--ttl: {error}") from error


def _check(bootstrap: Bootstrap, table: SourceTable) -> BootstrappedState:
    with progress_bar("checking") as progress:
        return bootstrap(_read(table, progress), dry_run=True)


def _read(table: SourceTable, progress: Bar) -> Iterator[Any]:
    """Return the rows, and draw the progress if their number is known."""
    total = table.rows
    return table.batches(None if total is None else lambda done: progress(done, total))


def _problem(checked: CheckedRows | None) -> InvalidArgumentError | None:
    """Return the error that names all rows that a state cannot have, or None."""
    if checked is None:
        return None
    parts = []
    if checked.null_keys:
        examples = "; ".join(checked.null_key_examples)
        parts.append(f"{counted(checked.null_keys, 'row')} with a null key, such as {examples}")
    if checked.duplicates:
        examples = "; ".join(checked.duplicate_examples)
        rows = counted(checked.duplicates, "row")
        parts.append(f"{rows} with the key of another row, such as {examples}")
    if not parts:
        return None
    return InvalidArgumentError(
        f"{counted(checked.rows, 'row')} cannot become a state. It cannot have "
        f"{', and '.join(parts)}. Select the right rows with --sql, or name the columns that "
        "distinguish rows of one key (--namespace, --entry)"
    )


def _write_columns(page: Page, source: SourceTable, planned: BootstrappedState) -> None:
    """Write the columns of the state before its rows are read."""
    table = table_of("column", "type", "role", "hashed as")
    for column in planned.columns:
        table.add_row(column.name, column.type, column.role, column.hashed_as or "")
    rows = "" if source.rows is None else f", {counted(source.rows, 'row')}"
    page.line(f"{source.name}{rows}, as {planned}:")
    page.table(table)


def write_summary(page: Page, summary: BootstrapSummary) -> None:
    """Write the made or planned state as text."""
    where = f"state {summary.state} of operator {summary.operator} in {summary.store}"
    if summary.dry_run:
        page.line(f"would write {where}", "bold")
    else:
        page.line(f"wrote {where}: checkpoint {summary.new_checkpoint_id}", "bold")
    replaced = summary.replaced_rows
    page.line(
        f"  rows         {count(summary.rows)}"
        + ("" if replaced is None else f", in place of {count(replaced)}")
    )
    if summary.max_parallelism is not None:
        page.line(f"  key groups   {count(summary.max_parallelism)}, {summary.hash_scheme}")
    if not summary.dry_run:
        page.line(f"  written      {size_and_files(summary.size_bytes, summary.files)}")
