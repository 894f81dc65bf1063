"""``statestore spark export``: write a checkpoint location from which Spark continues.

The micro-batch keeps its number, and the query keeps its id. So a micro-batch that was planned but
not finished runs again with the same data, and a sink that tracks micro-batch numbers recognizes
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from statestore.errors import (
    CorruptionError,
    InvalidArgumentError,
    StateNotFoundError,
    StorageError,
)
from statestore.format.left_out import LeftOutState, left_out_text, refuse_left_out
from statestore.format.manifest import Manifest
from statestore.interop.spark_checkpoints.columns import KEY_BYTES, VALUE_BYTES
from statestore.interop.spark_checkpoints.hand_over import with_progress
from statestore.interop.spark_checkpoints.import_record import QUERY, ImportedStore, QueryRecord
from statestore.interop.spark_checkpoints.location import (
    FORMAT_VERSION,
    PROVIDER,
    PROVIDERS,
    SHUFFLE_PARTITIONS,
    CheckpointLocation,
    provider_of,
    state_folder,
)
from statestore.interop.spark_checkpoints.parts import reason_of, stored_rows
from statestore.interop.spark_checkpoints.rewriter import check_spark, rewrite
from statestore.interop.spark_checkpoints.state_files import CODEC, Provider, write_state
from statestore.interop.spark_checkpoints.state_reader import (
    ObservedState,
    reading,
    seen_in_spark,
    session_with,
)
from statestore.interop.spark_checkpoints.stores import StoreStates, is_rewritten, stores_of
from statestore.interop.spark_checkpoints.target import Target
from statestore.spark.compat import refuse_connect
from statestore.spark.session import hand_on
from statestore.storage import open_storage
from statestore.store import StateStore
from statestore.streaming.timer_index import INDEX

__all__ = ["ExportedLocation", "ExportedStore", "export_checkpoint"]

_COMPRESSION = "spark.sql.streaming.stateStore.compression.codec"
_GREATEST = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class ExportedStore:
    """One of Spark's stores: its rows by partition, and the bytes of their keys and values."""

    operator: str
    store: str
    rows: tuple[int, ...]
    size_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ExportedLocation:
    """The written location (with ``dry_run``, the location that would be written).

    ``left_out`` is state of the checkpoint, or of the checkpoint's source, that the location does
    not have.
    """

    store: str
    checkpoint_id: int
    location: str
    query_id: str
    batch: int
    partitions: int
    provider: str
    stores: tuple[ExportedStore, ...]
    dry_run: bool
    left_out: tuple[LeftOutState, ...] = ()


def export_checkpoint(
    spark: SparkSession,
    store: StateStore,
    location: str,
    *,
    partitions: int,
    provider: Provider | None = None,
    checkpoint: int | str = "latest",
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
        spark: a session of Spark Classic.
        store: the store; it was opened with the same session.
        location: a new path or URL.
        partitions: the new ``spark.sql.shuffle.partitions`` of the query.
        provider: ``hdfs`` or ``rocksdb``; by default the provider of the imported query.
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
        InvalidArgumentError: if the checkpoint was not imported, or ``partitions`` or ``provider``
            is invalid. Also if the location is not empty, or is inside of another location or a
            store. Also if ``progress`` does not belong to the state.
        LeftOutStateError: for such missing state that ``leave_out`` does not name.
        StateNotFoundError: for a name in ``leave_out`` that matches no such state.
        CommitConflictError: if another export to the location is running or did not finish.
        MissingDependencyError: if the state needs Spark's rewriter, and this Spark has none.
        UnsupportedTypeError: for rows that are kept as bytes and differ from the imported rows, and
            for changed variables of a store that cannot be rebuilt.
        CorruptionError: if Spark reads back something else; the location stays unusable.
        StateStoreError: as ``store.restore``, or if the location cannot be written.
    """
    if type(partitions) is not int or not 1 <= partitions <= _GREATEST:
        raise InvalidArgumentError(
            f"a query must have 1 to {_GREATEST} shuffle partitions, not {partitions!r}"
        )
    if provider is not None and provider not in PROVIDERS:
        raise InvalidArgumentError(f"a provider must be {' or '.join(PROVIDERS)}, not {provider!r}")
    refuse_connect(spark, "writing the state of a query")
    restored = store.restore(checkpoint=checkpoint)
    record = QueryRecord.of(restored)
    record = with_progress(record, progress, restored.checkpoint_id, storage_options)
    left_out = _left_out(restored.manifest, record, leave_out)
    chosen = provider or ("rocksdb" if provider_of(record.settings) == "rocksdb" else "hdfs")
    states = stores_of(restored, record, chosen)
    if is_rewritten(record, chosen):
        check_spark(spark)
    target = Target(open_storage(location, storage_options), record.batch)
    target.refuse_used((store.url, record.location))
    told = _Told(on_progress, len(states))
    if dry_run:
        stores = tuple(_planned(state, partitions, told) for state in states)
    else:
        stores = _write(spark, target, record, states, (partitions, chosen), told)
    return ExportedLocation(
        store=store.url,
        checkpoint_id=restored.checkpoint_id,
        location=target.storage.url,
        query_id=record.query_id,
        batch=record.batch,
        partitions=partitions,
        provider=chosen,
        stores=stores,
        dry_run=dry_run,
        left_out=left_out,
    )


def _left_out(
    manifest: Manifest, record: QueryRecord, named: Collection[str]
) -> tuple[LeftOutState, ...]:
    """Return the state that the location will not have, if the user named all of it.

    Raises the errors of :func:`export_checkpoint`.
    """
    own = {(store.uid, store.state) for store in record.stores}
    others = (
        LeftOutState(
            operator=entry.state.uid,
            state=entry.state.name,
            reason="the state does not belong to the Spark query",
            command="spark export",
        )
        for entry in manifest.entries
        if (entry.state.uid, entry.state.name) not in own
        and entry.state.uid != QUERY
        and entry.state.name != INDEX
    )
    missing = (*manifest.left_out, *others)
    for name in named:
        if not any(one.is_named(name) for one in missing):
            raise StateNotFoundError(
                f"{name!r} cannot be left out because it is not missing; missing is "
                f"{left_out_text(missing) or 'nothing'}"
            )
    refuse_left_out(missing, named, manifest.checkpoint_id, "a query on the new location")
    return missing


def _write(
    spark: SparkSession,
    target: Target,
    record: QueryRecord,
    states: tuple[StoreStates, ...],
    shape: tuple[int, Provider],
    told: _Told,
) -> tuple[ExportedStore, ...]:
    """Write and verify the location, and then unblock it for Spark; return its contents."""
    partitions, provider = shape
    logs, batch = dict(record.logs), record.batch
    written, ids = CheckpointLocation(target.storage), None
    target.begin()
    hand_on(spark, target.storage)
    for name, content in _for_spark(logs, shape, written.spark_url).items():
        target.put(name, content)
    frames = {(made.one.operator, made.one.store): made.rows(partitions) for made in states}
    if is_rewritten(record, provider):
        told("all stores, with Spark's rewriter")
        with session_with(spark, {FORMAT_VERSION: record.commit_version}):
            ids = rewrite(spark, location=written.spark_url, batch=batch, frames=frames)
    else:
        for (operator, name), frame in frames.items():
            told(f"{name} of operator {operator}")
            folder = state_folder(operator, name)
            try:
                write_state(target.storage, folder, batch + 1, frame, provider)
            except (PySparkException, Py4JJavaError) as error:
                raise StorageError(
                    f"Spark cannot write store {name!r} of operator {operator} to {written.url}: "
                    f"{reason_of(error)}"
                ) from error
    target.put(f"commits/{batch}", _commit(logs, batch, ids))
    stores = _proved(spark, written, states, batch, partitions)
    target.finish()
    return stores


class _Told:
    """Reports the progress in stores."""

    def __init__(self, tell: Callable[[float, float, str], None] | None, total: int) -> None:
        self._tell, self._total, self._done = tell, total, 0

    def __call__(self, title: str) -> None:
        if self._tell is not None:
            self._tell(self._done, self._total, title)
        self._done += 1


def _planned(store: StoreStates, partitions: int, told: _Told) -> ExportedStore:
    one = store.one
    told(f"{one.store} of operator {one.operator}")
    rows = store.rows(partitions)
    size = F.length(KEY_BYTES) + F.length(VALUE_BYTES)
    found = (
        rows.groupBy(F.spark_partition_id().alias("partition"))
        .agg(F.count("*").alias("rows"), F.sum(size).alias("size"))
        .collect()
    )
    numbers = range(one.columns.partitions(partitions))
    counted = {row.partition: (row.rows, row.size) for row in found}
    return ExportedStore(
        operator=one.uid,
        store=one.store,
        rows=tuple(counted.get(at, (0, 0))[0] for at in numbers),
        size_bytes=tuple(counted.get(at, (0, 0))[1] for at in numbers),
    )


def _offsets(content: bytes) -> tuple[list[bytes], dict[str, Any]]:
    lines = content.split(b"\n")
    return lines, json.loads(lines[1])


def _for_spark(
    logs: Mapping[str, bytes], shape: tuple[int, Provider], location: str
) -> dict[str, bytes]:
    """Return the files of the location, except state files and commits."""
    partitions, provider = shape
    found = {}
    for name, content in logs.items():
        if name.startswith("offsets/"):
            lines, settings = _offsets(content)
            conf = settings["conf"]
            conf |= {SHUFFLE_PARTITIONS: str(partitions), PROVIDER: PROVIDERS[provider]}
            conf[_COMPRESSION] = CODEC
            lines[1] = json.dumps(settings, separators=(",", ":")).encode()
            found[name] = b"\n".join(lines)
        elif name.startswith("state/") and name.split("/")[2] == "_metadata":
            found[name] = _operator_for_spark(name, content, partitions, location)
        elif not name.startswith("commits/"):
            found[name] = content
    return found


def _operator_for_spark(name: str, content: bytes, partitions: int, location: str) -> bytes:
    """Return the metadata of an operator; its schema files are named by absolute paths."""
    version, document = content.split(b"\n", 1)
    operator = json.loads(document)
    for one in operator["stateStoreInfo"]:
        one["numPartitions"] = partitions
        if one.get("stateSchemaFilePaths"):
            folder = f"{location}/{name.partition('/_metadata/')[0]}/_stateSchema/"
            paths = (path.rpartition("/_stateSchema/")[2] for path in one["stateSchemaFilePaths"])
            one["stateSchemaFilePaths"] = [folder + path for path in paths]
    return version + b"\n" + json.dumps(operator, separators=(",", ":")).encode()


def _commit(
    logs: Mapping[str, bytes], batch: int, ids: Mapping[int, list[list[str]]] | None
) -> bytes:
    """Return the commit log entry of the micro-batch, with the state ids if there are any."""
    _, *lines = logs[f"commits/{batch}"].split(b"\n")
    document = json.loads(lines[0]) if lines and lines[0] else {}
    document.pop("stateUniqueIds", None)
    if ids is not None:
        document["stateUniqueIds"] = {str(operator): of_it for operator, of_it in ids.items()}
    return (b"v1\n" if ids is None else b"v2\n") + json.dumps(
        document, separators=(",", ":")
    ).encode()


def _proved(
    spark: SparkSession,
    written: CheckpointLocation,
    stores: tuple[StoreStates, ...],
    batch: int,
    partitions: int,
) -> tuple[ExportedStore, ...]:
    """Return rows and bytes by partition; CorruptionError if they differ from a state."""
    found = []
    with reading(spark, written, batch):
        for store in stores:
            one = store.one
            seen = _seen(spark, written, batch, one, partitions)
            for part, state in store.proofs:
                again = seen if part is one else _seen(spark, written, batch, part, partitions)
                if again.contents != state.contents():
                    raise CorruptionError(
                        f"verification of {_where(written, part)} failed: Spark read "
                        f"{again.contents.rows} rows, expected {state.contents().rows} (or "
                        "values differ); the exported location was left unusable"
                    )
            folder = state_folder(one.operator, one.store)
            numbers = range(one.columns.partitions(partitions))
            sizes = tuple(written.size_of(folder.format(at)) for at in numbers)
            counts = tuple(seen.rows.get(at, 0) for at in numbers)
            found.append(
                ExportedStore(operator=one.uid, store=one.store, rows=counts, size_bytes=sizes)
            )
    return tuple(found)


def _seen(
    spark: SparkSession,
    written: CheckpointLocation,
    batch: int,
    part: ImportedStore,
    partitions: int,
) -> ObservedState:
    """Return the rows that Spark reads back; CorruptionError for rows in wrong partitions."""
    rows = stored_rows(spark, written.spark_url, batch, part)
    seen = seen_in_spark(rows, part.columns, partitions)
    if seen.misplaced:
        raise CorruptionError(
            f"verification of {_where(written, part)} failed: {seen.misplaced} rows are in "
            "partitions where Spark does not look for them; the exported location was left "
            "unusable"
        )
    return seen


def _where(written: CheckpointLocation, part: ImportedStore) -> str:
    return f"state {part.state!r} of operator {part.uid} in {written.url}"
