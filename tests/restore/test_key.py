"""Look up one key in all operators of a checkpoint, with at most one file read per state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError, MissingFileError, StateNotFoundError
from statestore.format.state import Layout
from statestore.testing.faults import CountingStorage


def rows(**columns: Any) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.fixture(params=[layout.value for layout in Layout])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    names = [f"u{i}" for i in range(200)]
    options: dict[str, Any] = {"max_parallelism": 8, "layout": request.param}
    for factor in (1, 2):
        n = [factor * i for i in range(200)]
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("users", "totals", rows(user=names, n=n), key="user", **options)
            shops = rows(name=names * 2, shop=["x"] * 200 + ["y"] * 200, n=n * 2)
            checkpoint.write_keyed(
                "shops", "totals", shops, kind="map", key="name", entry="shop", **options
            )
            checkpoint.write_keyed(
                "cards", "owners", rows(card=n, user=names), key="card", **options
            )
            checkpoint.write_union("source", "offsets", [[{"p": 1}], []])
    return tmp_path / "store"


def test_a_key_in_all_states(folder: Path) -> None:
    found = StateStore.open(str(folder)).inspect.key("u7")
    assert found.checkpoint_id == 2
    assert [(s.entry.state.uid, s.entry.state.name, list(s.rows)) for s in found.states] == [
        ("shops", "totals", rows(name=["u7"] * 2, shop=["x", "y"], n=[14, 14])),
        ("users", "totals", [{"user": "u7", "n": 14}]),
    ]
    [skipped] = found.skipped
    assert (skipped.entry.state.uid, str(skipped.key)) == ("cards", "card long")
    assert "'u7' is not a key of state 'owners' of operator 'cards'" in skipped.reason


def test_one_file_per_state_is_read(folder: Path) -> None:
    storage = CountingStorage(str(folder))
    assert StateStore.open(storage).inspect.key("u7", 1).rows == 3
    data = {name: n for name, n in storage.opened.items() if name.endswith(".parquet")}
    assert sorted(name.split("/")[1] for name in data) == ["shops", "users"]
    assert set(data.values()) == {1}


def test_an_absent_key_has_an_empty_result(folder: Path) -> None:
    found = StateStore.open(str(folder)).inspect.key("nobody")
    assert (found.rows, len(found.states), len(found.skipped)) == (0, 2, 1)


def test_states_can_be_chosen(folder: Path) -> None:
    store = StateStore.open(str(folder))
    assert [s.entry.state.uid for s in store.inspect.key("u7", operator="users").states] == [
        "users"
    ]
    assert [s.entry.state.uid for s in store.inspect.key("u7", state="totals").states] == [
        "shops",
        "users",
    ]
    assert store.inspect.key("u7", operator="users", state="totals").skipped == ()
    assert [s.entry.state.uid for s in store.inspect.key(lambda state: 14).states] == ["cards"]
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"operator": "user"}, "operator 'user' has no keyed state .* cards, shops, users"),
        ({"operator": "source"}, "operator 'source' has no keyed state .* cards, shops, users"),
        ({"state": "total"}, "no keyed state 'total' .* owners, totals"),
        ({"operator": "users", "state": "total"}, "no state 'total' .* 'totals'"),
    )
    for options, message in wrong:
        with pytest.raises(StateNotFoundError, match=message):
            store.inspect.key("u7", **options)


def test_a_key_that_fits_no_state_is_refused_with_the_key_columns(folder: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"card long.*name string.*user string"):
        StateStore.open(str(folder)).inspect.key(("a", 1))


def test_an_error_about_a_missing_file_names_its_state(folder: Path) -> None:
    store = StateStore.open(str(folder))
    for path in (folder / "operators/users").rglob("0000000002-*.parquet"):
        path.unlink()
    with pytest.raises(MissingFileError) as caught:
        store.inspect.key("u7")
    assert (
        "while looking the key up in state 'totals' of operator 'users'" in caught.value.__notes__
    )
