"""The page of trends in a real browser: the library's growth and forecasts, charts and the form."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from statestore import StateStore
from statestore.cli.drawing import count, signed, size
from statestore.format.names import manifest_path
from statestore.restore.restart_time import RestoreSpeed
from tests.support.browser import logged
from tests.support.retimed import retime
from tests.ui.conftest import SCRIPT, Pages, cells, text, titles, unchanged, until

pytestmark = pytest.mark.slow

SPEED = RestoreSpeed(seconds_per_byte=1e-8, seconds_per_request=0.02)
"""The guess of a page: 100 MB/s, and 20 ms per request."""

COUNT = 8


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateStore]:
    """A checkpoint every 6 hours: a state that grows, one that stays, and offsets."""
    folder = tmp_path_factory.mktemp("grown") / "store"
    store = StateStore.open(str(folder), table_format="parquet")
    for number in range(1, COUNT + 1):
        rows = pa.table({"k": [f"k{n}" for n in range(500 * number)], "v": range(500 * number)})
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("orders", "totals", rows, key="k", max_parallelism=8)
            if number == 1:
                checkpoint.write_keyed("orders", SCRIPT, rows, key="k", max_parallelism=8)
            else:
                checkpoint.carry("orders", SCRIPT)
            checkpoint.write_union("source", "offsets", [[{"o": number}], []])
    retime(folder)
    with unchanged(folder) as store:
        yield store


def test_the_table_has_the_growth_of_the_library(
    page: webdriver.Chrome, pages: Pages, grown: StateStore
) -> None:
    page.get(pages(grown))
    page.find_element(By.LINK_TEXT, "Trends").click()
    rows = until(page, lambda _: cells(page, "#growth"))
    trend = grown.inspect.trend(rate=SPEED)
    assert [row[:2] for row in rows] == [[one.operator, one.state] for one in trend.states]
    for row, one in zip(rows, trend.states, strict=True):
        assert one.rows is not None
        assert one.size is not None
        assert row[2:10] == [
            str(COUNT),
            count(one.newest.live_rows or 0),
            signed(one.rows.per_day, count),
            size(one.newest.size_bytes),
            *(
                signed(value, size)
                for value in (one.size.per_day, one.size.low_per_day, one.size.high_per_day)
            ),
            one.size.direction,
        ]
    assert [row[11] for row in rows] == ["new", "1.75 d", "new"]
    assert trend.size is not None
    newest = trend.checkpoints[-1]
    assert text(page, "#total").startswith(
        f"{size(newest.size_bytes)}, {signed(trend.size.per_day, size)} a day"
    )
    page.find_element(By.LINK_TEXT, "totals").click()
    until(page, lambda _: text(page, "h1") == "orders · totals")


def test_the_charts_have_each_state_at_each_checkpoint(
    page: webdriver.Chrome, pages: Pages, grown: StateStore
) -> None:
    page.get(f"{pages(grown)}/trends")
    trend = grown.inspect.trend()
    ahead, *sizes = titles(page, "trend-bytes")
    for one in trend.states:
        for point in one.points:
            (column,) = (
                text for text in sizes if text.startswith(f"checkpoint {point.checkpoint_id},")
            )
            shown = f"\n{one.operator}.{one.state}: {size(point.size_bytes)}"
            assert shown in column
    assert ahead.startswith("orders.totals: about ")
    assert f"orders.totals: {count(500 * COUNT)}" in titles(page, "trend-rows")[-1]
    skews = titles(page, "trend-skew")
    assert f"orders.totals: {trend.states[0].points[0].skew:.2f}" in skews[0]
    assert not any("offsets" in label for label in skews)
    assert len(titles(page, "trend-restore")) == COUNT
    assert page.execute_script("return window.owned") is None


def test_the_dashed_line_continues_the_growth(
    page: webdriver.Chrome, pages: Pages, grown: StateStore
) -> None:
    page.get(f"{pages(grown)}/trends")
    script = """const [known, ahead] = [".line:not(.ahead)", ".ahead"].map(css =>
            document.querySelector("#chart-trend-bytes " + css).getBBox());
        return ahead.width / known.width"""
    assert page.execute_script(script) == pytest.approx(0.3, abs=0.02)


@pytest.mark.long
def test_the_form_forecasts_a_size_and_a_restore_time(
    page: webdriver.Chrome, pages: Pages, grown: StateStore
) -> None:
    page.get(f"{pages(grown)}/trends")
    wanted = 3 * grown.checkpoint().manifest.size_bytes
    page.find_element(By.NAME, "size").send_keys(str(wanted))
    page.find_element(By.NAME, "restore_time").send_keys("1s", Keys.ENTER)
    until(page, lambda _: page.find_elements(By.ID, "reaches"))
    trend = grown.inspect.trend(size_bytes=wanted, restore_time="1s", rate=SPEED)
    assert trend.reaches is not None
    assert trend.restore_reaches is not None
    script = """return [...document.querySelectorAll(arguments[0] + " time")].map(
        time => Math.floor(new Date(time.dateTime) / 1000))"""
    for css, one in (("#reaches", trend.reaches), ("#restore-reaches", trend.restore_reaches)):
        expected = [one.at_ms, one.earliest_ms, one.latest_ms]
        known = [at_ms // 1000 for at_ms in expected if at_ms is not None]
        assert page.execute_script(script, css) == known
        assert known or str(one.reason) in text(page, css)
    rows = cells(page, "#growth")
    assert [row[12] for row in rows][1:] == ["it does not clearly grow"] * 2
    assert "size=" in page.current_url


def test_few_checkpoints_say_so(page: webdriver.Chrome, pages: Pages, grown: StateStore) -> None:
    page.get(f"{pages(grown)}/trends?last=4&size=1GB")
    assert text(page, "#few") == "Not enough checkpoints: growth needs 5 at different times."
    assert text(page, "#reaches") == "not enough checkpoints, or too short a time"
    assert [row[4:10] for row in cells(page, "#growth")] == [
        ["", row[5], "", "", "", ""] for row in cells(page, "#growth")
    ]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("size=much", "'much' is not a number of bytes"),
        ("restore_time=soon", "'soon' is not a duration"),
        ("last=0", "newest checkpoints must be above 0"),
        ("rate=0", "MB/s of a subtask must be above 0"),
        ("parallelism=9", "parallelism 9 is above the stored max parallelism 8"),
    ],
)
def test_an_invalid_field_is_explained_next_to_the_form(
    page: webdriver.Chrome, pages: Pages, grown: StateStore, query: str, message: str
) -> None:
    page.get(f"{pages(grown)}/trends?{query}")
    assert message in text(page, "[role=alert]")
    assert page.find_elements(By.NAME, "size")
    # The browser logs the status.
    assert any("400" in entry["message"] for entry in logged(page))


def test_an_unreadable_checkpoint_is_named(
    page: webdriver.Chrome, pages: Pages, grown: StateStore, tmp_path: Path
) -> None:
    copy = shutil.copytree(grown.url, tmp_path / "store")
    (copy / manifest_path(3)).write_bytes(b"{}")
    page.get(f"{pages(StateStore.open(str(copy)))}/trends")
    assert text(page, "p.bad").startswith("Checkpoint 3 cannot be read: ")
    assert {row[2] for row in cells(page, "#growth")} == {str(COUNT - 1)}
