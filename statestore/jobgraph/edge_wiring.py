"""Wiring: which subtasks an edge connects, and which subtask takes over its in-flight records.

The wiring of pointwise edges follows Flink 2.3's ``VertexInputInfoComputationUtils``. The mapping
of channel state from old to new subtasks follows ``SubtaskStateMapper``. The partitioner classes
below name the mapper and the kind of wiring that they use.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.keys.groups import (
    MAX_PARALLELISM,
    KeyGroupAssignment,
    check_parallelism,
    is_int,
)

__all__ = ["StateMapper", "Wiring", "check_edge", "old_subtasks", "pointwise"]


class StateMapper(StrEnum):
    """Which old subtasks' in-flight records a new subtask takes over (``SubtaskStateMapper``).

    With FULL and RANGE, several new subtasks read the records of the same old subtask, and each
    keeps only its own records.
    """

    ROUND_ROBIN = "ROUND_ROBIN"
    ARBITRARY = "ARBITRARY"
    FIRST = "FIRST"
    FULL = "FULL"
    RANGE = "RANGE"
    UNSUPPORTED = "UNSUPPORTED"

    @classmethod
    def _missing_(cls, value: object) -> StateMapper:
        known = ", ".join(cls)
        raise InvalidArgumentError(f"unknown state mapper {value!r}: use one of {known}")


@dataclass(frozen=True, slots=True)
class Wiring:
    """The connections between the subtasks of an edge; see :func:`pointwise` and :func:`wiring`.

    ``consumes`` has, per downstream subtask, the closed range (first, last) of upstream subtasks.
    ``channels`` has, per upstream subtask, the downstream subtask of channel 0, 1, ….
    """

    consumes: tuple[tuple[int, int], ...]
    channels: tuple[tuple[int, ...], ...]


def pointwise(up: int, down: int) -> Wiring:
    """Return the wiring of ``up`` and ``down`` subtasks on a pointwise edge.

    It follows Flink's ``computeVertexInputInfoForPointwise``. If ``down`` is not a multiple of
    ``up``, channel 0 is not always the lowest consumer: with 2 and 5 subtasks, channel 0 of subtask
    1 leads to subtask 4, and channel 1 to subtask 3. Raises InvalidArgumentError if a number is not
    in 1..32768.
    """
    check_edge(up, down)
    if up >= down:
        starts = [subtask * up // down for subtask in range(down + 1)]
        consumes = tuple((starts[d], starts[d + 1] - 1) for d in range(down))
        fed = ((d,) for d in range(down) for _ in range(starts[d], starts[d + 1]))
        return Wiring(consumes, tuple(fed))
    stops = [-(-subtask * down // up) for subtask in range(up + 1)]
    consumes = tuple((u, u) for u in range(up) for _ in range(stops[u], stops[u + 1]))
    own = (range(stops[u], stops[u + 1]) for u in range(up))
    return Wiring(consumes, tuple(_by_channel(each) for each in own))


def old_subtasks(mapper: StateMapper | str, subtask: int, old: int, new: int) -> tuple[int, ...]:
    """Return the old subtasks, ascending, whose in-flight records new ``subtask`` takes over.

    RANGE always uses 32768 key groups, regardless of max parallelism. Raises InvalidArgumentError
    if a number is not in 1..32768, ParallelismError for UNSUPPORTED (forward, rescale, broadcast),
    InvalidArgumentError for an unknown mapper or subtask.
    """
    mapper = StateMapper(mapper)
    check_parallelism(old, "old parallelism")
    check_parallelism(new, "new parallelism")
    if not is_int(subtask) or not 0 <= subtask < new:
        raise InvalidArgumentError(
            f"subtask {subtask!r} does not exist: at parallelism {new} the subtasks are 0 to "
            f"{new - 1}"
        )
    if mapper is StateMapper.UNSUPPORTED:
        raise ParallelismError(
            f"in-flight records of a forward, rescale or broadcast edge cannot go from parallelism "
            f"{old} to {new}: restore from an aligned checkpoint or a savepoint"
        )
    if mapper in (StateMapper.FULL, StateMapper.FIRST):
        return tuple(range(old)) if mapper is StateMapper.FULL or subtask == 0 else ()
    if mapper is StateMapper.RANGE:
        before, after = (
            KeyGroupAssignment(max_parallelism=MAX_PARALLELISM, parallelism=p) for p in (old, new)
        )
        own = after.range_of(subtask)
        return tuple(range(before.subtask_of(own.first), before.subtask_of(own.last) + 1))
    return tuple(range(subtask, old, new))


def check_edge(up: int, down: int) -> None:
    """Raise InvalidArgumentError, naming the side, if a parallelism is not in 1..32768."""
    check_parallelism(up, "upstream parallelism")
    check_parallelism(down, "downstream parallelism")


def _by_channel(consumers: range) -> tuple[int, ...]:
    """Sort consumers by channel: subtask d has channel d modulo the number of consumers."""
    return tuple(sorted(consumers, key=lambda d: d % len(consumers)))
