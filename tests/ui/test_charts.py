"""Charts in a real browser: their heights, widths, axes, and values on hover."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from statestore import StateStore
from statestore.cli.drawing import duration, size
from tests.ui.conftest import SCRIPT, Pages, until

pytestmark = pytest.mark.slow

COMPACTED = Path(__file__).parents[1] / "golden" / "lists_v3"
HEIGHTS = """
const heights = {};
for (const mark of document.querySelectorAll("#chart-phases [aria-roledescription=bar]")) {
  const [, id] = mark.ariaLabel.match(/^checkpoint (\\d+), /);
  heights[id] = (heights[id] ?? 0) + mark.getBBox().height;
}
const y = document.querySelector("#chart-phases").view.scale("y");
return [heights, y(0) - y(1)];
"""


def drawn(page: webdriver.Chrome, name: str) -> Any:
    return until(page, lambda _: page.find_elements(By.CSS_SELECTOR, f"#chart-{name} svg"))[0]


def labels(page: webdriver.Chrome, name: str) -> list[str]:
    """Return the texts of the bars of a chart."""
    drawn(page, name)
    marks = page.find_elements(By.CSS_SELECTOR, f"#chart-{name} [aria-roledescription=bar]")
    return [str(mark.get_attribute("aria-label")) for mark in marks]


@pytest.mark.long_cases("False-time", "True-checkpoints")
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
    metrics = {number: store.manifest(number).metrics for number in store.checkpoints()}
    known = {str(number): one for number, one in metrics.items() if one is not None}
    assert is_compacted == any(one.phases.compaction_ms > 0 for one in known.values())
    page.get(f"{pages(store)}/?axis={axis}")
    drawn(page, "phases")
    heights, per_ms = page.execute_script(HEIGHTS)
    assert per_ms > 0
    assert {number: height / per_ms for number, height in heights.items()} == {
        number: pytest.approx(one.took_ms, abs=0.5) for number, one in known.items()
    }
    assert not any("compaction" in label for label in labels(page, "phases"))


def test_written_bytes_and_compacted_bytes_are_parts_of_one_bar(
    page: webdriver.Chrome, pages: Pages, tmp_path: Path
) -> None:
    shutil.copytree(COMPACTED, tmp_path / "golden")
    store = StateStore.open(str(tmp_path / "golden"))
    page.get(pages(store))
    expected = []
    for number in store.checkpoints():
        metrics = store.manifest(number).metrics
        assert metrics is not None
        for part, amount in (("written", metrics.written), ("compacted", metrics.compaction)):
            expected.append(f"checkpoint {number}: {size(amount.size_bytes)} {part}")
    assert sorted(labels(page, "written")) == sorted(expected)


def test_a_mark_shows_its_values_under_the_pointer(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store))
    drawn(page, "phases")
    css = '#chart-phases [aria-label^="checkpoint 2, write"]'
    ActionChains(page).move_to_element(page.find_element(By.CSS_SELECTOR, css)).perform()
    shown = until(
        page, lambda _: page.find_elements(By.CSS_SELECTOR, "#vg-tooltip-element.visible")
    )
    manifest = store.manifest(2)
    assert manifest.metrics is not None
    words = str(shown[0].text).split()
    assert words[:2] == ["checkpoint", "2"]
    assert "write" in words
    assert duration(dict(manifest.metrics.spent)["write"]) in " ".join(words)
    assert str(datetime.fromtimestamp(manifest.created_at_ms / 1000, UTC).year) in shown[0].text


def test_a_name_that_is_a_script_is_text_under_the_pointer(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store))
    drawn(page, "sizes")
    css = f'#chart-sizes [aria-label^="checkpoint 2, totals.{SCRIPT}"]'
    ActionChains(page).move_to_element(page.find_element(By.CSS_SELECTOR, css)).perform()
    tip = "#vg-tooltip-element.visible"
    shown = until(page, lambda _: page.find_elements(By.CSS_SELECTOR, tip))
    assert f"totals.{SCRIPT}" in shown[0].text
    assert page.execute_script("return window.owned") is None


def test_charts_are_as_wide_as_the_page(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    for width in (1400, 390):
        metrics = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        page.get(pages(store))
        for name in ("phases", "written", "shares", "sizes"):
            svg = drawn(page, name)
            whole = page.execute_script("return document.getElementById('main').clientWidth")
            assert whole - 5 <= svg.size["width"] <= whole
            assert whole > width * 0.85


def test_the_axis_has_checkpoints_with_times_or_is_proportional_to_time(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    """A link chooses it, and the address keeps it."""
    page.get(pages(store))
    drawn(page, "phases")
    script = """return [...document.querySelectorAll('#chart-phases .role-axis-label text')]
        .map(tick => [...tick.querySelectorAll('tspan')].map(line => line.textContent))
        .filter(lines => lines.length)"""
    ticks = page.execute_script(script)
    assert [lines[0] for lines in ticks] == ["1", "2", "3"]
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", lines[1]) for lines in ticks)
    page.find_element(By.LINK_TEXT, "time").click()
    until(page, lambda _: page.current_url.endswith("/?axis=time"))
    drawn(page, "phases")
    script = """return [...document.querySelectorAll('#chart-phases [aria-roledescription=bar]')]
        .map(bar => [bar.ariaLabel.match(/\\d+/)[0], bar.getBBox().x])"""
    places = dict(page.execute_script(script))
    times = {n: store.manifest(n).created_at_ms for n in store.checkpoints()}
    share = (times[2] - times[1]) / (times[3] - times[1])
    assert (places["2"] - places["1"]) / (places["3"] - places["1"]) == pytest.approx(
        share, abs=0.01
    )
