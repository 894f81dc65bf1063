"""The front door: a :class:`StateStore` is a folder or bucket prefix that keeps checkpoints."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from statestore._version import __version__
from statestore.arguments import checked_methods
from statestore.catalog.catalog import DEFAULT_TABLE_FORMAT, Catalog
from statestore.display import MOST_BARS, Bar, bars, counted, figure, size, table, text, when
from statestore.errors import InvalidArgumentError, StateStoreError, StoreNotFoundError
from statestore.files.engines import spark_module
from statestore.files.frames import RowStream
from statestore.files.table import TABLE_FORMATS
from statestore.files.writer import ParquetOptions
from statestore.flink.graph import JobGraph
from statestore.format.layers import CompactionRule
from statestore.format.manifest import Manifest
from statestore.format.state import LAYOUT_CHOICES
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
    :attr:`maintenance`. Spark is needed for snapshots of Spark DataFrames, and to restore as one.

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
        layout: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        parquet: ParquetOptions | None = None,
        local_cache: str | Path | None = None,
        local_cache_bytes: int = DEFAULT_LIMIT_BYTES,
        parallel_streams: int = DEFAULT_STREAMS,
        compaction: CompactionRule | None = COMPACTION,
        listeners: Iterable[CheckpointListener] = (),
    ) -> StateStore:
        """Return the store at a path, or at a URL in S3, Azure or Google Cloud Storage; nothing is
        read or created yet.

        Args:
            url: the path or URL.
            spark: a Spark session. It also learns ``spark.read.format("keyed_state")``.
            table_format: how a new store keeps its tables: ``delta``, the default, or ``parquet``,
                the same files without a log. The store remembers it, so later it need not be given.
                :meth:`snapshot` refuses another one, and reading takes either.
            layout: which key groups of a keyed state lie in which file, unless the state is
                written with a layout of its own: ``auto``, the default, ``partitioned`` or
                ``ranged``, as ``checkpoint.keyed`` has them. A new store remembers it, and
                :meth:`snapshot` refuses another one.
            storage_options: options for fsspec's file system of the service; Spark's ``s3a`` learns
                them for this bucket.
            parquet: how data files are written.
            local_cache: a folder that every host has for itself. Data files that are written or
                restored there are kept. They are restored from there as long as their SHA-256 is
                the manifest's, else from the store.
            local_cache_bytes: the most bytes that ``local_cache`` keeps; by default 10 GiB.
            parallel_streams: how many ranges a process reads at once from a bucket; by default 16.
                It holds 6 MB for each.
            compaction: when changes of incremental checkpoints are merged and folded, in a thread
                between this process's snapshots; None is never.
            listeners: receive the events of every checkpoint, as those of :meth:`add_listener`.

        Returns:
            The store.

        Raises:
            InvalidArgumentError: for a file system on which a commit cannot be atomic, for another
                table format or layout, or for a cache that holds nothing.
        """
        storage = open_storage(url, storage_options, parallel_streams, of_store=True)
        data = CachedStorage(storage, local_cache, local_cache_bytes) if local_cache else None
        store = cls._over(storage, spark, table_format, layout, parquet, data, compaction)
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
        layout: str | None = None,
        parquet: ParquetOptions | None = None,
        compaction: CompactionRule | None = COMPACTION,
    ) -> StateStore:
        """Return the store on a storage of your own.

        Args:
            storage: a storage that passes ``testing.suites.StorageSuite``.
            spark: as in :meth:`open`.
            table_format: as in :meth:`open`.
            layout: as in :meth:`open`.
            parquet: as in :meth:`open`.
            compaction: as in :meth:`open`.

        Returns:
            The store.

        Raises:
            InvalidArgumentError: for another table format or layout.
        """
        return cls._over(storage, spark, table_format, layout, parquet, None, compaction)

    @classmethod
    def _over(
        cls,
        storage: Storage,
        spark: SparkSession | None,
        table_format: str | None,
        layout: str | None,
        parquet: ParquetOptions | None,
        data: Storage | None,
        compaction: CompactionRule | None,
    ) -> StateStore:
        if table_format is not None and table_format not in TABLE_FORMATS:
            raise InvalidArgumentError(
                f"no table format {table_format!r}; there is {' and '.join(TABLE_FORMATS)}"
            )
        if layout is not None and layout not in LAYOUT_CHOICES:
            raise InvalidArgumentError(
                f"no layout {layout!r}; there is {', '.join(LAYOUT_CHOICES)}"
            )
        if spark is not None:
            data_source.register(spark)
            spark_module("session").hand_on(spark, storage)
        return cls(
            OpenStore.on(
                storage,
                data=data,
                spark=spark,
                parquet=parquet or ParquetOptions(),
                compaction=compaction,
                table_format=table_format,
                layout=layout,
            )
        )

    def __repr__(self) -> str:
        return f"StateStore({self.url!r})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the newest checkpoints over time. What cannot be read is
        said there.
        """
        try:
            catalog = self._parts.catalog()
            ids = catalog.checkpoint_ids()
        except StateStoreError as error:
            return figure(repr(self), text(str(error)))
        newest = [_seen(catalog, one) for one in ids[-MOST_BARS:]]
        columns = ("checkpoint", "created_at_ms", "parallelism", "rows", "size_bytes", "files")
        rows = (row for _, row in reversed(newest))
        title = f"{self!r}: {counted(len(ids), 'checkpoint')}"
        return figure(title, bars([bar for bar, _ in newest]), table(columns, rows))

    @property
    def url(self) -> str:
        """The path or URL of the store, without credentials."""
        return self._parts.storage.url

    @property
    def parts(self) -> OpenStore:
        """The parts that commands on the store are made of."""
        return self._parts

    @property
    def inspect(self) -> StoreInspection:
        """What checkpoints hold, and how they differ."""
        return StoreInspection(self._parts)

    @property
    def maintenance(self) -> StoreMaintenance:
        """What is done to kept checkpoints, and what keeps them."""
        return StoreMaintenance(self._parts)

    @property
    def table_format(self) -> str:
        """How the next snapshot keeps its tables, ``delta`` or ``parquet``: as the store remembers.

        For a store that is not created yet, it is what the store was opened with, else ``delta``.

        Raises:
            InvalidArgumentError: when the store was opened with another one than it remembers.
            StorageError: when the store cannot be read.
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
        batch: tuple[str, int] | None = None,
        now_ms: int | None = None,
        ranges: Mapping[str, RangeAssignment] | None = None,
    ) -> CheckpointWriter:
        """Begin the next checkpoint.

        Use it as ``with store.snapshot(parallelism=4) as checkpoint``. The store is created when
        there is none. Leaving the block commits all states at once; an exception commits nothing.

        With ``batch`` a retry writes nothing twice. If the newest checkpoint contains that batch,
        the writer's calls return what is stored, its ``id`` is that of the checkpoint of the batch,
        and its ``already_committed`` is True. Spark runs a micro-batch again when it does not know
        whether the batch was done::

            def keep(frame: DataFrame, batch_id: int) -> None:
                with store.snapshot(parallelism=4, batch=("totals", batch_id)) as checkpoint:
                    checkpoint.keyed("totals-by-user", "totals", totals_of(frame), key="user_id")

            stream.writeStream.foreachBatch(keep).start()

        Args:
            parallelism: the parallelism of the job; by default the largest of the graph's
                operators.
            graph: the job graph. Each operator has the parallelism, max parallelism and operator id
                that it gives. The graph is stored with the checkpoint. State can be kept only for
                operators that it has: under the uid, or under the name of one without uid.
            checkpoint_id: the id of the checkpoint. It must be greater than every id before, at
                most 8,999,999,999, and may leave some out. Without ``batch`` it is also the number
                of a batch: if a snapshot that asked for the same id has committed it, nothing is
                written, as above.
            batch: the name of the job and the number of the batch that this snapshot is for. Each
                checkpoint records the last batch of each job that it contains, and the checkpoints
                that build on it inherit that, those of commands as well. Numbers only grow, and may
                leave some out. Ids need not follow them.
            now_ms: the clock of times to live, in ms since 1970; by default that of this machine as
                the snapshot begins. Rows that are given without a time are used now. Compaction
                drops those that have expired.
            ranges: which operators own other ranges of key groups than Flink's even ones, as
                ``restored.ranges`` has it after a balanced restore. The manifest keeps them, and a
                restore at the same parallelism uses them.

        Returns:
            The writer of the checkpoint.

        Raises:
            CommitConflictError: when another writer has taken over (here, or when the block ends),
                when another checkpoint was committed since this one began, when ``checkpoint_id``
                was taken by a command or by a snapshot that did not ask for it, or when the store
                has a later batch of the job. The snapshot of an ``already_committed`` batch does
                not conflict.
            InvalidArgumentError: for another table format or layout than the store has, for an id
                that cannot be the next one, or a ``batch`` that is no name and number.
            ParallelismError or StorageError: when the checkpoint cannot be begun or committed.
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
            batch=batch,
            parquet=self._parts.parquet,
            layout=catalog.layout(self._parts.layout),
            release=__version__,
            token=uuid.uuid4().hex,
            measuring=measuring,
            compaction=self._parts.compaction,
            background=self._parts.background,
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
        """Return a checkpoint ready to be read at a parallelism.

        Rows that have expired are left out of states whose time to live says so. No row gets a new
        time, so the time that a job was down counts. Size and row count of every file are checked
        when it is opened.

        Args:
            checkpoint: the id, ``latest``, or a savepoint's name.
            parallelism: by default the one it was taken at. ``auto`` chooses it from the bytes of
                each key group; ``.plan.choices`` says how.
            max_parallelism: need not be given. It may be a multiple or a divisor of the stored one.
                Then the stored key groups are read as that many, without rewriting. Of a multiple
                more rows are read than kept (``.plan.read_amplification``), and order is by stored
                key group. The next snapshot is written so with
                ``keyed(…, max_parallelism=…, regroup=True)``.
            bytes_per_task: about how many bytes a subtask gets with ``parallelism="auto"``; by
                default 16 MiB.
            graph: a job graph. Its operators find their state by operator id, each at its own
                parallelism; ``.matching`` says which found which.
            allow_non_restored_state: accepts state that no operator of ``graph`` claims, which is
                refused otherwise.
            balance: ``bytes`` or ``rows`` cuts the key groups into ranges whose largest is as small
                as it can be, instead of Flink's even ones (``.ranges``).
            verify: also checks the SHA-256 of the bytes of every file, in whatever process reads
                it, before the first row is handed over. DamagedFileError names the file.
            now_ms: the clock that rows expire by, in ms since 1970; by default this machine's clock
                now.

        Returns:
            The checkpoint; its rows are read later.

        Raises:
            StoreNotFoundError, CheckpointNotFoundError or MalformedManifestError: when the
                checkpoint cannot be found or read.
            ParallelismError: when it cannot be read at this parallelism or max parallelism.
            UnclaimedStateError: when no operator of ``graph`` claims some state.
            InvalidArgumentError: for arguments that do not go together.
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
        """Write a checkpoint's rows to files, one folder per subtask.

        The other options are those of :meth:`restore`.

        Args:
            directory: an empty folder, or one that does not exist. After an error it is empty.
            checkpoint: as in :meth:`restore`.
            parallelism: as in :meth:`restore`.
            uid: writes only the states of this operator; by default all states are written.
            name: writes only the state of this name, of operator ``uid``.
            form: ``parquet`` or ``jsonl``.
            options: how Parquet files are written.
            progress: is called with the number of rows that are written, and of all.

        Returns:
            What was written.

        Raises:
            StateNotFoundError: when there is no such operator or state.
            CorruptionError: when a file is not what was written.
            InvalidArgumentError: for a directory that is not empty.
            StorageError: when the directory cannot be written.
            StateStoreError: as :meth:`restore`.
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
        """Return which subtask would read what, before anything is read.

        State that no operator of ``graph`` claims is not refused here, but named in the plan's
        ``matching``. All other errors are those of :meth:`restore`.

        Args:
            parallelism: as in :meth:`restore`.
            checkpoint: as in :meth:`restore`.
            bytes_per_task: as in :meth:`restore`.
            graph: as in :meth:`restore`.
            max_parallelism: as in :meth:`restore`.
            balance: as in :meth:`restore`.
            uid: plans only the states of this operator.
            name: plans only the state of this name, of operator ``uid``.

        Returns:
            The plan.
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
        time_limit_s: float | None = None,
        memory_limit: int | str | None = None,
        cancelled: threading.Event | None = None,
    ) -> RowStream:
        """Return the answer to an SQL statement over the states of a checkpoint, without Spark.

        Every state is a view. The operator's uid is its schema. Where no other state has the name,
        the name alone is enough. :meth:`views` lists them. DuckDB answers. It skips columns, key
        groups and row groups that it does not need. It reads nothing but the views: files, URLs and
        extensions are refused.

        Args:
            sql: one SELECT.
            checkpoint: as in :meth:`restore`.
            now_ms: as in :meth:`restore`.
            verify: as in :meth:`restore`.
            time_limit_s: seconds from this call to the last row; None for no limit.
            memory_limit: what DuckDB may use, as bytes or text such as ``1GiB``; None for its
                default, 80 % of the machine's memory.
            cancelled: another thread sets this event to stop the query.

        Returns:
            The answer, a ``pyarrow.RecordBatchReader`` that ``to_pandas()``, ``to_polars()`` and
            ``to_arrow()`` make a frame of. It is read as it is taken, and need not be read to its
            end. Values that Arrow does not hold exactly, such as TIMETZ and INTERVAL, are text.

        Raises:
            MissingDependencyError: without DuckDB.
            InvalidArgumentError: for a statement that is refused; also while the answer is read.
            QueryStoppedError: for a query that exceeds a limit or is cancelled; also while the
                answer is read.
            MissingFileError, DamagedFileError or StorageError: also while the answer is read.
        """
        return query_command.query(
            self._parts.catalog(),
            sql,
            checkpoint=checkpoint,
            now_ms=now_ms,
            verify=verify,
            time_limit_s=time_limit_s,
            memory_limit=memory_limit,
            cancelled=cancelled,
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
        """Add a listener, as Spark's ``spark.streams.addListener``.

        It receives an event for every checkpoint that this object commits, fails to commit, or
        restores. It is called in the thread that does so. What it raises is logged, and changes
        nothing else.

        Args:
            listener: an object with the methods of :class:`CheckpointListener`.

        Raises:
            InvalidArgumentError: for an object that is not a listener.
        """
        self._parts.listeners.add(listener)

    def remove_listener(self, listener: CheckpointListener) -> None:
        """Remove a listener; nothing happens when it is not known."""
        self._parts.listeners.remove(listener)


def _seen(catalog: Catalog, checkpoint_id: int) -> tuple[Bar, tuple[Any, ...]]:
    """Return a checkpoint as a bar and as a row of a table, one that cannot be read too."""
    try:
        one = catalog.outline(checkpoint_id)
    except StateStoreError as error:
        bar = Bar(str(checkpoint_id), (), f"cannot be read: {error.kind}", bad=True)
        return bar, (checkpoint_id, f"cannot be read: {error.kind}", None, None, None, None)
    label = f"{checkpoint_id} · {when(one.created_at_ms)}"
    bar = Bar(label, ((one.size_bytes, "plain"),), size(one.size_bytes))
    whole = (one.parallelism, one.rows, one.size_bytes, one.files)
    return bar, (checkpoint_id, one.created_at_ms, *whole)
