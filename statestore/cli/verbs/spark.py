"""``statestore spark``: show, import, export or repartition a Spark query's checkpoint location.

``repartition`` changes a query's number of partitions without a store.

These verbs need Spark, so Spark modules are loaded only when one of them runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Root, Verb, pass_invocation
from statestore.cli.drawing import count, counted, size, when
from statestore.cli.options import (
    OPERATOR_NAMES,
    batch_argument,
    checkpoint_argument,
    dry_run_option,
    leave_out_option,
    location_module,
    max_parallelism_option,
    shape_options,
    spark_target,
)
from statestore.cli.output import Output, Page, progress_bar, table_of
from statestore.extras import needs_extra
from statestore.storage import open_storage

if TYPE_CHECKING:
    from statestore.interop.spark.export_state import ExportedLocation, RepartitionedLocation
    from statestore.interop.spark.hand_over import ExportedProgress
    from statestore.interop.spark.import_state import ImportedCheckpoint
    from statestore.interop.spark.location_writer import ExportedStore
    from statestore.interop.spark.show_location import (
        ShownLocation,
        ShownStore,
    )

__all__ = [
    "export_progress",
    "export_state",
    "exported_table",
    "import_state",
    "open_session",
    "repartition_state",
    "show_state",
    "spark",
]


@click.group(
    "spark",
    cls=Root,
    section="Move",
    examples=(
        "statestore spark show ./checkpoints/orders",
        "statestore spark repartition ./checkpoints/orders ./orders-7 --shuffle-partitions 7",
        "statestore spark import ./checkpoints/orders --store ./orders",
        "statestore spark export ./checkpoints/orders-7 --shuffle-partitions 7 --store ./orders",
        "statestore spark bootstrap job.py:build --output-mode update",
    ),
    sections=("Spark queries",),
)
def spark() -> None:
    """Show, import and export the state of Spark's own queries."""


def open_session(location: str, settings: Mapping[str, str] | None = None) -> Any:
    """Start Spark on this machine, with access to ``s3a://`` if the location needs it.

    If ``settings`` are given, even without any entry, Spark can also read Delta tables, provided
    that Delta is installed.
    """
    in_bucket = bool(open_storage(location).hadoop_settings())
    with needs_extra("spark", "statestore spark"):
        module = importlib.import_module("statestore.spark.session")
    if settings is None:
        return module.spark_session(
            app_name="statestore spark", table_format="parquet", s3=in_bucket
        )
    session = module.spark_session(app_name="statestore spark", extra_conf=settings, s3=in_bucket)
    session = session.newSession()  # a session that runs already keeps its settings
    for name, value in settings.items():
        if name.startswith("spark.sql."):
            session.conf.set(name, value)
    return session


def check_location(location: str, batch: int | None, operator_names: Mapping[int, str]) -> None:
    """Refuse an invalid checkpoint location before Spark is started for it."""
    opened = location_module("location").CheckpointLocation(open_storage(location), operator_names)
    opened.operators(opened.batch(batch))


@click.command(
    "show",
    cls=Verb,
    section="Spark queries",
    has_store=False,
    prints=(
        "The query and its micro-batch, the position of each source, and the stores of each "
        "operator, with rows and bytes by partition. What an import cannot use is listed with "
        "the reason. The query may be running."
    ),
    examples=(
        "statestore spark show ./checkpoints/orders",
        "statestore spark show ./checkpoints/orders 1 --output json",
    ),
)
@click.argument("location")
@batch_argument
@OPERATOR_NAMES
@pass_invocation
def show_state(
    invocation: Invocation, location: str, batch: int | None, operator_names: Mapping[int, str]
) -> Output[ShownLocation]:
    """Show the content of a checkpoint location."""
    check_location(location, batch, operator_names)
    session = open_session(location)
    with progress_bar("reading") as progress:
        shown = location_module("show_location").show_location(
            session, location, batch=batch, operator_names=operator_names, on_progress=progress
        )
    return Output(shown, write_location)


@click.command(
    "import",
    cls=Verb,
    section="Spark queries",
    prints=(
        "The new checkpoint, and each of its states with rows and key. Fields that no column "
        "can hold are kept as bytes and named. A later micro-batch becomes an incremental "
        "checkpoint of the same store. The query may be running."
    ),
    examples=(
        "statestore spark import ./checkpoints/orders --store ./orders",
        "statestore spark import ./checkpoints/orders 1 --store ./orders",
    ),
)
@click.argument("location")
@batch_argument
@max_parallelism_option("The number of key groups of new states; a store keeps its number.")
@OPERATOR_NAMES
@pass_invocation
def import_state(
    invocation: Invocation,
    location: str,
    batch: int | None,
    max_parallelism: int | None,
    operator_names: Mapping[int, str],
) -> Output[SparkImportSummary]:
    """Import the state of a query's micro-batch as a checkpoint."""
    check_location(location, batch, operator_names)
    session = open_session(location)
    store = invocation.store(spark=session)
    with progress_bar("importing") as progress:
        imported = location_module("import_state").import_checkpoint(
            session,
            location,
            store,
            batch=batch,
            max_parallelism=max_parallelism,
            operator_names=operator_names,
            on_progress=progress,
        )
    return Output(_summary(imported), write_imported)


def _summary(imported: ImportedCheckpoint) -> SparkImportSummary:
    """Return an import without the serializers and logs of its record."""
    record = imported.record
    return SparkImportSummary(
        location=imported.location,
        moved_from=imported.moved_from,
        query_id=record.query_id,
        batch=record.batch,
        store=imported.store,
        checkpoint_id=imported.checkpoint_id,
        found=imported.found,
        is_incremental=imported.is_incremental,
        states=tuple(
            ImportedStoreSummary(
                operator=store.uid,
                state=store.state,
                rows=store.contents.rows,
                key=tuple(store.columns.key_columns),
                entry=tuple(store.columns.entry_columns),
                kept_as_bytes=tuple(store.columns.problems),
            )
            for store in record.stores
        ),
    )


@click.command(
    "export",
    cls=Verb,
    section="Spark queries",
    prints=(
        "The new checkpoint location, and the rows and bytes of each store. Start the query "
        "with it. Spark's own reader reads back all rows before the location can be used. The "
        "checkpoint must be an imported one, or derived from one. State that the location would "
        "lack must be named with --leave-out."
    ),
    examples=(
        "statestore spark export ./new --shuffle-partitions 7 --dry-run --store ./orders",
        "statestore spark export ./new --shuffle-partitions 7 --provider rocksdb --store ./orders",
    ),
)
@click.argument("location")
@checkpoint_argument
@shape_options
@click.option(
    "--progress",
    metavar="LOCATION",
    help="The checkpoint location of the StatefulQuery that continued with the state.",
)
@leave_out_option("State that the checkpoint or the new location lacks intentionally.")
@dry_run_option
@pass_invocation
def export_state(
    invocation: Invocation,
    location: str,
    partitions: int,
    provider: str | None,
    sources: Mapping[str, Any],
    checkpoint: str,
    progress: str | None,
    leave_out: tuple[str, ...],
    dry_run: bool,
) -> Output[ExportedLocation]:
    """Export a checkpoint location for Spark, with any number of partitions."""
    found = invocation.store().checkpoint(checkpoint)  # before Spark starts, which takes seconds
    session = open_session(location)
    store = invocation.store(spark=session)
    with progress_bar("exporting") as on_progress:
        exported = location_module("export_state").export_checkpoint(
            store,
            location,
            partitions=partitions,
            target=spark_target(provider, sources),
            checkpoint=found,
            progress=progress,
            leave_out=leave_out,
            dry_run=dry_run,
            on_progress=on_progress,
        )
    return Output(exported, write_exported)


@click.command(
    "progress",
    cls=Verb,
    section="Spark queries",
    prints=(
        "The location, and the micro-batch at which the query ends. Start a StatefulQuery with "
        "it, with source 'query' and the uid, name and key of the imported state. To return to "
        "Spark, pass the location to 'statestore spark export --progress'."
    ),
    examples=(
        "statestore spark progress ./progress --store ./orders",
        "statestore spark progress ./progress 1 --store ./orders",
        "statestore spark progress ./progress --ticks --store ./orders",
    ),
)
@click.argument("location")
@checkpoint_argument
@click.option("--ticks", is_flag=True, help="The query has a processor with timers.")
@pass_invocation
def export_progress(
    invocation: Invocation, location: str, checkpoint: str, ticks: bool
) -> Output[ExportedProgress]:
    """Make a checkpoint location without state for a StatefulQuery that continues."""
    progress = location_module("hand_over").export_progress(
        invocation.store(), location, checkpoint=checkpoint, ticks=ticks
    )
    return Output(progress, write_progress)


def write_location(page: Page, shown: ShownLocation) -> None:
    """Write the contents of a checkpoint location as text."""
    page.line(f"query {shown.query_id} in {shown.location}", "bold")
    if shown.moved_from is not None:
        page.line(f"  moved from   {shown.moved_from}")
    first, last = shown.kept
    page.line(f"  micro-batch  {shown.batch} ({first} to {last} are completed and kept)")
    if shown.uncommitted is not None:
        page.line(f"               {shown.uncommitted} is planned and will run again")
    page.line(f"  planned      {when(shown.planned_at_ms)}")
    if shown.watermark_ms:
        page.line(f"  watermark    {when(shown.watermark_ms)}")
    page.line(f"  provider     {shown.provider}, checkpoint format {shown.checkpoint_version}")
    names = shown.source_names or range(len(shown.sources))
    for name, source in zip(names, shown.sources, strict=True):
        page.line(f"  source {name!s:<5} ends at {source}")
    for operator in shown.operators:
        does = f", {operator.does}" if operator.does else ""
        page.line()
        page.line(f"operator {operator.number}: {operator.name}{does}", "bold")
        if operator.problem:
            page.line(f"  cannot be imported: {operator.problem}")
        for store in operator.stores:
            _write_store(page, store)


def _write_store(page: Page, store: ShownStore) -> None:
    rows = "" if store.rows is None else f"{counted(sum(store.rows), 'row')}, "
    page.line(f"  store {store.name}: {rows}{size(sum(store.file_bytes))} of files")
    if store.key is not None:
        page.line(f"    key    {store.key}")
        page.line(f"    value  {store.value}")
    for note in store.notes:
        page.line(f"    kept as bytes: {note}")
    for variable in store.variables:
        ttl = " with TTL" if variable.has_ttl else ""
        what = (
            variable.form if variable.form == variable.name else f"{variable.form} {variable.name}"
        )
        page.line(f"    {what}{ttl}: {counted(sum(variable.rows), 'row')}")
        page.line(f"      key    {variable.key}")
        page.line(f"      value  {variable.value}")
        for note in variable.notes:
            page.line(f"      kept as bytes: {note}")
    variables = [variable.name for variable in store.variables]
    numbers = ("partition", "rows", "file bytes", *variables)
    table = table_of(*numbers, right=set(numbers))
    for number, size_bytes in enumerate(store.file_bytes):
        in_it = "?" if store.rows is None else count(store.rows[number])
        of_each = (count(variable.rows[number]) for variable in store.variables)
        table.add_row(str(number), in_it, size(size_bytes), *of_each)
    page.table(table)


@dataclass(frozen=True, kw_only=True)
class ImportedStoreSummary:
    """An imported state. ``kept_as_bytes`` has the reasons why it was kept as bytes."""

    operator: str
    state: str
    rows: int
    key: tuple[str, ...]
    entry: tuple[str, ...]
    kept_as_bytes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SparkImportSummary:
    """A query's state, imported as checkpoint ``checkpoint_id``.

    ``found`` is true if it had been imported before. ``moved_from`` is the location at which the
    query ran, if its files show that the location was moved or copied.
    """

    location: str
    moved_from: str | None
    query_id: str
    batch: int
    store: str
    checkpoint_id: int
    found: bool
    is_incremental: bool
    states: tuple[ImportedStoreSummary, ...]


def write_imported(page: Page, imported: SparkImportSummary) -> None:
    """Write the imported states as text."""
    what = f"micro-batch {imported.batch} of query {imported.query_id}"
    where = f"checkpoint {imported.checkpoint_id} of {imported.store}"
    if imported.found:
        page.line(f"{what} was already imported: it is {where}", "bold")
    else:
        scope = " (only the changes since the previous one)" if imported.is_incremental else ""
        page.line(f"imported {what} as {where}{scope}", "bold")
    if imported.moved_from is not None:
        page.line(f"{imported.location} was moved or copied from {imported.moved_from}")
    table = table_of("operator", "state", "rows", "key", "entry", right={"rows"})
    for store in imported.states:
        key, entry = (
            ", ".join(store.key),
            ", ".join(store.entry),
        )
        row = (store.operator, store.state, count(store.rows), key, entry)
        table.add_row(*row)
    page.table(table)
    for store in imported.states:
        for note in store.kept_as_bytes:
            page.line(f"{store.state} of {store.operator} is kept as bytes: {note}")


def write_exported(page: Page, exported: ExportedLocation) -> None:
    """Write the exported stores as text."""
    verb = "would export" if exported.dry_run else "exported"
    what = "part of checkpoint" if exported.left_out else "checkpoint"
    page.line(f"{verb} {what} {exported.checkpoint_id} of {exported.store}", "bold")
    for left_out in exported.left_out:
        page.line(f"  left out     {left_out}")
    page.line(f"  to           {exported.location}")
    page.line(f"  query        {exported.query_id}, after micro-batch {exported.batch}")
    page.line(f"  partitions   {exported.partitions}, provider {exported.provider}")
    write_sources(page, exported.sources)
    if not exported.dry_run:
        page.line("  read back    by Spark: rows, values and partitions are correct")
    page.line()
    page.table(exported_table(exported.stores))


def write_sources(page: Page, sources: Mapping[str, str]) -> None:
    """Write where the sources of a query continue."""
    for name, position in sources.items():
        page.line(f"  {f'source {name}':<12} continues after {position}")


def write_progress(page: Page, made: ExportedProgress) -> None:
    """Write the written location as text."""
    page.line(f"made {made.location}", "bold")
    page.line(f"  query        {made.query_id}, after micro-batch {made.batch}")
    page.line(f"  state        checkpoint {made.checkpoint_id} of {made.store}")
    write_left_out(page, made.left_out)


def exported_table(stores: Sequence[ExportedStore]) -> Any:
    """Return a table of stores with their rows and bytes."""
    names = ("operator", "store", "rows", "bytes", "fullest partition")
    table = table_of(*names, right={"rows", "bytes"})
    for store in stores:
        fullest = max(range(len(store.rows)), key=lambda partition: store.rows[partition])
        most = (
            f"{fullest}: {counted(store.rows[fullest], 'row')}, {size(store.size_bytes[fullest])}"
        )
        row = (
            store.operator,
            store.store,
            count(sum(store.rows)),
            size(sum(store.size_bytes)),
            most,
        )
        table.add_row(*row)
    return table


@click.command(
    "repartition",
    cls=Verb,
    section="Spark queries",
    has_store=False,
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
@batch_argument
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
        repartitioned = location_module("export_state").repartition_location(
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
