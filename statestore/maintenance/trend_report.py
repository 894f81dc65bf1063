"""The result of a trend: the points of each state and checkpoint, their growth, and forecasts.

The growth is robust against outliers. It is the Theil–Sen estimator: the median of the slopes
between all pairs of points. Up to 29 % of the points may be arbitrary without an effect on it. Its
bounds are the confidence interval of P. K. Sen (1968), which allows for equal values. They assume
that the points scatter independently around a line. Few points result in no growth, and a far limit
in no forecast, instead of a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import NormalDist
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from statestore.display import NotebookBar, bars, counted, duration, figure, size, table, when
from statestore.restore.restart_time import RestoreSpeed
from statestore.rows.dataframes import as_pandas, as_polars, table_of

POINTS_NEEDED: Final = 5
"""The points at different times that a growth needs."""

SPAN_NEEDED_MS: Final = 3_600_000
"""The time between the first and the last point that a growth per day needs."""

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


def lacks_growth(times_ms: Sequence[int]) -> str | None:
    """Return why points at these times have no growth; None if they have one."""
    if len(set(times_ms)) < POINTS_NEEDED:
        return f"not enough checkpoints: growth needs {POINTS_NEEDED} at different times"
    span_ms = max(times_ms) - min(times_ms)
    if span_ms < SPAN_NEEDED_MS:
        return f"{duration(span_ms)} is too short: growth needs checkpoints over at least an hour"
    return None


def growth_of(
    times_ms: Sequence[int], values: Sequence[float], confidence: float = CONFIDENCE
) -> Growth | None:
    """Return the growth of a figure; None if it has too few points, or over too short a time.

    Of more than 300 points, 300 are used, evenly spread from the first to the last.
    """
    if lacks_growth(times_ms) is not None:
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
        return Forecast(limit=shown_limit, reason="not enough checkpoints, or too short a time")
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


FOLDS_NEEDED: Final = 3
"""Below this many compactions, the growth may only be changes that wait for compaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePoint:
    """A state at one checkpoint.

    ``rows`` and ``size_bytes`` are those in files, of which ``changed_rows`` and ``changed_bytes``
    are changes. ``live_rows`` is the number of rows that result from base and changes, None if it
    was not recorded. ``heaviest_bytes`` are the bytes of the key group with the most bytes, and
    ``skew`` is their multiple of the even share. Both are None for operator state. ``age_ms`` is
    the time since a checkpoint last wrote files of the state, including compaction. If that
    checkpoint has expired, ``is_least_age`` is True, and the state is at least that old.
    """

    checkpoint_id: int
    created_at_ms: int
    rows: int
    changed_rows: int
    live_rows: int | None
    size_bytes: int
    changed_bytes: int
    heaviest_bytes: int | None
    skew: float | None
    age_ms: int
    is_least_age: bool


@dataclass(frozen=True, kw_only=True)
class StateTrend:
    """A state over the kept checkpoints that have it, oldest first, and its growth per day.

    ``rows`` is the growth of the live rows, or, if they are not known at every checkpoint
    (``is_of_live_rows`` is False), of the rows in files. ``size`` and ``skew`` are the growth of
    the bytes and of the skew. They are None if there are not enough checkpoints; ``skew`` also for
    operator state. ``folds`` is the number of times that compaction reduced the changes, None for a
    state without changes. With fewer than 3, ``is_provisional`` is True: the growth may be changes
    that wait for compaction. ``reaches`` is the forecast for the requested size, if any.
    """

    json_properties: ClassVar[tuple[str, ...]] = ("is_provisional",)

    operator: str
    state: str
    points: tuple[StatePoint, ...]
    rows: Growth | None
    is_of_live_rows: bool
    size: Growth | None
    skew: Growth | None
    folds: int | None
    reaches: Forecast | None

    @property
    def is_provisional(self) -> bool:
        """Whether the growth may only be changes that wait for compaction."""
        return self.folds is not None and self.folds < FOLDS_NEEDED

    @property
    def newest(self) -> StatePoint:
        """The state at the newest checkpoint that has it."""
        return self.points[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPoint:
    """The selected states of one checkpoint together.

    ``largest_bytes`` are the bytes of the largest subtask of a restore, and ``seconds`` the time of
    the slowest one. Both are None if the checkpoint cannot be restored at the parallelism.
    ``seconds`` is also None without a rate.
    """

    checkpoint_id: int
    created_at_ms: int
    rows: int
    changed_rows: int
    size_bytes: int
    largest_bytes: int | None
    seconds: float | None


@dataclass(frozen=True)
class UnreadCheckpoint:
    """A checkpoint that the trend lacks, because its manifest cannot be read."""

    checkpoint_id: int
    kind: str
    message: str


_COLUMNS: Final = {
    "operator": "string",
    "state": "string",
    "checkpoint_id": "int64",
    "created_at_ms": "int64",
    "rows": "int64",
    "changed_rows": "int64",
    "live_rows": "int64",
    "size_bytes": "int64",
    "changed_bytes": "int64",
    "heaviest_bytes": "int64",
    "skew": "float64",
    "age_ms": "int64",
    "is_least_age": "bool",
}
_values_of = attrgetter(*list(_COLUMNS)[2:])


@dataclass(frozen=True, kw_only=True)
class StoreTrend:
    """The trend of a store's states, and of all of them together.

    ``checkpoints`` are the kept checkpoints, oldest first. ``states`` begins with the state whose
    bytes grow fastest. ``size`` is the growth of all bytes. ``largest`` is the growth of the
    largest subtask of a restore at ``parallelism``, in bytes. ``speed`` is what a subtask takes,
    and ``rate`` its bytes per second. ``reaches`` is the forecast for a size, and
    ``restore_reaches`` the forecast for a restore time in ms. They are None if they were not
    requested.
    """

    json_properties: ClassVar[tuple[str, ...]] = ("no_growth", "rate")

    checkpoints: tuple[CheckpointPoint, ...]
    states: tuple[StateTrend, ...]
    size: Growth | None = None
    largest: Growth | None = None
    parallelism: int | None = None
    speed: RestoreSpeed | None = None
    reaches: Forecast | None = None
    restore_reaches: Forecast | None = None
    unread: tuple[UnreadCheckpoint, ...] = ()

    @property
    def no_growth(self) -> str | None:
        """Why the growth is unknown; None if it is known."""
        return lacks_growth([point.created_at_ms for point in self.checkpoints])

    @property
    def rate(self) -> float | None:
        """Bytes per second and subtask; None if unknown, or if only requests take time."""
        return None if self.speed is None else self.speed.rate

    def to_arrow(self) -> pa.Table:
        """Return one row per state and checkpoint."""
        rows = (
            (state.operator, state.state, *_values_of(point))
            for state in self.states
            for point in state.points
        )
        return table_of(_COLUMNS, rows)

    to_pandas = as_pandas
    to_polars = as_polars

    def __repr__(self) -> str:
        return f"StoreTrend({self._summary()})"

    def _repr_html_(self) -> str:
        """Return the notebook view: the growth of each state."""
        growing = [state for state in self.states if state.size and state.size.per_day > 0]
        drawn = [
            NotebookBar(
                f"{state.operator} · {state.state}",
                ((state.size.per_day, "changed"),),
                f"{size(round(state.size.per_day))} a day, now {size(state.newest.size_bytes)}",
            )
            for state in growing
            if state.size
        ]
        columns = ("operator", "state", "checkpoints", "size_bytes", "skew", "age")
        rows = (
            (
                *(state.operator, state.state, len(state.points), state.newest.size_bytes),
                "" if state.newest.skew is None else f"{state.newest.skew:.2f}",
                duration(state.newest.age_ms),
            )
            for state in self.states
        )
        return figure(self._summary(), bars(drawn), table(columns, rows))

    def _summary(self) -> str:
        points = self.checkpoints
        if not points:
            return "no checkpoints"
        first, last = points[0], points[-1]
        return (
            f"{counted(len(points), 'checkpoint')}, {first.checkpoint_id} to "
            f"{last.checkpoint_id}, {when(first.created_at_ms)} to {when(last.created_at_ms)}"
        )
