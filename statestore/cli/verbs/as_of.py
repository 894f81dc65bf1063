"""``statestore as-of`` and ``history``: compare a state over several checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from statestore.cli.arguments import key_value, limit_option, parse_key
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import (
    Invocation,
    KeyVerb,
    Verb,
    key_option,
    one_state_options,
    pass_invocation,
)
from statestore.cli.completion import complete_checkpoint
from statestore.cli.documents import Column
from statestore.cli.drawing import count, when
from statestore.cli.output import Output, Page, cell, table_of, value_text, write_rows
from statestore.format.left_out import LeftOutState, left_out_of
from statestore.format.state import KeyedState
from statestore.restore.key_history import KeyAt
from statestore.restore.outer_join import CHANGE, CHANGES
from statestore.rows.python_values import display_rows

__all__ = ["Joined", "KeyHistoryResult", "join_checkpoints", "show_history"]


@click.command(
    "as-of",
    cls=Verb,
    prints=(
        "A keyed state at checkpoint A compared with the same state at checkpoint B. There is one "
        "line for each key, with its namespace and entry columns. The line shows the outcome "
        "(same, changed, added or removed) and each value column as NAME_a and NAME_b. A value is "
        "empty if that checkpoint has no such row, and null if the row has a null. Different rows "
        "come first, then equal rows. At most 1,000 lines are shown unless --limit says "
        "otherwise; the counts above them cover all rows. A and B are checkpoint numbers, "
        "savepoint names or latest."
    ),
    examples=(
        "statestore as-of 1 2 --operator totals-by-user --state totals --limit 5 --store ./fraud",
        (
            "statestore as-of 1 latest --operator totals-by-shop --state totals --changed-only "
            "--output json --store ./fraud"
        ),
    ),
)
@click.argument("a", metavar="A", shell_complete=complete_checkpoint)
@click.argument("b", default="latest", metavar="[B]", shell_complete=complete_checkpoint)
@one_state_options
@click.option("--changed-only", is_flag=True, help="Omit rows that are the same.")
@limit_option
@pass_invocation
def join_checkpoints(
    invocation: Invocation, a: str, b: str, uid: str, name: str, changed_only: bool, limit: int
) -> Output[Joined]:
    """Compare a keyed state at two checkpoints, row by row."""
    store = invocation.store()
    counts: Counter[str] = Counter()
    different: list[tuple[Any, ...]] = []
    same: list[tuple[Any, ...]] = []
    manifests = store.manifest(a), store.manifest(b)
    with store.inspect.as_of(*manifests, uid, name) as answer:
        # No column for the key group: it is where a row lies, and not what it is.
        names = answer.schema.names[1:]
        for batch in answer:
            counts.update(batch.column(CHANGE).to_pylist())
            for row in display_rows(batch):
                rows = same if row[CHANGE] == "same" else different
                if not limit or len(rows) < limit:
                    rows.append(tuple(row[column] for column in names))
        columns = tuple(Column(field.name, str(field.type)) for field in list(answer.schema)[1:])
    rows = different if changed_only else [*different, *same]
    told = counts.total() - (counts["same"] if changed_only else 0)
    return Output(
        Joined(
            store=store.url,
            a=manifests[0].checkpoint_id,
            b=manifests[1].checkpoint_id,
            operator=uid,
            state=name,
            columns=columns,
            rows=tuple(rows[: limit or None]),
            counts={change: counts[change] for change in CHANGES},
            is_cut=bool(limit) and told > limit,
            left_out_a=left_out_of(manifests[0].left_out, uid, name),
            left_out_b=left_out_of(manifests[1].left_out, uid, name),
            identity=manifests[0].keyed_entry(uid, name).state.identity,
        ),
        write_joined,
    )


@click.command(
    "history",
    cls=KeyVerb,
    prints=(
        "One line for each kept checkpoint, oldest first: its number, its time, and the "
        "key's rows in the state. A * marks rows that differ from the previous checkpoint. "
        "KEY has the same form as in 'statestore get'. For each checkpoint at most one data "
        "file is read, and none if the previous checkpoint has the same files."
    ),
    examples=(
        "statestore history --operator totals-by-user --state totals --key u17 --store ./fraud",
        (
            "statestore history --operator totals-by-shop --state totals --key '[\"DE\", 17]' "
            "--store ./fraud"
        ),
    ),
)
@one_state_options
@key_option("The key to look up.")
@pass_invocation
def show_history(invocation: Invocation, uid: str, name: str, key: str) -> Output[KeyHistoryResult]:
    """Show the rows of one key at each kept checkpoint."""
    store = invocation.store()
    parsed: dict[str, Any] = {}

    def of(state: KeyedState) -> Any:
        values = parse_key(key, state)
        parsed.update(zip(state.key, values, strict=True))
        return key_value(values)

    history = store.inspect.history(of, uid, name, times_as_text=True)
    return Output(
        KeyHistoryResult(store=store.url, operator=uid, state=name, key=parsed, history=history),
        write_history,
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


@dataclass(frozen=True, kw_only=True)
class KeyHistoryResult:
    """The rows of a key at each kept checkpoint; ``key`` has the key columns in order."""

    store: str
    operator: str
    state: str
    key: dict[str, Any]
    history: tuple[KeyAt, ...]


def write_history(page: Page, result: KeyHistoryResult) -> None:
    """Write the rows of the key at each checkpoint as text."""
    key = ", ".join(f"{name} {value_text(value)}" for name, value in result.key.items())
    page.line(
        f"state {result.state} of operator {result.operator} of {result.store}: {key}", "bold"
    )
    table = table_of("", "id", "taken", "rows", "values", right={"id", "rows"})
    for one in result.history:
        mark = "*" if one.is_changed else ""
        first = (mark, str(one.checkpoint_id), when(one.created_at_ms))
        table.add_row(*map(cell, (*first, *_rows(one, result.key))))
    page.table(table)
    for one in result.history:
        write_left_out(page, one.left_out, indent=f"  {one.checkpoint_id}: ")


def _rows(one: KeyAt, key: dict[str, Any]) -> tuple[str, str]:
    """Return the number of rows, and the rows on one line, without the key."""
    if one.rows is None:
        return "", "no such state, or a different key type"
    rows = [
        ", ".join(f"{name} {value_text(value)}" for name, value in row.items() if name not in key)
        for row in one.rows
    ]
    return count(len(rows)), "; ".join(rows)
