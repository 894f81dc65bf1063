"""Write a golden of MirrorMaker's records, with the text of Kafka's own formatters.

    python -m tests.golden.make_mirror tests/golden/mirror_v1.json

A real MirrorMaker 2 replicates a few records between two brokers. Each line of the file is a record
of its offset-syncs or checkpoints topic: its bytes as hex digits, and what Kafka prints for it.
Existing goldens are never rewritten.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from statestore.sources.mirror_policies import MirrorFlow
from statestore.spark.session import java_home
from tests.servers.jars import KAFKA_VERSION, MIRROR_MAKER, JarSet, jars_of
from tests.servers.kafka import kafka_broker
from tests.services.kafka_mirror import Mirrored, is_replicated, plain, replicating
from tests.services.kafka_topics import Topics, until

TOOLS = JarSet(f"kafka-tools-{KAFKA_VERSION}", (f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",))
FORMATTERS = "org.apache.kafka.connect.mirror.formatters"
NAME = "mirrored-orders"


def main() -> None:
    """Run the clusters, and write the file."""
    with tempfile.TemporaryDirectory() as folder:
        lines = golden(Path(folder))
    Path(sys.argv[1]).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def golden(folder: Path) -> list[dict[str, object]]:
    """Return the records of both topics."""
    flow = MirrorFlow(source="A", target="B")
    with kafka_broker(folder / "a") as a, kafka_broker(folder / "b") as b:
        mirrored = Mirrored(Topics(a.bootstrap), Topics(b.bootstrap), flow)
        plain(mirrored.source, NAME, 2, 300)
        commit(a.bootstrap, "mirrored-group", [(0, 300), (1, 150)])
        checkpoints = mirrored.target.cluster
        with replicating(folder / "mm", mirrored):
            until(lambda: is_replicated(mirrored, NAME, 2))
            until(lambda: flow.checkpoints_topic in checkpoints.topic_names())
            until(lambda: list(checkpoints.records(flow.checkpoints_topic)))
        return [
            *records(mirrored.source, flow.syncs_topic, f"{FORMATTERS}.OffsetSyncFormatter"),
            *records(mirrored.target, flow.checkpoints_topic, f"{FORMATTERS}.CheckpointFormatter"),
        ]


def commit(bootstrap: str, group: str, offsets: list[tuple[int, int]]) -> None:
    """Commit offsets with metadata, which MirrorMaker copies."""
    places = [TopicPartition(NAME, *each, metadata="läuft") for each in offsets]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[
        group
    ].result()


def records(topics: Topics, topic: str, formatter: str) -> list[dict[str, object]]:
    """Return the records of a topic, each with the line that Kafka's formatter prints."""
    found = list(topics.cluster.records(topic))
    classpath = ":".join(map(str, (*jars_of(TOOLS), *jars_of(MIRROR_MAKER))))
    java = [str(java_home() / "bin" / "java"), "-cp", classpath]
    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    options = {
        "--bootstrap-server": topics.bootstrap,
        "--topic": topic,
        "--formatter": formatter,
        "--max-messages": str(len(found)),
    }
    words = [word for option in options.items() for word in option]
    done = subprocess.run(
        [*java, consumer, *words, "--from-beginning"], capture_output=True, text=True, check=True
    )
    texts = done.stdout.splitlines()
    assert len(texts) == len(found), done.stderr
    return [
        {
            "topic": topic,
            "offset": record.offset,
            "key": (record.key or b"").hex(),
            "value": (record.value or b"").hex(),
            "text": text,
        }
        for record, text in zip(found, texts, strict=True)
    ]


if __name__ == "__main__":
    main()
