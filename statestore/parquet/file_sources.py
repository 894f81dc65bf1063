"""Sources of a data file's bytes: a local copy, a file, or prefetched ranges of an object.

The source checks the file's length, and on request its SHA-256. A small file that is needed as a
whole is read with one request. Of other files, first the footer is read and then the requested
ranges, every byte once (I8).
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

import pyarrow as pa

from statestore.errors import DamagedFileError
from statestore.format.handles import Handle
from statestore.parquet.file_checks import END_BYTES, MAGIC, check_length, footer_bytes
from statestore.storage import CachedStorage, Storage

# A request takes about 20 ms until its first byte, and a stream transfers about 50 MB/s. With
# smaller pieces most of the time would be latency; with larger pieces decoding would begin late.
PIECE_BYTES = 4 * 2**20
# The first ones are smaller, so that decoding begins early.
_FIRST_BYTES = 2**20
# Pieces that wait to be decoded, per request in progress: with fewer, streams would be idle.
_AHEAD = 3, 2

Fetch = Callable[[int, int], Any]


class Streams:
    """Limits the parallel requests of all readers in this process, and their prefetched bytes.

    All readers together prefetch at most ``1.5 * count * PIECE_BYTES``. Bytes that a reader needs
    immediately are not counted, so that no reader waits for another.
    """

    def __init__(self, count: int) -> None:
        """Take the number of parallel requests; no thread is started yet."""
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="statestore-read")
        self._room = count * _AHEAD[0] // _AHEAD[1]
        self._queue: deque[ByteRange] = deque()
        self._lock = Lock()

    def ask(self, fetch: Fetch, start: int, stop: int) -> Future[Any]:
        """Request bytes as soon as a stream is free."""
        return self._pool.submit(fetch, start, stop)

    def queue(self, pieces: Iterable[ByteRange]) -> None:
        """Prefetch pieces in this order, after the pieces of other readers, within the limit."""
        with self._lock:
            self._queue.extend(pieces)
            self._start_next()

    def release(self) -> None:
        """Release the capacity of one piece to the next piece in the queue, of any reader."""
        with self._lock:
            self._room += 1
            self._start_next()

    def _start_next(self) -> None:
        while self._room and self._queue:
            self._room -= self._queue.popleft().ask_ahead()


_STREAMS: dict[tuple[int, int], Streams] = {}


def streams_of(count: int) -> Streams | None:
    """Return the streams that all readers of this process share; None for 1: no prefetch."""
    if count <= 1:
        return None
    # Per process, because threads do not survive a fork. A concurrent duplicate is discarded.
    return _STREAMS.setdefault((os.getpid(), count), Streams(count))


class ByteRange:
    """Bytes ``start`` to ``stop`` of a file: first wanted, then requested, received, dropped."""

    def __init__(self, start: int, stop: int, fetch: Fetch, streams: Streams | None) -> None:
        """Take the byte range, the function that reads it, and the streams for prefetch, if any."""
        self.start, self.stop = start, stop
        self._fetch, self._streams = fetch, streams
        # One thread may need or drop a piece while another thread takes it off the queue.
        self._lock = Lock()
        self._counted = self._dropped = False
        self._answer: Future[Any] | None = None
        self._data: memoryview | None = None

    def ask_ahead(self) -> bool:
        """Request the bytes; False if they are no longer needed. Only the queue calls this."""
        with self._lock:
            if self._streams is None or self._dropped or self._answer is not None:
                return False
            self._answer = self._streams.ask(self._fetch, self.start, self.stop)
            self._counted = True
            return True

    def data(self) -> memoryview:
        """Wait for the bytes and return them; there are fewer only at the end of the file."""
        if self._data is None:
            with self._lock:
                if self._answer is None and self._streams is not None:
                    self._answer = self._streams.ask(self._fetch, self.start, self.stop)
            answer = self._answer.result() if self._answer else self._fetch(self.start, self.stop)
            self._data = memoryview(answer)
        return self._data

    def keep(self) -> None:
        """Keep the bytes; they no longer count toward the prefetch limit."""
        with self._lock:
            counted, self._counted = self._counted, False
        if counted and self._streams is not None:
            self._streams.release()

    def drop(self) -> None:
        """Drop the bytes; a request that has not started is canceled."""
        with self._lock:
            self._dropped = True
            if self._answer is not None:
                self._answer.cancel()
            self._answer = self._data = None
        self.keep()


class RangedFile:
    """A file object for Arrow that holds only the bytes that are read next.

    Arrow requests one column of one row group after another. These reads are known in advance, and
    row groups are adjacent. So a piece is a whole row group or, on an object store, as many bytes
    as one request should transfer. The next pieces are prefetched while one is decoded.
    """

    def __init__(self, fetch: Fetch, tail: ByteRange, size: int, streams: Streams | None) -> None:
        """Take a function that reads a range, the file's tail, which is kept, and its length."""
        self.tail = tail
        self._fetch, self._size, self._streams = fetch, size, streams
        self._pieces: list[ByteRange] = []
        self._position = 0
        self.closed = False

    def begin(self) -> None:
        """Prefetch the tail."""
        if self._streams is not None:
            self._streams.queue([self.tail])

    def keep_tail(self, tail: ByteRange) -> None:
        """Keep the received tail, or a longer one; it no longer counts as prefetched."""
        if tail is not self.tail:
            self.tail.drop()
        tail.keep()
        self.tail = tail

    def want(self, spans: Iterable[range]) -> None:
        """Declare which bytes will be read next, in order, and start to prefetch them.

        Only the first call has an effect: readers of a whole file declare it before the footer is
        known.
        """
        if self._pieces:
            return
        clipped = (range(span.start, min(span.stop, self.tail.start)) for span in spans)
        cuts = [span for span in clipped if span]
        if self._streams is not None:
            cuts = _pieces_of(join_spans(cuts))
        self._pieces = [ByteRange(cut.start, cut.stop, self._fetch, self._streams) for cut in cuts]
        if self._streams is not None:
            self._streams.queue(self._pieces)

    def free(self, until: int) -> None:
        """Drop all pieces that end at or before this position: they have been read."""
        while self._pieces and self._pieces[0].stop <= until:
            self._pieces.pop(0).drop()

    def read(self, size: int = -1) -> Any:
        """Return the next ``size`` bytes, or all remaining bytes if it is negative."""
        start = self._position
        stop = self._size if size < 0 else min(start + size, self._size)
        self._position = stop
        pieces = [
            piece.data()[max(start - piece.start, 0) : stop - piece.start]
            for piece in (*self._pieces, self.tail)
            if piece.start < stop and start < piece.stop
        ]
        if sum(map(len, pieces)) < stop - start:  # the range was not declared
            pieces = [memoryview(self._fetch(start, stop))]
        if sum(map(len, pieces)) < stop - start:
            raise ValueError(f"it ends before byte {stop}")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a position, without any request."""
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Drop all bytes, and cancel all requests."""
        self.closed = True
        for piece in (*self._pieces, self.tail):
            piece.drop()
        self._pieces = []


def join_spans(spans: list[range]) -> list[range]:
    """Return the spans, with adjacent ones joined."""
    merged: list[range] = []
    for span in spans:
        if merged and merged[-1].stop == span.start:
            merged[-1] = range(merged[-1].start, span.stop)
        else:
            merged.append(span)
    return merged


def _pieces_of(spans: list[range]) -> list[range]:
    """Cut the spans into requests, each twice as long as the previous one, up to a limit."""
    pieces, size = [], _FIRST_BYTES
    for span in spans:
        start = span.start
        while start < span.stop:
            stop = min(start + size, span.stop)
            pieces.append(range(start, stop))
            start, size = stop, min(2 * size, PIECE_BYTES)
    return pieces


Source: TypeAlias = RangedFile | Any  # or pa.BufferReader, which has no types

WHOLE_FILE_BYTES = 32 * 2**20
"""Up to this size, a file that is needed as a whole is read with one call, like a row group."""

_CHUNK_BYTES = 2**20
# The guessed footer length of files whose manifest does not state it. It is generous, because a
# second request costs a round trip.
_FOOTER_BYTES, _FOOTER_BYTES_OF_ROW_GROUP = 64 * 2**10, 2**10

# Copies in the local cache that this process has verified, as identified at that time.
_VERIFIED: set[tuple[object, ...]] = set()


class PrefetchQueue:
    """Prefetches the next files while the rows of one are read."""

    def __init__(
        self, storage: Storage, folder: str, files: Sequence[tuple[Handle, bool]], verify: bool
    ) -> None:
        """Take the files in reading order, each with whether it is read as a whole."""
        self._storage, self._folder = storage, folder
        self._waiting = deque(() if verify or storage.streams == 1 else files)
        self._begun: deque[RangedFile | None] = deque()

    def next(self) -> RangedFile | None:
        """Return the next file, if it was requested, and request those after it."""
        while self._waiting and len(self._begun) <= self._storage.streams:
            handle, whole = self._waiting.popleft()
            name = f"{self._folder}/{handle.path}"
            self._begun.append(_begin_prefetch(self._storage, name, handle, whole=whole))
        return self._begun.popleft() if self._begun else None

    def __enter__(self) -> PrefetchQueue:
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel all requests."""
        for file in self._begun:
            if file is not None:
                file.close()


def _begin_prefetch(
    storage: Storage, name: str, handle: Handle, *, whole: bool
) -> RangedFile | None:
    """Prefetch a file from an object store; None if prefetch has no advantage.

    Its tail is requested, or with ``whole`` all of it, within the prefetch limit.
    """
    streams = streams_of(storage.streams)
    if streams is None or isinstance(storage, CachedStorage):
        return None
    return _open_ranged(storage, name, handle, whole)


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
    """Open the source that Arrow reads a file from; check its length and, with ``verify``, SHA-256.

    ``whole`` means that all of the file will be read, ``copy`` that a local cache keeps it.
    ``begun`` is a file that :class:`PrefetchQueue` returned. Raises DamagedFileError, or the
    storage's errors.
    """
    where = f"{storage.url}/{name}"
    kept = _local_copy(storage, name, handle, copy) if isinstance(storage, CachedStorage) else None
    if kept is None and verify:
        raw = _check_sha256(storage, name, handle)
        if raw is not None:
            yield pa.BufferReader(raw)
            return
    if kept is None and storage.streams > 1:
        file = begun or _open_ranged(storage, name, handle, whole)
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
        if whole and handle.size_bytes <= WHOLE_FILE_BYTES:
            yield pa.BufferReader(fetch(0, handle.size_bytes))
            return
        size = handle.size_bytes
        end = b"" if handle.footer else memoryview(fetch(max(size - END_BYTES, 0), size))
        start = _footer_start(handle, end)
        tail = b"".join((memoryview(fetch(start, size - len(end))), end))
        yield RangedFile(fetch, ByteRange(start, size, lambda *_: tail, None), size, None)


def _fetch_of(file: Any) -> Fetch:
    """Return a function that reads a range of an open file; Arrow's files use Arrow's memory."""
    read = file.read_buffer if isinstance(file, pa.NativeFile) else file.read

    def fetch(start: int, stop: int) -> Any:
        file.seek(start)
        return read(stop - start)

    return fetch


def _open_ranged(storage: Storage, name: str, handle: Handle, whole: bool) -> RangedFile:
    """Start to read an object: request its tail, and with ``whole`` also all earlier bytes."""
    streams, size = streams_of(storage.streams), handle.size_bytes

    def fetch(start: int, stop: int) -> bytes:
        return storage.read_range(name, start, stop)

    guess = (
        handle.footer.size_bytes
        if handle.footer
        else _FOOTER_BYTES + _FOOTER_BYTES_OF_ROW_GROUP * handle.row_groups
    )
    start = 0 if whole and size <= PIECE_BYTES else max(size - guess, 0)
    # Request one byte too many: a file that is too long is then detected without another request.
    file = RangedFile(fetch, ByteRange(start, size + 1, fetch, streams), size, streams)
    file.begin()
    if whole:
        file.want([range(len(MAGIC), start)])
    return file


def _complete_tail(file: RangedFile, storage: Storage, name: str, handle: Handle) -> None:
    """Wait for the tail of an object; check that it has the whole footer and ends the file."""
    tail, size = file.tail, handle.size_bytes
    received = tail.data()
    if len(received) != size - tail.start:
        check_length(f"{storage.url}/{name}", storage.size(name), handle)
        raise ValueError(f"it ends at byte {tail.start + len(received)}, but its length is {size}")
    start = _footer_start(handle, received[-END_BYTES:])
    if start < tail.start:
        rest = storage.read_range(name, start, tail.start)
        whole = b"".join((rest, received))
        tail = ByteRange(start, size, lambda *_: whole, None)
    file.keep_tail(tail)


def _footer_start(handle: Handle, end: bytes | memoryview) -> int:
    """Return where the footer begins, according to the manifest or to the end of the file.

    Raises ValueError if the file is not Parquet.
    """
    length = handle.footer.size_bytes if handle.footer else footer_bytes(end)
    start = handle.size_bytes - length
    if start < len(MAGIC):
        raise ValueError("it does not end like a Parquet file")
    return start


def _check_sha256(storage: Storage, name: str, handle: Handle) -> bytes | None:
    """Check a file's SHA-256; return its bytes, or None when it is too large to be held."""
    check_length(f"{storage.url}/{name}", storage.size(name), handle)
    raw = storage.read(name) if handle.size_bytes <= WHOLE_FILE_BYTES else None
    if raw is not None:
        digest = hashlib.sha256(raw).hexdigest()
    else:
        with storage.open_read(name) as file:
            digest = _sha256(file)
    if digest != handle.sha256:
        raise DamagedFileError(
            f"{storage.url}/{name} has changed since it was written: its SHA-256 is "
            f"{digest[:16]}…, "
            f"but the manifest says {handle.sha256[:16]}…; restore an older checkpoint, or "
            "recover the file from a backup"
        )
    return raw


def _local_copy(
    storage: CachedStorage, name: str, handle: Handle, make: bool
) -> pa.NativeFile | None:
    """Return the open local copy of a file if it has the handle's bytes, or None."""
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
    except OSError:  # another process has evicted the copy, or the disk fails: use the store
        return None
    storage.drop(name)
    return None


def _identity(path: Path, handle: Handle) -> tuple[object, ...]:
    """Return the properties of a copy that stay the same as long as nobody writes to it."""
    stat = path.stat()
    return path, stat.st_ino, stat.st_mtime_ns, stat.st_size, handle.sha256


def _sha256(file: Any) -> str:
    sha256 = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        sha256.update(chunk)
    return sha256.hexdigest()
