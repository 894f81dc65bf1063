"""Snapshots in several threads share compactions: no thread deletes what another one commits."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from statestore.errors import StorageError
from statestore.format.manifest import Manifest
from statestore.snapshot import background_compaction as background
from statestore.snapshot import commit
from statestore.snapshot.pending_checkpoint import PendingCheckpoint
from tests.snapshot.test_background_compaction import ROWS, change, content, full, opened, stored


def test_a_checkpoint_right_after_an_adoption_deletes_no_adopted_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may take it before the adopting snapshot returns from its commit."""
    store = opened(tmp_path)
    full(store)
    change(store, {"u1": 100})
    delete_merged = commit._delete_merged

    def overtaken(pending: PendingCheckpoint, manifest: Manifest) -> None:
        if manifest.checkpoint_id == 3:
            thread = threading.Thread(target=change, args=(store, {"u3": 300}))
            thread.start()
            thread.join()
        delete_merged(pending, manifest)

    monkeypatch.setattr(commit, "_delete_merged", overtaken)
    change(store, {"u2": 200})
    assert store.checkpoints() == (1, 2, 3, 4)
    assert store.maintenance.verify(deep=True).is_intact
    assert content(store) == ROWS | {"u1": 100, "u2": 200, "u3": 300}


def test_a_snapshot_that_is_slow_after_its_put_deletes_no_newer_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads take two checkpoints meanwhile; the second one adopts a result of the first."""
    store = opened(tmp_path)
    full(store)
    change(store, {"u1": 100})
    delete_merged, check = commit._delete_merged, commit._manifest
    is_adopted, goes_on = threading.Event(), threading.Event()

    def overtaken(pending: PendingCheckpoint, manifest: Manifest) -> None:
        delete_merged(pending, manifest)
        if manifest.checkpoint_id == 3:
            change(store, {"u3": 300})
            adopting.start()
            assert is_adopted.wait(60)

    def stopped(pending: PendingCheckpoint) -> Manifest:
        manifest = check(pending)
        if manifest.checkpoint_id == 5:
            is_adopted.set()
            assert goes_on.wait(60)
        return manifest

    monkeypatch.setattr(commit, "_delete_merged", overtaken)
    monkeypatch.setattr(commit, "_manifest", stopped)
    adopting = threading.Thread(target=change, args=(store, {"u4": 400}))
    change(store, {"u2": 200})
    goes_on.set()
    adopting.join()
    assert store.checkpoints() == (1, 2, 3, 4, 5)
    assert [layer.checkpoint_id for layer in store.checkpoint().manifest.keyed[0].layers] == [5]
    assert store.maintenance.verify(deep=True).is_intact
    assert content(store) == ROWS | {"u1": 100, "u2": 200, "u3": 300, "u4": 400}


def test_a_snapshot_that_cannot_check_a_result_leaves_its_files_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other snapshot may have adopted the result, and may be about to commit it."""
    store = opened(tmp_path)
    full(store)
    entry = change(store, {"u1": 100})
    other = store.parts.background.adopt(entry)
    assert other is not None

    def unavailable(*_: Any) -> None:
        raise StorageError("the service is unavailable")

    monkeypatch.setattr(background, "check_sizes", unavailable)
    assert store.parts.background.adopt(entry) is None
    assert set(other[1]) <= stored(tmp_path)
    assert store.parts.background.compacting_layers(entry) is None


@pytest.mark.usefixtures("real_threads")
def test_commits_at_the_same_time_start_one_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one would write files that nothing names."""
    full(opened(tmp_path))
    change(opened(tmp_path, None), {"u1": 100})
    store, both, started = opened(tmp_path), threading.Barrier(2), list[str]()

    class Counted(threading.Thread):
        def start(self) -> None:
            started.append(self.name)
            super().start()

    def needed(*_: Any) -> bool:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)
        return True

    monkeypatch.setattr(background, "needs_compaction", needed)
    monkeypatch.setattr(background, "Thread", Counted)
    commits = [
        threading.Thread(
            target=store.parts.background.snapshot_ended, args=(store.checkpoint().manifest, 0)
        )
        for _ in range(2)
    ]
    for thread in commits:
        thread.start()
    for thread in commits:
        thread.join()
    store.parts.background.wait()
    assert started == ["statestore-compaction"]
