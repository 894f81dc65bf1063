"""The growth of a figure over time, robust against outliers, and when it reaches a limit.

The growth is the Theil–Sen estimator: the median of the slopes between all pairs of points. Up to
29 % of the points may be arbitrary without an effect on it. Its bounds are the confidence interval
of P. K. Sen (1968), which allows for equal values. They assume that the points scatter
independently around a line. Few points result in no growth, and a far limit in no forecast, instead
of a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Final

import numpy as np

__all__ = [
    "CONFIDENCE",
    "FAR_SPANS",
    "MOST_SPANS",
    "POINTS_NEEDED",
    "Forecast",
    "Growth",
    "forecast_of",
    "growth_of",
]

POINTS_NEEDED: Final = 5
"""The points at different times that a growth needs."""

CONFIDENCE: Final = 0.9
"""The confidence level of the bounds."""

FAR_SPANS: Final = 10
"""A forecast is far if it exceeds this many times the span of the points."""

MOST_SPANS: Final = 100
"""There is no forecast that exceeds this many times the span of the points."""

_DAY_MS: Final = 86_400_000
_MOST_POINTS: Final = 300  # 44,850 pairs
_LAST_MS: Final = 253_402_300_799_999  # the end of the year 9999


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The growth of a figure per day, with the bounds of its 90 % confidence interval.

    ``points`` is the number of points that it is based on, and ``span_ms`` the time between the
    first and the last one. ``direction`` is ``grows`` or ``shrinks`` if both bounds have that
    sign, and otherwise ``steady``.
    """

    json_properties: ClassVar[tuple[str, ...]] = ("direction",)

    per_day: float
    low_per_day: float
    high_per_day: float
    points: int
    span_ms: int

    @property
    def direction(self) -> str:
        """``grows``, ``shrinks``, or ``steady`` if the bounds do not have the same sign."""
        if self.low_per_day > 0:
            return "grows"
        return "shrinks" if self.high_per_day < 0 else "steady"


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """When a figure reaches ``limit`` if it continues to grow at the present rate.

    ``earliest_ms`` and ``latest_ms`` follow from the bounds of the growth. Without a forecast, all
    three times are None, and ``reason`` says why. ``is_reached`` is True if the newest value is at
    the limit or above. Then the times and the reason are None. ``is_far`` is True if the time is
    more than 10 times as far away as the span of the points is long. A time beyond 100 spans is
    not forecast.
    """

    limit: int
    is_reached: bool = False
    at_ms: int | None = None
    earliest_ms: int | None = None
    latest_ms: int | None = None
    is_far: bool = False
    reason: str | None = None


def growth_of(
    times_ms: Sequence[int], values: Sequence[float], confidence: float = CONFIDENCE
) -> Growth | None:
    """Return the growth of a figure; None if it has too few points at different times.

    Of more than 300 points, 300 are used, evenly spread from the first to the last.
    """
    if len(set(times_ms)) < POINTS_NEEDED:
        return None
    chosen = _spread(len(times_ms), _MOST_POINTS)
    days = np.array([times_ms[index] - times_ms[0] for index in chosen]) / _DAY_MS
    level = np.array([values[index] for index in chosen], dtype=float)
    earlier, later = np.triu_indices(len(chosen), k=1)
    passed = days[later] - days[earlier]
    apart = passed != 0
    slopes = np.sort((level[later] - level[earlier])[apart] / passed[apart])
    low, high = _bounds(slopes, days, level, confidence)
    return Growth(
        per_day=float(np.median(slopes)),
        low_per_day=low,
        high_per_day=high,
        points=len(chosen),
        span_ms=max(times_ms) - min(times_ms),
    )


def forecast_of(
    growth: Growth | None, *, value: float, at_ms: int, limit: float, shown_limit: int
) -> Forecast:
    """Return when a figure with a value at a time reaches a limit.

    ``shown_limit`` is the limit in the unit of the result. Nothing is forecast if the lower bound
    of the growth is not above 0.
    """
    if value >= limit:
        return Forecast(limit=shown_limit, is_reached=True)
    if growth is None:
        return Forecast(limit=shown_limit, reason="not enough checkpoints")
    if growth.low_per_day <= 0:
        reason = "it shrinks" if growth.direction == "shrinks" else "it does not clearly grow"
        return Forecast(limit=shown_limit, reason=reason)
    wait_ms = (limit - value) / growth.per_day * _DAY_MS
    if wait_ms > MOST_SPANS * growth.span_ms:
        reason = f"it is more than {MOST_SPANS} times as far away as the checkpoints span"
        return Forecast(limit=shown_limit, reason=reason)
    latest_ms = at_ms + (limit - value) / growth.low_per_day * _DAY_MS
    return Forecast(
        limit=shown_limit,
        at_ms=round(at_ms + wait_ms),
        earliest_ms=round(at_ms + (limit - value) / growth.high_per_day * _DAY_MS),
        latest_ms=round(min(latest_ms, _LAST_MS)),
        is_far=wait_ms > FAR_SPANS * growth.span_ms,
    )


def _spread(number: int, most: int) -> list[int]:
    """Return at most ``most`` indices below ``number``, with the first and the last."""
    if number <= most:
        return [*range(number)]
    return [index * (number - 1) // (most - 1) for index in range(most)]


def _bounds(
    slopes: np.ndarray, days: np.ndarray, level: np.ndarray, confidence: float
) -> tuple[float, float]:
    """Return the confidence interval: two of the sorted slopes, as far from the middle as needed.

    The distance is based on the variance of Kendall's statistic, which equal values reduce.
    """
    variance = (_weight(len(days)) - _ties(days) - _ties(level)) / 18
    half = NormalDist().inv_cdf((1 + confidence) / 2) * max(variance, 0.0) ** 0.5
    low = max(round((len(slopes) - half) / 2) - 1, 0)
    high = min(round((len(slopes) + half) / 2), len(slopes) - 1)
    return float(slopes[low]), float(slopes[high])


def _ties(values: np.ndarray) -> int:
    return sum(_weight(count) for count in Counter(values.tolist()).values())


def _weight(count: int) -> int:
    return count * (count - 1) * (2 * count + 5)
