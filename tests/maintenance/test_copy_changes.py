"""A checkpoint with changes is the same in another store, and brings each file once."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from statestore.errors import DamagedFileError, StorageError
from statestore.storage import LocalStorage
from statestore.store import StateStore
from statestore.testing.faults import Fault, FaultKind, FaultyStorage
from tests.support.cared import (
    break_file,
    data_in,
    digest_of,
    history,
    layer_file,
    names_of,
    rows_of,
    state_of,
)
from tests.support.layered import Layered


@pytest.fixture
def taken(tmp_path: Path) -> Layered:
    return history(tmp_path / "store")


@pytest.fixture
def target(tmp_path: Path) -> StateStore:
    return StateStore.open(str(tmp_path / "target"), table_format="parquet", compaction=None)


def test_a_copy_has_base_and_layers(taken: Layered, target: StateStore) -> None:
    done = taken.store.maintenance.copy(5, target)
    assert done.copied_files == done.files == len(names_of(taken.store))
    assert data_in(target.url) == names_of(target)
    assert not names_of(target) & names_of(taken.store)
    assert len(state_of(target).layers) == 4
    assert rows_of(target) == taken.rows
    assert digest_of(target) == digest_of(taken.store)
    assert target.maintenance.verify("all", True).is_intact


def test_copies_of_several_copy_each_file_once(taken: Layered, target: StateStore) -> None:
    copied = [taken.store.maintenance.copy(number, target).copied_files for number in taken.taken]
    seen = [set(), *(names_of(taken.store, number) for number in taken.taken)]
    assert copied == [len(after - before) for before, after in pairwise(seen)]
    assert sum(copied) == len(data_in(target.url))
    for number, rows in taken.taken.items():
        assert rows_of(target, number) == rows


def test_a_dry_run_counts_layers(taken: Layered, target: StateStore) -> None:
    planned = taken.store.maintenance.copy(5, target, dry_run=True)
    assert planned.copied_files == len(names_of(taken.store))


def test_a_copy_that_was_broken_off_goes_on(taken: Layered, target: StateStore) -> None:
    for at in range(8, 20, 3):
        faulty = FaultyStorage(LocalStorage(target.url), Fault(at, FaultKind.ERROR))
        with suppress(StorageError):
            taken.store.maintenance.copy(5, StateStore.over(faulty, table_format="parquet"))
    done = taken.store.maintenance.copy(5, target)
    assert done.found or done.copied_files <= done.files
    assert rows_of(target) == taken.rows


def test_a_damaged_layer_is_not_copied(taken: Layered, target: StateStore) -> None:
    break_file(taken.store, layer_file(taken.store, 2))
    with pytest.raises(DamagedFileError, match="changes"):
        taken.store.maintenance.copy(5, target)
    assert target.checkpoints() == ()


def test_changes_go_on_over_a_copy(taken: Layered, target: StateStore) -> None:
    taken.store.maintenance.copy(5, target)
    with target.snapshot(parallelism=2) as checkpoint:
        checkpoint.changes(
            "u",
            "s",
            [{"k": "late", "m": 1, "v": 2}],
            kind="map",
            key="k",
            entry="m",
            max_parallelism=16,
        )
    assert rows_of(target) == taken.rows | {("late", 1): 2}
