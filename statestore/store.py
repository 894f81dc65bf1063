"""The entry point: a :class:`StateStore` is a folder or bucket prefix that keeps checkpoints."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack

from statestore._version import __version__
from statestore.api.inspection import StoreInspection
from statestore.api.maintenance import StoreMaintenance
from statestore.arguments import checked_methods
from statestore.catalog.catalog import DEFAULT_TABLE_FORMAT, Catalog, Checkpoint, CheckpointRef
from statestore.display import (
    MOST_BARS,
    NotebookBar,
    bars,
    counted,
    figure,
    size,
    table,
    text,
    when,
)
from statestore.durations import Duration, milliseconds_of
from statestore.engines.spark_modules import spark_module
from statestore.errors import InvalidArgumentError, StateStoreError, StoreNotFoundError
from statestore.format.layers import CompactionRule
from statestore.format.manifest import TABLE_FORMATS
from statestore.format.state import LAYOUT_CHOICES, clock_ms
from statestore.jobgraph.graph import JobGraph
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.groups import RangeAssignment
from statestore.listeners import CheckpointListener
from statestore.maintenance.store_context import HasContext, StoreContext
from statestore.parquet.writer import ParquetOptions
from statestore.restore import sql_query as query_command
from statestore.restore import target as plan_command
from statestore.restore.key_group_weights import Weight
from statestore.restore.plan import RestorePlan
from statestore.restore.restored import RestoredCheckpoint, restored_event
from statestore.restore.sql_query import View
from statestore.restore.target import RestoreTarget, plan_target
from statestore.rows.dataframes import RowStream
from statestore.snapshot import writer as begin_command
from statestore.snapshot.bootstrap import BootstrappedState
from statestore.snapshot.bootstrap import bootstrap as bootstrap_command
from statestore.snapshot.measurement import Measuring
from statestore.snapshot.state_spec import StateOptions
from statestore.snapshot.writer import CheckpointWriter
from statestore.spark import data_source
from statestore.storage import DEFAULT_STREAMS, CachedStorage, Storage, open_storage
from statestore.storage.local_cache import CacheOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPACTION = CompactionRule()


@checked_methods
class StateStore(HasContext):
    """The checkpoints of one job, or of several that share a store.

    :attr:`inspect` has further queries about checkpoints, and :attr:`maintenance` has the commands
    on kept checkpoints. Spark is needed only for snapshots of Spark DataFrames, and to restore as a
    DataFrame.

    The first :meth:`snapshot` of an object claims the store. From then on, an object that claimed
    it earlier, in this or another process, can no longer commit: if a job was believed dead and
    replaced, only its successor can write. So keep one object for the life of a job. To take over
    the store on purpose, open it again.

    A pickled store, for example in a Spark task, is opened again where it is loaded. It has no
    Spark session and no listeners, and its first :meth:`snapshot` claims the store.
    """

    @classmethod
    def open(
        cls,
        url: str | Storage,
        *,
        spark: SparkSession | None = None,
        table_format: str | None = None,
        layout: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        parquet: ParquetOptions | None = None,
        cache: CacheOptions | None = None,
        parallel_streams: int = DEFAULT_STREAMS,
        compaction: CompactionRule | None = COMPACTION,
        listeners: Iterable[CheckpointListener] = (),
    ) -> StateStore:
        """Open the store at a path, or at a URL in S3, Azure or Google Cloud Storage.

        Nothing is read or created yet.

        Args:
            url: the path or URL, or a custom storage that passes ``testing.suites.StorageSuite``.
            spark: a Spark session, also of Spark Connect. ``spark.read.format("keyed_state")`` is
                registered in it.
            table_format: how a new store keeps its tables: ``delta``, the default, or ``parquet``,
                the same files without a log. It is recorded in the store and can be omitted later.
                :meth:`snapshot` refuses another value, and reads accept both.
            layout: the default layout of keyed states in files: ``auto``, the default,
                ``partitioned`` or ``ranged``, as for ``checkpoint.write_keyed``. A new store
                records it, and :meth:`snapshot` refuses another value.
            storage_options: options for the service's fsspec file system; Spark's ``s3a`` receives
                them for this bucket.
            parquet: how data files are written.
            cache: a local folder of each host. Data files that this host writes or restores are
                kept there. They are read from there if their SHA-256 matches the manifest, and from
                the store otherwise.
            parallel_streams: the number of ranges that a process reads concurrently from a bucket;
                by default 16. Each needs 6 MB of memory.
            compaction: when changes of incremental checkpoints are merged and folded, in a thread
                between this process's snapshots; None disables it.
            listeners: receive the events of every checkpoint, as with :meth:`add_listener`.

        Returns:
            The store.

        Raises:
            InvalidArgumentError: for a file system without atomic commits, for an unknown table
                format or layout, for a cache without room, or for ``storage_options`` of a storage.
        """
        if table_format is not None and table_format not in TABLE_FORMATS:
            raise InvalidArgumentError(
                f"unknown table format {table_format!r}; the table formats are "
                f"{' and '.join(TABLE_FORMATS)}"
            )
        if layout is not None and layout not in LAYOUT_CHOICES:
            raise InvalidArgumentError(
                f"unknown layout {layout!r}; the layouts are {', '.join(LAYOUT_CHOICES)}"
            )
        if isinstance(url, str):
            storage = open_storage(url, storage_options, parallel_streams, of_store=True)
        elif not isinstance(url, Storage):
            raise InvalidArgumentError(
                f"url must be a path or URL as text, or a storage, not {type(url).__name__}"
            )
        elif storage_options is None:
            storage = url
        else:
            raise InvalidArgumentError(
                "storage_options are for a path or URL; pass them where the storage is made"
            )
        if spark is not None:
            data_source.register(spark)
            spark_module("bucket_access").configure_storage_access(spark, storage)
        store = cls(
            StoreContext.on(
                storage,
                data=CachedStorage(storage, cache.folder, cache.limit_bytes) if cache else None,
                spark=spark,
                parquet=parquet or ParquetOptions(),
                compaction=compaction,
                table_format=table_format,
                layout=layout,
            )
        )
        for listener in listeners:
            store.add_listener(listener)
        return store

    def __repr__(self) -> str:
        return f"StateStore({self.url!r})"

    def _repr_html_(self) -> str:
        """Return the notebook view: the newest checkpoints over time.

        Errors are shown in the view.
        """
        try:
            catalog = self.parts.catalog()
            ids = catalog.checkpoint_ids()
        except StateStoreError as error:
            return figure(repr(self), text(str(error)))
        newest = [_checkpoint_view(catalog, checkpoint_id) for checkpoint_id in ids[-MOST_BARS:]]
        columns = ("checkpoint", "created_at_ms", "parallelism", "rows", "size_bytes", "files")
        rows = (row for _, row in reversed(newest))
        title = f"{self!r}: {counted(len(ids), 'checkpoint')}"
        return figure(title, bars([bar for bar, _ in newest]), table(columns, rows))

    @property
    def url(self) -> str:
        """The path or URL of the store, without credentials."""
        return self.parts.storage.url

    @property
    def inspect(self) -> StoreInspection:
        """Queries about the content of checkpoints and their differences."""
        return StoreInspection(self.parts)

    @property
    def maintenance(self) -> StoreMaintenance:
        """The commands on kept checkpoints, and their holds."""
        return StoreMaintenance(self.parts)

    @property
    def table_format(self) -> str:
        """The format of the next snapshot's tables, ``delta`` or ``parquet``.

        It is the format recorded in the store, or for a new store, the one passed to :meth:`open`,
        or ``delta``.

        Raises:
            InvalidArgumentError: if the store was opened with another format than the recorded one.
            StorageError: if the store cannot be read.
        """
        try:
            return Catalog.open(self.parts.data, create=False).table_format(self.parts.table_format)
        except StoreNotFoundError:
            return self.parts.table_format or DEFAULT_TABLE_FORMAT

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

        Use it as ``with store.snapshot(parallelism=4) as checkpoint``. The store is created if it
        does not exist. Leaving the block commits all states atomically; an exception commits
        nothing.

        With ``batch``, a retry writes nothing twice. If the newest checkpoint contains that batch,
        the writer's calls return the stored states, and its ``already_committed`` is True. Its
        ``id`` is the checkpoint's that contains the batch. Spark repeats a micro-batch if it does
        not know whether the batch was completed::

            def keep(frame: DataFrame, batch_id: int) -> None:
                with store.snapshot(parallelism=4, batch=("totals", batch_id)) as checkpoint:
                    checkpoint.write_keyed("totals", "by-user", totals_of(frame), key="user_id")

            stream.writeStream.foreachBatch(keep).start()

        Args:
            parallelism: the parallelism of the job; by default the largest of the graph's
                operators.
            graph: the job graph. It determines each operator's parallelism, max parallelism and
                operator id. The graph is stored with the checkpoint. Only operators in the graph
                can have state: under their uid, or under their name if they have no uid.
            checkpoint_id: the id of the checkpoint. It must be greater than all previous ids, and
                at most 8,999,999,999; gaps are allowed. Without ``batch`` it is also the batch
                number: if a snapshot that requested the same id has committed it, nothing is
                written, as above.
            batch: the job's name and the number of the batch in this snapshot. Each checkpoint
                records the last batch of each job that it contains, and later checkpoints inherit
                the record, including those made by commands. Numbers only grow; gaps are allowed.
                Ids need not match them.
            now_ms: the TTL clock, in ms since 1970; by default this machine's time when the
                snapshot begins. It becomes the time of rows that are given without one. Compaction
                removes the rows that have expired by it.
            ranges: other ranges of key groups than Flink's even ones, by operator, as in
                ``restored.ranges`` after a balanced restore. The manifest records them, and a
                restore at the same parallelism uses them.

        Returns:
            The writer of the checkpoint.

        Raises:
            CommitConflictError: if another writer has taken over (here, or when the block ends), or
                another checkpoint was committed since this one began. Also if ``checkpoint_id`` was
                taken by a command or by a snapshot that did not request it, or if the store has a
                later batch of the job. The snapshot of an ``already_committed`` batch has none of
                these conflicts. Also if the store was replaced by an older copy, such as a backup,
                that lacks a checkpoint which this object has seen.
            InvalidArgumentError: for another table format or layout than the store has, for an id
                that cannot be the next one, or for a ``batch`` that is not a name and a number.
            ParallelismError or StorageError: if the checkpoint cannot be begun or committed.
        """
        measuring = Measuring(self.parts.listeners)
        catalog, table = self.parts.to_write()
        return begin_command.begin(
            catalog,
            self.parts.fence,
            table,
            parallelism,
            graph=graph,
            checkpoint_id=checkpoint_id,
            batch=batch,
            parquet=self.parts.parquet,
            layout=catalog.layout(self.parts.layout),
            release=__version__,
            token=uuid.uuid4().hex,
            measuring=measuring,
            compaction=self.parts.compaction,
            background=self.parts.background,
            ranges=ranges or {},
            now_ms=now_ms,
        )

    def bootstrap(
        self,
        operator: str,
        state: str,
        rows: Any,
        *,
        mode: RedistributionMode | str | None = None,
        replace: bool = False,
        dry_run: bool = False,
        also: Callable[[CheckpointWriter], None] | None = None,
        **options: Unpack[StateOptions],
    ) -> BootstrappedState:
        """Begin a keyed state or an operator state with the rows of a table, as a new checkpoint.

        All other states of the newest checkpoint stay. The store is created if it does not exist. A
        job that runs at the same time can no longer commit. Use it for state that was computed
        elsewhere, so that a job does not have to process its history again::

            store = StateStore.open("./fraud")
            store.bootstrap("totals-by-user", "totals", pq.read_table("t.parquet"), key="user_id")

        Args:
            operator: the operator's uid.
            state: the state's name.
            rows: all rows of the state, as in ``checkpoint.write_keyed``. The elements of an
                operator state are a DataFrame, a table or dictionaries, and are held in memory. A
                dry run also takes a ``pyarrow.Schema``.
            mode: ``split``, ``union`` or ``broadcast`` for operator state, which has no
                ``options``. Flink takes the first column of broadcast state as the key of an entry.
            replace: whether the rows may replace a state that the store has.
            dry_run: whether to write nothing, and count the rows that the state cannot store. With
                a schema, no rows are read either.
            also: called with the checkpoint before the state is written; it can write other states.
            **options: what describes a keyed state, as in ``checkpoint.write_keyed``. Without
                ``max_parallelism`` it is the operator's, or 128. With ``ttl`` rows may lack its
                column, and get the time of this call.

        Returns:
            The state with the type and role of each column, and the checkpoint.

        Raises:
            NullKeyError or DuplicateKeyError: for rows that the state cannot have, with examples.
            InvalidArgumentError: if the store has the state, unless ``replace`` or ``dry_run`` is
                True. In a dry run, also for a Spark DataFrame.
            CommitConflictError: if another writer has taken over.
            StateStoreError: as ``checkpoint.write_keyed``, or ``checkpoint.write_split``.
        """
        try:
            catalog = self.parts.catalog()
        except StoreNotFoundError:
            catalog = None
        return bootstrap_command(
            catalog,
            self.url,
            operator,
            state,
            rows,
            options,
            mode=mode,
            replaces=replace,
            dry_run=dry_run,
            also=also,
            layout=self.parts.layout if catalog is None else catalog.layout(self.parts.layout),
            parquet=self.parts.parquet,
            snapshot=self.snapshot,
        )

    def restore(
        self,
        *,
        checkpoint: CheckpointRef = "latest",
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

        In states whose TTL hides expired rows, these are omitted. Rows keep their times, so a job's
        downtime counts. Size and row count of every file are checked when it is opened.

        Args:
            checkpoint: the id, ``latest``, a savepoint's name, or the result of :meth:`checkpoint`.
            parallelism: by default the one it was taken at. ``auto`` chooses it from the bytes of
                each key group; ``.plan.choices`` explains the choice.
            max_parallelism: usually omitted. It may be a multiple or a divisor of the stored one.
                In that case the stored key groups are read as that many, without rewriting. If it
                is a multiple, more rows are read than kept (``.plan.read_amplification``), and rows
                are ordered by stored key group. To write the next snapshot with it, use
                ``write_keyed(…, max_parallelism=…, regroup=True)``.
            bytes_per_task: the approximate number of bytes per subtask with ``parallelism="auto"``;
                by default 16 MiB.
            graph: a job graph. Its operators find their state by operator id, each at its own
                parallelism; ``.matching`` shows the result.
            allow_non_restored_state: accepts state that no operator of ``graph`` claims, which is
                refused otherwise.
            balance: ``bytes`` or ``rows`` divides the key groups into ranges whose largest is as
                small as possible, instead of Flink's even ones (``.ranges``).
            verify: also checks the SHA-256 of every file, in the process that reads it, before its
                first row is returned. DamagedFileError names the file.
            now_ms: the TTL clock, in ms since 1970; by default this machine's clock now.

        Returns:
            The checkpoint; its rows are read later.

        Raises:
            StoreNotFoundError, CheckpointNotFoundError or MalformedManifestError: if the checkpoint
                cannot be found or read.
            ParallelismError: if it cannot be read at this parallelism or max parallelism.
            UnclaimedStateError: if no operator of ``graph`` claims some state.
            InvalidArgumentError: for conflicting arguments.
        """
        started = time.monotonic()
        target = RestoreTarget(
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            bytes_per_task=bytes_per_task,
            graph=graph,
            allow_non_restored_state=allow_non_restored_state,
            balance=balance,
        )
        checkpoint = self.parts.checkpoint(checkpoint)
        plan = plan_target(checkpoint.manifest, target)
        if plan.matching is not None and not allow_non_restored_state:
            plan.matching.refuse_unclaimed()
        restored = RestoredCheckpoint(
            checkpoint, self.parts.spark, plan, verify=verify, now_ms=clock_ms(now_ms)
        )
        seconds = time.monotonic() - started
        event = restored_event(restored, store=self.parts.listeners.url, seconds=seconds)
        self.parts.listeners.restored(event)
        return restored

    def plan(
        self,
        *,
        parallelism: int | Literal["auto"] | None = None,
        checkpoint: CheckpointRef = "latest",
        bytes_per_task: int | None = None,
        graph: JobGraph | None = None,
        max_parallelism: int | None = None,
        balance: Weight | str | None = None,
        operator: str | None = None,
        state: str | None = None,
    ) -> RestorePlan:
        """Return which subtask would read which files, before anything is read.

        State that no operator of ``graph`` claims is not refused, but listed in the plan's
        ``matching``. Raises the other errors of :meth:`restore`.

        Args:
            parallelism: as in :meth:`restore`.
            checkpoint: as in :meth:`restore`.
            bytes_per_task: as in :meth:`restore`.
            graph: as in :meth:`restore`.
            max_parallelism: as in :meth:`restore`.
            balance: as in :meth:`restore`.
            operator: plans only the states of this operator.
            state: plans only the state of this name, of operator ``operator``.

        Returns:
            The plan.
        """
        local = (
            self.parts.data.copies() if isinstance(self.parts.data, CachedStorage) else frozenset()
        )
        target = RestoreTarget(
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            bytes_per_task=bytes_per_task,
            graph=graph,
            balance=balance,
        )
        return plan_command.plan(
            self.checkpoint(checkpoint).manifest, target, operator, state, local
        )

    def query(
        self,
        sql: str,
        checkpoint: CheckpointRef = "latest",
        *,
        now_ms: int | None = None,
        verify: bool = False,
        time_limit: Duration | None = None,
        memory_limit: int | str | None = None,
        cancelled: threading.Event | None = None,
    ) -> RowStream:
        """Run an SQL query over the states of a checkpoint, without Spark.

        Every state is a view. Its schema is the operator's uid. The name alone is enough if it is
        unique. :meth:`views` lists the views. DuckDB runs the query. It skips columns, key groups
        and row groups that it does not need. It can read only the views: files, URLs and extensions
        are refused.

        Args:
            sql: one SELECT.
            checkpoint: as in :meth:`restore`.
            now_ms: as in :meth:`restore`.
            verify: as in :meth:`restore`.
            time_limit: the longest time from this call to the last row, such as ``90s``; None for
                no limit.
            memory_limit: DuckDB's memory limit, as bytes or text such as ``1GiB``; None for its
                default, 80 % of the machine's memory.
            cancelled: another thread sets this event to stop the query.

        Returns:
            The result: ``to_arrow()`` is a table, ``to_pandas()`` and ``to_polars()`` are
            DataFrames, and ``to_batches()`` is a ``pyarrow.RecordBatchReader``, whose methods the
            result has, too. It is computed while it is read, once, and need not be read to its end.
            After its end another read raises InvalidArgumentError.
            Values that Arrow cannot represent exactly, such as TIMETZ and INTERVAL, are text.

        Raises:
            MissingDependencyError: without DuckDB.
            InvalidArgumentError: for a refused statement; also while the result is read.
            QueryStoppedError: for a query that exceeds a limit or is cancelled; also while the
                result is read.
            MissingFileError, DamagedFileError or StorageError: also while the result is read.
        """
        return query_command.query(
            self.parts.checkpoint(checkpoint),
            sql,
            now_ms=now_ms,
            verify=verify,
            time_limit_s=None if time_limit is None else milliseconds_of(time_limit) / 1000,
            memory_limit=memory_limit,
            cancelled=cancelled,
        )

    def views(self, checkpoint: CheckpointRef = "latest") -> tuple[View, ...]:
        """Return the views that a query can use, with the columns and the entry of each state."""
        return query_command.views_of(self.checkpoint(checkpoint).manifest)

    def checkpoint(self, checkpoint: CheckpointRef = "latest") -> Checkpoint:
        """Return a checkpoint, which other methods take instead of its number or name.

        Its ``manifest`` has the contents, ``checkpoint_id`` is its number, and ``name`` is the
        savepoint it was found by. Several calls with the result read the same checkpoint. Calls
        with ``latest`` may not, because another checkpoint may be committed between them.

        Args:
            checkpoint: the id, ``latest``, or a savepoint's name.

        Returns:
            The checkpoint.

        Raises:
            StoreNotFoundError, CheckpointNotFoundError or MalformedManifestError: if the checkpoint
                cannot be found or read.
        """
        return self.parts.checkpoint(checkpoint)

    def checkpoints(self) -> tuple[int, ...]:
        """Return the ids of the visible checkpoints, oldest first."""
        return self.parts.catalog().checkpoint_ids()

    def add_listener(self, listener: CheckpointListener) -> None:
        """Add a listener, like Spark's ``spark.streams.addListener``.

        It receives an event for every checkpoint that this object commits, fails to commit, or
        restores. It is called in the thread of that operation. An exception in it is logged, and
        has no other effect.

        Args:
            listener: an object with the methods of :class:`CheckpointListener`.

        Raises:
            InvalidArgumentError: for an object that is not a listener.
        """
        self.parts.listeners.add(listener)

    def remove_listener(self, listener: CheckpointListener) -> None:
        """Remove a listener; do nothing if it is unknown."""
        self.parts.listeners.remove(listener)


def _checkpoint_view(catalog: Catalog, checkpoint_id: int) -> tuple[NotebookBar, tuple[Any, ...]]:
    """Return a checkpoint as a bar and as a table row, even if it is unreadable."""
    try:
        header = catalog.load_header(checkpoint_id)
    except StateStoreError as error:
        bar = NotebookBar(str(checkpoint_id), (), f"cannot be read: {error.kind}", bad=True)
        return bar, (checkpoint_id, f"cannot be read: {error.kind}", None, None, None, None)
    label = f"{checkpoint_id} · {when(header.created_at_ms)}"
    bar = NotebookBar(label, ((header.size_bytes, "plain"),), size(header.size_bytes))
    whole = (header.parallelism, header.rows, header.size_bytes, header.files)
    return bar, (checkpoint_id, header.created_at_ms, *whole)
