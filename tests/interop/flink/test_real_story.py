"""Complete scenarios with real Flink: a job stops, its state is read and changed, and it
continues.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statestore import OperatorKey
from statestore.interop.flink import export_savepoint, import_savepoint
from statestore.store import StateStore
from tests.interop.flink.goldens import Golden
from tests.interop.flink.test_real_flink import (
    HEAP,
    NEWEST,
    ROCKSDB,
    comparable,
    dumped,
    read,
)
from tests.servers.flink import Flink, flink_with_kafka
from tests.servers.kafka import kafka_broker
from tests.services.kafka_topics import Topics

pytestmark = [pytest.mark.flink, pytest.mark.long]
PURGED = -26000078


def of_others(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows except those of the purged key."""
    return [row for row in rows if (row["operator"], row.get("key")) != ("by_long", PURGED)]


def test_a_job_continues_without_a_key_and_with_more_key_groups(tmp_path: Path) -> None:
    """The state is read with SQL, one key is purged, and 128 key groups become 720. After 100 more
    events all other state equals that of a job that was never stopped.
    """
    source = Golden("2.3_heap_canonical").unpack(tmp_path / "from")
    store = StateStore.open(str(tmp_path / "store"))
    import_savepoint(str(source), store)
    question = f'SELECT count(*) AS n FROM "by_long"."last" WHERE key = {PURGED}'
    assert store.query(question).read_all().to_pylist() == [{"n": 1}]
    store.maintenance.forget(OperatorKey("by_long", PURGED), search=False)
    assert store.query(question).read_all().to_pylist() == [{"n": 0}]
    done = export_savepoint(store, str(tmp_path / "to"), max_parallelism=720)

    flink = Flink(NEWEST)
    step = {"do": "savepoint", "from": done.savepoint, "to": str(tmp_path), "events": "350"}
    step |= {"parallelism": "4", "max": "720", "format": "CANONICAL"}
    (later,) = flink.run([step | ROCKSDB])
    found = dumped(flink, tmp_path, later, ROCKSDB, parallelism=3, most=720)
    whole = Golden("2.3_rescaled").rows()
    assert comparable(of_others(found)) == comparable(of_others(whole))
    before, after = (len(rows) - len(of_others(rows)) for rows in (whole, found))
    assert before > after


@pytest.mark.services
@pytest.mark.parametrize(
    ("topic", "starts"),
    [("orders", {0: 50, 1: 20}), ("old.orders", {0: 45, 1: 28}), ("old.orders", {1: 28})],
)
def test_a_kafka_source_continues_at_changed_offsets(
    topic: str, starts: dict[int, int], tmp_path: Path
) -> None:
    """Partitions are rewound, removed, and renamed as MirrorMaker does for another cluster.

    A partition without an offset is read from its start, and no other record is read again.
    """
    store = StateStore.open(str(tmp_path / "store"))
    import_savepoint(str(Golden("2.3_kafka").unpack(tmp_path / "from")), store)
    moved = [{"topic": topic, "partition": part, "offset": at} for part, at in starts.items()]
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_union("kafka", "offsets", [moved])
        checkpoint.carry_rest()
    done = export_savepoint(store, str(tmp_path / "to"))
    new = [[0, at, str(at)] for at in range(starts.get(0, 0), 60)]
    new += [[1, at, str(at)] for at in range(starts[1], 35)]
    with kafka_broker(tmp_path / "broker") as broker:
        topics = Topics(broker.bootstrap)
        topics.make(3, name=topic)
        topics.fill(topic, {0: map(str, range(60)), 1: map(str, range(35)), 2: ["first"]})
        rows = tmp_path / "rows.jsonl"
        step = {"do": "savepoint", "from": done.savepoint, "to": str(tmp_path)}
        step |= {"events": str(len(new) + 1), "bootstrap": broker.bootstrap, "topic": topic}
        step |= {"results": str(rows), "parallelism": "3", "format": "CANONICAL"}
        flink_with_kafka().run([step | HEAP])
    found = [one["result"]["row"]["row"] for one in read(rows)]
    assert sorted(found) == sorted([*new, [2, 0, "first"]]), json.dumps(found)
