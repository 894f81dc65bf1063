"""Charts of a store: Vega-Lite specifications of plain values, rendered as SVG.

Each mark has a text (``description``) for screen readers, which the page also shows as a tooltip.
Text has the color of the page around it, light or dark. The other colors are from Okabe and Ito's
palette, which is suitable for color-blind readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from statestore.extras import needs_extra

with needs_extra("ui", "the pages of a store"):
    import vl_convert
    from markupsafe import Markup

__all__ = ["HEAT_COLUMNS", "bars", "flow", "heat", "lines", "phases"]

Rows = Sequence[Mapping[str, Any]]

WIDTH: Final = 720
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
_CHECKPOINT: Final = {
    "field": "checkpoint",
    "type": "ordinal",
    "axis": {"title": "checkpoint", "labelAngle": 0, "labelOverlap": True},
}


def phases(rows: Rows, order: Sequence[str], marks: Rows) -> Markup:
    """Return durations stacked by phase: rows of ``checkpoint``, ``phase``, ``ms`` and ``text``.

    The height of a bar is the sum of its phases, so phases must not overlap. ``marks`` are
    savepoints and pins with ``checkpoint`` and ``text``; they are drawn below the bars.
    """
    ordered = [row | {"at": order.index(row["phase"])} for row in map(dict, rows)]
    stacked = {
        "data": {"values": ordered},
        "mark": "bar",
        "encoding": {
            "x": _CHECKPOINT,
            "y": {"field": "ms", "type": "quantitative", "title": "duration, ms"},
            "color": {"field": "phase", "type": "nominal", "sort": list(order), "title": "phase"},
            "order": {"field": "at"},
            "description": {"field": "text"},
        },
    }
    held = {
        "data": {"values": list(map(dict, marks))},
        "mark": {
            "type": "point",
            "shape": "diamond",
            "filled": True,
            "size": 90,
            "color": "#D55E00",
        },
        "encoding": {"x": _CHECKPOINT, "y": {"datum": 0}, "description": {"field": "text"}},
    }
    return _svg({"height": 200, "layer": [stacked, held] if marks else [stacked]})


def bars(rows: Rows, title: str, *, is_share: bool = False) -> Markup:
    """Return one bar for each row of ``checkpoint``, ``value`` and ``text``."""
    axis = {"format": "~%"} if is_share else _BYTES
    return _svg(
        {
            "height": 110,
            "data": {"values": list(map(dict, rows))},
            "mark": {"type": "bar", "color": COLORS[2 if is_share else 0]},
            "encoding": {
                "x": _CHECKPOINT,
                "y": {"field": "value", "type": "quantitative", "title": title, "axis": axis},
                "description": {"field": "text"},
            },
        }
    )


def lines(rows: Rows) -> Markup:
    """Return a line for each state: rows of ``checkpoint``, ``state``, ``bytes`` and ``text``."""
    return _svg(
        {
            "height": 180,
            "data": {"values": list(map(dict, rows))},
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": _CHECKPOINT,
                "y": {"field": "bytes", "type": "quantitative", "title": "bytes", "axis": _BYTES},
                "color": {"field": "state", "title": "state"},
                "description": {"field": "text"},
            },
        }
    )


def heat(rows: Rows, what: str) -> Markup:
    """Return a cell for each row of ``column``, ``line``, ``value`` and ``text``."""
    lines = max((row["line"] for row in rows), default=0) + 1
    return _svg(
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
            },
        }
    )


def flow(bands: Rows, labels: Rows, height: int) -> Markup:
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
        },
    }
    names = {
        "data": {"values": list(map(dict, labels))},
        "mark": {"type": "text", "fontSize": 11},
        "encoding": {"x": x, "y": {"field": "y", **y}, "text": {"field": "label"}},
    }
    return _svg({"height": height, "layer": [areas, names]})


def _svg(spec: Mapping[str, Any]) -> Markup:
    # Vega escapes all text in the specification.
    return Markup(vl_convert.vegalite_to_svg({"width": WIDTH, **spec, "config": _CONFIG}))
