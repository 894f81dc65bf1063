"""``statestore query``: SQL over the states of a checkpoint."""

from __future__ import annotations

from typing import Any

import click

from statestore.cli.asking import Answered, ListedViews
from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.files.values import shown_values

__all__ = ["query_states"]

_MOST_ROWS = 1000


@click.command(
    "query",
    cls=Verb,
    prints=(
        "The rows of the answer, the first 1,000 unless --limit says otherwise. Every state is a "
        'view, "operator uid"."state name", or the state\'s name alone where no other state has '
        "it, with the columns as stored behind key_group; operator state behind subtask and "
        "position. Needs DuckDB (pip install 'statestore[query]') and no Spark. A statement only "
        "asks: one SELECT, over the views and nothing else."
    ),
    examples=(
        "statestore query 'SELECT count(*) FROM per_country' --store ./fraud",
        "statestore query 'SELECT * FROM \"totals-by-user\".totals LIMIT 5' --store ./fraud",
        "statestore query --tables --store ./fraud",
    ),
)
@click.argument("sql", required=False)
@click.option(
    "--checkpoint", default="latest", metavar="ID", help="Of this checkpoint or savepoint. [latest]"
)
@click.option("--tables", is_flag=True, help="List the views, their columns and rows, instead.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=_MOST_ROWS,
    metavar="ROWS",
    help=f"At most so many rows; 0 for all. [{_MOST_ROWS}]",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Check the SHA-256 of each file that is read before its first row.",
)
@pass_invocation
def query_states(
    invocation: Invocation,
    sql: str | None,
    checkpoint: str,
    tables: bool,
    limit: int,
    verify: bool,
) -> Answered | ListedViews:
    """Ask the states of a checkpoint in SQL."""
    if (sql is None) is not tables:
        raise click.UsageError("give one SQL statement, or --tables")
    store = invocation.store()
    number = store.manifest(checkpoint).checkpoint_id
    if sql is None:
        return ListedViews(store=store.url, checkpoint_id=number, views=store.views(checkpoint))
    # A savepoint's name reaches a checkpoint that has expired; a number would not.
    asked = number if checkpoint == "latest" else checkpoint
    with store.query(sql, asked, verify=verify) as answer:
        rows, is_cut = _first(answer, limit)
        return Answered(
            store=store.url,
            checkpoint_id=number,
            columns=tuple((field.name, str(field.type)) for field in answer.schema),
            rows=rows,
            limit=limit or None,
            is_cut=is_cut,
        )


def _first(answer: Any, limit: int) -> tuple[tuple[tuple[Any, ...], ...], bool]:
    """Return the first rows, and whether there are more; what is not asked for is not read."""
    rows: list[tuple[Any, ...]] = []
    for batch in answer:
        columns = [shown_values(column) for column in batch.columns]
        rows.extend(zip(*columns, strict=True))
        if limit and len(rows) > limit:
            return tuple(rows[:limit]), True
    return tuple(rows), False
