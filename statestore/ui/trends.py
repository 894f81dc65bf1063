"""The pages with a store's checkpoints, and with the growth of states and its forecast.

The page of checkpoints shows their durations, written bytes, and the growth of states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from statestore.catalog.deletions import read_deletions
from statestore.cli.drawing import size, when
from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.maintenance.trend_report import StatePoint, StateTrend, StoreTrend
from statestore.restore.byte_sizes import bytes_of
from statestore.store import StateStore
from statestore.ui.charts import (
    BYTES,
    DURATION,
    NUMBER,
    TIMES,
    Ahead,
    Axis,
    Column,
    Picture,
    draw_lines,
)
from statestore.ui.checkpoint import draw_window, read_window, status_of
from statestore.ui.pages import PageView
from statestore.ui.rescale import PageSpeed


def newest(store: StateStore) -> int | None:
    """Return the id of the newest checkpoint, None for an empty store."""
    return max(store.checkpoints(), default=None)


def timeline(
    store: StateStore, before: int | None = None, axis: Axis | str = Axis.CHECKPOINTS
) -> PageView:
    """Return the newest checkpoints, or the newest below an id.

    Raises StorageError if the store cannot be reached, and InvalidArgumentError for another axis.
    """
    try:
        axis = Axis(axis)
    except ValueError:
        raise InvalidArgumentError(
            f"the axis can be {' or '.join(Axis)}, not {axis!r:.80}"
        ) from None
    window = read_window(store, before)
    facts = {
        "status": status_of(store, window),
        "lines": window.lines[::-1],
        "total": len(window.ids),
        "older": window.older,
        "newer": window.newer,
        "expired": window.expired,
        "deletions": read_deletions(store.parts.catalog().storage)[: -_DELETIONS - 1 : -1],
        "axis": axis,
        "axes": tuple(Axis),
        "before": before,
        "pictures": [*draw_window(window, axis)],
    }
    return PageView("Checkpoints", "timeline.html", facts, tab="timeline")


_DELETIONS: Final = 10
LAST: Final = 200
"""The number of checkpoints on the page; only their manifests are read."""

_STATES: Final = 7
_LARGEST: Final = "largest subtask"
_DAY_MS: Final = 86_400_000
_AHEAD: Final = 0.3  # the part of the span for which growth is continued in the chart


@dataclass(frozen=True, kw_only=True)
class TrendQuery:
    """The fields of the form: numbers, a size and a duration as the reader wrote them."""

    last: int | None = None
    size: str = ""
    restore_time: str = ""
    rate: int | None = None
    request_ms: int | None = None
    parallelism: int | None = None


def trends(store: StateStore, query: TrendQuery | None = None) -> PageView:
    """Return the growth of each state; for an invalid query, the form with the error.

    Raises StorageError if the store cannot be reached.
    """
    query = query or TrendQuery()
    facts: dict[str, Any] = {
        "query_of": query,
        "last": LAST if query.last is None else query.last,
        "rate": query.rate,
        "request_ms": query.request_ms,
        "trend": None,
    }
    problem = None
    try:
        speed = PageSpeed.of(store, query.rate, query.request_ms)
        facts |= {"speed": speed, "rate": speed.rate, "request_ms": speed.request_ms}
        facts |= _facts(_trend(store, query, facts["last"], speed))
    except (InvalidArgumentError, ParallelismError) as error:
        problem = error
    return PageView("Trends", "trends.html", facts, tab="trends", error=problem)


def _trend(store: StateStore, query: TrendQuery, last: int, speed: PageSpeed) -> StoreTrend:
    return store.inspect.trend(
        last=last,
        size_bytes=bytes_of(query.size) if query.size.strip() else None,
        restore_time=query.restore_time.strip() or None,
        rate=speed.speed,
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


def _pictures(trend: StoreTrend, shown: Sequence[StateTrend]) -> Iterator[Picture]:
    """Yield the chart of each figure."""
    if not trend.checkpoints:
        return
    names = [_name(state) for state in shown]
    ahead = [*_ahead(shown)]
    caption = "Bytes of base and changes."
    if ahead:
        caption += " Dashed: the growth of states that clearly grow, with its bounds, continued."
    columns = _columns(trend, shown, lambda point: point.size_bytes)
    html = draw_lines(columns, names, BYTES, "Bytes of states", Axis.TIME, ahead)
    yield Picture("trend-bytes", caption, html)
    columns = _columns(
        trend, shown, lambda point: point.rows if point.live_rows is None else point.live_rows
    )
    yield Picture(
        "trend-rows",
        "Live rows, or the rows in files where they are not known.",
        draw_lines(columns, names, NUMBER, "Rows of states", Axis.TIME),
    )
    columns = _columns(trend, shown, lambda point: point.skew)
    skewed = [name for name in names if any(name in column.values for column in columns)]
    if skewed:
        yield Picture(
            "trend-skew",
            "Skew: the multiple of the even share that the heaviest key group has.",
            draw_lines(columns, skewed, TIMES, "Skew of states", Axis.TIME),
        )
    seconds = {
        point.checkpoint_id: {_LARGEST: 1000 * point.seconds}
        for point in trend.checkpoints
        if point.seconds is not None
    }
    if seconds:
        caption = (
            f"Time to read the largest subtask of a restore at parallelism {trend.parallelism}. "
            "The start of the job is not included."
        )
        columns = [
            Column(str(point.checkpoint_id), point.created_at_ms, seconds[point.checkpoint_id])
            for point in trend.checkpoints
            if point.checkpoint_id in seconds
        ]
        html = draw_lines(columns, (_LARGEST,), DURATION, "Time to read", Axis.TIME)
        yield Picture("trend-restore", caption, html)


def _columns(
    trend: StoreTrend,
    states: Sequence[StateTrend],
    value_of: Callable[[StatePoint], float | None],
) -> list[Column]:
    """Return a column for each checkpoint, with a value for each state that has one."""
    values: dict[int, dict[str, float]] = {one.checkpoint_id: {} for one in trend.checkpoints}
    for state in states:
        for point in state.points:
            value = value_of(point)
            if value is not None:
                values[point.checkpoint_id][_name(state)] = value
    return [
        Column(str(point.checkpoint_id), point.created_at_ms, values[point.checkpoint_id])
        for point in trend.checkpoints
    ]


def _ahead(states: Sequence[StateTrend]) -> Iterator[Ahead]:
    """Yield the present and a later size of each state that clearly grows, with its bounds."""
    for state in states:
        growth = state.size
        if growth is None or growth.direction != "grows":
            continue
        newest, wait_ms = state.newest, round(_AHEAD * growth.span_ms)
        rates = (growth.per_day, growth.low_per_day, growth.high_per_day)
        now = float(newest.size_bytes)
        value, low, high = (now + per_day * wait_ms / _DAY_MS for per_day in rates)
        at_ms = newest.created_at_ms + wait_ms
        yield Ahead(
            _name(state),
            ((newest.created_at_ms, (now, now, now)), (at_ms, (value, low, high))),
            f"{_name(state)}: about {size(round(value))} at {when(at_ms)}",
        )


def _name(state: StateTrend) -> str:
    return f"{state.operator}.{state.state}"
