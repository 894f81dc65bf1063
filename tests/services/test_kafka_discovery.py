"""Stored offsets against a real broker: each policy, and missing brokers and groups."""

from __future__ import annotations

import sys
import time
import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer

from statestore.errors import (
    CommitConflictError,
    IncompatibleStateError,
    InvalidArgumentError,
    MissingDependencyError,
    StorageError,
)
from statestore.sources.discovery import Case, Policies, reconcile
from statestore.sources.kafka import KafkaCluster
from statestore.sources.offsets import SourceOffset
from tests.servers.process import free_ports
from tests.services.kafka_topics import Topics, until

pytestmark = [pytest.mark.services, pytest.mark.slow]

FAIL: dict[str, Any] = {"new_partitions": "fail"}


def offsets(topics: Topics, name: str, stored: list[Any], **policies: Any) -> list[int]:
    """Return the reconciled next offsets of a topic; IncompatibleStateError if a policy refuses."""
    found = reconcile(stored, topics.cluster.topics([name]), Policies(**policies))
    assert all(offset.topic_id for offset in found.offsets)
    return [offset.offset for offset in found.offsets]


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex}"


def test_live_ranges_of_topics(topics: Topics) -> None:
    name = topics.make(3)
    topics.fill(name, {1: "abcde"})
    topics.cut(name, 1, 2)
    found = topics.cluster.topics([name, f"{name}-not", "no such name"])
    assert list(found) == [name]
    ranges = {number: (r.low, r.high) for number, r in found[name].partitions.items()}
    assert ranges == {0: (0, 0), 1: (2, 5), 2: (0, 0)}
    assert len(found[name].id or "") == 22


def test_idle_partitions_keep_their_offset(topics: Topics) -> None:
    name = topics.make(3, 4)
    stored = topics.elements(name, [4, 4, 2])
    assert offsets(topics, name, stored, **FAIL) == [4, 4, 2]


def test_new_partitions(topics: Topics) -> None:
    name = topics.make(1, 5)
    stored = topics.elements(name, [3])
    topics.extend(name, 3)
    topics.fill(name, {2: "abc"})
    assert offsets(topics, name, stored) == [3, 0, 0]
    assert offsets(topics, name, stored, new_partitions="latest") == [3, 0, 3]
    with pytest.raises(IncompatibleStateError, match="partition 2: no offset is stored"):
        offsets(topics, name, stored, **FAIL)


def test_a_removed_topic(topics: Topics) -> None:
    name, other = topics.make(2, 3), topics.make(1, 3)
    stored = topics.elements(name, [3, 1]) + topics.elements(other, [2])
    topics.delete(name)
    live = topics.cluster.topics([name, other])
    with pytest.raises(
        IncompatibleStateError, match=f"{name!r} partition 1: the partition no longer exists"
    ):
        assert reconcile(stored, live).offsets
    found = reconcile(stored, live, Policies(removed_partitions="retire"))
    assert found.offsets == (SourceOffset(other, 0, 2),)
    assert [each.decision for each in found.report if each.topic == name] == ["retired"] * 2


def test_a_recreated_topic(topics: Topics) -> None:
    """Only the topic's id shows it, because every offset would fit."""
    name = topics.make(2, 4)
    stored = topics.elements(name, [2, 3])
    topics.make_anew(name, 1, 5)
    retire = {"removed_partitions": "retire"}
    with pytest.raises(IncompatibleStateError, match="partition 0: the topic was recreated"):
        offsets(topics, name, stored, **retire)
    assert offsets(topics, name, stored, recreated_topics="earliest", **retire) == [0]
    assert offsets(topics, name, stored, recreated_topics="latest", **retire) == [5]
    with pytest.raises(IncompatibleStateError, match="partition 1: the partition no longer exists"):
        offsets(topics, name, stored, recreated_topics="latest")
    unknown = [{**element, "topic_id": None} for element in stored]
    assert offsets(topics, name, unknown, **retire) == [2]


def test_a_gap_is_refused_or_skipped(topics: Topics) -> None:
    name = topics.make(2, 10)
    stored = topics.elements(name, [3, 7])
    topics.cut(name, 0, 7)
    with pytest.raises(IncompatibleStateError, match="4 records deleted before they were read"):
        offsets(topics, name, stored)
    assert offsets(topics, name, stored, gap="earliest") == [7, 7]
    topics.cut(name, 1, 7)  # exactly to the stored offset: nothing is lost
    assert offsets(topics, name, stored[1:], gap="fail") == [7, 7]


def test_a_rewind_is_refused_or_reset(topics: Topics) -> None:
    """As after an unclean leader election: records that were read are lost."""
    name = topics.make(1, 10)
    topics.cut(name, 0, 4)
    stored = topics.elements(name, [12])
    with pytest.raises(IncompatibleStateError, match="the stored offset is 2 after the end"):
        offsets(topics, name, stored)
    assert offsets(topics, name, stored, rewind="latest") == [10]
    assert offsets(topics, name, stored, rewind="earliest") == [4]
    (found,) = reconcile(stored, topics.cluster.topics([name])).report
    assert found.case is Case.REWIND


def test_a_stopped_broker_is_named_within_the_time_limit() -> None:
    bootstrap = f"127.0.0.1:{free_ports(1)[0]}"
    cluster = KafkaCluster(bootstrap, seconds=0.5)
    for ask in (
        lambda: cluster.topics(["t"]),
        lambda: cluster.committed("g"),
        lambda: cluster.members("g"),
        lambda: cluster.commit("g", [SourceOffset("t", 0, 1)]),
    ):
        begun = time.monotonic()
        with pytest.raises(StorageError, match=f"Kafka at {bootstrap} .*check that it is running"):
            ask()
        assert time.monotonic() - begun < 30


def test_invalid_options() -> None:
    with pytest.raises(InvalidArgumentError, match=r'"security\.protocl"'):
        KafkaCluster("localhost:1", {"security.protocl": "SSL"})
    with pytest.raises(InvalidArgumentError, match="bootstrap is empty"):
        KafkaCluster("")
    assert "hunter2" not in repr(KafkaCluster("localhost:1", {"sasl.password": "hunter2"}))


def test_without_the_client_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingDependencyError, match="install the extra 'kafka': "):
        KafkaCluster("localhost:1")


def test_a_commit_for_a_group_returns_its_previous_offsets(topics: Topics, group: str) -> None:
    name = topics.make(2, 10)
    assert topics.cluster.committed(group) == {}
    assert topics.cluster.commit(group, topics.elements(name, [3])) == {}
    assert topics.cluster.commit(group, topics.elements(name, [5, 6])) == {(name, 0): 3}
    assert topics.cluster.committed(group) == {(name, 0): 5, (name, 1): 6}
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": group})
    consumer.subscribe([name])
    read = [message for message in consumer.consume(9, 60) if message.error() is None]
    assert sorted((m.partition(), m.offset()) for m in read) == [
        *((0, offset) for offset in range(5, 10)),
        *((1, offset) for offset in range(6, 10)),
    ]
    consumer.close()


def test_a_group_with_members_is_refused(topics: Topics, group: str) -> None:
    name = topics.make(1, 3)
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": group})
    consumer.subscribe([name])
    until(lambda: consumer.poll(0.05) is None and consumer.assignment())
    with pytest.raises(CommitConflictError, match=r"1 live member \(rdkafka@127"):
        topics.cluster.commit(group, topics.elements(name, [1]))
    # Kafka itself also refuses, in case a member joins between the check and the commit.
    with pytest.raises(CommitConflictError, match="has live members"):
        topics.cluster._alter(group, {(name, 0): 1})
    assert topics.cluster.committed(group) == {}
    consumer.close()
    assert topics.cluster.commit(group, topics.elements(name, [1])) == {}


def test_if_kafka_refuses_one_partition_the_others_get_their_previous_offsets(
    topics: Topics, group: str
) -> None:
    name = topics.make(2, 9)
    topics.cluster.commit(group, topics.elements(name, [3]))
    wanted = [*topics.elements(name, [5, 6]), SourceOffset(name, 7, 1)]
    with pytest.raises(
        StorageError, match=f"rejected the offsets of {name}-7 for .* except {name}-1, which"
    ):
        topics.cluster.commit(group, wanted)
    assert topics.cluster.committed(group) == {(name, 0): 3, (name, 1): 6}
