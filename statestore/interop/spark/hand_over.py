"""From a query on Spark's state to a ``StatefulQuery`` on a store's, and back.

A state that was imported is one that a ``StatefulQuery`` can go on with. What that needs of Spark
is a checkpoint location that says how far the query is, and has no state: the same query id, the
same numbers of micro-batches, the same places in its sources. :func:`export_progress` makes it.

When the state is to go back, what Spark wrote to that location since is what an export needs:
:func:`with_progress`. How the state's rows are laid out stays as it was imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from statestore.errors import InvalidArgumentError
from statestore.format.left_out import LeftOutState
from statestore.interop.spark.location import CheckpointLocation
from statestore.interop.spark.record import QueryRecord
from statestore.interop.spark.target import Target
from statestore.storage import open_storage
from statestore.store import StateStore
from statestore.streaming.progress import same_ends

__all__ = ["ExportedProgress", "export_progress", "with_progress"]

_TICK = b'\n{"offset":0,"timestamp":0}'
"""Where a source of ticks begins, as a line of offsets."""


@dataclass(frozen=True, kw_only=True)
class ExportedProgress:
    """A checkpoint location without a state, for a ``StatefulQuery``.

    ``left_out`` is what the checkpoint lacks of its source, so that the query goes on without it.
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
    checkpoint: int | str = "latest",
    ticks: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> ExportedProgress:
    """Make a checkpoint location from which a ``StatefulQuery`` goes on with an imported state.

    Start the query with it, ``source="query"``, and the uid, name and key of the state. Its first
    micro-batch is the one after that which was imported; one that was planned and not done runs
    with the same data. Spark is not needed here.

    Args:
        store: the store.
        location: a new path or URL.
        checkpoint: the id, ``latest``, or a savepoint's name; one that was imported.
        ticks: says that the query is one of a processor with timers, which has a source of ticks
            beside its own.
        storage_options: options for fsspec, with which the location is reached.

    Returns:
        The location, and the micro-batch that it ends with.

    Raises:
        InvalidArgumentError: for a checkpoint that was not imported, or whose state has gone on
            since, or a location that is not empty, or within another or the store.
        CommitConflictError: when another export is being written there, or did not finish.
        StateStoreError: as ``store.restore``, and when the location cannot be written.
    """
    restored = store.restore(checkpoint=checkpoint)
    record = QueryRecord.of(restored)
    if not record.has_logs:
        raise InvalidArgumentError(
            f"the state of checkpoint {restored.checkpoint_id} went on with query "
            f"{record.query_id}, to micro-batch {record.batch}: start that with the location that "
            "it has"
        )
    target = Target(open_storage(location, storage_options), record.batch)
    target.refuse_used((store.url, record.location))
    target.begin()
    for name, content in record.logs:
        if not name.startswith("state/"):
            target.put(name, content + _TICK * (ticks and name.startswith("offsets/")))
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
    """Return a record with the logs of the micro-batch that the state is at.

    They are those that were imported, or of the location ``progress`` of the ``StatefulQuery``
    that went on since.

    Raises:
        InvalidArgumentError: when the location is needed, or not, or is of another query, has not
            done the micro-batch, ends elsewhere, or has state of its own.
        MissingFileError, DamagedFileError or FormatVersionError: for its files.
    """
    at = f"micro-batch {record.batch} of query {record.query_id}"
    if record.has_logs:
        if progress is None:
            return record
        raise InvalidArgumentError(
            f"checkpoint {checkpoint_id} is as it was imported, at {at}: no StatefulQuery went on "
            f"with it. Leave {progress} out"
        )
    if progress is None:
        raise InvalidArgumentError(
            f"the state of checkpoint {checkpoint_id} went on after its import, to {at}: name the "
            "checkpoint location of that StatefulQuery (--progress)"
        )
    location = CheckpointLocation(open_storage(progress, storage_options))
    if location.query_id != record.query_id:
        raise InvalidArgumentError(
            f"{location.url} is of query {location.query_id}, and checkpoint {checkpoint_id} is at "
            f"{at}"
        )
    location.batch(record.batch)
    ends = location.plan(record.batch).ends
    has_ticks = len(ends) == len(record.ends) + 1
    if not same_ends(ends[:-1] if has_ticks else ends, record.ends):
        raise InvalidArgumentError(
            f"in {location.url} micro-batch {record.batch} ends elsewhere than in checkpoint "
            f"{checkpoint_id}: it is not the location that this state went on with"
        )
    if location.storage.list("state"):
        raise InvalidArgumentError(
            f"the query of {location.url} has state in Spark too, which an export would lose"
        )
    return replace(record, logs=(*_described(record), *_gone_on(record, location)))


def _described(record: QueryRecord) -> Iterator[tuple[str, bytes]]:
    return ((name, content) for name, content in record.logs if name.startswith("state/"))


def _gone_on(record: QueryRecord, location: CheckpointLocation) -> Iterator[tuple[str, bytes]]:
    """Yield the logs of a location, with the settings that the rows are laid out for, and without
    the source of ticks.
    """
    sources = len(record.ends)
    for name, content in location.files(record.batch):
        if name.startswith(f"sources/{sources}/"):
            continue
        if name.startswith("offsets/"):
            lines = content.split(b"\n")[: 2 + sources]
            planned = json.loads(lines[1]) | {"conf": record.settings}
            lines[1] = json.dumps(planned, separators=(",", ":")).encode()
            content = b"\n".join(lines)
        yield name, content
