"""Charts of a store: Vega-Lite specifications of plain values, which the page's script draws.

Each mark has a text (``description``) for screen readers, and tooltips with its values. Text has
the color of the page around it, light or dark. The other colors are from Okabe and Ito's palette,
which is suitable for color-blind readers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from statestore.extras import needs_extra

with needs_extra("ui", "the pages of a store"):
    from markupsafe import Markup

__all__ = [
    "HEAT_COLUMNS",
    "Axis",
    "Chart",
    "bars",
    "data_block",
    "flow",
    "heat",
    "lines",
    "phases",
]

Rows = Sequence[Mapping[str, Any]]

HEAT_COLUMNS: Final = 64
COLORS: Final = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#B3A125",
    "#999999",
)
_BYTES: Final = {"format": "~s"}
_CONFIG: Final = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "range": {"category": list(COLORS)},
    "axis": {
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "domainColor": "currentColor",
        "tickColor": "currentColor",
        "gridColor": "currentColor",
        "gridOpacity": 0.15,
    },
    "legend": {"labelColor": "currentColor", "titleColor": "currentColor", "orient": "top"},
    "text": {"fill": "currentColor"},
}
_DAY_MS: Final = 86_400_000


class Axis(StrEnum):
    """The horizontal axis of a chart over checkpoints.

    ``CHECKPOINTS`` has the same distance between all checkpoints, with the id and time of each.
    ``TIME`` is proportional to the time.
    """

    CHECKPOINTS = "checkpoints"
    TIME = "time"


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite specification without a width, and a name for it."""

    name: str
    spec: Mapping[str, Any]


def data_block(chart: Chart) -> Markup:
    """Return a chart as data in HTML; the page's script draws it as wide as the page."""
    text = json.dumps({**chart.spec, "width": "container"}).replace("<", "\\u003c")
    block = '<div class="chart" id="chart-{}"><script type="application/json">{}</script></div>'
    return Markup(block).format(chart.name, Markup(text))


def phases(rows: Rows, order: Sequence[str], marks: Rows, axis: Axis) -> Chart:
    """Return durations stacked by phase.

    The height of a bar is the sum of its phases, so phases must not overlap. Rows have
    ``checkpoint``, ``at``, ``phase``, ``ms``, ``shown`` and ``text``. ``marks`` are savepoints and
    pins with ``checkpoint``, ``at``, ``held`` and ``text``. They are drawn below the bars.
    """
    times = [row["at"] for row in rows]
    ordered = [row | {"order": order.index(row["phase"])} for row in map(dict, rows)]
    stacked = {
        "data": {"values": _with_labels(ordered)},
        "mark": "bar",
        "encoding": {
            "x": _horizontal(axis, times),
            "y": {"field": "ms", "type": "quantitative", "title": "duration, ms"},
            "color": {"field": "phase", "type": "nominal", "sort": list(order), "title": "phase"},
            "order": {"field": "order"},
            **_hover("phase", "shown", shown="duration"),
        },
    }
    held = {
        "data": {"values": _with_labels(marks)},
        "mark": {
            "type": "point",
            "shape": "diamond",
            "filled": True,
            "size": 90,
            "color": "#D55E00",
        },
        "encoding": {
            "x": _horizontal(axis, times),
            "y": {"datum": 0},
            **_hover("held", held="held by"),
        },
    }
    layers = [stacked, held] if marks else [stacked]
    return Chart("phases", _framed({"height": 220, "layer": layers}))


def bars(name: str, rows: Rows, title: str, axis: Axis, *, is_share: bool = False) -> Chart:
    """Return a bar for each checkpoint.

    Rows have ``checkpoint``, ``at``, ``value``, ``shown`` and ``text``. If they have a ``part``,
    the parts of a checkpoint are stacked.
    """
    has_parts = any("part" in row for row in rows)
    parts = {"color": {"field": "part", "type": "nominal", "sort": None, "title": None}}
    return Chart(
        name,
        _framed(
            {
                "height": 130,
                "data": {"values": _with_labels(rows)},
                "mark": {"type": "bar", "color": COLORS[2]},
                "encoding": {
                    "x": _horizontal(axis, [row["at"] for row in rows]),
                    "y": {
                        "field": "value",
                        "type": "quantitative",
                        "title": title,
                        "axis": {"format": "~%"} if is_share else _BYTES,
                    },
                    **(parts if has_parts else {}),
                    **_hover(*(["part"] if has_parts else []), "shown", shown=title),
                },
            }
        ),
    )


def lines(
    name: str,
    rows: Rows,
    title: str,
    axis: Axis,
    *,
    ahead: Rows = (),
    number_format: str = "~s",
) -> Chart:
    """Return a line for each state.

    Rows have ``checkpoint``, ``at``, ``state``, ``value``, ``shown`` and ``text``. Rows of
    ``ahead`` continue a line with a dashed one inside an area: they have ``at``, ``state``,
    ``value``, ``low``, ``high`` and ``text``, and require the axis of time.
    """
    x = _horizontal(axis, [row["at"] for row in (*rows, *ahead)])
    y = {"type": "quantitative", "title": title, "axis": {"format": number_format}}
    color = {"field": "state", "type": "nominal", "sort": None, "title": "state"}
    known = {
        "data": {"values": _with_labels(rows)},
        "mark": {"type": "line", "point": {"size": 50}},
        "encoding": {
            "x": x,
            "y": {"field": "value", **y},
            "color": color,
            **_hover("state", "shown", shown=title),
        },
    }
    layers = [known, *(_ahead_layers(ahead, x, y, color) if ahead else [])]
    spec = {"layer": layers} if ahead else known
    return Chart(name, _framed({"height": 200, **spec}))


def _ahead_layers(
    ahead: Rows, x: Mapping[str, Any], y: Mapping[str, Any], color: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the layers of an area and a dashed line."""
    values = {"values": list(map(dict, ahead))}
    text = {"description": {"field": "text"}, "tooltip": {"field": "text"}}
    area = {
        "data": values,
        "mark": {"type": "area", "opacity": 0.15},
        "encoding": {
            "x": x,
            "y": {"field": "low", **y},
            "y2": {"field": "high"},
            "color": color,
            **text,
        },
    }
    dashed = {
        "data": values,
        "mark": {"type": "line", "strokeDash": [5, 4]},
        "encoding": {"x": x, "y": {"field": "value", **y}, "color": color, **text},
    }
    return [area, dashed]


def heat(rows: Rows, what: str) -> Chart:
    """Return a cell for each row of ``column``, ``line``, ``value`` and ``text``."""
    lines = max((row["line"] for row in rows), default=0) + 1
    return Chart(
        f"heat-{what}",
        _framed(
            {
                "height": max(14 * lines, 14),
                "data": {"values": list(map(dict, rows))},
                "mark": {"type": "rect", "stroke": "currentColor", "strokeOpacity": 0.1},
                "encoding": {
                    "x": {"field": "column", "type": "ordinal", "axis": None},
                    "y": {"field": "line", "type": "ordinal", "axis": None},
                    "color": {
                        "field": "value",
                        "type": "quantitative",
                        "title": what,
                        "scale": {"scheme": "viridis"},
                        "legend": {"format": "~s", "direction": "horizontal"},
                    },
                    "description": {"field": "text"},
                    "tooltip": {"field": "text"},
                },
            }
        ),
    )


def flow(name: str, bands: Rows, labels: Rows, height: int) -> Chart:
    """Return a chart of bands from left to right.

    Rows of ``bands`` have ``band``, ``x`` (0 to 1), ``low``, ``high``, ``moves`` and ``text``. Rows
    of ``labels`` have ``x``, ``y`` and ``label``.
    """
    x = {"field": "x", "type": "quantitative", "axis": None, "scale": {"domain": [-0.12, 1.12]}}
    y: dict[str, Any] = {"type": "quantitative", "axis": None, "scale": {"reverse": True}}
    areas = {
        "data": {"values": list(map(dict, bands))},
        "mark": {"type": "area", "opacity": 0.75, "stroke": "currentColor", "strokeWidth": 0.3},
        "encoding": {
            "x": x,
            "y": {"field": "low", **y},
            "y2": {"field": "high"},
            "detail": {"field": "band"},
            "color": {
                "field": "moves",
                "title": None,
                "scale": {"domain": ["stays", "moves"], "range": [COLORS[0], COLORS[1]]},
            },
            "description": {"field": "text"},
            "tooltip": {"field": "text"},
        },
    }
    names = {
        "data": {"values": list(map(dict, labels))},
        "mark": {"type": "text", "fontSize": 11},
        "encoding": {"x": x, "y": {"field": "y", **y}, "text": {"field": "label"}},
    }
    return Chart(name, _framed({"height": height, "layer": [areas, names]}))


def _with_labels(rows: Rows) -> list[dict[str, Any]]:
    """Return rows with their id and time in one value, from which the axis makes two lines."""
    return [{**row, "label": f"{row['checkpoint']}|{row['at']}"} for row in rows]


def _horizontal(axis: Axis, times: Sequence[int]) -> dict[str, Any]:
    """Return the encoding of the horizontal axis; labels are in the reader's time zone."""
    is_long = bool(times) and max(times) - min(times) > _DAY_MS
    form = "%b %d, %H:%M" if is_long else "%H:%M:%S"
    if axis is Axis.TIME:
        marks = {"format": form, "labelOverlap": True}
        return {"field": "at", "type": "temporal", "title": "time", "axis": marks}
    time = f"timeFormat(toNumber(split(datum.value, '|')[1]), '{form}')"
    return {
        "field": "label",
        "type": "ordinal",
        "sort": None,
        "title": "checkpoint, and its time",
        "axis": {
            "labelAngle": 0,
            "labelOverlap": True,
            "labelExpr": f"[split(datum.value, '|')[0], {time}]",
        },
    }


def _hover(*names: str, **titles: str) -> dict[str, Any]:
    """Return the texts of a mark: its description, and its checkpoint, time and fields on hover."""
    time = {"field": "at", "type": "temporal", "title": "time", "format": "%Y-%m-%d %H:%M:%S"}
    own = [{"field": name, "type": "nominal", "title": titles.get(name, name)} for name in names]
    checkpoint = {"field": "checkpoint", "type": "nominal", "title": "checkpoint"}
    return {"description": {"field": "text"}, "tooltip": [checkpoint, time, *own]}


def _framed(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**spec, "autosize": {"type": "fit-x", "contains": "padding"}, "config": _CONFIG}
