"""Reads keyed state from files into Spark: in full without a shuffle, or the rows of many keys.

A full read: exactly ``parallelism`` Spark partitions, and no shuffle.

:func:`dataframe` maps a range of ``parallelism`` numbers, one per Spark partition. Task i opens
the files of subtask i and passes their Arrow batches to the JVM, if possible on a host that has
local copies of them. :func:`register` offers the same as ``spark.read.format("keyed_state")``,
without a choice of host. (Spark's own sources ``statestore`` and ``state-metadata`` read Spark's
checkpoints, not this project's.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from statestore.format.manifest import KeyedEntry
from statestore.format.slices import ReadSlices
from statestore.layers.merge import read_state
from statestore.spark.compat import arrow_schema_of
from statestore.spark.state_writer import spark_schema
from statestore.spark.tasks import numbers
from statestore.spark.workers import warm_up_worker
from statestore.storage import Storage

FORMAT = "keyed_state"


@dataclass(frozen=True)
class Read:
    """A resolved read of ``keyed_state``: the state, and the slices that each subtask reads."""

    storage: Storage
    entry: KeyedEntry
    per_subtask: tuple[ReadSlices, ...]
    verify: bool
    now_ms: int | None = None


def dataframe(
    spark: SparkSession,
    storage: Storage,
    entry: KeyedEntry,
    per_subtask: Sequence[ReadSlices],
    *,
    hosts: Sequence[str] = (),
    verify: bool = False,
    now_ms: int | None = None,
) -> DataFrame:
    """Return a DataFrame whose Spark partition i holds the rows of ``per_subtask[i]``, in order.

    Rows that have expired by ``now_ms`` are left out; all tasks use the same clock. ``hosts[i]`` is
    the preferred host of partition i, empty for any host; see :mod:`statestore.spark.tasks`.
    """
    schema = spark_schema(entry.state.schema)
    arrow = arrow_schema_of(schema)
    parallelism = len(per_subtask)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        warm_up_worker()
        for batch in batches:
            for subtask in batch.column(0).to_pylist():
                reads = per_subtask[subtask]
                for rows in read_state(storage, entry, reads, verify=verify, now_ms=now_ms):
                    yield rows.cast(arrow)

    return numbers(spark, parallelism, hosts).mapInArrow(read, schema)


@dataclass
class SubtaskPartition(InputPartition):
    """One subtask's files, as Spark sends them to the task that reads them."""

    storage: Storage
    entry: KeyedEntry
    reads: ReadSlices

    def __init__(self, storage: Storage, entry: KeyedEntry, reads: ReadSlices) -> None:
        """Store the arguments; a task receives only the reads of its own subtask."""
        self.storage, self.entry, self.reads = storage, entry, reads


class SubtaskReader(DataSourceReader):
    """Plans on the driver, reads in the tasks; see ``pyspark.sql.datasource``."""

    def __init__(self, read: Read) -> None:
        """Keep the resolved read."""
        self._read, self._verify, self._now_ms = read, read.verify, read.now_ms
        self._arrow = arrow_schema_of(spark_schema(read.entry.state.schema))

    def partitions(self) -> Sequence[InputPartition]:
        """Return one input partition per subtask, in order. Called on the driver, once."""
        read = self._read
        return [SubtaskPartition(read.storage, read.entry, reads) for reads in read.per_subtask]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a subtask's rows. Called on an executor, once per Spark partition."""
        warm_up_worker()
        assert isinstance(partition, SubtaskPartition)
        storage, entry, reads = partition.storage, partition.entry, partition.reads
        verify, now_ms = self._verify, self._now_ms
        for rows in read_state(storage, entry, reads, verify=verify, now_ms=now_ms):
            yield rows.cast(self._arrow)


def register(spark: SparkSession, resolve: Callable[[Mapping[str, str]], Read]) -> None:
    """Register ``spark.read.format("keyed_state")`` with a session.

    Spark lets only one session of a JVM register it: in a session that ``newSession`` made, rows
    are read with :meth:`to_spark`. ``resolve`` turns the options into a read.
    """

    class KeyedStateDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> StructType:
            warm_up_worker()  # Spark also plans in workers
            return spark_schema(resolve(self.options).entry.state.schema)

        def reader(self, schema: StructType) -> DataSourceReader:
            warm_up_worker()
            return SubtaskReader(resolve(self.options))

    try:
        spark.dataSource.register(KeyedStateDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
