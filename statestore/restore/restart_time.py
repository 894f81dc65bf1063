"""How long a restore takes at a parallelism: one model for plans, trends and pages.

A subtask restores its files one after another, and a restore waits for its slowest subtask:

    seconds = seconds at least + bytes * seconds per byte + requests * seconds per request

The three numbers are fitted to the restores that were measured on this machine, by the least
squares of relative errors, none below 0. How far the fit is from each of them, without that one,
is the spread of a prediction. A time is only predicted as known if nine of ten of them are within
25 %. The start of the job is not included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import combinations
from statistics import median
from typing import Final, Protocol

import numpy as np

from statestore.display import counted
from statestore.errors import InvalidArgumentError

TOLERANCE: Final = 0.25
"""A known time differs from nine of ten measured ones by at most this part."""

_SHARE: Final = 0.9
_NEAR: Final = 1.1
_ALIKE_NEEDED: Final = 3
_FIT_NEEDED: Final = 5
_BEYOND: Final = 1.5
"""A prediction may exceed the measured bytes and requests by this factor."""


class SubtaskReads(Protocol):
    """The bytes that a subtask reads, and the requests for them."""

    @property
    def size_bytes(self) -> int:
        """The bytes of its files."""

    @property
    def requests(self) -> int:
        """The requests to an object store."""


@dataclass(frozen=True, kw_only=True)
class RestoreSpeed:
    """The time of a subtask: for each byte, for each request, and in any case."""

    seconds_per_byte: float = 0.0
    seconds_per_request: float = 0.0
    seconds_at_least: float = 0.0

    @classmethod
    def of(cls, rate: float | RestoreSpeed) -> RestoreSpeed:
        """Return the speed of a rate in bytes per second, which must be above 0."""
        if isinstance(rate, RestoreSpeed):
            return rate
        if not 0 < rate < math.inf:
            raise InvalidArgumentError(f"must be above 0, not {rate}", argument="rate")
        return cls(seconds_per_byte=1 / rate)

    @property
    def rate(self) -> float | None:
        """Bytes per second, None if the bytes take no time compared to the requests."""
        return 1 / self.seconds_per_byte if self.seconds_per_byte else None

    def seconds_of(self, reads: SubtaskReads) -> float:
        """Return the time of a subtask."""
        return (
            self.seconds_at_least
            + reads.size_bytes * self.seconds_per_byte
            + reads.requests * self.seconds_per_request
        )

    def slowest(self, subtasks: Iterable[SubtaskReads]) -> SubtaskReads | None:
        """Return the subtask that takes longest; None without any."""
        return max(subtasks, key=self.seconds_of, default=None)

    def seconds(self, subtasks: Iterable[SubtaskReads]) -> float:
        """Return the time of the slowest subtask, 0 without any."""
        found = self.slowest(subtasks)
        return 0.0 if found is None else self.seconds_of(found)


@dataclass(frozen=True, kw_only=True)
class MeasuredRestore:
    """A restore on this machine: the bytes, requests and seconds of its slowest subtask.

    ``at_ms`` is the time at its end. ``predicted_seconds`` is what was expected before, None if
    that was unknown.
    """

    at_ms: int
    checkpoint_id: int
    parallelism: int
    size_bytes: int
    requests: int
    seconds: float
    predicted_seconds: float | None = None


class Certainty(StrEnum):
    """How sure a predicted time is."""

    MEASURED = "measured"
    DERIVED = "derived"
    GUESSED = "guessed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class RestartTime:
    """The predicted time of a restore, and how sure it is, with the reason.

    ``measured`` is the median of restores like it, ``derived`` is computed from other restores, and
    ``guessed`` from a setting or too few of them. ``low_seconds`` and ``high_seconds`` include nine
    of ten measured restores. If they are more than 25 % away, the time is ``unknown``: ``seconds``
    is None.
    """

    seconds: float | None = None
    low_seconds: float | None = None
    high_seconds: float | None = None
    certainty: Certainty
    reason: str


def fitted_speed(measured: Sequence[MeasuredRestore]) -> RestoreSpeed | None:
    """Return the speed that fits measured restores best; None without any.

    Of two speeds that fit equally, the one with fewer numbers above 0 is returned.
    """
    if not measured:
        return None
    seconds = np.array([one.seconds for one in measured])
    facts = np.array([(one.size_bytes, one.requests, 1) for one in measured]) / seconds[:, None]
    best, least = RestoreSpeed(seconds_at_least=float(np.median(seconds))), math.inf
    for count in range(1, 1 + min(3, len({one.parallelism for one in measured}))):
        for chosen in combinations(range(3), count):
            found, *_ = np.linalg.lstsq(facts[:, chosen], np.ones(len(seconds)), rcond=None)
            error = float(np.square(facts[:, chosen] @ found - 1).sum())
            if (found >= 0).all() and found.any() and error < 0.99 * least:
                names = (fields(RestoreSpeed)[place].name for place in chosen)
                best, least = RestoreSpeed(**dict(zip(names, found.tolist(), strict=True))), error
    return best


def predict(
    parallelism: int, subtasks: Sequence[SubtaskReads], measured: Sequence[MeasuredRestore]
) -> RestartTime:
    """Return the time of a restore, from the measured restores of its store on this machine."""
    speed = fitted_speed(measured)
    slowest = None if speed is None else speed.slowest(subtasks)
    if speed is None or slowest is None:
        reason = "no restore of this store was measured on this machine"
        return RestartTime(certainty=Certainty.UNKNOWN, reason=reason)
    alike = [
        one
        for one in measured
        if one.parallelism == parallelism and any(_is_near(one, task) for task in subtasks)
    ]
    if len(alike) >= _ALIKE_NEEDED:
        seconds = median(one.seconds for one in alike)
        return _known(
            seconds,
            [one.seconds / seconds for one in alike],
            Certainty.MEASURED,
            f"{counted(len(alike), 'restore')} at this parallelism and size",
        )
    seconds = speed.seconds_of(slowest)
    lacking = _lacking(slowest, measured)
    if lacking is not None:
        return RestartTime(seconds=seconds, certainty=Certainty.GUESSED, reason=lacking)
    return _known(
        seconds,
        _errors_without_itself(measured),
        Certainty.DERIVED,
        f"{counted(len(measured), 'restore')} at other parallelisms or sizes",
    )


def _known(
    seconds: float, ratios: Sequence[float], certainty: Certainty, source: str
) -> RestartTime:
    """Return a time with its bounds; it is unknown if the restores differ too much."""
    nearest = sorted(ratios, key=lambda ratio: abs(math.log(ratio)))
    kept = nearest[: math.ceil(_SHARE * len(nearest))]
    low, high = min(kept), max(kept)
    is_known = low >= 1 - TOLERANCE and high <= 1 + TOLERANCE
    far = f"{source} took {low:.2f} to {high:.2f} times the expected: not within {TOLERANCE:.0%}"
    return RestartTime(
        seconds=seconds if is_known else None,
        low_seconds=seconds * low,
        high_seconds=seconds * high,
        certainty=certainty if is_known else Certainty.UNKNOWN,
        reason=source if is_known else far,
    )


def _is_near(one: MeasuredRestore, reads: SubtaskReads) -> bool:
    pairs = (one.size_bytes, reads.size_bytes), (one.requests, reads.requests)
    return all(max(pair) <= _NEAR * min(pair) for pair in pairs)


def _lacking(reads: SubtaskReads, measured: Sequence[MeasuredRestore]) -> str | None:
    """Return why measured restores do not allow a prediction for these reads; None if they do."""
    if len(measured) < _FIT_NEEDED or len({one.parallelism for one in measured}) < 2:
        return (
            f"only {counted(len(measured), 'restore')} of this store measured on this machine; "
            f"{_FIT_NEEDED} at two or more parallelisms are needed"
        )
    for name, here, known in (
        ("bytes", reads.size_bytes, [one.size_bytes for one in measured]),
        ("requests", reads.requests, [one.requests for one in measured]),
    ):
        if not min(known) / _BEYOND <= here <= max(known) * _BEYOND:
            return (
                f"the slowest subtask has {here} {name}, and those of measured restores had "
                f"{min(known)} to {max(known)}"
            )
    return None


def _errors_without_itself(measured: Sequence[MeasuredRestore]) -> list[float]:
    """Return each measured time divided by the time that the other restores predict for it."""
    others = [fitted_speed([*measured[:n], *measured[n + 1 :]]) for n in range(len(measured))]
    pairs = zip(measured, others, strict=True)
    return [one.seconds / speed.seconds_of(one) for one, speed in pairs if speed is not None]
