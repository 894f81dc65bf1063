"""How far each source subtask reads in each micro-batch: pure functions from offsets to offsets.

The subtasks run at different speeds, and a subtask shares its speed among its partitions, as
consumers do. So when the job is stopped its partitions have been read to different depths, none to
its end: restoring anything but the exact offsets loses flights, or counts them twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from statestore.demo.flights import TOPIC
from statestore.sources.offsets import assign_partitions

__all__ = ["MicroBatch", "micro_batches", "partitions_by_subtask"]

# Four subtasks read half of the input in three micro-batches.
_WEIGHTS = (3, 4, 5, 6)
_BATCHES_TO_HALF = 3


@dataclass(frozen=True)
class MicroBatch:
    """What one micro-batch reads: of each partition from its start up to, without, its stop."""

    starts: Mapping[int, int]
    stops: Mapping[int, int]

    @property
    def rows(self) -> int:
        """Flights in it."""
        return sum(self.stops[partition] - start for partition, start in self.starts.items())


def partitions_by_subtask(partitions: Mapping[int, int], parallelism: int) -> list[list[int]]:
    """Return for each source subtask the partitions that it reads, as Flink's Kafka source does."""
    pairs = [(TOPIC, partition) for partition in partitions]
    return [[partition for _, partition in mine] for mine in assign_partitions(pairs, parallelism)]


def micro_batches(
    starts: Mapping[int, int], ends: Mapping[int, int], parallelism: int, limit: int
) -> list[MicroBatch]:
    """Return the micro-batches from ``starts`` on that read ``limit`` flights, or all there are."""
    batches = []
    here = dict(starts)
    while limit > 0 and here != ends:
        stops = _stops(here, ends, parallelism, limit)
        batches.append(MicroBatch(here, stops))
        limit -= batches[-1].rows
        here = stops
    return batches


def _stops(
    here: Mapping[int, int], ends: Mapping[int, int], parallelism: int, limit: int
) -> dict[int, int]:
    """Return where a micro-batch of at most ``limit`` flights ends."""
    stops = dict(here)
    speeds = _speeds(sum(ends.values()), parallelism)
    for mine, speed in zip(partitions_by_subtask(ends, parallelism), speeds, strict=True):
        left = speed
        for others, partition in zip(range(len(mine), 0, -1), mine, strict=True):
            share = -(-left // others)  # rounded up: what one leaves, the next one takes
            taken = min(share, ends[partition] - here[partition], limit)
            stops[partition] += taken
            left -= taken
            limit -= taken
    return stops


def _speeds(flights: int, parallelism: int) -> Iterator[int]:
    """Yield for each source subtask the flights that it reads in a micro-batch, at least 1."""
    weight = -(-flights // (2 * _BATCHES_TO_HALF * sum(_WEIGHTS)))
    for subtask in range(parallelism):
        yield max(1, weight * _WEIGHTS[subtask % len(_WEIGHTS)])
