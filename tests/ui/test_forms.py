"""The forms of the pages in a real browser: compare, SQL, rescale and search, and links to all."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from statestore import StateStore
from statestore.ui.rescale import RATE, REQUEST_MS
from tests.ui.conftest import SCRIPT, Pages, cells, text, until

pytestmark = pytest.mark.slow


def test_a_state_opens_with_its_first_rows_and_columns(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store) + "/checkpoint/3/state?operator=totals&state=total")
    rows = until(page, lambda _: cells(page, "#first-rows"))
    stored = store.restore(checkpoint=3, parallelism=1).keyed("totals", "total").to_arrow(0)
    names = stored.schema.names
    assert [row[-2:] for row in rows] == [
        [row["user"], str(row["total"])] for row in stored.slice(0, 20).to_pylist()
    ]
    assert names[-2:] == ["user", "total"]
    assert cells(page, "#columns") == [["user", "string", "key"], ["total", "long", ""]]
    tops = [
        page.find_element(By.ID, place).rect["y"]
        for place in ("first-rows", "chart-key-groups", "files")
    ]
    assert tops == sorted(tops)
    files = page.find_element(By.ID, "files-0")
    assert not files.get_property("open")
    page.get(page.current_url + "#file-list-0")
    page.refresh()
    assert page.find_element(By.ID, "files-0").get_property("open")


def test_the_first_rows_of_operator_state(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store) + "/checkpoint/3/state?operator=source&state=splits")
    rows = until(page, lambda _: cells(page, "#first-rows"))
    assert [row[-3:] for row in rows] == [["t", str(n), str(10 * n)] for n in range(3)]


def test_compare_offers_the_checkpoints_and_savepoints(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store) + "/compare")
    choice = Select(page.find_element(By.NAME, "a"))
    offered = [str(option.get_attribute("value")) for option in choice.options]
    assert offered == ["3", "2", "1", "before"]
    assert choice.first_selected_option.text == "2"
    choice.select_by_value("before")
    page.find_element(By.CSS_SELECTOR, "#compare button").click()
    until(page, lambda _: page.find_elements(By.ID, "verdict"))
    assert text(page, "#verdict").startswith("Checkpoints 1 and 3 differ.")
    assert page.current_url.endswith("/compare?a=before&b=3")


def test_compare_says_that_it_works(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store) + "/compare")
    # The next page cannot arrive before the script has returned.
    script = """const button = document.querySelector('#compare button'); button.click();
        return [button.ariaBusy, document.getElementById('live').textContent]"""
    assert page.execute_script(script) == ["true", "The rows of both checkpoints are compared."]
    until(page, lambda _: page.find_elements(By.ID, "verdict"))


@pytest.mark.long
def test_a_statement_runs_on_ctrl_enter_and_its_link_fills_the_form(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store) + "/checkpoint/3/sql")
    box = page.find_element(By.NAME, "sql")
    box.clear()
    box.send_keys("SELECT max(total) AS most FROM total", Keys.CONTROL, Keys.ENTER)
    until(page, lambda _: page.find_elements(By.ID, "answer"))
    assert cells(page, "#answer") == [[str(3 * 103)]]
    assert "?sql=SELECT+max" in page.current_url
    page.get(page.current_url)
    box = page.find_element(By.NAME, "sql")
    assert box.get_property("value") == "SELECT max(total) AS most FROM total"
    assert page.find_elements(By.TAG_NAME, "h2")[0].text.startswith("Schema")


def test_the_schema_is_beside_the_statement_and_inserts_names(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store) + "/checkpoint/3/sql")
    box, schema = page.find_element(By.NAME, "sql"), page.find_element(By.ID, "schema")
    assert schema.rect["x"] >= box.rect["x"] + box.rect["width"]
    assert abs(schema.rect["y"] - box.rect["y"]) < 100
    for view in store.views(3):
        assert view.name in schema.text
        assert all(f"{field.name} {field.type}" in schema.text for field in view.columns)
    box.clear()
    box.send_keys("SELECT ")
    page.find_element(By.CSS_SELECTOR, "[data-insert='\"total\"']").click()
    assert box.get_property("value") == 'SELECT "total"'


def test_an_answer_downloads(
    page: webdriver.Chrome, pages: Pages, store: StateStore, tmp_path: Path
) -> None:
    """All rows, although the page would show only the first ones."""
    behavior = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.execute_cdp_cmd("Browser.setDownloadBehavior", behavior)
    page.get(pages(store) + "/checkpoint/3/sql?sql=SELECT%20range%20FROM%20range(1500)")
    page.find_element(By.CSS_SELECTOR, "#sql button[name=format]").click()
    file = tmp_path / "answer.csv"
    until(page, lambda _: file.exists())
    assert file.read_text().splitlines() == ["range", *map(str, range(1500))]
    assert page.find_element(By.CSS_SELECTOR, "#sql button").get_attribute("aria-busy") is None


@pytest.mark.long
def test_rescale_goes_up_to_the_max_parallelism(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store) + "/checkpoint/3/rescale")
    page.find_element(By.ID, "slider").send_keys(Keys.END)
    until(page, lambda _: text(page, "#wanted") == "128")
    assert "parallelism=128" in page.current_url
    number = page.find_element(By.NAME, "parallelism")
    assert number.get_property("value") == "128"
    number.send_keys(Keys.ARROW_DOWN)
    until(page, lambda _: text(page, "#wanted") == "127")
    assert page.find_element(By.ID, "slider").get_property("value") == "127"


def test_the_time_of_a_rescale_counts_its_requests(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    """Many small files take as long as their requests, not as long as their bytes."""
    page.get(pages(store) + "/checkpoint/3/rescale?parallelism=1&ms=200")
    tasks = [task for one in store.plan(parallelism=1).operators for task in one.subtasks]
    slowest = max(task.size_bytes / (RATE * 10**6) + task.requests * 0.2 for task in tasks)
    assert slowest > 1
    found = page.find_element(By.ID, "seconds")
    assert float(str(found.get_attribute("data-seconds"))) == pytest.approx(slowest)
    assert found.text.startswith(f"about {slowest:.3g} s in the slowest subtask")
    page.get(pages(store) + "/checkpoint/3/rescale?parallelism=5")
    found = page.find_element(By.ID, "seconds")
    assert found.text.startswith("less than 1 s")
    assert f"{REQUEST_MS} ms per request" in found.text


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("/compare?a=2&b=99", "a", "2"),
        ("/checkpoint/3/rescale?parallelism=129&balance=rows", "balance", "rows"),
    ],
)
def test_a_form_stays_after_an_error(
    page: webdriver.Chrome, pages: Pages, store: StateStore, path: str, name: str, value: str
) -> None:
    page.get(pages(store) + path)
    assert page.find_element(By.CSS_SELECTOR, "[role=alert]").text
    assert page.find_element(By.NAME, name).get_property("value") == value
    # The browser reports a status of 400 or above in its console.
    assert [line["level"] for line in page.get_log("browser")] == ["SEVERE"]  # type: ignore[no-untyped-call]


@pytest.mark.long_cases(
    "2-2-/checkpoint/2",
    "befo-before-/checkpoint/before",
    "totals.tot-totals.total-/checkpoint/3/state?operator=totals&state=total",
)
@pytest.mark.parametrize(
    ("wanted", "name", "path"),
    [
        ("2", "2", "/checkpoint/2"),
        ("befo", "before", "/checkpoint/before"),
        ("sour", "source", "/checkpoint/3#operator-source"),
        ("totals.tot", "totals.total", "/checkpoint/3/state?operator=totals&state=total"),
    ],
)
def test_the_search_box_finds_a_name(
    page: webdriver.Chrome, pages: Pages, store: StateStore, wanted: str, name: str, path: str
) -> None:
    address = pages(store)
    page.get(address + "/compare")
    page.find_element(By.NAME, "q").send_keys(wanted)
    until(page, lambda _: page.find_elements(By.CSS_SELECTOR, "#suggestions li a"))
    page.find_element(By.LINK_TEXT, name).click()
    until(page, lambda _: page.current_url == address + path)
    if "#" in path:
        script = "return document.querySelector('g:target').ariaLabel"
        assert page.execute_script(script).startswith("orders: uid source")


def test_the_search_page_lists_what_was_found(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store))
    page.find_element(By.NAME, "q").send_keys(SCRIPT[:7], Keys.ENTER)
    until(page, lambda _: "/search?" in page.current_url)
    assert [line.text for line in page.find_elements(By.CSS_SELECTOR, "#found li")] == [
        f"totals.{SCRIPT} state"
    ]
    page.get(pages(store) + "/search?q=nothing")
    assert "No checkpoint" in text(page, "main")


def test_each_section_has_a_link(page: webdriver.Chrome, pages: Pages, store: StateStore) -> None:
    page.get(pages(store) + "/checkpoint/3/state?operator=totals&state=total")
    headings = page.find_elements(By.CSS_SELECTOR, "main h2")
    assert len(headings) == 6
    for heading in headings:
        link = heading.find_element(By.CSS_SELECTOR, "a.anchor")
        assert str(link.get_attribute("href")).endswith(f"#{heading.get_attribute('id')}")
