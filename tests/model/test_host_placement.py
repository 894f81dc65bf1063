"""Hosts for the subtasks of a restore: where the copies of their state lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError
from statestore.model.host_placement import STRATEGIES, OperatorPlacement, place_operator
from statestore.model.manifest import Manifest
from statestore.model.plan import plan_restore

HOSTS = {"a": 2, "b": 2}


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """8 key groups; copies of the first half on b, of the second on a."""
    store = StateStore.open(str(tmp_path), table_format="parquet")
    rows = [{"user": f"u{i}", "n": i} for i in range(400)]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.keyed("users", "totals", rows, key="user", max_parallelism=8)
        checkpoint.union("source", "offsets", [[{"p": 0}], [{"p": 1}]])
    stored = store.manifest()
    (entry,) = stored.keyed
    handles = tuple(
        replace(handle, host="b" if handle.key_groups.first < 4 else "a")
        for handle in entry.handles
    )
    return replace(stored, keyed=(replace(entry, handles=handles),))


def place(manifest: Manifest, parallelism: int, **options: Any) -> OperatorPlacement:
    (plan,) = (p for p in plan_restore(manifest, parallelism).operators if p.uid == "users")
    return place_operator(manifest, plan, **({"hosts": HOSTS} | options))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("parallelism", [2, 4])
def test_every_subtask_runs_where_its_state_is(
    manifest: Manifest, parallelism: int, strategy: str
) -> None:
    """With room for it, all bytes stay local, by every strategy."""
    placed = place(manifest, parallelism, strategy=strategy)
    half = parallelism // 2
    assert [one.host for one in placed.subtasks] == ["b"] * half + ["a"] * half
    assert placed.local_bytes == manifest.keyed[0].size_bytes
    assert [one.subtask for one in placed.subtasks] == list(range(parallelism))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_host_gets_more_than_its_slots(manifest: Manifest, strategy: str) -> None:
    placed = place(manifest, 3, hosts={"a": 1, "b": 1, "c": 1}, strategy=strategy)
    assert sorted(one.host for one in placed.subtasks) == ["a", "b", "c"]
    assert 0 < placed.local_bytes < manifest.keyed[0].size_bytes


def test_a_subtask_leaves_the_slot_to_the_one_whose_state_lies_there(manifest: Manifest) -> None:
    """Around previous allocations, what others need is reserved; else the first one takes it."""
    hosts = {"a": 1, "c": 1}  # b, with the state of subtask 0, is gone
    kept = place(manifest, 2, hosts=hosts, strategy="previous-default")
    assert [one.host for one in kept.subtasks] == ["c", "a"]
    taken = place(manifest, 2, hosts=hosts, strategy="default")
    assert [one.host for one in taken.subtasks] == ["a", "c"]
    assert kept.local_bytes > taken.local_bytes == 0


def test_evenly_spreads_what_has_no_preference(manifest: Manifest) -> None:
    bare = replace(
        manifest,
        keyed=tuple(
            replace(e, handles=tuple(replace(h, host="") for h in e.handles))
            for e in manifest.keyed
        ),
    )
    assert [one.host for one in place(bare, 4, strategy="evenly").subtasks] == ["a", "b"] * 2
    assert [one.host for one in place(bare, 4, strategy="default").subtasks] == [*"aabb"]
    assert [one.host for one in place(bare, 4).subtasks] == [*"aabb"]


def test_an_operator_without_keyed_state_takes_slots_in_order(manifest: Manifest) -> None:
    (plan,) = (p for p in plan_restore(manifest, 3).operators if p.uid == "source")
    assert [one.host for one in place_operator(manifest, plan, HOSTS).subtasks] == ["a", "a", "b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hosts": {"a": 1}}, "3 slots are needed and 1 are free"),
        ({"hosts": {"a": 0, "b": 9}}, "host 'a' offers 0 slots"),
        ({"strategy": "random"}, "no strategy 'random'; there is locality, default"),
    ],
)
def test_what_is_refused(manifest: Manifest, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        place(manifest, 3, **options)
