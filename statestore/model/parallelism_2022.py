"""The parallelism that Flink 1.15 and 1.16 chose: from bytes alone, and a power of two.

Follows ``DefaultVertexParallelismDecider`` of Flink 1.16. It looks at the total of all inputs only,
so nothing says which subtask reads what; ``parallelism.py`` has the algorithm of today.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from statestore.errors import InvalidArgumentError
from statestore.keys.groups import MAX_PARALLELISM, round_up_to_power_of_two
from statestore.model.byte_ranges import check_bounds, check_bytes, check_positive

__all__ = ["BYTES_PER_TASK_2022", "Input2022", "decide_2022"]

BYTES_PER_TASK_2022: Final = 1 << 30
"""What one task was meant to read when nothing was configured: 1 GiB."""


@dataclass(frozen=True, slots=True)
class Input2022:
    """What one input consists of: bytes of each of its parts, and whether every subtask reads all.

    Raises InvalidArgumentError for what is not a number of bytes.
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
    """The power of two nearest to what the inputs need, ties upwards, within the bounds.

    The bounds are drawn in to powers of two first, and so is the vertex's own maximum, which is
    stronger than both. Broadcast bytes take room from every task, half of it at most. Without
    inputs it is a source: its default, up to the vertex's maximum, not rounded.
    Raises InvalidArgumentError for bounds out of 1..32768, or with no power of two between them.

    Above 2**30 needed tasks Flink rounds past the end of its 32 bits; here it is the maximum, as
    for any other number that is too large.
    """
    check_positive("bytes_per_task", bytes_per_task)
    check_bounds(min_parallelism, max_parallelism)
    check_bounds(1, vertex_max_parallelism, ("1", "vertex_max_parallelism"))
    check_bounds(1, default_source_parallelism, ("1", "default_source_parallelism"))
    least, most = round_up_to_power_of_two(min_parallelism), _power_of_two_below(max_parallelism)
    if least > most:
        raise InvalidArgumentError(
            f"no power of two lies in {min_parallelism}..{max_parallelism}, the minimum and "
            "maximum parallelism: move one of them"
        )
    if not inputs:
        return min(default_source_parallelism, vertex_max_parallelism)
    cap = _power_of_two_below(vertex_max_parallelism)
    return min(max(_nearest(_needed(inputs, bytes_per_task, cap)), min(least, cap)), min(most, cap))


def _needed(inputs: Sequence[Input2022], bytes_per_task: int, without_room: int) -> int:
    """How many tasks the bytes need, beside what is broadcast to each."""
    broadcast = sum(sum(one.sizes) for one in inputs if one.broadcast)
    total = sum(sum(one.sizes) for one in inputs if not one.broadcast)
    room = bytes_per_task - min(broadcast, math.ceil(bytes_per_task * 0.5))
    if not room:  # at one byte a task; a double divided by zero is endless, or NaN and then 0
        return without_room if total else 0
    return math.ceil(float(total) / float(room))


def _nearest(number: int) -> int:
    below, above = _power_of_two_below(number), round_up_to_power_of_two(number)
    return below if number < (above + below) // 2 else above


def _power_of_two_below(number: int) -> int:
    return 1 << (number.bit_length() - 1) if number > 0 else 0
