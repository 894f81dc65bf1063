"""Where a savepoint's bytes lie: in ``_metadata`` itself, or in a file beside it or elsewhere."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

from statestore.errors import (
    DamagedFileError,
    IncompatibleStateError,
    InvalidArgumentError,
    MissingFileError,
    StorageError,
)
from statestore.interop.flink.metadata import (
    EmptyHandle,
    FileHandle,
    InlineHandle,
    RelativeHandle,
    SegmentHandle,
    StreamHandle,
)
from statestore.storage import Storage, open_storage

__all__ = ["ByteSource", "Places", "source_of", "storage_of"]

_PRESTO, _S3 = "s3p://", "s3://"
_MOVED = "of files that were moved, say where they lie now (--moved OLD=NEW, or moved=)"


class ByteSource(Protocol):
    """Bytes of which any part can be read."""

    @property
    def name(self) -> str:
        """Whose bytes they are."""

    @property
    def size(self) -> int:
        """How many there are."""

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` to ``stop``; DamagedFileError when they are not there."""


@dataclass(frozen=True)
class Places:
    """The folder of ``_metadata``, and what absolute paths in it are called now.

    ``moved`` says of folders, as Flink knew them, where they lie now; the longest that fits holds.
    """

    storage: Storage
    options: Mapping[str, Any] | None = None
    moved: Mapping[str, str] | None = None

    def url(self, path: str) -> str:
        """Return where a file lies now that Flink knew by an absolute path."""
        plain = _without_scheme(path)
        for old, new in sorted((self.moved or {}).items(), key=lambda one: -len(one[0])):
            before = _without_scheme(old).rstrip("/")
            if plain == before or plain.startswith(f"{before}/"):
                return new.rstrip("/") + plain[len(before) :]
        return plain if path.startswith(("file:", "/")) else path


def storage_of(folder: str, options: Mapping[str, Any] | None) -> Storage:
    """Return what a folder lies in; Flink's file system of Presto calls S3 ``s3p``."""
    if folder.startswith(_PRESTO):
        folder = _S3 + folder.removeprefix(_PRESTO)
    return open_storage(folder, options)


def _without_scheme(path: str) -> str:
    if not path.startswith("file:"):
        return path
    return "/" + unquote(path.removeprefix("file:")).lstrip("/")


@dataclass(frozen=True)
class _Inline:
    name: str
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> bytes:
        _check(self.name, start, stop, self.size)
        return self.data[start:stop]


@dataclass(frozen=True)
class _Stored:
    name: str
    size: int
    storage: Storage
    file: str
    first: int = 0

    def read(self, start: int, stop: int) -> bytes:
        _check(self.name, start, stop, self.size)
        try:
            found = self.storage.read_range(self.file, self.first + start, self.first + stop)
        except FileNotFoundError:
            raise _missing(self.name) from None
        if len(found) != stop - start:
            raise DamagedFileError(
                f"{self.name} is cut off: it ends before byte {self.first + stop}"
            )
        return found


def _check(name: str, start: int, stop: int, size: int) -> None:
    if not 0 <= start <= stop <= size:
        raise DamagedFileError(
            f"{name} is damaged: bytes {start} to {stop} of it are asked for, and it has {size}"
        )


def _missing(name: str) -> MissingFileError:
    return MissingFileError(f"{name} is not there, which the savepoint names; {_MOVED}")


def source_of(handle: StreamHandle, places: Places, what: str) -> ByteSource:
    """Return the bytes of a handle; ``what`` is what messages call those that have no file.

    Raises:
        MissingFileError: when its file is not there.
        DamagedFileError: when that is of another length than the handle says.
        IncompatibleStateError: for a handle that has no bytes.
    """
    if isinstance(handle, InlineHandle):
        return _Inline(f"{places.storage.url}/_metadata ({what})", handle.data)
    if isinstance(handle, EmptyHandle):
        return _Inline(what, b"")
    if isinstance(handle, RelativeHandle):
        return _stored(places.storage, handle.path, handle.size)
    if isinstance(handle, FileHandle | SegmentHandle):
        folder, file = posixpath.split(places.url(handle.path))
        storage = storage_of(folder, places.options)
        if isinstance(handle, FileHandle):
            try:
                return _stored(storage, file, handle.size)
            except StorageError as error:
                error.add_note(f"the savepoint names {folder} by an absolute path; {_MOVED}")
                raise
        return _Stored(f"{storage.url}/{file}", handle.size, storage, file, handle.start)
    raise IncompatibleStateError(f"{what} has a handle that is not one of bytes: it is not read")


def _stored(storage: Storage, file: str, size: int) -> ByteSource:
    name = f"{storage.url}/{file}"
    try:
        found = storage.size(file)
    except FileNotFoundError:
        raise _missing(name) from None
    except InvalidArgumentError as error:
        raise DamagedFileError(f"{storage.url}/_metadata names a file: {error}") from error
    if found != size:
        raise DamagedFileError(f"{name} has {found} bytes, and the savepoint says {size}")
    return _Stored(name, size, storage, file)
