"""Write ``_metadata`` in version 3, which every Flink since 1.11 can restore.

:mod:`statestore.interop.flink.metadata.reader` reads this format.
"""

from __future__ import annotations

from statestore.errors import IncompatibleStateError
from statestore.interop.flink.metadata.handles import (
    MODES,
    ChangelogHandle,
    EmptyHandle,
    FileChanges,
    FileHandle,
    InlineChanges,
    InlineHandle,
    KeyedHandle,
    KeyGroupsHandle,
    KeyGroupsStream,
    OperatorHandle,
    OperatorHandles,
    RelativeHandle,
    SavepointMetadata,
    StreamHandle,
)
from statestore.interop.flink.metadata.java_binary import i8, i32, i64, utf
from statestore.interop.flink.metadata.reader import MAGIC, MASTER_MAGIC

_TWO_IDS = 16  # the bytes of the ids of a changelog's materialization and checkpoint


def metadata_v3(metadata: SavepointMetadata) -> bytes:
    """Return the bytes of a ``_metadata`` file of version 3 (``MetadataV3Serializer``).

    This version has no operator names, no uids and no properties. Raises IncompatibleStateError for
    in-flight records, which a savepoint of this package never contains.
    """
    parts = [i32(MAGIC), i32(3), i64(metadata.checkpoint_id), i32(len(metadata.master_states))]
    for master in metadata.master_states:
        inner = i32(master.version) + utf(master.name) + i32(len(master.data)) + master.data
        parts += [i32(MASTER_MAGIC), i32(len(inner)), inner]
    parts.append(i32(len(metadata.operators)))
    parts += map(_encode_operator, metadata.operators)
    return b"".join(parts)


def _encode_operator(operator: OperatorHandles) -> bytes:
    parts = [
        bytes.fromhex(operator.id),
        i32(operator.parallelism),
        i32(operator.max_parallelism),
        _encode_stream_handle(operator.coordinator),
        i32(-1 if operator.is_finished else len(operator.subtasks)),
    ]
    for subtask in operator.subtasks:
        if subtask.is_finished:
            parts.append(i32(-(subtask.index + 1)))
            continue
        if subtask.channels:
            raise IncompatibleStateError(
                f"operator {operator.id} has in-flight records, which a savepoint cannot contain"
            )
        parts.append(i32(subtask.index))
        parts += map(_encode_operator_handle, (subtask.operator, subtask.raw_operator))
        parts += [
            _encode_keyed_handle(subtask.keyed),
            _encode_keyed_handle(subtask.raw_keyed),
            i32(0),
            i32(0),
        ]
    return b"".join(parts)


def _encode_operator_handle(handle: OperatorHandle | None) -> bytes:
    if handle is None:
        return i32(0)
    parts = [i32(1), i8(4 if handle.merged is None else 17), i32(len(handle.parts))]
    for part in handle.parts:
        parts += [utf(part.name), i8(MODES.index(part.mode)), i32(len(part.offsets))]
        parts += map(i64, part.offsets)
    if handle.merged is not None:
        folders = handle.merged
        parts += [utf(folders.task), utf(folders.shared), i8(folders.is_empty)]
    return b"".join((*parts, _encode_stream_handle(handle.stream)))


def _encode_keyed_handle(handle: KeyedHandle) -> bytes:
    if handle is None:
        return i8(0)
    if isinstance(handle, ChangelogHandle | InlineChanges | FileChanges):
        return _encode_changelog(handle)
    if isinstance(handle, KeyGroupsHandle):
        tag = 7 if handle.is_savepoint else 3 if handle.handle_id is None else 12
        last = () if tag != 12 or handle.handle_id is None else (utf(handle.handle_id),)
        return b"".join((i8(tag), _encode_range(handle), *last))
    parts = [
        i8(5 if handle.handle_id is None else 11),
        i64(handle.checkpoint_id),
        utf(handle.backend),
        i32(handle.first),
        i32(handle.count),
    ]
    if handle.handle_id is not None:
        parts.append(i64(handle.size or 0))
    parts.append(_encode_stream_handle(handle.meta))
    for files in (handle.shared, handle.private):
        parts.append(i32(len(files)))
        parts += [utf(name) + _encode_stream_handle(stream) for name, stream in files]
    return b"".join(parts) + (b"" if handle.handle_id is None else utf(handle.handle_id))


def _encode_changelog(handle: ChangelogHandle | InlineChanges | FileChanges) -> bytes:
    """Encode a handle of the changelog state backend."""
    part = i32(handle.first) + i32(handle.count)
    if isinstance(handle, InlineChanges):
        changes = (i32(group) + i32(len(data)) + data for group, data in handle.changes)
        head = i8(9) + part + handle.bounds + i32(len(handle.changes))
        return b"".join((head, *changes, utf(handle.handle_id)))
    if isinstance(handle, FileChanges):
        streams = (i64(offset) + _encode_stream_handle(stream) for offset, stream in handle.streams)
        head = i8(10 if handle.storage is None else 13) + part + i32(len(handle.streams))
        last = b"" if handle.storage is None else utf(handle.storage)
        return b"".join((head, *streams, handle.bounds, utf(handle.handle_id), last))
    parts = [i8(14 if len(handle.ids) == _TWO_IDS else 8), part, i64(handle.size)]
    for handles in (handle.materialized, handle.changes):
        parts += [i32(len(handles)), *map(_encode_keyed_handle, handles)]
    return b"".join((*parts, handle.ids, utf(handle.handle_id)))


def _encode_range(handle: KeyGroupsHandle | KeyGroupsStream) -> bytes:
    offsets = b"".join(map(i64, handle.offsets))
    return (
        i32(handle.first)
        + i32(len(handle.offsets))
        + offsets
        + _encode_stream_handle(handle.stream)
    )


def _encode_stream_handle(handle: StreamHandle) -> bytes:
    if handle is None:
        return i8(0)
    if isinstance(handle, InlineHandle):
        return i8(1) + utf(handle.name) + i32(len(handle.data)) + handle.data
    if isinstance(handle, FileHandle):
        return i8(2) + i64(handle.size) + utf(handle.path)
    if isinstance(handle, KeyGroupsStream):
        return i8(3) + _encode_range(handle)
    if isinstance(handle, RelativeHandle):
        return i8(6) + utf(handle.path) + i64(handle.size)
    if isinstance(handle, EmptyHandle):
        return i8(16)
    return b"".join(
        (
            i8(15),
            i64(handle.start),
            i64(handle.size),
            i32(handle.scope),
            utf(handle.path),
            utf(handle.file_id),
        )
    )
