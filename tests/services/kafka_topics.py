"""Topics of a real broker for tests; each call returns when all clients see its effect."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from statestore.sources.discovery import LiveTopic
from statestore.sources.kafka import KafkaCluster

SECONDS = 60


class Topics:
    """A broker's topics, with the operations of its administrators."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.cluster = KafkaCluster(bootstrap, seconds=SECONDS)
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def make(
        self,
        partitions: int,
        records: int = 0,
        *,
        name: str | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic with this many records in each partition."""
        name = name or f"t-{uuid.uuid4().hex}"
        wanted = NewTopic(name, partitions, 1, config=dict(config or {}))
        self._done(lambda: self._admin.create_topics([wanted])[name])
        until(lambda: (live := self.live(name)) and len(live.partitions) == partitions)
        if records:
            self.fill(name, {n: map(str, range(records)) for n in range(partitions)})
        return name

    def fill(self, name: str, values: Mapping[int, Iterable[str]]) -> None:
        """Produce these values to partitions."""
        # a new producer: an older one may have stale metadata
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for partition, texts in values.items():
            for text in texts:
                producer.produce(name, text.encode(), partition=partition)
        assert producer.flush(SECONDS) == 0

    def extend(self, name: str, partitions: int) -> None:
        """Increase the number of partitions to this total."""
        self._done(lambda: self._admin.create_partitions([NewPartitions(name, partitions)])[name])
        until(lambda: (live := self.live(name)) and len(live.partitions) == partitions)

    def cut(self, name: str, partition: int, before: int) -> None:
        """Delete the records before an offset."""
        place = TopicPartition(name, partition, before)
        (done,) = self._admin.delete_records([place]).values()
        done.result()
        until(lambda: (live := self.live(name)) and live.partitions[partition].low == before)

    def delete(self, name: str) -> None:
        self._done(lambda: self._admin.delete_topics([name])[name])
        until(lambda: self.live(name) is None)

    def make_anew(self, name: str, partitions: int, records: int = 0) -> None:
        """Delete a topic and create it again with the same name."""
        self.delete(name)
        self.make(partitions, records, name=name)

    def live(self, name: str) -> LiveTopic | None:
        return self.cluster.topics([name]).get(name)

    def elements(self, name: str, offsets: Sequence[int]) -> list[dict[str, Any]]:
        """Return the elements that a consumer of partitions 0, 1, … stores, with the topic's id."""
        live = self.live(name)
        assert live is not None
        return [
            {"topic": name, "partition": number, "offset": offset, "topic_id": live.id}
            for number, offset in enumerate(offsets)
        ]

    def _done(self, ask: Callable[[], Any]) -> None:
        """Repeat a request until it succeeds: a deleted topic's name is not free immediately."""

        def tried() -> bool:
            try:
                ask().result()
            except KafkaException as error:
                if error.args[0].name() not in ("TOPIC_ALREADY_EXISTS", "UNKNOWN_TOPIC_OR_PART"):
                    raise
                return False
            return True

        until(tried)


def until(holds: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.02)
