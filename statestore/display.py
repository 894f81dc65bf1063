"""Render values for notebooks: a title, a small picture and a table, in HTML.

The HTML has no script and no style sheet, and loads nothing from the network. Text and plain bars
use the notebook's own text color, so that they are visible in dark mode as well. All text is
escaped here, and nowhere else. This module also formats numbers for people; the command line uses
the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import islice
from typing import Any, Literal

from statestore.keys.groups import KeyGroupRange

MOST_BARS = 20
"""How many bars a picture has at most."""

Tone = Literal["plain", "good", "changed", "bad"]
_COLORS = {"plain": "currentColor", "good": "#2e9e5b", "changed": "#c88a04", "bad": "#d64545"}

_MOST_ROWS = 20
_MOST_CELL = 80
_MOST_SEGMENTS = 128
_LABEL, _AREA, _TEXT, _HEIGHT = 190, 290, 200, 18
_WIDTH = _LABEL + _AREA + _TEXT
_CHAR = 6.6  # the approximate width of a letter
_UNITS = ("kB", "MB", "GB", "TB", "PB", "EB")
_SPANS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))
_LAST_MS = 253_402_300_799_999  # the end of the year 9999, datetime's limit


@dataclass(frozen=True)
class NotebookBar:
    """A bar: its label, its parts from left to right, and the text next to it.

    A ``bad`` bar has another color, and a mark for readers who cannot see colors.
    """

    label: str
    parts: tuple[tuple[float, Tone], ...]
    text: str
    bad: bool = False


def figure(title: str, *parts: str) -> str:
    """Return a title, followed by the output of other functions of this module."""
    return (
        '<div class="statestore" style="color:inherit;line-height:1.5;margin:.4em 0">'
        f"<div><b>{escape(title)}</b></div>{''.join(parts)}</div>"
    )


def text(sentence: str) -> str:
    """Return a line of text."""
    return f"<div>{escape(sentence)}</div>"


def bars(drawn: Sequence[NotebookBar]) -> str:
    """Return horizontal bars, scaled to the longest bar.

    Bars beyond :data:`MOST_BARS` are only counted. Without bars, the text is empty.
    """
    if not drawn:
        return ""
    shown = drawn[:MOST_BARS]
    most = max(sum(value for value, _ in bar.parts) for bar in shown)
    lines = [_bar(bar, most, index * _HEIGHT) for index, bar in enumerate(shown)]
    left = len(drawn) - len(shown)
    return _svg(lines) + (text(f"… and {count(left)} more") if left else "")


def strips(drawn: Sequence[tuple[str, int, Sequence[KeyGroupRange]]]) -> str:
    """Return the key groups of several assignments below each other, divided by subtask.

    Each assignment has a label, the number of key groups, and the range of each subtask.
    """
    return _svg([_strip(*strip, index * _HEIGHT) for index, strip in enumerate(drawn)])


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an HTML table; a long table is cut after the first rows.

    Returns an empty text if there are no rows. Columns of bytes and of times, ``…_bytes`` and
    ``…_at_ms``, are formatted for people.
    """
    remaining = iter(rows)
    shown = [*islice(remaining, _MOST_ROWS)]
    if not shown:
        return ""
    left = sum(1 for _ in remaining)
    head = "".join(f'<th style="text-align:left">{escape(_heading(name))}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, columns, row))}</tr>" for row in shown)
    more = text(f"… and {count(left)} more") if left else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def spans(number: int, most: int) -> list[range]:
    """Divide ``range(number)`` into at most ``most`` consecutive parts of nearly equal size."""
    parts = min(number, most)
    return [range(number * i // parts, number * (i + 1) // parts) for i in range(parts)]


def count(number: int) -> str:
    """Return a number with thousands separators: ``12,345``."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Return ``1 file``, ``1,200 files``."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def size(size_bytes: int) -> str:
    """Return a size in the decimal unit that leaves up to four digits: ``12.3 MB``."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in _UNITS:
        value /= 1000
        if value < 999.95 or unit == _UNITS[-1]:
            break
    return f"{value:.1f} {unit}"


def size_and_files(size_bytes: int, files: int) -> str:
    """Return ``12.3 MB in 4 files``."""
    return f"{size(size_bytes)} in {counted(files, 'file')}"


def duration(milliseconds: float) -> str:
    """Return a duration in its largest unit, rounded to three significant digits.

    Examples are ``350 ms``, ``5.61 s``, ``4 min`` and ``1,234 d``. A duration that rounds to a
    larger unit has that unit: 59,999 ms are ``1 min``.
    """
    length, _ = _span(milliseconds)
    rounded = _rounded(milliseconds / length) * length
    length, unit = _span(rounded)
    value = rounded / length
    return f"{value:.3g} {unit}" if abs(value) < 1000 else f"{value:,.0f} {unit}"


def when(milliseconds: int) -> str:
    """Format milliseconds since 1970 as ``2026-01-31 12:00:00 UTC``."""
    if milliseconds > _LAST_MS:
        return f"{milliseconds} ms"
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _span(milliseconds: float) -> tuple[int, str]:
    """Return the largest unit that fits into a duration, with its length in milliseconds."""
    return next((span for span in _SPANS if abs(milliseconds) >= span[0]), _SPANS[-1])


def _rounded(value: float) -> float:
    return float(f"{value:.3g}") if abs(value) < 1000 else round(value)


def _svg(lines: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {len(lines) * _HEIGHT}" '
        f'role="img" font-size="12" font-family="inherit" fill="currentColor" '
        f'style="display:block;width:100%;max-width:{_WIDTH}px;margin:.4em 0">'
        f"{''.join(lines)}</svg>"
    )


def _bar(bar: NotebookBar, most: float, top: int) -> str:
    drawn, left = [], float(_LABEL)
    for value, tone in bar.parts:
        if value > 0:
            width = max(value / most * _AREA, 1.0)
            drawn.append(_rect(left, top, width, _COLORS[tone], 0.55 if tone == "plain" else 0.9))
            left += width
    caption = f"✗ {bar.text}" if bar.bad else bar.text
    color = _COLORS["bad" if bar.bad else "plain"]
    place = min(left, _LABEL + _AREA) + 6
    return f"{_label(bar.label, top)}{''.join(drawn)}{_caption(caption, place, top, color)}"


def _strip(label: str, key_groups: int, ranges: Sequence[KeyGroupRange], top: int) -> str:
    drawn = []
    if len(ranges) <= _MOST_SEGMENTS:
        for subtask, own in enumerate(ranges):
            left = _LABEL + _AREA * own.first / key_groups
            width = _AREA * len(own) / key_groups
            inside = f"<title>subtask {subtask}: key groups {own}</title>"
            opacity = 0.55 if subtask % 2 else 0.25
            drawn.append(_rect(left, top, width, "currentColor", opacity, inside))
    else:
        drawn.append(_rect(_LABEL, top, _AREA, "currentColor", 0.25))
    caption = f"key groups 0–{key_groups - 1}"
    return f"{_label(label, top)}{''.join(drawn)}{_caption(caption, _LABEL + _AREA + 6, top)}"


def _rect(left: float, top: int, width: float, color: str, opacity: float, inside: str = "") -> str:
    return (
        f'<rect x="{left:.1f}" y="{top + 2}" width="{width:.1f}" height="{_HEIGHT - 5}" '
        f'fill="{color}" fill-opacity="{opacity}">{inside}</rect>'
    )


def _label(label: str, top: int) -> str:
    shown, whole = escape(_shorten(label, int(_LABEL / _CHAR))), escape(label)
    return f'<text x="0" y="{top + 13}">{shown}<title>{whole}</title></text>'


def _caption(caption: str, left: float, top: int, color: str = "currentColor") -> str:
    shown, whole = escape(_shorten(caption, int((_WIDTH - left) / _CHAR))), escape(caption)
    place = f'x="{left:.1f}" y="{top + 13}" fill="{color}"'
    return f"<text {place}>{shown}<title>{whole}</title></text>"


def _heading(name: str) -> str:
    name = name.removesuffix("_ms").removeprefix("size_")
    return name.replace("_", " ")


def _cell(column: str, value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    side = "right" if is_number else "left"
    return (
        f'<td style="text-align:{side}">{escape(_shorten(_value(column, value), _MOST_CELL))}</td>'
    )


def _value(column: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if not isinstance(value, int) or isinstance(value, bool):
        return str(value)
    if column.endswith("_bytes"):
        return size(value)
    return when(value) if column.endswith("_at_ms") else count(value)


def _shorten(caption: str, most: int) -> str:
    return caption if len(caption) <= most else f"{caption[: most - 1]}…"
