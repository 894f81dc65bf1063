"""Write a checkpoint location for Spark, prove it, and unblock it.

The rows of each store come from a checkpoint of a store, or from another location. Spark's own
reader reads them back, and their number, digest and partitions are compared, because Spark does not
notice a row in a wrong partition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore.errors import CorruptionError, InvalidArgumentError, StorageError
from statestore.format.rescale_proof import RowSet
from statestore.interop.spark_checkpoints import query_settings
from statestore.interop.spark_checkpoints.columns import KEY_BYTES, VALUE_BYTES
from statestore.interop.spark_checkpoints.descriptions import rewrite_description, schema_folder
from statestore.interop.spark_checkpoints.import_record import ImportedStore, QueryRecord
from statestore.interop.spark_checkpoints.location import (
    FORMAT_VERSION,
    PROVIDER,
    PROVIDERS,
    CheckpointLocation,
    provider_name,
    state_folder,
)
from statestore.interop.spark_checkpoints.observed_state import (
    Observe,
    ObservedState,
    observe_state,
)
from statestore.interop.spark_checkpoints.operator_reader import SHUFFLE_PARTITIONS
from statestore.interop.spark_checkpoints.parts import read_stored_rows
from statestore.interop.spark_checkpoints.rewriter import rewrite
from statestore.interop.spark_checkpoints.state_files import CODEC, Provider, write_state
from statestore.interop.spark_checkpoints.state_reader import prepared_session
from statestore.interop.spark_checkpoints.stores import needs_rewriter
from statestore.interop.spark_checkpoints.target import Target
from statestore.spark.bucket_access import configure_storage_access
from statestore.spark.compat import keep_empty_partitions
from statestore.spark.error_cause import describe_cause
from statestore.spark.session_settings import session_settings
from statestore.storage import Storage

__all__ = [
    "ExportedStore",
    "ProgressReporter",
    "StoreRows",
    "check_shape",
    "choose_provider",
    "plan_store",
    "write_location",
]

_MAX_PARTITIONS = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class ExportedStore:
    """One of Spark's stores: its rows by partition, and the bytes of their keys and values."""

    operator: str
    store: str
    rows: tuple[int, ...]
    size_bytes: tuple[int, ...]


def check_shape(partitions: int, provider: str | None) -> None:
    """Raise InvalidArgumentError for an invalid number of partitions, or an unknown provider."""
    if type(partitions) is not int or not 1 <= partitions <= _MAX_PARTITIONS:
        raise InvalidArgumentError(
            f"a query must have 1 to {_MAX_PARTITIONS} shuffle partitions, not {partitions!r}"
        )
    if provider is not None and provider not in PROVIDERS:
        raise InvalidArgumentError(f"a provider must be {' or '.join(PROVIDERS)}, not {provider!r}")


def choose_provider(record: QueryRecord, wanted: Provider | None) -> Provider:
    """Return the provider of the new location: the wanted one, or that of the query."""
    return wanted or ("rocksdb" if provider_name(record.settings) == "rocksdb" else "hdfs")


class StoreRows(Protocol):
    """One of Spark's stores, with the rows that are written."""

    @property
    def imported(self) -> ImportedStore:
        """The store."""

    def rows(self, partitions: int) -> DataFrame:
        """Return its rows as Spark's bytes, with one Spark partition per state partition."""

    @property
    def observe(self) -> Observe:
        """How the store is read back. Other parts of it, its views, have digests of columns."""

    @property
    def proofs(self) -> Sequence[tuple[ImportedStore, RowSet]]:
        """The parts that Spark must read back, with their rows."""


def write_location(
    spark: SparkSession,
    target: Target,
    record: QueryRecord,
    states: Sequence[StoreRows],
    shape: tuple[int, Provider],
    reporter: ProgressReporter,
) -> tuple[ExportedStore, ...]:
    """Write and verify the location, and then unblock it for Spark; return its contents."""
    partitions, provider = shape
    logs, batch = dict(record.logs), record.batch
    written, ids = CheckpointLocation(target.storage), None
    target.begin()
    configure_storage_access(spark, target.storage)
    for name, content in _build_files(logs, shape, written.spark_url).items():
        target.put(name, content)
    with keep_empty_partitions(spark):  # each partition has files, also without rows
        frames = {
            (store.imported.operator, store.imported.store): store.rows(partitions)
            for store in states
        }
        if needs_rewriter(record, provider):
            reporter("all stores, with Spark's rewriter")
            with session_settings(spark, {FORMAT_VERSION: record.commit_version}):
                ids = rewrite(spark, location=written.spark_url, batch=batch, frames=frames)
        else:
            _write_files(target.storage, record, frames, provider, reporter)
    target.put(f"commits/{batch}", _build_commit(logs, batch, ids))
    stores = _verify_stores(spark, written, states, batch, partitions)
    target.finish()
    return stores


class ProgressReporter:
    """Reports the progress in stores."""

    def __init__(self, callback: Callable[[float, float, str], None] | None, total: int) -> None:
        self._callback, self._total, self._done = callback, total, 0

    def __call__(self, title: str) -> None:
        """Report that a store begins."""
        if self._callback is not None:
            self._callback(self._done, self._total, title)
        self._done += 1


def plan_store(store: StoreRows, partitions: int, reporter: ProgressReporter) -> ExportedStore:
    """Return what would be written of a store, in bytes of keys and values."""
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


def _write_files(
    storage: Storage,
    record: QueryRecord,
    frames: Mapping[tuple[int, str], DataFrame],
    provider: Provider,
    reporter: ProgressReporter,
) -> None:
    """Write the files of each operator's stores without Spark's rewriter."""
    for (operator, name), frame in frames.items():
        reporter(f"{name} of operator {operator}")
        try:
            write_state(
                storage,
                state_folder(operator, name),
                record.batch + 1,
                frame,
                provider,
                has_checksums=record.settings[query_settings.ROW_CHECKSUM] == "true",
            )
        except (PySparkException, Py4JJavaError) as error:
            raise StorageError(
                f"Spark cannot write store {name!r} of operator {operator} to {storage.url}: "
                f"{describe_cause(error)}"
            ) from error


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
    stores: Sequence[StoreRows],
    batch: int,
    partitions: int,
) -> tuple[ExportedStore, ...]:
    """Return rows and bytes by partition; CorruptionError if they differ from a state."""
    exported = []
    with prepared_session(spark, written, batch, ()):
        for store in stores:
            imported = store.imported
            observed = _observe_part(spark, written, batch, imported, partitions, store.observe)
            for part, expected in store.proofs:
                observed_part = (
                    observed
                    if part is imported
                    else _observe_part(spark, written, batch, part, partitions)
                )
                if observed_part.contents != expected:
                    raise CorruptionError(
                        f"verification of {_describe_part(written, part)} failed: Spark read "
                        f"{observed_part.contents.rows} rows, expected {expected.rows} (or "
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
    observe: Observe = observe_state,
) -> ObservedState:
    """Return the rows that Spark reads back; CorruptionError for rows in wrong partitions."""
    rows = read_stored_rows(spark, written.spark_url, batch, part)
    observed = observe(rows, part.columns, partitions)
    if observed.misplaced:
        raise CorruptionError(
            f"verification of {_describe_part(written, part)} failed: {observed.misplaced} rows "
            "are in partitions where Spark does not look for them; the exported location was left "
            "unusable"
        )
    return observed


def _describe_part(written: CheckpointLocation, part: ImportedStore) -> str:
    return f"state {part.state!r} of operator {part.uid} in {written.url}"
