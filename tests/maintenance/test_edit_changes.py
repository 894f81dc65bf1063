"""A state with changes is edited as if it had none, and nothing is left beside it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from statestore.errors import DamagedFileError, InvalidArgumentError
from tests.support.cared import (
    break_file,
    change,
    data_in,
    history,
    layer_file,
    names_of,
    rows_of,
    state_of,
)
from tests.support.layered import Entries, Layered, table

LAYOUTS = ["ranged", "partitioned"]


@pytest.fixture(params=LAYOUTS)
def taken(tmp_path: Path, request: pytest.FixtureRequest) -> Layered:
    return history(tmp_path / "store", layout=request.param)


def row(user: str, entry: int, value: int) -> dict[str, Any]:
    return {"k": user, "m": entry, "v": value}


def user_of(taken: Layered, place: int) -> str:
    """A user that is there; those of the last changes among them."""
    return sorted({user for user, _ in taken.rows})[place]


def test_single_keys_are_deleted_and_put_over_layers(taken: Layered) -> None:
    store, gone, changed = taken.store, user_of(taken, 5), user_of(taken, 9)
    newest = "new-4"  # lies in the last layer alone
    before = data_in(store.url)
    put = [row(changed, 0, -1), row("nobody", 7, -2), row(newest, 5, -3)]
    planned = store.maintenance.edit("u", "s", delete=[gone], put=put, dry_run=True)
    assert data_in(store.url) == before
    done = store.maintenance.edit("u", "s", delete=[gone], put=put)
    rows = {entry: value for entry, value in taken.rows.items() if entry[0] != gone}
    expected = rows | {(changed, 0): -1, ("nobody", 7): -2, (newest, 5): -3}
    assert rows_of(store) == expected
    assert done.deleted == len(taken.rows) - len(rows)
    assert (planned.deleted, planned.put) == (done.deleted, done.put) == (done.deleted, 3)
    assert planned.rows_after == done.rows_after == state_of(store).rows
    assert data_in(store.url) == before | names_of(store)
    assert rows_of(store, 5) == taken.taken[5]
    assert store.maintenance.verify("all", deep=True).is_intact


def test_what_single_keys_leave_alone_keeps_its_files_and_layers(tmp_path: Path) -> None:
    taken = history(tmp_path / "store")
    store, before = taken.store, state_of(taken.store)
    store.maintenance.edit("u", "s", delete=[user_of(taken, 3)])
    after = state_of(store)
    assert len({*before.handles} & {*after.handles}) == len(before.handles) - 1
    assert [layer.entry for layer in after.layers] == [layer.entry for layer in before.layers]
    assert all(a.live != b.live for a, b in zip(before.layers, after.layers, strict=True))


def test_a_key_that_only_a_layer_deleted_is_not_there(tmp_path: Path) -> None:
    taken = history(tmp_path / "store", 1)
    gone = user_of(taken, 2)
    taken.change(cleared=[gone])
    assert taken.store.maintenance.edit("u", "s", delete=[gone]).new_id is None
    taken.store.maintenance.edit("u", "s", put=[row(gone, 1, 5)])
    assert rows_of(taken.store) == taken.rows | {(gone, 1): 5}


def test_all_rows_take_the_place_of_base_and_layers(taken: Layered) -> None:
    store, rows = taken.store, {("only", 1): 2, ("other", 0): 3}
    before = data_in(store.url)
    planned = store.maintenance.edit("u", "s", rows=table(rows), dry_run=True)
    assert planned.files == len(names_of(store))
    done = store.maintenance.edit("u", "s", rows=table(rows))
    assert rows_of(store) == rows
    assert (done.rows_after, state_of(store).layers) == (2, ())
    assert data_in(store.url) == before | names_of(store)


def test_sql_sees_the_rows_and_not_the_changes(taken: Layered) -> None:
    store, before = taken.store, data_in(taken.store.url)
    sql = "SELECT k, m, v + 1 AS v FROM state WHERE m < 2"
    done = store.maintenance.edit("u", "s", sql=sql)
    expected: Entries = {e: v + 1 for e, v in taken.rows.items() if e[1] < 2}
    assert rows_of(store) == expected
    assert done.rows_after == len(expected)
    assert data_in(store.url) == before | names_of(store)


def test_a_damaged_layer_is_not_edited_into_a_base(taken: Layered) -> None:
    before = data_in(taken.store.url)
    break_file(taken.store, layer_file(taken.store, 3))
    with pytest.raises(DamagedFileError):
        taken.store.maintenance.edit(
            "u", "s", put=[row(u, 0, 1) for u in {u for u, _ in taken.rows}]
        )
    assert data_in(taken.store.url) == before
    assert taken.store.checkpoints() == (1, 2, 3, 4, 5)


def test_an_edit_that_is_refused_leaves_nothing(taken: Layered) -> None:
    before = data_in(taken.store.url)
    with pytest.raises(InvalidArgumentError):
        taken.store.maintenance.edit("u", "s", put=[row(user_of(taken, 1), 0, 1)] * 2)
    assert data_in(taken.store.url) == before


def test_changes_go_on_over_an_edited_state(taken: Layered) -> None:
    taken.store.maintenance.edit("u", "s", delete=[user_of(taken, 4)], put=[row("nobody", 0, 1)])
    taken.rows = rows_of(taken.store)
    change(taken, 9, random.Random(2))
    assert rows_of(taken.store) == taken.rows
