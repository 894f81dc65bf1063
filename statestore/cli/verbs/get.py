"""``statestore get``: show the rows of one key, in one keyed state or in all, or over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from statestore.cli.arguments import key_of, key_value, parse_key
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, when
from statestore.cli.options import any_state_option, checkpoint_argument, key_option
from statestore.cli.output import Output, Page, json_text, table_of, value_text
from statestore.format.left_out import LeftOutState, left_out_of
from statestore.format.state import KeyedState
from statestore.restore.key_states import KeyAt, KeyStates
from statestore.restore.lookup import key_batch, key_group_of
from statestore.store import StateStore

__all__ = ["FoundRows", "KeyFound", "KeyHistoryResult", "get_rows"]


@click.command(
    "get",
    cls=Verb,
    section="Look",
    prints=(
        "The rows of the key in a keyed state, or in all states whose key has that type. KEY is "
        "the value of the key column, such as u17 or 2026-01-31T12:00:00Z, or a JSON string; of "
        "several key columns it is a JSON list, or an object by column. With --history: the "
        "rows at each kept checkpoint, with a * where they changed."
    ),
    examples=(
        "statestore get --state totals-by-user/totals --key u17 --store ./fraud",
        ("statestore get --state totals-by-shop/totals --key '[\"DE\", 17]' --store ./fraud"),
        "statestore get --key u17 --store ./fraud",
        "statestore get 1 --state totals-by-card/totals --key -5 --store ./fraud",
        ("statestore get --history --state totals-by-user/totals --key u17 --store ./fraud"),
    ),
    modes={"": ("checkpoint",), "--history": ()},
)
@checkpoint_argument
@key_option("The key to look up.", required=True)
@any_state_option
@click.option("--history", is_flag=True, help="Show the rows of one state at each checkpoint.")
@pass_invocation
def get_rows(
    invocation: Invocation,
    checkpoint: str,
    key: str,
    operator: str | None,
    state: str | None,
    history: bool,
) -> Output[FoundRows] | Output[KeyFound] | Output[KeyHistoryResult]:
    """Look up one key, in one keyed state or in all."""
    store = invocation.store()
    if operator is not None and state is not None:
        one = (operator, state, key)
        return _history(store, *one) if history else _rows_of(store, checkpoint, *one)
    if history:
        raise click.UsageError("--history is of one state: pass --state OPERATOR/STATE")
    searched = store.checkpoint(checkpoint)
    found = store.inspect.key(
        key_of(key), searched, operator=operator, state=state, times_as_text=True
    )
    lacking = left_out_of(searched.manifest.left_out, operator, state)
    return Output(KeyFound(store=store.url, key=key, found=found, left_out=lacking), write_found)


def _rows_of(
    store: StateStore, checkpoint: str, operator: str, state: str, key: str
) -> Output[FoundRows]:
    restored = store.restore(checkpoint=checkpoint)
    keyed = restored.keyed(operator, state)
    stored = keyed.entry.state
    values = parse_key(key, stored)
    key_group = key_group_of(stored, key_batch(stored, key_value(values)))
    return Output(
        FoundRows(
            store=store.url,
            checkpoint_id=restored.checkpoint_id,
            operator=operator,
            state=state,
            key=dict(zip(stored.key, values, strict=True)),
            rows=tuple(keyed.get(key_value(values), times_as_text=True)),
            left_out=tuple(
                record
                for record in restored.manifest.left_out
                if record.lacks(operator, state, key_group)
            ),
        ),
        write_rows,
    )


def _history(store: StateStore, operator: str, state: str, key: str) -> Output[KeyHistoryResult]:
    parsed: dict[str, Any] = {}

    def of(stored: KeyedState) -> Any:
        values = parse_key(key, stored)
        parsed.update(zip(stored.key, values, strict=True))
        return key_value(values)

    history = store.inspect.history(of, operator, state, times_as_text=True)
    return Output(
        KeyHistoryResult(
            store=store.url, operator=operator, state=state, key=parsed, history=history
        ),
        write_history,
    )


@dataclass(frozen=True, kw_only=True)
class FoundRows:
    """The rows of one key; ``key`` has the key columns in order.

    ``left_out`` lists the state that the checkpoint omits, if the key could be part of it.
    """

    store: str
    checkpoint_id: int
    operator: str
    state: str
    key: dict[str, Any]
    rows: tuple[dict[str, Any], ...]
    left_out: tuple[LeftOutState, ...] = ()


def write_rows(page: Page, found: FoundRows) -> None:
    """Write the rows of the key as text."""
    if not found.rows:
        key, state = (
            json_text(tuple(found.key.values())),
            f"state {found.state!r} of operator {found.operator!r}",
        )
        page.line(f"no rows have key {key} in {state}, checkpoint {found.checkpoint_id}")
        write_left_out(page, found.left_out)
        return
    table = table_of(*found.rows[0])
    for row in found.rows:
        table.add_row(*(value_text(value) for value in row.values()))
    page.table(table)
    write_left_out(page, found.left_out)


@dataclass(frozen=True, kw_only=True)
class KeyFound:
    """The rows of one key in all states; ``key`` is the given text."""

    store: str
    key: str
    found: KeyStates
    left_out: tuple[LeftOutState, ...] = ()


def write_found(page: Page, result: KeyFound) -> None:
    """Write the rows of the key by state as text."""
    found = result.found
    if not found.rows:
        page.line(f"no state of checkpoint {found.checkpoint_id} has rows with key {result.key}")
    else:
        table = table_of("operator", "state", "row")
        for one in found.states:
            for row in one.rows:
                values = ", ".join(f"{name} {value_text(value)}" for name, value in row.items())
                table.add_row(one.operator, one.state, values)
        page.table(table)
        if absent := [f"{one.operator}/{one.state}" for one in found.states if not one.rows]:
            page.line(f"no rows: {', '.join(absent)}")
    for skipped in found.skipped:
        page.line(f"skipped {skipped.entry.state}: {skipped.reason}")
    write_left_out(page, result.left_out)


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
        table.add_row(*first, *_rows(one, result.key))
    page.table(table)
    for one in result.history:
        write_left_out(page, one.left_out, indent=f"  {one.checkpoint_id}: ")


def _rows(version: KeyAt, key: dict[str, Any]) -> tuple[str, str]:
    """Return the number of rows, and the rows on version line, without the key."""
    if version.rows is None:
        return "", "no such state, or a different key type"
    rows = [
        ", ".join(f"{name} {value_text(value)}" for name, value in row.items() if name not in key)
        for row in version.rows
    ]
    return count(len(rows)), "; ".join(rows)
