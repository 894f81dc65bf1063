"""``statestore spark repartition``: change the number of partitions of a query, without a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.options import (
    OPERATOR_NAMES,
    batch_option,
    dry_run_option,
    location_module,
    shape_options,
    spark_target,
)
from statestore.cli.output import Output, Page, progress_bar
from statestore.cli.verbs.spark import check_location, exported_table, open_session, write_sources

if TYPE_CHECKING:
    from statestore.interop.spark.repartition import RepartitionedLocation

__all__ = ["repartition_state"]


@click.command(
    "repartition",
    cls=Verb,
    prints=(
        "The new location, and the rows and bytes of each store. Start the query with the new "
        "location: it keeps its id and its micro-batch. Spark's own reader reads back all rows "
        "before the location can be used."
    ),
    examples=(
        "statestore spark repartition ./before ./at-7 --shuffle-partitions 7 --dry-run",
        "statestore spark repartition ./before ./at-7 --shuffle-partitions 7 --provider rocksdb",
    ),
)
@click.argument("location")
@click.argument("new")
@shape_options
@batch_option
@OPERATOR_NAMES
@dry_run_option
@pass_invocation
def repartition_state(
    invocation: Invocation,
    location: str,
    new: str,
    partitions: int,
    provider: str | None,
    sources: Mapping[str, Any],
    batch: int | None,
    operator_names: Mapping[int, str],
    dry_run: bool,
) -> Output[RepartitionedLocation]:
    """Write a query's state as a new location with another number of partitions."""
    check_location(location, batch, operator_names)
    session = open_session(location)
    with progress_bar("repartitioning") as on_progress:
        repartitioned = location_module("repartition").repartition_location(
            session,
            location,
            new,
            partitions=partitions,
            target=spark_target(provider, sources),
            batch=batch,
            operator_names=operator_names,
            dry_run=dry_run,
            on_progress=on_progress,
        )
    return Output(repartitioned, write_repartitioned)


def write_repartitioned(page: Page, made: RepartitionedLocation) -> None:
    """Write the written stores as text."""
    verb = "would repartition" if made.dry_run else "repartitioned"
    page.line(f"{verb} micro-batch {made.batch} of {made.source}", "bold")
    page.line(f"  to           {made.location}")
    page.line(f"  query        {made.query_id}")
    page.line(f"  partitions   {made.partitions}, provider {made.provider}")
    write_sources(page, made.sources)
    if not made.dry_run:
        page.line("  read back    by Spark: rows, values and partitions are correct")
    page.line()
    page.table(exported_table(made.stores))
