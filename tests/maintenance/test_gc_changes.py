"""What layers are changes of stays as long as one of them is kept, and goes with the last."""

from __future__ import annotations

import random
from pathlib import Path

from statestore.format.layers import CompactionRule
from tests.support.cared import change, data_in, digest_of, history, names_of, rows_of, state_of


def base_of(names: set[str]) -> set[str]:
    return {name for name in names if "/keyed/" in name}


def test_a_base_stays_until_the_last_of_ten_that_name_it_is_given_up(tmp_path: Path) -> None:
    taken = history(tmp_path / "store", 10)
    store = taken.store
    base = base_of(names_of(store, 1))
    for retain in (8, 4, 1):
        store.maintenance.expire(retain=retain)
        store.maintenance.gc(minimum_age_s=0)
        kept = store.checkpoints()
        assert data_in(store.url) == set().union(*(names_of(store, number) for number in kept))
        assert base <= data_in(store.url)
        assert {number: rows_of(store, number) for number in kept} == {
            number: taken.taken[number] for number in kept
        }
    left = names_of(store)
    taken.full(taken.rows)
    expired = store.maintenance.expire(retain=1)
    assert expired.files == len(left)
    assert store.maintenance.gc(minimum_age_s=0).removed.files == expired.files
    assert data_in(store.url) == names_of(store)


def test_a_layer_that_was_merged_goes_with_the_checkpoints_that_name_it(tmp_path: Path) -> None:
    rule = CompactionRule(merge_layers=2, share=9, most_share=9)
    taken = history(tmp_path / "store", 5, compaction=rule)
    store = taken.store
    before, after = names_of(store, 2), names_of(store)
    assert len(state_of(store).layers) < 5
    assert before - after
    store.maintenance.expire(retain=1)
    released = data_in(store.url) - after
    assert before - after <= released
    collected = store.maintenance.gc(minimum_age_s=0)
    assert collected.removed.files == len(released)
    assert data_in(store.url) == after
    assert rows_of(store) == taken.rows


def test_a_savepoint_of_layers_needs_nothing_else(tmp_path: Path) -> None:
    taken = history(tmp_path / "store", 3)
    store, digest = taken.store, digest_of(taken.store)
    number = max(taken.taken)
    store.maintenance.savepoint("kept", number)
    change(taken, 9, random.Random(3))
    taken.full({("x", 0): 1})
    store.maintenance.expire(retain=1)
    store.maintenance.gc(minimum_age_s=0)
    assert names_of(store, "kept") <= data_in(store.url)
    assert digest_of(store, "kept") == digest
    assert rows_of(store, "kept") == taken.taken[number]
