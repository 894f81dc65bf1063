"""Of a state with changes a damaged base or layer is never passed over in silence."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from statestore.files.key_groups import group_digests
from statestore.format.layers import CompactionRule
from statestore.format.manifest import KeyedEntry
from statestore.maintenance.salvage import LostPart, SalvagedState
from statestore.store import StateStore
from tests.support.cared import (
    break_file,
    change,
    data_in,
    digest_of,
    history,
    layer_file,
    names_of,
    rows_of,
    state_of,
)
from tests.support.damage import change_unread_byte
from tests.support.layered import Entries, Layered

LAYOUTS = ["ranged", "partitioned"]


@pytest.fixture
def taken(tmp_path: Path) -> Layered:
    return history(tmp_path / "store")


def groups_of(entry: KeyedEntry, name: str) -> set[int]:
    """The key groups that have rows in a file."""
    (handle,) = (
        handle
        for part in entry.parts
        for handle in part.handles
        if f"{part.table.path}/{handle.path}" == name
    )
    return {group for group, _, _ in group_digests(handle)}


def lost_groups(parts: tuple[LostPart, ...]) -> set[int]:
    return {g for part in parts for g in range(part.first or 0, (part.last or 0) + 1)}


def by_group(store: StateStore, number: int) -> dict[str, int]:
    """The key group of each user of a checkpoint."""
    state = store.restore(checkpoint=number, parallelism=1).keyed("u", "s")
    return {row["k"]: row["key_group"] for row in state.to_arrow(0).read_all().to_pylist()}


def kept(rows: Entries, groups: dict[str, int], among: set[int], *, inside: bool) -> Entries:
    return {e: v for e, v in rows.items() if (groups[e[0]] in among) is inside}


def salvaged(store: StateStore, *, from_older: bool = False) -> SalvagedState:
    (state,) = store.maintenance.salvage("latest", from_older).states
    return state


def test_of_sound_layers_nothing_is_made(taken: Layered) -> None:
    assert taken.store.maintenance.salvage("latest").is_intact
    assert taken.store.checkpoints() == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", [0, 3, None])
def test_lost_key_groups_of_base_or_layer_are_named_and_missing(
    tmp_path: Path, layout: str, place: int | None
) -> None:
    taken = history(tmp_path / "store", layout=layout)
    store, groups = taken.store, by_group(taken.store, 5)
    base = state_of(store)
    first = f"{base.table.path}/{base.handles[0].path}"
    name = first if place is None else layer_file(store, place)
    lost = groups_of(base, name)
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lost_key_groups_are_those_of_the_checkpoint_before_with_its_changes(
    tmp_path: Path, layout: str
) -> None:
    taken = history(tmp_path / "store", layout=layout)
    store, now, before = taken.store, by_group(taken.store, 5), by_group(taken.store, 4)
    name = layer_file(store, 3)  # of checkpoint 5 alone
    lost = groups_of(state_of(store), name)
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


def test_a_layer_that_older_ones_share_is_filled_from_before_it(taken: Layered) -> None:
    store, now, first = taken.store, by_group(taken.store, 5), by_group(taken.store, 1)
    name = layer_file(store, 0)  # of checkpoints 2 to 5
    lost = groups_of(state_of(store), name)
    break_file(store, name)
    state = salvaged(store, from_older=True)
    assert {part.filled_from for part in state.lost} == {1}
    expected = kept(taken.taken[5], now, lost, inside=False)
    assert rows_of(store) == expected | kept(taken.taken[1], first, lost, inside=True)


def test_a_full_checkpoint_is_filled_from_one_with_layers(taken: Layered) -> None:
    store = taken.store
    number = taken.full({e: v + 1 for e, v in taken.rows.items()})
    now, before = by_group(store, number), by_group(store, 5)
    name = sorted(names_of(store))[0]
    lost = groups_of(state_of(store), name)
    break_file(store, name)
    state = salvaged(store, from_older=True)
    assert {part.filled_from for part in state.lost} == {5}
    expected = kept(taken.rows, now, lost, inside=False)
    assert rows_of(store) == expected | kept(taken.taken[5], before, lost, inside=True)


def test_one_byte_that_no_reader_needs_loses_nothing(taken: Layered) -> None:
    store, digest = taken.store, digest_of(taken.store)
    change_unread_byte(Path(store.url, layer_file(store, 1)))
    assert salvaged(store).lost == ()
    assert digest_of(store) == digest
    assert store.maintenance.verify("latest", deep=True).is_intact


def test_changes_that_count_no_more_are_no_loss(tmp_path: Path) -> None:
    """A layer's key groups that were folded into the base are not missed."""
    rule = CompactionRule(merge_layers=99, share=0.05, most_share=9, bytes_per_checkpoint=1)
    taken = history(tmp_path / "store", 4, compaction=rule)
    store, groups = taken.store, by_group(taken.store, 5)
    layer = next(one for one in state_of(store).layers if len(one.entry.handles) == 2)
    live = {group for one in layer.live for group in one}
    name = f"{layer.entry.table.path}/{layer.entry.handles[0].path}"
    held = groups_of(state_of(store), name)
    assert held - live
    break_file(store, name)
    state = salvaged(store)
    assert lost_groups(state.lost) == held & live
    assert rows_of(store) == kept(taken.rows, groups, held & live, inside=False)


def test_a_failure_leaves_nothing_behind(taken: Layered, monkeypatch: pytest.MonkeyPatch) -> None:
    store = taken.store
    break_file(store, layer_file(store, 3))
    before = data_in(store.url)

    def refuse(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr("statestore.snapshot.commit.check_sizes", refuse)
    with pytest.raises(OSError, match="no"):
        store.maintenance.salvage("latest")
    assert data_in(store.url) == before


def test_changes_go_on_over_what_was_salvaged(taken: Layered) -> None:
    break_file(taken.store, layer_file(taken.store, 3))
    salvaged(taken.store, from_older=True)
    taken.rows = rows_of(taken.store)
    change(taken, 9, random.Random(1))
    assert rows_of(taken.store) == taken.rows
