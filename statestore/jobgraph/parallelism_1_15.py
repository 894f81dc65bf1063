"""The parallelism that Flink 1.15 and 1.16 chose: a power of two that depends only on bytes.

It follows ``DefaultVertexParallelismDecider`` of Flink 1.16, which uses only the total of all
inputs, and does not assign input to subtasks. The code above implements the current algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.parallelism import check_bounds, check_bytes, check_positive
from statestore.keys.groups import (
    MAX_PARALLELISM,
    round_up_to_power_of_two,
)

__all__ = ["BYTES_PER_TASK_2022", "Input2022", "decide_2022"]


BYTES_PER_TASK_2022: Final = 1 << 30
"""The default number of bytes that one task should read in these versions: 1 GiB."""


@dataclass(frozen=True, slots=True)
class Input2022:
    """One input: the bytes of each of its parts, and whether every subtask reads all of them.

    Raises InvalidArgumentError for sizes that are not numbers of bytes.
    """

    sizes: tuple[int, ...]
    broadcast: bool = False

    def __post_init__(self) -> None:
        for index, size in enumerate(self.sizes):
            check_bytes(f"part {index} of an input", size)


def decide_2022(
    inputs: Sequence[Input2022],
    *,
    bytes_per_task: int = BYTES_PER_TASK_2022,
    min_parallelism: int = 1,
    max_parallelism: int = 128,
    vertex_max_parallelism: int = MAX_PARALLELISM,
    default_source_parallelism: int = 1,
) -> int:
    """Return the power of two that is nearest to the needed tasks, within the bounds; ties go up.

    First the bounds are narrowed to powers of two, and so is the vertex's own maximum, which takes
    precedence over both. Broadcast bytes reduce the bytes per task, by half of it at most. A vertex
    without inputs is a source: it gets the source default, limited by the vertex's maximum, without
    rounding. Raises InvalidArgumentError for bounds outside of 1..32768, or without a power of two
    between them.

    If more than 2**30 tasks are needed, Flink's rounding overflows its 32 bits. Here the result is
    the maximum, as for any other number that is too large.
    """
    check_positive("bytes_per_task", bytes_per_task)
    check_bounds(min_parallelism, max_parallelism)
    check_bounds(1, vertex_max_parallelism, ("1", "vertex_max_parallelism"))
    check_bounds(1, default_source_parallelism, ("1", "default_source_parallelism"))
    least, most = round_up_to_power_of_two(min_parallelism), _power_of_two_below(max_parallelism)
    if least > most:
        raise InvalidArgumentError(
            f"no power of two is in {min_parallelism}..{max_parallelism}, the range from "
            "minimum to maximum parallelism: change one of them"
        )
    if not inputs:
        return min(default_source_parallelism, vertex_max_parallelism)
    cap = _power_of_two_below(vertex_max_parallelism)
    return min(
        max(_nearest(_needed_tasks(inputs, bytes_per_task, cap)), min(least, cap)), min(most, cap)
    )


def _needed_tasks(inputs: Sequence[Input2022], bytes_per_task: int, without_room: int) -> int:
    """Return how many tasks the bytes need, given the bytes that are broadcast to each task."""
    broadcast = sum(sum(consumed.sizes) for consumed in inputs if consumed.broadcast)
    total = sum(sum(consumed.sizes) for consumed in inputs if not consumed.broadcast)
    room = bytes_per_task - min(broadcast, math.ceil(bytes_per_task * 0.5))
    if not room:  # one byte per task; in Java, division by zero gives infinity, or NaN and then 0
        return without_room if total else 0
    return math.ceil(float(total) / float(room))


def _nearest(number: int) -> int:
    below, above = _power_of_two_below(number), round_up_to_power_of_two(number)
    return below if number < (above + below) // 2 else above


def _power_of_two_below(number: int) -> int:
    return 1 << (number.bit_length() - 1) if number > 0 else 0
