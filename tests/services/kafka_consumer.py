"""A consumer in a process of its own: it reads given partitions and reports its progress.

Commands arrive on stdin, one line of JSON each, and each gets one line on stdout. The first command
has the start: ``{"bootstrap": …, "offsets": [element, …]}``. ``{"read": n}`` reads n more records,
or to the end of all partitions. Its response has the next offsets, and how often each record was
read since the start. The process ends when stdin ends. It commits nothing to Kafka.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition


class Reader:
    """Partitions, their next offsets, and the records read so far."""

    def __init__(self, bootstrap: str, offsets: list[dict[str, Any]]) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
            }
        )
        self._elements = {
            (offset["topic"], offset["partition"]): dict(offset) for offset in offsets
        }
        self._at_end: set[tuple[str, int]] = set()
        self._seen: Counter[str] = Counter()
        self._consumer.assign(
            [TopicPartition(*place, each["offset"]) for place, each in self._elements.items()]
        )

    def read(self, number: int) -> dict[str, Any]:
        """Read records; return the response."""
        while number and len(self._at_end) < len(self._elements):
            message = self._consumer.poll(60)
            assert message is not None, "no record, and no end"
            place = (str(message.topic()), int(message.partition() or 0))
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                self._at_end.add(place)
                continue
            number -= 1
            self._at_end.discard(place)
            self._seen[(message.value() or b"").decode()] += 1
            self._elements[place]["offset"] = int(message.offset() or 0) + 1
        return {"offsets": [*self._elements.values()], "seen": self._seen}


def main() -> None:
    """Execute the commands."""
    reader = Reader(**json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        print(json.dumps(reader.read(json.loads(line)["read"])), flush=True)


if __name__ == "__main__":
    main()
