"""A storage that keeps copies of recently written or read files on this host.

After a restart most subtasks run on the same host again. They then read their state from
local copies instead of the store (Flink's local recovery, ``from-local``). Only data files
are cached, never the documents of a commit. A reader compares the copy's SHA-256 with the
manifest's, and reads the store if they differ. A cache that cannot be written is only logged.
"""

from __future__ import annotations

import hashlib
import logging
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from statestore.arguments import checked_fields
from statestore.errors import InvalidArgumentError, StorageError
from statestore.storage.base import NewFile, Storage, check_inside
from statestore.storage.forwarding import ForwardingStorage

DEFAULT_LIMIT_BYTES = 10 * 2**30

# All copies are in a folder of this name. Nothing outside of it is ever deleted.
_FOLDER = "statestore-cache"
# A process checks the cache's size each time it has added this fraction of the limit. Many workers
# share a folder, and each of them may exceed the limit by this fraction.
_TRIM_PARTS = 64
# The bytes that this process may add to a folder with a limit until it checks the size again. A
# worker gets a new storage for each task, so the storage cannot count. At first, another process
# may have left too much.
_until_trim: dict[tuple[Path, int], int] = {}
_CHUNK_BYTES = 2**20
_log = logging.getLogger(__name__)


@checked_fields
@dataclass(frozen=True)
class CacheOptions:
    """The local cache of a store.

    Attributes:
        folder: a local folder of each host; several stores and processes may share it.
        limit_bytes: the maximum size of the cache; by default 10 GiB.

    Raises:
        InvalidArgumentError: for a value of another type.
    """

    folder: str | Path
    limit_bytes: int = DEFAULT_LIMIT_BYTES


class CachedStorage(ForwardingStorage):
    """Another storage, and a folder of this host with copies of its data files.

    Any number of processes and stores may share the folder. The copies are in its subfolder
    ``statestore-cache``, which holds up to about ``limit_bytes``. The least recently used copies
    are evicted first. The subfolder may be deleted at any time.
    """

    def __init__(
        self, storage: Storage, folder: str | Path, limit_bytes: int = DEFAULT_LIMIT_BYTES
    ) -> None:
        """Wrap a storage; nothing is created yet.

        Raises InvalidArgumentError if the limit is not a positive integer, or if the folder is
        invalid or is inside the store.
        """
        if type(limit_bytes) is not int or limit_bytes < 1:
            raise InvalidArgumentError(
                f"a local cache of {limit_bytes!r} bytes cannot hold anything; pass at least "
                "1, or none"
            )
        super().__init__(storage)
        self._limit_bytes = limit_bytes
        self._root = _outside(folder, storage) / _FOLDER
        # Two stores, such as a copy and its original, may have files of the same name.
        self._folder = self._root / hashlib.sha256(storage.url.encode()).hexdigest()[:16]

    # --- the copies -------------------------------------------------------------------------------

    def copy_of(self, name: str) -> Path | None:
        """Return the path of a file's copy on this host; None if it has no copy."""
        path = self._copy(name)
        with _Harmless("read", path):
            return path if path.is_file() else None
        return None

    def copies(self) -> frozenset[str]:
        """Return the names of all files that have a copy on this host."""
        paths = []
        for parent, _, names in os.walk(self._folder):  # unreadable folders count as empty
            paths += [Path(parent, name) for name in names if name.endswith(".parquet")]
        return frozenset(path.relative_to(self._folder).as_posix() for path in paths)

    def fetch(self, name: str, size_bytes: int) -> Path | None:
        """Copy a file of the store to this host and return its path; None if it exceeds the limit.

        FileNotFoundError if the store does not have it, StorageError if it cannot be read.
        """
        if size_bytes > self._limit_bytes:
            return None
        copy = _Copy.begin(self._copy(name))
        try:
            with self._storage.open_read(name) as file:
                while chunk := file.read(_CHUNK_BYTES):
                    copy.write(chunk)
        except BaseException:
            copy.discard()
            raise
        return self._keep(copy)

    def drop(self, name: str) -> None:
        """Evict the copy of a file."""
        path = self._copy(name)
        with _Harmless("delete", path):
            path.unlink(missing_ok=True)

    def touch(self, name: str) -> None:
        """Mark the copy of a file as just used."""
        path = self._copy(name)
        with suppress(FileNotFoundError), _Harmless("touch", path):
            os.utime(path)

    def _copy(self, name: str) -> Path:
        return self._folder / check_inside(name)

    def _keep(self, copy: _Copy) -> Path | None:
        kept = copy.keep()
        self._trim_if_grown(copy.size)
        return kept

    def _trim_if_grown(self, added: int = 0) -> None:
        """Trim the folder if this process has added enough to it since the last time."""
        folder = (self._root, self._limit_bytes)
        _until_trim[folder] = _until_trim.get(folder, 0) - added
        if _until_trim[folder] <= 0:
            self.trim()

    def trim(self) -> None:
        """Delete the least recently used copies until the folder is within its limit."""
        _until_trim[self._root, self._limit_bytes] = self._limit_bytes // _TRIM_PARTS
        copies = []
        for parent, _, names in os.walk(self._root):
            for name in names:
                path = Path(parent, name)
                with suppress(FileNotFoundError):  # another process may trim at the same time
                    stat = path.stat()
                    copies.append((stat.st_mtime_ns, stat.st_size, path))
        excess = sum(size for _, size, _ in copies) - self._limit_bytes
        for _, size, path in sorted(copies):
            if excess <= 0:
                return
            with _Harmless("delete", path):
                path.unlink(missing_ok=True)
                excess -= size

    # --- the storage ------------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        """Remove a file from the store, and its copy."""
        self.drop(name)
        self._storage.delete(name)

    def open_write(self, name: str) -> NewFile:
        """Open a new file of the store for writing; closing it also creates its local copy."""
        file = self._storage.open_write(name)
        return _Tee(file, _Copy.begin(self._copy(name)), self)

    def sync(self, names: Iterable[str]) -> None:
        """Make files of the store durable; copies need not be."""
        self._storage.sync(names)
        self._trim_if_grown()


def _outside(folder: str | Path, storage: Storage) -> Path:
    """Return the absolute folder; InvalidArgumentError if it is invalid or inside the store."""
    try:
        root = Path(folder).expanduser().resolve()
        store = storage.native_path("")
        inside = store is not None and root.is_relative_to(Path(store).resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{str(folder)!r} cannot be used as the folder of a local cache: {error}"
        ) from error
    if inside:
        raise InvalidArgumentError(
            f"the local cache {root} is inside the store {store}; choose a separate folder"
        )
    return root


class _Harmless:
    """Log errors of the local disk, and continue without the cache."""

    def __init__(self, action: str, path: Path) -> None:
        self._action, self._path = action, path
        self.failed = False

    def __enter__(self) -> _Harmless:
        return self

    def __exit__(self, error_type: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, OSError | ValueError):  # ValueError: a name with a NUL
            return False
        self.failed = True
        reason = getattr(error, "strerror", None) or str(error)
        _log.warning(
            "local cache: cannot %s %s: %s; continuing without it", self._action, self._path, reason
        )
        return True


class _Copy:
    """A local copy being written under a temporary name; it is renamed when it is complete."""

    def __init__(self, path: Path, temporary: Path, file: BinaryIO | None) -> None:
        self._path, self._temporary, self._file = path, temporary, file
        self.size = 0

    @classmethod
    def begin(cls, path: Path) -> _Copy:
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with _Harmless("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            return cls(path, temporary, temporary.open("xb"))
        return cls(path, temporary, None)

    def write(self, data: Any) -> None:
        if self._file is None:
            return
        with _Harmless("write", self._path) as attempt:
            self._file.write(data)
            self.size += memoryview(data).nbytes
        if attempt.failed:
            self.discard()

    def keep(self) -> Path | None:
        if self._file is None:
            return None
        with _Harmless("write", self._path) as attempt:
            self._file.close()
            self._temporary.replace(self._path)
        if attempt.failed:
            self.discard()
        return None if attempt.failed else self._path

    def discard(self) -> None:
        file, self._file = self._file, None
        with _Harmless("delete", self._temporary):
            if file is not None:
                with suppress(OSError):  # on a full disk, flushing the discarded data also fails
                    file.close()
            self._temporary.unlink(missing_ok=True)


class _Tee:
    """A file of the store being written, and its local copy."""

    def __init__(self, file: NewFile, copy: _Copy, storage: CachedStorage) -> None:
        self._file, self._copy, self._storage = file, copy, storage

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: Any, /) -> int:
        written = self._file.write(data)
        self._copy.write(data)
        return written

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            self._file.close()
        except (OSError, StorageError):
            self._copy.discard()
            raise
        self._storage._keep(self._copy)

    def abandon(self) -> None:
        self._copy.discard()
        self._file.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        self.close() if error_type is None else self.abandon()
