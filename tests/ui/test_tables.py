"""Tables in a real browser: they sort, filter, download, and scroll on a phone."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from statestore import StateStore
from tests.ui.conftest import SCRIPT, Pages, cells, unchanged, until

pytestmark = pytest.mark.slow


def first(page: webdriver.Chrome, css: str) -> list[str]:
    return [row[0] for row in cells(page, css)]


def sort(page: webdriver.Chrome, css: str, title: str) -> None:
    for heading in page.find_elements(By.CSS_SELECTOR, f"{css} thead th"):
        name = heading.find_element(By.CSS_SELECTOR, "button.sort").text
        if (heading.get_attribute("data-csv") or name) == title:
            heading.click()
            return
    pytest.fail(f"the table has no column {title}")


@pytest.fixture(scope="module")
def grown(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateStore]:
    """The store with a fourth checkpoint, which is incremental, and a compacted fifth one."""
    folder = shutil.copytree(built, tmp_path_factory.mktemp("grown") / "store")
    store = StateStore.open(str(folder), table_format="parquet", layout="auto")
    with store.snapshot(parallelism=3) as checkpoint:
        changes = pa.table({"user": ["u1", "u2"], "total": [5, 6]})
        checkpoint.write_changes("totals", "total", changes)
        checkpoint.carry_rest()
    store.maintenance.compact(everything=True)
    with unchanged(folder) as store:
        yield store


@pytest.mark.long
def test_a_table_sorts_numbers_by_value(
    page: webdriver.Chrome, pages: Pages, grown: StateStore
) -> None:
    """Sizes are shown with units, and sort as bytes."""
    page.get(pages(grown))
    sizes = {str(n): grown.checkpoint(n).manifest.size_bytes for n in grown.checkpoints()}

    def shown() -> list[int]:
        return [sizes[number] for number in first(page, "#checkpoints")]

    for is_descending in (False, True):
        expected = sorted(sizes.values(), reverse=is_descending)
        sort(page, "#checkpoints", "size")
        until(page, lambda _, expected=expected: shown() == expected)
    assert page.current_url.endswith("?sort.checkpoints=5.desc")
    page.get(page.current_url)
    assert shown() == sorted(sizes.values(), reverse=True)


@pytest.mark.long
def test_a_table_filters_and_the_address_keeps_the_filter(
    page: webdriver.Chrome, pages: Pages, grown: StateStore
) -> None:
    page.get(pages(grown))
    page.find_element(By.CSS_SELECTOR, ".tools input").send_keys("savepoint")
    until(page, lambda _: first(page, "#checkpoints") == ["1"])
    assert page.find_element(By.CSS_SELECTOR, ".tools span").text == "1 of 5 rows"
    page.get(page.current_url)
    assert first(page, "#checkpoints") == ["1"]


def test_a_table_downloads_its_shown_rows_as_csv(
    page: webdriver.Chrome, pages: Pages, grown: StateStore, tmp_path: Path
) -> None:
    """Numbers are plain numbers, and times are in UTC."""
    behavior = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.execute_cdp_cmd("Browser.setDownloadBehavior", behavior)
    page.get(pages(grown))
    page.find_element(By.CSS_SELECTOR, ".tools input").send_keys("full")
    until(page, lambda _: len(cells(page, "#checkpoints")) == 3)
    sort(page, "#checkpoints", "checkpoint")
    until(page, lambda _: first(page, "#checkpoints") == ["1", "2", "3"])
    page.find_element(By.CSS_SELECTOR, ".tools .csv").click()
    file = tmp_path / "checkpoints.csv"
    until(page, lambda _: file.exists())
    heading, *rows = csv.reader(io.StringIO(file.read_text()))
    assert heading[:3] == ["checkpoint", "taken (UTC)", "took"]
    manifests = [grown.checkpoint(number).manifest for number in (1, 2, 3)]
    assert [[row[0], row[2], row[5], row[9]] for row in rows] == [
        [str(one.checkpoint_id), str(one.took_ms), str(one.size_bytes), "full"] for one in manifests
    ]
    assert all(row[1].endswith("Z") for row in rows)


def test_the_list_tells_full_and_incremental_checkpoints_and_who_made_them(
    page: webdriver.Chrome, pages: Pages, grown: StateStore
) -> None:
    page.get(pages(grown))
    rows = {row[0]: row[9:11] for row in cells(page, "#checkpoints")}
    job = grown.checkpoint(1).manifest.writer.name
    assert rows == {
        **{number: ["full", job] for number in "123"},
        "4": ["incremental", job],
        "5": ["compacted", "compact of 4"],
    }


def test_a_sort_is_spoken_and_a_third_click_ends_it(
    page: webdriver.Chrome, pages: Pages, grown: StateStore
) -> None:
    page.get(pages(grown))
    before = first(page, "#checkpoints")
    for spoken in ("ascending", "descending", None):
        sort(page, "#checkpoints", "files")
        assert (
            page.execute_script("return document.querySelector('th:nth-child(7)').ariaSort")
            == spoken
        )
    assert first(page, "#checkpoints") == before
    assert "sort" not in page.current_url


@pytest.mark.parametrize("path", ["/", "/checkpoint/4"])
def test_at_1280_no_table_is_cut(
    page: webdriver.Chrome, pages: Pages, grown: StateStore, path: str
) -> None:
    metrics = {"width": 1280, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.get(pages(grown) + path)
    assert page.find_elements(By.CSS_SELECTOR, ".tools")
    wider = """return [...document.querySelectorAll('.wide')].filter(
        region => region.scrollWidth > region.clientWidth).map(region => region.ariaLabel)"""
    assert page.execute_script(wider) == []


def test_names_and_values_that_are_html_are_text(
    page: webdriver.Chrome, pages: Pages, store: StateStore, tmp_path: Path
) -> None:
    """Also after the table was sorted, and in the downloaded file."""
    behavior = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.execute_cdp_cmd("Browser.setDownloadBehavior", behavior)
    image = "<img src=x onerror=window.owned=true>"
    sql = f"""SELECT '{SCRIPT}' AS "{image}" UNION ALL SELECT '{image}, "b"'"""
    page.get(f"{pages(store)}/checkpoint/3/sql?{urlencode({'sql': sql})}")
    page.find_element(By.CSS_SELECTOR, "#sql button").click()
    until(page, lambda _: page.find_elements(By.ID, "answer"))
    sort(page, "#answer", image)
    until(page, lambda _: cells(page, "#answer") == [[f'{image}, "b"'], [SCRIPT]])
    script = "return document.querySelectorAll('#main img, #main td script').length"
    assert page.execute_script(script) == 0
    page.find_element(By.CSS_SELECTOR, ".tools .csv").click()
    file = tmp_path / "answer.csv"
    until(page, lambda _: file.exists())
    rows = [*csv.reader(io.StringIO(file.read_text()))]
    assert rows == [[image], [f'{image}, "b"'], [SCRIPT]]
    assert page.execute_script("return window.owned") is None


def test_a_download_of_shown_values_distinguishes_null_from_text(
    page: webdriver.Chrome, pages: Pages, store: StateStore, tmp_path: Path
) -> None:
    behavior = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.execute_cdp_cmd("Browser.setDownloadBehavior", behavior)
    sql = "SELECT NULL AS a, '' AS b, ' x ' AS c, 'null' AS d, 1.5::DOUBLE AS e"
    page.get(f"{pages(store)}/checkpoint/3/sql?{urlencode({'sql': sql})}")
    page.find_element(By.CSS_SELECTOR, "#sql button").click()
    until(page, lambda _: page.find_elements(By.ID, "answer"))
    page.find_element(By.CSS_SELECTOR, ".tools .csv").click()
    file = tmp_path / "answer.csv"
    until(page, lambda _: file.exists())
    assert file.read_text() == 'a,b,c,d,e\n,"", x ,null,1.5\n'


def test_numbers_are_right_aligned_and_have_units(
    page: webdriver.Chrome, pages: Pages, grown: StateStore
) -> None:
    page.get(pages(grown))
    script = """return [...document.querySelector('#checkpoints tbody tr').cells].map(
        cell => getComputedStyle(cell).textAlign)"""
    assert [n for n, one in enumerate(page.execute_script(script)) if one == "right"] == [
        *(0, 2, 3, 4, 5, 6, 7, 8)
    ]
    row = cells(page, "#checkpoints")[0]
    assert [row[n].split()[-1] for n in (2, 5, 7)] == ["ms", "kB", "B"]


@pytest.mark.long_cases("/checkpoint/3", "/checkpoint/3/rescale?parallelism=5")
@pytest.mark.parametrize("path", ["/", "/checkpoint/3", "/checkpoint/3/rescale?parallelism=5"])
def test_on_a_phone_a_wide_table_scrolls_visibly_and_the_menu_fits(
    page: webdriver.Chrome, pages: Pages, store: StateStore, path: str
) -> None:
    metrics = {"width": 390, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.get(pages(store) + path)
    regions = until(page, lambda _: page.find_elements(By.CSS_SELECTOR, ".wide.scrolls"))
    script = """const [region] = arguments; const style = getComputedStyle(region);
        return [region.offsetHeight - region.clientHeight, style.backgroundImage]"""
    for region in regions:
        bar, shade = page.execute_script(script, region)
        assert bar > 5
        assert shade.count("linear-gradient") == 4
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390
    links = page.find_elements(By.CSS_SELECTOR, "nav a")
    assert len(links) == 7
    assert {link.rect["height"] for link in links} == {links[0].rect["height"]}
    assert all(0 <= link.rect["x"] <= 390 - link.rect["width"] for link in links)
    assert len({link.rect["y"] for link in links}) == 2
