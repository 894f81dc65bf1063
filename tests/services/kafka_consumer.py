"""One consumer as a process of its own: it reads given partitions, and says how far it is.

Commands come over stdin, a line of JSON each, and each is answered by a line on stdout. The first
is where to start: ``{"bootstrap": …, "offsets": [element, …]}``. ``{"read": n}`` reads n records
more, or to the end of all partitions, and answers with the next offsets, and how often each record
was read since the start. When stdin ends it ends. Kafka stores nothing of it: no group commits.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition


class Reader:
    """Partitions, the offsets to read next, and what was read."""

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
        self._elements = {(each["topic"], each["partition"]): dict(each) for each in offsets}
        self._at_end: set[tuple[str, int]] = set()
        self._seen: Counter[str] = Counter()
        self._consumer.assign(
            [TopicPartition(*place, each["offset"]) for place, each in self._elements.items()]
        )

    def read(self, number: int) -> dict[str, Any]:
        """Read, and return a snapshot."""
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
    """Follow the commands."""
    reader = Reader(**json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        print(json.dumps(reader.read(json.loads(line)["read"])), flush=True)


if __name__ == "__main__":
    main()
