"""``statestore diff``: compare two checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

import click

from statestore.cli.checkpoints import rows_explanation, rows_text, write_left_out
from statestore.cli.command import Invocation, Verb, pass_invocation, state_options
from statestore.cli.completion import complete_checkpoint
from statestore.cli.drawing import count, size
from statestore.cli.output import Output, Page, cell, progress_bar, table_of
from statestore.cli.row_changes import write_row_changes
from statestore.maintenance.diff import DEFAULT_EXAMPLES
from statestore.maintenance.diff_report import (
    CheckpointDifference,
    Other,
    Side,
    StateDifference,
)
from statestore.store import StateStore

__all__ = ["compare_checkpoints"]


@click.command(
    "diff",
    cls=Verb,
    prints=(
        "The differences between checkpoints A and B: rows that only B has (added), rows "
        "that only A has (removed), and rows with the same identity but other values "
        "(changed). Rows are counted per state, and in JSON also per key group. Examples come "
        "from as many key groups as possible, and show only what changed in a row. If the "
        "rows of a side are not known before its changes are read, they are shown as in "
        "'statestore list', such as 94,005 + 4,669. The key, "
        "namespace and entry columns identify a row. Elements of operator state such as "
        "offsets, schemas, the job graph and the parallelism are compared as well. Only key "
        "groups whose digests differ are read; the first line shows the bytes read from each "
        "side. A and B are checkpoint numbers, savepoint names or latest. With "
        "--other-store, B is in that store; both stores are accessed with the same "
        "credentials. With --exit-code the exit status is 1 if anything differs."
    ),
    examples=(
        "statestore diff 1 2 --store ./fraud",
        "statestore diff 1 latest --operator totals-by-user --keys 3 --store ./fraud",
        "statestore diff 2 2 --other-store ./fraud --exit-code --output json --store ./fraud",
    ),
)
@click.argument("a", metavar="A", shell_complete=complete_checkpoint)
@click.argument("b", default="latest", metavar="[B]", shell_complete=complete_checkpoint)
@click.option(
    "--other-store", "other", metavar="URL", help="The path or URL of the store that contains B."
)
@state_options
@click.option(
    "--keys",
    type=int,
    default=DEFAULT_EXAMPLES,
    show_default=True,
    metavar="N",
    help="The number of differing rows to show for each state.",
)
@click.option("--exit-code", is_flag=True, help="Exit with status 1 if anything differs.")
@pass_invocation
def compare_checkpoints(
    invocation: Invocation,
    a: str,
    b: str,
    other: str | None,
    uid: str | None,
    name: str | None,
    keys: int,
    exit_code: bool,
) -> Output[CheckpointDifference]:
    """Compare two checkpoints of one store or of two."""
    store = invocation.store()
    second = None
    if other is not None:
        streams = invocation.settings.parallel_streams
        second = StateStore.open(other, parallel_streams=streams)
    with progress_bar("comparing") as progress:
        difference = store.inspect.diff(
            a, b, other=second, operator=uid, state=name, keys=keys, on_progress=progress
        )
    return Output(difference, write_difference, status=1 if exit_code and difference.differs else 0)


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
            table.add_row(*(cell(text) for text in _row(state)))
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
