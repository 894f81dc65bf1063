"""The progress of a streaming query: its record in a checkpoint, and the valid next micro-batch.

If the store has a micro-batch, it ends where the state ends, and the next one begins there. Its
number alone is not enough to check that. A checkpoint location that has lost its newest files, or
that is an older copy, assigns the same number to different events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.parsing import parse_json
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.writer import CheckpointWriter
from statestore.sources.offsets import changed_offsets, starting_offsets_json
from statestore.streaming.planned import NEEDS_NAMES, MicroBatch

T = TypeVar("T")

PROGRESS, POSITIONS, FILES, OFFSETS = "progress", "positions", "files", "offsets"
NAMES, INDEXED = "source-names", "timers-indexed"


@dataclass(frozen=True)
class Progress:
    """The last micro-batch of each query that wrote a state, the current query last.

    ``ends`` and ``files`` belong to the last micro-batch. ``files`` is None in a checkpoint of an
    older release, which did not record it. ``indexed`` is the checkpoint in which a processor's
    timers match their index. ``names`` are the sources' names in the order of ``ends``, empty if
    the sources have no names.
    """

    queries: tuple[tuple[str, int], ...] = ()
    ends: tuple[str, ...] = ()
    files: tuple[tuple[int, str], ...] | None = None
    indexed: int | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, restored: RestoredCheckpoint, operator: str) -> Progress:
        """Return the progress that a checkpoint records; it is empty if there is no record."""
        queries = _stored(restored, operator, PROGRESS) or []
        ends = _stored(restored, operator, POSITIONS) or []
        files = _stored(restored, operator, FILES)
        indexed = _stored(restored, operator, INDEXED)
        names = _stored(restored, operator, NAMES) or []
        if len(names) != len(ends):  # a salvage has lost one of the two
            names = []
        return cls(
            tuple((element["query"], element["batch"]) for element in queries),
            tuple(element["ends_at"] for element in ends),
            None if files is None else tuple((file["source"], file["digest"]) for file in files),
            indexed[0]["checkpoint"] if indexed else None,
            tuple(element["name"] for element in names),
        )

    def write(self, checkpoint: CheckpointWriter, operator: str, parallelism: int) -> None:
        """Write the progress into a checkpoint; drop records that no current source needs."""
        elements = [{"query": query, "batch": batch} for query, batch in self.queries]
        checkpoint.write_broadcast(operator, PROGRESS, elements)
        ends = [{"source": number, "ends_at": text} for number, text in enumerate(self.ends)]
        checkpoint.write_broadcast(operator, POSITIONS, ends)
        files = [{"source": number, "digest": digest} for number, digest in self.files or ()]
        names = [{"source": number, "name": name} for number, name in enumerate(self.names)]
        for state, elements in ((FILES, files), (NAMES, names)):
            if elements:
                checkpoint.write_broadcast(operator, state, elements)
            else:
                checkpoint.drop(operator, state)
        if self.indexed is not None:
            checkpoint.write_broadcast(operator, INDEXED, [{"checkpoint": self.indexed}])
        if offsets := kafka_offsets(self.ends):
            none: list[list[dict[str, Any]]] = [[] for _ in range(parallelism - 1)]
            checkpoint.write_union(operator, OFFSETS, [offsets, *none])
        else:
            checkpoint.drop(operator, OFFSETS)

    def with_done(self, batch: MicroBatch) -> Progress:
        """Return the progress after a micro-batch."""
        others = tuple(query for query in self.queries if query[0] != batch.query)
        queries = (*others, (batch.query, batch.number))
        return replace(self, queries=queries, ends=batch.ends, files=batch.files, names=batch.names)

    def ends_like(self, batch: MicroBatch) -> bool:
        """Return whether a micro-batch ends where this ends, so that no event is between them.

        Sources are matched by their names. If only one side has names, for example after a release
        that did not record them, they are matched by their order, as Spark does.
        """
        own, its = (self.names, batch.names) if self.names and batch.names else ((), ())
        same_files = self.files is None or _by_source(own, self.files) == _by_source(
            its, batch.files
        )
        return same_files and _ends(own, self.ends) == _ends(its, batch.ends)

    def has(self, batch: MicroBatch) -> bool:
        """Return whether a micro-batch that passed :meth:`check` is done."""
        return self.queries[-1:] == ((batch.query, batch.number),)

    def check(self, batch: MicroBatch, subject: str, *, has_state: bool, succeeds: bool) -> None:
        """Raise InvalidArgumentError for a micro-batch that is neither the last one nor the next.

        The reasons are:

        - Micro-batches in between are missing.
        - The micro-batch ends or begins elsewhere than the state (``subject``).
        - Another query has continued the state.
        - It is the first of a query that was not declared to succeed another.
        - Only the state or only the progress is in the checkpoint.
        """
        if not self.queries:
            if not succeeds:
                _refuse_unknown(batch, subject, has_state)
            return
        last, last_batch = self.queries[-1]
        if not has_state:
            raise InvalidArgumentError(
                f"the newest checkpoint has the progress of query {last} up to its micro-batch "
                f"{last_batch}, but lacks {subject}, which contains those events. Carry it from a "
                "checkpoint that has it (checkpoint.carry(…, base=…)); or drop the progress by "
                "name, and start the query from the beginning with a new checkpoint location"
            )
        if batch.query in dict(self.queries):
            self._check_same_query(batch)
        elif not succeeds:
            raise InvalidArgumentError(
                f"the state contains the events of query {last} up to its micro-batch "
                f"{last_batch}, but this is query {batch.query}, which has another checkpoint "
                f"location. Start it with the location of query {last}. Or let its sources "
                f"begin where query {last} ended (statestore.streaming.starting_offsets "
                "returns these offsets for Kafka), and pass QueryOptions(succeeds=True)"
            )

    def _check_same_query(self, batch: MicroBatch) -> None:
        """Raise InvalidArgumentError unless a micro-batch of a known query is its last or next."""
        last, _ = self.queries[-1]
        stored = dict(self.queries)[batch.query]
        if last != batch.query:
            raise InvalidArgumentError(
                f"query {last} has updated the state after micro-batch {stored} of query "
                f"{batch.query}; if query {batch.query} continued now, its events could be "
                f"counted twice. Start query {last}, or a new query that succeeds it"
            )
        # Micro-batches without events are not stored.
        is_idle = batch.before is not None and self.ends_like(batch.before)
        if batch.number > stored + 1 and not is_idle:
            raise InvalidArgumentError(
                f"the newest checkpoint ends with micro-batch {stored} of query "
                f"{batch.query}, but Spark continues with {batch.number}: the micro-batches "
                "between them are missing in the store. Start the query with a new "
                "checkpoint location, QueryOptions(succeeds=True), and from the positions of the "
                "checkpoint"
            )
        if batch.number < stored:
            raise _location_behind_error(
                batch, stored, f"but Spark runs micro-batch {batch.number} again"
            )
        same = batch if batch.number == stored else batch.before
        if same is not None and not self.ends_like(same):
            own, its = _shown(self.names, self.ends), _shown(same.names, same.ends)
            raise _location_behind_error(
                batch,
                stored,
                f"with its sources at {own}, but in Spark's checkpoint location at {its}"
                + ("" if own != its else ", with other files"),
            )


def same_ends(ends: Iterable[str], other_ends: Iterable[str]) -> bool:
    """Return whether sources end at the same positions, however the JSON is formatted."""
    return [*map(_value, ends)] == [*map(_value, other_ends)]


def _ends(names: tuple[str, ...], ends: tuple[str, ...]) -> dict[str | int, Any]:
    """Return the end of each source, by its name, or by its number without names."""
    return _by_source(names, enumerate(map(_value, ends)))


def _by_source(names: tuple[str, ...], values: Iterable[tuple[int, T]]) -> dict[str | int, T]:
    return {names[number] if names else number: value for number, value in values}


def _shown(names: tuple[str, ...], ends: tuple[str, ...]) -> str:
    """Return the ends of the sources for an error message."""
    if names:
        ends = tuple(f"{name}: {end}" for name, end in zip(names, ends, strict=True))
    return " and ".join(ends) or "nowhere"


def _stored(restored: RestoredCheckpoint, operator: str, name: str) -> list[dict[str, Any]] | None:
    try:
        (elements,) = restored.operator_state(operator, name).per_old_subtask()
    except StateNotFoundError:
        return None
    return elements


def _value(line: str) -> Any:
    try:
        return parse_json(line)  # exact numbers: positions that differ in a digit are different
    except ValueError:
        return line


def _location_behind_error(
    batch: MicroBatch, stored: int, consequence: str
) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the newest checkpoint ends with micro-batch {stored} of query {batch.query}, "
        f"{consequence}. The location has changed since the store was written (a power failure, or "
        f"an older copy), or named sources have another order, {NEEDS_NAMES}; events would be "
        "lost or counted twice. Restore the location. Or start the query with a new checkpoint "
        "location, QueryOptions(succeeds=True), and sources that begin at the checkpoint's "
        "positions. Or reset the state to the checkpoint at which the location ends "
        "(checkpoint.carry_rest(base=…)), from which Spark sends all events again"
    )


def _refuse_unknown(batch: MicroBatch, subject: str, has_state: bool) -> None:
    """Refuse to process events if the store does not record which events the state contains."""
    if has_state:
        raise InvalidArgumentError(
            f"the newest checkpoint has {subject}, but not the progress of a query: it is "
            f"unknown which events the state contains, and query {batch.query} would count "
            "them again. Carry the progress from a checkpoint that has it "
            f"(checkpoint.carry(…, {PROGRESS!r}, base=…)); or let the sources begin where the "
            "state ends, and pass QueryOptions(succeeds=True)"
        )
    if batch.number > 0:
        raise InvalidArgumentError(
            f"query {batch.query} continues with micro-batch {batch.number}, but the store "
            "has neither its progress nor its state, so earlier events would be missing. "
            "Open the store that has them, or start the query with a new checkpoint location"
        )


def kafka_offsets(lines: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the Kafka offsets among positions, one element per partition: the next to read.

    Positions of other sources are left out.
    """
    return [
        {"topic": topic, "partition": int(number), "offset": offset}
        for topics in map(kafka_topics, lines)
        for topic, partitions in sorted((topics or {}).items())
        for number, offset in sorted(partitions.items(), key=lambda item: int(item[0]))
    ]


def kafka_topics(line: str) -> dict[str, dict[str, int]] | None:
    """Return the offsets of a Kafka source by topic and partition; None for another source."""
    try:
        topics = json.loads(line)
    except ValueError:
        return None
    if not isinstance(topics, dict) or not all(
        isinstance(partitions, dict)
        and all(
            number.isdigit() and isinstance(offset, int) for number, offset in partitions.items()
        )
        for partitions in topics.values()
    ):
        return None
    return topics


def stored_offsets(restored: RestoredCheckpoint, operator: str) -> list[dict[str, Any]] | None:
    """Return the elements of the state with Kafka offsets; None if it is missing or was lost."""
    if any(record.lacks(operator, OFFSETS) for record in restored.manifest.left_out):
        return None
    try:
        lists = restored.operator_state(operator, OFFSETS).per_old_subtask()
    except StateNotFoundError:
        return None
    return [element for elements in lists for element in elements]


def refuse_changed_offsets(restored: RestoredCheckpoint, operator: str, progress: Progress) -> None:
    """Refuse to continue a query in its own location after its stored offsets were changed (I17).

    Spark continues at the positions in the location, and the next checkpoint has these again.

    Raises:
        InvalidArgumentError: if the offsets are not those of the positions.
    """
    stored, recorded = stored_offsets(restored, operator), kafka_offsets(progress.ends)
    subject = f"state {OFFSETS!r} of operator {operator!r}"
    if stored is None or changed_offsets(stored, recorded, subject) is None:
        return
    query, number = progress.queries[-1]
    raise InvalidArgumentError(
        f"{subject} in checkpoint {restored.checkpoint_id} was changed after micro-batch {number} "
        f"of query {query}, but Spark would continue at the positions in the query's checkpoint "
        f"location: {_shown(progress.names, progress.ends)}. Start a new query with another "
        "location, QueryOptions(succeeds=True), and sources that begin at the changed offsets "
        "(statestore.streaming.starting_offsets); or write the old offsets again"
    )


def starting_offsets(restored: RestoredCheckpoint, source: str = "source") -> str:
    """Return where a query ended, as JSON that Spark's Kafka source takes as ``startingOffsets``.

    A new query with another checkpoint location can use it to continue where the old one ended.
    Raises StateNotFoundError when the checkpoint has no offsets, or has lost them. Raises
    InvalidArgumentError for a null, a negative offset, and two offsets of one partition.
    """
    lists = restored.operator_state(source, OFFSETS).per_old_subtask()
    elements = [element for elements in lists for element in elements]
    if not elements:
        raise StateNotFoundError(
            f"state {OFFSETS!r} of operator {source!r} in checkpoint {restored.checkpoint_id} "
            "is empty, possibly after a salvage, so it is unknown where the query ended. Use "
            "the offsets of a checkpoint that ends with the same micro-batch"
        )
    return starting_offsets_json(elements)
