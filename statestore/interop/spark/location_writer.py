"""Write a checkpoint location for Spark, prove it, and unblock it.

The rows of each store come from a checkpoint of a store, or from another location. Spark's own
reader reads them back, and their number, digest and partitions are compared, because Spark does not
notice a row in a wrong partition.

Until the location is complete, ``offsets`` contains a file that Spark refuses. It is written first,
and its removal is the commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore.catalog.catalog import refuse_inside_store
from statestore.errors import (
    CommitConflictError,
    CorruptionError,
    InvalidArgumentError,
    StorageError,
)
from statestore.interop.spark import query_settings
from statestore.interop.spark.import_record import ImportedStore, QueryRecord
from statestore.interop.spark.location import (
    FORMAT_VERSION,
    PROVIDER,
    PROVIDERS,
    UNFINISHED,
    CheckpointLocation,
    OffsetLogEntry,
    provider_name,
    state_folder,
)
from statestore.interop.spark.operator_reader import (
    SHUFFLE_PARTITIONS,
    rewrite_description,
    schema_folder,
)
from statestore.interop.spark.parts import StatePart, read_changes, read_stored_rows
from statestore.interop.spark.rewriter import rewrite
from statestore.interop.spark.state_files import CODEC, Provider, file_names, write_state
from statestore.interop.spark.state_reader import (
    Observe,
    ObservedState,
    observe_state,
    prepared_session,
)
from statestore.interop.spark.stores import StoreRows, needs_rewriter
from statestore.spark.bucket_access import configure_storage_access
from statestore.spark.compat import Py4JJavaError, keep_empty_partitions
from statestore.spark.error_cause import describe_cause
from statestore.spark.session_settings import session_settings
from statestore.spark.structs import KEY_BYTES, VALUE_BYTES
from statestore.storage import Storage, put_once

_NOTE = UNFINISHED + (
    b": an export of statestore is being written here, or "
    b"did not finish. If none is running, delete the folder and export again.\n"
)


@dataclass(frozen=True)
class Target:
    """The location to which a micro-batch is exported."""

    storage: Storage
    batch: int

    def refuse_used(self, others: Iterable[str]) -> None:
        """Raise InvalidArgumentError if it is not empty, or is inside of a store or of ``others``.

        Raises CommitConflictError if another export to it is running or did not finish.
        """
        if not self.storage.is_empty():
            if CheckpointLocation(self.storage).is_unfinished:
                raise self._other_export_error()
            raise InvalidArgumentError(
                f"{self.storage.url} is not empty; choose a new folder for the exported query state"
            )
        for other in filter(None, others):
            if self.storage.url.startswith(f"{other.rstrip('/')}/"):
                raise InvalidArgumentError(
                    f"{self.storage.url} is inside {other}; choose another folder for the "
                    "exported query state"
                )
        refuse_inside_store(self.storage, "a query's state")

    def begin(self) -> None:
        """Block the location for Spark, and for other exports.

        Raises CommitConflictError if another export is writing to the location, or has finished
        since the location was found empty.
        """
        if not self.storage.put_if_absent(self._marker, _NOTE):
            raise self._other_export_error()
        if self.storage.list("") != (self._marker,):
            self.storage.delete(self._marker)
            raise CommitConflictError(
                f"{self.storage.url} was empty, but another process has written to it since; "
                "choose another folder"
            )

    def put(self, name: str, content: bytes) -> None:
        """Write a file; CommitConflictError if another export has already written it."""
        if not put_once(self.storage, name, content):
            raise CommitConflictError(
                f"another process wrote {self.storage.url}/{name} during the export; choose "
                "another folder"
            )

    def finish(self) -> None:
        """Sync all files to disk, and then unblock the location for Spark, durably.

        Hidden files are synced, too: on a local disk, Spark compares a file with Hadoop's checksums
        in one.
        """
        self.storage.sync(item.name for item in self.storage.listed(""))
        self.storage.delete(self._marker)
        self.storage.sync(["offsets/"])

    @property
    def _marker(self) -> str:
        # It must be greater than all planned batches, which are at most batch + 1. It must not be
        # greater than necessary, because Spark counts the missing numbers before it.
        return f"offsets/{self.batch + 2}"

    def _other_export_error(self) -> CommitConflictError:
        return CommitConflictError(
            f"another export to {self.storage.url} is running or did not finish. If none is "
            "running, delete the folder and export again"
        )


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


def write_location(
    spark: SparkSession,
    target: Target,
    record: QueryRecord,
    states: Sequence[StoreRows],
    shape: tuple[int, Provider],
    reporter: ProgressReporter,
    *,
    dry_run: bool,
) -> tuple[ExportedStore, ...]:
    """Write and verify the location, and then unblock it for Spark; return its contents.

    With ``dry_run``, return the rows that would be written, and the bytes of their keys and values.
    """
    partitions, provider = shape
    if dry_run:
        return tuple(_plan_store(state, partitions, reporter) for state in states)
    logs, batch = dict(record.logs), record.batch
    written, ids = CheckpointLocation(target.storage), None
    names: tuple[str, ...] = ()
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
            names = file_names(batch + 1, provider)
            _write_files(target.storage, record, frames, provider, reporter)
    target.put(f"commits/{batch}", _build_commit(logs, batch, ids))
    stores = _verify_stores(spark, _WrittenState(written, batch, partitions, names), states)
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


def _plan_store(store: StoreRows, partitions: int, reporter: ProgressReporter) -> ExportedStore:
    """Return the rows that would be written for a store, and the bytes of their keys and values."""
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


def _build_files(
    logs: Mapping[str, bytes], shape: tuple[int, Provider], location: str
) -> dict[str, bytes]:
    """Return the files of the location, except state files and commits."""
    partitions, provider = shape
    files = {}
    for name, content in logs.items():
        if name.startswith("offsets/"):
            entry = OffsetLogEntry.parse(content)
            changes = {SHUFFLE_PARTITIONS: str(partitions), PROVIDER: PROVIDERS[provider]}
            # All rows are in the partitions of their keys now, whatever the query did before.
            changes |= {query_settings.CODEC: CODEC, query_settings.STRICT: "true"}
            files[name] = entry.with_conf(entry.conf | changes).encode()
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


@dataclass(frozen=True)
class _WrittenState:
    """A micro-batch in a location whose state was written, and is verified.

    ``names`` are the files of each partition; it is empty if Spark's rewriter wrote them.
    """

    location: CheckpointLocation
    batch: int
    partitions: int
    names: tuple[str, ...]

    @property
    def has_changelogs(self) -> bool:
        """Whether the rows of each store are in one changelog per partition."""
        return any(name.endswith(".changelog") for name in self.names)

    def error(self, part: StatePart, problem: str) -> CorruptionError:
        """Return the error for a part that was not written correctly."""
        return CorruptionError(
            f"verification of state {part.state!r} of operator {part.uid} in {self.location.url} "
            f"failed: {problem}; the exported location was left unusable"
        )


def _verify_stores(
    spark: SparkSession, written: _WrittenState, stores: Sequence[StoreRows]
) -> tuple[ExportedStore, ...]:
    """Return rows and bytes by partition; CorruptionError if they differ from a state."""
    exported = []
    with prepared_session(spark, written.location, written.batch, ()):
        for store in stores:
            imported = store.imported
            observed = _observe_part(spark, written, imported, store.observe)
            for part, expected in store.proofs:
                observed_part = (
                    observed if part is imported else _observe_part(spark, written, part)
                )
                if observed_part.contents != expected:
                    raise written.error(
                        part,
                        f"Spark read {observed_part.contents.rows} rows, expected "
                        f"{expected.rows} (or values differ)",
                    )
            numbers = range(imported.columns.partitions(written.partitions))
            counts = tuple(observed.rows.get(number, 0) for number in numbers)
            sizes = _file_sizes(written, imported, len(numbers))
            exported.append(
                ExportedStore(
                    operator=imported.uid, store=imported.store, rows=counts, size_bytes=sizes
                )
            )
    return tuple(exported)


def _observe_part(
    spark: SparkSession,
    written: _WrittenState,
    part: ImportedStore,
    observe: Observe = observe_state,
) -> ObservedState:
    """Return the rows that Spark reads back; CorruptionError for rows in wrong partitions.

    From changelogs, Spark reads the rows without loading them into a database. Each changelog
    applies to an empty database, so its rows are the state if none is missing and none is repeated,
    which the digest shows. Spark also loads one partition that has rows.
    """
    url, batch = written.location.spark_url, written.batch
    stored = read_stored_rows(spark, url, batch, part)
    if written.has_changelogs:
        observed = observe(read_changes(spark, url, batch, part), part.columns, written.partitions)
        if observed.contents.rows and not stored.head(1):
            raise written.error(part, "Spark loads no rows from changelogs that have rows")
    else:
        observed = observe(stored, part.columns, written.partitions)
    if observed.misplaced:
        raise written.error(
            part,
            f"{observed.misplaced} rows are in partitions where Spark does not look for them",
        )
    return observed


def _file_sizes(written: _WrittenState, part: ImportedStore, partitions: int) -> tuple[int, ...]:
    """Return the bytes of each partition; CorruptionError if one of its files is missing."""
    sizes = []
    folder = state_folder(part.operator, part.store)
    for number in range(partitions):
        files = written.location.file_sizes(folder.format(number))
        for name in written.names:
            if not files.get(name):
                raise written.error(part, f"{folder.format(number)}/{name} is missing or empty")
        sizes.append(sum(files.values()))
    return tuple(sizes)
