"""Parquet data files, read: a row group at a time, each file checked against its handle.

Size and row count are always checked when a file is opened, so that a truncated or replaced file is
named instead of restored (I7); on request also the SHA-256 of its bytes, before the first row is
handed over.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import (
    DamagedFileError,
    MissingFileError,
    StateStoreError,
    StorageError,
)
from statestore.model.handles import KeyedStateHandle, OperatorStateHandle
from statestore.storage import CachedStorage, Storage

__all__ = ["check_size", "open_file", "read_batches", "row_groups_of"]

Handle = KeyedStateHandle | OperatorStateHandle

# Up to here a verified file is read once, into memory; a row group may be as large. Beyond, twice.
_AT_ONCE_BYTES = 32 * 2**20
_CHUNK_BYTES = 2**20

# Copies of the local cache that this process has found to be right, as they were then.
_VERIFIED: set[tuple[object, ...]] = set()


def check_size(storage: Storage, folder: str, handle: Handle) -> None:
    """Raise MissingFileError or DamagedFileError unless a file is as long as its handle says."""
    name = f"{folder}/{handle.path}"
    where = f"{storage.url}/{name}"
    with _naming(where):
        found = storage.size(name)
        if found != handle.size_bytes:
            raise DamagedFileError(
                f"{where} has {found} bytes, the manifest says {handle.size_bytes}; restore an "
                "older checkpoint, or bring the file back from a copy"
            )


@contextmanager
def open_file(
    storage: Storage, folder: str, handle: Handle, *, verify: bool = False, whole: bool = False
) -> Iterator[pq.ParquetFile]:
    """Open a data file and check it against its handle: size and rows, with ``verify`` SHA-256 too.

    With a local cache its copy there is opened instead, if that still has the SHA-256; with
    ``whole`` one is made, because all of the file will be read. Raises MissingFileError or
    DamagedFileError, naming the file, also while it is being read.
    """
    where = f"{storage.url}/{folder}/{handle.path}"
    with (
        _naming(where),
        _source(storage, folder, handle, verify, whole) as source,
        pq.ParquetFile(source, page_checksum_verification=True) as parquet,
    ):
        if parquet.metadata.num_rows != handle.rows:
            raise DamagedFileError(
                f"{where} has {parquet.metadata.num_rows} rows, the manifest says {handle.rows}"
            )
        yield parquet


def read_batches(
    storage: Storage,
    folder: str,
    handle: Handle,
    schema: pa.Schema,
    *,
    rows: range | None = None,
    verify: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in stored order as batches of ``schema``; at most a row group is held.

    ``rows`` is the part of the file that is wanted; only row groups that hold some of it are read.
    """
    wanted = range(handle.rows) if rows is None else rows
    whole = 2 * len(wanted) >= handle.rows
    with open_file(storage, folder, handle, verify=verify, whole=whole) as parquet:
        numbers, at = row_groups_of(parquet.metadata, wanted)
        for batch in parquet.iter_batches(
            row_groups=[*numbers], columns=schema.names, use_threads=False
        ):
            begin, end = max(wanted.start - at, 0), min(wanted.stop - at, batch.num_rows)
            at += batch.num_rows
            if begin < end:
                yield batch.slice(begin, end - begin).select(schema.names).cast(schema)


def row_groups_of(metadata: pq.FileMetaData, rows: range) -> tuple[range, int]:
    """Return which row groups hold any of these rows of a file, and the place of their first row.

    An empty range of rows has none.
    """
    ends = [*accumulate(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))]
    if not rows:
        return range(0), 0
    first, last = bisect_right(ends, rows.start), bisect_left(ends, rows.stop)
    return range(first, min(last + 1, len(ends))), ends[first - 1] if first else 0


def _source(
    storage: Storage, folder: str, handle: Handle, verify: bool, whole: bool
) -> AbstractContextManager[Any]:
    """Return what Arrow reads from; it closes what it has opened, and leaves an open file alone."""
    name = f"{folder}/{handle.path}"
    if isinstance(storage, CachedStorage):
        copy: AbstractContextManager[Any] | None = _local_copy(storage, name, handle, whole)
        if copy is not None:
            return copy
    check_size(storage, folder, handle)
    if verify and handle.size_bytes <= _AT_ONCE_BYTES:
        raw = storage.read(name)
        _check_sha256(storage, name, handle, hashlib.sha256(raw).hexdigest())
        return nullcontext(pa.BufferReader(raw))
    if verify:
        with storage.open_read(name) as file:
            found = _sha256(file)
        _check_sha256(storage, name, handle, found)
    path = storage.native_path(name)
    return nullcontext(path) if path is not None else storage.open_read(name)


def _local_copy(
    storage: CachedStorage, name: str, handle: Handle, whole: bool
) -> pa.NativeFile | None:
    """Return the open copy of a file if its bytes are those of the handle, else None."""
    path = storage.copy_of(name)
    if path is None and whole:
        path = storage.fetch(name, handle.size_bytes)
    if path is None:
        return None
    try:
        file = pa.OSFile(str(path))
        if _identity(path, handle) in _VERIFIED:
            return file
        if file.size() == handle.size_bytes and _sha256(file) == handle.sha256:
            file.seek(0)
            storage.touch(name)
            _VERIFIED.add(_identity(path, handle))
            return file
        file.close()
    except OSError:  # another process has just made room, or the disk fails: the store has it
        return None
    storage.drop(name)
    return None


def _identity(path: Path, handle: Handle) -> tuple[object, ...]:
    """What stays the same of a copy as long as nobody writes it."""
    stat = path.stat()
    return path, stat.st_ino, stat.st_mtime_ns, stat.st_size, handle.sha256


def _sha256(file: Any) -> str:
    sha256 = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        sha256.update(chunk)
    return sha256.hexdigest()


def _check_sha256(storage: Storage, name: str, handle: Handle, found: str) -> None:
    if found != handle.sha256:
        raise DamagedFileError(
            f"{storage.url}/{name} holds other bytes than were written: their SHA-256 is "
            f"{found[:16]}…, the manifest says {handle.sha256[:16]}…; restore an older checkpoint, "
            "or bring the file back from a copy"
        )


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Turn what goes wrong while a file is read into an error that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError(
            f"{where} is missing, and the manifest names it; restore an older checkpoint, or "
            "bring the file back from a copy"
        ) from error
    except StateStoreError:
        raise
    except (pa.ArrowException, LookupError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:  # not what the file holds: reading it failed
            raise StorageError(f"cannot read {where}: {error}") from error
        raise DamagedFileError(f"{where} cannot be read: {error}") from error
