"""The interface between a store and its file system: its calls, its errors, the put that commits.

A store needs these operations: read, list, delete, write a new file, and ``put_if_absent``. The
last one creates a file with all of its bytes or not at all, and lets exactly one of several writers
succeed. Every commit depends on it (I4). So each file system has its own implementation, not
fsspec's generic check-then-write:

* A local (or mounted) file system: a temporary file, synced, then a hard link to its name.
* S3 and Azure: a conditional put (``If-None-Match: *``).
* Google: a conditional put (``ifGenerationMatch=0``).
* HDFS: a hidden file that is renamed, which fails if the name is taken.

When a store is created, a probe checks that the file system really implements put-if-absent.
S3-compatible servers without conditional puts ignore the header and overwrite, and some mounted
file systems have no hard links. On both, one of two writers would silently lose a checkpoint, so no
store is created there.

Errors of the file system are raised as StorageError with their cause, except FileNotFoundError,
which is raised unchanged.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, Protocol, Self, runtime_checkable

from statestore.errors import InvalidArgumentError, StorageError
from statestore.format.names import ASTRAY

DEFAULT_STREAMS = 16
"""How many ranges of a bucket are read at the same time."""


class Listed(NamedTuple):
    """A file of a listing: its name, its length, and the time of its last write.

    The time is in milliseconds since 1970 by the clock of the file system.
    """

    name: str
    size_bytes: int
    modified_ms: int


class NewFile(Protocol):
    """A file being written: it appears under its name, complete, when it is closed, and not before.

    A ``with`` block closes it at its end, or abandons it if the block raises an exception.
    """

    @property
    def closed(self) -> bool:
        """True after the file was closed or abandoned."""

    def write(self, data: Any, /) -> int:
        """Append bytes; return how many."""

    def flush(self) -> None:
        """Do nothing that readers could see."""

    def close(self) -> None:
        """Publish the file. After an error it exists complete or not at all. Idempotent."""

    def abandon(self) -> None:
        """Discard the file without raising; data that cannot be removed is hidden until ``gc``."""

    def __enter__(self) -> Self:
        """Return the file."""

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        """Close the file, or abandon it after an exception."""


@runtime_checkable
class Storage(Protocol):
    """The file operations that a store needs.

    Names are relative, with ``/``. Values can be pickled.

    A name that could lead out of the storage is refused with InvalidArgumentError before anything
    happens (see :func:`check_inside`). The empty name is the folder itself.
    """

    url: str

    streams: int
    """The number of ranges that a reader may request at once; with 1, prefetching has no
    benefit.
    """

    def read(self, name: str) -> bytes:
        """Return the bytes of a file; FileNotFoundError if it does not exist."""

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` up to ``stop``, fewer if the file ends before ``stop``.

        Several threads may call it at the same time. FileNotFoundError if the file does not exist.
        """

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create ``name`` with ``data``, complete and durable; False if the name is taken."""

    def list(self, folder: str) -> tuple[str, ...]:
        """Return the names of all files below a folder, sorted; empty if it does not exist."""

    def listed(self, folder: str) -> tuple[Listed, ...]:
        """Return all files below a folder with length and time, sorted, including hidden files.

        Hidden files, which :meth:`list` omits, are files being written, or left by a killed writer.
        """

    def is_empty(self) -> bool:
        """Return whether only hidden files exist yet; costs one short listing."""

    def folder_above(self, name: str) -> str | None:
        """Return the URL of the nearest parent folder that contains a file of this name.

        None if no parent folder contains it, or the parents cannot be read.
        """

    def delete(self, name: str) -> None:
        """Delete a file, even while it is being written; do nothing if it does not exist."""

    def size(self, name: str) -> int:
        """Return a file's length in bytes; FileNotFoundError if it does not exist."""

    def renew(self, old: str, new: str) -> bool:
        """Give the bytes of a file a second name whose time is now, without reading them here.

        False if the storage cannot do that; FileNotFoundError if the old name does not exist.
        """

    def open_write(self, name: str) -> NewFile:
        """Open a file for writing. Its name must be new; nothing exists under it before closing."""

    def open_read(self, name: str) -> BinaryIO:
        """Open a file for reading, with seek; FileNotFoundError if it does not exist."""

    def sync(self, names: Iterable[str]) -> None:
        """Return once the written files would survive a power failure.

        A name that ends with a slash is a folder: the deletions in it become durable. Nothing
        happens if it does not exist.
        """

    def native_path(self, name: str) -> str | None:
        """Return a path that the operating system can open; None on an object store."""

    def spark_url(self, name: str) -> str:
        """Return the URL of a file or folder for Spark's file systems."""

    def hadoop_settings(self) -> dict[str, str]:
        """Return the settings of Spark's file systems; they contain secrets, never show them."""

    def delta_options(self) -> dict[str, str]:
        """Return delta-rs's options for ``url``; they contain secrets, never show them."""


def check_inside(name: str) -> str:
    """Return the name of a file; InvalidArgumentError if it could leave its storage.

    ``..``, an absolute path and a drive letter are examples of such names.
    """
    if ASTRAY.search(name):
        raise InvalidArgumentError(
            f"{name!r} is not a valid file name in a store: it must have parts between "
            "slashes, none of them empty, '.' or '..', no backslash, no NUL, and no drive"
        )
    return name


_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full_disk(error: StorageError) -> bool:
    """Return whether a call failed because the disk or a quota is full."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL


@contextmanager
def report_os_errors(action: str, where: object) -> Iterator[None]:
    """Convert an error of the file system to a StorageError with the action and the place."""
    try:
        yield
    except FileNotFoundError as error:
        if action == "read":
            raise
        raise storage_error(error, action, where) from error
    except OSError as error:
        raise storage_error(error, action, where) from error


def storage_error(error: OSError, action: str, where: object) -> StorageError:
    """Return the StorageError for an error of the file system."""
    if isinstance(error, PermissionError):
        return StorageError(f"cannot {action} {where}: permission denied")
    if isinstance(error, NotADirectoryError):
        return StorageError(
            f"cannot {action} {where}: a part of the path is a file, not a folder; check the path"
        )
    if error.errno in _FULL:
        return StorageError(f"cannot {action} {where}: the disk is full")
    return StorageError(f"cannot {action} {where}: {error}")


def put_once(storage: Storage, name: str, data: bytes) -> bool:
    """Put a file if its name is free; return whether it now contains ``data``, read back.

    The answer of the put alone is not sufficient. If an object store's client loses the answer, it
    puts again, and then finds its own object. A server, or a cache in front of it, may confirm a
    put that did not happen, which would make an invisible checkpoint. StorageError is raised in
    that case.
    """
    done = storage.put_if_absent(name, data)
    try:
        return storage.read(name) == data
    except FileNotFoundError:
        answer = "the file was written" if done else "the file exists"
        raise StorageError(
            f"cannot write {storage.url}/{name}: the file system reported that {answer}, but "
            "the file does not exist; nothing was committed. Try again, and if the error "
            "remains, use another place for the store"
        ) from None


_FIRST, _SECOND = b"first\n", b"second\n"


def refuse_unsafe(storage: Storage) -> None:
    """Put a hidden file twice, check that the second put fails, and delete the file.

    Raises StorageError that names the missing capability or the failed call. Costs six requests on
    S3. A crash leaves a hidden file, which has no effect.
    """
    name = f".probe-{uuid.uuid4().hex[:16]}"
    won_first = storage.put_if_absent(name, _FIRST)
    won_second = storage.put_if_absent(name, _SECOND)
    try:
        kept = storage.read(name)
    except FileNotFoundError:
        raise StorageError(
            f"another process deleted {storage.url}/{name} while the file system was tested; "
            "run the command again"
        ) from None
    storage.delete(name)
    if (won_first, won_second, kept) == (True, False, _FIRST):
        return
    lacks = (
        "its server ignores conditional puts (If-None-Match: *, ifGenerationMatch=0)"
        if storage.native_path(name) is None
        else "its file system lets a hard link replace an existing file"
    )
    raise StorageError(
        f"{storage.url} cannot hold a store: {lacks}, so two writers could both seem to commit the "
        "same checkpoint, and one of them would lose it; use another place for the store"
    )
