"""A savepoint is written: streams of keyed state in the canonical form, then ``_metadata``.

``_metadata`` comes last, whole or not at all: a folder without it is no savepoint, to Flink as
well. All paths are relative, so that the folder can be moved.
"""

from __future__ import annotations

from collections.abc import Iterable

from statestore.catalog.catalog import refuse_inside_store
from statestore.errors import CommitConflictError, InvalidArgumentError
from statestore.interop.flink.canonical import KeyedHeader, header_bytes
from statestore.interop.flink.metadata import (
    InlineHandle,
    KeyGroupsHandle,
    OperatorHandle,
    RelativeHandle,
    SavepointMetadata,
)
from statestore.interop.flink.metadata_writer import metadata_v3
from statestore.interop.flink.streams import METADATA, Places, source_of
from statestore.storage import Storage

__all__ = ["SavepointWriter"]


class SavepointWriter:
    """A savepoint under way, in a folder that was empty."""

    def __init__(self, target: Storage) -> None:
        """Take a folder; InvalidArgumentError when something lies there, or it lies in a store."""
        refuse_inside_store(target, "a savepoint")
        if not target.is_empty():
            raise InvalidArgumentError(
                f"{target.url} is not empty: a savepoint is written to a new folder"
            )
        self._target = target
        self._files: list[str] = []

    def file(self, data: Iterable[bytes]) -> RelativeHandle:
        """Write a file of some pieces; return the handle that names it."""
        name = f"state-{len(self._files)}"
        size = 0
        self._files.append(name)
        with self._target.open_write(name) as file:
            for piece in data:
                size += file.write(piece)
        return RelativeHandle(name, size)

    def keyed(self, header: KeyedHeader, first: int, groups: Iterable[bytes]) -> KeyGroupsHandle:
        """Write a stream of keyed state; return the handle of a subtask that has it.

        Args:
            header: what it begins with.
            first: the first key group.
            groups: the bytes of each key group from that on, empty for one without entries.

        Returns:
            The handle.
        """
        head = header_bytes(header)
        offsets: list[int] = []

        def pieces() -> Iterable[bytes]:
            at = len(head)
            yield head
            for group in groups:
                offsets.append(at if group else 0)
                at += len(group)
                yield group

        stream = self.file(pieces())
        return KeyGroupsHandle(first, tuple(offsets), stream)

    def copied(
        self, handle: OperatorHandle | None, places: Places, title: str
    ) -> OperatorHandle | None:
        """Write the operator state of a subtask as it is; return its handle.

        Args:
            handle: that of the savepoint it comes from, None where there is none.
            places: where that has its files.
            title: what messages call the operator.

        Returns:
            The handle; small state stays in ``_metadata``.
        """
        if handle is None or isinstance(handle.stream, InlineHandle):
            return handle
        source = source_of(handle.stream, places, f"operator state of {title}")
        return OperatorHandle(handle.parts, self.file([source.read(0, source.size)]))

    def discard(self) -> None:
        """Delete what was written so far, so that the folder is empty again."""
        for name in self._files:
            self._target.delete(name)

    def finish(self, metadata: SavepointMetadata) -> None:
        """Write ``_metadata``, by which it is a savepoint; CommitConflictError if one is there."""
        self._target.sync(self._files)
        if not self._target.put_if_absent(METADATA, metadata_v3(metadata)):
            raise CommitConflictError(
                f"{self._target.url} was empty, and another has written a savepoint there since"
            )
