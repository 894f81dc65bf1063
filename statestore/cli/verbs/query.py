"""``statestore query``: run SQL over the states of a checkpoint, or a shell for it."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import click

from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import counted
from statestore.cli.options import (
    checkpoint_option,
    limit_option,
    query_limit_options,
    verify_option,
)
from statestore.cli.output import Output, Page, progress_bar
from statestore.cli.verbs.answers import (
    Answered,
    ListedViews,
    answered,
    listed_views,
    write_answer,
    write_views,
)
from statestore.cli.verbs.shell import run_shell
from statestore.durations import milliseconds_of
from statestore.format.left_out import LeftOutState
from statestore.restore.duck import run_interruptibly
from statestore.restore.output_file import check_output_file
from statestore.restore.result_files import RESULT_FORMATS, write_result

__all__ = ["WrittenResult", "query_states"]

_TABLE = "table"
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}


@click.command(
    "query",
    cls=Verb,
    prints=(
        'The rows of the result. Every state is a view named "operator uid"."state name", or '
        "the state's name if no other state has it; SHOW TABLES lists them. DuckDB runs the "
        "statement, which is one SELECT over the views. Without SQL, a shell runs one statement "
        "after another; without a terminal it reads them from stdin, until the first error."
    ),
    examples=(
        "statestore query 'SELECT count(*) FROM per_country' --store ./fraud",
        "statestore query 'SELECT * FROM \"totals-by-user\".totals LIMIT 5' --store ./fraud",
        "statestore query 'SELECT * FROM per_country' --to per_country.parquet --store ./fraud",
        "statestore query --tables --store ./fraud",
        "statestore query --checkpoint 1 --store ./fraud",
    ),
    modes={"--tables": (), "sql": ("--format", "--to", "--limit", "--verify")},
)
@click.argument("sql", required=False)
@checkpoint_option("The checkpoint to query")
@click.option("--tables", is_flag=True, help="List the views with their columns and rows instead.")
@click.option(
    "--format",
    "form",
    type=click.Choice([_TABLE, *RESULT_FORMATS]),
    help="The form of the rows. [table, or as the suffix of --to says]",
)
@click.option("--to", metavar="FILE", help="Write the rows to this new file instead of stdout.")
@limit_option
@query_limit_options(duration=None, memory=None)
@verify_option
@pass_invocation
def query_states(
    invocation: Invocation,
    sql: str | None,
    checkpoint: str,
    tables: bool,
    form: str | None,
    to: str | None,
    limit: int | None,
    time_limit: str,
    memory_limit: int | None,
    verify: bool,
) -> Output[Answered] | Output[ListedViews] | Output[WrittenResult] | None:
    """Query the states of a checkpoint with SQL."""
    form = form or _format_of(to)
    if to is None and form in ("parquet", "arrow") and sys.stdout.isatty():
        raise click.UsageError(f"{form} is not text: pass --to FILE, or redirect the output")
    if form == _TABLE and to is not None:
        raise click.UsageError(f"--to writes {', '.join(RESULT_FORMATS)}; redirect a table with >")
    if to is not None:
        check_output_file(Path(to), replace=False)
    store = invocation.store()
    longest = time_limit if milliseconds_of(time_limit) else None
    if sql is None and not tables:
        run_shell(store, checkpoint, longest, memory_limit)
        return None
    queried = store.checkpoint(checkpoint)
    number, lacking = queried.checkpoint_id, queried.manifest.left_out
    if sql is None:
        return Output(listed_views(store, queried), write_views)

    cancelled = threading.Event()

    def answer_query() -> Output[Answered] | Output[WrittenResult] | None:
        with store.query(
            sql,
            queried,
            verify=verify,
            time_limit=longest,
            memory_limit=memory_limit,
            cancelled=cancelled,
        ) as answer:
            if form == _TABLE:
                return Output(answered(answer, queried, store.url, limit), write_answer)
            target = sys.stdout.buffer if to is None else Path(to)
            written = write_result(answer, form, target, limit or 0)
        if to is None:
            return None
        result = WrittenResult(
            store=store.url, checkpoint_id=number, file=to, rows_written=written, left_out=lacking
        )
        return Output(result, write_written)

    if to is None and form != _TABLE:  # its rows appear meanwhile, perhaps on the same terminal
        return run_interruptibly(answer_query, cancelled.set)
    with progress_bar("running the query"):
        return run_interruptibly(answer_query, cancelled.set)


def _format_of(to: str | None) -> str:
    """Return the format that a file's suffix names; a usage error for another suffix."""
    if to is None:
        return _TABLE
    suffix = Path(to).suffix.lower()
    if suffix not in _SUFFIXES:
        raise click.UsageError(
            f"--to {to}: the suffix does not name a format ({', '.join(_SUFFIXES)}); pass --format"
        )
    return _SUFFIXES[suffix]


@dataclass(frozen=True, kw_only=True)
class WrittenResult:
    """A result that was written to a file, and the number of its rows."""

    store: str
    checkpoint_id: int
    file: str
    rows_written: int
    left_out: tuple[LeftOutState, ...] = ()


def write_written(page: Page, written: WrittenResult) -> None:
    """Write the size of the written file as text."""
    page.line(f"wrote {counted(written.rows_written, 'row')} to {written.file}", "bold")
    write_left_out(page, written.left_out)
