"""Write the files of Spark's state stores from Python tasks.

A partition of an HDFS-backed store is one file, ``<version>.snapshot``. It has for each row the
length of the key (four bytes, big-endian), the key, the length of the value, and the value. It ends
with -1. RocksDB's ``<version>.changelog``, of version 1, has the same format with a byte 0 before
each key and value. It applies to an empty database, ``<version - 1>.zip``. Both are compressed.

Keys and values are Arrow columns of bytes. They are written with vectorized operations, not row by
row.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Iterable, Iterator
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame

from statestore.errors import StateStoreError
from statestore.spark.arrow_functions import Task, map_in_arrow
from statestore.spark.workers import warm_up_worker
from statestore.storage import Storage

__all__ = ["CODEC", "Provider", "write_state"]

Provider = Literal["hdfs", "rocksdb"]

CODEC = "zstd"
"""The codec of the files: the setting ``spark.sql.streaming.stateStore.compression.codec``."""

_END = b"\xff\xff\xff\xff"
_ENCODING = b"\0"  # version 0 of RocksDB's row encoding
_EMPTY = "v1\n" + json.dumps({"sstFiles": [], "numKeys": 0, "numInternalKeys": 0})
_FAILED = pa.schema({"error": pa.binary()})


def write_state(
    storage: Storage, folder: str, version: int, rows: DataFrame, provider: Provider
) -> None:
    """Write each Spark partition of a DataFrame as the store's partition with the same number.

    Args:
        storage: the checkpoint location.
        folder: the folder of the store, with ``{}`` as a placeholder for the partition number.
        version: the version of the state.
        rows: ``key_bytes`` and ``value_bytes``, in the partitions where Spark looks for them.
        provider: the state store provider that will read the files.

    Raises:
        StorageError: if a file cannot be written.
    """
    task = _make_writer(storage, folder, version, provider)
    for failed in map_in_arrow(rows, task, "error binary").collect():
        raise pickle.loads(failed.error)


def _make_writer(storage: Storage, folder: str, version: int, provider: Provider) -> Task:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        warm_up_worker()
        context = TaskContext.get()
        assert context is not None, "this must run in a Spark task"
        number = context.partitionId()
        try:
            if provider == "hdfs":
                name, encoding = f"{folder.format(number)}/{version}.snapshot", b""
            else:
                name, encoding = f"{folder.format(number)}/{version}.changelog", _ENCODING
                if version > 1:  # version 0 is always empty and needs no file
                    storage.put_if_absent(
                        f"{folder.format(number)}/{version - 1}.zip", _empty_database()
                    )
            _write_file(storage, name, batches, encoding)
        except StateStoreError as error:  # returned as a row, so that the driver raises it
            yield pa.RecordBatch.from_pylist([{"error": pickle.dumps(error)}], _FAILED)

    return write


def _empty_database() -> bytes:
    """Return the file of an empty RocksDB database."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("metadata", _EMPTY)
    return content.getvalue()


def _write_file(
    storage: Storage, name: str, batches: Iterable[pa.RecordBatch], encoding: bytes
) -> None:
    storage.delete(name)  # a killed attempt of this task may have left a partial file
    with storage.open_write(name) as file, pa.CompressedOutputStream(file, CODEC) as compressed:
        for batch in batches:
            if batch.num_rows:
                compressed.write(_frame_rows(batch.column(0), batch.column(1), encoding))
        compressed.write(_END)


def _frame_rows(keys: pa.Array, values: pa.Array, encoding: bytes) -> pa.Buffer:
    """Return the rows in the format of the file: concatenated, with their lengths."""
    prefix, empty = (pa.scalar(text, pa.large_binary()) for text in (encoding, b""))
    parts: list[pa.Array | pa.Scalar] = []
    for column in (keys, values):
        parts += [_encode_lengths(column, len(encoding)), prefix, column.cast(pa.large_binary())]
    joined = pc.binary_join_element_wise(*parts, empty)
    # The values of an array are contiguous, so the result is the slice from the first to the last.
    _, offsets, data = joined.buffers()
    ends = pa.Array.from_buffers(pa.int64(), len(joined) + 1, [None, offsets])
    first, last = ends[0].as_py(), ends[-1].as_py()
    return data.slice(first, last - first)


def _encode_lengths(column: pa.Array, more: int) -> pa.Array:
    """Return value lengths plus ``more`` as four bytes each, big-endian."""
    lengths = pc.binary_length(column).to_numpy(zero_copy_only=False) + more
    data = pa.py_buffer(lengths.astype(">i4").tobytes())
    return pa.Array.from_buffers(pa.binary(4), len(column), [None, data]).cast(pa.large_binary())
