"""``statestore spark export``: write a checkpoint location from which Spark continues.

The micro-batch keeps its number, and the query keeps its id. So a micro-batch that was planned but
not finished runs again with the same data, and a sink that tracks micro-batch numbers recognizes
it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from statestore.catalog.catalog import CheckpointRef
from statestore.errors import (
    InvalidArgumentError,
    StateNotFoundError,
)
from statestore.format.left_out import LeftOutState, left_out_text, refuse_left_out
from statestore.format.manifest import Manifest
from statestore.interop.spark.hand_over import with_progress
from statestore.interop.spark.import_record import QUERY, QueryRecord
from statestore.interop.spark.location_writer import (
    ExportedStore,
    ProgressReporter,
    check_shape,
    choose_provider,
    plan_store,
    write_location,
)
from statestore.interop.spark.query_settings import SAME_QUERY, SparkTarget
from statestore.interop.spark.rewriter import check_spark
from statestore.interop.spark.source_changes import change_sources
from statestore.interop.spark.stores import needs_rewriter, select_stores
from statestore.interop.spark.target import Target
from statestore.spark.compat import refuse_connect
from statestore.storage import open_storage
from statestore.store import StateStore
from statestore.streaming.timer_index import INDEX


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
    refuse_connect(spark, "writing the state of a query")
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
    if dry_run:
        stores = tuple(plan_store(state, partitions, reporter) for state in states)
    else:
        stores = write_location(spark, new, record, states, (partitions, chosen), reporter)
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
