"""The front door: a :class:`StateStore` is a folder or bucket prefix that keeps checkpoints."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from statestore._version import __version__
from statestore.arguments import checked_methods
from statestore.catalog.catalog import DEFAULT_TABLE_FORMAT, Catalog
from statestore.errors import InvalidArgumentError, StoreNotFoundError
from statestore.files.engines import spark_module
from statestore.files.table import TABLE_FORMATS
from statestore.files.writer import ParquetOptions
from statestore.flink.graph import JobGraph
from statestore.format.layers import CompactionRule
from statestore.format.manifest import Manifest
from statestore.keys.ranges import RangeAssignment
from statestore.listeners import CheckpointListener
from statestore.restore import export as export_command
from statestore.restore import query as query_command
from statestore.restore import restored as restore_command
from statestore.restore import target as plan_command
from statestore.restore.export import ExportedCheckpoint, Progress
from statestore.restore.plan import RestorePlan, Weight
from statestore.restore.query import View
from statestore.restore.restored import RestoredCheckpoint
from statestore.restore.target import RestoreTarget
from statestore.snapshot import begin as begin_command
from statestore.snapshot.metrics import Measuring
from statestore.snapshot.writer import CheckpointWriter
from statestore.spark import data_source
from statestore.storage import DEFAULT_STREAMS, CachedStorage, Storage, open_storage
from statestore.storage.cached import DEFAULT_LIMIT_BYTES
from statestore.store_inspection import StoreInspection
from statestore.store_maintenance import StoreMaintenance
from statestore.store_parts import OpenStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["RestoreOptions", "StateStore"]

COMPACTION = CompactionRule()


class RestoreOptions(TypedDict, total=False):
    """How a checkpoint is restored, beside its parallelism; see :meth:`StateStore.restore`."""

    max_parallelism: int | None
    bytes_per_task: int | None
    graph: JobGraph | None
    allow_non_restored_state: bool
    balance: Weight | str | None
    verify: bool
    now_ms: int | None


@checked_methods
class StateStore:
    """The checkpoints of one job, or of several that share a store.

    What is asked beside a restore is in :attr:`inspect`, what is done to kept checkpoints in
    :attr:`maintenance`. A store is read without Spark; Spark is needed to
    take snapshots of Spark DataFrames, to write Delta tables, and to restore as a DataFrame.

    The first :meth:`snapshot` of an object claims the store for it. From then on any object that
    claimed before, in another process or in this one, commits no more: of a job that was taken for
    dead and its successor, only the successor writes. So keep one object for the life of a job; to
    take the store over on purpose, open it again.
    """

    def __init__(self, parts: OpenStore) -> None:
        """Use :meth:`open`."""
        self._parts = parts

    @classmethod
    def open(
        cls,
        url: str,
        *,
        spark: SparkSession | None = None,
        table_format: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        parquet: ParquetOptions | None = None,
        local_cache: str | Path | None = None,
        local_cache_bytes: int = DEFAULT_LIMIT_BYTES,
        parallel_streams: int = DEFAULT_STREAMS,
        compaction: CompactionRule | None = COMPACTION,
        listeners: Iterable[CheckpointListener] = (),
    ) -> StateStore:
        """Return the store at a path or ``s3://`` URL; nothing is read or created yet.

        With ``spark``, the session also learns ``spark.read.format("keyed_state")``. A new store
        keeps its tables as ``table_format``: ``delta``, the default, or ``parquet``, which needs no
        jar. It remembers that, so later it need not be given; :meth:`snapshot` refuses another one,
        and reading takes either. ``storage_options`` go to fsspec, and Spark's ``s3a`` learns them
        for this bucket; ``parquet`` says how data files are written.

        ``local_cache`` is a folder that every host has for itself. Data files that are written or
        restored there are kept, up to ``local_cache_bytes``, and restored from there as long as
        their SHA-256 is the manifest's; else from the store. From a bucket a process reads up to
        ``parallel_streams`` ranges at once, and holds 6 MB for each. ``compaction`` says when
        changes of incremental checkpoints are merged, in the background of a snapshot; None is
        never. ``listeners`` hear of every checkpoint, as those of :meth:`add_listener`.

        Raises InvalidArgumentError for a file system on which a commit cannot be atomic, for
        another table format, or for a cache that holds nothing.
        """
        storage = open_storage(url, storage_options, parallel_streams)
        data = CachedStorage(storage, local_cache, local_cache_bytes) if local_cache else None
        store = cls._over(storage, spark, table_format, parquet, data, compaction)
        for listener in listeners:
            store.add_listener(listener)
        return store

    @classmethod
    def over(
        cls,
        storage: Storage,
        *,
        spark: SparkSession | None = None,
        table_format: str | None = None,
        parquet: ParquetOptions | None = None,
        compaction: CompactionRule | None = COMPACTION,
    ) -> StateStore:
        """Return the store on a storage of your own, one that ``testing.suites.StorageSuite``
        holds.

        Else as :meth:`open`. InvalidArgumentError for another table format.
        """
        return cls._over(storage, spark, table_format, parquet, None, compaction)

    @classmethod
    def _over(
        cls,
        storage: Storage,
        spark: SparkSession | None,
        table_format: str | None,
        parquet: ParquetOptions | None,
        data: Storage | None,
        compaction: CompactionRule | None,
    ) -> StateStore:
        if table_format is not None and table_format not in TABLE_FORMATS:
            raise InvalidArgumentError(
                f"no table format {table_format!r}; there is {' and '.join(TABLE_FORMATS)}"
            )
        if spark is not None:
            data_source.register(spark)
            spark_module("delta").hand_on(spark, storage)
        return cls(
            OpenStore.on(
                storage,
                data=data,
                spark=spark,
                parquet=parquet or ParquetOptions(),
                compaction=compaction,
                table_format=table_format,
            )
        )

    @property
    def url(self) -> str:
        """Where the store lies, without credentials."""
        return self._parts.storage.url

    @property
    def parts(self) -> OpenStore:
        """What commands on the store are made of."""
        return self._parts

    @property
    def inspect(self) -> StoreInspection:
        """What checkpoints hold, and what tells them apart."""
        return StoreInspection(self._parts)

    @property
    def maintenance(self) -> StoreMaintenance:
        """What is done to kept checkpoints, and what keeps them."""
        return StoreMaintenance(self._parts)

    @property
    def table_format(self) -> str:
        """How the next snapshot keeps its tables, ``delta`` or ``parquet``: as the store remembers.

        Of a store that is not made yet, what it was opened with, else ``delta``. Raises
        InvalidArgumentError when it was opened with another one than it remembers, or StorageError.
        """
        try:
            return Catalog.open(self._parts.data, create=False).table_format(
                self._parts.table_format
            )
        except StoreNotFoundError:
            return self._parts.table_format or DEFAULT_TABLE_FORMAT

    def snapshot(
        self,
        *,
        parallelism: int | None = None,
        graph: JobGraph | None = None,
        checkpoint_id: int | None = None,
        now_ms: int | None = None,
        ranges: Mapping[str, RangeAssignment] | None = None,
    ) -> CheckpointWriter:
        """Begin the next checkpoint; use it as ``with store.snapshot(parallelism=4) as
        checkpoint``.

        The store is created when there is none. Leaving the block commits all states at once; an
        exception commits nothing. Raises ParallelismError, StorageError, InvalidArgumentError for
        another table format than the store has, or CommitConflictError when another writer has
        taken over (here, or when the block ends) or commits the same id first.

        With ``graph`` each operator has the parallelism, max parallelism and operator id that the
        job graph gives it, the graph is stored with the checkpoint, and state can be kept only for
        operators that it has: under the uid, or under the name of one without uid.

        ``now_ms`` is the clock of times to live, by default that of this machine as the snapshot
        begins: rows that are given without a time are used now, and compaction drops those that
        have expired.

        ``ranges`` says which operators own other ranges of key groups than Flink's even ones, as
        ``restored.ranges`` does after a balanced restore: the manifest keeps them, and a restore at
        the same parallelism goes by them.

        With ``checkpoint_id`` a retry writes nothing twice. If that checkpoint is visible, at
        whatever parallelism it was taken, the writer's calls return what is stored, its ``id`` is
        this one, and its ``already_committed`` is True. Otherwise it must be greater than every id
        before, at most 8,999,999,999, and may leave some out; else InvalidArgumentError. Spark
        runs a micro-batch again when it does not know whether the batch was done::

            def keep(frame: DataFrame, batch_id: int) -> None:  # batches count from 0, ids from 1
                with store.snapshot(parallelism=4, checkpoint_id=batch_id + 1) as checkpoint:
                    checkpoint.keyed("totals-by-user", "totals", totals_of(frame), key="user_id")

            stream.writeStream.foreachBatch(keep).start()
        """
        measuring = Measuring(self._parts.listeners)
        catalog, table = self._parts.to_write()
        return begin_command.begin(
            catalog,
            self._parts.fence,
            table,
            parallelism,
            graph=graph,
            checkpoint_id=checkpoint_id,
            parquet=self._parts.parquet,
            release=__version__,
            token=uuid.uuid4().hex,
            measuring=measuring,
            compaction=self._parts.compaction,
            ranges=ranges or {},
            now_ms=now_ms,
        )

    def restore(
        self,
        *,
        checkpoint: int | str = "latest",
        parallelism: int | Literal["auto"] | None = None,
        max_parallelism: int | None = None,
        bytes_per_task: int | None = None,
        graph: JobGraph | None = None,
        allow_non_restored_state: bool = False,
        balance: Weight | str | None = None,
        verify: bool = False,
        now_ms: int | None = None,
    ) -> RestoredCheckpoint:
        """Return a checkpoint ready to be read at a parallelism (by default the one it was taken
        at).

        ``parallelism="auto"`` chooses it from the bytes of each key group, so that a subtask gets
        about ``bytes_per_task`` (16 MiB unless given); ``.plan.choices`` says how. With ``graph``
        the operators of that job find their state by operator id, each at its own parallelism, and
        state that none of them claims is refused unless ``allow_non_restored_state``;
        ``.matching`` says who found what.

        Rows that have expired by ``now_ms``, ms since 1970, by default this machine's clock now,
        are left out of states whose time to live says so; nothing gets a new time, so that the time
        a job was down counts.

        ``max_parallelism`` need not be given. It may be a multiple or a divisor of the stored one:
        then the stored key groups are read as that many, without rewriting; of a multiple more rows
        are read than kept (``.plan.read_amplification``), and order is by stored key group. The
        next snapshot is written so with ``keyed(…, max_parallelism=…, regroup=True)``.
        ``balance="bytes"`` or ``"rows"`` cuts the key groups into ranges whose largest is as small
        as it can be, instead of Flink's even ones (``.ranges``). Size and row
        count of every file are checked when it is opened; with ``verify`` also the SHA-256 of its
        bytes, in whatever process reads it, before the first row is handed over: DamagedFileError
        names the file. Raises StoreNotFoundError, CheckpointNotFoundError, MalformedManifestError,
        ParallelismError, UnclaimedStateError, or InvalidArgumentError for arguments that do not go
        together.
        """
        target = RestoreTarget(
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            bytes_per_task=bytes_per_task,
            graph=graph,
            allow_non_restored_state=allow_non_restored_state,
            balance=balance,
        )
        return restore_command.restore(
            self._parts.catalog(),
            self._parts.spark,
            checkpoint=checkpoint,
            target=target,
            verify=verify,
            now_ms=now_ms,
            listeners=self._parts.listeners,
        )

    def export(
        self,
        directory: str | Path,
        *,
        checkpoint: int | str = "latest",
        parallelism: int | Literal["auto"] | None = None,
        uid: str | None = None,
        name: str | None = None,
        form: str = "parquet",
        options: ParquetOptions | None = None,
        progress: Progress | None = None,
        **target: Unpack[RestoreOptions],
    ) -> ExportedCheckpoint:
        """Write a checkpoint's rows to files, ``parquet`` or ``jsonl``, one folder per subtask.

        All states, those of operator ``uid``, or its state ``name``; the other arguments are those
        of :meth:`restore`. ``directory`` is empty or does not exist; after an error it is empty.
        Raises what :meth:`restore` raises, also StateNotFoundError, CorruptionError,
        InvalidArgumentError for a directory that is not empty, and StorageError when it cannot be
        written.
        """
        return export_command.export(
            self.restore(checkpoint=checkpoint, parallelism=parallelism, **target),
            Path(directory),
            form=form,
            uid=uid,
            name=name,
            options=options or ParquetOptions(),
            progress=progress or (lambda done, total: None),
        )

    def plan(
        self,
        *,
        parallelism: int | Literal["auto"] | None = None,
        checkpoint: int | str = "latest",
        bytes_per_task: int | None = None,
        graph: JobGraph | None = None,
        max_parallelism: int | None = None,
        balance: Weight | str | None = None,
        uid: str | None = None,
        name: str | None = None,
    ) -> RestorePlan:
        """Return who would read what, before anything is read; of ``uid`` or its state ``name``.

        The other arguments are those of :meth:`restore`. State that no operator of ``graph`` claims
        is not refused here, but named in the plan's ``matching``.
        """
        local = (
            self._parts.data.copies()
            if isinstance(self._parts.data, CachedStorage)
            else frozenset()
        )
        target = RestoreTarget(
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            bytes_per_task=bytes_per_task,
            graph=graph,
            balance=balance,
        )
        return plan_command.plan(self.manifest(checkpoint), target, uid, name, local)

    def query(
        self,
        sql: str,
        checkpoint: int | str = "latest",
        *,
        now_ms: int | None = None,
        verify: bool = False,
    ) -> pa.RecordBatchReader:
        """Return the answer to an SQL statement over the states of a checkpoint, without Spark.

        Every state is a view: the operator's uid is its schema, and where no other state has the
        name, that alone will do; :meth:`views` lists them. DuckDB answers, reads no columns, key
        groups and row groups that it has no use for, and nothing but the views: one SELECT, without
        files, URLs or extensions. ``now_ms`` and ``verify`` are those of :meth:`restore`. An answer
        is read as it is taken, and need not be read to its end. Raises MissingDependencyError
        without DuckDB, InvalidArgumentError, and, also while the answer is read, MissingFileError,
        DamagedFileError or StorageError.
        """
        return query_command.query(
            self._parts.catalog(), sql, checkpoint=checkpoint, now_ms=now_ms, verify=verify
        )

    def views(self, checkpoint: int | str = "latest") -> tuple[View, ...]:
        """Return what a query of a checkpoint can name, with columns and entry of each state."""
        return query_command.views(self._parts.catalog(), checkpoint=checkpoint)

    def manifest(self, checkpoint: int | str = "latest") -> Manifest:
        """Return the manifest of a checkpoint."""
        return self._parts.catalog().load(checkpoint)

    def checkpoints(self) -> tuple[int, ...]:
        """Return the ids of the visible checkpoints, oldest first."""
        return self._parts.catalog().checkpoint_ids()

    def add_listener(self, listener: CheckpointListener) -> None:
        """Tell a listener of every checkpoint that this object commits, fails to commit, or
        restores.

        As Spark's ``spark.streams.addListener``. It is called in the thread that does so; what it
        raises is logged, and changes nothing else. InvalidArgumentError for what is no listener.
        """
        self._parts.listeners.add(listener)

    def remove_listener(self, listener: CheckpointListener) -> None:
        """Tell a listener no more; nothing happens when it is not known."""
        self._parts.listeners.remove(listener)
