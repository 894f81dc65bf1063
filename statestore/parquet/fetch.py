"""A data file as Arrow reads it: in few long pieces, with parallel prefetch from an object store.

Arrow requests one column of one row group after another. The requests are known in advance, and
row groups are adjacent. A piece is therefore a whole row group or, on an object store, as many
bytes as one request should transfer. The next pieces are prefetched while one is decoded. No byte
is requested twice, and only bytes that are needed are requested.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

__all__ = ["PIECE_BYTES", "ByteRange", "RangedFile", "Streams", "join_spans", "streams_of"]


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
        """Stop counting the bytes as prefetched."""
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
    """A file object for Arrow that holds only the bytes that are read next."""

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
