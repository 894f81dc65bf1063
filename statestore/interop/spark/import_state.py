"""``statestore spark import``: a query's state as a checkpoint of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    SchemaMismatchError,
    StoreNotFoundError,
    UnsupportedTypeError,
)
from statestore.interop.spark.location import CheckpointLocation, Operator, Planned
from statestore.interop.spark.operators import problem_of
from statestore.interop.spark.parts import Columns, Part, columns_of, parts_of, stored_rows
from statestore.interop.spark.read import reading
from statestore.interop.spark.record import ImportedStore, QueryRecord
from statestore.keys.groups import MAX_PARALLELISM
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.writer import CheckpointWriter
from statestore.storage import open_storage
from statestore.store import StateStore

__all__ = ["ImportedCheckpoint", "import_checkpoint"]


@dataclass(frozen=True)
class ImportedCheckpoint:
    """A checkpoint that was made of a query's state.

    ``found`` says that the store had this micro-batch already; ``is_incremental``, that only what
    changed since the one before was written.
    """

    location: str
    store: str
    checkpoint_id: int
    found: bool
    is_incremental: bool
    record: QueryRecord


@dataclass(frozen=True)
class _Source:
    part: Part
    columns: Columns
    rows: DataFrame


def import_checkpoint(
    spark: SparkSession,
    location: str,
    store: StateStore,
    *,
    batch: int | None = None,
    max_parallelism: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> ImportedCheckpoint:
    """Write the state of a query's micro-batch as the next checkpoint of a store.

    Each of the query's stores becomes a keyed state: its key is what Spark shuffles by, hashed so
    that nulls are keys as others. Beside the store of a transformWithState, which is kept as
    Spark's bytes, each of its variables is a state to look at. A later micro-batch of the same
    query is an incremental checkpoint: what did not change is not written again. The location is
    only read; the query may be running.

    Args:
        spark: a session of Spark Classic.
        location: the query's checkpoint location, a path or URL.
        store: a new store, or one that has an earlier micro-batch of this query.
        batch: a micro-batch that is done; by default the newest.
        max_parallelism: the number of key groups of all states; by default as stored, else Flink's
            default for the number of partitions.
        storage_options: options for fsspec, with which the location is reached.
        on_progress: is called with the number of states that are done, of how many, and the next.

    Returns:
        What was imported, and the checkpoint.

    Raises:
        InvalidArgumentError: for no checkpoint location, a micro-batch that is not there, or a
            store that has something else.
        UnsupportedTypeError: for an operator, or a format of its state, that is not known.
        DamagedFileError or MissingFileError: when a file of the query is not as Spark wrote it.
        SchemaMismatchError: when the query's state has other columns than the stored one.
        StateStoreError: as ``store.snapshot`` and ``checkpoint.keyed``.
    """
    found = CheckpointLocation(open_storage(location, storage_options))
    number = found.batch(batch)
    plan = found.plan(number)
    operators = found.operators(number)
    _refuse_unknown(found, operators, plan)
    stored = _stored(store)
    if stored is not None:
        restored, before = stored
        _refuse_other(before, found, number, store)
        if before.batch == number:
            newest = restored.checkpoint_id
            return ImportedCheckpoint(found.url, store.url, newest, True, False, before)
        max_parallelism = min(one.state.max_parallelism for one in restored.manifest.keyed)
    with reading(spark, found, number):
        sources = tuple(_sources(spark, found, number, operators))
        if stored is not None:
            _refuse_other_plan(stored[1], sources, found)
        logs = tuple(found.files(number))
        partitions = max(source.part.partitions for source in sources)
        parallelism = min(partitions, max_parallelism or MAX_PARALLELISM)
        with store.snapshot(parallelism=parallelism) as checkpoint:
            stores = []
            for done, source in enumerate(sources):
                if on_progress is not None:
                    on_progress(done, len(sources), f"{source.part.state} of {source.part.uid}")
                stores.append(_written(checkpoint, source, max_parallelism, stored is not None))
            record = QueryRecord(found.query_id, number, found.url, plan.ends, tuple(stores), logs)
            record.write(checkpoint, parallelism)
    return ImportedCheckpoint(
        found.url, store.url, checkpoint.id, False, stored is not None, record
    )


def _refuse_unknown(
    location: CheckpointLocation, operators: tuple[Operator, ...], plan: Planned
) -> None:
    for operator in operators:
        problem = problem_of(operator, plan.settings)
        if problem is not None:
            raise UnsupportedTypeError(f"operator {operator.number} of {location.url}: {problem}")


def _sources(
    spark: SparkSession, location: CheckpointLocation, batch: int, operators: tuple[Operator, ...]
) -> Iterator[_Source]:
    """Yield what becomes a state: no variable that has no columns, as the store has its bytes."""
    for part in (part for operator in operators for part in parts_of(operator)):
        rows = stored_rows(spark, location.spark_url, batch, part)
        columns = columns_of(rows, part)
        if columns.is_typed or not part.is_view:
            yield _Source(part, columns, rows)


def _written(
    checkpoint: CheckpointWriter, source: _Source, max_parallelism: int | None, is_known: bool
) -> ImportedStore:
    """Write the rows of one of Spark's stores as a state; of one that is known, what changed."""
    part, columns = source.part, source.columns
    rows = columns.to_state(source.rows)
    uid, name = part.uid, part.state
    if is_known:
        entry = checkpoint.changes_against(uid, name, rows)
    else:
        entry = checkpoint.keyed(
            uid,
            name,
            rows,
            key=columns.key_columns,
            entry=columns.entry_columns,
            kind=part.kind(columns),
            time_domain=part.time_domain,
            hash_scheme="flink-sql",
            max_parallelism=max_parallelism,
        )
    contents = entry.contents
    assert contents is not None, "all rows of the state were given"
    return ImportedStore(**vars(part), columns=columns, contents=contents)


def _stored(store: StateStore) -> tuple[RestoredCheckpoint, QueryRecord] | None:
    """Return the newest checkpoint of a store, and the query that it is of; None for no store."""
    try:
        restored = store.restore()
    except (StoreNotFoundError, CheckpointNotFoundError):
        return None
    return restored, QueryRecord.of(restored)


def _refuse_other(
    before: QueryRecord, location: CheckpointLocation, batch: int, store: StateStore
) -> None:
    """Refuse a store whose newest checkpoint is of another query, or of a later micro-batch."""
    if before.query_id != location.query_id:
        raise InvalidArgumentError(
            f"{store.url} has the state of query {before.query_id}, and {location.url} is of query "
            f"{location.query_id}: import it into a store of its own"
        )
    if before.batch > batch:
        raise InvalidArgumentError(
            f"{store.url} has micro-batch {before.batch} of the query, which is later than "
            f"{batch}: import an earlier one into a store of its own"
        )


def _refuse_other_plan(
    before: QueryRecord, sources: tuple[_Source, ...], location: CheckpointLocation
) -> None:
    """Refuse operators, or columns, that are not those of the micro-batch before."""
    old = {(one.uid, one.state): one.columns for one in before.stores}
    new = {(one.part.uid, one.part.state): one.columns for one in sources}
    for uid, name in sorted(old.keys() ^ new.keys()):
        raise SchemaMismatchError(
            f"the query of {location.url} has {'no longer' if (uid, name) in old else 'now'} the "
            f"state {name!r} of operator {uid}: its plan changed. Import it into a store of its own"
        )
    for (uid, name), columns in new.items():
        if columns != old[uid, name]:
            raise SchemaMismatchError(
                f"the state {name!r} of operator {uid} of {location.url} has other columns than in "
                "the checkpoint before: its plan changed. Import it into a store of its own"
            )
