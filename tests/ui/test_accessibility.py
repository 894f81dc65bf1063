"""axe-core finds nothing on any page, in light and dark; a page has at most 300 kB."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from selenium import webdriver

from statestore import StateStore
from statestore.ui.report import MOST_BYTES, write_report
from tests.ui.conftest import Pages, until
from tests.ui.test_browser import VIEWS
from tests.ui.test_sql import ask
from tests.ui.vendor import digest, fetch

pytestmark = pytest.mark.slow

AXE, AXE_SHA256 = "4.10.3", "880970c081707360e64f34cea25ff91892f5bc95675b0776925b9709dd8a68bb"
PAGES = VIEWS | {
    "error": "/checkpoint/99",
    "search": "/search?q=tot",
    "no key": "/checkpoint/3/key",
}
FINDINGS = """
const done = arguments[arguments.length - 1];
axe.run().then(found => done(found.violations.map(
    one => [one.id, one.help, one.nodes.map(node => node.target.join(" "))])));
"""


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    script = fetch("axe-core", AXE, ["axe.min.js"])["axe.min.js"]
    assert digest(script) == AXE_SHA256
    return script.decode()


def findings(page: webdriver.Chrome, axe: str) -> Any:
    """Return what axe-core finds, after all that loads later is there."""
    until(page, lambda _: not page.execute_script("return document.querySelector('[aria-busy]')"))
    page.execute_script(axe)
    return page.execute_async_script(FINDINGS)


CASES = [f"{scheme}-{view}" for scheme in ("light", "dark") for view in PAGES]


@pytest.mark.long_cases(*CASES[1:])
@pytest.mark.parametrize("view", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_has_no_findings(
    page: webdriver.Chrome, pages: Pages, store: StateStore, axe: str, view: str, scheme: str
) -> None:
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    page.get(pages(store) + PAGES[view])
    for details in page.find_elements("css selector", "details"):
        page.execute_script("arguments[0].open = true", details)
    assert findings(page, axe) == []
    page.get_log("browser")  # type: ignore[no-untyped-call]  # the status of an error


def test_a_report_has_no_findings(
    page: webdriver.Chrome, store: StateStore, axe: str, tmp_path: Path
) -> None:
    to = tmp_path / "report.html"
    write_report(store, str(to), against=1)
    page.get(f"file://{to}")
    assert findings(page, axe) == []


@pytest.mark.parametrize("view", [view for view in PAGES if view != "error"])
def test_a_page_has_at_most_300_kb(pages: Pages, store: StateStore, view: str) -> None:
    """With its script and its style sheets, uncompressed."""
    address = pages(store)
    with urlopen(address + PAGES[view]) as answer:
        body = answer.read()
    total = len(body)
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', body.decode()):
        with urlopen(address + path) as answer:
            total += len(answer.read())
    assert total <= MOST_BYTES


@pytest.mark.long
def test_an_answer_of_long_rows_has_at_most_300_kb(pages: Pages, store: StateStore) -> None:
    """The page says that there are more rows, and its CSV has all of them."""
    sql = "SELECT repeat('a \"text\" ', 20) AS t FROM range(1000)"
    status, body, _ = ask(pages(store), sql)
    assert status == 200
    assert len(body) < 185_000
    assert "; there are more." in body
    status, body, _ = ask(pages(store), "SELECT repeat('a', 1000000) AS t FROM range(2)")
    assert body.count("<tr>") == 2
