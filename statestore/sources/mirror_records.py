"""The records that MirrorMaker 2 writes about offsets: offset syncs and checkpoints.

Both are topics with one partition. Keys and values are fields in a row, without names: text is its
length in 2 bytes and then UTF-8, and numbers are signed, with the greatest byte first.

============= ================================== =================================================
record        key                                value
============= ================================== =================================================
offset sync   topic, partition (4 bytes)         offset at the source, offset at the target (8 each)
checkpoint    group, topic, partition (4 bytes)  version (2 bytes, 0), both offsets, metadata (text)
============= ================================== =================================================

An offset sync names the topic of the source cluster, and a checkpoint names the topic of the target
cluster. A record without a value deletes what is known under its key. These functions do no I/O.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from statestore.errors import CorruptionError

__all__ = ["KafkaRecord", "MirrorCheckpoint", "OffsetSync", "read_checkpoint", "read_offset_sync"]

_VERSION = 0
_LENGTH, _NUMBER, _OFFSETS = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">qq")


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record of a topic: its offset, its timestamp, and its bytes.

    ``is_append_time`` is True if the broker has set the timestamp.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    is_append_time: bool = False


@dataclass(frozen=True, slots=True)
class OffsetSync:
    """The record at ``source_offset`` of a source partition is at ``target_offset`` at the target.

    ``is_deleted`` is True for a record without a value, which deletes what is known of the
    partition. Both offsets are 0 then.
    """

    topic: str
    partition: int
    source_offset: int
    target_offset: int
    written_at_ms: int
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class MirrorCheckpoint:
    """A group that had read up to ``source_offset`` continues at ``target_offset`` at the target.

    ``topic`` is the name at the target. ``is_deleted`` is True for a record without a value, which
    deletes what is known of the group and partition. Both offsets are 0 then.
    """

    group: str
    topic: str
    partition: int
    source_offset: int
    target_offset: int
    written_at_ms: int
    is_deleted: bool = False


def read_offset_sync(record: KafkaRecord) -> OffsetSync:
    """Decode a record of the offset-syncs topic.

    Raises:
        CorruptionError: the bytes are not those of an offset sync. The message has no place, which
            the reader of the topic adds.
    """
    key = _Fields(record.key, "key")
    topic, partition = key.text("topic"), key.partition()
    key.end()
    if record.value is None:
        return OffsetSync(topic, partition, 0, 0, record.timestamp_ms, is_deleted=True)
    value = _Fields(record.value, "value")
    source, target = value.offsets()
    value.end()
    return OffsetSync(topic, partition, source, target, record.timestamp_ms)


def read_checkpoint(record: KafkaRecord) -> MirrorCheckpoint:
    """Decode a record of the checkpoints topic.

    Raises:
        CorruptionError: the bytes are not those of a checkpoint, or it has another version than 0.
            The message has no place, which the reader of the topic adds.
    """
    key = _Fields(record.key, "key")
    group, topic, partition = key.text("group"), key.text("topic"), key.partition()
    key.end()
    if record.value is None:
        return MirrorCheckpoint(group, topic, partition, 0, 0, record.timestamp_ms, is_deleted=True)
    value = _Fields(record.value, "value")
    version = value.number(_LENGTH, "version")
    if version != _VERSION:
        raise CorruptionError(f"the value has version {version}, but only {_VERSION} is known")
    source, target = value.offsets()
    value.text("metadata")
    value.end()
    return MirrorCheckpoint(group, topic, partition, source, target, record.timestamp_ms)


class _Fields:
    """The fields of a key or value, read in order."""

    def __init__(self, data: bytes | None, part: str) -> None:
        if data is None:
            raise CorruptionError(f"the {part} is missing")
        self._data, self._part, self._place = data, part, 0

    def number(self, form: struct.Struct, field: str) -> int:
        (number,) = form.unpack(self._take(form.size, field))
        return int(number)

    def text(self, field: str) -> str:
        length = self.number(_LENGTH, f"length of the {field}")
        if length < 0:
            raise CorruptionError(f"the {self._part} has a {field} of the length {length}")
        try:
            return self._take(length, field).decode()
        except UnicodeDecodeError as error:
            raise CorruptionError(f"the {self._part} has a {field} that is not UTF-8") from error

    def partition(self) -> int:
        partition = self.number(_NUMBER, "partition")
        if partition < 0:
            raise CorruptionError(f"the {self._part} has the partition {partition}")
        return partition

    def offsets(self) -> tuple[int, int]:
        source, target = _OFFSETS.unpack(self._take(_OFFSETS.size, "two offsets"))
        if source < 0 or target < 0:
            raise CorruptionError(
                f"the {self._part} has a negative offset: {source} at the source, {target} at "
                "the target"
            )
        return source, target

    def end(self) -> None:
        if left := len(self._data) - self._place:
            raise CorruptionError(f"the {self._part} has {left} more bytes than its fields")

    def _take(self, size: int, field: str) -> bytes:
        taken = self._data[self._place : self._place + size]
        if len(taken) < size:
            raise CorruptionError(
                f"the {self._part} of {len(self._data)} bytes ends in its {field}"
            )
        self._place += size
        return taken
