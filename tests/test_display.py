"""What notebooks show: drawn from the values, without scripts, and safe whatever a store holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.display import MOST_BARS, NotebookBar, bars, duration, figure, strips, table
from statestore.format.names import manifest_path
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
from statestore.testing.faults import CountingStorage

EVIL = "<script>alert('&\"')</script>"
COLORS = {"currentColor", "#2e9e5b", "#c88a04", "#d64545"}
ELEMENTS = {"div", "b", "svg", "rect", "text", "title"}
ELEMENTS |= {"table", "thead", "tbody", "tr", "th", "td"}
MAX = 128


def take(store: StateStore, last: int) -> None:
    """Take a checkpoint whose names, keys and values would be a script."""
    rows = [{EVIL: EVIL, "m": f"{EVIL}{i}", "n": i if i else last} for i in range(10)]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed(
            EVIL, EVIL, rows, kind="map", key=EVIL, entry="m", max_parallelism=MAX
        )
        checkpoint.write_keyed("plain", "n", [{"k": i, "n": i} for i in range(100)], key="k")
        checkpoint.write_union("source", "offsets", [[{"p": 0}], [{"p": 1}, {"p": 2}]])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    store = StateStore.open(str(tmp_path_factory.mktemp("display")), table_format="parquet")
    for last in (0, 1):
        take(store, last)
    return store


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    folder = tmp_path_factory.mktemp("damaged")
    store = StateStore.open(str(folder), table_format="parquet")
    for last in (0, 1):
        take(store, last)
    # One that is the same in both checkpoints, and that no key of the other operator is in.
    file = min((folder / "operators" / "plain").rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    return store


Ask = Callable[[StateStore], Any]
VALUES: dict[str, Ask] = {
    "store": lambda store: store,
    "checkpoint": lambda store: store.checkpoint(),
    "restored": lambda store: store.restore(parallelism=3),
    "plan": lambda store: store.plan(parallelism=3),
    "comparison": lambda store: store.inspect.compare([2, 3, 5]),
    "diff": lambda store: store.inspect.diff(1, 2),
    "key": lambda store: store.inspect.key(EVIL, operator=EVIL),
    "skew": lambda store: store.inspect.skew(factor=1),
    "verified": lambda store: store.maintenance.verify("all"),
}
every_value = pytest.mark.parametrize("ask", VALUES.values(), ids=VALUES)


def drawn(value: Any) -> ET.Element:
    """Return what a notebook would show, parsed: it is well formed."""
    return ET.fromstring(value._repr_html_())


def words(value: Any) -> str:
    return " ".join(drawn(value).itertext())


def widths(picture: str) -> list[float]:
    return [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', picture)]


@every_value
def test_no_name_or_key_of_a_store_becomes_a_script(damaged: StateStore, ask: Ask) -> None:
    for element in drawn(ask(damaged)).iter():
        name = element.tag.rpartition("}")[2]
        assert name in ELEMENTS
        assert not [key for key in element.attrib if key.startswith("on") or key in ("href", "src")]


@pytest.mark.parametrize("name", ["checkpoint", "restored", "plan", "diff", "key", "skew"])
def test_a_name_that_would_be_a_script_is_text(store: StateStore, name: str) -> None:
    assert EVIL in words(VALUES[name](store))


@every_value
def test_it_is_seen_on_a_dark_page_and_on_a_light_one(store: StateStore, ask: Ask) -> None:
    html = ask(store)._repr_html_()
    assert set(re.findall(r'fill="([^"]*)"', html)) <= COLORS
    assert set(re.findall(r"color:([^;]*);", html)) == {"inherit"}


@every_value
def test_as_text_it_is_short(store: StateStore, ask: Ask) -> None:
    value = ask(store)
    assert repr(value).startswith(type(value).__name__)
    assert len(repr(value)) < 250


def test_a_restored_state_says_what_it_is(store: StateStore) -> None:
    restored = store.restore(parallelism=3)
    assert "'n' of operator 'plain'" in repr(restored.keyed("plain", "n"))
    assert "'offsets' of operator 'source'" in repr(restored.operator_state("source", "offsets"))


def test_a_store_shows_its_newest_checkpoints_and_reads_no_other(tmp_path: Path) -> None:
    storage = CountingStorage(str(tmp_path))
    store = StateStore.open(storage, table_format="parquet")
    for n in range(MOST_BARS + 3):
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "s", [{"k": 1, "n": n}], key="k", max_parallelism=1)
    (tmp_path / manifest_path(MOST_BARS)).write_bytes(b"{")
    for unread in (1, 2, 3):
        (tmp_path / manifest_path(unread)).unlink()
    said = words(store)
    assert f"{MOST_BARS + 3} checkpoints" not in said  # three are gone
    assert f"{MOST_BARS} checkpoints" in said
    assert len(widths(store._repr_html_())) == MOST_BARS - 1
    assert "✗ cannot be read: malformed-manifest" in said


def test_of_a_long_history_the_oldest_are_not_read(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path), table_format="parquet")
    for n in range(MOST_BARS + 1):
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "s", [{"k": 1, "n": n}], key="k", max_parallelism=1)
    (tmp_path / manifest_path(1)).write_bytes(b"{")
    assert "cannot be read" not in words(store)


def test_a_store_that_is_not_there_is_shown(tmp_path: Path) -> None:
    assert "no store" in words(StateStore.open(str(tmp_path / "none")))


def test_a_plan_draws_the_key_groups_before_and_now(store: StateStore) -> None:
    plan = store.plan(parallelism=3, operator="plain")
    [operator] = plan.operators
    cut = widths(plan._repr_html_())[: 2 + 3]
    each = 290 / 128
    assert cut == pytest.approx([64 * each, 64 * each, 43 * each, 43 * each, 42 * each], abs=0.1)
    said = words(plan)
    for subtask in operator.subtasks:
        assert f"subtask {subtask.subtask}" in said


def test_many_subtasks_are_drawn_together_by_the_largest_of_them(store: StateStore) -> None:
    plan = store.plan(parallelism=100, operator="plain")
    assert "largest of 0–4" in words(plan)
    assert len(widths(plan._repr_html_())) == 2 + 100 + MOST_BARS


def test_a_difference_says_how_many_rows_changed(store: StateStore) -> None:
    found = words(store.inspect.diff(1, 2))
    assert "1 of 3 states differ" in found
    assert "1 changed" in found
    assert "equal" in words(store.inspect.diff(1, 1))


def test_damage_is_drawn_and_named(damaged: StateStore) -> None:
    report = damaged.maintenance.verify("all")
    assert "#d64545" in report._repr_html_()
    assert report.broken[0].file[:60] in words(report)
    whole, bad, *_ = widths(report._repr_html_())
    assert bad == pytest.approx(whole / (report.files - 1), abs=0.1)


def test_a_comparison_marks_what_would_be_taken(store: StateStore) -> None:
    comparison = store.inspect.compare([2, 3])
    assert comparison._repr_html_().count("#2e9e5b") == 1
    assert f"recommended is {comparison.chosen}" in words(comparison)


def test_bars_are_as_long_as_their_values() -> None:
    picture = bars(
        [
            NotebookBar("a", ((30, "plain"), (10, "bad")), "40"),
            NotebookBar("b", ((20, "good"), (0, "bad")), "20"),
        ]
    )
    assert widths(picture) == pytest.approx([217.5, 72.5, 145])
    assert widths(bars([NotebookBar("none", ((0, "plain"),), "0")])) == []
    assert bars([]) == ""


def test_bars_beyond_what_can_be_seen_are_counted() -> None:
    picture = bars([NotebookBar(f"{n}", ((1, "plain"),), "") for n in range(MOST_BARS + 2)])
    assert len(widths(picture)) == MOST_BARS
    assert "… and 2 more" in picture


def test_strips_of_too_many_subtasks_are_one() -> None:
    many = KeyGroupAssignment(max_parallelism=1024, parallelism=1000).ranges()
    assert widths(strips([("before", 2, [KeyGroupRange(0, 1)]), ("now", 1024, many)])) == [290, 290]


def test_a_table_writes_numbers_as_people_read_them() -> None:
    shown = table(
        ["rows", "size_bytes", "created_at_ms", "share", "what"],
        [(1234, 5_000_000, 0, 0.12345, None), (0, 1, 1, 12345.6, "<b>" * 99)],
    )
    cells = [cell.text or "" for cell in ET.fromstring(shown).iter("td")]
    assert cells[:5] == ["1,234", "5.0 MB", "1970-01-01 00:00:00 UTC", "0.123", ""]
    assert cells[8:] == ["12,346", f"{('<b>' * 99)[:79]}…"]
    assert table(["a"], []) == ""
    assert "… and 5 more" in table(["a"], [(n,) for n in range(25)])


def test_a_title_is_escaped() -> None:
    assert ET.fromstring(figure(EVIL)).findtext("div/b") == EVIL


def test_a_key_shows_its_rows(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path), table_format="parquet")
    rows = pa.table({"k": ["a", "a"], "m": [1, 2], "v": [7, None]})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, kind="map", key="k", entry="m", max_parallelism=4)
    found = drawn(store.inspect.key("a"))
    assert [cell.text for cell in found.iter("td")] == ["a", "1", "7", "a", "2", "null"]


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "0 ms"),
        (350, "350 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (5_606, "5.61 s"),
        (-5_606, "-5.61 s"),
        (59_949, "59.9 s"),
        (59_950, "1 min"),
        (59_999, "1 min"),
        (119_000, "1.98 min"),
        (3_599_999, "1 h"),
        (86_399_999, "1 d"),
        (999.7, "1 s"),
        (0.25, "0.25 ms"),
        (150 * 60_000, "2.5 h"),
        (12 * 86_400_000, "12 d"),
        (86_400_000 * 999 + 80_000_000, "1,000 d"),
        (86_400_000 * 12_345, "12,345 d"),
    ],
)
def test_a_duration_is_rounded_to_three_digits(milliseconds: float, shown: str) -> None:
    assert duration(milliseconds) == shown
