"""Translate offsets of one Kafka cluster to another, and parse MirrorMaker 2's records for it.

An offset sync says where the copy of one source record is at the target. MirrorMaker writes one now
and then, so most offsets are between two syncs. The copy of a record after a sync is after the copy
of the sync's record, and nothing else is certain: compaction and transactions leave gaps at the
source, and a restart copies records twice. A translation is therefore never too late. It is exact,
or it is earlier by at most a known number of records, or it is unknown. Second copies of records
after the last sync are not known, and not in that number.

The syncs of a partition count from the last time when one of the two offsets went back. Before
that, one of the two topics was another one, or MirrorMaker started again from an older offset.
These functions do no I/O.

MirrorMaker's records are in topics with one partition. Keys and values are fields in a row, without
names: text is its length in 2 bytes and then UTF-8, and numbers are signed, with the greatest byte
first.

============= ================================== =================================================
record        key                                value
============= ================================== =================================================
offset sync   topic, partition (4 bytes)         offset at the source, offset at the target (8 each)
checkpoint    group, topic, partition (4 bytes)  version (2 bytes, 0), both offsets, metadata (text)
============= ================================== =================================================

An offset sync names the topic of the source cluster, and a checkpoint names the topic of the target
cluster. A record without a value deletes what is known under its key.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from statestore.display import duration
from statestore.errors import CorruptionError
from statestore.sources.offsets import SourceOffset

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


Partition = tuple[str, int]


class Precision(StrEnum):
    """How well the translated offset is known."""

    EXACT = "exact"
    EARLIER = "earlier"
    BY_TIMESTAMP = "by timestamp"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A stored offset of the source cluster, and the next offset to read at the target.

    ``topic`` is the name at the target. ``offset`` is None if it is unknown. ``read_again`` is the
    greatest number of records that are read a second time; None if it is unknown. ``sync`` has the
    source and target offsets of the last sync at or before the stored offset, or else those of the
    partition's first sync. ``gap_ms`` is the time from the next source record to the next target
    record, for an offset by timestamp.
    """

    stored: SourceOffset
    topic: str
    precision: Precision
    offset: int | None
    read_again: int | None
    reason: str
    sync: tuple[int, int] | None = None
    gap_ms: int | None = None

    def proven(self, offset: int) -> Translation:
        """Return this translation with an offset that a comparison of the records has proven."""
        assert self.sync is not None, "records are compared next to a sync"
        return replace(
            self,
            precision=Precision.EXACT,
            offset=offset,
            read_again=0,
            reason=f"the records next to the offset sync at {self.sync[0]} are equal",
        )

    def by_timestamp(
        self, timestamp_ms: int, found: tuple[int, int] | None, end: int
    ) -> Translation:
        """Return this translation with the target's first record of a time or later.

        Args:
            timestamp_ms: the timestamp of the source's next record.
            found: the offset and the timestamp of the target's first record that is not older; None
                if all its records are older.
            end: the end of the target's partition, from before ``found`` was requested.

        Returns:
            The translation. The gap is its difference in time.
        """
        if found is None:
            return self._timed(end, None, "the target has no record that is as new")
        offset, found_ms = found
        gap_ms = found_ms - timestamp_ms
        reason = f"the next record is {duration(gap_ms)} after the source's"
        return self._timed(offset, gap_ms, reason)

    def at_end(self, end: int) -> Translation:
        """Return this translation with the end of the target, if the source was read completely."""
        return self._timed(end, None, "the source has no record left to read")

    def _timed(self, offset: int, gap_ms: int | None, reason: str) -> Translation:
        return replace(
            self,
            precision=Precision.BY_TIMESTAMP,
            offset=offset,
            gap_ms=gap_ms,
            reason=f"by timestamp: {reason}",
        )


@dataclass(slots=True)
class PartitionFacts:
    """The facts about one partition of the source, from its records.

    ``source`` and ``target`` are the offsets of the syncs, ascending. ``since_ms`` is the time of
    the first one after an offset went back; None if that was not seen. ``checkpoints`` has the
    newest checkpoint of each group.
    """

    source: list[int]
    target: list[int]
    checkpoints: dict[str, MirrorCheckpoint]
    since_ms: int | None = None

    @classmethod
    def none(cls) -> PartitionFacts:
        """Return no facts."""
        return cls([], [], {})

    def add_sync(self, sync: OffsetSync) -> None:
        """Add the next sync of the topic."""
        if sync.is_deleted:
            self._restart(sync.written_at_ms)
            return
        source, target = sync.source_offset, sync.target_offset
        if self.source and source == self.source[-1] and target >= self.target[-1]:
            self.target[-1] = target  # copied a second time, followed by all later records
            return
        if self.source and (source <= self.source[-1] or target <= self.target[-1]):
            self._restart(sync.written_at_ms)
        self.source.append(source)
        self.target.append(target)

    def add_checkpoint(self, checkpoint: MirrorCheckpoint) -> None:
        """Add the next checkpoint of the topic."""
        if checkpoint.is_deleted:
            self.checkpoints.pop(checkpoint.group, None)
        else:
            self.checkpoints[checkpoint.group] = checkpoint

    def _restart(self, at_ms: int) -> None:
        self.source.clear()
        self.target.clear()
        self.since_ms = at_ms


class MirrorFacts:
    """All syncs and checkpoints of a flow, by partition."""

    def __init__(
        self, syncs: Iterable[OffsetSync], checkpoints: Iterable[MirrorCheckpoint]
    ) -> None:
        """Take the records in the order of their topics."""
        self._syncs: dict[Partition, PartitionFacts] = {}
        self._checkpoints: dict[Partition, PartitionFacts] = {}
        for sync in syncs:
            place = (sync.topic, sync.partition)
            self._syncs.setdefault(place, PartitionFacts.none()).add_sync(sync)
        for checkpoint in checkpoints:
            place = (checkpoint.topic, checkpoint.partition)
            self._checkpoints.setdefault(place, PartitionFacts.none()).add_checkpoint(checkpoint)

    def of(self, source_topic: str, target_topic: str, partition: int) -> PartitionFacts:
        """Return what is known about a partition, which has the same number in both clusters."""
        syncs = self._syncs.get((source_topic, partition), PartitionFacts.none())
        checkpoints = self._checkpoints.get((target_topic, partition), PartitionFacts.none())
        return replace(syncs, checkpoints=checkpoints.checkpoints)


def translate(stored: SourceOffset, topic: str, facts: PartitionFacts) -> Translation:
    """Translate a stored offset.

    Args:
        stored: the next offset to read at the source.
        topic: the topic's name at the target.
        facts: the records about this partition.

    Returns:
        The offset of the target from which no unread record is missed, with the number of records
        that are read again at most.
    """
    before = bisect_right(facts.source, stored.offset) - 1
    if before >= 0:
        return _from_sync(stored, topic, facts, before)
    if stored.offset == 0:
        return _known(stored, topic, 0, 0, "nothing was read yet")
    first = (facts.source[0], facts.target[0]) if facts.source else None
    limit = None if first is None else first[1]
    start = _from_checkpoints(stored.offset, facts, limit)
    if start is not None:
        again = stored.offset if limit is None else min(stored.offset, limit - start)
        return _known(stored, topic, start, again, "by a consumer group's checkpoint", first)
    return Translation(
        stored=stored,
        topic=topic,
        precision=Precision.UNKNOWN,
        offset=None,
        read_again=None,
        reason=(
            f"no offset sync is at or before it: the first one is at {first[0]}"
            if first
            else "there is no offset sync of the partition"
        ),
        sync=first,
    )


def _from_sync(stored: SourceOffset, topic: str, facts: PartitionFacts, before: int) -> Translation:
    """Translate an offset at or after sync number ``before``, and before the next one."""
    source, target = sync = facts.source[before], facts.target[before]
    if source == stored.offset:
        return _known(stored, topic, target, 0, "the record has an offset sync", sync)
    start, again = target + 1, stored.offset - source - 1
    after = bisect_left(facts.source, stored.offset)
    if after < len(facts.source):
        # The target can have more records in between: copied twice, or of other producers.
        distance = facts.target[after] - target
        extra = max(0, distance - (facts.source[after] - source))
        again = min(again + extra, distance - 1)
    return _known(stored, topic, start, again, f"by the offset sync at {source}", sync)


def _from_checkpoints(offset: int, facts: PartitionFacts, limit: int | None) -> int | None:
    """Return the last position that a checkpoint proves for an offset, or None.

    A checkpoint counts unless something newer contradicts it: the first sync, which is at ``limit``
    of the target, or a checkpoint for which one offset is greater and the other one smaller.
    """
    proven: list[tuple[int, int]] = []
    newest_first = sorted(
        facts.checkpoints.values(), key=lambda each: each.written_at_ms, reverse=True
    )
    for checkpoint in newest_first:
        if facts.since_ms is not None and checkpoint.written_at_ms < facts.since_ms:
            break
        pair = checkpoint.source_offset, checkpoint.target_offset
        if not any(_contradict(pair, other) for other in proven):
            proven.append(pair)
    return max(
        (
            target
            for source, target in proven
            if source <= offset and (limit is None or target <= limit)
        ),
        default=None,
    )


def _contradict(one: tuple[int, int], other: tuple[int, int]) -> bool:
    (source, target), (other_source, other_target) = one, other
    return (source <= other_source and target > other_target) or (
        source >= other_source and target < other_target
    )


def _known(
    stored: SourceOffset,
    topic: str,
    offset: int,
    read_again: int,
    reason: str,
    sync: tuple[int, int] | None = None,
) -> Translation:
    return Translation(
        stored=stored,
        topic=topic,
        precision=Precision.EARLIER if read_again else Precision.EXACT,
        offset=offset,
        read_again=read_again,
        reason=reason,
        sync=sync,
    )
