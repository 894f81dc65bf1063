"""Draw in text: key groups divided for a parallelism, bars, sparklines, and formatted numbers.

All functions are pure, and draw in Unicode or ASCII. Numbers are formatted as in
:mod:`statestore.display`. Programs get exact numbers from ``--output json``.

::

    key groups     0                                                            127
    parallelism 2  [──────────── 0–63 ────────────][─────────── 64–127 ───────────]
    parallelism 3  [─────── 0–42 ──────][────── 43–85 ───────][────── 86–127 ─────]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from statestore.display import count, counted, duration, size, size_and_files, spans, when
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange

__all__ = [
    "ASCII",
    "UNICODE",
    "Pen",
    "bar",
    "count",
    "counted",
    "duration",
    "key_group_bars",
    "range_text",
    "signed",
    "size",
    "size_and_files",
    "span_text",
    "spans",
    "sparkline",
    "when",
]

NARROWEST = 20


@dataclass(frozen=True)
class Pen:
    """The characters to draw with.

    ``parts`` fill a cell from the left in eighths, and ``heights`` fill it from the bottom. The
    last character of each fills the whole cell.
    """

    line: str
    dash: str
    parts: str
    heights: str


UNICODE = Pen(line="─", dash="–", parts="▏▎▍▌▋▊▉█", heights="▁▂▃▄▅▆▇█")
ASCII = Pen(line="-", dash="-", parts="#", heights="_.-=+*#@")


def key_group_bars(
    max_parallelism: int,
    parallelisms: Sequence[int],
    *,
    width: int,
    pen: Pen,
    others: Sequence[tuple[str, Sequence[KeyGroupRange]]] = (),
) -> list[str]:
    """Return a ruler of key groups, and below it one line per parallelism.

    ``others`` adds lines with a label and ranges that differ from Flink's even ones. A parallelism
    with too many subtasks for ``width`` is summarized in one segment.
    """
    cuts = [
        (f"parallelism {parallelism}", _even(max_parallelism, parallelism))
        for parallelism in parallelisms
    ]
    cuts += others
    labels = ["key groups", *(label for label, _ in cuts)]
    indent = max(map(len, labels)) + 2
    cells = max(width - indent, NARROWEST)
    bars = [_cut(max_parallelism, ranges, cells, pen) for _, ranges in cuts]
    lines = [_ruler(max_parallelism, cells), *bars]
    return [f"{label:<{indent}}{line}" for label, line in zip(labels, lines, strict=True)]


def bar(value: float, maximum: float, *, width: int, pen: Pen) -> str:
    """Return a bar of length ``width`` * value / maximum; it is visible if value > 0."""
    if value <= 0 or maximum <= 0:
        return ""
    steps = len(pen.parts)
    length = max(1, round(value / maximum * width * steps))
    whole, rest = divmod(length, steps)
    return pen.parts[-1] * whole + (pen.parts[rest - 1] if rest else "")


def sparkline(values: Sequence[float], *, width: int, pen: Pen) -> str:
    """Return one character per value, whose height is proportional to it, from 0 to the maximum.

    If there are more values than ``width``, each character is the last of several.
    """
    shown = [values[part.stop - 1] for part in spans(len(values), width)]
    most, levels = max(shown, default=0), len(pen.heights)
    if most <= 0:
        return pen.heights[0] * len(shown)
    return "".join(
        pen.heights[min(max(int(value / most * levels), 0), levels - 1)] for value in shown
    )


def range_text(key_groups: KeyGroupRange | None, pen: Pen) -> str:
    """Format a range of key groups, both ends included: ``0–31``, or ``5`` for one key group.

    Returns an empty text for None.
    """
    if key_groups is None:
        return ""
    return span_text(key_groups.first, key_groups.last, pen)


def signed(value: float, shown: Callable[[int], str]) -> str:
    """Return a rounded number with its sign: ``+1.2 kB``, ``-3``, or ``0``."""
    rounded = round(value)
    sign = "-" if rounded < 0 else "+" if rounded > 0 else ""
    return f"{sign}{shown(abs(rounded))}"


def span_text(first: int, last: int, pen: Pen) -> str:
    """Return ``first–last``, or a single number if both are equal."""
    return str(first) if first == last else f"{first}{pen.dash}{last}"


def _ruler(max_parallelism: int, cells: int) -> str:
    last = str(max_parallelism - 1)
    return "0" if max_parallelism == 1 else f"0{last:>{cells - 1}}"


def _even(max_parallelism: int, parallelism: int) -> Sequence[KeyGroupRange]:
    return KeyGroupAssignment(max_parallelism=max_parallelism, parallelism=parallelism).ranges()


def _cut(max_parallelism: int, ranges: Sequence[KeyGroupRange], cells: int, pen: Pen) -> str:
    edges = [key_groups.first * cells // max_parallelism for key_groups in ranges] + [cells]
    widths = [stop - start for start, stop in pairwise(edges)]
    if min(widths) >= 2:
        drawn = zip(ranges, widths, strict=True)
        return "".join(_segment(range_text(groups, pen), room, pen) for groups, room in drawn)
    smallest, largest = min(map(len, ranges)), max(map(len, ranges))
    plural = "" if largest == 1 else "s"
    each = f"{span_text(smallest, largest, pen)} key group{plural} each"
    return _segment(f"{len(ranges)} subtasks, {each}", cells, pen)


def _segment(label: str, width: int, pen: Pen) -> str:
    room = width - 2
    if len(label) + 2 <= room:
        label = f" {label} "
    elif len(label) > room:
        label = ""
    return f"[{label.center(room, pen.line)}]"
