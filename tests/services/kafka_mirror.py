"""Topics that a real MirrorMaker 2 replicates, with the truth about each copied record.

The value of each record is unique, so that the copy of a record can be found at the target.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from statestore.sources.mirror import Mirror
from statestore.sources.mirror_policies import MirrorFlow, TranslationPolicies
from statestore.sources.mirror_translation import KafkaRecord, Precision, Translation, translate
from statestore.sources.offsets import SourceOffset
from tests.servers.mirror_maker import mirror_maker
from tests.services.kafka_topics import SECONDS, Topics, until

LAST = b"last"
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "50",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
}
# A translation that may read any number of records again.
LAX = TranslationPolicies(read_again=10**9)


@dataclass(frozen=True)
class Mirrored:
    """A source and a target, and how MirrorMaker names topics."""

    source: Topics
    target: Topics
    flow: MirrorFlow

    def mirror(self, rules: TranslationPolicies = LAX, **others: object) -> Mirror:
        clusters = {"source": self.source.cluster, "target": self.target.cluster}
        return Mirror(**{"flow": self.flow, "rules": rules, **clusters, **others})  # type: ignore[arg-type]


def plain(topics: Topics, name: str, partitions: int, records: int) -> str:
    """Create a topic with consecutive offsets."""
    topics.make(partitions, name=name)
    fill(topics, name, {n: range(records) for n in range(partitions)})
    return name


def compacted(topics: Topics, name: str, keys: int, rounds: int) -> str:
    """Create a topic in which compaction has removed most records."""
    topics.make(1, name=name, config=COMPACTED)
    for written in range(rounds):
        producer = Producer({"bootstrap.servers": topics.bootstrap, "log_level": 0})
        for key in range(keys):
            value = f"{name}-0-{written}-{key}"
            producer.produce(name, value, str(key % (1 + key // 2)), partition=0)
        assert producer.flush(SECONDS) == 0
        time.sleep(0.1)  # the next record begins a new segment
    before = keys * rounds
    finish(topics, name, 1)
    until(lambda: len(list(topics.cluster.records(name))) < before / 2)
    return name


def transactional(topics: Topics, name: str, transactions: int) -> str:
    """Create a topic with the markers of transactions between its records."""
    topics.make(1, name=name)
    producer = Producer(
        {"bootstrap.servers": topics.bootstrap, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(SECONDS)
    for number in range(transactions):
        producer.begin_transaction()
        for record in range(number % 7):
            producer.produce(name, f"{name}-0-{number}-{record}", partition=0)
        producer.commit_transaction(SECONDS)
    finish(topics, name, 1)
    return name


def fill(topics: Topics, name: str, numbers: Mapping[int, range]) -> None:
    """Produce records with unique values, and a last one in each partition."""
    topics.fill(
        name,
        {part: [f"{name}-{part}-{number}" for number in some] for part, some in numbers.items()},
    )
    finish(topics, name, len(numbers))


def finish(topics: Topics, name: str, partitions: int) -> None:
    """Produce the record that shows that a partition was replicated completely."""
    producer = Producer({"bootstrap.servers": topics.bootstrap, "log_level": 0})
    for partition in range(partitions):
        producer.produce(name, LAST, b"last", partition=partition)
    assert producer.flush(SECONDS) == 0


@contextmanager
def replicating(
    directory: Path, mirrored: Mirrored, settings: Mapping[str, object] | None = None
) -> Iterator[None]:
    """Run MirrorMaker until the block ends."""
    source, target = mirrored.source.bootstrap, mirrored.target.bootstrap
    chosen = {"A->B.topics": "mirrored-.*", "A->B.groups": "mirrored-.*", **(settings or {})}
    with mirror_maker(directory, source, target, chosen):
        yield


def is_replicated(mirrored: Mirrored, name: str, partitions: int) -> bool:
    """Return whether the last record of each partition has arrived."""
    topic, cluster = mirrored.flow.target_topic(name), mirrored.target.cluster
    live = mirrored.target.live(topic)
    return live is not None and all(
        part in live.partitions
        and any(record.value == LAST for record in cluster.records(topic, part))
        for part in range(partitions)
    )


def _identity(record: KafkaRecord) -> tuple[bytes | None, int]:
    """Return what only this record and its copies have."""
    return record.value, record.timestamp_ms


@dataclass(frozen=True)
class Copies:
    """A partition in both clusters, with the truth about each offset."""

    name: str
    partition: int
    source: list[KafkaRecord]
    target: list[KafkaRecord]
    end: int

    def check(self, found: Translation) -> str:
        """Compare a translation with the records, and return its precision.

        A second copy that MirrorMaker has made after a restart is no record that is read again: it
        is there for every reader of the target.
        """
        offset, precision = found.stored.offset, found.precision
        if found.offset is None:
            assert precision is Precision.UNKNOWN
            return precision.value
        read = [_identity(each) for each in self.target if each.offset >= found.offset]
        unread = [_identity(each) for each in self.source if each.offset >= offset]
        done = {_identity(each) for each in self.source if each.offset < offset}
        first_copies = {_identity(each): each.offset for each in reversed(self.target)}
        assert set(unread) <= set(read), f"records are missed: {found}"
        assert found.read_again is not None
        again = sum(first_copies.get(each, -1) >= found.offset for each in done)
        assert again <= found.read_again, found
        if precision is Precision.EXACT:
            once = [each for each in read if first_copies[each] >= found.offset]
            assert unread[:1] in (read[:1], once[:1]), found
        return precision.value


def copies(mirrored: Mirrored, name: str, partition: int = 0) -> Copies:
    """Read a partition in both clusters."""
    live, topic = mirrored.source.live(name), mirrored.flow.target_topic(name)
    assert live is not None
    return Copies(
        name,
        partition,
        list(mirrored.source.cluster.records(name, partition)),
        list(mirrored.target.cluster.records(topic, partition)),
        live.partitions[partition].high,
    )


def check_every_offset(mirrored: Mirrored, name: str, partition: int = 0) -> Counter[str]:
    """Translate every offset of a partition by the syncs alone, and compare with the records.

    Returns how many of them have each precision.
    """
    topic, known = mirrored.flow.target_topic(name), copies(mirrored, name, partition)
    facts = mirrored.mirror().facts().of(name, topic, partition)
    return Counter(
        known.check(translate(SourceOffset(name, partition, offset), topic, facts))
        for offset in range(known.end + 1)
    )


def check_some_offsets(mirrored: Mirrored, name: str, number: int) -> Counter[str]:
    """Translate some offsets of partition 0, also by comparing records; check them likewise."""
    known, mirror = copies(mirrored, name), mirrored.mirror()
    found = Counter[str]()
    for offset in {known.end, *range(0, known.end, 1 + known.end // number)}:
        translation = mirror.translate([SourceOffset(name, 0, offset)]).report[0].translation
        assert translation is not None
        found[known.check(translation)] += 1
    return found


def count(mirrored: Mirrored, name: str, value: bytes) -> int:
    """Return how many copies a record has at the target."""
    topic = mirrored.flow.target_topic(name)
    if mirrored.target.live(topic) is None:
        return 0
    return sum(record.value == value for record in mirrored.target.cluster.records(topic))


def synced(mirrored: Mirrored, name: str, partition: int = 0) -> list[tuple[int, int]]:
    """Return the offset syncs of a partition."""
    facts = mirrored.mirror().facts().of(name, mirrored.flow.target_topic(name), partition)
    return list(zip(facts.source, facts.target, strict=True))
