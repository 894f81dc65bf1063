"""``statestore diff``: compare two checkpoints, or one state of them row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from statestore.catalog.catalog import Checkpoint
from statestore.cli.checkpoints import write_left_out, write_row_changes
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, size
from statestore.cli.options import (
    MOST_ROWS,
    any_state_option,
    examples_option,
    limit_option,
    side_arguments,
)
from statestore.cli.output import (
    Column,
    Output,
    Page,
    progress_bar,
    table_of,
    value_text,
    write_rows,
)
from statestore.cli.summaries import rows_explanation, rows_text
from statestore.format.left_out import LeftOutState, left_out_of
from statestore.maintenance.diff import DEFAULT_EXAMPLES
from statestore.maintenance.diff_report import (
    CheckpointDifference,
    Other,
    Side,
    StateDifference,
)
from statestore.maintenance.diff_rows import CHANGE, OUTCOMES
from statestore.rows.python_values import display_rows
from statestore.store import StateStore

__all__ = ["Joined", "compare_checkpoints"]


@click.command(
    "diff",
    cls=Verb,
    section="Look",
    prints=(
        "The rows that only B has (added) or only A (removed), and those with other values "
        "(changed), by state, with examples, and other differences. Only key groups whose "
        "digests differ are read. With --rows, one keyed state: a line for each row, those that "
        "differ first; a value is empty if that checkpoint has no such row."
    ),
    examples=(
        "statestore diff 1 2 --store ./fraud",
        "statestore diff 1 latest --state totals-by-user --examples 3 --store ./fraud",
        "statestore diff 2 2 --other-store ./fraud --exit-code --output json --store ./fraud",
        ("statestore diff 1 2 --rows all --state totals-by-user/totals --limit 5 --store ./fraud"),
        (
            "statestore diff 1 --rows changed --state totals-by-shop/totals "
            "--output json --store ./fraud"
        ),
    ),
    modes={
        "": ("--other-store", "--examples", "--exit-code"),
        "--rows": ("--limit",),
    },
)
@side_arguments
@click.option(
    "--other-store",
    metavar="URL",
    help="The store of B, which is accessed with the same credentials.",
)
@any_state_option
@examples_option(DEFAULT_EXAMPLES)
@click.option("--exit-code", is_flag=True, help="Exit with status 1 if anything differs.")
@click.option(
    "--rows",
    "which",
    type=click.Choice(("all", "changed")),
    help="Show the rows of one keyed state instead: all, or those that differ.",
)
@limit_option
@pass_invocation
def compare_checkpoints(
    invocation: Invocation,
    a: str,
    b: str,
    other_store: str | None,
    operator: str | None,
    state: str | None,
    examples: int,
    exit_code: bool,
    which: str | None,
    limit: int | None,
) -> Output[CheckpointDifference] | Output[Joined]:
    """Compare two checkpoints of one store or of two."""
    store = invocation.store()
    if which is not None:
        if operator is None or state is None:
            raise click.UsageError("--rows is of one state: pass --state OPERATOR/STATE")
        most = MOST_ROWS if limit is None else limit
        joined = _join(store, (a, b), operator, state, changed_only=which == "changed", limit=most)
        return Output(joined, write_joined)
    second: str | Checkpoint = b
    if other_store is not None:
        streams = invocation.settings.parallel_streams
        second = StateStore.open(other_store, parallel_streams=streams).checkpoint(b)
    with progress_bar("comparing") as progress:
        difference = store.inspect.diff(
            a,
            second,
            operator=operator,
            state=state,
            keys=examples,
            on_progress=progress,
        )
    return Output(difference, write_difference, status=1 if exit_code and difference.differs else 0)


def _join(
    store: StateStore,
    sides: tuple[str, str],
    operator: str,
    state: str,
    *,
    changed_only: bool,
    limit: int,
) -> Joined:
    counts: Counter[str] = Counter()
    different: list[tuple[Any, ...]] = []
    same: list[tuple[Any, ...]] = []
    a, b = map(store.checkpoint, sides)
    with store.inspect.as_of(a, b, operator, state) as answer:
        # No column for the key group: it is where a row lies, and not what it is.
        names = answer.schema.names[1:]
        for batch in answer:
            counts.update(batch.column(CHANGE).to_pylist())
            for row in display_rows(batch):
                rows = same if row[CHANGE] == "same" else different
                if not limit or len(rows) < limit:
                    rows.append(tuple(row[column] for column in names))
        columns = tuple(Column(each.name, str(each.type)) for each in list(answer.schema)[1:])
    rows = different if changed_only else [*different, *same]
    told = counts.total() - (counts["same"] if changed_only else 0)
    return Joined(
        store=store.url,
        a=a.checkpoint_id,
        b=b.checkpoint_id,
        operator=operator,
        state=state,
        columns=columns,
        rows=tuple(rows[: limit or None]),
        counts={change: counts[change] for change in OUTCOMES},
        is_cut=bool(limit) and told > limit,
        left_out_a=left_out_of(a.manifest.left_out, operator, state),
        left_out_b=left_out_of(b.manifest.left_out, operator, state),
        identity=a.manifest.keyed_entry(operator, state).state.identity,
    )


@dataclass(frozen=True, kw_only=True)
class Joined:
    """Rows of a state at two checkpoints, joined; ``counts`` has the number of all rows by change.

    ``left_out`` lists, for each checkpoint, the source's rows of the state that it omits.
    """

    store: str
    a: int
    b: int
    operator: str
    state: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    counts: dict[str, int]
    is_cut: bool
    left_out_a: tuple[LeftOutState, ...]
    left_out_b: tuple[LeftOutState, ...]
    identity: tuple[str, ...] = field(repr=False)


def write_joined(page: Page, joined: Joined) -> None:
    """Write the joined rows as text."""
    page.line(f"state {joined.state} of operator {joined.operator} of {joined.store}", "bold")
    told = ", ".join(f"{count(rows)} {change}" for change, rows in joined.counts.items())
    page.line(f"  a is checkpoint {joined.a}, b is checkpoint {joined.b}: {told}")
    write_left_out(page, joined.left_out_a, indent="  a: ")
    write_left_out(page, joined.left_out_b, indent="  b: ")
    names = [column.name for column in joined.columns]
    rows = [_texts(joined, names, row) for row in joined.rows]
    write_rows(page, names, rows, is_cut=joined.is_cut)


def _texts(joined: Joined, names: Sequence[str], row: Sequence[Any]) -> list[str]:
    """Return the cells of a row; the values of a side without the row are empty."""
    lacking = {"added": "_a", "removed": "_b"}.get(row[names.index(CHANGE)])
    return [
        ""
        if lacking and name.endswith(lacking) and name not in joined.identity
        else value_text(value)
        for name, value in zip(names, row, strict=True)
    ]


def write_difference(page: Page, difference: CheckpointDifference) -> None:
    """Write the differences between two checkpoints as text."""
    verdict = "they differ" if difference.differs else "they are the same"
    page.line(f"a is {_named(difference.a)}, b is {_named(difference.b)}: {verdict}", "bold")
    for letter, side in (("a", difference.a), ("b", difference.b)):
        write_left_out(page, side.left_out, indent=f"  {letter}: ")
    _write_others((*difference.others, *difference.graph), page)
    if difference.states:
        page.line()
        numbers = ["rows in a", "rows in b", "added", "removed", "changed", "key groups"]
        table = table_of("operator", "state", *numbers, right={*numbers})
        for state in difference.states:
            table.add_row(*_row(state))
        page.table(table)
        _explain_changes(page, difference.states)
    for state in difference.states:
        _write_state(state, page)


def _named(side: Side) -> str:
    read = f"read {size(side.read_bytes)} of {size(side.size_bytes)}"
    return f"checkpoint {side.checkpoint_id} of {side.store} ({read})"


def _row(state: StateDifference) -> tuple[str, ...]:
    changes = (state.added, state.removed, state.changed)
    counts = ("?",) * 3 if state.not_compared else (count(change) for change in changes)
    groups = state.key_groups_differing
    rows = [
        rows_text(stored, changes) if rows is None else count(rows)
        for rows, stored, changes in (
            (state.rows_a, state.file_rows_a, state.changed_rows_a),
            (state.rows_b, state.file_rows_b, state.changed_rows_b),
        )
    ]
    return (state.operator, state.state, *rows, *counts, "" if groups is None else count(groups))


def _explain_changes(page: Page, states: Iterable[StateDifference]) -> None:
    """Explain the row count of the first state whose changes were not read, if there is one."""
    for state in states:
        for rows, stored, changes in (
            (state.rows_a, state.file_rows_a, state.changed_rows_a),
            (state.rows_b, state.file_rows_b, state.changed_rows_b),
        ):
            if rows is None:
                page.line(rows_explanation(stored, changes))
                return


def _write_state(state: StateDifference, page: Page) -> None:
    if not state.differs:
        return
    page.line()
    only = f", only in {state.only_in}" if state.only_in else ""
    page.line(f"state {state.state} of operator {state.operator}{only}", "bold")
    _write_others(state.others, page)
    if state.not_compared is not None:
        page.line(f"  rows are not compared: {state.not_compared}")
    if state.compared_columns is not None:
        page.line(f"  compared by their common columns: {', '.join(state.compared_columns)}")
    total = state.added + state.removed + state.changed
    write_row_changes(page, state.examples, total=total)


def _write_others(others: Iterable[Other], page: Page) -> None:
    for other in others:
        page.line(f"  {other.what}: {other.a or 'none'} → {other.b or 'none'}")
