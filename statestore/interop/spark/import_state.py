"""``statestore spark import``: import a query's state as a checkpoint of a store."""

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
from statestore.interop.spark.import_record import ImportedStore, QueryRecord
from statestore.interop.spark.location import BatchPlan, CheckpointLocation
from statestore.interop.spark.operator_reader import Operator
from statestore.interop.spark.parts import (
    Columns,
    StatePart,
    find_operator_kind,
    find_problem,
    list_parts,
    map_columns,
    read_stored_rows,
    refuse_misplaced_rows,
)
from statestore.interop.spark.query_settings import STRICT
from statestore.interop.spark.state_damage import refuse_damaged_states
from statestore.interop.spark.state_reader import observe_state, prepared_session
from statestore.keys.groups import MAX_PARALLELISM
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.writer import CheckpointWriter
from statestore.spark.compat import COMMAND_INSTEAD, refuse_connect
from statestore.storage import open_storage
from statestore.store import StateStore


@dataclass(frozen=True)
class ImportedCheckpoint:
    """A checkpoint that was imported from a query's state.

    ``found`` is true if the store already had this micro-batch, with the same rows and logs.
    ``is_incremental`` is true if only the changes since the previous one were written.
    ``moved_from`` is the location at which the query ran, if its files show that the location was
    moved or copied.
    """

    location: str
    store: str
    checkpoint_id: int
    found: bool
    is_incremental: bool
    record: QueryRecord
    moved_from: str | None


@dataclass(frozen=True)
class _Source:
    part: StatePart
    columns: Columns
    rows: DataFrame


def import_checkpoint(
    spark: SparkSession,
    location: str,
    store: StateStore,
    *,
    batch: int | None = None,
    max_parallelism: int | None = None,
    operator_names: Mapping[int, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[float, float, str], None] | None = None,
) -> ImportedCheckpoint:
    """Import the state of a query's micro-batch as the next checkpoint of a store.

    Each state store of the query becomes a keyed state. Its key is Spark's shuffle key, hashed in a
    way that allows nulls. The store of a transformWithState is kept as Spark's bytes. In addition,
    each of its variables becomes a state with readable columns. A later micro-batch of the same
    query becomes an incremental checkpoint, which stores only the changes. The location is only
    read; the query may be running.

    Args:
        spark: a session of Spark Classic.
        location: the query's checkpoint location, a path or URL.
        store: a new store, or a store with an earlier micro-batch of this query.
        batch: a committed micro-batch; by default the newest.
        max_parallelism: the number of key groups of all states. It cannot be changed. By default it
            is that of the store, or for a new store Flink's default for the number of partitions.
        operator_names: the names of operators by number, such as ``{0: "dedupe"}``. They are needed
            for a location of Spark 3 if the columns of an operator do not tell its name.
        storage_options: options for fsspec, to access the location.
        on_progress: a callback that receives the number of finished states, the total, and the next
            state.

    Returns:
        The imported states, and the checkpoint.

    Raises:
        InvalidArgumentError: if the location is not a query's checkpoint location, the micro-batch
            does not exist, or the store has something else. Also if the name of an operator is
            missing or wrong.
        UnsupportedTypeError: for an unsupported operator or state format, and for the rows of a
            transformWithState that are in other partitions than their keys imply.
        DamagedFileError or MissingFileError: if a file of the query is damaged or missing.
        SchemaMismatchError: if the query's state has other columns than the stored state.
        StateStoreError: as ``store.snapshot`` and ``checkpoint.write_keyed``.
    """
    refuse_connect(spark, "reading the state of a query", COMMAND_INSTEAD)
    query_location = CheckpointLocation(
        open_storage(location, storage_options), operator_names or {}
    )
    number = query_location.batch(batch)
    plan = query_location.plan(number)
    all_operators = query_location.operators(number)
    moved_from = next((known.moved_from for known in all_operators if known.moved_from), None)
    refuse_unsupported(query_location, all_operators, plan)
    stored = _load_newest(store)
    if stored is not None:
        restored, before = stored
        _refuse_other_query(before, query_location, number, store)
        max_parallelism = _stored_max_parallelism(restored, max_parallelism, store)
    with prepared_session(spark, query_location, number, all_operators) as url:
        refuse_damaged_states(spark, query_location, all_operators, number)
        sources = tuple(_read_sources(spark, url, number, all_operators))
        if plan.settings[STRICT] == "true":
            _refuse_other_keys(sources)
        logs = tuple(query_location.files(number))
        if stored is not None:
            restored, before = stored
            _refuse_changed_plan(before, sources, query_location)
            if before.batch == number and _is_same(before, sources, logs):
                newest = restored.checkpoint_id
                return ImportedCheckpoint(
                    query_location.url, store.url, newest, True, False, before, moved_from
                )
        partitions = max(source.part.partitions for source in sources)
        parallelism = min(partitions, max_parallelism or MAX_PARALLELISM)
        with store.snapshot(parallelism=parallelism) as checkpoint:
            checkpoint.collected.record(command="spark import")
            stores = []
            for done, source in enumerate(sources):
                if on_progress is not None:
                    on_progress(done, len(sources), f"{source.part.state} of {source.part.uid}")
                stores.append(_write_state(checkpoint, source, max_parallelism, stored is not None))
            record = QueryRecord(
                query_location.query_id,
                number,
                query_location.url,
                plan.ends,
                tuple(stores),
                logs,
                plan.names,
            )
            record.write(checkpoint, parallelism)
    return ImportedCheckpoint(
        query_location.url, store.url, checkpoint.id, False, stored is not None, record, moved_from
    )


def refuse_unsupported(
    location: CheckpointLocation, operators: tuple[Operator, ...], plan: BatchPlan
) -> None:
    """Raise UnsupportedTypeError for an operator or a state format that cannot be imported."""
    for operator in operators:
        problem = find_problem(operator, plan.settings)
        if problem is not None:
            raise UnsupportedTypeError(f"operator {operator.number} of {location.url}: {problem}")


def _read_sources(
    spark: SparkSession, url: str, batch: int, operators: tuple[Operator, ...]
) -> Iterator[_Source]:
    """Yield the parts to import, without variables that have no columns (the store has them)."""
    for part in (part for operator in operators for part in list_parts(operator)):
        rows = read_stored_rows(spark, url, batch, part)
        columns = map_columns(rows, part)
        if columns.is_typed or not part.is_view:
            yield _Source(part, columns, rows)


def _refuse_other_keys(sources: tuple[_Source, ...]) -> None:
    """Raise UnsupportedTypeError if a processor's keys are not the keys of its rows.

    Only a processor in Python has keys that were converted to Python and back.
    """
    for source in sources:
        operator_kind = find_operator_kind(source.part.operator_name)
        assert operator_kind is not None, "unsupported operators are refused before"
        if operator_kind.has_variables and not source.part.is_view:
            refuse_misplaced_rows(source.rows, source.columns, source.part)


def _write_state(
    checkpoint: CheckpointWriter, source: _Source, max_parallelism: int | None, is_known: bool
) -> ImportedStore:
    """Write the rows of a part as a state; if the state is known, write only the changes."""
    part, columns = source.part, source.columns
    rows = columns.to_state(source.rows)
    uid, name = part.uid, part.state
    if is_known:
        entry = checkpoint.write_changes_against(uid, name, rows)
    else:
        entry = checkpoint.write_keyed(
            uid,
            name,
            rows,
            key=columns.key_columns,
            max_parallelism=max_parallelism,
            entry=columns.entry_columns,
            kind=part.kind(columns),
            time_domain=part.time_domain,
            hash_scheme="flink-sql",
        )
    contents = entry.contents
    assert contents is not None, "all rows of the state must be passed"
    return ImportedStore(**vars(part), columns=columns, contents=contents)


def _load_newest(store: StateStore) -> tuple[RestoredCheckpoint, QueryRecord] | None:
    """Return a store's newest checkpoint and its query record; None if it does not exist."""
    try:
        restored = store.restore()
    except (StoreNotFoundError, CheckpointNotFoundError):
        return None
    return restored, QueryRecord.from_checkpoint(restored)


def _refuse_other_query(
    before: QueryRecord, location: CheckpointLocation, batch: int, store: StateStore
) -> None:
    """Refuse a store whose newest checkpoint is from another query or a later micro-batch."""
    if before.query_id != location.query_id:
        raise InvalidArgumentError(
            f"{store.url} has the state of query {before.query_id}, but {location.url} "
            f"belongs to query {location.query_id}; import it into a separate store"
        )
    if before.batch > batch:
        raise InvalidArgumentError(
            f"{store.url} already has micro-batch {before.batch} of the query, which is later "
            f"than {batch}; import an earlier micro-batch into a separate store"
        )


def _stored_max_parallelism(
    restored: RestoredCheckpoint, wanted: int | None, store: StateStore
) -> int:
    """Return the number of key groups of a store; InvalidArgumentError if another is wanted."""
    known = min(entry.state.max_parallelism for entry in restored.manifest.keyed)
    if wanted not in (None, known):
        raise InvalidArgumentError(
            f"{store.url} has {known} key groups, which a later import cannot change to {wanted}: "
            "omit the number, or import into a separate store"
        )
    return known


def _is_same(
    before: QueryRecord, sources: tuple[_Source, ...], logs: tuple[tuple[str, bytes], ...]
) -> bool:
    """Return whether a micro-batch has the rows and the logs of the one that was imported.

    Its number alone does not tell: a location can be written again with other rows or offsets. A
    micro-batch that was planned since adds a log.
    """
    contents = {(store.uid, store.state): store.contents for store in before.stores}
    return dict(before.logs).items() <= dict(logs).items() and all(
        contents[source.part.uid, source.part.state]
        == observe_state(source.rows, source.columns, source.part.partitions).contents
        for source in sources
    )


def _refuse_changed_plan(
    before: QueryRecord, sources: tuple[_Source, ...], location: CheckpointLocation
) -> None:
    """Refuse operators or columns that differ from the previous micro-batch."""
    old = {(store.uid, store.state): store.columns for store in before.stores}
    new = {(source.part.uid, source.part.state): source.columns for source in sources}
    for uid, name in sorted(old.keys() ^ new.keys()):
        raise SchemaMismatchError(
            f"the query of {location.url} "
            f"{'no longer has' if (uid, name) in old else 'now has'} the state {name!r} of "
            f"operator {uid}, so its plan has changed. Import it into a separate store"
        )
    for (uid, name), columns in new.items():
        if columns != old[uid, name]:
            raise SchemaMismatchError(
                f"the state {name!r} of operator {uid} of {location.url} has other columns "
                "than in the previous checkpoint, so the plan of the query has changed. "
                "Import it into a separate store"
            )
