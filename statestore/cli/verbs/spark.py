"""``statestore spark``: show and import the checkpoint location of a Spark query, or export one.

These verbs need Spark, so Spark modules are loaded only when one of them runs.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, LazyVerb, Root, Verb, common_options, pass_invocation
from statestore.cli.completion import complete_checkpoint
from statestore.cli.drawing import count, counted, size, when
from statestore.cli.output import Page, Result, cell, progress_bar, table_of
from statestore.extras import needs_extra
from statestore.format.manifest_json import left_out_to_json
from statestore.storage import open_storage

if TYPE_CHECKING:
    from statestore.interop.spark_checkpoints.export_state import ExportedLocation, ExportedStore
    from statestore.interop.spark_checkpoints.hand_over import ExportedProgress
    from statestore.interop.spark_checkpoints.import_state import ImportedCheckpoint
    from statestore.interop.spark_checkpoints.show_location import (
        ShownLocation,
        ShownQueryOperator,
        ShownStore,
        ShownVariable,
    )

__all__ = [
    "ProgressMade",
    "Shown",
    "SparkExportResult",
    "SparkImportResult",
    "export_progress",
    "export_state",
    "import_state",
    "show_state",
    "spark",
]


class SparkVerbs(Root):
    """The verbs for checkpoints of Spark queries."""

    examples = (
        "statestore spark show ./checkpoints/orders",
        "statestore spark import ./checkpoints/orders --store ./orders",
        "statestore spark export ./checkpoints/orders-7 --shuffle-partitions 7 --store ./orders",
    )
    sections: ClassVar[Mapping[str, Mapping[str, LazyVerb]]] = {
        "Verbs": {
            "show": LazyVerb("spark:show_state", "Show what a query's checkpoint location holds"),
            "import": LazyVerb(
                "spark:import_state", "Take the state of a query's micro-batch as a checkpoint"
            ),
            "export": LazyVerb(
                "spark:export_state",
                "Make a checkpoint location that Spark continues from, at any number of partitions",
            ),
            "progress": LazyVerb(
                "spark:export_progress",
                "Make a location without state, for a StatefulQuery on an imported one",
            ),
        }
    }


@click.group("spark", cls=SparkVerbs)
def spark() -> None:
    """Look at the state of Spark's own queries, and take it in and out."""


spark.params.extend(common_options())


def _module(name: str) -> Any:
    return importlib.import_module(f"statestore.interop.spark_checkpoints.{name}")


def _session(location: str) -> Any:
    """Start Spark on this machine, with access to ``s3a://`` if the location needs it."""
    in_bucket = bool(open_storage(location).hadoop_settings())
    with needs_extra("spark", "statestore spark"):
        session = importlib.import_module("statestore.spark.session")
    return session.spark_session(app_name="statestore spark", table_format="parquet", s3=in_bucket)


def _check(location: str, batch: int | None) -> None:
    """Refuse an invalid checkpoint location before Spark is started for it."""
    _module("location").CheckpointLocation(open_storage(location)).batch(batch)


@click.command(
    "show",
    cls=Verb,
    prints=(
        "The query's id, the micro-batch that is shown and those that are kept, one that was "
        "planned and will run again, the state store provider, the watermark, where each source "
        "is, and for each operator its stores: columns, rows and bytes by partition, and what an "
        "import keeps as bytes, or cannot take, and why. The location is only read, and its query "
        "may be running."
    ),
    examples=(
        "statestore spark show ./checkpoints/orders",
        "statestore spark show ./checkpoints/orders --batch 1 --output json",
    ),
)
@click.argument("location")
@click.option("--batch", type=int, metavar="N", help="A micro-batch that is done; else the newest.")
@pass_invocation
def show_state(invocation: Invocation, location: str, batch: int | None) -> Shown:
    """Show what a query's checkpoint location holds."""
    _check(location, batch)
    session = _session(location)
    with progress_bar("reading") as progress:
        shown = _module("show_location").show_location(
            session, location, batch=batch, on_progress=progress
        )
    return Shown(shown=shown)


@click.command(
    "import",
    cls=Verb,
    prints=(
        "The checkpoint that was made, and each state in it with its rows and its key. Each of the "
        "query's state stores becomes a keyed state: the key is what Spark shuffles by, and the "
        "fields of keys and values are columns. A field that no column can hold is reported, and "
        "its store kept as Spark's bytes. Where sources are, and what the query's logs say, comes "
        "along. A later micro-batch of the query, imported into the same store, is an incremental "
        "checkpoint; one that the store has is found. The location is only read, and its query may "
        "be running."
    ),
    examples=(
        "statestore spark import ./checkpoints/orders --store ./orders",
        "statestore spark import ./checkpoints/orders --to ./orders --batch 1",
    ),
)
@click.argument("location")
@click.option("--to", "target", metavar="URL", help="The store; the same as --store.")
@click.option("--batch", type=int, metavar="N", help="A micro-batch that is done; else the newest.")
@click.option(
    "--max-parallelism", type=int, metavar="N", help="Key groups of a new store's states."
)
@pass_invocation
def import_state(
    invocation: Invocation,
    location: str,
    target: str | None,
    batch: int | None,
    max_parallelism: int | None,
) -> SparkImportResult:
    """Take the state of a query's micro-batch as a checkpoint."""
    if target is not None:
        invocation.arguments["store"] = target
    _check(location, batch)
    session = _session(location)
    store = invocation.store(spark=session)
    with progress_bar("importing") as progress:
        imported = _module("import_state").import_checkpoint(
            session,
            location,
            store,
            batch=batch,
            max_parallelism=max_parallelism,
            on_progress=progress,
        )
    return SparkImportResult(imported=imported)


_CHECKPOINT = click.option(
    "--checkpoint",
    default="latest",
    metavar="N",
    help="Its number, or a savepoint.",
    shell_complete=complete_checkpoint,
)


@click.command(
    "export",
    cls=Verb,
    prints=(
        "The new checkpoint location, and for each state store the rows and bytes of its fullest "
        "partition and of all. The query keeps its id and the micro-batch its number: start the "
        "query with the new location, and it goes on; a micro-batch that was planned and not done "
        "runs again with the same data. Before the location can be used, all rows were read back "
        "by Spark's own reader, and their number, values and partitions compared. The checkpoint "
        "is one that was imported, or made of such a one; by default the latest. Where a "
        "StatefulQuery went on with the state, --progress is its checkpoint location. State that "
        "the location would lack has to be named with --leave-out. STORE is the "
        "same as --store. With --dry-run: what each partition would get, and nothing is written."
    ),
    examples=(
        "statestore spark export ./new --shuffle-partitions 7 --dry-run --store ./orders",
        "statestore spark export ./orders ./new --shuffle-partitions 7 --provider rocksdb",
    ),
)
@click.argument("places", nargs=-1, required=True, metavar="[STORE] LOCATION")
@click.option(
    "--shuffle-partitions",
    "partitions",
    type=int,
    required=True,
    metavar="N",
    help="The query's new number of shuffle partitions.",
)
@click.option(
    "--provider", type=click.Choice(("hdfs", "rocksdb")), help="By default as the query had it."
)
@_CHECKPOINT
@click.option(
    "--progress",
    metavar="LOCATION",
    help="The checkpoint location of the StatefulQuery that went on with the state.",
)
@click.option(
    "--leave-out",
    multiple=True,
    metavar="OPERATOR[/STATE]",
    help="State that the checkpoint, or the new location, lacks on purpose. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be written and stop.")
@pass_invocation
def export_state(
    invocation: Invocation,
    places: tuple[str, ...],
    partitions: int,
    provider: str | None,
    checkpoint: str,
    progress: str | None,
    leave_out: tuple[str, ...],
    dry_run: bool,
) -> SparkExportResult:
    """Make a checkpoint location that Spark continues from, at any number of partitions."""
    location = _location(invocation, places)
    session = _session(location)
    store = invocation.store(spark=session)
    with progress_bar("exporting") as on_progress:
        exported = _module("export_state").export_checkpoint(
            session,
            store,
            location,
            partitions=partitions,
            provider=provider,
            checkpoint=checkpoint,
            progress=progress,
            leave_out=leave_out,
            dry_run=dry_run,
            on_progress=on_progress,
        )
    return SparkExportResult(exported=exported)


@click.command(
    "progress",
    cls=Verb,
    prints=(
        "The location, and the query and micro-batch that it ends with. It has no state: start a "
        "StatefulQuery with it, with source 'query' and the uid, name and key of the imported "
        "state, and it goes on in the store where Spark's query ended. STORE is the same as "
        "--store. To go back to Spark, name the location in 'statestore spark export --progress'."
    ),
    examples=(
        "statestore spark progress ./orders ./progress",
        "statestore spark progress ./progress --checkpoint 1 --store ./orders",
        "statestore spark progress ./orders ./progress --ticks",
    ),
)
@click.argument("places", nargs=-1, required=True, metavar="[STORE] LOCATION")
@_CHECKPOINT
@click.option("--ticks", is_flag=True, help="The query is one of a processor with timers.")
@pass_invocation
def export_progress(
    invocation: Invocation, places: tuple[str, ...], checkpoint: str, ticks: bool
) -> ProgressMade:
    """Make a location without state, for a StatefulQuery on an imported one."""
    location = _location(invocation, places)
    made = _module("hand_over").export_progress(
        invocation.store(), location, checkpoint=checkpoint, ticks=ticks
    )
    return ProgressMade(made=made)


def _location(invocation: Invocation, places: tuple[str, ...]) -> str:
    """Return the last of the places; one before it is the store."""
    *stores, location = places
    if len(stores) > 1:
        raise click.UsageError(f"one store and one location are named, not {len(places)} places")
    if stores:
        invocation.arguments["store"] = stores[0]
    return location


@dataclass(frozen=True, kw_only=True)
class Shown(Result):
    """The content of a query's checkpoint location."""

    shown: ShownLocation

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        shown = self.shown
        return {
            "location": shown.location,
            "query": shown.query_id,
            "batch": shown.batch,
            "kept": {"first": shown.kept[0], "last": shown.kept[1]},
            "uncommitted": shown.uncommitted,
            "provider": shown.provider,
            "checkpoint_version": shown.checkpoint_version,
            "watermark_ms": shown.watermark_ms,
            "planned_at_ms": shown.planned_at_ms,
            "formats": dict(shown.formats),
            "sources": [_parsed(source) for source in shown.sources],
            "operators": [_operator(operator) for operator in shown.operators],
        }

    def write(self, page: Page) -> None:
        """Write it as text."""
        shown = self.shown
        page.line(f"query {shown.query_id} in {shown.location}", "bold")
        first, last = shown.kept
        page.line(f"  micro-batch  {shown.batch}, of {first} to {last} that are done and kept")
        if shown.uncommitted is not None:
            page.line(f"               {shown.uncommitted} is planned and not done: it runs again")
        page.line(f"  planned      {when(shown.planned_at_ms)}")
        if shown.watermark_ms:
            page.line(f"  watermark    {when(shown.watermark_ms)}")
        page.line(f"  provider     {shown.provider}, checkpoint format {shown.checkpoint_version}")
        for number, source in enumerate(shown.sources):
            page.line(f"  source {number:<5} ends at {source}")
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
        ttl = ", with a time to live" if variable.has_ttl else ""
        what = (
            variable.form if variable.form == variable.name else f"{variable.form} {variable.name}"
        )
        page.line(f"    {what}{ttl}: {counted(sum(variable.rows), 'row')}")
        page.line(f"      key    {variable.key}")
        page.line(f"      value  {variable.value}")
        for note in variable.notes:
            page.line(f"      no columns: {note}")
    variables = [variable.name for variable in store.variables]
    numbers = ("partition", "rows", "file bytes", *variables)
    table = table_of(*numbers, right=set(numbers))
    for number, size_bytes in enumerate(store.file_bytes):
        in_it = "?" if store.rows is None else count(store.rows[number])
        of_each = (count(variable.rows[number]) for variable in store.variables)
        table.add_row(*map(cell, (str(number), in_it, size(size_bytes), *of_each)))
    page.table(table)


def _operator(operator: ShownQueryOperator) -> dict[str, Any]:
    return {
        "operator": operator.number,
        "name": operator.name,
        "does": operator.does,
        "problem": operator.problem,
        "stores": [
            {
                "store": store.name,
                "key": store.key,
                "value": store.value,
                "kept_as_bytes": list(store.notes),
                "variables": [_variable(variable) for variable in store.variables],
                "rows": None if store.rows is None else sum(store.rows),
                "partitions": [
                    {
                        "partition": number,
                        "rows": None if store.rows is None else store.rows[number],
                        "file_bytes": size_bytes,
                    }
                    for number, size_bytes in enumerate(store.file_bytes)
                ],
            }
            for store in operator.stores
        ],
    }


def _variable(variable: ShownVariable) -> dict[str, Any]:
    return {
        "variable": variable.name,
        "kind": variable.form,
        "ttl": variable.has_ttl,
        "key": variable.key,
        "value": variable.value,
        "no_columns": list(variable.notes),
        "rows": sum(variable.rows),
        "partitions": list(variable.rows),
    }


def _parsed(source: str) -> Any:
    """Parse a source's location from JSON; a source may write any text."""
    try:
        return json.loads(source)
    except ValueError:
        return source


@dataclass(frozen=True, kw_only=True)
class SparkImportResult(Result):
    """A checkpoint that was made from a query's state."""

    imported: ImportedCheckpoint

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        done = self.imported
        return {
            "location": done.location,
            "query": done.record.query_id,
            "batch": done.record.batch,
            "store": done.store,
            "id": done.checkpoint_id,
            "found": done.found,
            "incremental": done.is_incremental,
            "states": [
                {
                    "operator": store.uid,
                    "state": store.state,
                    "rows": store.contents.rows,
                    "key": store.columns.key_columns,
                    "entry": store.columns.entry_columns,
                    "kept_as_bytes": list(store.columns.problems),
                }
                for store in done.record.stores
            ],
        }

    def write(self, page: Page) -> None:
        """Write it as text."""
        done = self.imported
        what = f"micro-batch {done.record.batch} of query {done.record.query_id}"
        where = f"checkpoint {done.checkpoint_id} of {done.store}"
        if done.found:
            page.line(f"{what} was imported before: it is {where}", "bold")
        else:
            how = ", what changed since the one before" if done.is_incremental else ""
            page.line(f"imported {what} as {where}{how}", "bold")
        table = table_of("operator", "state", "rows", "key", "entry", right={"rows"})
        for store in done.record.stores:
            key, entry = (
                ", ".join(store.columns.key_columns),
                ", ".join(store.columns.entry_columns),
            )
            row = (store.uid, store.state, count(store.contents.rows), key, entry)
            table.add_row(*map(cell, row))
        page.table(table)
        for store in done.record.stores:
            for note in store.columns.problems:
                page.line(f"{store.state} of {store.uid} is kept as bytes: {note}")


@dataclass(frozen=True, kw_only=True)
class SparkExportResult(Result):
    """A checkpoint location that was made for Spark."""

    exported: ExportedLocation

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        done = self.exported
        return {
            "store": done.store,
            "id": done.checkpoint_id,
            "location": done.location,
            "query": done.query_id,
            "batch": done.batch,
            "shuffle_partitions": done.partitions,
            "provider": done.provider,
            "dry_run": done.dry_run,
            "complete": not done.left_out,
            "left_out": left_out_to_json(done.left_out),
            "stores": [
                {
                    "operator": store.operator,
                    "store": store.store,
                    "partitions": [
                        {"partition": number, "rows": rows, "size_bytes": size_bytes}
                        for number, (rows, size_bytes) in enumerate(
                            zip(store.rows, store.size_bytes, strict=True)
                        )
                    ],
                }
                for store in done.stores
            ],
        }

    def write(self, page: Page) -> None:
        """Write it as text."""
        done = self.exported
        verb = "would export" if done.dry_run else "exported"
        what = "part of checkpoint" if done.left_out else "checkpoint"
        page.line(f"{verb} {what} {done.checkpoint_id} of {done.store}", "bold")
        for one in done.left_out:
            page.line(f"  left out     {one}")
        page.line(f"  to           {done.location}")
        page.line(f"  query        {done.query_id}, behind micro-batch {done.batch}")
        page.line(f"  partitions   {done.partitions}, provider {done.provider}")
        if not done.dry_run:
            page.line("  read back    by Spark: rows, values and partitions are as they should be")
        page.line()
        page.table(_exported_table(done.stores))


@dataclass(frozen=True, kw_only=True)
class ProgressMade(Result):
    """A new checkpoint location without state."""

    made: ExportedProgress

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        made = self.made
        return {
            "store": made.store,
            "id": made.checkpoint_id,
            "location": made.location,
            "query": made.query_id,
            "batch": made.batch,
            "left_out": left_out_to_json(made.left_out),
        }

    def write(self, page: Page) -> None:
        """Write it as text."""
        made = self.made
        page.line(f"made {made.location}", "bold")
        page.line(f"  query        {made.query_id}, behind micro-batch {made.batch}")
        page.line(f"  state        checkpoint {made.checkpoint_id} of {made.store}")
        write_left_out(page, made.left_out)


def _exported_table(stores: Sequence[ExportedStore]) -> Any:
    names = ("operator", "store", "rows", "bytes", "fullest partition")
    table = table_of(*names, right={"rows", "bytes"})
    for store in stores:
        fullest = max(range(len(store.rows)), key=lambda at: store.rows[at])
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
        table.add_row(*map(cell, row))
    return table
