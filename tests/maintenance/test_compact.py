"""The compaction command: a new checkpoint with the same rows, which is safe with concurrent
commands.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.errors import (
    CheckpointNotFoundError,
    CommitConflictError,
    CorruptionError,
    InvalidArgumentError,
    StateNotFoundError,
)
from statestore.format.layers import CompactionRule, live_rows
from statestore.keys.groups import KeyGroupRange
from statestore.snapshot.state_spec import Changes
from tests.snapshot.test_change_writer import ROWS, change, content, files, full, opened, table

pytestmark = pytest.mark.slow

LAST = {"u1": 3, "extra": 0} | {k: v for k, v in ROWS.items() if k not in ("u1", "u2")}
GREEDY = CompactionRule(merge_layers=2, share=0.01, most_share=0.01)


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """A store whose checkpoint 4 has three layers. Its other state has none."""
    store = opened(tmp_path)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed(
            "u", "s", table(ROWS), key="k", max_parallelism=16, layout="partitioned"
        )
        checkpoint.write_keyed("u", "other", table(ROWS), key="k")
        checkpoint.write_split("o", "files", [[{"f": "a"}], []])
    for rows, gone in (
        ({"u1": 1}, [{"k": "u3"}]),
        ({"u1": 2, "u3": 3}, [{"k": "u2"}]),
        ({"u1": 3, "extra": 0}, []),
    ):
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes("u", "s", Changes(table(rows), gone or None), key="k")
            checkpoint.carry("u", "other")
            checkpoint.carry("o", "files")
    assert content(store) == LAST
    return store


def state(store: StateStore) -> Any:
    return store.checkpoint().manifest.keyed_entry("u", "s")


def is_whole(store: StateStore) -> None:
    report = store.maintenance.verify("all", deep=True)
    assert report.is_intact
    assert not report.strays


def test_everything_leaves_no_layers_and_equal_rows(store: StateStore) -> None:
    before = store.checkpoint().manifest
    said: list[tuple[int, int]] = []
    report = store.maintenance.compact(
        everything=True, on_progress=lambda *numbers: said.append(numbers)
    )
    (done,) = report.states
    assert (report.checkpoint_id, report.new_checkpoint_id) == (4, 5)
    assert (done.layers_before, done.layers_after) == (3, 0)
    assert (done.files_after, done.size_bytes_after) == (
        state(store).files,
        state(store).size_bytes,
    )
    assert said == [(step, len(done.spans)) for step in range(len(done.spans) + 1)]
    assert done.rows_read < len(ROWS) + 6
    assert (state(store).layers, state(store).rows) == ((), len(LAST))
    assert content(store) == content(store, 4) == LAST
    assert content(store, 1) == ROWS
    origin = store.checkpoint().manifest.origin
    assert origin is not None
    assert (origin["command"], origin["checkpoint"]) == ("compact", 4)
    assert store.checkpoint().manifest.keyed_entry("u", "other") == before.keyed_entry("u", "other")
    assert store.checkpoint().manifest.operator == before.operator
    is_whole(store)


def test_a_compaction_by_policy_folds_and_merges(store: StateStore) -> None:
    lax = CompactionRule(share=9, most_share=9)
    assert store.maintenance.compact(rule=lax).new_checkpoint_id is None  # three layers are few
    merging = CompactionRule(merge_layers=3, share=9, most_share=9)
    report = store.maintenance.compact(rule=merging, dry_run=True)
    assert (report.new_checkpoint_id, report.states[0].layers_after) == (None, 1)
    assert (report.states[0].files_after, report.states[0].rows_read) == (None, 7)
    report = store.maintenance.compact(rule=merging)
    assert (report.states[0].merged_layers, report.states[0].spans) == (3, ())
    assert [layer.depth for layer in state(store).layers] == [1]
    assert content(store) == LAST
    report = store.maintenance.compact(rule=GREEDY)
    assert report.states[0].layers_after == len(state(store).layers) == 0
    assert content(store) == LAST
    is_whole(store)


@pytest.mark.parametrize("key_groups", ["0-7", KeyGroupRange(0, 7)])
def test_selected_key_groups_are_compacted(store: StateStore, key_groups: Any) -> None:
    dry = store.maintenance.compact(everything=True, key_groups=key_groups, dry_run=True).states[0]
    (done,) = store.maintenance.compact(everything=True, key_groups=key_groups).states
    assert (done.spans, done.layers_after) == (dry.spans, dry.layers_after)
    assert all(span.intersect(KeyGroupRange(0, 7)) for span in done.spans)
    assert len(done.spans) > 0
    assert content(store) == LAST
    assert not any(live_rows(layer, KeyGroupRange(0, 7)) for layer in state(store).layers)
    assert (
        store.maintenance.compact(everything=True, key_groups=key_groups).new_checkpoint_id is None
    )
    store.maintenance.compact(everything=True, key_groups="8-15")
    assert state(store).layers == ()
    assert content(store) == LAST


def test_an_older_checkpoint_is_compacted(store: StateStore) -> None:
    assert store.maintenance.compact(2, everything=True, from_older=True).new_checkpoint_id == 5
    assert content(store) == content(store, 2)
    assert content(store, 4) == LAST


def test_no_work_makes_no_checkpoint_and_replaces_no_writer(tmp_path: Path) -> None:
    store = opened(tmp_path)
    full(store)
    assert opened(tmp_path).maintenance.compact(everything=True).is_compact
    full(store)
    assert store.checkpoints() == (1, 2)


def test_states_are_selected_by_operator_and_name(store: StateStore) -> None:
    for uid in (None, "u"):
        assert (
            store.maintenance.compact(
                everything=True, operator=uid, state="other"
            ).new_checkpoint_id
            is None
        )
    for uid, name, known in (
        ("nobody", None, "u"),
        (None, "none", "other"),
        ("u", "none", "other"),
    ):
        with pytest.raises(StateNotFoundError, match=f"has .*{known}"):
            store.maintenance.compact(everything=True, operator=uid, state=name)
    assert (
        store.maintenance.compact(everything=True, operator="u", state="s").new_checkpoint_id == 5
    )


def test_invalid_arguments(store: StateStore) -> None:
    for key_groups in ("7-3", "a", "1-2-3", 7, "0-99999"):
        with pytest.raises(InvalidArgumentError):
            store.maintenance.compact(key_groups=key_groups)  # type: ignore[arg-type]
    with pytest.raises(CheckpointNotFoundError):
        store.maintenance.compact(9)


def test_damage_is_not_copied(store: StateStore, tmp_path: Path) -> None:
    layer = state(store).layers[0].entry
    path = tmp_path / "store" / layer.table.path / layer.handles[0].path
    path.write_bytes(bytes(len(path.read_bytes())))
    before = files(tmp_path)
    with pytest.raises(CorruptionError):
        store.maintenance.compact(everything=True)
    assert (files(tmp_path), store.checkpoints()) == (before, (1, 2, 3, 4))


@pytest.mark.parametrize("other", ["compaction", "writer"])
def test_the_later_of_two_concurrent_compactions_commits(
    store: StateStore, tmp_path: Path, other: str
) -> None:
    """The other one begins and commits after this one has written its files."""
    left: list[set[str]] = []

    def meanwhile(done: int, total: int) -> None:
        if done == total:
            successor = opened(tmp_path)
            if other == "compaction":
                successor.maintenance.compact(everything=True, operator="u")
            else:
                change(successor, table({"new": 1}))
            left.append(files(tmp_path))

    before = files(tmp_path)
    with pytest.raises(CommitConflictError):
        store.maintenance.compact(everything=True, on_progress=meanwhile)
    assert store.checkpoints() == (1, 2, 3, 4, 5)
    assert before < files(tmp_path) < left[0]
    assert content(store) == (LAST if other == "compaction" else LAST | {"new": 1})
    is_whole(store)


def test_an_active_writer_can_no_longer_commit(store: StateStore, tmp_path: Path) -> None:
    checkpoint = store.snapshot(parallelism=2)
    checkpoint.__enter__()
    checkpoint.write_changes("u", "s", table({"new": 1}), key="k")
    before = files(tmp_path)
    opened(tmp_path).maintenance.compact(everything=True)
    with pytest.raises(CommitConflictError):
        checkpoint.__exit__(None, None, None)
    assert (store.checkpoints()[-1], content(store)) == (5, LAST)
    assert len(before - files(tmp_path)) == 1
    is_whole(store)


def test_many_concurrent_compactions(store: StateStore, tmp_path: Path) -> None:
    """Each one commits, has nothing left to do, or gets a conflict. The rows stay the same."""

    def run(_: int) -> int | str | None:
        try:
            return opened(tmp_path).maintenance.compact(everything=True).new_checkpoint_id
        except CommitConflictError:
            return "conflict"

    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(run, range(4)))
    made = [one for one in ended if isinstance(one, int)]
    assert made == [5]
    assert content(store) == LAST
    assert state(store).layers == ()
    is_whole(store)
