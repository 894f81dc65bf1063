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
from statestore.interop.spark_checkpoints import query_settings
from statestore.interop.spark_checkpoints.columns import KEY_BYTES, VALUE_BYTES
from statestore.interop.spark_checkpoints.descriptions import rewrite_description, schema_folder
from statestore.interop.spark_checkpoints.hand_over import with_progress
from statestore.interop.spark_checkpoints.import_record import QUERY, ImportedStore, QueryRecord
from statestore.interop.spark_checkpoints.location import (
    FORMAT_VERSION,
    PROVIDER,
    PROVIDERS,
    CheckpointLocation,
    provider_name,
    state_folder,
)
from statestore.interop.spark_checkpoints.operator_reader import SHUFFLE_PARTITIONS
from statestore.interop.spark_checkpoints.parts import read_stored_rows
from statestore.interop.spark_checkpoints.rewriter import check_spark, rewrite
from statestore.interop.spark_checkpoints.state_files import CODEC, Provider, write_state
from statestore.interop.spark_checkpoints.state_reader import (
    ObservedState,
    observe_state,
    prepared_session,
)
from statestore.interop.spark_checkpoints.stores import StoreStates, needs_rewriter, select_stores
from statestore.interop.spark_checkpoints.target import Target
from statestore.spark.bucket_access import configure_storage_access
from statestore.spark.compat import refuse_connect
from statestore.spark.error_cause import describe_cause
from statestore.spark.session_settings import session_settings
from statestore.storage import open_storage
from statestore.store import StateStore
from statestore.streaming.timer_index import INDEX

__all__ = ["ExportedLocation", "ExportedStore", "export_checkpoint"]

_MAX_PARTITIONS = 2**31 - 1


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
        store: the store; it was opened with a session of Spark Classic.
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
        InvalidArgumentError: if the store was opened without Spark, the checkpoint was not
            imported, or ``partitions`` or ``provider`` is invalid. Also if the location is not
            empty, or is inside of another location or a store. Also if ``progress`` does not belong
            to the state.
        LeftOutStateError: for such missing state that ``leave_out`` does not name.
        StateNotFoundError: for a name in ``leave_out`` that matches no such state.
        CommitConflictError: if another export to the location is running or did not finish.
        MissingDependencyError: if the state needs Spark's rewriter, and this Spark has none.
        UnsupportedTypeError: for rows that are kept as bytes and differ from the imported rows, and
            for changed variables of a store that cannot be rebuilt.
        CorruptionError: if Spark reads back something else; the location stays unusable.
        StateStoreError: as ``store.restore``, or if the location cannot be written.
    """
    if type(partitions) is not int or not 1 <= partitions <= _MAX_PARTITIONS:
        raise InvalidArgumentError(
            f"a query must have 1 to {_MAX_PARTITIONS} shuffle partitions, not {partitions!r}"
        )
    if provider is not None and provider not in PROVIDERS:
        raise InvalidArgumentError(f"a provider must be {' or '.join(PROVIDERS)}, not {provider!r}")
    spark = store.parts.spark
    if spark is None:
        raise InvalidArgumentError(
            "the export writes with Spark: open the store with StateStore.open(url, spark=spark)"
        )
    refuse_connect(spark, "writing the state of a query")
    restored = store.restore(checkpoint=checkpoint)
    record = QueryRecord.from_checkpoint(restored)
    record = with_progress(record, progress, restored.checkpoint_id, storage_options)
    left_out = _check_left_out(restored.manifest, record, leave_out)
    chosen = provider or ("rocksdb" if provider_name(record.settings) == "rocksdb" else "hdfs")
    states = select_stores(restored, record, chosen)
    if needs_rewriter(record, chosen):
        check_spark(spark)
    target = Target(open_storage(location, storage_options), record.batch)
    target.refuse_used((store.url, record.location))
    reporter = _ProgressReporter(on_progress, len(states))
    if dry_run:
        stores = tuple(_plan_store(state, partitions, reporter) for state in states)
    else:
        stores = _write_location(spark, target, record, states, (partitions, chosen), reporter)
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


def _write_location(
    spark: SparkSession,
    target: Target,
    record: QueryRecord,
    states: tuple[StoreStates, ...],
    shape: tuple[int, Provider],
    reporter: _ProgressReporter,
) -> tuple[ExportedStore, ...]:
    """Write and verify the location, and then unblock it for Spark; return its contents."""
    partitions, provider = shape
    logs, batch = dict(record.logs), record.batch
    written, ids = CheckpointLocation(target.storage), None
    target.begin()
    configure_storage_access(spark, target.storage)
    for name, content in _build_files(logs, shape, written.spark_url).items():
        target.put(name, content)
    frames = {
        (store.imported.operator, store.imported.store): store.rows(partitions) for store in states
    }
    if needs_rewriter(record, provider):
        reporter("all stores, with Spark's rewriter")
        with session_settings(spark, {FORMAT_VERSION: record.commit_version}):
            ids = rewrite(spark, location=written.spark_url, batch=batch, frames=frames)
    else:
        for (operator, name), frame in frames.items():
            reporter(f"{name} of operator {operator}")
            folder = state_folder(operator, name)
            try:
                write_state(
                    target.storage,
                    folder,
                    batch + 1,
                    frame,
                    provider,
                    has_checksums=record.settings[query_settings.ROW_CHECKSUM] == "true",
                )
            except (PySparkException, Py4JJavaError) as error:
                raise StorageError(
                    f"Spark cannot write store {name!r} of operator {operator} to {written.url}: "
                    f"{describe_cause(error)}"
                ) from error
    target.put(f"commits/{batch}", _build_commit(logs, batch, ids))
    stores = _verify_stores(spark, written, states, batch, partitions)
    target.finish()
    return stores


class _ProgressReporter:
    """Reports the progress in stores."""

    def __init__(self, callback: Callable[[float, float, str], None] | None, total: int) -> None:
        self._callback, self._total, self._done = callback, total, 0

    def __call__(self, title: str) -> None:
        if self._callback is not None:
            self._callback(self._done, self._total, title)
        self._done += 1


def _plan_store(store: StoreStates, partitions: int, reporter: _ProgressReporter) -> ExportedStore:
    imported = store.imported
    reporter(f"{imported.store} of operator {imported.operator}")
    rows = store.rows(partitions)
    size = F.length(KEY_BYTES) + F.length(VALUE_BYTES)
    partition_rows = (
        rows.groupBy(F.spark_partition_id().alias("partition"))
        .agg(F.count("*").alias("rows"), F.sum(size).alias("size"))
        .collect()
    )
    numbers = range(imported.columns.partitions(partitions))
    counted = {row.partition: (row.rows, row.size) for row in partition_rows}
    return ExportedStore(
        operator=imported.uid,
        store=imported.store,
        rows=tuple(counted.get(number, (0, 0))[0] for number in numbers),
        size_bytes=tuple(counted.get(number, (0, 0))[1] for number in numbers),
    )


def _split_offsets(content: bytes) -> tuple[list[bytes], dict[str, Any]]:
    lines = content.split(b"\n")
    return lines, json.loads(lines[1])


def _build_files(
    logs: Mapping[str, bytes], shape: tuple[int, Provider], location: str
) -> dict[str, bytes]:
    """Return the files of the location, except state files and commits."""
    partitions, provider = shape
    files = {}
    for name, content in logs.items():
        if name.startswith("offsets/"):
            lines, settings = _split_offsets(content)
            conf = settings["conf"]
            conf |= {SHUFFLE_PARTITIONS: str(partitions), PROVIDER: PROVIDERS[provider]}
            # All rows are in the partitions of their keys now, whatever the query did before.
            conf |= {query_settings.CODEC: CODEC, query_settings.STRICT: "true"}
            lines[1] = json.dumps(settings, separators=(",", ":")).encode()
            files[name] = b"\n".join(lines)
        elif name.startswith("state/") and name.split("/")[2] == "_metadata":
            folder = schema_folder(location, int(name.split("/")[1]))
            files[name] = rewrite_description(content, folder, partitions)
        elif not name.startswith("commits/"):
            files[name] = content
    return files


def _build_commit(
    logs: Mapping[str, bytes], batch: int, ids: Mapping[int, list[list[str]]] | None
) -> bytes:
    """Return the commit log entry of the micro-batch, with the state ids if there are any."""
    _, *lines = logs[f"commits/{batch}"].split(b"\n")
    document = json.loads(lines[0]) if lines and lines[0] else {}
    document.pop("stateUniqueIds", None)
    if ids is not None:
        document["stateUniqueIds"] = {
            str(operator): state_ids for operator, state_ids in ids.items()
        }
    return (b"v1\n" if ids is None else b"v2\n") + json.dumps(
        document, separators=(",", ":")
    ).encode()


def _verify_stores(
    spark: SparkSession,
    written: CheckpointLocation,
    stores: tuple[StoreStates, ...],
    batch: int,
    partitions: int,
) -> tuple[ExportedStore, ...]:
    """Return rows and bytes by partition; CorruptionError if they differ from a state."""
    exported = []
    with prepared_session(spark, written, batch, ()):
        for store in stores:
            imported = store.imported
            observed = _observe_part(spark, written, batch, imported, partitions)
            for part, state in store.proofs:
                observed_part = (
                    observed
                    if part is imported
                    else _observe_part(spark, written, batch, part, partitions)
                )
                if observed_part.contents != state.contents():
                    raise CorruptionError(
                        f"verification of {_describe_part(written, part)} failed: Spark read "
                        f"{observed_part.contents.rows} rows, expected {state.contents().rows} (or "
                        "values differ); the exported location was left unusable"
                    )
            folder = state_folder(imported.operator, imported.store)
            numbers = range(imported.columns.partitions(partitions))
            sizes = tuple(written.folder_size(folder.format(number)) for number in numbers)
            counts = tuple(observed.rows.get(number, 0) for number in numbers)
            exported.append(
                ExportedStore(
                    operator=imported.uid, store=imported.store, rows=counts, size_bytes=sizes
                )
            )
    return tuple(exported)


def _observe_part(
    spark: SparkSession,
    written: CheckpointLocation,
    batch: int,
    part: ImportedStore,
    partitions: int,
) -> ObservedState:
    """Return the rows that Spark reads back; CorruptionError for rows in wrong partitions."""
    rows = read_stored_rows(spark, written.spark_url, batch, part)
    observed = observe_state(rows, part.columns, partitions)
    if observed.misplaced:
        raise CorruptionError(
            f"verification of {_describe_part(written, part)} failed: {observed.misplaced} rows "
            "are in partitions where Spark does not look for them; the exported location was left "
            "unusable"
        )
    return observed


def _describe_part(written: CheckpointLocation, part: ImportedStore) -> str:
    return f"state {part.state!r} of operator {part.uid} in {written.url}"
