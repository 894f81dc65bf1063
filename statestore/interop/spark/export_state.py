"""Write a checkpoint location from which Spark continues: of a store, or with other partitions.

``statestore spark export`` writes a checkpoint of a store. ``statestore spark repartition`` writes
the state of another location, without a store in between. So the state is read twice, to prove it
and to write it, and once from the new location.

The micro-batch keeps its number, and the query keeps its id. So a micro-batch that was planned but
not finished runs again with the same data, and a sink that tracks micro-batch numbers recognizes
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore.catalog.catalog import CheckpointRef
from statestore.errors import (
    DuplicateKeyError,
    InvalidArgumentError,
    StateNotFoundError,
)
from statestore.format.digest import RowSet
from statestore.format.left_out import LeftOutState, left_out_text, refuse_left_out
from statestore.format.manifest import Manifest
from statestore.interop.spark.hand_over import with_progress
from statestore.interop.spark.import_record import QUERY, ImportedStore, QueryRecord
from statestore.interop.spark.import_state import refuse_unsupported
from statestore.interop.spark.location import CheckpointLocation
from statestore.interop.spark.location_writer import (
    ExportedStore,
    ProgressReporter,
    Target,
    check_shape,
    choose_provider,
    write_location,
)
from statestore.interop.spark.parts import (
    Columns,
    StatePart,
    list_parts,
    map_columns,
    read_stored_rows,
    refuse_misplaced_rows,
)
from statestore.interop.spark.query_settings import SAME_QUERY, STRICT, SparkTarget
from statestore.interop.spark.rewriter import check_spark
from statestore.interop.spark.source_changes import change_sources
from statestore.interop.spark.state_damage import refuse_damaged_states
from statestore.interop.spark.state_reader import observe_bytes, prepared_session
from statestore.interop.spark.stores import (
    StoreRows,
    needs_rewriter,
    refuse_unwritable,
    select_stores,
)
from statestore.spark.compat import COMMAND_INSTEAD, refuse_connect
from statestore.storage import open_storage
from statestore.store import StateStore
from statestore.streaming.processor_states import INDEX


@dataclass(frozen=True, kw_only=True)
class ExportedLocation:
    """The written location (with ``dry_run``, the location that would be written).

    ``sources`` are the positions of the query's sources, as JSON, by name or number. ``left_out``
    is state of the checkpoint, or of the checkpoint's source, that the location does not have.
    """

    store: str
    checkpoint_id: int
    location: str
    query_id: str
    batch: int
    partitions: int
    provider: str
    stores: tuple[ExportedStore, ...]
    sources: Mapping[str, str]
    dry_run: bool
    left_out: tuple[LeftOutState, ...] = ()


def export_checkpoint(
    store: StateStore,
    location: str,
    *,
    partitions: int,
    target: SparkTarget = SAME_QUERY,
    checkpoint: CheckpointRef = "latest",
    progress: str | None = None,
    leave_out: Collection[str] = (),
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> ExportedLocation:
    """Write an imported checkpoint as a Spark checkpoint location.

    All rows are written for the new number of partitions. Then Spark's own reader reads them back,
    and their number, digest and partitions are compared. Only after that can Spark start with the
    location.

    A micro-batch that was planned but not finished runs again from this location. If a sink, such
    as a file or Delta sink, already has it, the sink skips it together with its state, and the next
    micro-batch fails. In this case start the query with its old location until that micro-batch is
    finished, and import again.

    Args:
        store: the store; it was opened with a session of Spark Classic.
        location: a new path or URL.
        partitions: the new ``spark.sql.shuffle.partitions`` of the query.
        target: the provider and the sources of the query that continues, if they change.
        checkpoint: the id, ``latest``, or a savepoint's name.
        progress: the checkpoint location of the ``StatefulQuery`` that continued with the state
            after its import, if there is one.
        leave_out: state to leave out of the location: ``operator`` or ``operator/state``. It must
            name the state of the source that the checkpoint does not have, and all states that do
            not belong to the query.
        dry_run: report the rows and bytes of each partition, without writing anything.
        storage_options: options for fsspec, to access the location and ``progress``.
        on_progress: a callback that receives the number of finished stores, the total, and the next
            store.

    Returns:
        The written stores. Their bytes are file sizes, or for a dry run the sizes of keys and
        values.

    Raises:
        InvalidArgumentError: if the store was opened without Spark, the checkpoint was not
            imported, or ``partitions`` or the provider is invalid. Also if the location is not
            empty, or is inside of another location or a store. Also if ``progress`` does not belong
            to the state, and for sources that cannot be changed so.
        LeftOutStateError: for such missing state that ``leave_out`` does not name.
        StateNotFoundError: for a name in ``leave_out`` that matches no such state.
        CommitConflictError: if another export to the location is running or did not finish.
        MissingDependencyError: if the state needs Spark's rewriter, and this Spark has none.
        UnsupportedTypeError: for rows that are kept as bytes and differ from the imported rows, and
            for changed variables of a store that cannot be rebuilt. Also for changed states of one
            operator that do not fit each other: the two stores of a side of a join, and the bytes
            and the variables of a transformWithState.
        CorruptionError: if Spark reads back something else; the location stays unusable.
        StateStoreError: as ``store.restore``, or if the location cannot be written.
    """
    check_shape(partitions, target.provider)
    spark = store.parts.spark
    if spark is None:
        raise InvalidArgumentError(
            "the export writes with Spark: open the store with StateStore.open(url, spark=spark)"
        )
    refuse_connect(spark, "writing the state of a query", COMMAND_INSTEAD)
    restored = store.restore(checkpoint=checkpoint)
    record = QueryRecord.from_checkpoint(restored)
    record = with_progress(record, progress, restored.checkpoint_id, storage_options)
    record = change_sources(record, target)
    left_out = _check_left_out(restored.manifest, record, leave_out)
    chosen = choose_provider(record, target.provider)
    states = select_stores(store, restored, record, chosen)
    if needs_rewriter(record, chosen):
        check_spark(spark)
    new = Target(open_storage(location, storage_options), record.batch)
    new.refuse_used((store.url, record.location))
    reporter = ProgressReporter(on_progress, len(states))
    shape = (partitions, chosen)
    stores = write_location(spark, new, record, states, shape, reporter, dry_run=dry_run)
    return ExportedLocation(
        store=store.url,
        checkpoint_id=restored.checkpoint_id,
        location=new.storage.url,
        query_id=record.query_id,
        batch=record.batch,
        partitions=partitions,
        provider=chosen,
        stores=stores,
        sources=record.positions,
        dry_run=dry_run,
        left_out=left_out,
    )


def _check_left_out(
    manifest: Manifest, record: QueryRecord, named: Collection[str]
) -> tuple[LeftOutState, ...]:
    """Return the state that the location will not have, if the user named all of it.

    Raises the errors of :func:`export_checkpoint`.
    """
    imported = {(store.uid, store.state) for store in record.stores}
    others = (
        LeftOutState(
            operator=entry.state.uid,
            state=entry.state.name,
            reason="the state does not belong to the Spark query",
            command="spark export",
        )
        for entry in manifest.entries
        if (entry.state.uid, entry.state.name) not in imported
        and entry.state.uid != QUERY
        and entry.state.name != INDEX
    )
    missing = (*manifest.left_out, *others)
    for name in named:
        if not any(state.is_named(name) for state in missing):
            raise StateNotFoundError(
                f"{name!r} cannot be left out because it is not missing; missing is "
                f"{left_out_text(missing) or 'nothing'}"
            )
    refuse_left_out(missing, named, manifest.checkpoint_id, "a query on the new location")
    return missing


@dataclass(frozen=True, kw_only=True)
class RepartitionedLocation:
    """The new location (with ``dry_run``, the location that would be written).

    ``sources`` are the positions of the query's sources, as JSON, by name or number.
    """

    source: str
    location: str
    query_id: str
    batch: int
    partitions: int
    provider: str
    stores: tuple[ExportedStore, ...]
    sources: Mapping[str, str]
    dry_run: bool


def repartition_location(
    spark: SparkSession,
    source: str,
    location: str,
    *,
    partitions: int,
    target: SparkTarget = SAME_QUERY,
    batch: int | None = None,
    operator_names: Mapping[int, str] | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> RepartitionedLocation:
    """Write the state of a query's micro-batch as a new location with other partitions.

    The old location is only read, and its query may be running. Spark's own reader reads all rows
    of the new location back, and their number, digest and partitions are compared with the old
    ones. Only after that can Spark start with the new location. A micro-batch that was planned but
    not finished runs again there, as :func:`export_checkpoint` describes.

    Args:
        spark: a session of Spark Classic.
        source: the query's checkpoint location, a path or URL.
        location: a new path or URL.
        partitions: the new ``spark.sql.shuffle.partitions`` of the query.
        target: the provider and the sources of the query that continues, if they change.
        batch: a committed micro-batch; by default the newest.
        operator_names: the names of operators by number, as in :func:`import_checkpoint`.
        dry_run: report the rows and bytes of each partition, without writing anything.
        storage_options: options for fsspec, to access both locations.
        on_progress: a callback that receives the number of finished steps, the total, and the next
            step.

    Returns:
        The written stores.

    Raises:
        InvalidArgumentError: for a source that is not a query's checkpoint location, an invalid
            number of partitions or provider, and a location that is not empty or is inside of
            another one or of a store. Also for sources that cannot be changed so.
        UnsupportedTypeError: for an unsupported operator or state format, and for rows in other
            partitions than their keys imply, unless an old version of Spark placed them.
        DamagedFileError or MissingFileError: if a file of the query is damaged or missing.
        DuplicateKeyError: for a key that has rows in two partitions.
        CommitConflictError: if another export to the location is running or did not finish.
        MissingDependencyError: if the state needs Spark's rewriter, and this Spark has none.
        CorruptionError: if Spark reads back something else; the location stays unusable.
        StorageError: if the location cannot be written.
    """
    check_shape(partitions, target.provider)
    refuse_connect(spark, "repartitioning the state of a query", COMMAND_INSTEAD)
    old = CheckpointLocation(open_storage(source, storage_options), operator_names or {})
    number = old.batch(batch)
    plan = old.plan(number)
    all_operators = old.operators(number)
    refuse_unsupported(old, all_operators, plan)
    parts = [part for operator in all_operators for part in list_parts(operator)]
    own = [part for part in parts if not part.is_view]  # they have the rows of all views
    new = Target(open_storage(location, storage_options), number)
    new.refuse_used((old.url,))
    reporter = ProgressReporter(on_progress, 2 * len(own))
    with prepared_session(spark, old, number, all_operators) as url:
        refuse_damaged_states(spark, old, all_operators, number)
        is_strict = plan.settings[STRICT] == "true"
        states = [_read_store(spark, url, number, part, is_strict, reporter) for part in own]
        stores = tuple(state.imported for state in states)
        logs = tuple(old.files(number))
        record = change_sources(
            QueryRecord(old.query_id, number, old.url, plan.ends, stores, logs, plan.names),
            target,
        )
        chosen = choose_provider(record, target.provider)
        for store in stores:
            refuse_unwritable(record, store, chosen)
        if needs_rewriter(record, chosen):
            check_spark(spark)
        shape = (partitions, chosen)
        written = write_location(spark, new, record, states, shape, reporter, dry_run=dry_run)
    return RepartitionedLocation(
        source=old.url,
        location=new.storage.url,
        query_id=old.query_id,
        batch=number,
        partitions=partitions,
        provider=chosen,
        stores=written,
        sources=record.positions,
        dry_run=dry_run,
    )


def _read_store(
    spark: SparkSession,
    url: str,
    batch: int,
    part: StatePart,
    is_strict: bool,
    reporter: ProgressReporter,
) -> StoreRows:
    reporter(f"reading {part.state} of {part.uid}")
    rows = read_stored_rows(spark, url, batch, part)
    columns = map_columns(rows, part)
    contents = _observe_rows(rows, columns, part, is_strict)
    store = ImportedStore(**vars(part), columns=columns, contents=contents)
    # The rows never become columns.
    return StoreRows(store, partial(columns.move, rows), observe_bytes, [(store, contents)])


def _observe_rows(rows: DataFrame, columns: Columns, part: StatePart, is_strict: bool) -> RowSet:
    """Return the rows of a store.

    Only a query of an old version of Spark, which is not strict, may have rows in other partitions
    than their keys imply.

    Raises:
        DuplicateKeyError: for a key with rows in two partitions.
        UnsupportedTypeError: for rows in other partitions of a strict query.
    """
    observed = observe_bytes(rows, columns, part.partitions)
    if observed.misplaced:
        identity = [*columns.key_columns, *columns.entry_columns]
        several = columns.to_state(rows).groupBy(*identity).count().where(F.col("count") > 1)
        for row in several.select(*identity).limit(1).collect():
            raise DuplicateKeyError(
                f"store {part.store!r} of operator {part.uid} has rows of the key {row.asDict()} "
                "in two partitions, and Spark would find only one of them"
            )
        if is_strict:
            refuse_misplaced_rows(rows, columns, part)
    return observed.contents
