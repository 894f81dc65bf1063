"""``statestore spark bootstrap``: start a query that has never run with state from tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.arguments import distinct, named_values
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.job_function import call_job, job_function
from statestore.cli.options import (
    INSTANT,
    dry_run_option,
    location_module,
    output_mode_option,
    spark_settings_option,
)
from statestore.cli.output import Output, Page, page, progress_bar, table_of
from statestore.cli.verbs.spark import exported_table, open_session
from statestore.errors import InvalidArgumentError
from statestore.interop.tables.table_formats import open_query, open_table

if TYPE_CHECKING:
    from statestore.interop.spark.bootstrap_location import (
        BootstrappedLocation,
    )
    from statestore.interop.spark.planned_query import PlannedQuery, SourcePosition
    from statestore.interop.spark.wanted_states import WantedColumn

__all__ = ["bootstrap_location"]


@dataclass(frozen=True, kw_only=True)
class WantedStateSummary:
    """A state that a query needs, and the columns that its table must have."""

    operator: str
    state: str
    does: str
    columns: tuple[WantedColumn, ...]


@dataclass(frozen=True, kw_only=True)
class QueryPlan:
    """The states that a query needs before its first run, and where its sources begin."""

    output_mode: str
    partitions: int
    provider: str
    fingerprint: str
    sources: tuple[SourcePosition, ...]
    states: tuple[WantedStateSummary, ...]


@click.command(
    "bootstrap",
    cls=Verb,
    section="Spark queries",
    prints=(
        "Without NEW: the states that the query wants, with the columns that a table for each "
        "must have. With NEW: the new location, and the rows and bytes of each store. JOB names "
        "a function that takes a SparkSession and returns the streaming DataFrame, as "
        "job.py:build or package.module:build."
    ),
    examples=(
        "statestore spark bootstrap job.py:build --output-mode update",
        (
            "statestore spark bootstrap job.py:build ./new --output-mode update --from-table "
            "stateStoreSave-0/default=totals.parquet --conf spark.sql.shuffle.partitions=8"
        ),
    ),
)
@click.argument("job")
@click.argument("new", required=False)
@output_mode_option
@click.option(
    "--from-table",
    "tables",
    multiple=True,
    metavar="STATE=[PLACE]",
    help="A Parquet or CSV file, a folder or a Delta table for a state; one for each state. "
    "A state without a PLACE begins without rows.",
)
@click.option(
    "--from-sql",
    "queries",
    multiple=True,
    metavar="STATE=SELECT",
    help="A query of DuckDB for a state.",
)
@click.option("--watermark", type=INSTANT, metavar="TIME", help="The query's first watermark.")
@click.option(
    "--files-after", type=INSTANT, metavar="TIME", help="Older files of file sources count as read."
)
@spark_settings_option(
    "A setting of Spark with which the query will run, such as "
    "spark.sql.shuffle.partitions=8, its state store provider, or packages."
)
@click.option(
    "--fingerprint", metavar="TEXT", help="The plan that the tables are for; another is refused."
)
@dry_run_option
@pass_invocation
def bootstrap_location(
    invocation: Invocation,
    job: str,
    new: str | None,
    output_mode: str,
    tables: tuple[str, ...],
    queries: tuple[str, ...],
    watermark: datetime | None,
    files_after: datetime | None,
    settings: tuple[str, ...],
    fingerprint: str | None,
    dry_run: bool,
) -> Output[QueryPlan] | Output[BootstrappedLocation]:
    """Start a query that has never run with state from tables."""
    empty = [text.removesuffix("=") for text in tables if text.endswith("=") and text != "="]
    places = named_values(
        "--from-table",
        "STATE=[PLACE]",
        [text for text in tables if text.removesuffix("=") not in empty],
    )
    statements = named_values("--from-sql", "STATE=SELECT", queries)
    distinct(
        "--from-table or --from-sql",
        ((name, None) for name in (*places, *statements, *empty)),
    )
    if new is None and (places or statements or empty):
        raise click.UsageError("name the NEW location for the tables")
    if new is None:
        _refuse_without_location(watermark=watermark, fingerprint=fingerprint, dry_run=dry_run)
    build = click.get_current_context().with_resource(job_function(job))
    values = named_values("--conf", "NAME=VALUE", settings)
    session = open_session(new or ".", values)
    plan = location_module("planned_query").plan_query(
        _check_streaming(call_job(build, session, job), job),
        output_mode=output_mode,
        files_after=files_after,
    )
    if new is None:
        return Output(_summary(plan), write_plan)
    if invocation.settings.output == "text":
        write_plan(page(), _summary(plan))
    with progress_bar("bootstrapping") as on_progress:
        made = location_module("bootstrap_location").bootstrap_location(
            plan,
            new,
            {
                **{plan.state(name).name: open_table(place) for name, place in places.items()},
                **{plan.state(name).name: open_query(sql) for name, sql in statements.items()},
                **dict.fromkeys(empty),
            },
            watermark=watermark,
            fingerprint=fingerprint,
            dry_run=dry_run,
            on_progress=on_progress,
        )
    return Output(made, write_bootstrapped)


def _refuse_without_location(**options: object) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if given:
        raise click.UsageError(
            f"{', '.join(given)} {'have' if len(given) > 1 else 'has'} an effect only with the NEW "
            "location: name it"
        )


def _check_streaming(query: Any, job: str) -> Any:
    if not hasattr(query, "isStreaming"):
        raise InvalidArgumentError(
            f"{job} must return a streaming DataFrame, not {type(query).__name__}"
        )
    return query


def _summary(plan: PlannedQuery) -> QueryPlan:
    return QueryPlan(
        output_mode=plan.output_mode,
        partitions=plan.partitions,
        provider=plan.provider,
        fingerprint=plan.fingerprint,
        sources=plan.sources,
        states=tuple(
            WantedStateSummary(
                operator=state.operator, state=state.state, does=state.does, columns=state.columns
            )
            for state in plan.states
        ),
    )


def write_plan(page: Page, plan: QueryPlan) -> None:
    """Write the states that a query needs as text."""
    page.line(f"the query in output mode {plan.output_mode}, plan {plan.fingerprint}", "bold")
    for source in plan.sources:
        files = "" if source.files is None else f" ({source.files} files count as read)"
        page.line(f"  source {source.folder}     {source.source}")
        page.line(f"  begins at    {source.begins}{files}")
    for state in plan.states:
        page.line()
        page.line(f"{state.operator}/{state.state}: {state.does}", "bold")
        table = table_of("column", "type", "role", "nullable")
        for column in state.columns:
            nullable = "" if column.is_nullable else "no"
            table.add_row(column.name, column.type, column.role, nullable)
        page.table(table)


def write_bootstrapped(page: Page, made: BootstrappedLocation) -> None:
    """Write the written stores as text."""
    page.line()
    page.line(f"{'would write' if made.dry_run else 'wrote'} {made.location}", "bold")
    page.line(f"  query        {made.query_id}")
    page.line(f"  partitions   {made.partitions}, provider {made.provider}")
    if not made.dry_run:
        page.line("  read back    by Spark: rows, values and partitions are correct")
    page.line()
    page.table(exported_table(made.stores))
