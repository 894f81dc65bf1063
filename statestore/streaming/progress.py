"""How far a streaming query is: what Spark wrote down of it, and what a checkpoint says.

Before Spark runs a micro-batch it writes to the query's checkpoint location, into ``offsets/<batch
id>``, where each source's data end: a line of version, one of metadata, and one of JSON for each
source. The query's id is in the file ``metadata``, and lasts as long as the location.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from statestore.commands.restore import RestoredCheckpoint
from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.storage import Storage

__all__ = ["OFFSETS", "POSITIONS", "PROGRESS", "Progress", "kafka_offsets", "positions", "query_id"]

PROGRESS, POSITIONS, OFFSETS = "progress", "positions", "offsets"
_VERSION = "v1"


@dataclass(frozen=True)
class Progress:
    """The last micro-batch that a checkpoint holds: of which query, and its number from 0 on."""

    query: str
    batch: int

    @classmethod
    def of(cls, restored: RestoredCheckpoint, uid: str) -> Progress | None:
        """Return what a checkpoint says, None when it says nothing."""
        try:
            stored = restored.operator(uid, PROGRESS).per_old_subtask()
        except StateNotFoundError:
            return None
        ((element,),) = stored
        return cls(element["query"], element["batch"])

    def element(self) -> dict[str, Any]:
        """Return the element of broadcast state that says so."""
        return {"query": self.query, "batch": self.batch}

    def is_done(self, stored: Progress | None) -> bool:
        """Return whether the checkpoint with ``stored`` holds this micro-batch already.

        Raises InvalidArgumentError when it holds this query, but not the micro-batch before: then
        what lies between would be lost.
        """
        if stored is None or stored.query != self.query:
            return False
        if self.batch > stored.batch + 1:
            raise InvalidArgumentError(
                f"the newest checkpoint ends with micro-batch {stored.batch} of query "
                f"{self.query}, and Spark goes on with {self.batch}: those between are not in the "
                "store. Start the query with a new checkpoint location, from the offsets that the "
                "checkpoint has"
            )
        return self.batch <= stored.batch


def query_id(location: Storage) -> str:
    """Return the id of the query whose checkpoint location it is."""
    found: str = json.loads(location.read("metadata"))["id"]
    return found


def positions(location: Storage, batch_id: int) -> tuple[str, ...]:
    """Return where each source's data of a micro-batch end, as the JSON that Spark wrote.

    Raises InvalidArgumentError for a file of another version than is known.
    """
    name = f"offsets/{batch_id}"
    lines = location.read(name).decode().splitlines()
    if not lines or lines[0] != _VERSION:
        raise InvalidArgumentError(
            f"{location.url}/{name} begins with {lines[:1]}, not with {_VERSION}: this release of "
            "Spark writes its offsets in another way"
        )
    return tuple(lines[2:])


def kafka_offsets(lines: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the Kafka offsets among positions, one element for each partition: the next to read.

    Positions of other sources are left out.
    """
    return [element for line in lines for element in _elements(line)]


def _elements(line: str) -> Iterator[dict[str, Any]]:
    try:
        topics = json.loads(line)
    except ValueError:
        return
    if not isinstance(topics, dict) or not all(
        isinstance(partitions, dict)
        and all(number.isdigit() and isinstance(at, int) for number, at in partitions.items())
        for partitions in topics.values()
    ):
        return
    for topic, partitions in sorted(topics.items()):
        for number, offset in sorted(partitions.items(), key=lambda item: int(item[0])):
            yield {"topic": topic, "partition": int(number), "offset": offset}
