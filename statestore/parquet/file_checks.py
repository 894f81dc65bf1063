"""Compares a data file with its handle: length, footer, counts and columns.

If a footer is damaged, Arrow silently loses rows, or aborts the process. The footer's bytes are
therefore compared with the manifest's checksum before Arrow sees them, and its counts with the
manifest's counts. Files of older releases have no such checksum; only the counts are checked.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statestore.display import counted
from statestore.errors import DamagedFileError, MissingFileError, StateStoreError, StorageError
from statestore.format.handles import FileList, Footer, Handle, ListedFiles
from statestore.format.manifest import Entry
from statestore.storage import Storage

END_BYTES, MAGIC = 8, b"PAR1"
"""A Parquet file ends with the length of its footer, and a magic number."""
_SUM_DIGITS = 32


def footer_of(written: bytes) -> Footer:
    """Return the footer of a new file with these bytes."""
    length = footer_bytes(written[-END_BYTES:])
    return Footer(length, _sum_of(written[len(written) - length :]))


def footer_bytes(end: bytes | memoryview) -> int:
    """Return the length of a file's footer from the file's end; ValueError if it is not Parquet."""
    if len(end) != END_BYTES or bytes(end[-len(MAGIC) :]) != MAGIC:
        raise ValueError("it does not end like a Parquet file")
    return END_BYTES + int.from_bytes(end[: -len(MAGIC)], "little")


def read_footer(file: Any, where: str, handle: Handle) -> pq.FileMetaData:
    """Return the metadata of an open file, after its bytes and counts are compared with the handle.

    ``file`` has the length that the handle states. Raises DamagedFileError; its message names the
    file as ``where`` does.
    """
    size = handle.size_bytes
    if handle.footer is None:
        file.seek(size - END_BYTES)
        length = footer_bytes(file.read(END_BYTES))
    else:
        length = handle.footer.size_bytes
    if length > size - len(MAGIC):
        raise ValueError("it does not end like a Parquet file")
    file.seek(size - length)
    raw = file.read(length)
    if handle.footer is not None and _sum_of(raw) != handle.footer.sha256:
        raise DamagedFileError(
            f"{where} has another footer than was written: its SHA-256 is "
            f"{_sum_of(raw)[:16]}…, but the manifest says {handle.footer.sha256[:16]}…; restore an "
            "older checkpoint, or recover the file from a backup"
        )
    metadata = pq.read_metadata(pa.BufferReader(raw))
    _check_counts(metadata, where, handle)
    return metadata


def check_rows(where: str, actual: int, stated: int, *, stated_by: str = "its footer") -> None:
    """Raise DamagedFileError if a file returned another number of rows than stated."""
    if actual != stated:
        raise DamagedFileError(
            f"{where} returned {counted(actual, 'row')}, but {stated_by} says {stated}; restore an "
            "older checkpoint, or recover the file from a backup"
        )


def check_columns(where: str, actual: pa.Schema, stated: pa.Schema) -> None:
    """Raise DamagedFileError unless a file has some columns, each once and of the stated type."""
    alike = all(
        len(actual.get_all_field_indices(field.name)) == 1
        and actual.field(field.name).equals(field)
        for field in stated
    )
    if not alike:
        raise DamagedFileError(
            f"{where} has the columns ({_columns(actual)}), but the manifest says "
            f"({_columns(stated)}); restore an older checkpoint, or recover the file from a "
            "backup"
        )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _check_counts(metadata: pq.FileMetaData, where: str, handle: Handle) -> None:
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    for what, actual, stated in (
        ("rows", metadata.num_rows, handle.rows),
        ("row groups", len(groups), handle.row_groups),
        ("rows in its row groups", sum(groups), handle.rows),
    ):
        if actual != stated or min(groups, default=1) < 1:
            raise DamagedFileError(f"{where} has {actual} {what}, but the manifest says {stated}")


def _sum_of(raw: Any) -> str:
    return hashlib.sha256(raw).hexdigest()[:_SUM_DIGITS]


def check_length(where: str, length: int, handle: Handle | FileList) -> None:
    """Raise DamagedFileError unless a file is as long as its handle says."""
    if length != handle.size_bytes:
        raise DamagedFileError(
            f"{where} has {length} bytes, but the manifest says {handle.size_bytes}; restore "
            "an older checkpoint, or recover the file from a backup"
        )


_ASKED_AT_ONCE = 16
_IN_TURN_S = 0.05


def check_size(storage: Storage, name: str, handle: Handle | FileList) -> None:
    """Raise MissingFileError or DamagedFileError unless a file has the length in its handle."""
    where = f"{storage.url}/{name}"
    with name_file_in_errors(where):
        check_length(where, storage.size(name), handle)


def check_sizes(
    storage: Storage, entries: Iterable[Entry], exclude: Collection[str] = frozenset()
) -> None:
    """Check the size of every file of the states, except the files in ``exclude``.

    The files in ``exclude`` are known to exist (I5); a list of files in ``exclude`` is not read.
    Raises the errors of :func:`check_size`. Files are checked in parallel, but on a file system
    only if that is slow: on a local disk, threads take longer than the checks.
    """
    files: list[tuple[str, Handle | FileList]] = []
    for part in (part for entry in entries for part in entry.parts):
        if isinstance(part.handles, ListedFiles):
            if part.handles.file_list.path in exclude:
                continue
            files.append((part.handles.file_list.path, part.handles.file_list))
        named = ((part.table.name_of(handle), handle) for handle in part.handles)
        files += [(name, handle) for name, handle in named if name not in exclude]
    remaining = iter(files)
    if storage.streams == 1:
        started = time.monotonic()
        for number, (name, handle) in enumerate(remaining, 1):
            check_size(storage, name, handle)
            if number >= _ASKED_AT_ONCE and time.monotonic() - started > _IN_TURN_S:
                break
    with ThreadPoolExecutor(max_workers=_ASKED_AT_ONCE) as pool:
        for _ in pool.map(lambda file: check_size(storage, *file), remaining):
            continue


@contextmanager
def name_file_in_errors(where: str) -> Iterator[None]:
    """Convert errors while a file is read to errors that name the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError(
            f"{where} is missing, but the manifest references it; restore an older "
            "checkpoint, or recover the file from a backup"
        ) from error
    except StateStoreError:
        raise
    except (pa.ArrowException, LookupError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:  # reading failed: the file may be intact
            raise StorageError(f"cannot read {where}: {error}") from error
        raise DamagedFileError(
            f"{where} cannot be read: {error}; restore an older checkpoint, or recover the file "
            "from a backup"
        ) from error
