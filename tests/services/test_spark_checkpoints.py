"""A complete scenario: kill, inspect, correct, rescale and continue a query on a topic."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.services.kafka_topics import Topics
from tests.services.spark_checkpoint_on_kafka import records
from tests.services.spark_process import run_module

pytestmark = [pytest.mark.services, pytest.mark.slow]

MORE = 1000
WHO = "u1"
AGAIN: tuple[dict[str, Any], ...] = (
    {"do": "fill", "first": 60, "last": 90},
    {"do": "run", "location": "plain"},
    {"do": "import", "location": "at-7"},
    {"do": "export", "location": "at-3", "partitions": 3, "provider": "hdfs"},
    {"do": "run", "location": "at-3"},
)


class Job:
    """A query over a topic, a store, and operations on them, each in a new process."""

    def __init__(self, topics: Topics, folder: Path) -> None:
        self.topics, self.folder = topics, folder
        self.topic = topics.make(3)

    def fill(self, first: int, last: int) -> None:
        self.topics.fill(self.topic, records(first, last))

    def do(self, *steps: dict[str, Any], status: int = 0) -> list[Any]:
        given = {
            "bootstrap": self.topics.bootstrap,
            "topic": self.topic,
            "store": str(self.folder / "store"),
            "steps": [
                {**step, "location": str(self.folder / step["location"])}
                if "location" in step
                else step
                for step in steps
            ],
        }
        found, _ = run_module("spark_checkpoint_on_kafka", given, status)
        return [*(found or ())]


def without(emitted: dict[str, list[Any]], more: int) -> dict[str, list[Any]]:
    """Return the output with this amount subtracted for the corrected key."""
    return {
        batch: [[user, n, total - more * (user == WHO)] for user, n, total in rows]
        for batch, rows in emitted.items()
    }


# In each run, tests/streaming kills a query, tests/interop/spark continues queries at
# other parallelisms and corrected, and test_kafka_query.py continues one at the offsets of a topic.
@pytest.mark.long
@pytest.mark.parametrize("again", [False, True])
def test_a_killed_query_continues_corrected_and_rescaled(
    topics: Topics, tmp_path: Path, again: bool
) -> None:
    """4 partitions and HDFS; killed in micro-batch 2; 7 and RocksDB; with ``again``, 3 and HDFS."""
    job = Job(topics, tmp_path)
    job.fill(0, 60)
    job.do({"do": "run", "location": "at-4", "kill_in": 2}, status=-signal.SIGKILL)

    (plain, seen, batch, offsets, corrected, exported, at_7, *later) = job.do(
        {"do": "run", "location": "plain"},
        {"do": "show", "location": "at-4"},
        {"do": "import", "location": "at-4"},
        {"do": "offsets"},
        {"do": "correct", "user": WHO, "more": MORE},
        {"do": "export", "location": "at-7", "partitions": 7, "provider": "rocksdb"},
        {"do": "run", "location": "at-7"},
        *(AGAIN if again else ()),
    )
    assert seen == [1, 2, "hdfs", [{job.topic: {"0": 40, "1": 40, "2": 40}}]]
    assert (batch, exported) == (1, [1, 7])
    assert offsets == [
        {"topic": job.topic, "partition": number, "offset": 40} for number in range(3)
    ]
    assert corrected[1] - corrected[0] == MORE
    assert list(at_7) == ["2"]
    assert without(at_7, MORE) == {"2": plain["2"]}

    if not again:
        return
    (_, plain, batch, exported, at_3) = later
    assert (batch, exported) == (2, [2, 3])
    assert without(at_3, MORE) == plain
    assert list(plain) == ["3", "4"]


def totals(values: dict[int, list[str]]) -> list[tuple[str, int, int]]:
    """Return the number and sum of the records of each user, computed without Spark."""
    found: dict[str, list[int]] = {}
    for user, _, amount in (text.partition(":") for texts in values.values() for text in texts):
        found.setdefault(user, []).append(int(amount))
    return [(user, len(amounts), sum(amounts)) for user, amounts in found.items()]


@pytest.mark.long
def test_a_query_starts_with_a_table_at_offsets_or_a_time(topics: Topics, tmp_path: Path) -> None:
    """Its output is that of a query that read the topic from its beginning."""
    job = Job(topics, tmp_path)
    job.fill(0, 60)
    ends = {job.topic: {"0": 60, "1": 60, "2": 60}}
    begin = {"do": "bootstrap", "totals": totals(records(0, 60))}
    fast = {"kafka.default.api.timeout.ms": "2000", "kafka.request.timeout.ms": "1000"}
    elsewhere = {"kafka.bootstrap.servers": "localhost:1", **fast}
    at_offsets = begin | {"option": "startingOffsets", "value": json.dumps(ends)}
    later = int(time.time() * 1000) + 1
    by_time = begin | {"option": "startingTimestamp", "value": str(later)}
    _, offsets, error, _, same_offsets, plain, *others = job.do(
        {"do": "run", "location": "plain"},
        {**at_offsets, "location": "by-offsets"},
        {**at_offsets, "location": "lost", "options": elsewhere},
        {"do": "fill", "first": 60, "last": 90},
        {**by_time, "location": "by-time"},
        *({"do": "run", "location": name} for name in ("plain", "by-offsets", "by-time")),
    )
    assert "does not tell where it begins" in error
    assert offsets == same_offsets == [ends]
    assert [*plain] == ["3", "4"]
    assert [[*emitted.items()] for emitted in others] == [
        [("1", plain["3"]), ("2", plain["4"])]
    ] * 2


@pytest.mark.long
def test_a_topic_is_removed_and_another_one_is_added(topics: Topics, tmp_path: Path) -> None:
    """The query continues with the old positions of its other topic, and all of the new one."""
    job = Job(topics, tmp_path)
    gone, kept, new = job.topic, topics.make(3), topics.make(3)
    *_, positions, _, _, emitted = job.do(
        *({"do": "fill", "topic": topic, "first": 0, "last": 30} for topic in (gone, kept, new)),
        {"do": "run", "topics": [gone, kept], "location": "before"},
        {"do": "repartition", "from": "before", "to": "after", "location": "after"}
        | {"renamed": {"0": None}, "added": ["1"]},
        *({"do": "fill", "topic": topic, "first": 30, "last": 60} for topic in (gone, kept)),
        {"do": "run", "topics": [kept, new], "location": "after"},
    )
    assert positions == {"0": {kept: {"0": 30, "1": 30, "2": 30}}}
    last = {user: (user, n, total) for rows in emitted.values() for user, n, total in rows}
    sums: dict[str, tuple[int, int]] = {}
    for user, n, total in (*totals(records(0, 30)) * 2, *totals(records(0, 60))):
        before = sums.get(user, (0, 0))
        sums[user] = (before[0] + n, before[1] + total)
    assert last == {user: (user, *values) for user, values in sums.items()}
