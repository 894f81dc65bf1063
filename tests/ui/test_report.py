"""A report: its limited size, what it leaves out by name, and how it looks in a real browser."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from statestore import StateStore
from statestore.cli.drawing import count, size
from statestore.cli.main import main
from statestore.errors import CheckpointNotFoundError, InvalidArgumentError
from statestore.format.left_out import LeftOutState
from statestore.ui.checkpoint import SHOWN
from statestore.ui.report import MOST_BYTES, write_report
from tests.ui.conftest import SCRIPT, SHOTS, cells

CHECKPOINTS, STATES = SHOWN + 10, 20
LINKS = "return [...document.links].map(link => link.getAttribute('href'))"
IDS = "return [...document.querySelectorAll('[id]')].map(one => one.id)"
ACTIVE = "form, button, input, select, textarea, script, iframe, object, embed, [onclick]"
LOWEST_CONTRAST = """
// The lowest contrast of a text with the page's background, as WCAG defines it.
const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
function light(color) {
  canvas.fillStyle = color;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(
    part => part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const background = light(getComputedStyle(document.body).backgroundColor);
const contrasts = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const place = texts.currentNode.parentElement;
  if (!texts.currentNode.textContent.trim() || place.closest("title, .mark")) continue;
  const style = getComputedStyle(place);
  const text = light(place.namespaceURI.endsWith("svg") ? style.fill : style.color);
  contrasts.push((Math.max(text, background) + 0.05) / (Math.min(text, background) + 0.05));
}
return Math.min(...contrasts);
"""
SMALLEST = """
// The smallest font of a text in a picture, in pixels of the screen.
return Math.min(...[...document.querySelectorAll("svg text")]
  .filter(text => text.getClientRects().length)
  .map(text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a));
"""
OVERLAPS = """
// Labels of an axis that touch another one.
const found = [];
for (const plot of document.querySelectorAll(".plot > svg")) {
  for (const kind of [".tick", ".label", ".left", ".right"]) {
    const boxes = [...plot.querySelectorAll(kind)]
      .filter(text => text.getClientRects().length)
      .map(text => [text.textContent, text.getBoundingClientRect()]);
    boxes.forEach(([name, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
      // The height of a line includes the space around the letters.
      const isBeside = a.left >= b.right || b.left >= a.right;
      if (!isBeside && a.top + 4 < b.bottom && b.top + 4 < a.bottom)
        found.push(`${plot.ariaLabel}: ${name}, ${other}`);
    }));
  }
}
return found;
"""
OUTSIDE = """
// Texts and pictures that the window cuts off.
return [...document.querySelectorAll(".plot > svg, .plot text, h1, h2, h3, p, dd, li")]
  .filter(one => one.getClientRects().length)
  .filter(one => one.getBoundingClientRect().left < 0
    || one.getBoundingClientRect().right > document.documentElement.clientWidth)
  .map(one => one.textContent);
"""
TABLES = """
// Whether each table is wider than its region, and what the reader sees of that.
return [...document.querySelectorAll(".wide")].map(region => ({
  name: region.ariaLabel,
  isWide: region.scrollWidth > region.clientWidth,
  bar: region.offsetHeight - region.clientHeight,
  shades: getComputedStyle(region).backgroundImage.split("linear-gradient").length - 1,
  overflow: getComputedStyle(region).overflowX,
}));
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    """Many checkpoints of many states."""
    folder = tmp_path_factory.mktemp("large")
    store = StateStore.open(str(folder / "store"), table_format="parquet", layout="auto")
    for number in range(CHECKPOINTS):
        with store.snapshot(parallelism=8) as taken:
            for state in range(STATES):
                place = f"operator-{state % 5}", f"state-{state}"
                if number == 0:
                    rows = totals(1000 + 50 * state, 1)
                    taken.write_keyed(*place, rows, key="user", max_parallelism=1024)
                elif (number + state) % STATES == 0:
                    taken.write_changes(*place, totals(50 + number, number))
                else:
                    taken.carry(*place)
    return store


def totals(users: int, factor: int) -> pa.Table:
    names = [f"u{number}" for number in range(users)]
    return pa.table({"user": names, "total": [factor * number for number in range(users)]})


@pytest.mark.long
@pytest.mark.slow
def test_a_report_of_a_large_store_has_at_most_300_kb(large: StateStore, tmp_path: Path) -> None:
    to = tmp_path / "report.html"
    written = write_report(large, str(to))
    assert MOST_BYTES == 300_000
    assert written.size_bytes == to.stat().st_size <= MOST_BYTES
    older = f"{CHECKPOINTS - SHOWN} older checkpoints of {CHECKPOINTS}"
    assert written.left_out == (older,)
    text = to.read_text()
    assert f"<li>{older}</li>" in text
    assert [int(number) for number in re.findall(r'<h3 id="state-(\d+)">', text)] == [
        *range(1, STATES + 1)
    ]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("states", "columns"), [(25, 100), (2, 5_000)])
def test_what_does_not_fit_is_named(tmp_path: Path, states: int, columns: int) -> None:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet", layout="auto")
    wide = {f"a column with a {'rather ' * 10}long name, number {n}": [n] for n in range(columns)}
    with store.snapshot(parallelism=2) as taken:
        for number in range(states):
            taken.write_keyed(
                "u", f"s{number}", pa.table({"k": [1], **wide}), key="k", max_parallelism=8
            )
    to = tmp_path / "report.html"
    written = write_report(store, str(to))
    assert written.size_bytes <= MOST_BYTES
    text = to.read_text()
    shown = re.findall(r'<h3 id="state-\d+">u\.(s\d+)</h3>\s*<dl>', text)
    unfit = re.findall(r"Left out: u\.(s\d+)\. It does not fit in a report of 300\.0 kB\.", text)
    assert unfit
    assert len(shown) + len(unfit) == min(states, STATES)
    assert set(shown).isdisjoint(unfit)
    named = ", ".join(f"u.{name}" for name in unfit[:10])
    others = f" and {len(unfit) - 10} others" if len(unfit) > 11 else ""
    unfit_lines = [one for one in written.left_out if "did not fit" in one]
    assert f"The largest states: {named}{others} did not fit" in unfit_lines, unfit_lines
    assert all(line.startswith(("The largest states", "Restores")) for line in unfit_lines)
    assert all(f"<li>{one}</li>" in text for one in written.left_out)
    if states > 20:
        assert any(
            one.startswith("the details of 5 smaller states: u.s") for one in written.left_out
        )
    assert_links_lead_somewhere(text)


@pytest.mark.slow
def test_everything_that_is_left_out_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged checkpoint, state that an import lacks, and what is too much for a picture."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet", layout="auto")
    for factor in range(3):
        with store.snapshot(parallelism=70) as taken:
            taken.write_keyed("u", "s", totals(500, factor), key="user", max_parallelism=128)
            if factor == 0:
                taken.write_keyed("u", "other", totals(5, 1), key="user", max_parallelism=128)
            else:
                taken.write_broadcast("u", "other", [{"limit": 1}])
            taken.collected.record(
                left_out=[
                    LeftOutState(operator="lost", state=None, reason="is raw", command="import")
                ]
            )
    (damaged,) = Path(store.url).rglob("*2.json")
    damaged.write_text("{}")
    to = tmp_path / "report.html"
    command = ["ui", "--store", store.url, "--to", str(to), "--against", "1"]
    assert main([*command, "--output", "json"]) == 0
    named = json.loads(capsys.readouterr().out)["left_out"]
    assert main(command) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{to}: {size(to.stat().st_size)}"
    assert lines == [f"left out: {one}" for one in named]
    text = to.read_text()
    assert [html.unescape(one) for one in re.findall("<li>([^<]*)</li>", text)][-len(named) :] == (
        named
    )
    for start in (
        "state that the checkpoint lacks: lost (is raw)",
        f"the figures of checkpoint 2: {damaged}",
        f"checkpoint 2 in the growth: {damaged}",
        "the picture of parallelism 69 for u: too many subtasks to draw",
        "the comparison of the rows of u.other: ",
    ):
        assert [one for one in named if one.startswith(start)], (start, named)
    (found,) = [one for one in store.inspect.diff(1, 3).states if one.state == "s"]
    assert f"{len(found.key_groups) - 20} further differing key groups of u.s" in named
    assert_links_lead_somewhere(text)


def assert_links_lead_somewhere(text: str) -> None:
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    links = re.findall(r' href="([^"]*)"', text)
    assert {link for link in links if link[1:] not in ids} == {"data:,"}


def test_the_comparison_of_unknown_checkpoints_writes_no_file(
    store: StateStore, tmp_path: Path
) -> None:
    to = tmp_path / "report.html"
    with pytest.raises(CheckpointNotFoundError, match="77"):
        write_report(store, str(to), against=77)
    assert not to.exists()


def test_a_report_into_a_missing_folder_is_refused(store: StateStore, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"cannot write .*/no/report\.html: there is no folder .*/no;"
    ):
        write_report(store, str(tmp_path / "no" / "report.html"))
    with pytest.raises(InvalidArgumentError, match=r"is inside the store .*/store, whose"):
        write_report(store, f"{store.url}/statestore.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidArgumentError, match="cannot write"):
        write_report(store, str(tmp_path / "folder"))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.slow
def test_a_report_shows_the_results_of_the_library(
    page: webdriver.Chrome, store: StateStore, tmp_path: Path
) -> None:
    to = tmp_path / "report.html"
    write_report(store, str(to), against=1)
    page.get(f"file://{to}")
    assert page.title == "Checkpoint 3 · statestore"
    tops = [page.find_element(By.CSS_SELECTOR, css).rect["y"] for css in (".status", "#contents")]
    assert tops == sorted(tops)
    assert "3 checkpoints can be read" in page.find_element(By.CSS_SELECTOR, ".status").text
    manifest = store.checkpoint().manifest
    holds = page.find_element(By.ID, "holds").text
    assert holds.startswith(f"{count(manifest.rows)} rows in files")
    assert [row[0] for row in cells(page, "#checkpoints")] == ["3", "2", "1"]
    assert sorted(row[1] for row in cells(page, "#growth")) == sorted(
        entry.state.name for entry in manifest.entries
    )
    largest = sorted(manifest.entries, key=lambda entry: -entry.size_bytes)
    assert [row[:2] for row in cells(page, "#states")] == [
        [entry.state.uid, entry.state.name] for entry in largest
    ]
    found = store.inspect.diff(1, 3)
    assert [row[2:5] for row in cells(page, "#differences")] == [
        [count(state.added), count(state.removed), count(state.changed)]
        for state in found.states
        if state.differs
    ]
    options = store.inspect.compare([1, 2, 3, 4, 5, 6, 9, 12], checkpoint=3).options
    assert [row[:3] for row in cells(page, "#restores-compared")] == [
        [str(option.parallelism), size(option.moved_bytes), size(option.largest_bytes)]
        for option in options
    ]
    page.find_element(By.LINK_TEXT, f"totals.{SCRIPT}").click()
    script = "return document.querySelector(':target').textContent"
    assert page.execute_script(script) == f"totals.{SCRIPT}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", pytest.param("large", marks=pytest.mark.long)])
def test_a_report_works_from_a_file(
    page: webdriver.Chrome, store: StateStore, large: StateStore, tmp_path: Path, name: str
) -> None:
    """Nothing on it needs a server, and all links lead somewhere."""
    run = page.execute_script
    open_report(page, {"small": store, "large": large}[name], tmp_path)
    assert page.find_elements(By.CSS_SELECTOR, "nav a")
    ids: list[str] = run(IDS)
    assert len(ids) == len(set(ids))
    for link in run(LINKS):
        assert link.startswith(("http://", "https://")) or link.removeprefix("#") in ids, link
    assert run("return document.querySelectorAll(arguments[0]).length", ACTIVE) == 0
    assert run("return performance.getEntriesByType('resource').length") == 0
    assert run("return window.owned") is None


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "large"])
def test_a_report_is_readable_on_a_phone_and_in_the_dark(
    page: webdriver.Chrome, store: StateStore, large: StateStore, tmp_path: Path, name: str
) -> None:
    """Screenshots stay in build/screenshots."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    run = page.execute_script
    open_report(page, {"small": store, "large": large}[name], tmp_path)
    for scheme, width in (("light", 1400), ("dark", 1400), ("light", 390), ("dark", 390)):
        page.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        metrics = {
            "width": width,
            "height": 1400,
            "deviceScaleFactor": 1,
            "mobile": width < 500,
        }
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        assert run("return document.documentElement.scrollWidth") <= width
        assert run("return document.querySelectorAll('.plot > svg').length") > 10
        assert run(OUTSIDE) == []
        assert run(SMALLEST) >= 10
        assert run(OVERLAPS) == []
        assert run(LOWEST_CONTRAST) >= 4.5
        regions: list[dict[str, Any]] = run(TABLES)
        wide = [region for region in regions if region["isWide"]]
        assert wide or width > 390
        for region in wide:
            assert region["overflow"] == "auto"
            assert region["shades"] == 4
            assert region["bar"] > 0
        page.save_screenshot(str(SHOTS / f"report-{name}-{scheme}-{width}.png"))


def open_report(page: webdriver.Chrome, store: StateStore, folder: Path) -> None:
    """Write a report, and open it with all of its details."""
    to = folder / "report.html"
    write_report(store, str(to), against=2)
    page.get(f"file://{to}")
    page.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
