"""Hand a query over from Spark's state to a ``StatefulQuery`` with a store, and back.

A ``StatefulQuery`` can continue with an imported state. For that it needs a Spark checkpoint
location with the progress of the query, but without state: the same query id, micro-batch numbers
and source positions. :func:`export_progress` writes it.

To hand the state back to Spark, an export needs the logs that Spark wrote to that location in the
meantime. :func:`with_progress` reads them. The layout of the state's rows stays as it was imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from statestore.catalog.catalog import CheckpointRef
from statestore.errors import InvalidArgumentError
from statestore.format.left_out import LeftOutState
from statestore.interop.spark.import_record import QueryRecord
from statestore.interop.spark.location import BatchPlan, CheckpointLocation, OffsetLogEntry
from statestore.interop.spark.location_writer import Target
from statestore.interop.spark.source_changes import write_positions
from statestore.storage import open_storage
from statestore.store import StateStore
from statestore.streaming.planned import TICKS
from statestore.streaming.progress import same_ends

_TICK = '{"offset":0,"timestamp":0}'
"""The start position of a tick source."""


@dataclass(frozen=True, kw_only=True)
class ExportedProgress:
    """A checkpoint location without state, for a ``StatefulQuery``.

    ``left_out`` is state of the source that the checkpoint does not have. The query continues
    without it.
    """

    store: str
    checkpoint_id: int
    location: str
    query_id: str
    batch: int
    left_out: tuple[LeftOutState, ...] = ()


def export_progress(
    store: StateStore,
    location: str,
    *,
    checkpoint: CheckpointRef = "latest",
    ticks: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> ExportedProgress:
    """Write a checkpoint location from which a ``StatefulQuery`` continues with an imported state.

    Start the query with this location, ``source="query"``, and the uid, name and key of the state.
    Its first micro-batch follows the imported micro-batch. If Spark had already planned the first
    micro-batch, it runs with the same data. This function does not need Spark.

    Args:
        store: the store.
        location: a new path or URL.
        checkpoint: the id, ``latest``, or a savepoint's name of an imported checkpoint.
        ticks: whether the query has a processor with timers, and therefore an additional tick
            source.
        storage_options: options for fsspec, to access the location.

    Returns:
        The location, and its last micro-batch.

    Raises:
        InvalidArgumentError: if the checkpoint was not imported, its state has advanced since the
            import, or the location is not empty or is inside of another location or the store. Also
            for changed source positions that cannot be written.
        CommitConflictError: if another export to the location is running or did not finish.
        StateStoreError: as ``store.restore``, or if the location cannot be written.
    """
    restored = store.restore(checkpoint=checkpoint)
    record = QueryRecord.from_checkpoint(restored)
    if not record.has_logs:
        raise InvalidArgumentError(
            f"the state of checkpoint {restored.checkpoint_id} has continued with query "
            f"{record.query_id} up to micro-batch {record.batch}; start that query with its "
            "existing checkpoint location"
        )
    record = write_positions(record)
    target = Target(open_storage(location, storage_options), record.batch)
    target.refuse_used((store.url, record.location))
    target.begin()
    for name, content in record.logs:
        if not name.startswith("state/"):
            has_tick = ticks and name.startswith("offsets/")
            target.put(name, _add_tick(content, record) if has_tick else content)
    target.finish()
    return ExportedProgress(
        store=store.url,
        checkpoint_id=restored.checkpoint_id,
        location=target.storage.url,
        query_id=record.query_id,
        batch=record.batch,
        left_out=restored.manifest.left_out,
    )


def with_progress(
    record: QueryRecord,
    progress: str | None,
    checkpoint_id: int,
    storage_options: Mapping[str, Any] | None,
) -> QueryRecord:
    """Return a record with the logs of the state's current micro-batch.

    These are the imported logs, or the logs in the location ``progress`` of the ``StatefulQuery``
    that continued with the state. They end at the offsets that the checkpoint has.

    Raises:
        InvalidArgumentError: if ``progress`` is missing or not needed. Also if its location belongs
            to another query, has not finished the micro-batch, ends at other positions, or has its
            own state. Also for changed source positions that cannot be written.
        MissingFileError, DamagedFileError or FormatVersionError: for its files.
    """
    position = f"micro-batch {record.batch} of query {record.query_id}"
    if record.has_logs:
        if progress is None:
            return write_positions(record)
        raise InvalidArgumentError(
            f"checkpoint {checkpoint_id} is unchanged since its import, at {position}: no "
            f"StatefulQuery continued it. Remove {progress}"
        )
    if progress is None:
        raise InvalidArgumentError(
            f"the state of checkpoint {checkpoint_id} has continued after its import, up to "
            f"{position}: pass the checkpoint location of that StatefulQuery (--progress)"
        )
    location = CheckpointLocation(open_storage(progress, storage_options))
    if location.query_id != record.query_id:
        raise InvalidArgumentError(
            f"{location.url} belongs to query {location.query_id}, but checkpoint "
            f"{checkpoint_id} is at {position}; pass the location of that query"
        )
    location.batch(record.batch)
    if not same_ends(_list_ends(record, location.plan(record.batch)), record.ends):
        raise InvalidArgumentError(
            f"micro-batch {record.batch} in {location.url} ends at other source positions "
            f"than checkpoint {checkpoint_id}, so this state did not continue with that "
            "location; pass the right location"
        )
    if location.storage.list("state"):
        raise InvalidArgumentError(
            f"the query of {location.url} also has state in Spark, which an export would lose"
        )
    descriptions = (log for log in record.logs if log[0].startswith("state/"))
    return write_positions(replace(record, logs=(*descriptions, *_convert_logs(record, location))))


def _tick_source(record: QueryRecord) -> str:
    """Return the name or number of a tick source, which follows the sources of the query."""
    return TICKS if record.names else str(len(record.ends))


def _add_tick(content: bytes, record: QueryRecord) -> bytes:
    """Return a file of the offset log with the start position of a tick source."""
    entry = OffsetLogEntry.parse(content)
    return entry.with_sources([*entry.sources, (_tick_source(record), _TICK)]).encode()


def _list_ends(record: QueryRecord, plan: BatchPlan) -> tuple[str, ...]:
    """Return the ends of a plan in the order of the record's sources, without a tick source.

    It is empty if the plan has other sources.
    """
    if not record.names:
        has_tick = len(plan.ends) == len(record.ends) + 1
        return plan.ends[:-1] if has_tick else plan.ends
    ends = dict(zip(plan.sources or (), plan.ends, strict=False))
    if ends.keys() - {TICKS} != {*record.names}:
        return ()
    return tuple(ends[name] for name in record.names)


def _convert_logs(record: QueryRecord, location: CheckpointLocation) -> Iterator[tuple[str, bytes]]:
    """Yield the logs of a location, with the imported settings and without the tick source.

    The layout of the rows depends on the imported settings.
    """
    tick = _tick_source(record)
    for name, content in location.files(record.batch):
        if name.startswith(f"sources/{tick}/"):
            continue
        if name.startswith("offsets/"):
            entry = OffsetLogEntry.parse(content).with_conf(record.settings)
            content = entry.with_sources(pair for pair in entry.sources if pair[0] != tick).encode()
        yield name, content
