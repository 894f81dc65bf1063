"""The page with the growth of states over the kept checkpoints, and forecasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from statestore.cli.drawing import count, duration, size, when
from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.maintenance.growth import POINTS_NEEDED
from statestore.maintenance.trend_report import StatePoint, StateTrend, StoreTrend
from statestore.restore.byte_sizes import bytes_of
from statestore.store import StateStore
from statestore.ui.charts import Axis, Chart, lines
from statestore.ui.pages import PageView
from statestore.ui.rescale import RATE

__all__ = ["LAST", "TrendQuery", "trends"]

LAST: Final = 200
"""The number of checkpoints on the page; only their manifests are read."""

_STATES: Final = 7
_DAY_MS: Final = 86_400_000
_AHEAD: Final = 0.3  # the part of the span for which growth is continued in the chart


@dataclass(frozen=True, kw_only=True)
class TrendQuery:
    """The fields of the form: numbers, a size and a duration as the reader wrote them."""

    last: int | None = None
    size: str = ""
    restore_time: str = ""
    rate: int | None = None
    parallelism: int | None = None


def trends(store: StateStore, query: TrendQuery | None = None) -> PageView:
    """Return the growth of each state; for an invalid query, the form with the error.

    Raises StorageError if the store cannot be reached.
    """
    query = query or TrendQuery()
    facts: dict[str, Any] = {
        "query_of": query,
        "last": LAST if query.last is None else query.last,
        "rate": RATE // 10**6 if query.rate is None else query.rate,
        "needed": POINTS_NEEDED,
        "trend": None,
    }
    problem = None
    try:
        facts |= _facts(_trend(store, query, facts["last"], facts["rate"]))
    except (InvalidArgumentError, ParallelismError) as error:
        problem = error
    return PageView("Trends", "trends.html", facts, tab="trends", error=problem)


def _trend(store: StateStore, query: TrendQuery, last: int, rate: int) -> StoreTrend:
    return store.inspect.trend(
        last=last,
        size_bytes=bytes_of(query.size) if query.size.strip() else None,
        restore_time=query.restore_time.strip() or None,
        rate=float(rate) * 10**6,
        parallelism=query.parallelism,
    )


def _facts(trend: StoreTrend) -> dict[str, Any]:
    shown = trend.states[:_STATES]
    return {
        "trend": trend,
        "newest": trend.checkpoints[-1] if trend.checkpoints else None,
        "left_out": len(trend.states) - len(shown),
        "pictures": [*_pictures(trend, shown)],
    }


def _pictures(trend: StoreTrend, shown: Sequence[StateTrend]) -> Iterator[tuple[str, Chart]]:
    """Yield the caption and the chart of each figure."""
    if not trend.checkpoints:
        return
    rows = _rows(shown, lambda point: point.size_bytes, size)
    ahead = [*_ahead(trend, shown)]
    caption = "Bytes of base and changes."
    if ahead:
        caption += " Dashed: the growth of states that clearly grow, with its bounds, continued."
    yield caption, lines("trend-bytes", rows, "bytes", Axis.TIME, ahead=ahead)
    rows = _rows(shown, lambda point: point.rows if point.live_rows is None else point.live_rows)
    yield (
        "Live rows, or the rows in files where they are not known.",
        lines("trend-rows", rows, "rows", Axis.TIME),
    )
    rows = _rows(shown, lambda point: point.skew, lambda value: f"{value:.2f}")
    if rows:
        yield (
            "Skew: the multiple of the even share that the heaviest key group has.",
            lines("trend-skew", rows, "skew", Axis.TIME),
        )
    seconds = [*_restore_rows(trend)]
    if seconds:
        caption = (
            f"Time to read the largest subtask of a restore at parallelism {trend.parallelism}. "
            "The start of the job is not included."
        )
        yield caption, lines("trend-restore", seconds, "seconds", Axis.TIME)


def _rows(
    states: Sequence[StateTrend],
    value_of: Callable[[StatePoint], float | None],
    shown: Callable[[Any], str] = count,
) -> list[dict[str, Any]]:
    return [
        _row(_name(state), point, value, shown(value))
        for state in states
        for point in state.points
        if (value := value_of(point)) is not None
    ]


def _row(name: str, point: Any, value: float, shown: str) -> dict[str, Any]:
    number = str(point.checkpoint_id)
    return {
        "checkpoint": number,
        "at": point.created_at_ms,
        "state": name,
        "value": value,
        "shown": shown,
        "text": f"checkpoint {number}, {name}: {shown}",
    }


def _restore_rows(trend: StoreTrend) -> Iterator[Mapping[str, Any]]:
    for point in trend.checkpoints:
        if point.seconds is not None:
            shown = duration(round(1000 * point.seconds))
            yield _row("largest subtask", point, point.seconds, shown)


def _ahead(trend: StoreTrend, states: Sequence[StateTrend]) -> Iterator[Mapping[str, Any]]:
    """Yield the present and a later size of each state that clearly grows, with its bounds."""
    for state in states:
        growth = state.size
        if growth is None or growth.direction != "grows":
            continue
        newest, wait_ms = state.newest, round(_AHEAD * growth.span_ms)
        for passed_ms in (0, wait_ms):
            at_ms = newest.created_at_ms + passed_ms
            value, low, high = (
                newest.size_bytes + per_day * passed_ms / _DAY_MS
                for per_day in (growth.per_day, growth.low_per_day, growth.high_per_day)
            )
            yield {
                "at": at_ms,
                "state": _name(state),
                "value": value,
                "low": low,
                "high": high,
                "text": f"{_name(state)}: about {size(round(value))} at {when(at_ms)}",
            }


def _name(state: StateTrend) -> str:
    return f"{state.operator}.{state.state}"
