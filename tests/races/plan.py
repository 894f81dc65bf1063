"""Draw the actions of a race's writers from a seed: where each one stalls and which ones reopen."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Look", "Part", "Race", "Try", "draw"]

MOST_WRITERS = 8
POINTS = ("open", "begin", "write", "commit", "put")
"""Points at which a writer stalls.

It stalls before it opens the store, begins, writes or leaves its block. In the commit it stalls
after the last check and before the put of the manifest.
"""


@dataclass(frozen=True)
class Part:
    """One writer of a race: its stalls in seconds by point, and its response to a conflict."""

    writer: int
    stalls: dict[str, float]
    retries: int
    reopens: bool
    checkpoints: int
    ids: tuple[int | None, ...]


@dataclass(frozen=True)
class Race:
    """Writers that open one store at nearly the same time."""

    number: int
    parts: tuple[Part, ...]

    @property
    def table_format(self) -> str:
        """Every other race uses Delta tables, whose log is also contended."""
        return "delta" if self.number % 2 else "parquet"


@dataclass(frozen=True)
class Try:
    """The outcome of one snapshot of one writer; all times are from the same clock."""

    writer: int
    number: int
    outcome: str
    began: float
    ended: float
    pid: int
    message: str = ""
    asked_id: int | None = None
    id: int = 0
    generation: int = 0
    digest: int = 0


@dataclass(frozen=True)
class Look:
    """The ids of all checkpoints that one writer saw between two times."""

    writer: int
    began: float
    ended: float
    ids: tuple[int, ...]


def draw(number: int, seed: int, unit: float) -> Race:
    """Return race ``number`` of a seed; each stall is a few times ``unit`` seconds."""
    dice = random.Random(f"{seed}/{number}")
    same_ids = dice.random() < 0.25
    parts = [
        _part(dice, writer, unit, same_ids=same_ids)
        for writer in range(dice.randint(2, MOST_WRITERS))
    ]
    return Race(number, tuple(parts))


def _part(dice: random.Random, writer: int, unit: float, *, same_ids: bool) -> Part:
    stalls = {point: dice.uniform(0, 3) * unit for point in POINTS if dice.random() < 0.3}
    checkpoints = dice.choice((1, 1, 1, 2, 3))
    ids: tuple[int | None, ...] = (None,) * checkpoints
    if same_ids:  # all retry the same micro-batches
        ids = tuple(range(1, checkpoints + 1))
    elif dice.random() < 0.2:  # its ids have gaps
        ids = tuple(at * dice.choice((3, 10)) for at in range(1, checkpoints + 1))
    return Part(
        writer=writer,
        stalls=stalls,
        retries=dice.choice((0, 0, 1, 2)),
        reopens=dice.random() < 0.8,
        checkpoints=checkpoints,
        ids=ids,
    )
