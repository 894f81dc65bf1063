"""What a page offers to copy runs as it is: programs that read a state, and commands of a plan."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from statestore import StateStore
from statestore.cli.main import main
from statestore.format.state import TimeToLive
from tests.support.stores import uncompacted
from tests.ui.conftest import Pages, cells, text, until
from tests.ui.test_app import get

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
STATE = "/checkpoint/latest/state?operator=it%27s&state=s"


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    """A store with a quote in a name, a TTL, timers, and changes after a full checkpoint."""
    store = uncompacted(tmp_path_factory.mktemp("changed") / "a store")
    rows = pa.table({"k": ["a", "b"], "v": [1, 2], "seen": [4_000_000_000_000] * 2})
    timers = pa.table({"k": ["a", "b"], "at": [1_769_860_800_000, 2**63 - 1]})
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("it's", "s", rows, key="k", ttl=TimeToLive("7d", "seen"))
        checkpoint.write_keyed(
            "it's", "timers", timers, key="k", kind="timers", entry="at", time_domain="event"
        )
        checkpoint.write_union("source", "offsets", [[{"partition": 0}], [{"partition": 1}]])
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("it's", "s", [{"k": "a", "v": 9, "seen": 4_000_000_000_001}])
        checkpoint.carry_rest()
    return store


def copied(body: str) -> dict[str, str]:
    """Return the text of each part that can be copied, by its title."""
    found = re.findall(r'<summary>([^<]*)</summary><pre class="copy"><code>([^<]*)</code>', body)
    return {title: html.unescape(code) for title, code in found}


@pytest.mark.parametrize("title", ["DuckDB", "Polars", "Python"])
@pytest.mark.parametrize("state", ["it%27s&state=s", "source&state=offsets"])
def test_a_program_to_copy_reads_the_changes(
    pages: Pages,
    changed: StateStore,
    capsys: pytest.CaptureFixture[str],
    title: str,
    state: str,
) -> None:
    programs = copied(get(pages(changed), f"/checkpoint/latest/state?operator={state}")[1])
    exec(programs[title], {})
    shown = capsys.readouterr().out
    if state.startswith("source"):
        assert "Spark" not in programs
        assert "partition" in shown
    else:
        assert "4000000000001" in shown


@pytest.mark.spark
def test_a_program_of_spark_to_copy_runs(
    pages: Pages, changed: StateStore, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(copied(get(pages(changed), STATE)[1])["Spark"], {})
    assert "4000000000001" in capsys.readouterr().out


def test_a_state_warns_of_readers_of_its_delta_table(pages: Pages, changed: StateStore) -> None:
    body = get(pages(changed), STATE)[1]
    assert ("sees the last full checkpoint of this state only" in body) == (
        changed.checkpoint().manifest.keyed_entry("it's", "s").table.format == "delta"
    )
    assert "mixes" in body


def test_times_of_a_ttl_and_of_timers_are_times(pages: Pages, changed: StateStore) -> None:
    address = pages(changed)
    body = get(address, STATE)[1]
    assert "7 d after the time in seen" in body
    rows = get(address, STATE.replace("/state?", "/rows?"))[1]
    assert ">2096-10-02 07:06:40 UTC<" in rows
    assert 'data-order="4000000000001"' in rows
    timers = get(address, STATE.replace("/state?", "/rows?").replace("=s", "=timers"))[1]
    assert ">2026-01-31 12:00:00 UTC<" in timers
    assert f">{2**63 - 1:,}<" in timers or f">{2**63 - 1}<" in timers


def test_the_commands_of_a_rescale_plan_and_restore(
    pages: Pages, changed: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    body = get(pages(changed), "/checkpoint/latest/rescale?parallelism=3&balance=bytes")[1]
    plan, restore = copied(body)["As a command"].strip().splitlines()
    for command in (plan, restore):
        name, *words = shlex.split(command)
        assert (name, words[1:4]) == ("statestore", ["2", "--parallelism", "3"])
        assert main(words) == 0
    assert [*Path("restored").iterdir()]


def test_subtasks_with_the_same_elements_are_one_row(
    page: webdriver.Chrome, pages: Pages, store: StateStore
) -> None:
    page.get(pages(store) + "/checkpoint/3/rescale?parallelism=5")
    every = ", ".join(f"0 of old {subtask}" for subtask in range(3))
    tables = [cells(page, f"#elements-{number}") for number in (1, 2)]
    assert [["0–4", "3", every]] in tables
    assert [*([str(n), "1", f"0 of old {n}"] for n in range(3)), ["3–4", "0", ""]] in tables


def test_a_text_is_copied(page: webdriver.Chrome, pages: Pages, store: StateStore) -> None:
    page.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
    )
    page.get(pages(store) + "/checkpoint/3/rescale?parallelism=5")
    page.find_element(By.CSS_SELECTOR, "#command summary").click()
    page.find_element(By.CSS_SELECTOR, "#command button").click()
    until(page, lambda _: text(page, "#live") == "Copied.")
    read = "navigator.clipboard.readText().then(arguments[arguments.length - 1])"
    found = str(page.execute_async_script(read))
    assert found == text(page, "#command code").strip()
