"""What the bytes of a data file are read from: a local copy, a file, or ranges of an object.

Here its length is checked, and on request its SHA-256. A small file that is wanted whole is read at
once, of another its footer and what is asked for after: every byte once (I8).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from statestore.errors import DamagedFileError
from statestore.format.handles import Handle
from statestore.storage import CachedStorage, Storage
from statestore.table.footers import END_BYTES, MAGIC, footer_bytes
from statestore.table.ranges import PIECE_BYTES, Fetch, Piece, RangedFile, streams_of

__all__ = ["Begun", "Source", "check_length", "source_of"]

Source: TypeAlias = RangedFile | Any  # or pa.BufferReader, which has no types

# Up to here a file that is wanted whole is read at once; a row group may be as large.
_AT_ONCE_BYTES = 32 * 2**20
_CHUNK_BYTES = 2**20
# Of files whose manifest does not say how long the footer is, it is guessed, with some room, where
# looking twice costs a round trip.
_FOOTER_BYTES, _FOOTER_BYTES_OF_ROW_GROUP = 64 * 2**10, 2**10

# Copies of the local cache that this process has found to be right, as they were then.
_VERIFIED: set[tuple[object, ...]] = set()


def check_length(where: str, found: int, handle: Handle) -> None:
    """Raise DamagedFileError unless a file is as long as its handle says."""
    if found != handle.size_bytes:
        raise DamagedFileError(
            f"{where} has {found} bytes, the manifest says {handle.size_bytes}; restore an "
            "older checkpoint, or bring the file back from a copy"
        )


class Begun:
    """The files that come next, asked for while the rows of one are read."""

    def __init__(
        self, storage: Storage, folder: str, files: Sequence[tuple[Handle, bool]], verify: bool
    ) -> None:
        """Take the files in the order in which they are read, and of each whether all of it is."""
        self._storage, self._folder = storage, folder
        self._waiting = deque(() if verify or storage.streams == 1 else files)
        self._begun: deque[RangedFile | None] = deque()

    def next(self) -> RangedFile | None:
        """Return the next file, if it was begun, and begin those after it."""
        while self._waiting and len(self._begun) <= self._storage.streams:
            handle, whole = self._waiting.popleft()
            name = f"{self._folder}/{handle.path}"
            self._begun.append(_begin(self._storage, name, handle, whole=whole))
        return self._begun.popleft() if self._begun else None

    def __enter__(self) -> Begun:
        return self

    def __exit__(self, *_: object) -> None:
        """Ask for nothing any more."""
        for file in self._begun:
            if file is not None:
                file.close()


def _begin(storage: Storage, name: str, handle: Handle, *, whole: bool) -> RangedFile | None:
    """Ask an object store for a file that will be read soon; None where that is of no use.

    Its end is asked for, with ``whole`` all of it, as far as there is room to hold it.
    """
    streams = streams_of(storage.streams)
    if streams is None or isinstance(storage, CachedStorage):
        return None
    return _ranged(storage, name, handle, whole)


@contextmanager
def source_of(
    storage: Storage,
    name: str,
    handle: Handle,
    *,
    verify: bool = False,
    whole: bool = False,
    copy: bool = False,
    begun: RangedFile | None = None,
) -> Iterator[Source]:
    """Open what Arrow reads a file from; its length is the handle's, with ``verify`` its SHA-256.

    ``whole`` says that all of it will be read, ``copy`` that a local cache keeps it; ``begun`` is
    what :class:`Begun` gave. Raises DamagedFileError, or what the storage raises.
    """
    where = f"{storage.url}/{name}"
    kept = _local_copy(storage, name, handle, copy) if isinstance(storage, CachedStorage) else None
    if kept is None and verify:
        raw = _verified(storage, name, handle)
        if raw is not None:
            yield pa.BufferReader(raw)
            return
    if kept is None and storage.streams > 1:
        file = begun or _ranged(storage, name, handle, whole)
        try:
            _complete_tail(file, storage, name, handle)
            yield file
        finally:
            file.close()
        return
    path = storage.native_path(name)
    with kept or (pa.OSFile(path) if path is not None else storage.open_read(name)) as opened:
        check_length(where, opened.seek(0, 2), handle)
        fetch = _fetch_of(opened)
        if whole and handle.size_bytes <= _AT_ONCE_BYTES:
            yield pa.BufferReader(fetch(0, handle.size_bytes))
            return
        size = handle.size_bytes
        end = b"" if handle.footer else memoryview(fetch(max(size - END_BYTES, 0), size))
        start = _footer_start(handle, end)
        tail = b"".join((memoryview(fetch(start, size - len(end))), end))
        yield RangedFile(fetch, Piece(start, size, lambda *_: tail, None), size, None)


def _fetch_of(file: Any) -> Fetch:
    """Return what reads a range of an open file: Arrow's own reads into Arrow's memory."""
    read = file.read_buffer if isinstance(file, pa.NativeFile) else file.read

    def fetch(start: int, stop: int) -> Any:
        file.seek(start)
        return read(stop - start)

    return fetch


def _ranged(storage: Storage, name: str, handle: Handle, whole: bool) -> RangedFile:
    """Begin to read an object: its tail is asked for, with ``whole`` what lies before it too."""
    streams, size = streams_of(storage.streams), handle.size_bytes

    def fetch(start: int, stop: int) -> bytes:
        return storage.read_range(name, start, stop)

    guess = (
        handle.footer.size_bytes
        if handle.footer
        else _FOOTER_BYTES + _FOOTER_BYTES_OF_ROW_GROUP * handle.row_groups
    )
    start = 0 if whole and size <= PIECE_BYTES else max(size - guess, 0)
    # One byte more than there should be: a file that is longer shows itself without being asked.
    file = RangedFile(fetch, Piece(start, size + 1, fetch, streams), size, streams)
    file.begin()
    if whole:
        file.want([range(len(MAGIC), start)])
    return file


def _complete_tail(file: RangedFile, storage: Storage, name: str, handle: Handle) -> None:
    """Wait for the tail of an object; see that it is all of the footer, and the end of the file."""
    tail, size = file.tail, handle.size_bytes
    found = tail.data()
    if len(found) != size - tail.start:
        check_length(f"{storage.url}/{name}", storage.size(name), handle)
        raise ValueError(f"it ends at byte {tail.start + len(found)}, and is {size} long")
    start = _footer_start(handle, found[-END_BYTES:])
    if start < tail.start:
        rest = storage.read_range(name, start, tail.start)
        whole = b"".join((rest, found))
        tail = Piece(start, size, lambda *_: whole, None)
    file.keep_tail(tail)


def _footer_start(handle: Handle, end: bytes | memoryview) -> int:
    """Return where the footer begins: by the manifest, or by the end of the file; ValueError if it
    is not Parquet.
    """
    length = handle.footer.size_bytes if handle.footer else footer_bytes(end)
    start = handle.size_bytes - length
    if start < len(MAGIC):
        raise ValueError("its end is not that of a Parquet file")
    return start


def _verified(storage: Storage, name: str, handle: Handle) -> bytes | None:
    """Check a file's SHA-256; return its bytes, None when it is too large to be held."""
    check_length(f"{storage.url}/{name}", storage.size(name), handle)
    raw = storage.read(name) if handle.size_bytes <= _AT_ONCE_BYTES else None
    if raw is not None:
        found = hashlib.sha256(raw).hexdigest()
    else:
        with storage.open_read(name) as file:
            found = _sha256(file)
    if found != handle.sha256:
        raise DamagedFileError(
            f"{storage.url}/{name} holds other bytes than were written: their SHA-256 is "
            f"{found[:16]}…, the manifest says {handle.sha256[:16]}…; restore an older checkpoint, "
            "or bring the file back from a copy"
        )
    return raw


def _local_copy(
    storage: CachedStorage, name: str, handle: Handle, make: bool
) -> pa.NativeFile | None:
    """Return the open copy of a file if its bytes are those of the handle, else None."""
    path = storage.copy_of(name)
    if path is None and make:
        path = storage.fetch(name, handle.size_bytes)
    if path is None:
        return None
    try:
        file = pa.OSFile(str(path))
        if _identity(path, handle) in _VERIFIED:
            return file
        if file.size() == handle.size_bytes and _sha256(file) == handle.sha256:
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
