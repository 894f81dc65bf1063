"""The bytes of a key group in a file, of which any part can be read again.

With Snappy they are a stream of chunks, each compressed by itself: of a part those are read in
which it lies.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from statestore.interop.flink.reader import Reader
from statestore.interop.flink.snappy import chunks, framed_chunks
from statestore.interop.flink.streams import ByteSource

__all__ = ["GroupBytes"]


@dataclass(frozen=True, slots=True)
class GroupBytes:
    """Where the bytes of a key group lie: from ``start`` to ``stop``.

    ``chunks`` has where each of a compressed one begins, in the file and in what they come to; it
    is None for one that is not compressed.
    """

    source: ByteSource
    key_group: int
    start: int
    stop: int
    chunks: tuple[tuple[int, int], ...] | None

    @staticmethod
    def read(
        source: ByteSource, key_group: int, start: int, data: bytes, *, is_compressed: bool
    ) -> tuple[GroupBytes, Reader]:
        """Return a key group, and a reader of all of it; ``data`` is what lies from ``start`` on.

        DamagedFileError when it is not as Snappy's streams are.
        """
        stop = start + len(data)
        if not is_compressed:
            group = GroupBytes(source, key_group, start, stop, None)
            return group, Reader(data, source.name, base=start)
        parts, places, length = [], [], 0
        for at, part in framed_chunks(memoryview(data), source.name, start):
            places.append((start + at, length))
            parts.append(part)
            length += len(part)
        group = GroupBytes(source, key_group, start, stop, tuple(places))
        return group, Reader(b"".join(parts), group._title)

    def part(self, begin: int, end: int) -> Reader:
        """Return a reader of the bytes from ``begin`` to ``end``, once they are decompressed."""
        if self.chunks is None:
            data = self.source.read(self.start + begin, self.start + end)
            return Reader(data, self.source.name, base=self.start + begin)
        first = bisect_right(self.chunks, begin, key=lambda one: one[1]) - 1
        after = bisect_right(self.chunks, end - 1, key=lambda one: one[1])
        start, upto = self.chunks[first]
        stop = self.chunks[after][0] if after < len(self.chunks) else self.stop
        packed = Reader(self.source.read(start, stop), self.source.name, base=start)
        plain = b"".join(part for _, part in chunks(packed))
        return Reader(plain[begin - upto : end - upto], self._title, base=begin)

    @property
    def _title(self) -> str:
        return f"{self.source.name} (key group {self.key_group}, decompressed)"
