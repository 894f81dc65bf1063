"""In every form a damaged file is never skipped silently."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from statestore.format.layers import CompactionRule
from statestore.layers.intact_key_groups import group_digests
from statestore.maintenance.salvage import LostPart, SalvagedState
from statestore.store import StateStore
from tests.support.damage import change_unread_byte
from tests.support.forms import (
    Checkpoints,
    Entries,
    break_file,
    change,
    data_in,
    digest_of,
    files_of,
    groups_of,
    history,
    in_both_layouts,
    in_layers,
    layer_file,
    names_of,
    newest_file,
    rows_of,
    state_of,
)

pytestmark = pytest.mark.slow


def lost_groups(parts: tuple[LostPart, ...]) -> set[int]:
    return {g for part in parts for g in range(part.first or 0, (part.last or 0) + 1)}


def by_group(store: StateStore, number: int) -> dict[str, int]:
    """Return the key group of each user of a checkpoint."""
    state = store.restore(checkpoint=number, parallelism=1).keyed("u", "s")
    return {row["k"]: row["key_group"] for row in state.to_arrow(0).to_pylist()}


def kept(rows: Entries, groups: dict[str, int], among: set[int], *, inside: bool) -> Entries:
    return {e: v for e, v in rows.items() if (groups[e[0]] in among) is inside}


def salvaged(store: StateStore, *, from_older: bool = False) -> SalvagedState:
    (state,) = store.maintenance.salvage("latest", from_older).states
    return state


def test_an_intact_checkpoint_makes_no_new_one(taken: Checkpoints) -> None:
    assert taken.store.maintenance.salvage("latest").is_intact
    assert taken.store.checkpoints() == (1, 2, 3, 4, 5)


@pytest.mark.long_cases("base-compacted-ranged", "last layer-layered-partitioned")
@in_both_layouts
@pytest.mark.parametrize(
    "part", ["base", pytest.param("first layer", marks=pytest.mark.long), "last layer"]
)
def test_lost_key_groups_are_reported_and_missing(taken: Checkpoints, part: str) -> None:
    """The base and a layer are damaged, or three files if there is no layer."""
    store, groups = taken.store, by_group(taken.store, 5)
    if part == "base":
        base = state_of(store)
        name = f"{base.table.path}/{base.handles[0].path}"
    elif taken.form == "plain":
        name = files_of(store)[1 if part == "first layer" else 2]
    else:
        name = layer_file(store, 0 if part == "first layer" else -1)
    lost = groups_of(store, name)
    break_file(store, name)
    report = store.maintenance.salvage("latest")
    (state,) = report.states
    assert [one.file for one in report.damaged] == [name]
    assert lost_groups(state.lost) == lost
    assert all(part.filled_from is None for part in state.lost)
    expected = kept(taken.rows, groups, lost, inside=False)
    assert rows_of(store) == expected
    assert state.rows_after == len(expected)
    assert not state_of(store).layers
    assert store.maintenance.verify("latest", deep=True).is_intact


@pytest.mark.long_cases("compacted-ranged")
@in_both_layouts
def test_lost_key_groups_are_filled_from_the_checkpoint_before(taken: Checkpoints) -> None:
    store, now, before = taken.store, by_group(taken.store, 5), by_group(taken.store, 4)
    name = newest_file(store)
    assert name not in names_of(store, 4)
    lost = groups_of(store, name)
    break_file(store, name)
    planned = store.maintenance.salvage("latest", True, dry_run=True)
    assert planned.new_checkpoint_id is None
    state = salvaged(store, from_older=True)
    assert planned.states == (state,)
    assert {part.filled_from for part in state.lost} == {4}
    expected = kept(taken.taken[5], now, lost, inside=False)
    expected |= kept(taken.taken[4], before, lost, inside=True)
    assert rows_of(store) == expected
    assert state.rows_after == len(expected)


@in_layers
def test_a_shared_layer_is_filled_from_before_it(taken: Checkpoints) -> None:
    store, now, first = taken.store, by_group(taken.store, 5), by_group(taken.store, 1)
    name = layer_file(store, 0)  # checkpoints 2 to 5 share it
    lost = groups_of(store, name)
    break_file(store, name)
    state = salvaged(store, from_older=True)
    assert {part.filled_from for part in state.lost} == {1}
    expected = kept(taken.taken[5], now, lost, inside=False)
    assert rows_of(store) == expected | kept(taken.taken[1], first, lost, inside=True)


def test_a_full_checkpoint_is_filled_from_the_one_before(taken: Checkpoints) -> None:
    store = taken.store
    number = taken.full({e: v + 1 for e, v in taken.rows.items()})
    now, before = by_group(store, number), by_group(store, 5)
    name = files_of(store)[0]
    lost = groups_of(store, name)
    break_file(store, name)
    state = salvaged(store, from_older=True)
    assert {part.filled_from for part in state.lost} == {5}
    expected = kept(taken.rows, now, lost, inside=False)
    assert rows_of(store) == expected | kept(taken.taken[5], before, lost, inside=True)


def test_a_damaged_byte_that_no_reader_needs_loses_nothing(taken: Checkpoints) -> None:
    store, digest = taken.store, digest_of(taken.store)
    change_unread_byte(Path(store.url, newest_file(store)))
    assert salvaged(store).lost == ()
    assert digest_of(store) == digest
    assert store.maintenance.verify("latest", deep=True).is_intact


def test_superseded_changes_are_not_a_loss(tmp_path: Path) -> None:
    """Key groups of a layer that were folded into the base are not needed."""
    rule = CompactionRule(merge_layers=99, share=0.05, most_share=9, bytes_per_checkpoint=1)
    taken = history(tmp_path / "store", rule=rule)
    store, groups = taken.store, by_group(taken.store, 5)
    layer = next(one for one in state_of(store).layers if len(one.entry.handles) == 2)
    live = {group for one in layer.live for group in one}
    name = f"{layer.entry.table.path}/{layer.entry.handles[0].path}"
    held = {group for group, _, _ in group_digests(layer.entry.handles[0])}
    assert held - live
    assert groups_of(store, name) == held & live
    break_file(store, name)
    state = salvaged(store)
    assert lost_groups(state.lost) == held & live
    assert rows_of(store) == kept(taken.rows, groups, held & live, inside=False)


def test_a_failure_leaves_no_files(taken: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    store = taken.store
    break_file(store, newest_file(store))
    before = data_in(store.url)

    def refuse(*_: object, exclude: object) -> None:
        raise OSError("no")

    monkeypatch.setattr("statestore.snapshot.commit.check_sizes", refuse)
    with pytest.raises(OSError, match="no"):
        store.maintenance.salvage("latest")
    assert data_in(store.url) == before


def test_changes_continue_after_a_salvage(taken: Checkpoints) -> None:
    break_file(taken.store, newest_file(taken.store))
    salvaged(taken.store, from_older=True)
    taken.rows = rows_of(taken.store)
    change(taken, 9, random.Random(1))
    assert rows_of(taken.store) == taken.rows
