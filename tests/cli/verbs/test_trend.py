"""``statestore trend``: the growth of states as text, on a terminal and as JSON."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import Result
from rich.console import Console

from statestore import StateStore
from statestore.cli.drawing import ASCII, UNICODE, Pen, size, sparkline
from statestore.cli.output import Page, json_document
from statestore.cli.restore_records import keep_restore
from statestore.cli.verbs.trend import FoundTrend, write_trend
from statestore.format.names import manifest_path
from statestore.restore.restart_time import MeasuredRestore
from tests.support.retimed import retime

Run = Callable[..., Result]

CHECKPOINTS = 8


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint every 6 hours: a state that grows, one that stays, and offsets."""
    path = tmp_path_factory.mktemp("trend") / "grown"
    store = StateStore.open(str(path), table_format="parquet")
    for number in range(1, CHECKPOINTS + 1):
        rows = pa.table({"k": [f"k{n}" for n in range(500 * number)], "v": range(500 * number)})
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("orders", "totals", rows, key="k", max_parallelism=8)
            if number == 1:
                checkpoint.write_keyed("limits", "by_user", rows, key="k", max_parallelism=8)
            else:
                checkpoint.carry("limits", "by_user")
            checkpoint.write_union("source", "offsets", [[{"o": number}], []])
    retime(path)
    return path


@pytest.fixture
def damaged(grown: Path, tmp_path: Path) -> Path:
    target = tmp_path / "damaged"
    for path in grown.rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(grown)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    (target / manifest_path(3)).write_bytes(b"{}")
    return target


def lines(done: Result) -> list[str]:
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_the_fastest_growing_state_comes_first(run: Run, grown: Path) -> None:
    text = lines(run("trend", "--store", grown))
    trend = StateStore.open(str(grown)).inspect.trend()
    assert text[0].startswith(f"8 checkpoints of {grown} (1–8), 2026-09-21 14:13:20 UTC and 1.75 d")
    columns = text[1].split("  ")
    assert [name.strip() for name in columns if name] == [
        *("state", "rows", "a day", "bytes", "bytes a day", "90 % bounds", "bytes so far"),
        *("skew", "age"),
    ]
    totals = trend.states[0]
    assert totals.size is not None
    assert totals.rows is not None
    assert text[2].startswith("orders.totals")
    heights = sparkline([point.size_bytes for point in totals.points], width=20, pen=UNICODE)
    for shown in ("4,000", "+2,000", f"+{size(round(totals.size.per_day))}", heights, "new"):
        assert shown in text[2]
    others = {line.split()[0]: line for line in text[3:5]}
    assert others["limits.by_user"].endswith(" 1.75 d")
    assert others["source.offsets"].endswith(" new")
    newest = trend.checkpoints[-1]
    assert text[5].startswith(f"all states: {size(newest.size_bytes)}, +")
    assert text[5].endswith("based on 8 checkpoints in 1.75 d")


def test_the_json_is_the_report(run: Run, grown: Path) -> None:
    done = run(
        *("trend", "--until", "1MB", "--until", "10m"),
        *("--last", 6, "--output", "json", "--store", grown),
        env={"STATESTORE_RESTORE_RATE": "1kB/s"},
    )
    found = json.loads("\n".join(lines(done)))
    store = StateStore.open(str(grown))
    trend = store.inspect.trend(last=6, size_bytes=10**6, restore_time="10m", rate=1000.0)
    assert found == {
        "store": str(grown),
        "trend": json.loads(json.dumps(json_document(trend))),
        "measured": None,
    }
    assert found["trend"]["states"][0]["size"]["direction"] == "grows"


def test_forecasts_are_in_the_order_of_their_times(run: Run, grown: Path) -> None:
    trend = StateStore.open(str(grown)).inspect.trend()
    now, later = trend.checkpoints[-1].size_bytes, 2 * trend.checkpoints[-1].size_bytes
    text = lines(run("trend", "--until", now, "--store", grown))
    assert f"size {size(now)} is reached:" in text
    assert any(line.split() == ["all", "states", "now"] for line in text)
    text = lines(run("trend", "--until", later, "--store", grown))
    found = text[text.index(f"size {size(later)} is reached:") + 2 :]
    assert [line.split("  ")[0] for line in found[:4]] == [
        *("all states", "orders.totals", "limits.by_user", "source.offsets")
    ]
    assert " and 2026-" in found[0]
    assert found[2].endswith("it does not clearly grow")


def test_the_restore_time_uses_the_measured_restores(
    run: Run, grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = lines(run("trend", "--until", "10m", "--store", grown))
    assert (
        "the rate is unknown, because no restore of this store was measured on this machine; run "
        "'statestore restore', or set restore_rate (STATESTORE_RESTORE_RATE), for example to "
        "200MB/s"
    ) in unknown
    assert any(line.endswith("the rate of a restore is not known") for line in unknown)
    manifest = StateStore.open(str(grown)).checkpoint().manifest
    restore = MeasuredRestore(
        at_ms=1_790_000_000_000,
        checkpoint_id=1,
        parallelism=2,
        size_bytes=64_000_000,
        requests=10,
        seconds=6_400.0,
    )
    keep_restore(os.environ, manifest.store_id, restore)
    known = lines(run("trend", "--until", "5s", "--store", grown))
    (line,) = [line for line in known if line.startswith("restore at parallelism 2: ")]
    assert line.endswith(
        "at 10.0 kB/s, as 1 restore on this machine took, the last at 2026-09-21 14:13:20 UTC"
    )
    assert "a restore at parallelism 2 takes 5 s:" in known


def test_a_target_is_a_size_or_a_time(run: Run, grown: Path) -> None:
    for targets, message in (
        (("soon",), "'soon' is neither a size such as 100GB nor a time such as 10m"),
        (("1GB", "2GB"), "pass at most one size and one time"),
    ):
        words = [word for target in targets for word in ("--until", target)]
        done = run("trend", *words, "--store", grown)
        assert (done.exit_code, done.stdout) == (2, "")
        assert message in done.stderr


def test_few_checkpoints_say_so(run: Run, grown: Path, fraud: Path) -> None:
    for arguments in (("--last", "4", "--store", grown), ("--store", fraud)):
        text = lines(run("trend", *arguments))
        assert text[1].startswith("not enough checkpoints: growth needs 5 at different times")
        assert "bytes a day" not in text[2]
        assert " a day" not in "\n".join(text[3:])


def test_a_damaged_checkpoint_is_named(run: Run, damaged: Path) -> None:
    done = run("trend", "--store", damaged)
    assert done.exit_code == 13
    assert done.stdout.startswith("checkpoint 3 cannot be read: ")
    assert "7 checkpoints of " in done.stdout
    assert done.stderr == (
        "error: 1 of 8 checkpoints cannot be read: 3; 'statestore verify all' finds the damage\n"
    )
    document = run("trend", "--output", "json", "--store", damaged)
    assert document.exit_code == 13
    assert [each["checkpoint_id"] for each in json.loads(document.stdout)["trend"]["unread"]] == [3]


@pytest.mark.parametrize(("width", "wide"), [(80, False), (100, True), (160, True)])
def test_the_table_fits_the_terminal(grown: Path, width: int, wide: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, no_color=True)
    store = StateStore.open(str(grown))
    trend = store.inspect.trend("orders")
    write_trend(Page(file, width, UNICODE, console), FoundTrend(store="s", trend=trend))
    shown = [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in table(file.getvalue())]
    assert len(shown) == 2  # no cell is wrapped
    assert max(map(len, shown)) <= width
    assert ("90 % bounds" in shown[0]) is wide


def table(text: str) -> list[str]:
    """Return the table of states, without the lines above and below it."""
    found = text.splitlines()
    return found[1 : next(n for n, line in enumerate(found) if line.startswith("all states"))]


def test_heights_are_proportional() -> None:
    assert sparkline([0, 1, 4, 8], width=10, pen=UNICODE) == "▁▂▅█"
    assert sparkline([0, 1, 4, 8], width=10, pen=ASCII) == "_.+@"
    assert sparkline([0, 0], width=10, pen=UNICODE) == "▁▁"
    assert sparkline([], width=10, pen=UNICODE) == ""


@pytest.mark.parametrize("pen", [UNICODE, ASCII])
@pytest.mark.parametrize("count", [1, 9, 10, 11, 1000])
def test_a_sparkline_fits_its_width_and_ends_with_the_last_value(pen: Pen, count: int) -> None:
    drawn = sparkline([*range(count - 1), 10**6], width=10, pen=pen)
    assert len(drawn) == min(count, 10)
    assert drawn[-1] == pen.heights[-1]
