"""``statestore get``: show the rows of one key, in one keyed state or in all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from statestore.cli.arguments import key_of, key_value, parse_key
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import (
    Invocation,
    KeyVerb,
    checkpoint_argument,
    key_option,
    operator_option,
    pass_invocation,
    state_option,
)
from statestore.cli.output import Output, Page, cell, json_text, table_of, value_text
from statestore.format.left_out import LeftOutState, left_out_of
from statestore.restore.key_states import KeyStates
from statestore.restore.lookup import key_batch, key_group_of

__all__ = ["FoundRows", "KeyFound", "get_rows"]


@click.command(
    "get",
    cls=KeyVerb,
    prints=(
        "The rows of the key in a keyed state, one per line; at most one data file is read. "
        "KEY is a value of the key column: u17, 42, 2026-01-31T12:00:00Z. A JSON string is the "
        'text within its quotes: "u17" is also u17, so a text with quotes of its own is written '
        "as JSON. A time needs Z or an offset if its column has a zone. Years before 1 and after "
        "9999 have the form that 'statestore query' prints: 10000-01-01, 0044-03-15 (BC), "
        "infinity. Structs, arrays and maps are JSON. With several key columns, KEY is JSON: a "
        "list of the values, or an object by column. If no row has the key, the command "
        "succeeds and reports this. Without --operator or --state, the key is looked up in all "
        "states that match the other options; states with another key type are skipped and listed."
    ),
    examples=(
        "statestore get --operator totals-by-user --state totals --key u17 --store ./fraud",
        (
            "statestore get --operator totals-by-shop --state totals --key '[\"DE\", 17]' "
            "--store ./fraud"
        ),
        "statestore get --key u17 --store ./fraud",
        "statestore get 1 --operator totals-by-card --state totals --key -5 --store ./fraud",
    ),
)
@checkpoint_argument
@key_option("The key to look up.")
@operator_option("Only states of this operator.")
@state_option("Only states with this name.")
@pass_invocation
def get_rows(
    invocation: Invocation, checkpoint: str, key: str, uid: str | None, name: str | None
) -> Output[FoundRows] | Output[KeyFound]:
    """Look up one key, in one keyed state or in all."""
    store = invocation.store()
    if uid is None or name is None:
        manifest = store.manifest(checkpoint)
        found = store.inspect.key(
            key_of(key), manifest, operator=uid, state=name, times_as_text=True
        )
        lacking = left_out_of(manifest.left_out, uid, name)
        return Output(
            KeyFound(store=store.url, key=key, found=found, left_out=lacking), write_found
        )
    restored = store.restore(checkpoint=checkpoint)
    state = restored.keyed(uid, name)
    values = parse_key(key, state.entry.state)
    key_group = key_group_of(state.entry.state, key_batch(state.entry.state, key_value(values)))
    return Output(
        FoundRows(
            store=store.url,
            checkpoint_id=restored.checkpoint_id,
            operator=uid,
            state=name,
            key=dict(zip(state.entry.state.key, values, strict=True)),
            rows=tuple(state.get(key_value(values), times_as_text=True)),
            left_out=tuple(
                record
                for record in restored.manifest.left_out
                if record.lacks(uid, name, key_group)
            ),
        ),
        write_rows,
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
        table.add_row(*(cell(value_text(value)) for value in row.values()))
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
                table.add_row(cell(one.operator), cell(one.state), cell(values))
        page.table(table)
    for skipped in found.skipped:
        page.line(f"skipped {skipped.entry.state}: {skipped.reason}")
    write_left_out(page, result.left_out)
