"""A data file as Arrow reads it: in few long pieces, on an object store several at once and ahead.

Arrow asks for one column of one row group after another. What it will ask for is known before, and
row groups lie side by side: so a piece is a whole row group, or on an object store as many bytes as
one request should bring, and the next pieces are under way while one is decoded. No byte is asked
for twice, and none that is not wanted.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

__all__ = ["PIECE_BYTES", "Piece", "RangedFile", "Streams", "joined", "streams_of"]

# A request costs some 20 ms before its first byte, and a stream brings some 50 MB/s: of smaller
# pieces the wait would be the larger part, with larger ones decoding begins late.
PIECE_BYTES = 4 * 2**20
# The first ones are smaller, so that decoding begins early.
_FIRST_BYTES = 2**20
# Pieces that wait to be decoded, for each that is under way: else streams stand idle meanwhile.
_AHEAD = 3, 2

Fetch = Callable[[int, int], Any]


class Streams:
    """How many requests this process has under way at once, whoever reads; and how much it holds.

    Bytes asked for ahead are at most ``1.5 * count * PIECE_BYTES``, of all readers together. What a
    reader needs to go on is not counted, so that none waits for another.
    """

    def __init__(self, count: int) -> None:
        """Take the number of requests; no thread is started yet."""
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="statestore-read")
        self._room = count * _AHEAD[0] // _AHEAD[1]
        self._queue: deque[Piece] = deque()
        self._lock = Lock()

    def ask(self, fetch: Fetch, start: int, stop: int) -> Future[Any]:
        """Ask for bytes; they come once a stream is free."""
        return self._pool.submit(fetch, start, stop)

    def queue(self, pieces: Iterable[Piece]) -> None:
        """Ask for pieces in this order, after those of other readers, as soon as there is room."""
        with self._lock:
            self._queue.extend(pieces)
            self._go_on()

    def release(self) -> None:
        """Give the room of a piece back; the next in the queue, whosever it is, takes it."""
        with self._lock:
            self._room += 1
            self._go_on()

    def _go_on(self) -> None:
        while self._room and self._queue:
            self._room -= self._queue.popleft().ask_ahead()


_STREAMS: dict[tuple[int, int], Streams] = {}


def streams_of(count: int) -> Streams | None:
    """Return what all readers of this process share; None for 1, where nothing is asked ahead."""
    if count <= 1:
        return None
    # By process: threads do not survive a fork. Two of one moment make two, and one is kept.
    return _STREAMS.setdefault((os.getpid(), count), Streams(count))


class Piece:
    """Bytes ``start`` to ``stop`` of a file: wanted, then asked for, then here, then dropped."""

    def __init__(self, start: int, stop: int, fetch: Fetch, streams: Streams | None) -> None:
        """Take the place in the file, what fetches it, and the streams to do it ahead, if any."""
        self.start, self.stop = start, stop
        self._fetch, self._streams = fetch, streams
        # A reader needs a piece, or drops it, while another one's thread takes it off the queue.
        self._lock = Lock()
        self._counted = self._dropped = False
        self._answer: Future[Any] | None = None
        self._data: memoryview | None = None

    def ask_ahead(self) -> bool:
        """Ask for the bytes; False when nobody waits for that any more. For the queue alone."""
        with self._lock:
            if self._streams is None or self._dropped or self._answer is not None:
                return False
            self._answer = self._streams.ask(self._fetch, self.start, self.stop)
            self._counted = True
            return True

    def data(self) -> memoryview:
        """Return the bytes once they are here, fewer only at the end of the file."""
        if self._data is None:
            with self._lock:
                if self._answer is None and self._streams is not None:
                    self._answer = self._streams.ask(self._fetch, self.start, self.stop)
            found = self._answer.result() if self._answer else self._fetch(self.start, self.stop)
            self._data = memoryview(found)
        return self._data

    def keep(self) -> None:
        """Count the bytes no longer among those that wait to be read."""
        with self._lock:
            counted, self._counted = self._counted, False
        if counted and self._streams is not None:
            self._streams.release()

    def drop(self) -> None:
        """Let go of the bytes; what was not begun is not asked for any more."""
        with self._lock:
            self._dropped = True
            if self._answer is not None:
                self._answer.cancel()
            self._answer = self._data = None
        self.keep()


class RangedFile:
    """A file of which only those bytes are held that are read next; Arrow takes it for a file."""

    def __init__(self, fetch: Fetch, tail: Piece, size: int, streams: Streams | None) -> None:
        """Take what fetches a range, the file's last bytes, which are kept, and its length."""
        self.tail = tail
        self._fetch, self._size, self._streams = fetch, size, streams
        self._pieces: list[Piece] = []
        self._position = 0
        self.closed = False

    def begin(self) -> None:
        """Ask for the tail ahead."""
        if self._streams is not None:
            self._streams.queue([self.tail])

    def keep_tail(self, tail: Piece) -> None:
        """Take the tail as it came, or a longer one; it is held from now on, and needs no room."""
        if tail is not self.tail:
            self.tail.drop()
        tail.keep()
        self.tail = tail

    def want(self, spans: Iterable[range]) -> None:
        """Say which bytes will be read next, in order; they are asked for from now on.

        What was said first holds: who wants all of a file says so before its footer is known.
        """
        if self._pieces:
            return
        clipped = (range(span.start, min(span.stop, self.tail.start)) for span in spans)
        cuts = [span for span in clipped if span]
        if self._streams is not None:
            cuts = _pieces_of(joined(cuts))
        self._pieces = [Piece(cut.start, cut.stop, self._fetch, self._streams) for cut in cuts]
        if self._streams is not None:
            self._streams.queue(self._pieces)

    def free(self, until: int) -> None:
        """Let go of all pieces that end here or before: they have been read."""
        while self._pieces and self._pieces[0].stop <= until:
            self._pieces.pop(0).drop()

    def read(self, size: int = -1) -> Any:
        """Return so many bytes, or all up to the end."""
        start = self._position
        stop = self._size if size < 0 else min(start + size, self._size)
        self._position = stop
        found = [
            piece.data()[max(start - piece.start, 0) : stop - piece.start]
            for piece in (*self._pieces, self.tail)
            if piece.start < stop and start < piece.stop
        ]
        if sum(map(len, found)) < stop - start:  # nobody said before that it was wanted
            found = [memoryview(self._fetch(start, stop))]
        if sum(map(len, found)) < stop - start:
            raise ValueError(f"it ends before byte {stop}")
        return found[0] if len(found) == 1 else b"".join(found)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a position; costs nothing."""
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
        """Let go of everything, and ask for nothing any more."""
        self.closed = True
        for piece in (*self._pieces, self.tail):
            piece.drop()
        self._pieces = []


def joined(spans: list[range]) -> list[range]:
    """Return the spans with those that touch made one."""
    found: list[range] = []
    for span in spans:
        if found and found[-1].stop == span.start:
            found[-1] = range(found[-1].start, span.stop)
        else:
            found.append(span)
    return found


def _pieces_of(spans: list[range]) -> list[range]:
    """Return the spans cut into requests: each twice as long as the one before, to some length."""
    pieces, size = [], _FIRST_BYTES
    for span in spans:
        start = span.start
        while start < span.stop:
            stop = min(start + size, span.stop)
            pieces.append(range(start, stop))
            start, size = stop, min(2 * size, PIECE_BYTES)
    return pieces
