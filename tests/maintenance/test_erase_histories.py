"""In every form a purged key is gone from all kept checkpoints, and all other rows are
unchanged.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from statestore import OperatorKey
from statestore.errors import DamagedFileError, StorageError
from statestore.restore.lookup import rows_of_key
from statestore.storage import LocalStorage
from statestore.store import StateStore
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import copy_of, with_every_call
from tests.support.forms import (
    FORMS,
    KEY,
    Checkpoints,
    Entries,
    Form,
    break_file,
    data_in,
    history,
    in_layers,
    names_of,
    rows_of,
    state_of,
)

pytestmark = pytest.mark.slow


@pytest.fixture(params=[(form, "ranged") for form in FORMS], ids=FORMS)
def taken(tmp_path: Path, request: pytest.FixtureRequest) -> Checkpoints:
    """A history in which checkpoints 1 to 3 lack the key.

    Checkpoint 4 adds the key, 5 changes it, and 6 deletes it. 7 clears it and writes it again, and
    8 concerns other keys.
    """
    taken = history(tmp_path / "store", *request.param, changes=2)
    taken.change({(KEY, 0): 1, (KEY, 1): 2, ("u001", 0): 5})
    taken.change({(KEY, 1): 3})
    taken.change({("u002", 1): 4}, cleared=[KEY])
    # Another key is cleared and written again in the same file, and must stay that way.
    taken.change({(KEY, 2): 6, ("u003", 2): 7}, cleared=[KEY, "u003"])
    taken.change({("u004", 0): 8})
    return taken


def without(rows: Entries) -> Entries:
    return {entry: value for entry, value in rows.items() if entry[0] != KEY}


def refuse_key(store: StateStore, number: int) -> None:
    """Assert that base and layers contain no row and no delete of the key."""
    for part in state_of(store, number).parts:
        assert rows_of_key(store.parts.storage, part, KEY).num_rows == 0


@pytest.mark.long_cases("plain", "layered")
def test_the_key_is_removed_from_all_checkpoints(taken: Checkpoints) -> None:
    store = taken.store
    store.maintenance.savepoint("five", 5)
    done = store.maintenance.forget(OperatorKey("u", KEY), search=False)
    new = {one.checkpoint_id: one.new_checkpoint_id for one in done.replaced}
    assert sorted(new) == [4, 5, 6, 7, 8]
    assert store.checkpoints() == (1, 2, 3, *sorted(map(int, filter(None, new.values()))))
    for old, rows in taken.taken.items():
        number = new.get(old) or old
        refuse_key(store, number)
        assert rows_of(store, number) == without(rows)
    assert rows_of(store, "five") == without(taken.taken[5])
    assert store.maintenance.verify("all", deep=True).is_intact
    assert not store.maintenance.forget(OperatorKey("u", KEY), search=False).replaced


@pytest.mark.long_cases("plain", "compacted")
def test_after_a_collection_no_file_contains_the_key(taken: Checkpoints) -> None:
    store = taken.store
    found = [
        one.file for one in store.maintenance.find_subject(OperatorKey("u", KEY)).found if one.rows
    ]
    assert found
    if taken.form == "layered":
        assert len([file for file in found if "/changes/" in file]) == 4
    store.maintenance.forget(OperatorKey("u", KEY), search=False)
    store.maintenance.gc(minimum_age="0")
    assert store.maintenance.find_subject(OperatorKey("u", KEY)).found == ()
    assert all(
        KEY.encode() not in f.read_bytes() for f in Path(store.url).rglob("*") if f.is_file()
    )


@pytest.mark.long_cases("plain", "layered")
def test_each_shared_file_is_rewritten_once(taken: Checkpoints) -> None:
    store = taken.store
    holding = {one.file for one in store.maintenance.find_subject(OperatorKey("u", KEY)).found}
    before = data_in(store.url)
    store.maintenance.forget(OperatorKey("u", KEY), search=False)
    assert 0 < len(data_in(store.url) - before) <= len(holding)


@in_layers
def test_a_shared_file_is_rewritten_for_all_its_checkpoints(taken: Checkpoints) -> None:
    store, before = taken.store, data_in(taken.store.url)
    replaced = store.maintenance.forget(OperatorKey("u", KEY), search=False).replaced
    # The file of checkpoint 4, which 5 to 8 use too, is one of them.
    assert [one.states[0].files for one in replaced] == [1, 2, 3, 4, 4]
    shared = [names_of(store, one.new_checkpoint_id or 0) - before for one in replaced]
    assert all(older & newer for older, newer in pairwise(shared))


def test_a_layer_that_becomes_empty_is_removed(tmp_path: Path) -> None:
    taken = history(tmp_path / "store", changes=1)
    taken.change({(KEY, 0): 1})
    assert len(state_of(taken.store).layers) == 2
    taken.store.maintenance.forget(OperatorKey("u", KEY), search=False)
    assert len(state_of(taken.store).layers) == 1
    assert rows_of(taken.store) == without(taken.rows)


@pytest.mark.long_cases("plain", "compacted")
@pytest.mark.parametrize("form", FORMS)
def test_a_key_of_the_first_checkpoint_is_removed_from_all_later_ones(
    tmp_path: Path, form: Form
) -> None:
    taken = history(tmp_path / "store", form, changes=3)
    gone = sorted(taken.taken[1])[0][0]
    done = taken.store.maintenance.forget(OperatorKey("u", gone), search=False)
    assert [one.checkpoint_id for one in done.replaced] == [1, 2, 3, 4]
    for one in done.replaced:
        left = {e: v for e, v in taken.taken[one.checkpoint_id].items() if e[0] != gone}
        assert rows_of(taken.store, one.new_checkpoint_id or 0) == left
    assert taken.store.maintenance.gc(minimum_age="0").removed.files
    assert taken.store.maintenance.find_subject(OperatorKey("u", gone)).found == ()


@pytest.mark.long_cases("plain", "compacted")
def test_a_purge_of_one_checkpoint_keeps_the_files_of_others(taken: Checkpoints) -> None:
    new = {
        one.checkpoint_id: one.new_checkpoint_id
        for one in taken.store.maintenance.forget(
            OperatorKey("u", KEY), search=False, checkpoint=5
        ).replaced
    }
    refuse_key(taken.store, new[5] or 0)
    assert rows_of(taken.store, new[5] or 0) == without(taken.taken[5])
    assert rows_of(taken.store, 4) == taken.taken[4]
    assert rows_of(taken.store, new[8] or 0) == taken.taken[8]


def test_a_damaged_file_blocks_the_purge_before_anything_changes(taken: Checkpoints) -> None:
    name = next(
        one.file
        for one in taken.store.maintenance.find_subject(OperatorKey("u", KEY)).found
        if one.rows
    )
    break_file(taken.store, name)
    before = data_in(taken.store.url)
    with pytest.raises(DamagedFileError):
        taken.store.maintenance.forget(OperatorKey("u", KEY), search=False)
    assert data_in(taken.store.url) == before
    assert taken.store.checkpoints() == tuple(range(1, 9))


@pytest.mark.slow
@with_every_call
@in_layers
def test_a_failure_anywhere_leaves_no_checkpoint_without_files(
    taken: Checkpoints, tmp_path: Path, every_call: bool
) -> None:
    """Files that several new checkpoints share are committed with the first of them."""
    counted = copy_of(Path(taken.store.url), tmp_path / "counted")
    calls = calls_of(
        LocalStorage(str(counted)),
        lambda storage: StateStore.open(storage, table_format="parquet").maintenance.forget(
            OperatorKey("u", KEY), search=False
        ),
    )
    changing = [c.number for c in calls if c.operation in ("put_if_absent", "open_write", "sync")]
    assert len(changing) > 8
    for at in changing[:: 3 if every_call else 9]:
        folder = copy_of(Path(taken.store.url), tmp_path / f"at-{at}")
        faulty = FaultyStorage(LocalStorage(str(folder)), Fault(at, FaultKind.ERROR))
        with pytest.raises(StorageError):
            StateStore.open(faulty, table_format="parquet").maintenance.forget(
                OperatorKey("u", KEY), search=False
            )
        store = StateStore.open(str(folder), table_format="parquet")
        assert store.maintenance.verify("all").is_intact
        store.maintenance.forget(OperatorKey("u", KEY), search=False)
        store.maintenance.gc(minimum_age="0")
        assert store.maintenance.verify("all").strays == ()
        assert rows_of(store) == without(taken.rows)
        assert store.maintenance.find_subject(OperatorKey("u", KEY)).found == ()
