"""Restore: read a checkpoint at any parallelism up to max parallelism, in three ways.

All three use the same plan. Spark gets a DataFrame whose Spark partition i is exactly subtask i.
Plain Python gets one subtask as Arrow batches. A point lookup gets one key. No file is rewritten
and no row is shuffled. A file is opened only by subtasks that own some of its key groups (I8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statestore.arguments import checked_methods
from statestore.catalog.catalog import Checkpoint, manifest_view
from statestore.display import figure
from statestore.engines.spark_modules import spark_module
from statestore.errors import InvalidArgumentError, ParallelismError, StateStoreError
from statestore.format.digest import RowSet, combine
from statestore.format.manifest import Manifest, OperatorEntry
from statestore.format.slices import KeyedPlan
from statestore.jobgraph.matching import Matching
from statestore.jobgraph.redistribution import ElementRun
from statestore.keys.groups import KeyGroupRange, RangeAssignment
from statestore.layers.expiry import hides_expired
from statestore.layers.layer_cache import LayerCache
from statestore.layers.merge import record_batch_reader
from statestore.listeners import CheckpointRestored, Progress, ignore_progress
from statestore.parquet.operator_elements import elements_of, read_elements
from statestore.parquet.writer import ParquetOptions
from statestore.restore.export import ExportedCheckpoint
from statestore.restore.export import export as export_checkpoint
from statestore.restore.lookup import LazySubtask, WantedKeys, rows_of_key, rows_of_keys
from statestore.restore.placement import preferred_hosts
from statestore.restore.plan import RestorePlan, redistribution_of
from statestore.rows.dataframes import pandas_of, polars_of
from statestore.rows.digests import rows_digest
from statestore.rows.python_values import display_rows, rows_to_dicts
from statestore.storage import CachedStorage, Storage

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

LAZY_BYTES = 256 * 2**20


def restored_event(
    restored: RestoredCheckpoint, *, store: str, seconds: float
) -> CheckpointRestored:
    """Return the event for listeners of a restore from ``store``, which took ``seconds``."""
    manifest = restored.manifest
    stored = {operator.stored_operator for operator in restored.plan.operators}
    entries = [entry for entry in manifest.entries if entry.state.uid in stored]
    return CheckpointRestored(
        store=store,
        checkpoint_id=manifest.checkpoint_id,
        parallelism=restored.parallelism,
        seconds=seconds,
        files=sum(entry.files for entry in entries),
        size_bytes=sum(entry.size_bytes for entry in entries),
    )


@checked_methods
class RestoredCheckpoint:
    """A checkpoint at a parallelism; ``plan`` has the reads, ``manifest`` the contents.

    ``checkpoint`` is the checkpoint as ``StateStore.checkpoint`` returns it.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        spark: Any,
        plan: RestorePlan,
        *,
        verify: bool = False,
        now_ms: int | None = None,
    ) -> None:
        """Keep the parts; see ``StateStore.restore``. Without a clock no row is expired."""
        self.checkpoint, self.manifest = checkpoint, checkpoint.manifest
        self.plan, self.now_ms = plan, now_ms
        self._spark, self._verify = spark, verify

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the checkpoint without the Spark session, which exists only in the driver."""
        return {**vars(self), "_spark": None}

    @property
    def checkpoint_id(self) -> int:
        """The id of the checkpoint."""
        return self.manifest.checkpoint_id

    @property
    def parallelism(self) -> int:
        """The parallelism of the restore; with a job graph, the largest of its operators."""
        return self.plan.parallelism

    @property
    def matching(self) -> Matching | None:
        """The state that each operator of the job graph takes over; None without a graph."""
        return self.plan.matching

    @property
    def ranges(self) -> dict[str, RangeAssignment]:
        """The key groups of each subtask, for operators whose ranges are not Flink's even ones.

        Pass them to ``store.snapshot(ranges=…)``, so that the next restore uses them.
        """
        known = {plan.stored_operator: plan.assignment for plan in self.plan.operators}
        return {uid: own for uid, own in known.items() if isinstance(own, RangeAssignment)}

    def __repr__(self) -> str:
        return f"RestoredCheckpoint({self._summary()})"

    def _repr_html_(self) -> str:
        """Return the notebook view: the checkpoint's contents, and the reads of each subtask."""
        return figure(self._summary(), manifest_view(self.manifest), self.plan._repr_html_())

    def _summary(self) -> str:
        return f"checkpoint {self.checkpoint_id} at parallelism {self.parallelism}"

    def parallelism_of(self, operator: str) -> int:
        """Return the parallelism of an operator; raises the errors of :meth:`keyed`."""
        return len(self.plan.operator(operator).subtasks)

    def keyed(self, operator: str, state: str) -> RestoredKeyedState:
        """Return a keyed state.

        Args:
            operator: the operator's uid. With a job graph this is an operator of the graph: its
                uid, or its name if it has none.
            state: the state.

        Returns:
            The state, by subtask, as a DataFrame, or by key.

        Raises:
            StateNotFoundError: if it does not exist; it lists the existing states.
        """
        planned = self.plan.operator(operator)
        self.manifest.keyed_entry(planned.stored_operator, state)
        plan = planned.keyed_state(state)
        return RestoredKeyedState(
            self.checkpoint.storage, self._spark, plan, verify=self._verify, now_ms=self.now_ms
        )

    def operator_state(self, operator: str, state: str) -> RestoredOperatorState:
        """Return an operator state.

        Args:
            operator: the operator, as in :meth:`keyed`.
            state: the state.

        Returns:
            The state; each new subtask gets its part.

        Raises:
            StateNotFoundError: if it does not exist; it lists the existing states.
        """
        entry = self.manifest.operator_entry(self.plan.operator(operator).stored_operator, state)
        return RestoredOperatorState(
            self.checkpoint.storage,
            self.manifest,
            entry,
            self.parallelism_of(operator),
            verify=self._verify,
        )

    def export(
        self,
        directory: str | Path,
        *,
        operator: str | None = None,
        state: str | None = None,
        format: str = "parquet",  # noqa: A002 - the word of the command
        parquet: ParquetOptions | None = None,
        progress: Progress | None = None,
    ) -> ExportedCheckpoint:
        """Write the checkpoint's rows to files, one folder per subtask.

        Args:
            directory: an empty folder, or a new one. After an error it is empty.
            operator: writes only the states of this operator; by default all states are written.
            state: writes only the state of this name, of ``operator``.
            format: ``parquet`` or ``jsonl``.
            parquet: how Parquet files are written.
            progress: called with the number of written rows and the total.

        Returns:
            The written files.

        Raises:
            StateNotFoundError: if the operator or state does not exist.
            CorruptionError: if a file is damaged.
            InvalidArgumentError: for a directory that is not empty.
            StorageError: if the directory cannot be written.
        """
        return export_checkpoint(
            self,
            Path(directory),
            form=format,
            uid=operator,
            name=state,
            options=parquet or ParquetOptions(),
            progress=progress or ignore_progress,
        )


@checked_methods
class RestoredKeyedState:
    """One keyed state, by subtask, as a DataFrame, or by key."""

    def __init__(
        self,
        storage: Storage,
        spark: Any,
        plan: KeyedPlan,
        *,
        verify: bool = False,
        now_ms: int | None = None,
    ) -> None:
        """Keep the parts; see :meth:`RestoredCheckpoint.keyed`."""
        self.plan, self.entry, self.assignment = plan, plan.entry, plan.owners
        self.now_ms = now_ms
        self._storage, self._spark, self._verify = storage, spark, verify
        # With one subtask there is no other reader of decoded layers.
        self._layers = LayerCache() if plan.owners.parallelism > 1 else None

    @property
    def digest(self) -> int:
        """The order-independent digest of the state's rows.

        By default it is the digest recorded when the state was written. It is computed from the
        restored rows if none was recorded for a state with changes, or if a TTL hides rows. That
        reads the whole state and raises the errors of :meth:`to_batches`.
        """
        return self.contents().digest

    def contents(self, *, verify: bool = False) -> RowSet:
        """Return the number and the digest of all rows, which are determined as for :attr:`digest`.

        Args:
            verify: checks the SHA-256 of the files before they are read.

        Returns:
            The number of rows and their digest.
        """
        known = self.entry.contents
        if known is not None and not hides_expired(self.entry.state, self.now_ms):
            return known
        every = KeyGroupRange.every(self.assignment.max_parallelism)
        names = self.entry.state.schema.names
        rows = digest = 0
        for batch in self._reader(every, verify=verify):
            rows += batch.num_rows
            digest = combine((digest, rows_digest(batch.select(names))))
        return RowSet(rows, digest)

    def to_batches(self, subtask: int | None = None) -> pa.RecordBatchReader:
        """Return one subtask's rows, or the whole state, as a stream of Arrow batches.

        Needs no Spark and no JVM. At most one Parquet row group is in memory; for a state with
        changes, the current key groups.

        Args:
            subtask: its number, from 0; by default the rows of all subtasks.

        Returns:
            The rows, with the column ``key_group`` first, in order of key group. With another max
            parallelism than the stored one, they are in order of the stored key group.

        Raises:
            ParallelismError: if the subtask does not exist.
            MissingFileError or DamagedFileError: while the rows are read; names the file.
        """
        if subtask is None:
            return self._reader(KeyGroupRange.every(self.assignment.max_parallelism))
        return self._reader(self.assignment.range_of(subtask))

    def to_arrow(self, subtask: int | None = None) -> pa.Table:
        """Return one subtask's rows, or the whole state, as a table.

        Args:
            subtask: its number, from 0; by default the rows of all subtasks.

        Returns:
            The rows of :meth:`to_batches`, in its order.

        Raises:
            ParallelismError: if the subtask does not exist.
            MissingFileError or DamagedFileError: names the file.
        """
        return self.to_batches(subtask).read_all()

    def to_pandas(self, subtask: int | None = None) -> pd.DataFrame:
        """Return the rows of :meth:`to_arrow` as a pandas DataFrame.

        Its columns have the type ``pandas.ArrowDtype``: a long column with nulls stays long, and a
        null is not NaN.

        Raises:
            MissingDependencyError: if pandas is not installed.
        """
        return pandas_of(self.to_arrow(subtask))

    def to_polars(self, subtask: int | None = None) -> pl.DataFrame:
        """Return the rows of :meth:`to_arrow` as a Polars DataFrame.

        Raises:
            MissingDependencyError: if Polars is not installed.
        """
        return polars_of(self.to_arrow(subtask))

    def to_spark(self) -> DataFrame:
        """Return a DataFrame whose Spark partition i has exactly subtask i's rows; no shuffle.

        If there is a local cache, Spark is asked to run a subtask on the host that cached its files
        when they were written. If Spark runs it elsewhere, the subtask reads from the store.

        Returns:
            The DataFrame, in the store's Spark session.

        Raises:
            InvalidArgumentError: if the store was opened without a Spark session.
        """
        spark = self._session()
        frame: DataFrame = spark_module("state_reader").dataframe(
            spark,
            self._storage,
            self.entry,
            self.plan.of_all(),
            hosts=self._hosts(),
            verify=self._verify,
            now_ms=self.now_ms,
        )
        return frame

    def _session(self) -> Any:
        if self._spark is None:
            raise InvalidArgumentError(
                "a DataFrame needs Spark: open the store with StateStore.open(url, spark=spark), "
                "or read a subtask without Spark: .to_arrow(0)"
            )
        return self._spark

    def key_groups(self, key_groups: KeyGroupRange) -> pa.RecordBatchReader:
        """Return the rows of key groups of any subtask; otherwise like :meth:`to_batches`.

        Raises:
            ParallelismError: if a key group does not exist.
        """
        if key_groups.last >= self.assignment.max_parallelism:
            raise ParallelismError(
                f"{self.entry.state} has key groups 0..{self.assignment.max_parallelism - 1}, not "
                f"{key_groups}"
            )
        return self._reader(key_groups)

    def lookup(self, keys: Any) -> pa.Table:
        """Return the rows of many keys.

        Needs no Spark. Only files that contain key groups of these keys are read.

        Args:
            keys: a table, a DataFrame that supports Arrow, or dictionaries, with the key columns.

        Returns:
            The rows, with the column ``key_group`` first.

        Raises:
            InvalidArgumentError: if the columns are not a key of the state.
            MissingFileError or DamagedFileError: names the file.
        """
        wanted = WantedKeys.of(keys, self.entry.state)
        every = KeyGroupRange.every(self.assignment.max_parallelism)
        reads = self.plan.of_groups(every)
        return rows_of_keys(
            self._storage, self.entry, reads, wanted, verify=self._verify, now_ms=self.now_ms
        )

    def lazy(self, subtask: int, *, limit_bytes: int = LAZY_BYTES) -> LazySubtask:
        """Return a subtask whose key groups are read when one of their keys is requested.

        Args:
            subtask: its number, from 0.
            limit_bytes: the most bytes of decoded key groups in memory; by default 256 MiB.

        Returns:
            The subtask.
        """
        return LazySubtask(
            self._storage,
            self.entry,
            self.assignment.range_of(subtask),
            self.assignment.max_parallelism,
            limit_bytes=limit_bytes,
            verify=self._verify,
            now_ms=self.now_ms,
        )

    def lookup_in_spark(
        self,
        keys: pa.Table,
        columns: Sequence[str] | None = None,
        *,
        cache_bytes: int = 0,
        spark: SparkSession | None = None,
    ) -> DataFrame:
        """Return the rows of many keys as a DataFrame.

        Small files and the driver's cached rows are looked up by the driver during this call. All
        other files are looked up by the task of each subtask, when the DataFrame is computed.

        Args:
            keys: the keys, by their key columns.
            columns: the columns of the DataFrame; by default all.
            cache_bytes: the most decoded bytes that the driver and each of Spark's Python workers
                cache for the next call; by default nothing.
            spark: the session of the DataFrame; by default the store's.

        Returns:
            The rows. If a task finds that a file is missing or not what was written, Spark's error
            contains MissingFileError or DamagedFileError.

        Raises:
            InvalidArgumentError: without Spark, or if the columns are not a key of the state.
            MissingFileError, DamagedFileError: if a lookup in the driver fails.
        """
        frame: DataFrame = spark_module("state_lookup").dataframe_of_keys(
            spark or self._session(),
            self._storage,
            self.entry,
            self.plan.of_all(),
            keys,
            columns,
            cache_bytes=cache_bytes,
            verify=self._verify,
            now_ms=self.now_ms,
        )
        return frame

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the state without the Spark session, which exists only in the driver."""
        return {**vars(self), "_spark": None}

    def __repr__(self) -> str:
        return f"RestoredKeyedState({self.entry.state}, {self.assignment.parallelism} subtasks)"

    def get(self, key: Any, *, times_as_text: bool = False) -> list[dict[str, Any]]:
        """Return the rows of one key.

        It opens at most one data file of the base, and one of each layer of changes.

        Args:
            key: the value of the key; a tuple or dictionary for several key columns.
            times_as_text: return times that Python lacks as text, instead of an error.

        Returns:
            The rows; an empty list if there are none.

        Raises:
            InvalidArgumentError: if the value does not fit the key's type.
        """
        rows = rows_of_key(self._storage, self.entry, key, verify=self._verify, now_ms=self.now_ms)
        return display_rows(rows) if times_as_text else rows_to_dicts(rows, str(self.entry.state))

    def _hosts(self) -> tuple[str, ...]:
        """Return the hosts with copies of each subtask's files.

        Copies are used only by a local cache; without one, no host is preferred.
        """
        if not isinstance(self._storage, CachedStorage):
            return ()
        files = tuple(handle for part in self.entry.parts for handle in part.handles)
        return preferred_hosts(files, self.assignment)

    def _reader(self, key_groups: KeyGroupRange, *, verify: bool = False) -> pa.RecordBatchReader:
        return record_batch_reader(
            self._storage,
            self.entry,
            self.plan.of_groups(key_groups),
            verify=verify or self._verify,
            now_ms=self.now_ms,
            cache=None if verify else self._layers,
        )


@checked_methods
class RestoredOperatorState:
    """One operator state; each new subtask gets its part."""

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        entry: OperatorEntry,
        parallelism: int,
        *,
        verify: bool = False,
    ) -> None:
        """Keep the parts; see :meth:`RestoredCheckpoint.operator_state`."""
        self.entry = entry
        self._storage, self._verify = storage, verify
        self._parallelism = parallelism
        self._dealt = redistribution_of(manifest, entry.state.uid, parallelism)

    def subtask(
        self, subtask: int, *, where: Mapping[str, Iterable[Any]] | None = None
    ) -> list[dict[str, Any]]:
        """Return the elements of one new subtask, redistributed by the state's mode.

        Args:
            subtask: its number, from 0.
            where: keeps elements whose columns have one of the given values, such as
                ``{"partition": [0, 4]}``. A reader of union state can thus read only its part.

        Returns:
            The elements, as dictionaries.
        """
        runs = self._dealt.runs(subtask)[self.entry.state.name]
        return [element for _, _, element in self._elements(where, runs)]

    def to_arrow(self, subtask: int | None = None) -> pa.Table:
        """Return the elements of one new subtask, or of the whole state, as a table.

        Args:
            subtask: its number, from 0; by default each stored element once.

        Returns:
            The elements of :meth:`subtask`, in its order; by default in the stored order.

        Raises:
            InvalidArgumentError: if the subtask does not exist.
            MissingFileError or DamagedFileError: names the file.
        """
        stored = elements_of(self._storage, self.entry, verify=self._verify)
        if subtask is None:
            return stored
        runs = self._dealt.runs(subtask)[self.entry.state.name]
        first = [*accumulate(self.entry.counts, initial=0)]
        parts = [stored.slice(first[run.subtask] + run.first, run.stop - run.first) for run in runs]
        return pa.concat_tables([stored.slice(0, 0), *parts])

    def to_batches(self, subtask: int | None = None) -> pa.RecordBatchReader:
        """Return the elements of :meth:`to_arrow` as a stream of Arrow batches."""
        return self.to_arrow(subtask).to_reader()

    def to_pandas(self, subtask: int | None = None) -> pd.DataFrame:
        """Return the elements of :meth:`to_arrow` as a pandas DataFrame.

        Raises:
            MissingDependencyError: if pandas is not installed.
        """
        return pandas_of(self.to_arrow(subtask))

    def to_polars(self, subtask: int | None = None) -> pl.DataFrame:
        """Return the elements of :meth:`to_arrow` as a Polars DataFrame.

        Raises:
            MissingDependencyError: if Polars is not installed.
        """
        return polars_of(self.to_arrow(subtask))

    def __repr__(self) -> str:
        return f"RestoredOperatorState({self.entry.state}, {self._parallelism} subtasks)"

    def subtasks(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the elements of every new subtask, in order; the file is read once for all."""
        lists = self.per_old_subtask()
        for runs in self._runs():
            yield [element for run in runs for element in lists[run.subtask][run.first : run.stop]]

    def count(self) -> int:
        """Return the number of elements that all new subtasks get together; nothing is read."""
        return sum(run.stop - run.first for runs in self._runs() for run in runs)

    def _runs(self) -> Iterator[tuple[ElementRun, ...]]:
        for subtask in range(self._parallelism):
            yield self._dealt.runs(subtask)[self.entry.state.name]

    def per_old_subtask(self) -> list[list[dict[str, Any]]]:
        """Return the elements as they were stored, one list per old subtask."""
        lists: list[list[dict[str, Any]]] = [[] for _ in self.entry.counts]
        for subtask, _, element in self._elements(None, None):
            lists[subtask].append(element)
        return lists

    def _elements(
        self, where: Mapping[str, Iterable[Any]] | None, runs: Sequence[ElementRun] | None
    ) -> Iterator[tuple[int, int, dict[str, Any]]]:
        entry = self.entry
        spans = None if runs is None else {run.subtask: range(run.first, run.stop) for run in runs}
        try:
            rows = read_elements(self._storage, entry, where, verify=self._verify)
            for subtask, position, element in rows:
                if spans is None or position in spans.get(subtask, ()):
                    yield subtask, position, element
        except StateStoreError as error:
            error.add_note(f"while reading {entry.state}")
            raise
