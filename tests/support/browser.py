"""A real browser for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

__all__ = ["headless_browser", "logged"]


@contextmanager
def headless_browser() -> Iterator[webdriver.Chrome]:
    """Start a headless Chromium from the packages of Debian or Ubuntu."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if None in found:
        pytest.fail("the pages are tested in a browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(found[0])
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-extensions",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(service=Service(str(found[1])), options=options)
    driver.implicitly_wait(10)
    driver.set_window_size(1200, 1400)
    yield driver
    driver.quit()


def logged(page: webdriver.Chrome) -> list[Any]:
    """Return the messages in the browser's console since the last call."""
    log: Any = page.get_log
    return list(log("browser"))
