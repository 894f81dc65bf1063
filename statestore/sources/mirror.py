"""Translate stored offsets to the cluster to which MirrorMaker 2 has replicated their topics.

::

    mirror = Mirror(
        flow=MirrorFlow(source="old", target="new"),
        source=KafkaCluster("old:9092"),
        target=KafkaCluster("new:9092"),
    )
    found = mirror.translate(stored)
    KafkaCluster("new:9092").commit("orders-reader", found.offsets)

This module asks the clusters; :mod:`statestore.sources.mirror_translation` translates, and
:mod:`statestore.sources.mirror_policies` decides.

If MirrorMaker's records leave an offset open, the records of both clusters next to an offset sync
are compared. MirrorMaker copies key, value, timestamp and headers. If the records between the sync
and the first record that was not read are equal one by one, then the position of that record is
proven. A record that compaction removed, that was copied twice, or that somebody changed on the way
ends the comparison without a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, takewhile
from typing import TypeVar

from statestore.errors import (
    CorruptionError,
    IncompatibleStateError,
    InvalidArgumentError,
    NotFoundError,
)
from statestore.sources.discovery import LiveTopic, Policies, Reconciled
from statestore.sources.kafka import KafkaCluster
from statestore.sources.mirror_policies import MirrorFlow, TranslationPolicies, reconcile_translated
from statestore.sources.mirror_translation import (
    KafkaRecord,
    MirrorFacts,
    Precision,
    Translation,
    read_checkpoint,
    read_offset_sync,
    translate,
)
from statestore.sources.offsets import SourceOffset, source_offset, source_offsets

__all__ = ["MOST_COMPARED", "Mirror"]


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


MOST_COMPARED = 10_000
"""A translation is not made exact if more records than this would have to be compared."""

T = TypeVar("T")
Partition = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """A replication flow between two clusters, with the policies for translated offsets.

    ``source`` is needed if it has the offset syncs, and for offsets by timestamp. With it, a stored
    topic id is compared with the source's, and a translation that is not exact becomes exact if the
    records next to the offset sync are the same in both clusters. ``topics`` are topics of the
    target to read in addition to those of the stored offsets.

    Raises :class:`InvalidArgumentError` if ``source`` is needed and missing.
    """

    flow: MirrorFlow
    target: KafkaCluster
    source: KafkaCluster | None = None
    policies: Policies = field(default_factory=Policies)
    rules: TranslationPolicies = field(default_factory=TranslationPolicies)
    topics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse to go without the source cluster where it is needed."""
        if self.source is not None:
            return
        if self.flow.syncs_on == "source":
            raise InvalidArgumentError(
                "the offset syncs are on the source cluster, but no broker of it is set; set one, "
                "or name MirrorMaker's setting offset-syncs.topic.location=target (in Python "
                "syncs_on='target') if they are on the target cluster"
            )
        if self.rules.untranslated == "timestamp":
            raise InvalidArgumentError(
                "offsets by timestamp need the source cluster, but no broker of it is set; set "
                "one, or set untranslated to 'fail' or 'earliest'"
            )

    def translate(self, stored: Iterable[object]) -> Reconciled:
        """Translate stored offsets, and compare them with the target's live partitions.

        Args:
            stored: offsets or elements of the source cluster, as
                :func:`~statestore.sources.offsets.source_offset` accepts them.

        Returns:
            The decision about each partition of the target, stored or live. Refusals are in the
            report; reading ``.offsets`` raises them.

        Raises:
            NotFoundError: the offset-syncs topic is missing, also because of a wrong alias, or one
                of ``topics`` is missing.
            CorruptionError: a record of MirrorMaker cannot be decoded.
            IncompatibleStateError: a topic was recreated on the source cluster.
            StorageError: no broker of a cluster answers.
            InvalidArgumentError: for invalid elements.
        """
        known = source_offsets(stored)
        facts = self.facts()
        translations = [
            translate(
                offset,
                topic := self.flow.target_topic(offset.topic),
                facts.of(offset.topic, topic, offset.partition),
            )
            for offset in known
        ]
        # The target first: what the source gets later has its copy after these ends.
        ends = self._target_topics(translations)
        live_at_source = self._source_topics(known)
        translations = [self._compared(each, live_at_source, ends) for each in translations]
        if self.rules.untranslated == "timestamp":
            translations = list(self._by_timestamp(translations, live_at_source, ends))
        # Again: MirrorMaker can have copied records in the meantime.
        live = self._target_topics(translations)
        return reconcile_translated(translations, live, self.policies, self.rules)

    def facts(self) -> MirrorFacts:
        """Read the offset syncs and checkpoints of the flow.

        Raises NotFoundError, CorruptionError or StorageError as :meth:`translate` does.
        """
        cluster = self.target if self.flow.syncs_on == "target" else self.source
        assert cluster is not None, "checked when the flow was set"
        self._refuse_missing_syncs(cluster)
        syncs = _decoded(cluster, self.flow.syncs_topic, read_offset_sync)
        checkpoints = self.flow.checkpoints_topic
        exists = checkpoints in self.target.topics([checkpoints])
        return MirrorFacts(
            syncs, _decoded(self.target, checkpoints, read_checkpoint) if exists else ()
        )

    def renamed(self, old: Sequence[Sequence[object] | None]) -> list[list[SourceOffset] | None]:
        """Return the lists of old subtasks with the names of the target's topics.

        The offsets are still those of the source. :meth:`Reconciled.per_old_subtask` takes these
        lists, and replaces the offsets. Raises the errors of
        :func:`~statestore.sources.offsets.source_offset`.
        """
        return [
            None if elements is None else [self._renamed(element) for element in elements]
            for elements in old
        ]

    def _renamed(self, element: object) -> SourceOffset:
        offset = source_offset(element)
        return replace(offset, topic=self.flow.target_topic(offset.topic), topic_id=None)

    def _source_topics(self, stored: Sequence[SourceOffset]) -> dict[str, LiveTopic]:
        """Return the topics of the source cluster; refuse a topic that was recreated there."""
        if self.source is None:
            return {}
        topics = self.source.topics({offset.topic for offset in stored})
        for offset in stored:
            topic = topics.get(offset.topic)
            if topic is None or None in (topic.id, offset.topic_id):
                continue
            if topic.id != offset.topic_id:
                raise IncompatibleStateError(
                    f"topic {offset.topic!r} was recreated on the source cluster "
                    f"{self.flow.source!r}: its id is {topic.id}, not {offset.topic_id}, so the "
                    "stored offsets are those of another log; check that the store and the "
                    "cluster belong together"
                )
        return topics

    def _refuse_missing_syncs(self, cluster: KafkaCluster) -> None:
        names = cluster.topic_names()
        if self.flow.syncs_topic in names:
            return
        aliases = self.flow.aliases_of(names)
        other = self.flow.target if self.flow.syncs_on == "source" else self.flow.source
        elsewhere = "target" if self.flow.syncs_on == "source" else "source"
        raise NotFoundError(
            f"Kafka at {cluster.bootstrap} has no topic {self.flow.syncs_topic!r} with offset "
            f"syncs for the alias {other!r}; "
            + (
                f"it has those for {', '.join(map(repr, aliases))}: correct the alias"
                if aliases
                else "check the aliases, the separator and the policy of MirrorMaker, and whether "
                f"the syncs are on the {elsewhere} cluster (offset-syncs.topic.location)"
            )
        )

    def _target_topics(self, translations: Iterable[Translation]) -> dict[str, LiveTopic]:
        live = self.target.topics({*self.topics, *(each.topic for each in translations)})
        for topic in sorted(set(self.topics) - live.keys()):
            raise NotFoundError(
                f"Kafka at {self.target.bootstrap} has no topic {topic!r}, which is named as an "
                "additional topic; correct the name or create the topic"
            )
        return live

    def _compared(
        self,
        translation: Translation,
        source: Mapping[str, LiveTopic],
        target: Mapping[str, LiveTopic],
    ) -> Translation:
        """Return an exact translation if the records next to the sync prove it."""
        if (
            self.source is None
            or translation.sync is None
            or translation.precision is Precision.EXACT
            or not _exists(translation.stored.topic, translation, source)
            or not _exists(translation.topic, translation, target)
        ):
            return translation
        low = source[translation.stored.topic].partitions[translation.stored.partition].low
        find = (
            self._position_before_sync
            if translation.stored.offset < translation.sync[0]
            else self._position_after_sync
        )
        position = find(self.source, translation, *translation.sync, low)
        return translation if position is None else translation.proven(position)

    def _position_after_sync(
        self, source: KafkaCluster, translation: Translation, sync_at: int, copied_at: int, low: int
    ) -> int | None:
        stored, start = translation.stored, copied_at + 1
        if sync_at + 1 < low or (translation.read_again or 0) > MOST_COMPARED:
            return None
        place = stored.topic, stored.partition
        for uncommitted in (False, True):  # MirrorMaker copies aborted records or not
            position = position_after_sync(
                source.records(*place, start=sync_at + 1, uncommitted=uncommitted),
                self.target.records(translation.topic, stored.partition, start=start),
                stored.offset,
                start,
                MOST_COMPARED,
            )
            if position is not None:
                return position
        return None

    def _position_before_sync(
        self, source: KafkaCluster, translation: Translation, sync_at: int, copied_at: int, low: int
    ) -> int | None:
        stored = translation.stored
        number = sync_at - stored.offset
        if stored.offset < low or number > MOST_COMPARED:
            return None
        # Each record at the target can be followed by the marker of a transaction.
        start = max(0, copied_at - 2 * number)
        return position_before_sync(
            _until(source.records(stored.topic, stored.partition, start=stored.offset), sync_at),
            _until(
                self.target.records(translation.topic, stored.partition, start=start), copied_at
            ),
            stored.offset,
            sync_at,
        )

    def _by_timestamp(
        self,
        translations: Iterable[Translation],
        source: Mapping[str, LiveTopic],
        ends: Mapping[str, LiveTopic],
    ) -> Iterator[Translation]:
        """Yield the translations; translate unknown ones by timestamp if both partitions exist."""
        assert self.source is not None, "checked when the policies were set"
        unknown = {
            (each.stored.topic, each.stored.partition): each
            for each in translations
            if each.precision is Precision.UNKNOWN and _exists(each.topic, each, ends)
        }
        starts = dict(_source_starts(unknown.values(), source))
        unread = {place: offset for place, (offset, end) in starts.items() if offset < end}
        times = self.source.times(unread)
        # MirrorMaker may have copied records of a transaction that is still open at the source.
        unread = {place: offset for place, offset in unread.items() if place not in times}
        times |= self.source.times(unread, uncommitted=True)
        found = self.target.offsets_at(
            {(unknown[place].topic, place[1]): time_ms for place, time_ms in times.items()}
        )
        for each in translations:
            place = (each.stored.topic, each.stored.partition)
            if place not in starts:
                yield each
                continue
            target = (each.topic, each.stored.partition)
            end = ends[each.topic].partitions[each.stored.partition].high
            if place in times:
                yield each.by_timestamp(times[place], found.get(target), end)
            else:
                yield each.at_end(end)


def _decoded(cluster: KafkaCluster, topic: str, decode: Callable[[KafkaRecord], T]) -> Iterator[T]:
    for record in cluster.records(topic):
        try:
            yield decode(record)
        except CorruptionError as error:
            raise CorruptionError(
                f"record {record.offset} of topic {topic!r} of Kafka at {cluster.bootstrap} is "
                f"not one that MirrorMaker 2 writes: {error}. Check that the topic is "
                "MirrorMaker's, and find out who wrote the record; nothing was translated"
            ) from error


def _until(records: Iterable[KafkaRecord], offset: int) -> list[KafkaRecord]:
    return list(takewhile(lambda record: record.offset < offset, records))


def _source_starts(
    translations: Iterable[Translation], source: Mapping[str, LiveTopic]
) -> Iterator[tuple[Partition, tuple[int, int]]]:
    """Yield the next offset and the end of each source partition, if it is not after the end."""
    for each in translations:
        if not _exists(each.stored.topic, each, source):
            continue
        live = source[each.stored.topic].partitions[each.stored.partition]
        if each.stored.offset <= live.high:
            place = (each.stored.topic, each.stored.partition)
            yield place, (max(each.stored.offset, live.low), live.high)


def _exists(topic: str, translation: Translation, topics: Mapping[str, LiveTopic]) -> bool:
    return topic in topics and translation.stored.partition in topics[topic].partitions
