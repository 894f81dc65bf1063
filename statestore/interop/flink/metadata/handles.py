"""Handles of a savepoint's state: where the bytes of operators and subtasks are.

They have the fields of Flink's classes, which ``_metadata`` contains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Literal, TypeAlias

Mode = Literal["split", "union", "broadcast"]
MODES: tuple[Mode, ...] = ("split", "union", "broadcast")
"""Redistribution modes of operator state; the index of each is its number in the file."""

_STATE_DESCRIPTION = -1  # the key group of a change that only describes a state


@dataclass(frozen=True, slots=True)
class InlineHandle:
    """``ByteStreamStateHandle``: holds the bytes itself."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class FileHandle:
    """``FileStateHandle``: a file with an absolute path."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class RelativeHandle:
    """``RelativeFileStateHandle``: a file in the folder of ``_metadata``."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class SegmentHandle:
    """``SegmentFileStateHandle``: a segment of a file that several handles share."""

    start: int
    size: int
    scope: int
    path: str
    file_id: str


@dataclass(frozen=True, slots=True)
class EmptyHandle:
    """``EmptySegmentFileStateHandle``: no bytes."""


@dataclass(frozen=True, slots=True)
class KeyGroupsStream:
    """``KeyGroupsStateHandle`` in a position where a stream handle is expected."""

    first: int
    offsets: tuple[int, ...]
    stream: StreamHandle


StreamHandle: TypeAlias = (
    InlineHandle
    | FileHandle
    | RelativeHandle
    | SegmentHandle
    | EmptyHandle
    | KeyGroupsStream
    | None
)


_STREAMS = (
    *(InlineHandle, FileHandle, RelativeHandle, SegmentHandle, EmptyHandle, KeyGroupsStream),
)


@dataclass(frozen=True, slots=True)
class KeyGroupsHandle:
    """``KeyGroupsStateHandle``, or ``KeyGroupsSavepointStateHandle`` of a canonical savepoint.

    ``offsets`` are the positions in the stream where each key group begins, starting with key group
    ``first``. The handle of a savepoint has no id.
    """

    first: int
    offsets: tuple[int, ...]
    stream: StreamHandle
    is_savepoint: bool = True
    handle_id: str | None = None

    @property
    def count(self) -> int:
        """The number of key groups."""
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class IncrementalHandle:
    """``IncrementalRemoteKeyedStateHandle``: RocksDB files with the names that RocksDB uses."""

    checkpoint_id: int
    backend: str
    first: int
    count: int
    meta: StreamHandle
    shared: tuple[tuple[str, StreamHandle], ...]
    private: tuple[tuple[str, StreamHandle], ...]
    size: int | None = None
    handle_id: str | None = None


@dataclass(frozen=True, slots=True)
class InlineChanges:
    """``InMemoryChangelogStateHandle``: changes by key group. Their content is not interpreted.

    ``bounds`` are the bytes of its sequence numbers.
    """

    first: int
    count: int
    changes: tuple[tuple[int, bytes], ...]
    bounds: bytes
    handle_id: str

    @property
    def has_changes(self) -> bool:
        """Whether it changes rows, and does not only describe states."""
        return any(key_group != _STATE_DESCRIPTION for key_group, _ in self.changes)


@dataclass(frozen=True, slots=True)
class FileChanges:
    """``ChangelogStateHandleStreamImpl``: streams with changes, each from an offset on.

    ``bounds`` are the bytes of its sizes. Newer versions of Flink name the ``storage``.
    """

    first: int
    count: int
    streams: tuple[tuple[int, StreamHandle], ...]
    bounds: bytes
    handle_id: str
    storage: str | None

    @property
    def has_changes(self) -> bool:
        """Whether it has files with changes."""
        return bool(self.streams)


@dataclass(frozen=True, slots=True)
class ChangelogHandle:
    """``ChangelogStateBackendHandle``: materialized state, and the changes to it.

    The changes cannot be read. ``ids`` are the bytes of the ids of its materialization and its
    checkpoint.
    """

    first: int
    count: int
    size: int
    materialized: tuple[KeyedHandle, ...]
    changes: tuple[KeyedHandle, ...]
    ids: bytes
    handle_id: str


KeyedHandle: TypeAlias = (
    KeyGroupsHandle | IncrementalHandle | ChangelogHandle | InlineChanges | FileChanges | None
)


CHANGELOG_HANDLES = (ChangelogHandle, InlineChanges, FileChanges)
"""The handles of the changelog state backend."""


@dataclass(frozen=True, slots=True)
class OperatorPart:
    """The positions in a stream where the elements of a list or broadcast state begin."""

    name: str
    mode: Mode
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MergedFolders:
    """The extra fields of ``FileMergingOperatorStreamStateHandle``: the folders of merged files."""

    task: str
    shared: str
    is_empty: bool


@dataclass(frozen=True, slots=True)
class OperatorHandle:
    """``OperatorStreamStateHandle``: the operator state of a subtask."""

    parts: tuple[OperatorPart, ...]
    stream: StreamHandle
    merged: MergedFolders | None = None


@dataclass(frozen=True, slots=True)
class ChannelHandle:
    """In-flight records of an ``input`` or ``output`` channel, and their size in bytes."""

    direction: Literal["input", "output"]
    size: int


@dataclass(frozen=True, slots=True)
class Subtask:
    """``OperatorSubtaskState``: the state of one subtask of an operator.

    ``_metadata`` does not tell whether raw keyed state has timers. If its bytes do, it is moved
    from ``raw_keyed`` to ``timers`` when the savepoint is opened.
    """

    index: int
    is_finished: bool = False
    operator: OperatorHandle | None = None
    raw_operator: OperatorHandle | None = None
    keyed: KeyedHandle = None
    raw_keyed: KeyedHandle = None
    channels: tuple[ChannelHandle, ...] = ()
    timers: KeyGroupsHandle | None = None


def list_streams(part: object) -> Iterator[StreamHandle]:
    """Yield all stream handles in a subtask's state, or in a part of it, in the order of fields."""
    if isinstance(part, _STREAMS):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from list_streams(item)
    elif is_dataclass(part):
        for field in fields(part):
            yield from list_streams(getattr(part, field.name))


@dataclass(frozen=True, slots=True)
class OperatorHandles:
    """``OperatorHandles``: an operator, identified by the hash of its uid, and its subtasks.

    ``name`` and ``uid`` are None if the file does not contain them, as before version 5.
    """

    id: str
    parallelism: int
    max_parallelism: int
    subtasks: tuple[Subtask, ...] = ()
    coordinator: InlineHandle | None = None
    name: str | None = None
    uid: str | None = None
    is_finished: bool = False


@dataclass(frozen=True, slots=True)
class MasterState:
    """``MasterState``: the state that a hook of the job stored."""

    name: str
    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SavepointMetadata:
    """``CheckpointMetadata``; ``properties`` are serialized by Java, empty before version 4.

    ``paths`` are those of all files that the file names, also of empty in-flight records. They are
    empty for metadata that was not read from a file.
    """

    version: int
    checkpoint_id: int
    operators: tuple[OperatorHandles, ...]
    master_states: tuple[MasterState, ...] = ()
    properties: bytes = b""
    paths: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
