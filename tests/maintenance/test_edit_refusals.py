"""Edits that are refused before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import Changes, StateStore, TimeToLive
from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.maintenance.edit_keys import RowUpdate
from tests.maintenance.test_edit import ROWS, content, is_whole, make
from tests.support.forms import RANGED_IN_EACH_RUN

pytestmark = pytest.mark.slow


@pytest.fixture(params=RANGED_IN_EACH_RUN)
def store(request: Any, tmp_path: Path) -> StateStore:
    return make(tmp_path / "store", request.param)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (RowUpdate(keys=["nobody"], values={"v": 1}), "no row of the key 'nobody', so there is"),
        (RowUpdate(keys=["u1"], values={"k": "u2"}), "'k' identifies the rows of"),
        (RowUpdate(keys=["u1"], values={"w": 2}), "has no column 'w'; its columns are"),
        (RowUpdate(keys=["u1"], values={"v": 1}, where={"v": 2}), "no row of the key 'u1' with"),
        (RowUpdate(keys=["u1"], values={"v": "many"}), "'v'"),
    ],
)
def test_an_invalid_update_is_refused(store: StateStore, update: RowUpdate, message: str) -> None:
    with pytest.raises((InvalidArgumentError, SchemaMismatchError), match=message):
        store.maintenance.edit("u", "n", update=update)
    assert store.checkpoints() == (1,)


def test_the_keys_of_an_update_are_a_list() -> None:
    """A text alone would be read as one key for each of its letters."""
    keys: Any = "u1"
    with pytest.raises(InvalidArgumentError, match=r"RowUpdate: keys must be of type Sequence"):
        RowUpdate(keys=keys, values={"v": 1})


def test_the_first_wrong_row_to_put_is_named(store: StateStore) -> None:
    put: Any = [{"k": "u1", "v": 1}, "u2"]
    with pytest.raises(InvalidArgumentError, match=r"put\[1\] must be of type Mapping.*not str"):
        store.maintenance.edit("u", "n", put=put)


def test_a_row_cannot_be_put_and_updated(store: StateStore) -> None:
    update = RowUpdate(keys=["u1", "u2"], values={"v": 9})
    with pytest.raises(InvalidArgumentError, match="puts a row and updates the same row"):
        store.maintenance.edit("u", "n", put=[{"k": "u2", "v": 3}], update=update)
    store.maintenance.edit("u", "n", put=[{"k": "u3", "v": 8}], update=update, delete=["u4"])
    changed = {"u1": 9, "u2": 9, "u3": 8}
    assert content(store) == {k: v for k, v in (ROWS | changed).items() if k != "u4"}


def test_a_key_cannot_be_deleted_and_updated(store: StateStore) -> None:
    update = RowUpdate(keys=["u1", "u2"], values={"v": 9})
    with pytest.raises(InvalidArgumentError, match="deletes the key 'u2' and updates its rows"):
        store.maintenance.edit("u", "n", delete=["u3", "u2"], update=update)
    assert store.checkpoints() == (1,)


@pytest.mark.parametrize("allow_empty", [True, False])
def test_an_empty_result_can_be_refused(store: StateStore, allow_empty: bool) -> None:
    sql = "SELECT * FROM state WHERE v > 1000"
    would = store.maintenance.edit("u", "n", sql=sql, allow_empty=allow_empty, dry_run=True)
    assert (would.deleted, would.rows_after) == (40, 0)
    if allow_empty:
        assert store.maintenance.edit("u", "n", sql=sql).rows_after == 0
        # There is nothing to remove any more.
        store.maintenance.edit("u", "n", sql=sql, allow_empty=False)
    else:
        with pytest.raises(InvalidArgumentError, match="would remove all 40 rows of state 'n'"):
            store.maintenance.edit("u", "n", sql=sql, allow_empty=False)
        assert store.checkpoints() == (1,)
    assert is_whole(store)


def test_a_refused_edit_leaves_the_store_to_its_job(store: StateStore) -> None:
    """Deleted rows in layers are no rows of the state, and the job can still commit."""
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "n", Changes(deletes=[{"k": key} for key in [*ROWS][1:]]))
        checkpoint.carry_rest()
    other = StateStore.open(store.url, table_format="parquet")
    sql = "SELECT * FROM state WHERE false"
    with pytest.raises(InvalidArgumentError, match=r"all 1 row of .*pass allow_empty=True: then"):
        other.maintenance.edit("u", "n", sql=sql, allow_empty=False)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "n", Changes(deletes=[{"k": next(iter(ROWS))}]))
        checkpoint.carry_rest()
    # There is nothing to remove any more.
    other.maintenance.edit("u", "n", sql=sql, allow_empty=False)


def test_a_row_to_put_needs_the_time_of_its_last_update(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path), table_format="parquet")
    ttl = TimeToLive("36h", column="t")
    with store.snapshot(parallelism=1) as checkpoint:
        rows = pa.table({"k": ["a"], "v": [1], "t": [1]})
        checkpoint.write_keyed("u", "n", rows, key="k", ttl=ttl)
    with pytest.raises(InvalidArgumentError, match="no value in the TTL column 't'; give it"):
        store.maintenance.edit("u", "n", put=[{"k": "b", "v": 2}])
    with pytest.raises(InvalidArgumentError, match="no value in the TTL column 't'; give it"):
        store.maintenance.edit("u", "n", update=RowUpdate(keys=["a"], values={"t": None}))
    assert store.checkpoints() == (1,)
