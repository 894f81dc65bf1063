"""Metrics of states with changes: the bytes of all files that are read, and the rows of changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from statestore.catalog.catalog import Catalog
from statestore.format.layers import live_without
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.jobgraph.operators import Operators
from statestore.keys.groups import KeyGroupRange
from statestore.restore.placement import place_operators
from statestore.restore.plan import plan_restore
from statestore.restore.target import RestoreTarget, plan_target
from statestore.snapshot.pending_checkpoint import PriorCheckpoints
from tests.support.forms import GROUPS, Checkpoints, users

HALF = KeyGroupRange(0, GROUPS // 2 - 1)


@pytest.fixture
def state(tmp_path: Path) -> Checkpoints:
    state = Checkpoints(tmp_path)
    state.full(users(200))
    state.change(users(200, value=1))
    state.change(users(20, value=2))
    return state


def with_entry(manifest: Manifest, entry: KeyedEntry) -> Manifest:
    return replace(manifest, keyed=(entry,))


def test_a_parallelism_is_computed_from_the_bytes_of_base_and_changes(state: Checkpoints) -> None:
    target = RestoreTarget(parallelism="auto", bytes_per_task=10**6)
    (choice,) = plan_target(state.store.checkpoint().manifest, target).choices
    # The shares of a file are rounded up to bytes.
    entry = state.store.checkpoint().manifest.keyed[0]
    rounded = GROUPS * entry.files
    assert 0 <= choice.decision.total_bytes - entry.size_bytes <= rounded
    (base,) = plan_target(state.store.checkpoint(1).manifest, target).choices
    assert choice.decision.total_bytes > 1.5 * base.decision.total_bytes


def test_folded_changes_do_not_count(state: Checkpoints) -> None:
    manifest = state.store.checkpoint().manifest
    (entry,) = manifest.keyed
    layers = tuple(live_without(layer, [HALF]) for layer in entry.layers)
    half = replace(entry, layers=tuple(layer for layer in layers if layer is not None))
    target = RestoreTarget(parallelism="auto", bytes_per_task=1)
    sizes = [
        plan_target(found, target).choices[0].decision.byte_range_bytes
        for found in (state.store.checkpoint(1).manifest, with_entry(manifest, half), manifest)
    ]
    base, folded, whole = sizes
    assert folded[: GROUPS // 2] == base[: GROUPS // 2]
    assert folded[GROUPS // 2 :] == whole[GROUPS // 2 :]
    assert sum(whole) > sum(folded) > sum(base)


def test_a_plan_shows_the_rows_of_changes(state: Checkpoints) -> None:
    plan = plan_restore(state.store.checkpoint().manifest, 3)
    (operator,) = plan.operators
    assert sum(subtask.rows for subtask in operator.subtasks) == 420
    assert sum(subtask.changed_rows for subtask in operator.subtasks) == 220
    assert plan.read_amplification == operator.read_amplification == 420 / 200
    assert "of them changes" in str(plan)
    base = plan_restore(state.store.checkpoint(1).manifest, 3)
    assert base.read_amplification is None
    assert "changes" not in str(base)


def test_placement_includes_files_of_changes(state: Checkpoints) -> None:
    manifest = state.store.checkpoint().manifest
    (entry,) = manifest.keyed
    (first, *rest) = entry.layers
    at_b = tuple(replace(handle, host="b") for handle in first.entry.handles)
    layer = replace(first, entry=replace(first.entry, handles=at_b))
    held = with_entry(manifest, replace(entry, layers=(layer, *rest)))
    (placed,) = place_operators(held, plan_restore(held, 2).operators, {"a": 2, "b": 2})
    assert [subtask.host for subtask in placed.subtasks] == ["b", "b"]
    assert placed.local_bytes == pytest.approx(layer.entry.size_bytes, abs=4)


def test_the_layout_of_the_next_snapshot_depends_on_the_rows_of_the_base(
    state: Checkpoints,
) -> None:
    catalog = Catalog.open(state.storage, create=False)
    history = PriorCheckpoints(catalog, Operators(2, None))
    assert history.stored("u", "s").base_rows == 200


def test_the_bytes_of_key_groups_add_up_to_the_file(state: Checkpoints) -> None:
    handle = state.store.checkpoint().manifest.keyed[0].handles[0]
    shares = handle.group_bytes()
    assert len(shares) == len(handle.key_groups)
    assert 0 <= sum(shares) - handle.size_bytes <= len(handle.key_groups)
    alone = replace(handle, index=None, key_groups=KeyGroupRange(3, 3))
    assert alone.group_bytes() == [handle.size_bytes]
    assert alone.group_rows() == [handle.rows]
