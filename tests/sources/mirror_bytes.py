"""Records of MirrorMaker as bytes, written by the definition of Kafka's schemas, for tests."""

from __future__ import annotations

from statestore.sources.mirror_translation import KafkaRecord


def text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(2, "big", signed=True) + data


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=True)


def sync_record(
    topic: str, partition: int, source: int, target: int, *, offset: int = 0, at_ms: int = 0
) -> KafkaRecord:
    key = text(topic) + number(partition, 4)
    return KafkaRecord(offset, at_ms, key, number(source, 8) + number(target, 8))


def checkpoint_record(
    group: str,
    topic: str,
    partition: int,
    source: int,
    target: int,
    *,
    metadata: str = "",
    version: int = 0,
    at_ms: int = 0,
) -> KafkaRecord:
    key = text(group) + text(topic) + number(partition, 4)
    value = number(version, 2) + number(source, 8) + number(target, 8) + text(metadata)
    return KafkaRecord(0, at_ms, key, value)
