"""``statestore get``: show the rows of one key, in one keyed state or in all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click
from msgspec import field

from statestore.cli.arguments import key_of, key_value, parse_key
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import (
    Invocation,
    KeyVerb,
    checkpoint_argument,
    operator_option,
    pass_invocation,
    state_option,
)
from statestore.cli.documents import Document, LeftOutDocument
from statestore.cli.output import Page, Result, cell, json_text, table_of, value_text
from statestore.format.left_out import LeftOutState, left_out_of
from statestore.format.manifest import KeyedEntry
from statestore.restore.key_states import KeyStates
from statestore.restore.lookup import key_batch, key_group_of

__all__ = ["FoundRows", "KeyFound", "get_rows"]


@click.command(
    "get",
    cls=KeyVerb,
    prints=(
        "The rows of the key in a keyed state, one per line; at most one data file is read. "
        "KEY is text of the key column's type: u17, 42, 2026-01-31. With several key "
        "columns, KEY is JSON: a list of the values, or an object by column. If no row has "
        "the key, the command succeeds and reports this. Without --operator or --state, the "
        "key is looked up in all states that match the other options; states with another "
        "key type are skipped and listed."
    ),
    examples=(
        "statestore get u17 --operator totals-by-user --state totals --store ./fraud",
        "statestore get '[\"DE\", 17]' --operator totals-by-shop --state totals --store ./fraud",
        "statestore get u17 --store ./fraud",
        "statestore get --operator totals-by-card --state totals --store ./fraud -- -5 1",
    ),
)
@click.argument("key")
@checkpoint_argument
@operator_option("Only states of this operator.")
@state_option("Only states with this name.")
@pass_invocation
def get_rows(
    invocation: Invocation, key: str, checkpoint: str, uid: str | None, name: str | None
) -> FoundRows | KeyFound:
    """Look up one key, in one keyed state or in all."""
    store = invocation.store()
    if uid is None or name is None:
        found = store.inspect.key(key_of(key), checkpoint, operator=uid, state=name)
        manifest = store.manifest(found.checkpoint_id if checkpoint == "latest" else checkpoint)
        lacking = left_out_of(manifest.left_out, uid, name)
        return KeyFound(store=store.url, key=key, found=found, left_out=lacking)
    restored = store.restore(checkpoint=checkpoint)
    state = restored.keyed(uid, name)
    values = parse_key(key, state.entry.state)
    key_group = key_group_of(state.entry.state, key_batch(state.entry.state, key_value(values)))
    return FoundRows(
        store=store.url,
        checkpoint_id=restored.checkpoint_id,
        entry=state.entry,
        key=values,
        rows=tuple(state.get(key_value(values))),
        left_out=tuple(
            record for record in restored.manifest.left_out if record.lacks(uid, name, key_group)
        ),
    )


class FoundRowsDocument(Document):
    """The rows of a key in one state. ``key`` has the key columns."""

    store: str
    checkpoint_id: int = field(name="id")
    operator: str
    state: str
    key: dict[str, Any]
    rows: list[dict[str, Any]]
    left_out: list[LeftOutDocument]


@dataclass(frozen=True, kw_only=True)
class FoundRows(Result):
    """The rows of one key; ``key`` has the key columns in order.

    ``left_out`` says whether the checkpoint lacks rows of its key group.
    """

    store: str
    checkpoint_id: int
    entry: KeyedEntry
    key: tuple[Any, ...]
    rows: tuple[dict[str, Any], ...]
    left_out: tuple[LeftOutState, ...] = ()

    def document(self) -> FoundRowsDocument:
        """Return it for ``--output json``."""
        state = self.entry.state
        return FoundRowsDocument(
            store=self.store,
            checkpoint_id=self.checkpoint_id,
            operator=state.uid,
            state=state.name,
            key=dict(zip(state.key, self.key, strict=True)),
            rows=list(self.rows),
            left_out=LeftOutDocument.each(self.left_out),
        )

    def write(self, page: Page) -> None:
        """Write it as text."""
        state = self.entry.state
        if not self.rows:
            key = json_text(self.key)
            page.line(f"no rows have key {key} in {state}, checkpoint {self.checkpoint_id}")
            write_left_out(page, self.left_out)
            return
        table = table_of(*state.schema.names)
        for row in self.rows:
            table.add_row(*(cell(value_text(row[name])) for name in state.schema.names))
        page.table(table)
        write_left_out(page, self.left_out)


class StateRowsDocument(Document):
    """The rows of a key in one of several states."""

    operator: str
    state: str
    kind: str
    rows: list[dict[str, Any]]


class SkippedStateDocument(Document):
    """A state that was not searched, and why."""

    operator: str
    state: str
    why: str


class KeyFoundDocument(Document):
    """Without an operator or a state: the rows of a key in all states. ``key`` is text."""

    store: str
    checkpoint_id: int = field(name="id")
    key: str
    states: list[StateRowsDocument]
    skipped: list[SkippedStateDocument]
    left_out: list[LeftOutDocument]


@dataclass(frozen=True, kw_only=True)
class KeyFound(Result):
    """The rows of one key in all states; ``key`` is the given text."""

    store: str
    key: str
    found: KeyStates
    left_out: tuple[LeftOutState, ...] = ()

    def document(self) -> KeyFoundDocument:
        """Return it for ``--output json``."""
        found = self.found
        return KeyFoundDocument(
            store=self.store,
            checkpoint_id=found.checkpoint_id,
            key=self.key,
            states=[
                StateRowsDocument(
                    operator=state.entry.state.uid,
                    state=state.entry.state.name,
                    kind=state.entry.state.kind.value,
                    rows=list(state.rows),
                )
                for state in found.states
            ],
            skipped=[
                SkippedStateDocument(
                    operator=skipped.entry.state.uid,
                    state=skipped.entry.state.name,
                    why=skipped.reason,
                )
                for skipped in found.skipped
            ],
            left_out=LeftOutDocument.each(self.left_out),
        )

    def write(self, page: Page) -> None:
        """Write it as text."""
        found = self.found
        if not found.rows:
            page.line(f"no state of checkpoint {found.checkpoint_id} has rows with key {self.key}")
        else:
            table = table_of("operator", "state", "row")
            for one in found.states:
                state = one.entry.state
                for row in one.rows:
                    values = ", ".join(f"{name} {value_text(value)}" for name, value in row.items())
                    table.add_row(cell(state.uid), cell(state.name), cell(values))
            page.table(table)
        for skipped in found.skipped:
            page.line(f"skipped {skipped.entry.state} because its key is ({skipped.key})")
        write_left_out(page, self.left_out)
