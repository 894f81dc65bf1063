"""Write the files of Spark's state stores from Python tasks.

A partition of an HDFS-backed store is one file, ``<version>.snapshot``. It has for each row the
length of the key (four bytes, big-endian), the key, the length of the value, and the value. It ends
with -1. RocksDB's ``<version>.changelog``, of version 1, has the same format with a byte 0 before
each key and value. It applies to an empty database, ``<version - 1>.zip``. Both are compressed.
With row checksums, the CRC-32C of a key and its value precedes the value.

Keys and values are Arrow columns of bytes. They are written with vectorized operations, not row by
row.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any, Literal

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyspark import TaskContext
from pyspark.sql import DataFrame

from statestore.errors import StateStoreError
from statestore.spark.tasks import Task, map_in_arrow
from statestore.spark.workers import warm_up_worker
from statestore.storage import Storage
from statestore.storage.base import NewFile

Provider = Literal["hdfs", "rocksdb"]

CODEC = "zstd"
"""The codec of the files: the setting ``spark.sql.streaming.stateStore.compression.codec``."""

_END = b"\xff\xff\xff\xff"
_FLAGS_AT, _HAS_CHECKSUM = 4, 0b100  # of a zstd frame
_ENCODING = b"\0"  # version 0 of RocksDB's row encoding
_EMPTY = "v1\n" + json.dumps({"sstFiles": [], "numKeys": 0, "numInternalKeys": 0})
_U32 = Struct("<I")  # in zstd, and in Spark's rows on the machines that Spark supports
_FAILED = pa.schema({"error": pa.binary()})


def file_names(version: int, provider: Provider) -> tuple[str, ...]:
    """Return the names of the files of each partition; the last one has the rows."""
    if provider == "hdfs":
        return (f"{version}.snapshot",)
    base = (f"{version - 1}.zip",) if version > 1 else ()  # version 0 is always empty
    return (*base, f"{version}.changelog")


def write_state(
    storage: Storage,
    folder: str,
    version: int,
    rows: DataFrame,
    provider: Provider,
    *,
    has_checksums: bool,
) -> None:
    """Write each Spark partition of a DataFrame as the store's partition with the same number.

    Args:
        storage: the checkpoint location.
        folder: the folder of the store, with ``{}`` as a placeholder for the partition number.
        version: the version of the state.
        rows: ``key_bytes`` and ``value_bytes``, in the partitions where Spark looks for them.
        provider: the state store provider that will read the files.
        has_checksums: write a checksum for each row.

    Raises:
        StorageError: if a file cannot be written.
    """
    task = _make_writer(storage, folder, version, provider, has_checksums)
    for failed in map_in_arrow(rows, task, "error binary").collect():
        raise pickle.loads(failed.error)


def _make_writer(
    storage: Storage, folder: str, version: int, provider: Provider, has_checksums: bool
) -> Task:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        warm_up_worker()
        context = TaskContext.get()
        assert context is not None, "this must run in a Spark task"
        own_folder = folder.format(context.partitionId())
        *bases, name = file_names(version, provider)
        try:
            for base in bases:
                storage.put_if_absent(f"{own_folder}/{base}", _empty_database())
            _write_file(
                storage, f"{own_folder}/{name}", batches, _RowEncoder(provider, has_checksums)
            )
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
    storage: Storage, name: str, batches: Iterable[pa.RecordBatch], encoder: _RowEncoder
) -> None:
    storage.delete(name)  # a killed attempt of this task may have left a partial file
    checksum = xxhash.xxh64()
    with storage.open_write(name) as file:
        with pa.CompressedOutputStream(_ChecksummedFrame(file), CODEC) as compressed:
            for batch in batches:
                if batch.num_rows:
                    encoded = encoder.encode(batch.column(0), batch.column(1))
                    checksum.update(encoded)
                    compressed.write(encoded)
            checksum.update(_END)
            compressed.write(_END)
        file.write(_U32.pack(checksum.intdigest() & 0xFFFFFFFF))


class _ChecksummedFrame(io.RawIOBase):
    """Passes a zstd frame on to a file, and sets the flag that a checksum follows the frame.

    Arrow cannot write the checksum, without which a reader does not notice changed content. The
    flag is bit 2 of the byte after the magic number (RFC 8878, section 3.1.1.1.1). The caller owns
    the stream, and also writes the checksum.
    """

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        content = bytes(data)
        index = _FLAGS_AT - self._written
        if 0 <= index < len(content):
            flags = bytes([content[index] | _HAS_CHECKSUM])
            content = content[:index] + flags + content[index + 1 :]
        self._file.write(content)
        self._written += len(content)
        return len(content)


@dataclass(frozen=True)
class _RowEncoder:
    """Encodes rows in the format of a provider's files."""

    provider: Provider
    has_checksums: bool

    def encode(self, keys: pa.Array, values: pa.Array) -> pa.Buffer:
        """Return the rows, concatenated, with their lengths."""
        key_prefix = b"" if self.provider == "hdfs" else _ENCODING
        value_prefix: pa.Array | pa.Scalar = _large(key_prefix)
        value_bytes = len(key_prefix)
        if self.has_checksums:
            value_prefix = self._checksums(keys, values, key_prefix)
            value_bytes += 4 if self.provider == "hdfs" else 8
        parts = (
            _encode_lengths(keys, len(key_prefix)),
            _large(key_prefix),
            keys.cast(pa.large_binary()),
            _encode_lengths(values, value_bytes),
            value_prefix,
            values.cast(pa.large_binary()),
        )
        joined = pc.binary_join_element_wise(*parts, _large(b""))
        # The values of an array are contiguous, so the result is the slice from the first to the
        # last.
        _, offsets, data = joined.buffers()
        ends = pa.Array.from_buffers(pa.int64(), len(joined) + 1, [None, offsets])
        first, last = ends[0].as_py(), ends[-1].as_py()
        return data.slice(first, last - first)

    def _checksums(self, keys: pa.Array, values: pa.Array, prefix: bytes) -> pa.Array:
        """Return what precedes each value: the CRC-32C of the row, and the prefix.

        For RocksDB the length of the value follows the checksum, because a list has several values.
        """
        heads = []
        for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
            checksum = google_crc32c.value(prefix + key + prefix + value)
            length = b"" if self.provider == "hdfs" else _U32.pack(len(prefix) + len(value))
            heads.append(_U32.pack(checksum) + length + prefix)
        return pa.array(heads, pa.large_binary())


def _large(text: bytes) -> pa.Scalar:
    return pa.scalar(text, pa.large_binary())


def _encode_lengths(column: pa.Array, more: int) -> pa.Array:
    """Return value lengths plus ``more`` as four bytes each, big-endian."""
    lengths = pc.binary_length(column).to_numpy(zero_copy_only=False) + more
    data = pa.py_buffer(lengths.astype(">i4").tobytes())
    return pa.Array.from_buffers(pa.binary(4), len(column), [None, data]).cast(pa.large_binary())
