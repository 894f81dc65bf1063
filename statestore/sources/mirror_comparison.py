"""Find the copy of a record by comparing the records of both clusters next to an offset sync.

MirrorMaker copies key, value, timestamp and headers. If the records between the sync and the first
record that was not read are equal one by one, then the position of that record is proven. A record
that compaction removed, that was copied twice, or that somebody changed on the way ends the
comparison without a result. These functions do no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from statestore.sources.mirror_records import KafkaRecord

__all__ = ["is_copy", "position_after_sync", "position_before_sync"]


def position_after_sync(
    source: Iterable[KafkaRecord], target: Iterable[KafkaRecord], stored: int, start: int
) -> int | None:
    """Return the position after a sync from which exactly the unread records follow.

    Args:
        source: the source's records after the sync's record; those after the first unread one are
            not looked at.
        target: the target's records after its copy.
        stored: the next offset to read at the source.
        start: the position after the copy of the sync's record.

    Returns:
        The position, or None if the records differ.
    """
    copies, position = iter(target), start
    for record in source:
        copy = next(copies, None)
        if record.offset >= stored:
            if copy is None:  # it is not copied yet
                return position
            return copy.offset if is_copy(record, copy) else None
        if copy is None or not is_copy(record, copy):
            return None
        position = copy.offset + 1
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
