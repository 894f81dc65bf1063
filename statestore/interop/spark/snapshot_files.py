"""The snapshot files of Spark's HDFS-backed state store, written by Python tasks.

A partition of a store is one file, ``<version>.snapshot``, compressed: for each row the length of
the key (four bytes, big-endian), the key, the length of the value and the value; then -1. Rows come
as Arrow columns of bytes and leave as Arrow lays them out: none is looked at by itself.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame

from statestore.errors import StateStoreError
from statestore.spark.tasks import Task, map_in_arrow, settle
from statestore.storage import Storage

__all__ = ["CODEC", "WrittenPartition", "write_snapshots"]

CODEC = "zstd"
"""What Spark is to read the files with: ``spark.sql.streaming.stateStore.compression.codec``."""

_END = b"\xff\xff\xff\xff"
_OUTCOME = pa.schema(
    {"partition": pa.int32(), "rows": pa.int64(), "size_bytes": pa.int64(), "error": pa.binary()}
)
_AS_SPARK_SAYS = "partition int, rows long, size_bytes long, error binary"


@dataclass(frozen=True)
class WrittenPartition:
    """One partition of a store: its rows, and the bytes of their keys and values."""

    number: int
    rows: int
    size_bytes: int


def write_snapshots(
    storage: Storage, folder: str, version: int, rows: DataFrame
) -> tuple[WrittenPartition, ...]:
    """Write each Spark partition of a DataFrame as a store's partition of the same number.

    Args:
        storage: the checkpoint location.
        folder: that of the store, with ``{}`` for the number of a partition.
        version: the version of the state.
        rows: ``key_bytes`` and ``value_bytes``, in the partitions that Spark looks for them.

    Returns:
        What was written, by partition.

    Raises:
        StorageError: when a file cannot be written.
    """
    written = map_in_arrow(rows, _write(storage, folder, version), _AS_SPARK_SAYS).collect()
    for error in (row.error for row in written if row.error is not None):
        raise pickle.loads(error)
    found = (WrittenPartition(row.partition, row.rows, row.size_bytes) for row in written)
    return tuple(sorted(found, key=lambda one: one.number))


def _write(storage: Storage, folder: str, version: int) -> Task:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        context = TaskContext.get()
        assert context is not None, "this runs in a task"
        number = context.partitionId()
        name = f"{folder.format(number)}/{version}.snapshot"
        row: dict[str, object] = {"partition": number}
        try:
            rows, size = _write_file(storage, name, batches)
            row |= {"rows": rows, "size_bytes": size}
        except StateStoreError as error:  # raised on the driver, as itself
            row["error"] = pickle.dumps(error)
        yield pa.RecordBatch.from_pylist([row], _OUTCOME)

    return write


def _write_file(storage: Storage, name: str, batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    rows = size = 0
    storage.delete(name)  # what an attempt of this task left that was killed
    with storage.open_write(name) as file, pa.CompressedOutputStream(file, CODEC) as compressed:
        for batch in batches:
            if batch.num_rows:
                compressed.write(framed(*batch.columns))
                rows += batch.num_rows
                size += sum(pc.sum(pc.binary_length(part)).as_py() for part in batch.columns)
        compressed.write(_END)
    return rows, size


def framed(keys: pa.Array, values: pa.Array) -> pa.Buffer:
    """Return the rows with their lengths, one behind the other, as the file has them."""
    empty = pa.scalar(b"", pa.large_binary())
    parts = [part for column in (keys, values) for part in (_lengths(column), column)]
    joined = pc.binary_join_element_wise(*(one.cast(pa.large_binary()) for one in parts), empty)
    # One array's values lie one behind the other: all that is between the first and the last.
    _, offsets, data = joined.buffers()
    ends = pa.Array.from_buffers(pa.int64(), len(joined) + 1, [None, offsets])
    first, last = ends[0].as_py(), ends[-1].as_py()
    return data.slice(first, last - first)


def _lengths(column: pa.Array) -> pa.Array:
    """Return the length of each value in four bytes, the highest first."""
    lengths = pc.binary_length(column).cast(pa.int32()).to_numpy(zero_copy_only=False)
    data = pa.py_buffer(lengths.astype(">i4").tobytes())
    return pa.Array.from_buffers(pa.binary(4), len(column), [None, data])
