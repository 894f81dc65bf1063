"""Charts in a real browser: their heights, widths, axes, and values on hover."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from statestore import StateStore
from statestore.cli.drawing import duration, size, when
from tests.ui.conftest import SCRIPT, Pages, titles, until

pytestmark = pytest.mark.slow

COMPACTED = Path(__file__).parents[1] / "golden" / "lists_v3"
HEIGHTS = """
// The height of each column's parts, and the height of a millisecond, in pixels.
const chart = document.querySelector("#chart-phases");
const heights = {};
for (const column of chart.querySelectorAll("g:has(title)")) {
  const [, id] = column.querySelector("title").textContent.match(/^checkpoint (\\d+), /);
  const parts = [...column.querySelectorAll("path:not(.hit)")];
  heights[id] = parts.reduce((sum, part) => sum + part.getBBox().height, 0);
}
const ticks = [...chart.querySelectorAll(".tick")].map(tick => Number(tick.getAttribute("y")));
return [heights, ticks[0] - ticks[1]];
"""


@pytest.mark.long_cases("False-time", "True-checkpoints", "False-checkpoints")
@pytest.mark.parametrize("axis", ["checkpoints", "time"])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_the_height_of_a_bar_is_the_duration(
    page: webdriver.Chrome,
    pages: Pages,
    store: StateStore,
    tmp_path: Path,
    is_compacted: bool,
    axis: str,
) -> None:
    """Compaction, which runs next to the other phases, adds nothing."""
    if is_compacted:
        shutil.copytree(COMPACTED, tmp_path / "golden")
        store = StateStore.open(str(tmp_path / "golden"))
    metrics = {number: store.checkpoint(number).manifest.metrics for number in store.checkpoints()}
    known = {str(number): one for number, one in metrics.items() if one is not None}
    assert is_compacted == any(one.phases.compaction_ms > 0 for one in known.values())
    page.get(f"{pages(store)}/?axis={axis}")
    heights, tick_px = page.execute_script(HEIGHTS)
    highest = max(heights.values())
    longest = max(one.took_ms for one in known.values())
    assert tick_px > 0
    assert {number: height / highest for number, height in heights.items()} == {
        number: pytest.approx(one.took_ms / longest, abs=0.02) for number, one in known.items()
    }
    assert not any("compaction" in title for title in titles(page, "phases"))


def test_written_bytes_and_compacted_bytes_are_parts_of_one_bar(
    page: webdriver.Chrome, pages: Pages, tmp_path: Path
) -> None:
    shutil.copytree(COMPACTED, tmp_path / "golden")
    store = StateStore.open(str(tmp_path / "golden"))
    page.get(pages(store))
    expected = []
    for number in store.checkpoints():
        manifest = store.checkpoint(number).manifest
        assert manifest.metrics is not None
        parts = (("written", manifest.metrics.written), ("compacted", manifest.metrics.compaction))
        values = [f"{part}: {size(amount.size_bytes)}" for part, amount in parts]
        taken = when(manifest.created_at_ms)
        expected.append("\n".join([f"checkpoint {number}, {taken}", *values]))
    assert titles(page, "written") == expected


def test_a_column_shows_its_values_under_the_pointer(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    """The pointer in the middle of a column is over the element with its values."""
    page.get(pages(store))
    script = """
    const hit = document.querySelectorAll("#chart-phases .hit")[1];
    hit.scrollIntoView({block: "center"});
    const {left, top, width, height} = hit.getBoundingClientRect();
    const under = document.elementFromPoint(left + width / 2, top + height / 2);
    return under.closest("g").querySelector("title").textContent
    """
    shown = page.execute_script(script)
    manifest = store.checkpoint(2).manifest
    assert manifest.metrics is not None
    assert shown.startswith(f"checkpoint 2, {when(manifest.created_at_ms)}\n")
    assert f"\nwrite: {duration(dict(manifest.metrics.spent)['write'])}\n" in shown


def test_a_name_that_is_a_script_is_text(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store))
    assert f"\ntotals.{SCRIPT}: " in titles(page, "sizes")[1]
    assert page.execute_script("return window.owned") is None


def test_charts_are_as_wide_as_the_page(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    for width in (1400, 390):
        metrics = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        page.get(pages(store))
        for name in ("phases", "written", "shares", "sizes"):
            plot = page.find_element(By.CSS_SELECTOR, f"#chart-{name} .plot")
            whole = page.execute_script("return document.getElementById('main').clientWidth")
            assert whole - 5 <= plot.size["width"] <= whole
            assert whole > width * 0.85


def test_the_axis_has_checkpoints_with_times_or_is_proportional_to_time(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    """A link chooses it, and the address keeps it."""
    page.get(pages(store))
    labels = page.find_elements(By.CSS_SELECTOR, "#chart-phases .label")
    shown = [label.text for label in labels]
    assert shown[::2] == ["1", "2", "3"]
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", label) for label in shown[1::2])
    page.find_element(By.LINK_TEXT, "time").click()
    until(page, lambda _: page.current_url.endswith("/?axis=time#charts"))
    script = """return [...document.querySelectorAll('#chart-phases .hit')]
        .map(column => column.getBoundingClientRect().x)"""
    first, second, third = page.execute_script(script)
    times = {n: store.checkpoint(n).manifest.created_at_ms for n in store.checkpoints()}
    share = (times[2] - times[1]) / (times[3] - times[1])
    assert (second - first) / (third - first) == pytest.approx(share, abs=0.02)
