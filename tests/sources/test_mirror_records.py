"""The records of MirrorMaker 2: decoded as its own reader does, or refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import CorruptionError
from statestore.sources.mirror_translation import (
    KafkaRecord,
    MirrorCheckpoint,
    OffsetSync,
    read_checkpoint,
    read_offset_sync,
)
from tests.sources.mirror_bytes import checkpoint_record, number, sync_record, text
from tests.syntax import ROOT

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PARTITIONS = st.integers(0, 2**31 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
SYNC = sync_record("orders", 3, 17, 9, at_ms=5)
CHECKPOINT = checkpoint_record("g", "A.orders", 3, 17, 9, metadata="m", at_ms=5)


@given(NAMES, PARTITIONS, OFFSETS, OFFSETS, OFFSETS)
def test_an_offset_sync_is_decoded(
    topic: str, partition: int, source: int, target: int, at: int
) -> None:
    record = sync_record(topic, partition, source, target, at_ms=at)
    assert read_offset_sync(record) == OffsetSync(topic, partition, source, target, at)


@given(NAMES, NAMES, PARTITIONS, OFFSETS, OFFSETS, NAMES)
def test_a_checkpoint_is_decoded(
    group: str, topic: str, partition: int, source: int, target: int, metadata: str
) -> None:
    record = checkpoint_record(group, topic, partition, source, target, metadata=metadata, at_ms=7)
    expected = MirrorCheckpoint(group, topic, partition, source, target, 7)
    assert read_checkpoint(record) == expected


def test_a_record_without_a_value_deletes() -> None:
    sync = read_offset_sync(replace(SYNC, value=None))
    assert sync == OffsetSync("orders", 3, 0, 0, 5, is_deleted=True)
    checkpoint = read_checkpoint(replace(CHECKPOINT, value=None))
    assert checkpoint == MirrorCheckpoint("g", "A.orders", 3, 0, 0, 5, is_deleted=True)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (replace(SYNC, key=None), "the key is missing"),
        (replace(SYNC, key=b""), "the key of 0 bytes ends in its length of the topic"),
        (replace(SYNC, key=b"\xff\xff"), "the key has a topic of the length -1"),
        (replace(SYNC, key=b"\0\x01"), "the key of 2 bytes ends in its topic"),
        (replace(SYNC, key=b"\0\x01\xff\0\0\0\0"), "the key has a topic that is not UTF-8"),
        (replace(SYNC, key=text("t") + number(-1, 4)), "the key has the partition -1"),
        (replace(SYNC, key=text("t") + number(1, 4) + b"x"), "1 more bytes than its fields"),
        (replace(SYNC, value=b""), "the value of 0 bytes ends in its two offsets"),
        (sync_record("t", 0, -1, 4), "a negative offset: -1 at the source, 4 at the target"),
        (sync_record("t", 0, 4, -1), "a negative offset: 4 at the source, -1 at the target"),
    ],
)
def test_a_damaged_offset_sync(record: KafkaRecord, message: str) -> None:
    with pytest.raises(CorruptionError, match=re.escape(message)):
        read_offset_sync(record)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (replace(CHECKPOINT, key=SYNC.key), "the key of 12 bytes ends in its partition"),
        (replace(CHECKPOINT, value=SYNC.value), "the value of 16 bytes ends in its two offsets"),
        (checkpoint_record("g", "t", 0, 1, 1, version=1), "has version 1, but only 0 is known"),
        (checkpoint_record("g", "t", 0, 1, -1), "a negative offset: 1 at the source, -1 at"),
        (
            replace(CHECKPOINT, value=(CHECKPOINT.value or b"")[:-1]),
            "the value of 20 bytes ends in its metadata",
        ),
    ],
)
def test_a_damaged_checkpoint(record: KafkaRecord, message: str) -> None:
    with pytest.raises(CorruptionError, match=re.escape(message)):
        read_checkpoint(record)


@pytest.mark.parametrize(
    ("record", "read"), [(SYNC, read_offset_sync), (CHECKPOINT, read_checkpoint)]
)
def test_every_shorter_or_longer_record_is_refused(record: KafkaRecord, read: object) -> None:
    assert callable(read)
    for part in ("key", "value"):
        whole = getattr(record, part)
        for changed in [*(whole[:size] for size in range(len(whole))), whole + b"\0"]:
            with pytest.raises(CorruptionError):
                read(replace(record, **{part: changed}))


@pytest.mark.parametrize(
    ("record", "read"), [(SYNC, read_offset_sync), (CHECKPOINT, read_checkpoint)]
)
def test_a_changed_byte_is_decoded_or_refused(record: KafkaRecord, read: object) -> None:
    assert callable(read)
    outcomes = set()
    for part, byte in product(("key", "value"), range(256)):
        whole = getattr(record, part)
        for at in range(len(whole)):
            changed = whole[:at] + bytes([byte]) + whole[at + 1 :]
            try:
                found = read(replace(record, **{part: changed}))
            except CorruptionError:
                outcomes.add("refused")
            else:
                assert min(found.partition, found.source_offset, found.target_offset) >= 0
                outcomes.add("decoded")
    assert outcomes == {"refused", "decoded"}


def kafka_text(record: KafkaRecord, topic: str) -> str:
    """Return what Kafka's formatters print for a record."""
    if topic.startswith("mm2-offset-syncs"):
        sync = read_offset_sync(record)
        return (
            f"OffsetSync{{topicPartition={sync.topic}-{sync.partition}, "
            f"upstreamOffset={sync.source_offset}, downstreamOffset={sync.target_offset}}}"
        )
    found = read_checkpoint(record)
    return (
        f"Checkpoint{{consumerGroupId={found.group}, topicPartition={found.topic}-"
        f"{found.partition}, upstreamOffset={found.source_offset}, "
        f"downstreamOffset={found.target_offset}, metadata="
    )


def test_records_of_a_real_mirror_maker() -> None:
    """Each record says what Kafka's own formatter says; the metadata is not kept."""
    lines = (ROOT / "tests" / "golden" / "mirror_v1.json").read_text().splitlines()
    topics = set()
    for line in map(json.loads, lines):
        record = KafkaRecord(
            line["offset"], 0, bytes.fromhex(line["key"]), bytes.fromhex(line["value"])
        )
        shown = line["text"].partition("metadata=")
        assert kafka_text(record, line["topic"]) == "".join(shown[:2])
        topics.add(line["topic"])
    assert topics == {"mm2-offset-syncs.B.internal", "A.checkpoints.internal"}
