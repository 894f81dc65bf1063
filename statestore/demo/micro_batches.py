"""How far each source subtask reads in each micro-batch: pure functions from offsets to offsets.

Subtasks run at different speeds, and a subtask divides its speed among its partitions, as
consumers do. So when the job stops, its partitions are read to different depths, and none to its
end. A restore with any other offsets would lose flights, or count them twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from statestore.demo.flights import TOPIC
from statestore.sources.offsets import (
    assign_partitions,
)

__all__ = ["BATCHES_TO_HALF", "FlightBatch", "micro_batches", "partitions_by_subtask"]


# Four subtasks read half of the input in three micro-batches.
_WEIGHTS = (3, 4, 5, 6)
BATCHES_TO_HALF = 3


@dataclass(frozen=True)
class FlightBatch:
    """The range of a micro-batch: each partition from its start to its stop (exclusive)."""

    starts: Mapping[int, int]
    stops: Mapping[int, int]

    @property
    def rows(self) -> int:
        """The number of flights in the micro-batch."""
        return sum(self.stops[partition] - start for partition, start in self.starts.items())


def partitions_by_subtask(partitions: Mapping[int, int], parallelism: int) -> list[list[int]]:
    """Return the partitions of each source subtask, assigned as in Flink's Kafka source."""
    pairs = [(TOPIC, partition) for partition in partitions]
    return [[partition for _, partition in mine] for mine in assign_partitions(pairs, parallelism)]


def micro_batches(
    starts: Mapping[int, int], ends: Mapping[int, int], parallelism: int, limit: int
) -> list[FlightBatch]:
    """Return micro-batches for the next ``limit`` flights after ``starts``, or all of the rest."""
    batches = []
    here = dict(starts)
    while limit > 0 and here != ends:
        stops = _stops(here, ends, parallelism, limit)
        batches.append(FlightBatch(here, stops))
        limit -= batches[-1].rows
        here = stops
    return batches


def _stops(
    here: Mapping[int, int], ends: Mapping[int, int], parallelism: int, limit: int
) -> dict[int, int]:
    """Return the end offsets of a micro-batch of at most ``limit`` flights."""
    stops = dict(here)
    speeds = _speeds(sum(ends.values()), parallelism)
    for mine, speed in zip(partitions_by_subtask(ends, parallelism), speeds, strict=True):
        left = speed
        for others, partition in zip(range(len(mine), 0, -1), mine, strict=True):
            share = -(-left // others)  # rounded up; the next partition takes any unused share
            taken = min(share, ends[partition] - here[partition], limit)
            stops[partition] += taken
            left -= taken
            limit -= taken
    return stops


def _speeds(flights: int, parallelism: int) -> Iterator[int]:
    """Yield the flights that each source subtask reads in a micro-batch, at least 1."""
    weight = -(-flights // (2 * BATCHES_TO_HALF * sum(_WEIGHTS)))
    for subtask in range(parallelism):
        yield max(1, weight * _WEIGHTS[subtask % len(_WEIGHTS)])
