"""``statestore get``: the rows of one key."""

from __future__ import annotations

import re
from typing import Any

import click

from statestore.cli.asking import KeyFound
from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, checkpoint_argument, pass_invocation
from statestore.cli.keys import parse_key
from statestore.cli.values import FoundRows
from statestore.format.state import KeyedState

__all__ = ["get_rows"]


class GetVerb(Verb):
    """Explains how to pass a negative number, which looks like an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            key = next((arg for arg in given if re.match(r"-[0-9.]", arg)), None)
            if key is None or "--" in given:
                raise
            raise click.UsageError(
                f"a key that begins with '-' stands after '--': -- {key}"
            ) from error


@click.command(
    "get",
    cls=GetVerb,
    prints=(
        "The rows of the key in a keyed state, a line each; at most one data file is read. "
        "KEY is text of the key column's type: u17, 42, 2026-01-31. With several key columns "
        "it is JSON: a list of the values, or an object by column. That there is no such key "
        "is an answer, not an error. Without --operator or --state it is looked up in all states "
        "of all operators, or in those that have the one name given; states whose key is of "
        "another type are skipped, and named."
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
@click.option("--operator", "uid", metavar="UID", help="Only this operator's states.")
@click.option("--state", "name", metavar="NAME", help="Only states of this name.")
@pass_invocation
def get_rows(
    invocation: Invocation, key: str, checkpoint: str, uid: str | None, name: str | None
) -> FoundRows | KeyFound:
    """Look up one key, in a keyed state or in all."""
    store = invocation.store()
    if uid is None or name is None:

        def of(state: KeyedState) -> Any:
            return _one(parse_key(key, state))

        found = store.key(of, checkpoint, uid=uid, name=name)
        return KeyFound(store=store.url, key=key, found=found)
    restored = store.restore(checkpoint=checkpoint)
    state = restored.keyed(uid, name)
    values = parse_key(key, state.entry.state)
    return FoundRows(
        store=store.url,
        checkpoint_id=restored.checkpoint_id,
        entry=state.entry,
        key=values,
        rows=tuple(state.get(_one(values))),
    )


def _one(values: tuple[Any, ...]) -> Any:
    """Return a key as a lookup takes it: of one column, its value."""
    return values[0] if len(values) == 1 else values
