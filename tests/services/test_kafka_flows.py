"""Translated offsets of other replication flows, each with a real MirrorMaker 2 of its own."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from statestore.sources.discovery import Decision
from statestore.sources.mirror import Mirror
from statestore.sources.mirror_policies import MirrorFlow
from statestore.sources.offsets import SourceOffset
from tests.servers.kafka import kafka_broker
from tests.servers.process import free_ports
from tests.services.kafka_mirror import (
    LAST,
    LAX,
    Mirrored,
    check_every_offset,
    check_some_offsets,
    count,
    fill,
    is_replicated,
    plain,
    replicating,
    synced,
    transactional,
)
from tests.services.kafka_topics import Topics, until

pytestmark = [pytest.mark.services, pytest.mark.long]

PLAIN, TRANSACTIONS = "mirrored-plain", "mirrored-transactions"


@pytest.mark.parametrize("exactly_once", [True, False])
def test_the_source_is_gone(tmp_path: Path, exactly_once: bool) -> None:
    """Topics keep their names, the syncs are on the target, and the source does not answer."""
    settings = {
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "offset-syncs.topic.location": "target",
        "offset.lag.max": 0,
        "B.exactly.once.source.support": "enabled" if exactly_once else "disabled",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://127.0.0.1:{free_ports(1)[0]}",
    }
    flow = MirrorFlow(source="A", target="B", policy="identity", syncs_on="target")
    with kafka_broker(tmp_path / "b") as target:
        with kafka_broker(tmp_path / "a") as source:
            mirrored = Mirrored(Topics(source.bootstrap), Topics(target.bootstrap), flow)
            plain(mirrored.source, PLAIN, 1, 60)
            transactional(mirrored.source, TRANSACTIONS, 20)
            with replicating(tmp_path / "mm", mirrored, settings):
                until(lambda: all(is_replicated(mirrored, n, 1) for n in (PLAIN, TRANSACTIONS)))
                until(lambda: all(synced(mirrored, n) for n in (PLAIN, TRANSACTIONS)))
            for name in (PLAIN, TRANSACTIONS):
                assert check_every_offset(mirrored, name)["exact"] >= 1
                assert check_some_offsets(mirrored, name, 9)["exact"] >= 1
        mirror = Mirror(flow=flow, target=mirrored.target.cluster, rules=LAX)
        found = mirror.translate([SourceOffset(PLAIN, 0, 61), SourceOffset(TRANSACTIONS, 0, 0)])
        assert [each.decision for each in found.report] == [Decision.TRANSLATED] * 2


def test_mirror_maker_is_killed_and_starts_again(topics: Topics, tmp_path: Path) -> None:
    """Records are copied twice; the names have another separator, and only the syncs keep it."""
    settings = {
        "replication.policy.separator": "_",
        "replication.policy.internal.topic.separator.enabled": "false",
        "B.offset.flush.interval.ms": 60_000,  # so that a restart copies again
        "offset.lag.max": 3,
    }
    flow = MirrorFlow(source="A", target="B", separator="_", internal_separator=False)
    name = f"mirrored-{uuid.uuid4().hex}"
    with kafka_broker(tmp_path / "b") as target:
        mirrored = Mirrored(topics, Topics(target.bootstrap), flow)
        plain(topics, name, 1, 40)
        with replicating(tmp_path / "first", mirrored, settings):
            until(lambda: count(mirrored, name, LAST) == 1)
        fill(topics, name, {0: range(40, 80)})
        with replicating(tmp_path / "second", mirrored, settings):
            until(lambda: count(mirrored, name, f"{name}-0-79".encode()) == 1)
            until(lambda: count(mirrored, name, LAST) > 1)
        values = [record.value for record in mirrored.target.cluster.records(f"A_{name}")]
        assert len(values) > len(set(values)) + 1, "some records were copied twice"
        check_every_offset(mirrored, name)
        check_some_offsets(mirrored, name, 9)
