"""Write a savepoint: first streams of keyed state in canonical format, then ``_metadata``.

``_metadata`` is written last and atomically. Without it, Flink does not accept a folder as a
savepoint. All paths are relative, so that the folder can be moved.
"""

from __future__ import annotations

from collections.abc import Iterable

from statestore.catalog.catalog import refuse_inside_store
from statestore.errors import CommitConflictError, InvalidArgumentError
from statestore.interop.flink.metadata.handles import (
    InlineHandle,
    KeyGroupsHandle,
    OperatorHandle,
    RelativeHandle,
    SavepointMetadata,
)
from statestore.interop.flink.metadata.writer import metadata_v3
from statestore.interop.flink.read.canonical import KeyedHeader, header_bytes
from statestore.interop.flink.read.savepoint_files import METADATA, Places, open_source
from statestore.storage import Storage


class SavepointWriter:
    """A savepoint that is being written to an empty folder."""

    def __init__(self, target: Storage) -> None:
        """Open a folder; InvalidArgumentError if it is not empty, or is inside of a store."""
        refuse_inside_store(target, "a savepoint")
        if not target.is_empty():
            raise InvalidArgumentError(
                f"{target.url} is not empty; choose a new folder for the savepoint"
            )
        self._target = target
        self._files: list[str] = []

    def write_file(self, data: Iterable[bytes]) -> RelativeHandle:
        """Write the pieces to a new file, and return its handle."""
        name = f"state-{len(self._files)}"
        size = 0
        self._files.append(name)
        with self._target.open_write(name) as file:
            for piece in data:
                size += file.write(piece)
        return RelativeHandle(name, size)

    def write_keyed(
        self, header: KeyedHeader, first: int, groups: Iterable[Iterable[bytes]]
    ) -> KeyGroupsHandle:
        """Write a stream of keyed state, and return its handle for a subtask.

        Args:
            header: the header of the stream.
            first: the first key group.
            groups: the bytes of each key group from ``first`` on, in chunks. A key group without
                entries has no chunks.

        Returns:
            The handle.
        """
        head = header_bytes(header)
        offsets: list[int] = []

        def pieces() -> Iterable[bytes]:
            position = len(head)
            yield head
            for group in groups:
                begin = position
                for piece in group:
                    position += len(piece)
                    yield piece
                offsets.append(begin if position > begin else 0)

        stream = self.write_file(pieces())
        return KeyGroupsHandle(first, tuple(offsets), stream)

    def copy_operator_state(
        self, handle: OperatorHandle | None, places: Places, title: str
    ) -> OperatorHandle | None:
        """Copy the operator state of a subtask without changes, and return its new handle.

        Args:
            handle: the handle in the source savepoint, or None.
            places: the locations of the source savepoint's files.
            title: the operator's name in messages.

        Returns:
            The handle; small state stays in ``_metadata``.
        """
        if handle is None or isinstance(handle.stream, InlineHandle):
            return handle
        source = open_source(handle.stream, places, f"operator state of {title}")
        return OperatorHandle(handle.parts, self.write_file([source.read(0, source.size)]))

    def discard(self) -> None:
        """Delete all files that were written, so that the folder is empty again."""
        for name in self._files:
            self._target.delete(name)

    def finish(self, metadata: SavepointMetadata) -> None:
        """Write ``_metadata``, which completes the savepoint; CommitConflictError if it exists."""
        self._target.sync(self._files)
        if not self._target.put_if_absent(METADATA, metadata_v3(metadata)):
            raise CommitConflictError(
                f"{self._target.url} was empty, but another process has written a savepoint "
                "there since; choose another folder"
            )
