"""Keyed state out of files into Spark: exactly ``parallelism`` Spark partitions, and no shuffle.

:func:`dataframe` maps a range of ``parallelism`` numbers, one per Spark partition: task i opens the
files of subtask i and hands their Arrow batches to the JVM, on a host that has copies of them if
Spark can arrange it. :func:`register` offers the same as ``spark.read.format("keyed_state")``,
without a choice of host. (Spark's own sources ``statestore`` and ``state-metadata`` read Spark's
checkpoints, not ours.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from statestore.files.merge import read_reads
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import StateReads
from statestore.storage import Storage
from statestore.table.spark import spark_schema
from statestore.table.spark_locality import numbers
from statestore.table.spark_worker import settle

__all__ = ["FORMAT", "Read", "dataframe", "register"]

FORMAT = "keyed_state"


@dataclass(frozen=True)
class Read:
    """What a read of ``keyed_state`` comes to: the state, and what each subtask reads of it."""

    storage: Storage
    entry: KeyedEntry
    per_subtask: tuple[StateReads, ...]
    verify: bool
    now_ms: int | None = None


def dataframe(
    spark: SparkSession,
    storage: Storage,
    entry: KeyedEntry,
    per_subtask: Sequence[StateReads],
    *,
    hosts: Sequence[str] = (),
    verify: bool = False,
    now_ms: int | None = None,
) -> DataFrame:
    """Return a DataFrame whose Spark partition i holds the rows of ``per_subtask[i]``, in that
    order.

    Rows that have expired by ``now_ms`` are left out, by the same clock in all tasks. Spark is
    asked to run it on ``hosts[i]``, empty for anywhere; see
    :mod:`statestore.table.spark_locality`.
    """
    schema = spark_schema(entry.state.schema)
    arrow = to_arrow_schema(schema, timezone="UTC")
    parallelism = len(per_subtask)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            for subtask in batch.column(0).to_pylist():
                reads = per_subtask[subtask]
                for rows in read_reads(storage, entry, reads, verify=verify, now_ms=now_ms):
                    yield rows.cast(arrow)

    return numbers(spark, parallelism, hosts).mapInArrow(read, schema)


@dataclass
class SubtaskPartition(InputPartition):
    """One subtask's files, as Spark sends them to the task that reads them."""

    storage: Storage
    entry: KeyedEntry
    reads: StateReads

    def __init__(self, storage: Storage, entry: KeyedEntry, reads: StateReads) -> None:
        """Keep the parts; a task gets its own subtask's reads only."""
        self.storage, self.entry, self.reads = storage, entry, reads


class SubtaskReader(DataSourceReader):
    """Plans on the driver, reads in the tasks; see ``pyspark.sql.datasource``."""

    def __init__(self, read: Read) -> None:
        """Keep the resolved read."""
        self._read, self._verify, self._now_ms = read, read.verify, read.now_ms
        self._arrow = to_arrow_schema(spark_schema(read.entry.state.schema), timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        """Return one input partition per subtask, in order. Called on the driver, once."""
        read = self._read
        return [SubtaskPartition(read.storage, read.entry, reads) for reads in read.per_subtask]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a subtask's rows. Called on an executor, once per Spark partition."""
        settle()
        assert isinstance(partition, SubtaskPartition)
        storage, entry, reads = partition.storage, partition.entry, partition.reads
        verify, now_ms = self._verify, self._now_ms
        for rows in read_reads(storage, entry, reads, verify=verify, now_ms=now_ms):
            yield rows.cast(self._arrow)


def register(spark: SparkSession, resolve: Callable[[Mapping[str, str]], Read]) -> None:
    """Make ``spark.read.format("keyed_state")`` known to a session; ``resolve`` reads the
    options.
    """

    class KeyedStateDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> StructType:
            settle()  # Spark plans in workers too
            return spark_schema(resolve(self.options).entry.state.schema)

        def reader(self, schema: StructType) -> DataSourceReader:
            settle()
            return SubtaskReader(resolve(self.options))

    spark.dataSource.register(KeyedStateDataSource)
