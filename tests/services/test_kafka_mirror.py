"""Offsets of one real cluster translated to another, between which a real MirrorMaker 2 ran."""

from __future__ import annotations

import json
import shlex
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer

from statestore import StateStore
from statestore.cli.main import main
from statestore.cli.verbs.kafka import kafka as kafka_verbs
from statestore.errors import (
    CommitConflictError,
    CorruptionError,
    IncompatibleStateError,
    NotFoundError,
    StorageError,
)
from statestore.sources.discovery import Decision, Policies
from statestore.sources.kafka import KafkaCluster
from statestore.sources.mirror_policies import MirrorFlow, TranslationPolicies
from statestore.sources.offsets import SourceOffset
from tests.servers.kafka import kafka_broker
from tests.servers.process import free_ports
from tests.services.kafka_mirror import (
    LAST,
    Mirrored,
    check_every_offset,
    check_some_offsets,
    compacted,
    count,
    fill,
    is_replicated,
    plain,
    replicating,
    synced,
    transactional,
)
from tests.services.kafka_topics import SECONDS, Topics, until

# In each run, tests/sources translates by the records that a real MirrorMaker wrote.
pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.long]

PLAIN, COMPACTED, TRANSACTIONS = "mirrored-plain", "mirrored-compacted", "mirrored-transactions"
CUT, UNSYNCED = "mirrored-cut", "unsynced"
PARTITIONS = {PLAIN: 2, COMPACTED: 1, TRANSACTIONS: 1, CUT: 1}
KEY = len(PLAIN).to_bytes(2, "big") + PLAIN.encode() + bytes(4)  # of partition 0, as written
GROUP = "mirrored-group"
COMMITTED = [SourceOffset(PLAIN, number, 151) for number in range(2)]


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    """Two brokers; MirrorMaker has replicated the topics and is stopped."""
    with (
        kafka_broker(tmp_path_factory.mktemp("source")) as source,
        kafka_broker(tmp_path_factory.mktemp("target")) as target,
    ):
        topics = Topics(source.bootstrap)
        mirrored = Mirrored(topics, Topics(target.bootstrap), MirrorFlow(source="A", target="B"))
        compacted(topics, COMPACTED, keys=40, rounds=6)
        with replicating(tmp_path_factory.mktemp("mirror-maker"), mirrored):
            plain(topics, PLAIN, 2, 150)  # while MirrorMaker starts
            plain(topics, CUT, 1, 20)
            transactional(topics, TRANSACTIONS, 40)
            topics.cluster.commit(GROUP, COMMITTED)
            for each in (topics, mirrored.target):
                each.make(1, 10, name=UNSYNCED if each is topics else f"A.{UNSYNCED}")
            until(lambda: all(is_replicated(mirrored, *each) for each in PARTITIONS.items()))
            until(lambda: all(has_syncs(mirrored, *each) for each in PARTITIONS.items()))
            fill(topics, CUT, {0: range(20, 150)})  # all of it after a sync
            until(lambda: count(mirrored, CUT, LAST) == 2)
            until(lambda: has_checkpoints(mirrored))
        yield mirrored


def has_syncs(mirrored: Mirrored, name: str, partitions: int) -> bool:
    exists = mirrored.flow.syncs_topic in mirrored.source.cluster.topic_names()
    return exists and all(synced(mirrored, name, number) for number in range(partitions))


def has_checkpoints(mirrored: Mirrored) -> bool:
    topic, cluster = mirrored.flow.checkpoints_topic, mirrored.target.cluster
    return topic in cluster.topic_names() and len(list(cluster.records(topic))) >= len(COMMITTED)


def test_every_offset_of_a_plain_topic(mirrored: Mirrored) -> None:
    for partition in range(2):
        counts = check_every_offset(mirrored, PLAIN, partition)
        assert counts["exact"] >= 2
        assert counts.total() == 152


def test_every_offset_of_a_compacted_topic(mirrored: Mirrored) -> None:
    counts = check_every_offset(mirrored, COMPACTED)
    assert counts["exact"] >= 2
    live = mirrored.source.live(COMPACTED)
    assert live is not None
    copied = mirrored.target.live("A." + COMPACTED)
    assert copied is not None
    assert copied.partitions[0].high < live.partitions[0].high, "compaction left gaps"


def test_every_offset_between_transactions(mirrored: Mirrored) -> None:
    counts = check_every_offset(mirrored, TRANSACTIONS)
    assert counts["exact"] >= 2
    source, target = mirrored.source.live(TRANSACTIONS), mirrored.target.live("A." + TRANSACTIONS)
    assert source is not None
    assert target is not None
    assert target.partitions[0].high < source.partitions[0].high, "markers are not copied"


def test_records_are_compared_where_the_syncs_are_not_exact(mirrored: Mirrored) -> None:
    assert set(check_some_offsets(mirrored, PLAIN, 8)) <= {"exact", "unknown"}
    assert set(check_some_offsets(mirrored, TRANSACTIONS, 8)) <= {"exact", "unknown"}
    assert check_some_offsets(mirrored, COMPACTED, 8)["exact"] >= 1


def test_offsets_before_the_first_sync(mirrored: Mirrored) -> None:
    """The same flow with a compacted topic of syncs, which has only the newest one."""
    flow = MirrorFlow(source="A", target=uuid.uuid4().hex)
    syncs = list(mirrored.source.cluster.records(mirrored.flow.syncs_topic))
    (newest, *_) = [each for each in reversed(syncs) if (each.key or b"").startswith(KEY)]
    mirrored.source.make(1, name=flow.syncs_topic)
    producer = Producer({"bootstrap.servers": mirrored.source.bootstrap, "log_level": 0})
    producer.produce(flow.syncs_topic, newest.value, newest.key)
    assert producer.flush(SECONDS) == 0
    alone = Mirrored(mirrored.source, mirrored.target, flow)
    assert len(synced(alone, PLAIN)) == 1
    assert check_every_offset(alone, PLAIN)["unknown"] > 0
    assert set(check_some_offsets(alone, PLAIN, 9)) == {"exact"}


def test_checkpoints_of_groups_agree(mirrored: Mirrored) -> None:
    """MirrorMaker's own translation of a group's offset is never later than this one."""
    facts = mirrored.mirror().facts()
    for stored in COMMITTED:
        topic = mirrored.flow.target_topic(stored.topic)
        found = facts.of(stored.topic, topic, stored.partition).checkpoints[GROUP]
        assert found.source_offset == stored.offset
        finding = mirrored.mirror().translate([stored]).report[stored.partition]
        assert finding.offset is not None
        assert found.target_offset <= finding.offset


def test_more_partitions_at_the_target(mirrored: Mirrored) -> None:
    name = f"mirrored-{uuid.uuid4().hex}"
    mirrored.target.make(3, 4, name=f"A.{name}")
    stored = [SourceOffset(name, number, 0) for number in range(2)]
    found = mirrored.mirror().translate(stored)
    assert [(each.decision, each.offset) for each in found.report] == [
        (Decision.TRANSLATED, 0),
        (Decision.TRANSLATED, 0),
        (Decision.ADDED, 0),
    ]
    refused = mirrored.mirror(policies=Policies(new_partitions="fail")).translate(stored)
    with pytest.raises(IncompatibleStateError, match=f"'A.{name}' partition 2: no offset is"):
        assert refused.offsets


# --- By timestamp ---------------------------------------------------------------------------------


def test_without_syncs_by_timestamp(mirrored: Mirrored) -> None:
    """The copies of a topic that no sync is about, as of another replicator."""
    name, now_ms = f"timed-{uuid.uuid4().hex}", time.time_ns() // 1_000_000
    for topics, topic in ((mirrored.source, name), (mirrored.target, f"A.{name}")):
        topics.make(3, name=topic)
        producer = Producer({"bootstrap.servers": topics.bootstrap, "log_level": 0})
        for number in range(10):
            at_ms = now_ms + 1_000 * number
            producer.produce(topic, str(number), partition=0, timestamp=at_ms)
            if topics is mirrored.source:
                producer.produce(topic, str(number), partition=1, timestamp=at_ms)
        producer.produce(f"{topic}", "late", partition=2)
        assert producer.flush(SECONDS) == 0
    stored = [SourceOffset(name, 0, 4), SourceOffset(name, 1, 4), SourceOffset(name, 2, 1)]
    by_time = TranslationPolicies(untranslated="timestamp")
    found = mirrored.mirror(by_time).translate(stored)
    assert [each.offset for each in found.offsets] == [4, 0, 1]
    translations = [each.translation for each in found.report]
    assert [each and each.gap_ms for each in translations] == [0, None, None]
    assert [each.reason for each in found.report] == [
        "by timestamp: the next record is 0 ms after the source's",
        "by timestamp: the target has no record that is as new",
        "by timestamp: the source has no record left to read",
    ]
    mirrored.target.cut(f"A.{name}", 0, 6)
    (first, *_) = mirrored.mirror(by_time).translate(stored).report
    assert first.translation is not None
    assert (first.offset, first.translation.gap_ms) == (6, 2_000)
    # An offset after the end has no record, and so no time.
    (after, *_) = mirrored.mirror(by_time).translate([SourceOffset(name, 0, 11)]).report
    assert after.decision is Decision.REFUSED
    (whole, *_) = (
        mirrored.mirror(TranslationPolicies(untranslated="earliest")).translate(stored).report
    )
    assert whole.offset == 6
    assert mirrored.mirror().translate(stored).refused


def test_copies_of_an_open_transaction_are_not_skipped(mirrored: Mirrored) -> None:
    """MirrorMaker may copy its records before it is committed."""
    name, now_ms = f"open-{uuid.uuid4().hex}", time.time_ns() // 1_000_000
    for topics, topic in ((mirrored.source, name), (mirrored.target, f"A.{name}")):
        topics.make(1, name=topic)
        settings = {"bootstrap.servers": topics.bootstrap, "log_level": 0}
        producer = Producer(settings)
        for number in range(4):
            producer.produce(topic, str(number), timestamp=now_ms + number)
        assert producer.flush(SECONDS) == 0
        if topics is mirrored.source:
            producer = Producer(settings | {"transactional.id": name})
            producer.init_transactions(SECONDS)
            producer.begin_transaction()
        for number in range(4, 8):
            producer.produce(topic, str(number), timestamp=now_ms + number)
        assert producer.flush(SECONDS) == 0
        if topics is mirrored.source:
            transaction = producer
    found = mirrored.mirror(TranslationPolicies(untranslated="timestamp")).translate(
        [SourceOffset(name, 0, 4)]
    )
    assert [each.offset for each in found.offsets] == [4]
    transaction.abort_transaction(SECONDS)


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "C"}, r"offset syncs for the alias 'C'; it has those for .*'B'.*: correct"),
        ({"syncs_on": "target"}, "check the aliases, .* are on the source cluster"),
        ({"separator": "_"}, "no topic 'mm2-offset-syncs_B_internal'"),
    ],
)
def test_a_wrong_flow_is_refused(
    mirrored: Mirrored, settings: dict[str, str], message: str
) -> None:
    flow = MirrorFlow(**{"source": "A", "target": "B", **settings})  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match=message):
        mirrored.mirror(flow=flow).translate([])


def test_a_record_that_is_not_mirror_makers(mirrored: Mirrored) -> None:
    flow = MirrorFlow(source="A", target=uuid.uuid4().hex)
    mirrored.source.make(1, 1, name=flow.syncs_topic)
    with pytest.raises(
        CorruptionError, match=rf"record 0 of topic '{flow.syncs_topic}' of Kafka at .*the key is"
    ):
        mirrored.mirror(flow=flow).translate([])


def test_a_missing_topic_at_the_target_is_refused(mirrored: Mirrored) -> None:
    stored = [SourceOffset("mirrored-none", 0, 5)]
    refused = mirrored.mirror().translate(stored)
    with pytest.raises(IncompatibleStateError, match="does not exist on the target cluster"):
        assert refused.offsets
    with pytest.raises(NotFoundError, match="no topic 'none', which is named as an additional"):
        mirrored.mirror(topics=("none",)).translate(stored)


def test_a_recreated_topic_at_the_source(mirrored: Mirrored) -> None:
    stored = [SourceOffset(PLAIN, 0, 5, "another-id")]
    with pytest.raises(IncompatibleStateError, match="was recreated on the source cluster 'A'"):
        mirrored.mirror().translate(stored)
    (element, _) = mirrored.source.elements(PLAIN, [5, 5])
    assert mirrored.mirror().translate([element]).report[0].decision is Decision.TRANSLATED


@pytest.mark.parametrize("stopped", ["source", "target"])
def test_a_stopped_cluster(mirrored: Mirrored, stopped: str) -> None:
    bootstrap = f"127.0.0.1:{free_ports(1)[0]}"
    clusters: dict[str, Any] = {stopped: KafkaCluster(bootstrap, seconds=0.5)}
    with pytest.raises(StorageError, match=f"Kafka at {bootstrap} did not .*check that it is"):
        mirrored.mirror(**clusters).translate([SourceOffset(PLAIN, 0, 5)])


# --- The command ----------------------------------------------------------------------------------


@pytest.fixture
def store(mirrored: Mirrored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateStore:
    """A store with the offsets of two subtasks; union state has more columns."""
    monkeypatch.chdir(tmp_path)
    (with_id, _) = mirrored.source.elements(PLAIN, [151, 151])
    store = StateStore.open("fraud", table_format="parquet")
    first, second = ({"topic": PLAIN, "partition": n, "offset": 151} for n in range(2))
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_split("orders-source", "offsets", [[first], [second]])
        row = with_id | {"note": "n", "subtask": 0}
        table = pa.Table.from_pylist([row]).set_column(1, "partition", pa.array([0], pa.int32()))
        checkpoint.write_union("orders-source", "with_ids", table)
        early = {"topic": UNSYNCED, "partition": 0, "offset": 4}
        checkpoint.write_split("orders-source", "early", [[early], []])
        checkpoint.write_broadcast("orders-source", "same", [first])
        checkpoint.write_union("orders-source", "empty", [[], []])
        checkpoint.write_keyed("sums", "sum", [{"k": 1, "v": 2}], key="k")
    return store


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def translate(mirrored: Mirrored, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run the command with both clusters; return its exit code, stdout and stderr."""

    def run(*arguments: str, state: str = "offsets") -> tuple[int, str, str]:
        capfd.readouterr()
        source, target = mirrored.source.bootstrap, mirrored.target.bootstrap
        clusters = ("--from-cluster", f"A={source}", "--to-cluster", f"B={target}")
        names = ("--state", f"orders-source/{state}", "--store", "fraud")
        code = main(["kafka", "translate", *names, *clusters, *arguments])
        return code, *capfd.readouterr()

    return run


def test_a_dry_run_shows_a_table(translate: Command, store: StateStore) -> None:
    code, out, err = translate("--dry-run")
    assert (code, err) == (0, "")
    head, names, *lines, last = out.splitlines()
    assert head == "A -> B: 2 translated"
    assert names.split() == [
        *("topic", "partition", "source", "translated", "live", "decision", "offset", "reason")
    ]
    assert [line.split()[:7] for line in lines] == [
        [f"A.{PLAIN}", str(n), "151", "exact", "0..151", "translated", "151"] for n in range(2)
    ]
    assert last == "nothing was written of state offsets of operator orders-source, checkpoint 1"
    assert store.checkpoints() == (1,)


def test_the_checkpoint_has_the_offsets_of_both_clusters(
    translate: Command, store: StateStore, mirrored: Mirrored
) -> None:
    group = uuid.uuid4().hex
    code, out, err = translate("--group", group, "--output", "json")
    assert code == 0, err
    document = json.loads(out)
    assert (document["checkpoint_id"], document["new_checkpoint_id"]) == (1, 2)
    restored = store.restore(parallelism=2)
    new = restored.operator_state("orders-source", "offsets").per_old_subtask()
    topic = f"A.{PLAIN}"
    assert new == [[{"topic": topic, "partition": n, "offset": 151}] for n in range(2)]
    origin = store.checkpoint().manifest.origin
    assert origin is not None
    assert origin["partitions"] == [
        {"topic": topic, "partition": n, "offset": 151, "read_again": 0}
        | {"source_topic": PLAIN, "source_offset": 151}
        for n in range(2)
    ]
    before = {(entry.state.uid, entry.state.name) for entry in store.checkpoint(1).manifest.entries}
    assert {
        (entry.state.uid, entry.state.name) for entry in store.checkpoint().manifest.entries
    } == before
    assert store.maintenance.verify().is_intact
    assert mirrored.target.cluster.committed(group) == {(topic, n): 151 for n in range(2)}
    # A second translation would take the new offsets for those of the old cluster.
    code, _, err = translate()
    assert code == 2
    assert "is already translated from cluster 'A' to 'B'; translate checkpoint 1" in err
    code, out, _ = translate("1", "--from-older", "--group", group, "--output", "json")
    assert (code, json.loads(out)["new_checkpoint_id"]) == (0, 3)
    assert [each["offset"] for each in json.loads(out)["before"]] == [151, 151]


def test_a_consumer_of_the_group_reads_what_was_not_read(
    translate: Command, store: StateStore, mirrored: Mirrored
) -> None:
    group, starts = uuid.uuid4().hex, (100, 140)
    with store.snapshot(parallelism=2) as checkpoint:
        elements = [{"topic": PLAIN, "partition": n, "offset": at} for n, at in enumerate(starts)]
        checkpoint.write_split("orders-source", "offsets", [elements, []])
        checkpoint.carry_rest()
    code, out, err = translate("--group", group, "--output", "json")
    assert code == 0, err
    assert [each["precision"] for each in json.loads(out)["partitions"]] == ["exact", "exact"]
    unread = [
        record.value
        for number, start in enumerate(starts)
        for record in mirrored.source.cluster.records(PLAIN, number, start=start)
    ]
    consumer = Consumer({"bootstrap.servers": mirrored.target.bootstrap, "group.id": group})
    consumer.subscribe([f"A.{PLAIN}"])
    read = [message.value() or b"" for message in consumer.consume(len(unread), SECONDS)]
    assert sorted(read) == sorted(value or b"" for value in unread)
    assert consumer.consume(1, 0.3) == []
    consumer.close()


def test_other_columns_and_topic_ids(
    translate: Command, store: StateStore, mirrored: Mirrored
) -> None:
    assert translate(state="with_ids")[0] == 0
    live = mirrored.target.live(f"A.{PLAIN}")
    assert live is not None
    lists = store.restore(parallelism=2).operator_state("orders-source", "with_ids")
    kept, added = (
        {"topic": live.name, "topic_id": live.id, "note": note, "partition": n, "offset": offset}
        for n, note, offset in ((0, "n", 151), (1, None, 0))
    )
    assert lists.per_old_subtask() == [[kept], [added]]


def test_records_that_would_be_read_again(
    translate: Command, store: StateStore, mirrored: Mirrored
) -> None:
    """The records after the sync are deleted at the source, so they cannot be compared."""
    first = [source for source, _ in synced(mirrored, CUT) if source < 119][-1]
    mirrored.source.cut(CUT, 0, first + 5)
    with store.snapshot(parallelism=2) as checkpoint:
        element = {"topic": CUT, "partition": 0, "offset": first + 31}
        checkpoint.write_split("orders-source", "offsets", [[element], []])
        checkpoint.carry_rest()
    code, out, err = translate("--group", "g")
    assert code == 12
    assert f"at most 30 records read again; by the offset sync at {first}" in out
    assert err.count("\n") == 1
    assert "Choose what to do with the settings read_again" in err
    assert store.checkpoints() == (1, 2)
    assert mirrored.target.cluster.committed("g") == {}
    assert translate("--on", "read_again=29")[0] == 12
    assert translate("--on", "read_again=30")[0] == 0
    assert store.checkpoints() == (1, 2, 3)


def test_the_group_is_committed_as_a_whole_or_not_at_all(
    translate: Command, store: StateStore, mirrored: Mirrored
) -> None:
    group, topic = uuid.uuid4().hex, f"A.{PLAIN}"
    consumer = Consumer({"bootstrap.servers": mirrored.target.bootstrap, "group.id": group})
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.05) is None and consumer.assignment())
    code, out, err = translate("--group", group)
    assert (code, out) == (11, "")
    assert "has 1 live member" in err
    # A member that joins after the plan: Kafka refuses, and no checkpoint becomes visible.
    consumer.close()
    plan = store.maintenance.plan_translation(
        "orders-source", "offsets", mirrored.mirror(), group=group
    )
    consumer = Consumer({"bootstrap.servers": mirrored.target.bootstrap, "group.id": group})
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.05) is None and consumer.assignment())
    with pytest.raises(CommitConflictError):
        plan.write()
    assert store.checkpoints() == (1,)
    consumer.close()
    assert mirrored.target.cluster.committed(group) == {}
    assert translate("--group", group)[0] == 0


def test_wrong_states_and_options(
    translate: Command, store: StateStore, mirrored: Mirrored, tmp_path: Path
) -> None:
    assert translate(state="same")[0] == 2
    assert translate(state="empty")[0] == 2
    assert translate(state="none")[0] == 10
    for arguments, message in (
        (("--to-cluster", "B"), "must have the form ALIAS=HOST:PORT"),
        (("--from-cluster", "A"), "the offset syncs are on the source cluster, but no broker"),
        (
            (
                *("--from-cluster", "A", "--mirror", "offset-syncs.topic.location=target"),
                *("--on", "untranslated=timestamp"),
            ),
            "by timestamp",
        ),
    ):
        code, _, err = translate(*arguments)
        assert (code, message in err) == (2, True), err
    config = tmp_path / "client.properties"
    brokers = mirrored.target.bootstrap
    config.write_text(
        f"# a comment\n\nsecurity.protocol = PLAINTEXT\nbootstrap.servers={brokers}\n"
    )
    assert translate("--to-cluster", f"B=@{config}", "--dry-run")[0] == 0
    config.write_text("sasl.password hunter2\n")
    code, _, err = translate("--to-cluster", f"B=@{config}")
    assert code == 2
    assert "line 1 of" in err
    assert "hunter2" not in err
    config.write_text("security.protocol = PLAINTEXT\n")
    assert "lacks bootstrap.servers=HOST:PORT" in translate("--from-cluster", f"A=@{config}")[2]
    assert "there is no file none" in translate("--from-cluster", "A=@none")[2]
    assert "--on read_again: " in translate("--on", "read_again=x")[2]
    assert store.checkpoints() == (1,)


def test_the_examples(store: StateStore, mirrored: Mirrored, capfd: Any) -> None:
    verb = kafka_verbs.get_command(click.Context(kafka_verbs), "translate")
    examples = [*kafka_verbs.examples, *getattr(verb, "examples", ())]
    flow = MirrorFlow(source="old", target="new", syncs_on="target")
    mirrored.source.make(1, name="mm2-offset-syncs.new.internal")
    mirrored.target.make(1, name=flow.syncs_topic)
    mirrored.target.make(2, name=f"old.{PLAIN}")
    with store.snapshot(parallelism=1) as checkpoint:  # nothing was read yet
        first, second = ({"topic": PLAIN, "partition": n, "offset": 0} for n in range(2))
        checkpoint.write_split("orders-source", "offsets", [[first, second]])
        checkpoint.carry_rest()
    for example in examples:
        text = example.replace("old:9092", mirrored.source.bootstrap)
        words = shlex.split(text.replace("new:9092", mirrored.target.bootstrap))
        assert main(words[1:]) == 0, capfd.readouterr().err
    assert store.checkpoints() == (1, 2, 3)
