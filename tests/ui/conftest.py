"""A store, a server of its pages, and a real browser."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import uvicorn
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from statestore import StateStore
from statestore.jobgraph.graph import JobGraph
from statestore.ui.app import application
from statestore.ui.sql import QueryLimits
from tests.support.browser import headless_browser, logged

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
SCRIPT = "<script>window.owned = true</script>"
GRAPH = """
[job]
parallelism = 3

[[operator]]
name = "orders"
uid = "source"

[[operator]]
name = "Totals by user"
uid = "totals"
max_parallelism = 128
inputs = [{ from = "orders", partitioner = "hash" }]

[[operator]]
name = "out"
uid = "out"
inputs = [{ from = "Totals by user", partitioner = "forward" }]
"""
LIMITS = QueryLimits(time_limit="1m", memory_bytes=2**30, concurrent=2)
OFFSETS = [[{"topic": "t", "partition": n, "offset": 10 * n}] for n in range(3)]


def take(store: StateStore, number: int) -> None:
    """Take a checkpoint; each has different totals, and one key is a script."""
    users = [*(f"u{n}" for n in range(100 + number)), SCRIPT]
    total = pa.table({"user": users, "total": [number * n for n in range(len(users))]})
    items = pa.table(
        {
            "user": ["u1"] * 40 + ["u2"] * 2,
            "position": pa.array([*range(40), 0, 1], pa.int32()),
            "item": [f"item {n}" for n in range(42)],
        }
    )
    with store.snapshot(parallelism=3, graph=JobGraph.from_toml(GRAPH)) as checkpoint:
        checkpoint.write_keyed("totals", "total", total, key="user", max_parallelism=128)
        checkpoint.write_keyed(
            "totals",
            SCRIPT,
            items,
            key="user",
            max_parallelism=128,
            kind="list",
            entry="position",
        )
        checkpoint.write_union("source", "offsets", OFFSETS)
        checkpoint.write_split("source", "splits", OFFSETS)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store with three checkpoints, the first of which is a savepoint."""
    folder = tmp_path_factory.mktemp("built") / "store"
    store = StateStore.open(str(folder), table_format="parquet", layout="auto")
    for number in range(1, 4):
        take(store, number)
    store.maintenance.savepoint("before", checkpoint=1)
    return folder


@contextmanager
def unchanged(folder: Path) -> Iterator[StateStore]:
    """Open a store that many tests read; fail if the block changes a file."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    yield StateStore.open(str(folder))
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.fixture
def store(built: Path) -> Iterator[StateStore]:
    """The store that all tests share; they only read it."""
    with unchanged(built) as store:
        yield store


@pytest.fixture
def own_store(built: Path, tmp_path: Path) -> StateStore:
    """A copy of the store, which one test changes."""
    folder = shutil.copytree(built, tmp_path / "store")
    return StateStore.open(str(folder), table_format="parquet", layout="auto")


Pages = Callable[..., str]


@pytest.fixture(scope="session")
def pages() -> Iterator[Pages]:
    """Serve stores; return the address of each. Calls with the same arguments share a server."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    @cache
    def serve(url: str, token: str | None, limits: QueryLimits) -> str:
        store = StateStore.open(url)
        app = application(store, hosts=("127.0.0.1",), token=token, limits=limits)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        own = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [own]})
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{own.getsockname()[1]}"

    yield lambda store, token=None, limits=LIMITS: serve(store.url, token, limits)
    for server, _ in running:
        server.should_exit = True
    for _, thread in running:
        thread.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    """A headless Chromium from the packages of Debian or Ubuntu."""
    with headless_browser() as driver:
        yield driver


@pytest.fixture
def page(browser: webdriver.Chrome, pages: Pages) -> Iterator[webdriver.Chrome]:
    """A browser whose console must be empty at the end.

    It leaves the page, which would poll its server further.
    """
    logged(browser)
    yield browser
    browser.get("about:blank")
    assert logged(browser) == []
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def titles(page: webdriver.Chrome, chart: str) -> list[str]:
    """Return the texts under the pointer in the columns of a chart, in order."""
    found = page.find_elements(By.CSS_SELECTOR, f"#chart-{chart} title")
    return [str(title.get_attribute("textContent")) for title in found]


def text(page: webdriver.Chrome, css: str) -> str:
    page.find_element(By.CSS_SELECTOR, css)
    return str(page.execute_script("return document.querySelector(arguments[0]).innerText", css))


def cells(page: webdriver.Chrome, css: str) -> list[list[str]]:
    script = """return [...document.querySelectorAll(arguments[0])].map(
        row => [...row.cells].map(cell => cell.textContent.trim()))"""
    found: list[list[str]] = page.execute_script(script, f"{css} tbody tr")
    return found


def until(page: webdriver.Chrome, what: Any) -> Any:
    return WebDriverWait(page, 20).until(what)
