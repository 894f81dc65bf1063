"""A parallelism that is computed from the bytes of each key group."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore import StateStore
from statestore.jobgraph.parallelism import decide_for_key_groups


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """A store with 64 key groups of uneven size, and a small operator with 16."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet", layout="partitioned")
    rows = [{"user": f"u{i}", "text": f"{i:x}" * (1 + i % 7)} for i in range(5000)]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("users", "texts", rows, key="user", max_parallelism=64)
        checkpoint.write_keyed("few", "texts", rows[:10], key="user", max_parallelism=16)
        checkpoint.write_union("source", "offsets", [[{"p": 0}], [{"p": 1}]])
    return store


def sizes(store: StateStore, uid: str) -> list[int]:
    entry = store.checkpoint().manifest.keyed_entry(uid, "texts")
    by_group = {handle.key_groups.first: handle.size_bytes for handle in entry.handles}
    return [by_group.get(group, 0) for group in range(entry.state.max_parallelism)]


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 3, 5, 11])
def test_it_follows_from_the_bytes_of_the_key_groups(store: StateStore, tasks: int) -> None:
    """The greatest of the operators' choices, limited by the smallest max parallelism."""
    per_task = sum(sizes(store, "users")) // tasks + 1
    restored = store.restore(parallelism="auto", bytes_per_task=per_task)
    wishes = [
        decide_for_key_groups(sizes(store, uid), bytes_per_task=per_task, max_parallelism=16)
        for uid in ("few", "users")
    ]
    assert [choice.decision for choice in restored.plan.choices] == wishes
    assert restored.parallelism == max(wish.parallelism for wish in wishes)
    assert tasks <= restored.parallelism <= tasks + 2
    users = restored.keyed("users", "texts")
    rows = sum(users.to_arrow(i).num_rows for i in range(restored.parallelism))
    assert rows == 5000
    assert len(restored.operator_state("source", "offsets").subtask(0)) == 2


def test_it_never_exceeds_an_operators_max_parallelism(store: StateStore) -> None:
    assert store.restore(parallelism="auto", bytes_per_task=1).parallelism == 16


def test_by_default_a_subtask_gets_16_mib(store: StateStore) -> None:
    plan = store.plan(parallelism="auto")
    assert plan.parallelism == 1
    assert [choice.operator for choice in plan.choices] == ["few", "users"]


def test_without_keyed_state_it_is_the_stored_parallelism(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "other"), table_format="parquet")
    with store.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_union("source", "offsets", [[{"p": 0}], [], []])
    assert store.restore(parallelism="auto").parallelism == 3
