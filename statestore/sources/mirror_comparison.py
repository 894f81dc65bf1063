"""Find the copy of a record by comparing the records of both clusters next to an offset sync.

MirrorMaker copies key, value, timestamp and headers. If the records between the sync and the first
record that was not read are equal one by one, then the position of that record is proven. A record
that compaction removed, that was copied twice, or that somebody changed on the way ends the
comparison without a result. These functions do no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice

from statestore.sources.mirror_records import KafkaRecord

__all__ = ["is_copy", "position_after_sync", "position_before_sync"]


def position_after_sync(
    source: Iterable[KafkaRecord],
    target: Iterable[KafkaRecord],
    stored: int,
    start: int,
    most_removed: int,
) -> int | None:
    """Return the position after a sync from which exactly the unread records follow.

    An offset that the target lacks is the marker of a transaction, or a copy that was removed. If
    copies were removed, the copy of an unread record that is equal to a read one can take its
    place. As many unread records as offsets are lacking are therefore compared with the read ones.

    Args:
        source: the source's records after the sync's record.
        target: the target's records after its copy.
        stored: the next offset to read at the source.
        start: the position after the copy of the sync's record.
        most_removed: how many offsets the target may lack.

    Returns:
        The position, or None if the records differ, or if the position is not certain.
    """
    originals, copies = iter(source), iter(target)
    position, read, seen = start, 0, set[int]()
    for record in originals:
        copy = next(copies, None)
        if record.offset >= stored:
            if copy is not None and not is_copy(record, copy):
                return None
            lacking = position - start - read
            if lacking > most_removed:
                return None
            unread = islice(chain([record], originals), lacking)
            if any(not seen.isdisjoint(_contents(each)) for each in unread):
                return None
            return position if copy is None else copy.offset
        if copy is None or not is_copy(record, copy):
            return None
        position, read = copy.offset + 1, read + 1
        seen.add(_contents(copy)[copy.is_append_time])
    return position if next(copies, None) is None else None


def position_before_sync(
    source: Sequence[KafkaRecord], target: Sequence[KafkaRecord], stored: int, sync_at: int
) -> int | None:
    """Return the position before a sync from which exactly the unread records follow.

    Args:
        source: the source's records from ``stored`` to the sync's record, without that one.
        target: the target's last records before the copy of the sync's record, at least as many.
        stored: the next offset to read at the source.
        sync_at: the offset of the sync's record at the source.

    Returns:
        The position, or None if the records differ, or if the source lacks one of the offsets: an
        unread record that was removed there could still be at the target.
    """
    if len(source) < sync_at - stored or len(target) < len(source):
        return None
    copies = target[len(target) - len(source) :]
    if not all(map(is_copy, source, copies)):
        return None
    return copies[0].offset


def is_copy(record: KafkaRecord, copy: KafkaRecord) -> bool:
    """Return whether a record of the target can be the copy of a record of the source.

    The timestamp counts unless the target's broker has set it.
    """
    return (
        (record.key, record.value, record.headers) == (copy.key, copy.value, copy.headers)
    ) and (copy.is_append_time or record.timestamp_ms == copy.timestamp_ms)


def _contents(record: KafkaRecord) -> tuple[int, int]:
    """Return numbers for the part of a record that is copied: with and without its timestamp."""
    content = (record.key, record.value, record.headers)
    return hash((content, record.timestamp_ms)), hash(content)
