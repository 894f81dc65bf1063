"""Charts without a script: each shape has the height of its value, and the text of its values."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from statestore.ui.charts import (
    BYTES,
    DURATION,
    NUMBER,
    SHARE,
    Ahead,
    Axis,
    Band,
    Column,
    Flow,
    Label,
    Unit,
    draw_bars,
    draw_flow,
    draw_lines,
    draw_skyline,
)
from tests.ui.conftest import SCRIPT

NUMBERS = re.compile(r"-?[\d.]+")


NOON_MS = 1_769_860_800_000  # 2026-01-31 12:00:00 UTC


def column(number: int, **values: float) -> Column:
    return Column(str(number), NOON_MS, values)


def parsed(html: str) -> ET.Element:
    return ET.fromstring(f"<html>{html}</html>")


def texts(html: str, of: str) -> list[str]:
    return [str(text.text) for text in parsed(html).iter("text") if text.get("class") == of]


def ticks(html: str) -> list[tuple[str, float]]:
    """Return the texts of the vertical axis, each with its place."""
    found = [text for text in parsed(html).iter("text") if text.get("class") == "tick"]
    return [(str(text.text), float(text.get("y", ""))) for text in found]


def test_the_height_of_a_bar_is_its_value() -> None:
    columns = [column(1, write=30, put=10), column(2, write=60), column(3)]
    html = draw_bars(columns, ("write", "put"), NUMBER, "name")
    places = dict(ticks(html))
    pixels = (places["0"] - places["20"]) / 20
    bars = {}
    for group in parsed(html).iter("g"):
        title, _, *paths = group
        checkpoint = str(title.text).splitlines()[0]
        bars[checkpoint] = {
            path.get("class"): (float(low) - float(high)) / pixels
            for path in paths
            for _, low, _, high, _ in [NUMBERS.findall(path.get("d", ""))]
        }
    assert bars == {
        "checkpoint 1, 2026-01-31 12:00:00 UTC": {"c0": approx(30), "c1": approx(10)},
        "checkpoint 2, 2026-01-31 12:00:00 UTC": {"c0": approx(60)},
        "checkpoint 3, 2026-01-31 12:00:00 UTC": {},
    }


def test_a_bar_far_above_all_others_is_cut_and_has_its_value() -> None:
    """A first full checkpoint does not flatten the incremental ones after it."""
    columns = [column(n, write=value) for n, value in enumerate([900, 10, 14, 16, 12])]
    html = draw_bars(columns, ("write",), NUMBER, "name")
    places = dict(ticks(html))
    assert [*places] == ["0", "5", "10", "15", "20"]
    bars = [path for path in parsed(html).iter("path") if path.get("class") == "c0"]
    tops = [float(NUMBERS.findall(bar.get("d", ""))[3]) for bar in bars]
    assert (tops[0], tops[1]) == (places["20"], places["10"])
    assert texts(html, "over") == ["900"]
    assert len([path for path in parsed(html).iter("path") if path.get("class") == "cut"]) == 1


@pytest.mark.parametrize("values", [[900, 10, 14], [900, 800, 10, 14, 12], [30, 10, 14, 16, 12]])
def test_a_bar_is_not_cut_if_others_are_nearly_as_high_or_few(values: list[int]) -> None:
    columns = [column(n, write=value) for n, value in enumerate(values)]
    assert texts(draw_bars(columns, ("write",), NUMBER, "name"), "over") == []


def approx(value: float) -> Any:
    """Return a value that equals what is up to a pixel away."""
    return pytest.approx(value, abs=0.5)


def test_a_column_has_its_values_as_text() -> None:
    html = draw_bars([column(7, write=1500, put=3)], ("write", "put"), DURATION, "name")
    (title,) = parsed(html).iter("title")
    assert title.text == "checkpoint 7, 2026-01-31 12:00:00 UTC\nwrite: 1.5 s\nput: 3 ms"


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [
        (BYTES, 0, ["0 B", "1 B"]),
        (BYTES, 3, ["0 B", "1 B", "2 B", "3 B"]),
        (BYTES, 1_400_000, ["0 B", "500.0 kB", "1.0 MB", "1.5 MB"]),
        (DURATION, 95_000, ["0 ms", "30 s", "1 min", "1.5 min", "2 min"]),
        (SHARE, 0.0042, ["0 %", "0.1 %", "0.2 %", "0.3 %", "0.4 %", "0.5 %"]),
        (SHARE, 1, ["0 %", "50 %", "100 %"]),
    ],
)
def test_the_vertical_axis_has_round_values(unit: Unit, value: float, expected: list[str]) -> None:
    html = draw_bars([column(1, all=value)], ("all",), unit, "name")
    assert [text for text, _ in ticks(html)] == expected


@pytest.mark.parametrize("number", [1, 2, 3, 8, 9, 10, 50])
def test_the_horizontal_axis_has_few_labels_and_fewer_on_a_phone(number: int) -> None:
    html = draw_bars([column(n, all=1) for n in range(number)], ("all",), NUMBER, "name")
    always, extra = ([text for text in texts(html, of) if text != "12:00:00"] for of in KINDS)
    assert len(always) == min(number, 3)
    assert len(always) + len(extra) == min(number, 9)
    assert {"0", str(number - 1)} <= {*always}


KINDS = ("label", "label extra")


def test_a_line_goes_through_its_values_and_has_gaps() -> None:
    columns = [column(1, a=0, b=5), column(2, a=10), column(3, a=20, b=20)]
    html = draw_lines(columns, ("a", "b"), NUMBER, "name")
    places = dict(ticks(html))
    drawn = [path for path in parsed(html).iter("path") if "line" in path.get("class", "")]
    a, b = (re.findall(r"([ML])([\d.]+) ([\d.]+)", path.get("d", "")) for path in drawn)
    assert [(kind, float(x), float(y)) for kind, x, y in a] == [
        ("M", 0.5, places["0"]),
        ("L", 1.5, places["10"]),
        ("L", 2.5, places["20"]),
    ]
    assert [(kind, float(x), float(y)) for kind, x, y in b] == [
        ("M", 0.5, places["5"]),
        ("M", 2.5, places["20"]),
    ]


def test_a_step_of_many_key_groups_is_as_high_as_the_largest_of_them() -> None:
    values = [1] * 1024
    values[700] = 9
    html = draw_skyline(values, NUMBER, "name", lambda part: f"{part[0]}–{part[-1]}")
    places = dict(ticks(html))
    line = next(path for path in parsed(html).iter("path") if path.get("class") == "c0")
    heights = [float(height) for height in re.findall(r"V([\d.]+)h1", line.get("d", ""))]
    assert len(heights) == 128
    assert [step for step, height in enumerate(heights) if height != heights[0]] == [700 // 8]
    assert places["10"] < heights[700 // 8] < places["5"]
    assert texts(html, "label") == ["0", "511", "1,023"]
    titles = [str(title.text) for title in parsed(html).iter("title")]
    assert (len(titles), titles[87]) == (128, "696–703")
    assert "<title>" not in draw_skyline(values, NUMBER, "name")


HOUR_MS = 3_600_000


def test_an_axis_of_time_is_proportional_to_the_time() -> None:
    hours = (0, 1, 8)
    columns = [Column(str(hour), NOON_MS + hour * HOUR_MS, {"all": 1}) for hour in hours]
    html = draw_bars(columns, ("all",), NUMBER, "name", axis=Axis.TIME)
    bars = [path for path in parsed(html).iter("path") if path.get("class") == "c0"]
    left = [float(NUMBERS.findall(bar.get("d", ""))[0]) for bar in bars]
    assert (left[1] - left[0]) / (left[2] - left[0]) == pytest.approx(1 / 8, abs=0.01)
    shown = [*texts(html, "label"), *texts(html, "label extra")]
    assert sorted(shown) == [f"{12 + hour}:00:00" for hour in range(9)]


def test_a_line_continues_ahead_inside_its_bounds() -> None:
    columns = [Column("1", NOON_MS, {"a": 0}), Column("2", NOON_MS + 3 * HOUR_MS, {"a": 30})]
    ends = (
        (NOON_MS + 3 * HOUR_MS, (30.0, 30.0, 30.0)),
        (NOON_MS + 4 * HOUR_MS, (40.0, 20.0, 60.0)),
    )
    html = draw_lines(columns, ("a",), NUMBER, "name", Axis.TIME, [Ahead("a", ends, "about 40")])
    places = dict(ticks(html))
    by_class = {path.get("class"): path.get("d", "") for path in parsed(html).iter("path")}
    line, ahead = (
        [float(number) for number in NUMBERS.findall(by_class[name])]
        for name in ("line c0", "line ahead")
    )
    assert ahead[:2] == line[-2:]
    assert ahead[3] == pytest.approx(places["40"])
    assert (ahead[2] - line[0]) / (ahead[0] - line[0]) == pytest.approx(4 / 3, abs=0.02)
    low, high = re.findall(r"L[\d.]+ ([\d.]+)", by_class["bounds"])[:2]
    assert float(low) == pytest.approx(places["20"])
    assert float(high) == pytest.approx(places["60"])
    assert "about 40" in html


def test_a_flow_has_a_band_for_each_move() -> None:
    flow = Flow(
        uids=("u",),
        key_groups=4,
        old=(Label(0, 0.25), Label(1, 0.75)),
        new=(Label(0, 0.5),),
        bands=(
            Band(0, 0, (0, 0.35), (0, 0.5), "key groups 0–1, 5 B: subtask 0 to subtask 0"),
            Band(1, 0, (0.65, 1), (0.5, 1), "key groups 2–3, 6 B: subtask 1 to subtask 0"),
        ),
        can_be_drawn=True,
    )
    html = draw_flow(flow, "name")
    bands = [(path.get("class"), path[0].text) for path in parsed(html).iter("path")]
    assert bands == [
        ("stays", "key groups 0–1, 5 B: subtask 0 to subtask 0"),
        ("moves", "key groups 2–3, 6 B: subtask 1 to subtask 0"),
    ]
    assert (texts(html, "left"), texts(html, "right")) == (["0", "1"], ["0"])


def test_names_are_escaped() -> None:
    html = draw_bars([column(1, **{SCRIPT: 1})], (SCRIPT, "other"), NUMBER, SCRIPT)
    html += draw_lines([column(1, **{SCRIPT: 1})], (SCRIPT,), NUMBER, SCRIPT)
    assert "<script" not in html
    assert SCRIPT in {item.text for item in parsed(html).iter("li")}
