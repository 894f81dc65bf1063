"""The bytes of a key group in a file, with random access.

With Snappy they are a stream of chunks, each compressed separately. To read a part, only the
chunks that contain it are read.
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
    """The location of a key group: the bytes from ``start`` to ``stop``.

    For a compressed key group, ``chunks`` has the start of each chunk, in the file and in the
    decompressed data. Otherwise it is None.
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
        """Return a key group and a reader of all its content; ``data`` are its bytes in the file.

        Raises DamagedFileError if it is not a valid Snappy stream.
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
        """Return a reader for the bytes from ``begin`` to ``end`` of the decompressed content."""
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
