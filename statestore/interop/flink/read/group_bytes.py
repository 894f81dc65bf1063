"""The bytes of a key group in a file, read in blocks, with random access to parts.

With Snappy they are a stream of chunks, each compressed separately. To read a part, only the
chunks that contain it are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.read.savepoint_files import ByteSource
from statestore.interop.flink.read.snappy import SNAPPY_HEAD, chunks, whole_chunks

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
