"""``statestore trend``: show the growth of each state over the kept checkpoints, and forecasts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import click

from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import (
    count,
    counted,
    duration,
    signed,
    size,
    span_text,
    sparkline,
    when,
)
from statestore.cli.options import state_option, subtasks_option
from statestore.cli.output import DRAWING_WIDTH, Output, Page, progress_bar, table_of
from statestore.cli.restore_records import kept_restores, speed_source, speed_text, unknown_rate
from statestore.cli.summaries import rows_text
from statestore.durations import milliseconds_of
from statestore.errors import CorruptionError, FormatVersionError, StateStoreError
from statestore.maintenance.trend_report import (
    Forecast,
    Growth,
    StateTrend,
    StoreTrend,
)
from statestore.restore.byte_sizes import bytes_of, rate_of
from statestore.restore.restart_time import MeasuredRestore, RestoreSpeed, fitted_speed

__all__ = ["FoundTrend", "show_trend", "write_trend"]

_SPARKS, _SPARKS_IF_NARROW = 20, 8
_COLUMNS = (
    *("state", "rows", "a day", "bytes", "bytes a day", "90 % bounds", "bytes so far"),
    *("skew", "age"),
)
_FOR_WIDE_ONES = ("a day", "90 % bounds")
"""Columns that a narrow terminal has no room for."""


def _parse_targets(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> None:
    """Set the parameters ``size_bytes`` and ``restore_time``."""
    targets = dict(map(_target, values))
    if len(targets) < len(values):
        raise click.BadParameter("pass at most one size and one time")
    context.params.update({"size_bytes": None, "restore_time": None} | targets)


def _target(text: str) -> tuple[str, int | str]:
    with suppress(ValueError):
        return "size_bytes", bytes_of(text)
    try:
        milliseconds_of(text)
    except ValueError:
        reason = f"{text!r:.80} is neither a size such as 100GB nor a time such as 10m"
        raise click.BadParameter(reason) from None
    return "restore_time", text


@click.command(
    "trend",
    cls=Verb,
    section="Look",
    prints=(
        "For each state, the fastest growing first: its rows and bytes, their growth a day, its "
        "bytes at each kept checkpoint, its skew, and the time since its files were written. "
        "Growth is the median slope between all pairs of checkpoints (Theil-Sen). The time of a "
        "restore follows from the setting restore_rate, or the last restore. If a manifest "
        "cannot be read, the exit status is 13."
    ),
    examples=(
        "statestore trend --store ./fraud",
        "statestore trend --until 100GB --store ./fraud",
        "statestore trend --until 10m --parallelism 4 --store ./fraud",
        "statestore trend --state totals-by-user --last 50 --store ./fraud --output json",
    ),
)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the newest N checkpoints. [all]",
)
@click.option(
    "--until",
    multiple=True,
    metavar="SIZE|SPAN",
    expose_value=False,
    callback=_parse_targets,
    help="Forecast when this size is reached, such as 100GB, or when a restore takes this long, "
    "such as 10m. Both can be passed.",
)
@subtasks_option("The parallelism of the restore. [as in the newest checkpoint]")
@state_option()
@pass_invocation
def show_trend(invocation: Invocation, /, **options: Any) -> Output[FoundTrend]:
    """Show the growth of each state, and when it reaches a size or a restore time."""
    store = invocation.store()
    restores: tuple[MeasuredRestore, ...] = ()
    text = invocation.settings.restore_rate
    if text is not None:
        speed: RestoreSpeed | None = RestoreSpeed.of(rate_of(text))
    else:
        restores = kept_restores(os.environ, store.parts.catalog().store_id)
        speed = fitted_speed(restores)
    with progress_bar("reading manifests") as progress:
        trend = store.inspect.trend(rate=speed, on_progress=progress, **options)
    measured = restores[-1] if restores else None
    found = FoundTrend(store=store.url, trend=trend, measured=measured, restores=restores)
    return Output(found, write_trend, problem=_problem(trend))


def _problem(trend: StoreTrend) -> StateStoreError | None:
    if not trend.unread:
        return None
    ids = ", ".join(str(unread.checkpoint_id) for unread in trend.unread)
    total = len(trend.unread) + len(trend.checkpoints)
    message = f"{len(trend.unread)} of {total} checkpoints cannot be read: {ids}"
    if all(unread.kind == FormatVersionError.kind for unread in trend.unread):
        return FormatVersionError(f"{message}; use a newer release")
    return CorruptionError(f"{message}; 'statestore verify all' finds the damage")


@dataclass(frozen=True, kw_only=True)
class FoundTrend:
    """The trend of a store.

    ``measured`` is the last of the restores on this machine that supplied the speed, if any.
    """

    store: str
    trend: StoreTrend
    measured: MeasuredRestore | None = None
    restores: tuple[MeasuredRestore, ...] = field(default=(), repr=False)


def write_trend(page: Page, found: FoundTrend) -> None:
    """Write the growth of each state as text."""
    trend = found.trend
    points = trend.checkpoints
    for unread in trend.unread:
        page.line(f"checkpoint {unread.checkpoint_id} cannot be read: {unread.message}")
    if not points:
        page.line(f"{found.store} has no checkpoint {'to read' if trend.unread else 'yet'}")
        return
    first, newest = points[0], points[-1]
    ids = span_text(first.checkpoint_id, newest.checkpoint_id, page.pen)
    passed = newest.created_at_ms - first.created_at_ms
    page.line(
        f"{counted(len(points), 'checkpoint')} of {found.store} ({ids}), "
        f"{when(first.created_at_ms)} and {duration(passed)} later",
        "bold",
    )
    if trend.no_growth is not None:
        page.line(f"{trend.no_growth}; keep more of them, or take more")
    _write_states(page, trend)
    page.line(f"all states: {size(newest.size_bytes)}{_growth_text(trend.size)}")
    _write_restore(page, found)
    _write_forecasts(page, trend)


def _write_states(page: Page, trend: StoreTrend) -> None:
    hidden = set(_FOR_WIDE_ONES) if page.width < DRAWING_WIDTH else set()
    if trend.size is None:
        hidden |= {"a day", "bytes a day", "90 % bounds"}
    shown = [name for name in _COLUMNS if name not in hidden]
    table = table_of(*shown, right=set(shown) - {"state", "bytes so far"})
    for state in trend.states:
        values = dict(zip(_COLUMNS, _cells(page, state), strict=True))
        table.add_row(*(values[name] for name in shown))
    page.table(table)
    if any(state.is_provisional and state.size for state in trend.states):
        page.line(
            "* compaction folded the changes fewer than 3 times, so the growth may be changes "
            "that wait for it"
        )


def _cells(page: Page, state: StateTrend) -> Sequence[str]:
    newest, growth, rows = state.newest, state.size, state.rows
    sizes = [point.size_bytes for point in state.points]
    sparks = _SPARKS_IF_NARROW if page.width < DRAWING_WIDTH else _SPARKS
    mark = "*" if state.is_provisional and growth else ""
    least = ">" if newest.is_least_age else ""
    if newest.live_rows is None:
        held = rows_text(newest.rows, newest.changed_rows)
    else:
        held = count(newest.live_rows)
    return (
        f"{state.operator}.{state.state}",
        held,
        "" if rows is None else signed(rows.per_day, count),
        size(newest.size_bytes),
        "" if growth is None else f"{signed(growth.per_day, size)}{mark}",
        "" if growth is None else _bounds(growth),
        sparkline(sizes, width=sparks, pen=page.pen),
        "" if newest.skew is None else f"{newest.skew:.2f}",
        f"{least}{duration(newest.age_ms)}" if newest.age_ms else "new",
    )


def _bounds(growth: Growth) -> str:
    return f"{signed(growth.low_per_day, size)} to {signed(growth.high_per_day, size)}"


def _growth_text(growth: Growth | None) -> str:
    if growth is None:
        return ""
    return (
        f", {signed(growth.per_day, size)} a day ({_bounds(growth)}), based on "
        f"{counted(growth.points, 'checkpoint')} in {duration(growth.span_ms)}"
    )


def _write_restore(page: Page, found: FoundTrend) -> None:
    trend = found.trend
    newest = trend.checkpoints[-1]
    if newest.largest_bytes is None:
        return
    text = f"restore at parallelism {trend.parallelism}: {size(newest.largest_bytes)} in the "
    text += "largest subtask"
    if trend.largest is not None:
        text += f", {signed(trend.largest.per_day, size)} a day"
    if newest.seconds is not None and trend.speed is not None:
        text += (
            f"; {duration(round(1000 * newest.seconds))} at {speed_text(trend.speed)}, "
            f"{speed_source(found.restores)}"
        )
    page.line(text)


def _write_forecasts(page: Page, trend: StoreTrend) -> None:
    """Write when sizes and the restore time are reached; states without a time come last."""
    wanted = [("all states", trend.reaches)]
    wanted += [(f"{one.operator}.{one.state}", one.reaches) for one in trend.states]
    sizes = [(name, forecast) for name, forecast in wanted if forecast is not None]
    if sizes:
        page.line()
        page.line(f"size {size(sizes[0][1].limit)} is reached:", "bold")
        _write_table(page, sorted(sizes, key=lambda each: _order(each[1])))
    if trend.restore_reaches is not None:
        page.line()
        limit = duration(trend.restore_reaches.limit)
        page.line(f"a restore at parallelism {trend.parallelism} takes {limit}:", "bold")
        _write_table(page, [("all states", trend.restore_reaches)])
        if trend.speed is None:
            page.line(f"the rate is {unknown_rate()}")


def _order(forecast: Forecast) -> tuple[bool, bool, int]:
    return not forecast.is_reached, forecast.at_ms is None, forecast.at_ms or 0


def _write_table(page: Page, forecasts: Sequence[tuple[str, Forecast]]) -> None:
    table = table_of("", "when", "between")
    is_far = False
    for name, forecast in forecasts:
        text, between = "now" if forecast.is_reached else forecast.reason or "", ""
        if forecast.at_ms is not None:
            mark = " ~" if forecast.is_far else ""
            is_far |= forecast.is_far
            text = f"{_day(forecast.at_ms)}{mark}"
            between = f"{_day(forecast.earliest_ms or 0)} and {_day(forecast.latest_ms or 0)}"
        table.add_row(name, text, between)
    page.table(table)
    if is_far:
        page.line("~ more than 10 times as far away as the checkpoints span")


def _day(milliseconds: int) -> str:
    return when(milliseconds).removesuffix(" UTC")[:16]
