"""``statestore as-of`` and ``statestore history``: a state over several checkpoints."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from statestore.cli.help import Verb
from statestore.cli.histories import Joined, KeyHistory
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.keys import parse_key
from statestore.cli.verbs.get import GetVerb
from statestore.files.values import shown
from statestore.format.state import KeyedState
from statestore.restore.history import CHANGE, CHANGES

__all__ = ["join_checkpoints", "show_history"]

_MOST_ROWS = 1000


@click.command(
    "as-of",
    cls=Verb,
    prints=(
        "A keyed state at checkpoint A beside the same at B: a line per key (with its namespace "
        "and entry columns), what became of it (same, changed, added, removed), and each value "
        "column as NAME_a and NAME_b, empty where that checkpoint has no such row; what differs "
        "comes first, then what is the same. The first 1,000 lines unless --limit says otherwise; "
        "the numbers above are of all. A and B are numbers, "
        "names of savepoints, or latest."
    ),
    examples=(
        "statestore as-of 1 2 --operator totals-by-user --state totals --limit 5 --store ./fraud",
        (
            "statestore as-of 1 latest --operator totals-by-shop --state totals --changed-only "
            "--output json --store ./fraud"
        ),
    ),
)
@click.argument("a", metavar="A")
@click.argument("b", default="latest", metavar="[B]")
@click.option("--operator", "--uid", "uid", metavar="UID", required=True, help="Its operator.")
@click.option("--state", "--name", "name", metavar="NAME", required=True, help="The keyed state.")
@click.option("--changed-only", is_flag=True, help="Leave out rows that are the same.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=_MOST_ROWS,
    metavar="ROWS",
    help=f"At most so many rows; 0 for all. [{_MOST_ROWS}]",
)
@pass_invocation
def join_checkpoints(
    invocation: Invocation, a: str, b: str, uid: str, name: str, changed_only: bool, limit: int
) -> Joined:
    """Show a keyed state at one checkpoint beside the same at another."""
    store = invocation.store()
    counts: Counter[str] = Counter()
    different: list[tuple[Any, ...]] = []
    same: list[tuple[Any, ...]] = []
    with store.as_of(a, b, uid, name) as answer:
        # No column for the key group: it is where a row lies, and not what it is.
        names = answer.schema.names[1:]
        for batch in answer:
            counts.update(batch.column(CHANGE).to_pylist())
            for row in shown(batch):
                rows = same if row[CHANGE] == "same" else different
                if not limit or len(rows) < limit:
                    rows.append(tuple(row[column] for column in names))
        columns = tuple((field.name, str(field.type)) for field in list(answer.schema)[1:])
    rows = different if changed_only else [*different, *same]
    told = counts.total() - (counts["same"] if changed_only else 0)
    return Joined(
        store=store.url,
        ids=(store.manifest(a).checkpoint_id, store.manifest(b).checkpoint_id),
        uid=uid,
        state=name,
        columns=columns,
        rows=tuple(rows[: limit or None]),
        counts={change: counts[change] for change in CHANGES},
        is_cut=bool(limit) and told > limit,
    )


@click.command(
    "history",
    cls=GetVerb,
    prints=(
        "A line per kept checkpoint, oldest first: its number, when it was taken, and the rows "
        "that the key has in the state; * where they are others than at the checkpoint before. "
        "KEY is given as for 'statestore get'. At most one data file of each is read, and none "
        "where the checkpoint before has the same files."
    ),
    examples=(
        "statestore history u17 --operator totals-by-user --state totals --store ./fraud",
        (
            "statestore history '[\"DE\", 17]' --operator totals-by-shop --state totals "
            "--store ./fraud"
        ),
    ),
)
@click.argument("key")
@click.option("--operator", "--uid", "uid", metavar="UID", required=True, help="Its operator.")
@click.option("--state", "--name", "name", metavar="NAME", required=True, help="The keyed state.")
@pass_invocation
def show_history(invocation: Invocation, key: str, uid: str, name: str) -> KeyHistory:
    """Show what one key had at each kept checkpoint."""
    store = invocation.store()
    parsed: dict[str, Any] = {}

    def of(state: KeyedState) -> Any:
        values = parse_key(key, state)
        parsed.update(zip(state.key, values, strict=True))
        return values[0] if len(values) == 1 else values

    history = store.key_history(of, uid, name)
    return KeyHistory(store=store.url, uid=uid, state=name, key=parsed, history=history)
