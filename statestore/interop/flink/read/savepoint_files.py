"""Locate a savepoint's bytes, and read those of a key group.

The bytes are in ``_metadata`` itself, in a file of its folder, or elsewhere.

A savepoint can refer to any file that its reader can access. For security, files are read only
below the folder of ``_metadata`` and below folders that the user allows. If that folder is a
checkpoint's, ``chk-N``, the job's folders ``shared`` and ``taskowned`` next to it are read too.
Flink keeps files there that several checkpoints share. A symbolic link counts as its target.

The bytes of a key group are read in blocks, with random access to parts. With Snappy they are a
stream of chunks, each compressed separately. To read a part, only the chunks that contain it are
read.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Protocol
from urllib.parse import unquote

from statestore.errors import (
    DamagedFileError,
    IncompatibleStateError,
    InvalidArgumentError,
    MissingFileError,
    StorageError,
)
from statestore.interop.flink.metadata.handles import (
    EmptyHandle,
    FileHandle,
    InlineHandle,
    OperatorHandles,
    RelativeHandle,
    SegmentHandle,
    StreamHandle,
    list_streams,
)
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.read.snappy import SNAPPY_HEAD, chunks, whole_chunks
from statestore.storage import Storage, open_storage

METADATA = "_metadata"
_DIGEST_BYTES = 8 << 20
_DIGEST_THREADS = 4
_MOST_METADATA = 1 << 30
_PRESTO, _S3 = "s3p://", "s3://"
_SAME_SCHEMES = {"s3a": "s3", "s3n": "s3", "s3p": "s3", "gcs": "gs", "abfs": "abfss"}
_CHECKPOINT = re.compile(r"chk-\d+")
_CHECKPOINT_SIBLINGS = ("shared", "taskowned")
_MOVED_HINT = "for files that were moved, pass the new path (--allow OLD=NEW, or moved=)"


class ByteSource(Protocol):
    """Bytes with random access."""

    @property
    def name(self) -> str:
        """The name of the bytes in messages."""

    @property
    def size(self) -> int:
        """The number of bytes."""

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` to ``stop``; DamagedFileError if they do not exist."""


@dataclass(frozen=True)
class SavepointFiles:
    """A savepoint's folder, a mapping of moved folders, and the readable locations.

    ``moved`` maps the old path of a folder to its current location; the longest match applies.
    Files are read below the new locations, and below the folders and files in ``allowed``.
    """

    storage: Storage
    options: Mapping[str, Any] | None = None
    moved: Mapping[str, str] | None = None
    allowed: Collection[str] = ()

    def url(self, path: str) -> str:
        """Return the current location of a file that Flink refers to by an absolute path."""
        plain = _strip_scheme(path)
        for old, new in sorted((self.moved or {}).items(), key=lambda folders: -len(folders[0])):
            before = _strip_scheme(old).rstrip("/")
            if plain == before or plain.startswith(f"{before}/"):
                return new.rstrip("/") + plain[len(before) :]
        return plain if path.startswith(("file:", "/")) else path

    def refuse_outside_files(self, operator: OperatorHandles) -> None:
        """Refuse an operator with state outside of the readable locations.

        Raises:
            InvalidArgumentError: if a file is outside, before any state is read.
        """
        urls = set()
        for handle in list_streams(operator.subtasks):
            if isinstance(handle, FileHandle | SegmentHandle):
                urls.add(self.url(handle.path))
            elif isinstance(handle, RelativeHandle):
                urls.add(f"{self.storage.url}/{handle.path}")
        for folder, files in groupby(sorted(urls), posixpath.dirname):
            may_read = self._may_read(_canonical_location(folder))
            for url in files:
                # Only a few files are links, and to resolve the path of each file takes long.
                if not may_read or (not _is_url(url) and os.path.islink(url)):  # noqa: PTH114
                    self.refuse_outside(url)

    def refuse_outside(self, url: str) -> None:
        """Refuse a file outside of the readable locations.

        Raises:
            InvalidArgumentError: if the file is outside, before any access to it.
        """
        real = _canonical_location(url)
        if not self._may_read(real):
            is_link = not _is_url(url) and real != os.path.abspath(_strip_scheme(url))  # noqa: PTH100
            link = f", a link to {real}" if is_link else ""
            raise InvalidArgumentError(
                f"{self.storage.url}/{METADATA} references {url}{link}, which is outside of "
                "its folder and therefore not read. To allow it, name it or a folder above "
                f"it (--allow URL, or allow=); {_MOVED_HINT}"
            )

    def _may_read(self, real: str) -> bool:
        return any(real == root or real.startswith(f"{root}/") for root in self._readable)

    @cached_property
    def _readable(self) -> frozenset[str]:
        savepoint_folder = _canonical_location(self.storage.url)
        parent, _, name = savepoint_folder.rpartition("/")
        siblings = _CHECKPOINT_SIBLINGS if _CHECKPOINT.fullmatch(name) else ()
        user_folders = map(_canonical_location, (*(self.moved or {}).values(), *self.allowed))
        roots = (savepoint_folder, *(f"{parent}/{folder}" for folder in siblings), *user_folders)
        return frozenset(root.rstrip("/") for root in roots)


def open_location(folder: str, options: Mapping[str, Any] | None) -> Storage:
    """Return the storage of a folder; the Presto file system of Flink uses the scheme ``s3p``."""
    if folder.startswith(_PRESTO):
        folder = _S3 + folder.removeprefix(_PRESTO)
    return open_storage(folder, options)


def content_digest(operator: OperatorHandles, places: SavepointFiles) -> str:
    """Return the SHA-256 of an operator's state: of the bytes of all its handles.

    A savepoint can have the file names, the lengths and so the ``_metadata`` of another one.

    Raises:
        MissingFileError or DamagedFileError: if a file does not exist, or has another length.
        InvalidArgumentError or IncompatibleStateError: as :func:`open_source`.
    """
    what = f"state of operator {operator.id}"
    streams = dict.fromkeys(list_streams(operator.subtasks))

    def digest(stream: StreamHandle) -> bytes:
        source, total = open_source(stream, places, what), hashlib.sha256()
        for start in range(0, source.size, _DIGEST_BYTES):
            total.update(source.read(start, min(start + _DIGEST_BYTES, source.size)))
        return total.digest()

    with ThreadPoolExecutor(_DIGEST_THREADS) as pool:
        return hashlib.sha256(b"".join(pool.map(digest, streams))).hexdigest()


def read_metadata_file(storage: Storage, name: str = METADATA) -> bytes:
    """Return the bytes of ``_metadata``, or of such a file in a folder below.

    Raises:
        FileNotFoundError: if it does not exist.
        DamagedFileError: if it is larger than the limit of 1 GiB.
        StorageError: if it is not a regular file, or cannot be read.
    """
    size = storage.size(name)
    if size > _MOST_METADATA:
        raise DamagedFileError(
            f"{storage.url}/{name} has {size} bytes, but the limit is {_MOST_METADATA}"
        )
    return storage.read(name)


def _is_url(path: str) -> bool:
    return "://" in path and not path.startswith("file:")


def _canonical_location(url: str) -> str:
    """Return a canonical name of a location: a path without symbolic links, or a URL.

    A URL with ``..`` returns an empty name, so that no file counts as below it.
    """
    if not _is_url(url):
        return os.path.realpath(_strip_scheme(url))
    scheme, _, rest = url.partition("://")
    if ".." in rest.split("/"):
        return ""
    return f"{_SAME_SCHEMES.get(scheme, scheme)}://{posixpath.normpath(rest)}"


def _strip_scheme(path: str) -> str:
    if not path.startswith("file:"):
        return path
    return "/" + unquote(path.removeprefix("file:")).lstrip("/")


@dataclass(frozen=True)
class _InlineSource:
    name: str
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> bytes:
        _check_range(self.name, start, stop, self.size)
        return self.data[start:stop]


@dataclass(frozen=True)
class _StoredSource:
    name: str
    size: int
    storage: Storage
    file: str
    first: int = 0

    def read(self, start: int, stop: int) -> bytes:
        _check_range(self.name, start, stop, self.size)
        try:
            data = self.storage.read_range(self.file, self.first + start, self.first + stop)
        except FileNotFoundError:
            raise _missing_error(self.name) from None
        if len(data) != stop - start:
            raise DamagedFileError(
                f"{self.name} is truncated: it ends before byte {self.first + stop}"
            )
        return data


def _check_range(name: str, start: int, stop: int, size: int) -> None:
    if not 0 <= start <= stop <= size:
        raise DamagedFileError(
            f"{name} is damaged: bytes {start} to {stop} of it are referenced, but it has {size}"
        )


def _missing_error(name: str) -> MissingFileError:
    return MissingFileError(
        f"the file {name}, which the savepoint references, does not exist; {_MOVED_HINT}"
    )


def open_source(handle: StreamHandle, places: SavepointFiles, what: str) -> ByteSource:
    """Return the bytes of a handle; ``what`` is the name in messages of bytes without a file.

    Raises:
        InvalidArgumentError: for a file that may not be read; see :class:`SavepointFiles`.
        MissingFileError: if its file does not exist.
        DamagedFileError: if the file's length differs from the length in the handle.
        IncompatibleStateError: for a handle that has no bytes.
    """
    if isinstance(handle, InlineHandle):
        return _InlineSource(f"{places.storage.url}/_metadata ({what})", handle.data)
    if isinstance(handle, EmptyHandle):
        return _InlineSource(what, b"")
    if isinstance(handle, RelativeHandle):
        return _open_stored(places, places.storage, handle.path, handle)
    if isinstance(handle, FileHandle | SegmentHandle):
        url = places.url(handle.path)
        places.refuse_outside(url)
        folder, file = posixpath.split(url)
        try:
            return _open_stored(places, open_location(folder, places.options), file, handle)
        except StorageError as error:
            error.add_note(f"the savepoint references {folder} by an absolute path; {_MOVED_HINT}")
            raise
    raise IncompatibleStateError(
        f"{what} has a handle that is not a byte stream, which is not supported"
    )


def _open_stored(
    places: SavepointFiles,
    storage: Storage,
    file: str,
    handle: FileHandle | RelativeHandle | SegmentHandle,
) -> ByteSource:
    name = f"{storage.url}/{file}"
    try:
        path = storage.native_path(file)
        file_size = storage.size(file)
    except FileNotFoundError:
        raise _missing_error(name) from None
    except InvalidArgumentError as error:
        raise DamagedFileError(f"{storage.url}/{METADATA} references a file: {error}") from error
    if path is not None:
        places.refuse_outside(path)
    size, start = handle.size, 0
    if isinstance(handle, SegmentHandle):
        start, file_size = handle.start, min(size, file_size - handle.start)
    if file_size != size:
        raise DamagedFileError(
            (
                f"{name} has {max(file_size, 0)} bytes from byte {start} on, but the savepoint "
                f"says {size}"
            )
            if start
            else f"{name} has {file_size} bytes, but the savepoint says {size}"
        )
    return _StoredSource(name, size, storage, file, start)


BLOCK_BYTES = 8 * 2**20
"""The size of a block. A smaller key group is read with one request."""


@dataclass(frozen=True, slots=True)
class GroupBytes:
    """The location of a key group: the bytes from ``start`` to ``stop``.

    For a compressed key group, ``chunks`` is filled during the first complete read: with the start
    of each chunk, in the file and in the decompressed data. Otherwise it is None.
    """

    source: ByteSource
    key_group: int
    start: int
    stop: int
    chunks: list[tuple[int, int]] | None

    def window(self, begin: int = 0, end: int | None = None) -> Window:
        """Return the decompressed bytes from ``begin`` to ``end``, by default all of them.

        A part of a compressed key group can be read only after a complete read. The window raises
        DamagedFileError if the file is truncated, or is not a valid Snappy stream.
        """
        if self.chunks is None:
            stop = self.stop if end is None else self.start + end
            blocks = self._blocks(self.start + begin, stop)
            return Window(blocks, self.source.name, self.start + begin)
        name = f"{self.source.name} (key group {self.key_group}, decompressed)"
        return Window(self._decompress(begin, end), name, begin)

    def _blocks(self, start: int, stop: int) -> Iterator[bytes]:
        for offset in range(start, stop, BLOCK_BYTES):
            yield self.source.read(offset, min(offset + BLOCK_BYTES, stop))

    def _decompress(self, begin: int, end: int | None) -> Iterator[bytes]:
        """Yield decompressed bytes in blocks that are never empty."""
        assert self.chunks is not None, "they are compressed"
        parts = self._decompress_all() if end is None else self._decompress_range(begin, end)
        pending: list[bytes] = []
        size = 0
        for part in parts:
            pending.append(part)
            size += len(part)
            if size >= BLOCK_BYTES:
                yield b"".join(pending)
                pending, size = [], 0
        if size:
            yield b"".join(pending)

    def _decompress_all(self) -> Iterator[bytes]:
        assert self.chunks is not None, "they are compressed"
        self.chunks.clear()
        length = 0
        for offset, part in self._read_chunks(self.start, self.stop):
            self.chunks.append((offset, length))
            yield part
            length += len(part)

    def _decompress_range(self, begin: int, end: int) -> Iterator[bytes]:
        assert self.chunks is not None, "they are compressed"
        first = bisect_right(self.chunks, begin, key=lambda chunk: chunk[1]) - 1
        after = bisect_right(self.chunks, end - 1, key=lambda chunk: chunk[1])
        stop = self.chunks[after][0] if after < len(self.chunks) else self.stop
        start, upto = self.chunks[first]
        for _, part in self._read_chunks(start, stop):
            yield part[max(begin - upto, 0) : end - upto]
            upto += len(part)

    def _read_chunks(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield the position of each chunk in the file, and its decompressed bytes."""
        rest, offset = b"", start
        for block in self._blocks(start, stop):
            data = rest + block
            is_last = offset + len(data) == stop
            length = len(data) if is_last else whole_chunks(data)
            reader = Reader(memoryview(data)[:length], self.source.name, base=offset)
            if length and offset == self.start:
                reader.expect_prefix(memoryview(SNAPPY_HEAD), "a stream of Snappy")
            for begin, part in chunks(reader):
                yield offset + begin, part
            rest, offset = data[length:], offset + length


class Window:
    """A position in bytes that are loaded block by block; ``reader`` has the loaded bytes."""

    def __init__(self, blocks: Iterator[bytes], name: str, base: int) -> None:
        """Load the first block, and prefetch the next one."""
        self._blocks = blocks
        self._first = base
        self._next = next(blocks, None)
        self.reader = Reader(b"", name, base=base)
        self.load_more()

    @property
    def is_last(self) -> bool:
        """Whether all remaining bytes are loaded."""
        return self._next is None

    @property
    def place(self) -> int:
        """The reader's position, relative to the beginning of the window."""
        return self.reader.base + self.reader.position - self._first

    def load_more(self) -> None:
        """Load more bytes, so that the number of unread bytes at least doubles if possible."""
        unread = bytes(self.reader.data[self.reader.position :])
        parts, size = [unread], 0
        while self._next is not None and (not size or size < len(unread)):
            parts.append(self._next)
            size += len(self._next)
            self._next = next(self._blocks, None)
        base = self.reader.base + self.reader.position
        self.reader = Reader(b"".join(parts), self.reader.name, base=base)

    def require(self, count: int) -> Reader:
        """Return the reader with at least ``count`` unread bytes, unless fewer remain."""
        while self.reader.remaining < count and not self.is_last:
            self.load_more()
        return self.reader

    def load_all(self) -> Reader:
        """Return the reader with all remaining bytes loaded."""
        while not self.is_last:
            self.load_more()
        return self.reader
