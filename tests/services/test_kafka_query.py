"""A live query on a topic whose broker is killed and restarted: each record counts once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from statestore import StateStore
from statestore.errors import CheckpointNotFoundError, StoreNotFoundError
from tests.servers.kafka import kafka_broker
from tests.services.kafka_query import HELD, HOLD, STATE, STORE, UID
from tests.services.kafka_topics import Topics, until
from tests.syntax import ROOT

pytestmark = [pytest.mark.services, pytest.mark.slow]

PARTITIONS = 3
AWAY_SECONDS = 3
LOG = "job.log"
# Clients then give up waiting for the broker after a second or two, instead of minutes.
SINK = {
    "kafka.max.block.ms": "2000",
    "kafka.request.timeout.ms": "1000",
    "kafka.delivery.timeout.ms": "2000",
}
SOURCE = {
    "kafkaConsumer.pollTimeoutMs": "1000",
    "kafka.request.timeout.ms": "1000",
    "kafka.default.api.timeout.ms": "1000",
}


class Job:
    """The process with the query, and the expected counts."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.topic = ""
        self.expected: Counter[str] = Counter()
        self._process = process

    def ask(self, **command: Any) -> Any:
        """Send a command and return the response."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, (self.folder / LOG).read_text(errors="replace")[-5000:]
        return json.loads(line)

    def told(self) -> str:
        """Wait until the query fails; return its reason, which is logged in one line."""
        ended = self.ask(do="wait")
        (line,) = ended["log"]
        where, _, why = line.partition(" was not committed: ")
        assert re.fullmatch(r"micro-batch \d+ of operator 'words'", where)
        kind, _, what = why.partition(": ")
        assert kind == "org.apache.kafka.common.errors.TimeoutException"
        assert what in ended["error"]
        return str(what)

    def start(self, parallelism: int, **options: Any) -> None:
        """Start the query."""
        self.ask(do="start", parallelism=parallelism, **{"source": {}, "sink": {}, **options})

    def produce(self, topics: Topics, records: int) -> None:
        """Produce this many more records, which the query has to count."""
        first = self.expected.total()
        words = [f"w{at * at % 11}" for at in range(first, first + records)]
        topics.fill(self.topic, {each: words[each::PARTITIONS] for each in range(PARTITIONS)})
        self.expected.update(words)

    def counts(self) -> dict[str, int]:
        """Return the newest checkpoint, read without Spark."""
        try:
            store = StateStore.open(str(self.folder / STORE), table_format="parquet")
            state = store.restore(parallelism=1).keyed(UID, STATE)
        except (CheckpointNotFoundError, StoreNotFoundError):
            return {}
        return {row["word"]: row["n"] for row in state.to_arrow(0).to_pylist()}

    def until_counted(self) -> None:
        """Wait until all records are counted; no count may ever be too high."""
        until(lambda: sum(self.counts().values()) >= self.expected.total())
        assert self.counts() == self.expected

    def until_held(self) -> None:
        """Wait until a micro-batch is blocked before its output."""
        until((self.folder / HELD).exists)

    def hold(self) -> None:
        """Block the next micro-batch."""
        (self.folder / HELD).unlink(missing_ok=True)
        (self.folder / HOLD).touch()

    def release(self) -> None:
        """Unblock the micro-batch."""
        (self.folder / HOLD).unlink()


@contextmanager
def running_job(folder: Path) -> Iterator[Job]:
    """Start the process; kill it when the block ends."""
    with (
        (folder / LOG).open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.services.kafka_query"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
            text=True,
        ) as process,
    ):
        try:
            yield Job(folder, process)
        finally:
            process.kill()


def written(bootstrap: str, topic: str) -> list[tuple[str, int]]:
    """Return the words and counts in a topic with one partition, in order."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer(settings)
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0))
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[str, int]] = []
    while len(found) < end:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        row = json.loads(message.value() or b"")
        found.append((row["word"], row["n"]))
    consumer.close()
    return found


@pytest.mark.long_cases("False")
@pytest.mark.parametrize("gives_up", [False, pytest.param(True, marks=pytest.mark.long)])
def test_each_record_counts_once_despite_an_outage_of_the_broker(
    tmp_path: Path, gives_up: bool
) -> None:
    """A query waits for the broker. If it has given up, it continues after a restart."""
    directory = tmp_path / "broker"
    with running_job(tmp_path) as job:
        with kafka_broker(directory) as broker:
            topics = Topics(broker.bootstrap)
            job.topic, output = topics.make(PARTITIONS), topics.make(1)
            job.ask(
                folder=str(tmp_path), topic=job.topic, output=output, bootstrap=broker.bootstrap
            )
            job.start(2)
            job.produce(topics, 30)
            job.until_counted()
            job.hold()
            job.produce(topics, 120)
            job.until_held()
        job.release()
        time.sleep(AWAY_SECONDS)

        with kafka_broker(directory):
            job.produce(topics, 30)
            job.until_counted()
            assert job.ask(do="stop") == {"error": None, "log": []}
            if gives_up:
                job.start(5, sink=SINK)
                counted = job.counts()
                job.hold()
                job.produce(topics, 30)
                job.until_held()
            else:
                continue_and_check(job, topics, output)
        if gives_up:
            job.release()
            assert "not present in metadata after 2000 ms" in job.told()
            job.start(3, source=SOURCE, sink=SINK)
            assert "Timeout of 1000ms expired" in job.told()
            assert job.counts() == counted
            with kafka_broker(directory):
                continue_and_check(job, topics, output)


def continue_and_check(job: Job, topics: Topics, output: str) -> None:
    """Start the query at another parallelism, and compare all of its output with the records."""
    job.start(3)
    job.produce(topics, 30)
    job.until_counted()
    assert job.ask(do="stop") == {"error": None, "log": []}
    assert dict(written(topics.bootstrap, output)) == job.expected
