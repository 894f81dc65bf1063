"""Draw charts as SVG for a page without a script.

Shapes stretch with the page, and text keeps its size, so a chart is readable at any width. A
column of a chart shows its values under the pointer. The page's style sheet has the colors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from statestore.display import count, duration, size, spans
from statestore.extras import needs_extra
from statestore.ui.key_group_flow import Flow, Label

with needs_extra("ui", "the pages of a store"):
    from markupsafe import Markup

__all__ = [
    "BINS",
    "BYTES",
    "DURATION",
    "HIGH",
    "LOW",
    "NUMBER",
    "SHARE",
    "Column",
    "Unit",
    "draw_bars",
    "draw_flow",
    "draw_lines",
    "draw_skyline",
]

HIGH: Final = 190
"""The height of a large chart in pixels."""

LOW: Final = 90
"""The height of a small chart in pixels."""

BINS: Final = 128
"""The largest number of steps in a picture of key groups."""

_COLORS: Final = 8
_LABELS: Final = 9
_FEW: Final = (0, 4, 8)  # the labels that a phone has room for
_LINE_PX: Final = 15


@dataclass(frozen=True)
class Unit:
    """How values are written, and the values at which a larger unit begins."""

    text: Callable[[float], str]
    steps: tuple[int, ...] = (1,)
    is_whole: bool = True


BYTES: Final = Unit(lambda value: size(round(value)))
DURATION: Final = Unit(
    lambda value: duration(round(value)), (1, 1_000, 60_000, 3_600_000, 86_400_000)
)
NUMBER: Final = Unit(lambda value: count(round(value)))
SHARE: Final = Unit(lambda value: f"{100 * value:.3g} %", is_whole=False)


@dataclass(frozen=True)
class Column:
    """A checkpoint on the horizontal axis, with a value for each series.

    ``short_time`` is the time on the axis. ``mark`` is the text of a mark below the column, empty
    without a mark.
    """

    label: str
    short_time: str
    time: str
    values: Mapping[str, float]
    mark: str = ""


def draw_bars(
    columns: Sequence[Column], series: Sequence[str], unit: Unit, name: str, height: int = HIGH
) -> Markup:
    """Return a bar for each column, in which the values of the series are stacked."""
    scale = _Scale(max(sum(column.values.values()) for column in columns), unit, height)
    shapes = []
    for place, column in enumerate(columns):
        below, paths = 0.0, Markup()
        for number, one in enumerate(series):
            if value := column.values.get(one, 0):
                path = f"M{place}.1 {_px(scale.y(below))}h.8V{_px(scale.y(below + value))}h-.8z"
                paths += Markup('<path class="c{}" d="{}"/>').format(number % _COLORS, path)
                below += value
        shapes.append(_hover(place, height, _text_of(column, series, unit), paths))
    picture = _plot(scale, len(columns), shapes, _axis(columns), name, _marks(columns, height))
    return (_legend(series) if len(series) > 1 else Markup("")) + picture


def draw_lines(columns: Sequence[Column], series: Sequence[str], unit: Unit, name: str) -> Markup:
    """Return a line for each series; it has a gap at columns without a value."""
    most = max(max(column.values.values(), default=0) for column in columns)
    scale = _Scale(most, unit, HIGH)
    shapes = []
    for number, one in enumerate(series):
        path = ""
        known = [(place, column.values.get(one)) for place, column in enumerate(columns)]
        for is_known, run in groupby(known, lambda point: point[1] is not None):
            if is_known:
                points = [f"{place}.5 {_px(scale.y(value or 0))}" for place, value in run]
                path += f"M{points[0]}h0" + "".join(f"L{point}" for point in points[1:])
        line = Markup('<path class="line c{}" d="{}"/>')
        shapes.append(line.format(number % _COLORS, path))
    shapes += [
        _hover(place, HIGH, _text_of(column, series, unit)) for place, column in enumerate(columns)
    ]
    return _legend(series) + _plot(scale, len(columns), shapes, _axis(columns), name)


def draw_skyline(values: Sequence[int], unit: Unit, name: str) -> Markup:
    """Return the value of each key group from left to right, and a line at their mean.

    If there are too many key groups, each step of the picture is as high as the largest of its key
    groups.
    """
    parts = spans(len(values), BINS)
    scale = _Scale(max(values), unit, LOW)
    heights = [_px(scale.y(max(values[part.start : part.stop]))) for part in parts]
    path = f"M0 {LOW}" + "".join(f"V{height}h1" for height in heights) + f"V{LOW}z"
    mean = _px(scale.y(sum(values) / len(values)))
    shapes = [
        Markup('<path class="c0" d="{}"/><path class="mean" d="M0 {}H{}"/>').format(
            path, mean, len(parts)
        )
    ]
    last = len(values) - 1
    places = {0.0: 0, 0.5: last // 2, 1.0: last} if last else {0.0: 0}
    axis = [_AxisLabel(place, (count(group),)) for place, group in places.items()]
    return _plot(scale, len(parts), shapes, axis, name)


def draw_flow(drawn: Flow, name: str) -> Markup:
    """Return bands of key groups from the old subtasks (left) to the new ones (right)."""
    most = max(len(drawn.old), len(drawn.new))
    height = min(60 + 16 * most, 420)
    bands = []
    for band in drawn.bands:
        (a, b), (c, d) = ([_px(height * end) for end in ends] for ends in (band.left, band.right))
        path = f"M0 {a}C50 {a} 50 {c} 100 {c}V{d}C50 {d} 50 {b} 0 {b}z"
        kind = "moves" if band.moves else "stays"
        bands.append(
            Markup('<path class="{}" d="{}"><title>{}</title></path>').format(kind, path, band.text)
        )
    names = [*_side(drawn.old, "left", height), *_side(drawn.new, "right", height)]
    legend = Markup('<ul class="legend"><li class="stays">stays</li><li class="moves">moves</li>')
    return legend + Markup(
        '</ul><div class="plot flow"><svg role="img" aria-label="{}" height="{}">'
        '<svg viewBox="0 0 100 {}" preserveAspectRatio="none" width="100%" height="{}">{}</svg>'
        "{}</svg></div>"
    ).format(name, height, height, height, _joined(bands), _joined(names))


def _side(labels: Sequence[Label], side: str, height: int) -> Iterable[Markup]:
    """Yield the numbers of subtasks at one side, as many as there is room for."""
    every = math.ceil(len(labels) * _LINE_PX / height)
    x = "0" if side == "left" else "100%"
    for label in labels[::every]:
        yield Markup('<text class="{}" x="{}" y="{}" dy="4">{}</text>').format(
            side, x, _px(height * label.height), label.subtask
        )


class _Scale:
    """Rounded values of a vertical axis, and the place of each value."""

    def __init__(self, most: float, unit: Unit, height: int) -> None:
        self.unit, self.height = unit, height
        base = max((step for step in unit.steps if step <= most), default=unit.steps[0])
        step = base * _rounded_up(max(most, 0.001) / base / (height / 45))
        if unit.is_whole:
            step = max(step, 1)
        self.ticks = [step * number for number in range(math.ceil(most / step) + 1)]
        if len(self.ticks) == 1:
            self.ticks.append(step)

    def y(self, value: float) -> float:
        """Return the distance of a value from the top."""
        return self.height * (1 - value / self.ticks[-1])


def _rounded_up(value: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least as large as the value."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * 0.999)


@dataclass(frozen=True)
class _AxisLabel:
    """The lines of a label below a share of the width; ``is_extra`` if a phone has no room."""

    place: float
    lines: tuple[str, ...]
    is_extra: bool = False


def _axis(columns: Sequence[Column]) -> list[_AxisLabel]:
    """Return evenly spaced labels of columns."""
    last = len(columns) - 1
    few = min(len(columns), _LABELS)
    chosen = [round(number * last / max(few - 1, 1)) for number in range(few)]
    always = {round(number * last / (_LABELS - 1)) for number in _FEW}
    return [
        _AxisLabel(
            (place + 0.5) / len(columns),
            (columns[place].label, columns[place].short_time),
            is_extra=place not in always,
        )
        for place in chosen
    ]


def _marks(columns: Sequence[Column], height: int) -> Iterable[Markup]:
    """Yield a diamond at the foot of each marked column."""
    for place, column in enumerate(columns):
        if column.mark:
            yield Markup(
                '<text class="mark" x="{}%" y="{}" dy="4">◆<title>{}</title></text>'
            ).format(_percent((place + 0.5) / len(columns)), height, column.mark)


def _plot(
    scale: _Scale,
    columns: int,
    shapes: Iterable[Markup],
    axis: Sequence[_AxisLabel],
    name: str,
    marks: Iterable[Markup] = (),
) -> Markup:
    """Return shapes with their axes. One unit of the shapes is a column wide and a pixel high."""
    height = scale.height
    ticks = [
        Markup('<text class="tick" x="-8" y="{}" dy="4">{}</text>').format(
            _px(scale.y(tick)), scale.unit.text(tick)
        )
        for tick in scale.ticks
    ]
    labels = [
        Markup('<text class="{}" x="{}%" y="{}">{}</text>').format(
            "label extra" if label.is_extra else "label",
            _percent(label.place),
            height + 3 + _LINE_PX * number,
            line,
        )
        for label in axis
        for number, line in enumerate(label.lines, start=1)
    ]
    grid = "".join(f"M0 {_px(scale.y(tick))}H{columns}" for tick in scale.ticks)
    below = 8 + _LINE_PX * max(len(label.lines) for label in axis)
    return Markup(
        '<div class="plot"><svg role="img" aria-label="{}" height="{}">'
        '<svg viewBox="0 0 {} {}" preserveAspectRatio="none" width="100%" height="{}">'
        '<path class="grid" d="{}"/>{}</svg>{}</svg></div>'
    ).format(
        name,
        height + below,
        columns,
        height,
        height,
        grid,
        _joined(shapes),
        _joined([*ticks, *labels, *marks]),
    )


def _hover(place: int, height: int, text: str, paths: str = "") -> Markup:
    """Return a column with its shapes, which shows a text under the pointer."""
    return Markup('<g><title>{}</title><path class="hit" d="M{} 0h1v{}h-1z"/>{}</g>').format(
        text, place, height, paths
    )


def _text_of(column: Column, series: Sequence[str], unit: Unit) -> str:
    values = [f"{one}: {unit.text(column.values[one])}" for one in series if one in column.values]
    return "\n".join([f"checkpoint {column.label}, {column.time}", *values])


def _legend(series: Sequence[str]) -> Markup:
    item = Markup('<li class="c{}">{}</li>')
    items = [item.format(number % _COLORS, one) for number, one in enumerate(series)]
    return Markup('<ul class="legend">{}</ul>').format(_joined(items))


def _joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def _px(value: float) -> str:
    return f"{round(value, 1):g}"


def _percent(share: float) -> str:
    return f"{round(100 * share, 2):g}"
