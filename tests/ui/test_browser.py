"""The pages in a real browser: they show the library's results, without errors in the console.

Screenshots of each view stay in build/screenshots.
"""

from __future__ import annotations

import re

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from statestore import StateStore
from statestore.cli.drawing import count, duration, size
from tests.ui.conftest import SCRIPT, SHOTS, Pages, cells, take, text, titles, until

pytestmark = pytest.mark.slow

VIEWS = {
    "timeline": "/",
    "trends": "/trends?size=1GB&restore_time=10m",
    "checkpoint": "/checkpoint/latest",
    "state": "/checkpoint/latest/state?operator=totals&state=total",
    "rescale": "/checkpoint/3/rescale?parallelism=5",
    "key": "/checkpoint/3/key?key=u7",
    "sql": "/checkpoint/3/sql?sql=SELECT%20count(*)%20AS%20n%20FROM%20total",
    "compare": "/compare?a=2&b=3",
}


@pytest.mark.long
@pytest.mark.parametrize("view", VIEWS)
def test_each_view_in_light_and_dark_and_on_a_phone(
    page: webdriver.Chrome, pages: Pages, store: StateStore, view: str
) -> None:
    """No line is cut off at 390 pixels, and no value of the store runs as a script."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    address = pages(store) + VIEWS[view]
    for scheme, width in (("light", 1400), ("dark", 1400), ("light", 390)):
        page.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        metrics = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        page.get(address)
        if view == "sql":
            page.find_element(By.CSS_SELECTOR, "#sql button").click()
            until(page, lambda page: cells(page, "#answer") == [["104"]])
        assert text(page, "h1")
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
        assert page.execute_script("return window.owned") is None
        page.save_screenshot(str(SHOTS / f"{view}-{scheme}-{width}.png"))
        background = "return getComputedStyle(document.documentElement).backgroundColor"
        is_light = page.execute_script(background) == "rgb(255, 255, 255)"
        assert is_light == (scheme == "light")


def test_the_page_lists_the_checkpoints_of_the_store(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store))
    rows = cells(page, "#checkpoints")
    manifests = [store.checkpoint(number).manifest for number in reversed(store.checkpoints())]
    assert [[row[0], row[4], row[5], row[6]] for row in rows] == [
        [
            str(manifest.checkpoint_id),
            count(manifest.rows),
            size(manifest.size_bytes),
            count(manifest.files),
        ]
        for manifest in manifests
    ]
    assert [row[9] for row in rows] == ["full"] * 3
    assert [row[10] for row in rows] == [manifest.writer.name for manifest in manifests]
    assert [row[11] for row in rows] == ["", "", "savepoint before"]
    newest = manifests[0]
    status = text(page, "dl.status")
    for part in ("none known", "3 checkpoints can be read", "before (1)", size(newest.size_bytes)):
        assert part in status
    assert re.search(r"^3 [0-9]+ (s|min|h) ago$", status, re.MULTILINE)
    spoken = "\n".join(titles(page, "phases"))
    written = manifests[0].metrics
    assert written is not None
    assert f"write: {duration(dict(written.spent)['write'])}" in spoken
    assert "savepoint before" in spoken


def test_a_new_checkpoint_appears_without_a_reload(
    page: webdriver.Chrome, pages: Pages, own_store: StateStore
) -> None:
    page.get(pages(own_store))
    assert len(cells(page, "#checkpoints")) == 3
    # The page learns the newest checkpoint with its first request, which precedes the second.
    asked = "return performance.getEntriesByType('resource').map(one => one.name)"
    until(
        page,
        lambda _: sum(one.endswith("/newest") for one in page.execute_script(asked)) > 1,
    )
    take(own_store, 4)
    until(page, lambda _: len(cells(page, "#checkpoints")) == 4)
    assert text(page, "#live") == "Checkpoint 4 is new."


def test_a_checkpoint_its_graph_and_its_states(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store) + "/checkpoint/latest")
    manifest = store.checkpoint().manifest
    assert text(page, "#holds").startswith(f"{count(manifest.rows)} rows in files")
    boxes = page.find_elements(By.CSS_SELECTOR, ".graph g")
    sizes = sum(entry.size_bytes for entry in manifest.keyed)
    source = str(boxes[0].get_attribute("aria-label"))
    assert source.startswith("orders: uid source, parallelism 3, 2 states")
    assert boxes[1].get_attribute("aria-label") == (
        f"Totals by user: uid totals, parallelism 3 of 128, 2 states, {size(sizes)}"
    )
    arrows = page.find_elements(By.CSS_SELECTOR, ".graph .arrow")
    assert [arrow.get_attribute("aria-label") for arrow in arrows] == ["hash", "chained, forward"]
    assert [row[:4] for row in cells(page, "#states")] == [
        [one.state.uid, one.state.name, row[2], count(one.rows)]
        for one, row in zip(manifest.entries, cells(page, "#states"), strict=True)
    ]
    shares = [float(row[5].strip("<% ")) for row in cells(page, "#states")]
    assert max(shares) > 25
    assert sum(shares) == pytest.approx(100, abs=4)
    widths = (
        "return [...document.querySelectorAll('.share rect')].map(bar => bar.width.baseVal.value)"
    )
    assert page.execute_script(widths) == pytest.approx(shares, abs=1)
    page.find_element(By.CSS_SELECTOR, ".graph a[aria-label='States of orders']").click()
    assert text(page, ":target").startswith("source")
    page.find_element(By.LINK_TEXT, "← checkpoint 2").click()
    until(page, lambda _: text(page, "h1") == "Checkpoint 2")
    page.find_element(By.LINK_TEXT, "compare with 1").click()
    until(page, lambda _: page.find_elements(By.ID, "verdict"))
    assert page.current_url.endswith("/compare?a=1&b=2")
    page.get(pages(store) + "/checkpoint/3")
    page.find_element(By.LINK_TEXT, SCRIPT).click()
    until(page, lambda _: "item" in text(page, "main"))
    assert text(page, "h1") == f"totals · {SCRIPT}"
    hot = until(page, lambda _: cells(page, "#hot-keys-1"))
    assert hot[0][0] == '{"user": "u1"}'
    assert hot[0][2] == "40"


@pytest.mark.long
def test_the_slider_computes_a_new_plan(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    """By keyboard; each position shows the library's plan."""
    page.get(pages(store) + "/checkpoint/3/rescale")
    slider = page.find_element(By.ID, "slider")
    for wanted in (4, 5, 6):
        slider.send_keys(Keys.ARROW_RIGHT)
        until(page, lambda _, wanted=wanted: text(page, "#wanted") == str(wanted))
        option = store.inspect.compare([wanted], checkpoint=3).options[0]
        moves = page.find_element(By.ID, "moves")
        assert moves.get_attribute("data-bytes") == str(option.moved_bytes)
        plan = store.plan(parallelism=wanted, checkpoint=3).operator("totals")
        assert [row[:3] for row in cells(page, ".subtasks") if row[5] == "0"] == [
            [
                str(subtask.subtask),
                f"{subtask.key_groups.first}–{subtask.key_groups.last}",
                count(subtask.rows),
            ]
            for subtask in plan.subtasks
            if subtask.key_groups is not None
        ]
    assert page.current_url.endswith("parallelism=6&balance=&rate=100&ms=20")
    bands = page.find_elements(By.CSS_SELECTOR, "figure .moves title")
    assert any("subtask 0 to subtask 1" in str(b.get_attribute("textContent")) for b in bands)


@pytest.mark.long
def test_a_key_and_its_history(page: webdriver.Chrome, pages: Pages, store: StateStore) -> None:
    page.get(pages(store) + "/checkpoint/3/key")
    box = page.find_element(By.NAME, "key")
    box.send_keys("u7", Keys.ENTER)
    until(page, lambda _: page.find_elements(By.ID, "rows"))
    assert cells(page, ".rows") == [["u7", "21"]]
    page.find_element(By.CSS_SELECTOR, "[data-load-in] summary").click()
    rows = until(page, lambda _: cells(page, ".history"))
    assert [(row[0], row[3]) for row in rows] == [
        (str(number), f'{{"user": "u7", "total": {7 * number}}}') for number in (3, 2, 1)
    ]


def test_a_key_that_is_a_script_is_shown_as_text(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store) + "/checkpoint/3/key")
    page.find_element(By.NAME, "key").send_keys(SCRIPT, Keys.ENTER)
    until(page, lambda _: page.find_elements(By.ID, "rows"))
    assert cells(page, ".rows") == [[SCRIPT, str(3 * 103)]]
    assert page.execute_script("return window.owned") is None


def test_sql(page: webdriver.Chrome, pages: Pages, store: StateStore) -> None:
    page.get(pages(store) + "/checkpoint/3/sql")
    box = page.find_element(By.NAME, "sql")
    assert box.get_property("value") == f"SELECT * FROM {store.views(3)[0].sql} LIMIT 100"
    box.clear()
    box.send_keys("SELECT max(total) AS most, count(*) AS n FROM total")
    page.find_element(By.CSS_SELECTOR, "#sql button").click()
    until(page, lambda _: page.find_elements(By.ID, "answer"))
    assert cells(page, "#answer") == [[str(3 * 103), "104"]]
    assert text(page, "#answer thead").split() == ["most", "int64", "n", "int64"]
    shown = page.find_elements(By.CSS_SELECTOR, ".editor pre span")
    assert [(one.get_attribute("class"), one.get_property("textContent")) for one in shown] == [
        *(("keyword", word) for word in ("SELECT", "AS", "AS", "FROM"))
    ]
    page.get(pages(store) + "/checkpoint/3/sql")
    page.find_element(By.CSS_SELECTOR, "#history summary").click()
    page.find_element(By.CSS_SELECTOR, "#history button").click()
    box = page.find_element(By.NAME, "sql")
    assert box.get_property("value") == "SELECT max(total) AS most, count(*) AS n FROM total"


def test_two_checkpoints(page: webdriver.Chrome, pages: Pages, store: StateStore) -> None:
    page.get(pages(store) + "/compare")
    page.find_element(By.CSS_SELECTOR, "#compare button").click()
    until(page, lambda _: page.find_elements(By.ID, "verdict"))
    found = store.inspect.diff(2, 3)
    assert page.find_element(By.ID, "difference-rows-1").is_displayed()
    same = [f"{state.operator}.{state.state}" for state in found.states if not state.differs]
    assert text(page, "#same") == f"The same in both: {', '.join(same)}."
    assert [row[:5] for row in cells(page, "#differences")] == [
        [
            state.operator,
            state.state,
            count(state.added),
            count(state.removed),
            count(state.changed),
        ]
        for state in found.states
        if state.differs
    ]
