"""Draw charts as SVG, for pages and reports, also of the flow of key groups in a restore.

Shapes stretch with the page, and text keeps its size, so a chart is readable at any width. A
column of a chart shows its values under the pointer. The style sheet ``charts.css`` has the colors.

Key groups flow from the old subtasks of operators to the subtasks that would read them. Their
heights are from 0 (top) to 1, and subtasks have gaps between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate, groupby, pairwise
from typing import Any, Final

from statestore.cli.drawing import UNICODE, range_text
from statestore.display import count, duration, size, spans, when
from statestore.extras import needs_extra
from statestore.format.manifest import Manifest
from statestore.keys.groups import KeyGroupRange
from statestore.restore.key_group_weights import weights_of
from statestore.restore.plan import RestorePlan, owners_of

_SPACE: Final = 0.3  # the share of the height that is left between subtasks


@dataclass(frozen=True)
class Band:
    """Key groups of subtask ``old`` that subtask ``new`` reads, and the heights at both ends."""

    old: int
    new: int
    left: tuple[float, float]
    right: tuple[float, float]
    text: str

    @property
    def moves(self) -> bool:
        """Whether another subtask reads the key groups than before."""
        return self.old != self.new


@dataclass(frozen=True)
class Label:
    """A subtask, and the height of its middle."""

    subtask: int
    height: float


@dataclass(frozen=True)
class Flow:
    """The bands and subtasks of operators that are divided in the same way.

    ``can_be_drawn`` is false if old and new subtasks have different numbers of key groups.
    """

    uids: tuple[str, ...]
    key_groups: int
    old: tuple[Label, ...]
    new: tuple[Label, ...]
    bands: tuple[Band, ...]
    can_be_drawn: bool


def flows_of(manifest: Manifest, plan: RestorePlan, most_subtasks: int) -> Iterator[Flow]:
    """Yield a flow for each group of operators with the same old and new ranges.

    A flow with more subtasks than ``most_subtasks`` on a side has no bands and cannot be drawn.
    """
    alike: dict[tuple[Any, Any], list[str]] = {}
    for operator in plan.operators:
        if operator.assignment is not None:
            old = owners_of(manifest, operator.stored_operator).ranges()
            ranges = old, operator.assignment.ranges()
            alike.setdefault(ranges, []).append(operator.stored_operator)
    for (old, new), uids in alike.items():
        groups = new[-1].last + 1
        can_be_drawn = old[-1].last + 1 == groups and max(len(old), len(new)) <= most_subtasks
        bands: tuple[Band, ...] = ()
        if can_be_drawn:
            entries = [entry for entry in manifest.keyed if entry.state.uid in uids]
            bands = tuple(_bands(old, new, weights_of(entries)))
        yield Flow(tuple(uids), groups, _labels(old), _labels(new), bands, can_be_drawn)


def _bands(
    old: Sequence[KeyGroupRange], new: Sequence[KeyGroupRange], weights: Sequence[int]
) -> Iterator[Band]:
    upto = [*accumulate(weights, initial=0)]
    left, right = _heights(old), _heights(new)
    for i, a in enumerate(old):
        for j, b in enumerate(new):
            first, last = max(a.first, b.first), min(a.last, b.last)
            if first > last:
                continue
            held = size(upto[last + 1] - upto[first])
            shown = range_text(KeyGroupRange(first, last), UNICODE)
            yield Band(
                old=i,
                new=j,
                left=(left(i, first), left(i, last + 1)),
                right=(right(j, first), right(j, last + 1)),
                text=f"key groups {shown}, {held}: subtask {i} to subtask {j}",
            )


def _labels(ranges: Sequence[KeyGroupRange]) -> tuple[Label, ...]:
    heights = _heights(ranges)
    return tuple(
        Label(subtask, (heights(subtask, span.first) + heights(subtask, span.last + 1)) / 2)
        for subtask, span in enumerate(ranges)
    )


def _heights(ranges: Sequence[KeyGroupRange]) -> Callable[[int, int], float]:
    """Return a function from a subtask and a key group's border to its height."""
    groups = ranges[-1].last + 1
    space = _SPACE / (len(ranges) - 1) if len(ranges) > 1 else 0.0
    scale = (1 - _SPACE if len(ranges) > 1 else 1.0) / groups
    return lambda subtask, border: border * scale + subtask * space


with needs_extra("ui", "the pages of a store"):
    from markupsafe import Markup


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
_CUT_OF: Final = 5  # at most one of so many bars is cut
_FAR: Final = 3  # and only if it is so many times as high as all others
_DAY_MS: Final = 86_400_000
_THIN: Final = 0.004  # the narrowest bar on an axis of time, as a share of the width


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
TIMES: Final = Unit(lambda value: f"{value:.2f}", is_whole=False)
SHARE: Final = Unit(lambda value: f"{100 * value:.3g} %", is_whole=False)


class Axis(StrEnum):
    """The horizontal axis of a chart over checkpoints.

    ``CHECKPOINTS`` has the same distance between all checkpoints, with the id and time of each.
    ``TIME`` is proportional to the time.
    """

    CHECKPOINTS = "checkpoints"
    TIME = "time"


@dataclass(frozen=True)
class Picture:
    """A chart with its anchor on the page and its caption."""

    anchor: str
    caption: str
    html: Markup


@dataclass(frozen=True)
class Column:
    """A checkpoint on the horizontal axis, with a value for each series.

    ``mark`` is the text of a mark below the column, empty without a mark.
    """

    label: str
    at_ms: int
    values: Mapping[str, float] = field(default_factory=dict)
    mark: str = ""


@dataclass(frozen=True)
class Ahead:
    """The forecast of a series: pairs of a time and the value, low and high bound at that time."""

    series: str
    points: tuple[tuple[int, tuple[float, float, float]], ...]
    text: str


def draw_bars(
    columns: Sequence[Column],
    series: Sequence[str],
    unit: Unit,
    name: str,
    height: int = HIGH,
    axis: Axis = Axis.CHECKPOINTS,
) -> Markup:
    """Return a bar for each column, in which the values of the series are stacked.

    A bar that is far higher than nearly all others is cut, and has its value above.
    """
    totals = [sum(column.values.values()) for column in columns]
    scale = _Scale(_highest(totals), unit, height)
    across = _Across(columns, axis)
    wide, margin = _x(0.8 * across.width), 0.1 * across.width
    shapes, values = [], []
    for column, place, total in zip(columns, across.places, totals, strict=True):
        below, paths = 0.0, Markup()
        part = min(1, scale.ticks[-1] / total) if total else 1
        for number, one in enumerate(series):
            if value := column.values.get(one, 0):
                low, high = _px(scale.y(part * below)), _px(scale.y(part * (below + value)))
                path = f"M{_x(place + margin)} {low}h{wide}V{high}h-{wide}z"
                paths += Markup('<path class="c{}" d="{}"/>').format(number % _COLORS, path)
                below += value
        if part < 1:
            middle = (place + across.width / 2) / across.units
            paths += Markup('<path class="cut" d="M{} 16l{} -8"/>').format(_x(place + margin), wide)
            values.append(
                Markup('<text class="over" x="{}%" y="-4">{}</text>').format(
                    _percent(middle), unit.text(total)
                )
            )
        shapes.append(_hover(across, place, height, _text_of(column, series, unit), paths))
    marks = [*across.marks(height), *values]
    picture = _plot(scale, across.units, shapes, across.labels(), name, marks)
    return (_legend(series) if len(series) > 1 else Markup("")) + picture


def _highest(totals: Sequence[float]) -> float:
    """Return the highest value for a scale: without the few that are far above all others.

    A first full checkpoint would otherwise flatten the incremental ones after it.
    """
    falling = sorted(totals, reverse=True)
    for number in range(len(falling) // _CUT_OF, 0, -1):
        if falling[number - 1] > _FAR * falling[number] > 0:
            return falling[number]
    return falling[0]


def draw_lines(
    columns: Sequence[Column],
    series: Sequence[str],
    unit: Unit,
    name: str,
    axis: Axis = Axis.CHECKPOINTS,
    ahead: Sequence[Ahead] = (),
) -> Markup:
    """Return a line for each series; it has a gap at columns without a value.

    On an axis of time, a line may continue ``ahead`` as a dashed line inside its bounds.
    """
    known = [value for column in columns for value in column.values.values()]
    bounds = [value for each in ahead for _, values in each.points for value in values]
    scale = _Scale(max([*known, *bounds], default=0), unit, HIGH)
    across = _Across(
        columns, axis, until_ms=max((at for e in ahead for at, _ in e.points), default=0)
    )
    shapes = []
    for number, one in enumerate(series):
        color = number % _COLORS
        shapes += [_draw_ahead(each, scale, across, color) for each in ahead if each.series == one]
        path = _line_path(columns, one, scale, across)
        shapes.append(Markup('<path class="line c{}" d="{}"/>').format(color, path))
    shapes += [
        _hover(across, place, HIGH, _text_of(column, series, unit))
        for column, place in zip(columns, across.places, strict=True)
    ]
    return _legend(series) + _plot(scale, across.units, shapes, across.labels(), name)


def _line_path(columns: Sequence[Column], series: str, scale: _Scale, across: _Across) -> str:
    """Return the path of a line, with a gap at columns without a value."""
    path, points = "", zip(columns, across.places, strict=True)
    for is_known, run in groupby(points, lambda point: series in point[0].values):
        if is_known:
            corners = [
                f"{_x(place + across.width / 2)} {_px(scale.y(column.values[series]))}"
                for column, place in run
            ]
            path += f"M{corners[0]}h0" + "".join(f"L{corner}" for corner in corners[1:])
    return path


def _draw_ahead(ahead: Ahead, scale: _Scale, across: _Across, color: int) -> Markup:
    """Return the area between the bounds of a forecast, and its dashed line."""
    value, low, high = (
        [
            f"{_x(across.middle(at_ms))} {_px(scale.y(max(values[which], 0)))}"
            for at_ms, values in ahead.points
        ]
        for which in range(3)
    )
    return Markup(
        '<g class="c{}"><title>{}</title><path class="bounds" d="M{}z"/>'
        '<path class="line ahead" d="M{}"/></g>'
    ).format(color, ahead.text, "L".join([*low, *reversed(high)]), "L".join(value))


def draw_skyline(
    values: Sequence[int], unit: Unit, name: str, text_of: Callable[[range], str] | None = None
) -> Markup:
    """Return the value of each key group from left to right, and a line at their mean.

    If there are too many key groups, each step of the picture is as high as the largest of its key
    groups. A step shows the text of its key groups under the pointer.
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
    if text_of is not None:
        hit = Markup('<path class="hit" d="M{} 0h1v{}h-1z"><title>{}</title></path>')
        shapes += [hit.format(place, LOW, text_of(part)) for place, part in enumerate(parts)]
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


class _Across:
    """The horizontal axis of columns: the left edge of each, their width, and the labels."""

    def __init__(self, columns: Sequence[Column], axis: Axis, until_ms: int = 0) -> None:
        self._columns, self.units = columns, len(columns)
        self._first = min(column.at_ms for column in columns)
        self._last = max(max(column.at_ms for column in columns), until_ms)
        self._is_even = axis is Axis.CHECKPOINTS or self._first == self._last
        if self._is_even:
            self.width, self.places = 1.0, [float(place) for place in range(len(columns))]
            return
        shares = sorted(self._share(column.at_ms) for column in columns)
        gap = min((b - a for a, b in pairwise(shares) if b > a), default=1.0)
        self.width = min(max(gap * self.units, _THIN * self.units), 1.0)
        self.places = [self._share(column.at_ms) * (self.units - self.width) for column in columns]

    def middle(self, at_ms: int) -> float:
        """Return the place of a time on an axis of time."""
        return self._share(at_ms) * (self.units - self.width) + self.width / 2

    def labels(self) -> list[_AxisLabel]:
        """Return evenly spaced labels."""
        is_long = self._last - self._first > _DAY_MS
        part = slice(5, 16) if is_long else slice(11, 19)  # of 2026-01-31 12:00:00 UTC
        if not self._is_even:
            span = self._last - self._first
            times = [self._first + round(n * span / (_LABELS - 1)) for n in range(_LABELS)]
            return [
                _AxisLabel(
                    self.middle(at_ms) / self.units,
                    (when(at_ms)[part],),
                    is_extra=number not in _FEW,
                )
                for number, at_ms in enumerate(times)
            ]
        last = len(self._columns) - 1
        few = min(len(self._columns), _LABELS)
        chosen = [round(number * last / max(few - 1, 1)) for number in range(few)]
        always = {round(number * last / (_LABELS - 1)) for number in _FEW}
        return [
            _AxisLabel(
                (place + 0.5) / len(self._columns),
                (self._columns[place].label, when(self._columns[place].at_ms)[part]),
                is_extra=place not in always,
            )
            for place in chosen
        ]

    def marks(self, height: int) -> Iterable[Markup]:
        """Yield a diamond at the foot of each marked column."""
        for column, place in zip(self._columns, self.places, strict=True):
            if column.mark:
                yield Markup(
                    '<text class="mark" x="{}%" y="{}" dy="4">◆<title>{}</title></text>'
                ).format(_percent((place + self.width / 2) / self.units), height, column.mark)

    def _share(self, at_ms: int) -> float:
        return (at_ms - self._first) / (self._last - self._first)


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
    below = 8 + _LINE_PX * max((len(label.lines) for label in axis), default=0)
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


def _hover(across: _Across, place: float, height: int, text: str, paths: str = "") -> Markup:
    """Return a column with its shapes, which shows a text under the pointer."""
    wide = _x(across.width)
    return Markup('<g><title>{}</title><path class="hit" d="M{} 0h{}v{}h-{}z"/>{}</g>').format(
        text, _x(place), wide, height, wide, paths
    )


def _text_of(column: Column, series: Sequence[str], unit: Unit) -> str:
    values = [f"{one}: {unit.text(column.values[one])}" for one in series if one in column.values]
    return "\n".join([f"checkpoint {column.label}, {when(column.at_ms)}", *values])


def _legend(series: Sequence[str]) -> Markup:
    item = Markup('<li class="c{}">{}</li>')
    items = [item.format(number % _COLORS, one) for number, one in enumerate(series)]
    return Markup('<ul class="legend">{}</ul>').format(_joined(items))


def _joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def _x(value: float) -> str:
    return f"{round(value, 2):g}"


def _px(value: float) -> str:
    return f"{round(value, 1):g}"


def _percent(share: float) -> str:
    return f"{round(100 * share, 2):g}"
