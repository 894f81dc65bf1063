"""Read and write ``_metadata``: the operators of a savepoint and the handles of their state.

Version 3 is written, because every Flink since 1.11 can restore it. Versions 2 to 6 are read, in
the format that ``MetadataV2V3SerializerBase`` and ``MetadataV2Serializer`` to
``MetadataV6Serializer`` write::

    i32 0x4960672d, i32 version
    i64 checkpoint id, i32 n, master states; i32 n, operators
    from version 4 on: ``CheckpointProperties``, serialized by Java
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from statestore.errors import FormatVersionError, IncompatibleStateError
from statestore.interop.flink.metadata.handles import (
    MODES,
    ChangelogHandle,
    ChannelHandle,
    EmptyHandle,
    FileChanges,
    FileHandle,
    IncrementalHandle,
    InlineChanges,
    InlineHandle,
    KeyedHandle,
    KeyGroupsHandle,
    KeyGroupsStream,
    MasterState,
    MergedFolders,
    OperatorHandle,
    OperatorHandles,
    OperatorPart,
    RelativeHandle,
    SavepointMetadata,
    SegmentHandle,
    StreamHandle,
    Subtask,
)
from statestore.interop.flink.metadata.java_binary import Reader, i8, i32, i64, utf

MAGIC = 0x4960672D
"""The magic number of a ``_metadata`` file."""

MASTER_MAGIC = 0xC96B1696 - (1 << 32)
_VERSIONS = range(2, 7)
_LENGTH_BYTES = 4
_SCOPES = 2  # CheckpointedStateScope: exclusive, shared
T = TypeVar("T")


class _MetadataReader(Reader):
    """A reader that remembers all paths of files, also in handles that are not returned."""

    __slots__ = ("paths",)

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data, name)
        self.paths: set[str] = set()


def read_metadata(data: bytes, name: str) -> SavepointMetadata:
    """Parse a ``_metadata`` file of version 2 to 6 (``Checkpoints``).

    Args:
        data: the whole file.
        name: the file's name in error messages.

    Returns:
        The operators, and the handles of their state.

    Raises:
        DamagedFileError: if the file is truncated or does not follow Flink's format.
        FormatVersionError: if the version is not supported.
    """
    reader = _MetadataReader(data, name)
    reader.expect(MAGIC, "the magic number of Flink's metadata,")
    version = reader.i32()
    if version not in _VERSIONS:
        raise FormatVersionError(
            f"{name} has version {version}, but only versions {_VERSIONS[0]} to "
            f"{_VERSIONS[-1]} are supported, which Flink 1.3 to 2.3 write"
        )
    checkpoint_id = reader.i64()
    if checkpoint_id < 0:
        raise reader.error(
            f"the checkpoint has the invalid id {checkpoint_id}", position=reader.position - 8
        )
    masters = tuple(_read_master_state(reader) for _ in range(reader.count(8, "master states")))
    operators = tuple(_read_operator(reader, version) for _ in range(reader.count(28, "operators")))
    properties = reader.bytes(reader.remaining) if version >= 4 else b""
    if version >= 4 and properties[:4] != b"\xac\xed\x00\x05":
        raise reader.error("the checkpoint's properties do not follow the operators")
    reader.end("the last operator")
    paths = frozenset(reader.paths)
    return SavepointMetadata(version, checkpoint_id, operators, masters, properties, paths)


def _read_master_state(reader: _MetadataReader) -> MasterState:
    reader.expect(MASTER_MAGIC, "the magic number of a master state")
    inner = reader.part(reader.i32())
    version, name = inner.i32(), inner.utf()
    data = inner.bytes(inner.i32())
    inner.end("a master state")
    return MasterState(name, version, data)


def _read_operator(reader: _MetadataReader, version: int) -> OperatorHandles:
    name = uid = ""
    if version >= 5:
        name, uid = reader.utf(), reader.utf()
    operator_id = reader.bytes(16).hex()
    begin = reader.position
    parallelism, max_parallelism = reader.i32(), reader.i32()
    # FullyFinishedOperatorState keeps the parallelism too; -1 means that no maximum was set.
    if not 0 < parallelism <= 1 << 15 or not -1 <= max_parallelism <= 1 << 15:
        raise reader.error(
            (
                f"operator {operator_id} has parallelism {parallelism} but max parallelism "
                f"{max_parallelism}"
            ),
            position=begin,
        )
    coordinator = None
    if version == 2:
        reader.i32()  # the length of the chain, always 1
    else:
        begin = reader.position
        handle = _read_stream_handle(reader)
        if handle is not None and not isinstance(handle, InlineHandle):
            raise reader.error(
                "the state of a coordinator is not in the metadata file", position=begin
            )
        coordinator = handle
    number = reader.i32()
    is_finished = number < 0 and version >= 3
    if (number < 0 and not is_finished) or number > min(parallelism, reader.remaining // 4):
        raise reader.error(
            f"operator {operator_id} has {number} subtasks but parallelism {parallelism}",
            position=reader.position - 4,
        )
    subtasks = tuple(_read_subtask(reader, version, parallelism) for _ in range(max(number, 0)))
    if len({subtask.index for subtask in subtasks}) < len(subtasks):
        raise reader.error(f"operator {operator_id} has the same subtask twice")
    return OperatorHandles(
        operator_id,
        parallelism,
        max_parallelism,
        subtasks,
        coordinator,
        name or None,
        uid or None,
        is_finished,
    )


def _read_subtask(reader: _MetadataReader, version: int, parallelism: int) -> Subtask:
    index = reader.i32()
    is_finished = index < 0 and version >= 3
    if is_finished:
        index = -(index + 1)
    if not 0 <= index < parallelism:
        raise reader.error(
            f"the subtask index {index} is not below the parallelism {parallelism}",
            position=reader.position - 4,
        )
    if is_finished:
        return Subtask(index, is_finished=True)
    if version == 2:
        reader.i64()  # the duration of the checkpoint
        if reader.i32() > 0:
            raise reader.error("this is state of Flink 1.1, which no later Flink reads")
    managed = _read_operator_handle(reader) if reader.i32() else None
    raw = _read_operator_handle(reader) if reader.i32() else None
    keyed, raw_keyed = _read_keyed_handle(reader), _read_keyed_handle(reader)
    channels: tuple[ChannelHandle, ...] = ()
    if version >= 3:
        channels = (
            *_read_channels(reader, version, "input"),
            *_read_channels(reader, version, "output"),
        )
    return Subtask(index, False, managed, raw, keyed, raw_keyed, channels)


def _read_operator_handle(reader: _MetadataReader) -> OperatorHandle | None:
    tag = reader.i8()
    if tag == 0:
        return None
    if tag not in (4, 17):
        raise reader.error(f"{tag} is not a kind of operator state", position=reader.position - 1)
    parts = tuple(_read_part(reader) for _ in range(reader.count(7, "operator states")))
    merged = None
    if tag == 17:
        merged = MergedFolders(reader.utf(), reader.utf(), reader.bool())
    return OperatorHandle(parts, _read_stream_handle(reader), merged)


def _read_part(reader: _MetadataReader) -> OperatorPart:
    name = reader.utf()
    mode = reader.u8()
    if mode >= len(MODES):
        raise reader.error(
            f"{mode} is not a redistribution mode (state {name!r})", position=reader.position - 1
        )
    return OperatorPart(name, MODES[mode], _read_offsets(reader, reader.count(8, "elements")))


def _read_offsets(reader: _MetadataReader, count: int) -> tuple[int, ...]:
    """Return a list of offsets; a negative offset is an error."""
    begin = reader.position
    offsets = tuple(memoryview(reader.bytes(8 * count)[::-1]).cast("q"))[::-1]
    if offsets and min(offsets) < 0:
        raise reader.error(f"the offset {min(offsets)} is negative", position=begin)
    return offsets


def _read_range(reader: _MetadataReader) -> tuple[int, int]:
    begin = reader.position
    first, count = reader.i32(), reader.i32()
    if first < 0 or count < 0 or first + count > 1 << 15:
        raise reader.error(f"{count} key groups from {first} on are out of range", position=begin)
    return first, count


def _read_keyed_handle(reader: _MetadataReader) -> KeyedHandle:
    tag = reader.i8()
    if tag == 0:
        return None
    if tag in (3, 7, 12):
        first, count = _read_range(reader)
        offsets = _read_offsets(reader, count)
        stream = _read_stream_handle(reader)
        return KeyGroupsHandle(
            first, offsets, stream, tag == 7, reader.utf() if tag == 12 else None
        )
    if tag in (5, 11):
        return _read_incremental_handle(reader, tag)
    if tag in _CHANGES:
        first, count = _read_range(reader)
        return _CHANGES[tag](reader, tag, first, count)
    if tag in _CHANGELOGS:
        first, count = _read_range(reader)
        with reader.nested("handles"):
            return _read_changelog(reader, tag, first, count)
    raise reader.error(f"{tag} is not a kind of keyed state", position=reader.position - 1)


def _read_incremental_handle(reader: _MetadataReader, tag: int) -> IncrementalHandle:
    checkpoint_id, backend = reader.i64(), reader.utf()
    first, count = _read_range(reader)
    size = reader.i64() if tag == 11 else None
    meta, shared, private = _read_stream_handle(reader), _read_files(reader), _read_files(reader)
    handle_id = reader.utf() if tag == 11 else None
    return IncrementalHandle(
        checkpoint_id, backend, first, count, meta, shared, private, size, handle_id
    )


def _read_files(reader: _MetadataReader) -> tuple[tuple[str, StreamHandle], ...]:
    return tuple(
        (reader.utf(), _read_stream_handle(reader)) for _ in range(reader.count(3, "files"))
    )


def _read_changelog(reader: _MetadataReader, tag: int, first: int, count: int) -> KeyedHandle:
    """Read a ``ChangelogStateBackendHandle``; without changes, return its materialized state."""
    size = reader.i64()
    materialized, changes = (
        tuple(_read_keyed_handle(reader) for _ in range(reader.count(1, "handles")))
        for _ in range(2)
    )
    ids = reader.bytes(16 if tag == 14 else 8)
    handle_id = reader.utf()
    has_changes = any(
        not isinstance(handle, InlineChanges | FileChanges) or handle.has_changes
        for handle in changes
    )
    if has_changes or len(materialized) > 1:
        return ChangelogHandle(first, count, size, materialized, changes, ids, handle_id)
    return materialized[0] if materialized else None


def _read_inline_changes(
    reader: _MetadataReader, tag: int, first: int, count: int
) -> InlineChanges:
    bounds = reader.bytes(16)
    changes = tuple(
        (reader.i32(), reader.bytes(reader.i32())) for _ in range(reader.count(8, "changes"))
    )
    return InlineChanges(first, count, changes, bounds, reader.utf())


def _read_changes_in_files(
    reader: _MetadataReader, tag: int, first: int, count: int
) -> FileChanges:
    streams = tuple(
        (reader.i64(), _read_stream_handle(reader)) for _ in range(reader.count(9, "changes"))
    )
    bounds, handle_id = reader.bytes(16), reader.utf()
    return FileChanges(
        first, count, streams, bounds, handle_id, reader.utf() if tag == 13 else None
    )


_CHANGELOGS = (8, 14)
_CHANGES: dict[int, Callable[[_MetadataReader, int, int, int], InlineChanges | FileChanges]] = {
    9: _read_inline_changes,
    10: _read_changes_in_files,
    13: _read_changes_in_files,
}


def _read_channels(
    reader: _MetadataReader, version: int, direction: Literal["input", "output"]
) -> tuple[ChannelHandle, ...]:
    """Return the handles with in-flight records (``ChannelStateHandleSerializerV1`` and ``V2``).

    A record begins with its length in four bytes (``ChannelStateSerializerImpl``). So a handle
    with four bytes for each offset has only records of length 0, and is skipped.
    """
    channels = []
    for _ in range(reader.count(13, "channels")):
        tag = reader.u8() if version >= 6 else 1
        empty_size = 0
        if tag in (1, 2):  # subtask, gate and channel; offsets; size
            reader.take(12)
            empty_size = _LENGTH_BYTES * len(_read_offsets(reader, reader.count(8, "offsets")))
            size = reader.i64()
            _read_stream_handle(reader)
        elif tag in (3, 4):  # merged: subtask and size; the offsets of all channels come last
            reader.i32()
            size = reader.i64()
            _read_stream_handle(reader)
            reader.take(reader.i32())
        else:
            raise reader.error(
                f"{tag} is not a kind of in-flight records", position=reader.position - 1
            )
        if size != empty_size:
            channels.append(ChannelHandle(direction, size))
    return tuple(channels)


def _read_stream_handle(reader: _MetadataReader) -> StreamHandle:
    tag = reader.u8()
    if tag == 0:
        return None
    if tag == 1:
        return InlineHandle(reader.utf(), reader.bytes(reader.i32()))
    if tag == 2:
        size = _read_size(reader)
        return FileHandle(_read_path(reader), size)
    if tag == 3:
        first, count = _read_range(reader)
        offsets = _read_offsets(reader, count)
        with reader.nested("handles"):
            return KeyGroupsStream(first, offsets, _read_stream_handle(reader))
    if tag == 6:
        return RelativeHandle(_read_path(reader), _read_size(reader))
    if tag == 15:
        start, size, scope = _read_size(reader), _read_size(reader), reader.i32()
        if not 0 <= scope < _SCOPES:
            raise reader.error(f"{scope} is not a scope of a file", position=reader.position - 4)
        return SegmentHandle(start, size, scope, _read_path(reader), reader.utf())
    if tag == 16:
        return EmptyHandle()
    raise reader.error(f"{tag} is not a kind of stream", position=reader.position - 1)


def _read_path(reader: _MetadataReader) -> str:
    begin = reader.position
    path = reader.utf()
    if not path or "\0" in path:
        raise reader.error(f"{path!r} is not a path", position=begin)
    reader.paths.add(path)
    return path


def _read_size(reader: _MetadataReader) -> int:
    size = reader.i64()
    if size < 0:
        raise reader.error(f"the length {size} is negative", position=reader.position - 8)
    return size


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
