"""How far a streaming query is: what Spark wrote down of it, and what a checkpoint says.

Before Spark runs a micro-batch it writes to the query's checkpoint location, into ``offsets/<batch
id>``, where each source's data end: a line of version, one of metadata, and one of JSON for each
source. The query's id is in the file ``metadata``, and lasts as long as the location.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from statestore.commands.restore import RestoredCheckpoint
from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.storage import Storage

__all__ = [
    "OFFSETS",
    "POSITIONS",
    "PROGRESS",
    "MicroBatch",
    "Progress",
    "kafka_offsets",
    "planned",
    "starting_offsets",
]

PROGRESS, POSITIONS, OFFSETS = "progress", "positions", "offsets"
_VERSION = "v1"


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch as Spark planned it, which is the same however often it runs.

    ``query`` is the query's id, ``number`` counts from 0, ``ends`` say where each source's data of
    it end, as JSON, and ``planned_at_ms`` is when it was planned, None if that is not known.
    """

    query: str
    number: int
    ends: tuple[str, ...] = ()
    planned_at_ms: int | None = None


@dataclass(frozen=True)
class Progress:
    """The last micro-batch of each query that wrote a state: of the one at work, that is last, and
    of those before it.
    """

    queries: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, restored: RestoredCheckpoint, uid: str) -> Progress:
        """Return what a checkpoint says; nothing when it knows of none."""
        try:
            (elements,) = restored.operator(uid, PROGRESS).per_old_subtask()
        except StateNotFoundError:
            return cls()
        return cls(tuple((element["query"], element["batch"]) for element in elements))

    def elements(self) -> list[dict[str, Any]]:
        """Return the elements of broadcast state that say so."""
        return [{"query": query, "batch": batch} for query, batch in self.queries]

    def with_done(self, batch: MicroBatch) -> Progress:
        """Return the progress behind a micro-batch."""
        others = tuple(one for one in self.queries if one[0] != batch.query)
        return replace(self, queries=(*others, (batch.query, batch.number)))

    def has(self, batch: MicroBatch) -> bool:
        """Return whether a micro-batch is done."""
        stored = dict(self.queries).get(batch.query)
        return stored is not None and batch.number <= stored

    def check(self, batch: MicroBatch, subject: str, *, has_state: bool, succeeds: bool) -> None:
        """Raise InvalidArgumentError for a micro-batch that is not done and cannot be the next one.

        Then micro-batches between are missing, the state has gone on with another query, this is
        the first of a query that was not said to succeed another, or only one of the state
        (``subject``) and the progress of its query is there.
        """
        if self.has(batch):
            return
        if not self.queries:
            if not succeeds:
                _refuse_unknown(batch, subject, has_state)
            return
        last, last_batch = self.queries[-1]
        if not has_state:
            raise InvalidArgumentError(
                f"the newest checkpoint has the progress of query {last}, up to its micro-batch "
                f"{last_batch}, and not {subject}, in which those events are. Take it over from a "
                "checkpoint that has it (checkpoint.carry(…, base=…)); or drop the progress by "
                "name, and start the query from the beginning, with a new checkpoint location"
            )
        stored = dict(self.queries).get(batch.query)
        if stored is None:
            if succeeds:
                return
            raise InvalidArgumentError(
                f"the state is that of query {last} up to its micro-batch {last_batch}, and this "
                f"is query {batch.query}, which has another checkpoint location. Start it with the "
                "location of the first; or let its sources begin where that one ended "
                "(statestore.streaming.starting_offsets says it for Kafka), and say so with "
                "StatefulQuery(…, succeeds=True)"
            )
        if last != batch.query:
            raise InvalidArgumentError(
                f"the state has gone on with query {last} after micro-batch {stored} of query "
                f"{batch.query}, whose events may be in it twice if that goes on now. Start query "
                f"{last}, or a new one that succeeds it"
            )
        if batch.number > stored + 1:
            raise InvalidArgumentError(
                f"the newest checkpoint ends with micro-batch {stored} of query {batch.query}, and "
                f"Spark goes on with {batch.number}: those between are not in the store. Start the "
                "query with a new checkpoint location, succeeds=True, and from the positions that "
                "the checkpoint has"
            )


def _refuse_unknown(batch: MicroBatch, subject: str, has_state: bool) -> None:
    """Refuse to count anew where nobody knows what was counted."""
    if has_state:
        raise InvalidArgumentError(
            f"the newest checkpoint has {subject}, and not the progress of a query: which events "
            f"are in it is not known, and query {batch.query} would count them again. Take the "
            f"progress over from a checkpoint that has it (checkpoint.carry(…, {PROGRESS!r}, "
            "base=…)); or let the sources begin where the state ends, and say so with "
            "StatefulQuery(…, succeeds=True)"
        )
    if batch.number > 0:
        raise InvalidArgumentError(
            f"query {batch.query} goes on with micro-batch {batch.number}, and the store has "
            "neither its progress nor its state: the events before would be missing. Open the "
            "store that has them, or start the query with a new checkpoint location"
        )


def planned(location: Storage, number: int) -> MicroBatch:
    """Return a micro-batch as Spark wrote it to a query's checkpoint location.

    Raises InvalidArgumentError for a file of another version than is known.
    """
    name = f"offsets/{number}"
    lines = location.read(name).decode().splitlines()
    if len(lines) < 2 or lines[0] != _VERSION:
        raise InvalidArgumentError(
            f"{location.url}/{name} begins with {lines[:1]}, not with {_VERSION}: this release of "
            "Spark writes its offsets in another way"
        )
    query: str = json.loads(location.read("metadata"))["id"]
    at = json.loads(lines[1]).get("batchTimestampMs")
    return MicroBatch(query, number, tuple(lines[2:]), at or None)


def kafka_offsets(lines: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the Kafka offsets among positions, one element for each partition: the next to read.

    Positions of other sources are left out.
    """
    return [element for line in lines for element in _elements(line)]


def starting_offsets(restored: RestoredCheckpoint, source: str = "source") -> str:
    """Return where a query ended, as JSON that Spark's Kafka source takes as ``startingOffsets``.

    With it a new query, of another checkpoint location, reads on where the old one ended. Raises
    StateNotFoundError when the checkpoint has no offsets.
    """
    (*_, elements) = ([], *filter(None, restored.operator(source, OFFSETS).per_old_subtask()))
    return json.dumps(_by_topic(elements))


def _by_topic(elements: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    topics: dict[str, dict[str, int]] = {}
    for element in elements:
        topics.setdefault(element["topic"], {})[str(element["partition"])] = element["offset"]
    return topics


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
