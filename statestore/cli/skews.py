"""Even and balanced ranges side by side, a bar for each subtask, as text."""

from __future__ import annotations

from collections.abc import Sequence

from statestore.cli.drawing import bar, span_text, spans
from statestore.cli.output import Page
from statestore.cli.units import count, size
from statestore.restore.plan import Weight
from statestore.restore.skew import RangeSkew

__all__ = ["write_skew"]

MOST_LINES = 64
NARROWEST_BAR, WIDEST_BAR = 8, 30
GAP = 2


def write_skew(page: Page, skew: RangeSkew) -> None:
    """Write the subtasks of an operator with even ranges, and beside them with balanced ones.

    On a terminal a line stands for several subtasks when there are many, for the largest of them.
    """
    number = len(skew.even)
    parts = spans(number, MOST_LINES if page.terminal else number)
    even = [max(skew.even[part.start : part.stop]) for part in parts]
    other = [max(skew.balanced[part.start : part.stop]) for part in parts]
    names = [span_text(part.start, part.stop - 1, page.pen) for part in parts]
    numbers = [[_amount(skew.by, value) for value in side] for side in (even, other)]
    titles = ("subtask", f"even {skew.by.value}", f"balanced {skew.by.value}")
    widths = [
        max(len(title), *map(len, cells))
        for title, cells in zip(titles, (names, *numbers), strict=True)
    ]
    room = (page.width - sum(widths) - 4 * GAP) // 2
    width = min(max(room, NARROWEST_BAR), WIDEST_BAR)
    most = max(*even, *other)
    page.line()
    page.line(f"operator {skew.uid}: ranges by number of key groups, and by {skew.by.value}")
    page.line(_line(titles, widths, (" " * width, "")), "bold")
    for name, left, right, one, two in zip(names, *numbers, even, other, strict=True):
        bars = [f"{bar(value, most, width=width, pen=page.pen):<{width}}" for value in (one, two)]
        page.line(_line((name, left, right), widths, bars))
    page.line(
        f"largest: {_amount(skew.by, max(skew.even))} even, {skew.ratio(skew.even):.2f} times the "
        f"mean; {_amount(skew.by, max(skew.balanced))} balanced, "
        f"{skew.ratio(skew.balanced):.2f} times: {skew.gain:.2f} times as much even"
    )


def _line(cells: Sequence[str], widths: Sequence[int], bars: Sequence[str]) -> str:
    name, left, right = (f"{one:>{width}}" for one, width in zip(cells, widths, strict=True))
    gap = " " * GAP
    return gap.join((name, left, bars[0], right, bars[1])).rstrip()


def _amount(by: Weight, value: int) -> str:
    return size(value) if by is Weight.BYTES else count(value)
