"""Background compaction: commits do not wait for it, and later ones adopt its result."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointListener,
    CheckpointRestored,
    CompactionFailed,
    CompactionListener,
    StateStore,
)
from statestore.errors import NullKeyError, StorageError
from statestore.format.layers import CompactionRule
from statestore.format.manifest import KeyedEntry
from statestore.layers.compaction import Compactor
from statestore.maintenance.gc_mark import files_of
from statestore.snapshot import background_compaction as background
from statestore.snapshot.measurement import Measuring

ROWS = {f"u{number}": number for number in range(40)}
FOLD_SOON = CompactionRule(share=0.01, most_share=9)


def table(rows: dict[str, int]) -> pa.Table:
    return pa.table({"k": list(rows), "v": pa.array(rows.values(), pa.int64())})


def opened(path: Path, rule: CompactionRule | None = FOLD_SOON) -> StateStore:
    return StateStore.open(str(path / "store"), table_format="parquet", compaction=rule)


def full(store: StateStore, rows: dict[str, int] = ROWS, **options: Any) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", table(rows), key="k", max_parallelism=16, **options)


def change(store: StateStore, rows: dict[str, int]) -> KeyedEntry:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "s", table(rows))
    (entry,) = checkpoint.manifest.keyed
    return entry


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let each compaction wait in its thread until the event is set."""
    event, apply_policy = threading.Event(), Compactor.apply_policy

    def waiting(self: Compactor, *given: Any) -> KeyedEntry:
        assert event.wait(120)
        return apply_policy(self, *given)

    monkeypatch.setattr(Compactor, "apply_policy", waiting)
    return event


class NotTakenError(Exception):
    """Raised to end a snapshot without a commit."""


@contextmanager
def open_snapshot(store: StateStore) -> Iterator[None]:
    with suppress(NotTakenError), store.snapshot(parallelism=2):
        yield
        raise NotTakenError


def content(store: StateStore) -> dict[str, int]:
    restored = store.restore(parallelism=3).keyed("u", "s")
    tables = [restored.to_arrow(subtask) for subtask in range(3)]
    return {row["k"]: row["v"] for one in tables for row in one.to_pylist()}


def stored(path: Path) -> set[str]:
    return {str(one.relative_to(path / "store")) for one in (path / "store").rglob("*.parquet")}


def dead(store: StateStore, path: Path) -> set[str]:
    """Return the data files that no visible checkpoint references."""
    live = {
        name
        for number in store.checkpoints()
        for name in files_of(store.checkpoint(number).manifest)
    }
    return stored(path) - live


def test_the_next_checkpoint_adopts_the_result(tmp_path: Path) -> None:
    store = opened(tmp_path)
    full(store)
    first = change(store, {"u1": 100})
    assert len(first.layers) == 1
    second = change(store, {"u2": 200})
    assert [layer.checkpoint_id for layer in second.layers] == [3]
    assert second.handles != first.handles
    assert store.checkpoint().manifest.metrics.compaction.files == len(second.handles)  # type: ignore[union-attr]
    assert content(store) == ROWS | {"u1": 100, "u2": 200}
    assert store.maintenance.verify(deep=True).is_intact


def test_a_state_that_is_only_carried_adopts_the_result_too(tmp_path: Path) -> None:
    store = opened(tmp_path)
    full(store)
    change(store, {"u1": 100})
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry_rest()
    assert checkpoint.manifest.keyed[0].layers == ()
    assert content(store) == ROWS | {"u1": 100}
    assert dead(store, tmp_path) == set()


@pytest.mark.usefixtures("real_threads")
def test_a_compaction_can_span_many_checkpoints(tmp_path: Path, go_on: threading.Event) -> None:
    store = opened(tmp_path)
    full(store)
    for number in range(6):  # none of them waits
        entry = change(store, {f"u{number}": 100})
        assert len(entry.layers) == number + 1
    go_on.set()
    store.parts.background.wait()
    entry = change(store, {"u9": 900})
    assert [layer.checkpoint_id for layer in entry.layers] == [3, 4, 5, 6, 7, 8]
    assert content(store) == ROWS | dict.fromkeys(map("u{}".format, range(6)), 100) | {"u9": 900}
    store.parts.background.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("real_threads")
def test_a_compaction_pauses_while_a_snapshot_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would slow the snapshot down, because Python runs one thread at a time."""
    monkeypatch.setattr(background, "WORK_SHARE", 1e-9)
    store = opened(tmp_path)
    full(store)
    with open_snapshot(store):
        entry = change(store, {"u1": 100})
        compaction = store.parts.background._thread
        assert compaction is not None
        compaction.join(0.3)
        assert compaction.is_alive()
    store.parts.background.wait()
    assert store.parts.background.adopt(entry) is not None


@pytest.mark.usefixtures("real_threads")
def test_urgent_changes_are_compacted_without_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "WORK_SHARE", 1e-9)
    store = opened(tmp_path, CompactionRule(share=0.01, most_share=0.02))
    full(store)
    with open_snapshot(store):
        entry = change(store, {"u1": 100})  # one row of 40: more than most_share, but not overdue
        store.parts.background.wait()
    assert store.parts.background.adopt(entry) is not None


@pytest.mark.usefixtures("real_threads")
def test_a_compaction_that_becomes_urgent_pauses_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "WORK_SHARE", 1e-9)
    store = opened(tmp_path, CompactionRule(share=0.01, most_share=0.1))
    full(store)
    with open_snapshot(store):
        change(store, {"u1": 100})  # one row of 40
        compaction = store.parts.background._thread
        assert compaction is not None
        compaction.join(0.3)
        assert compaction.is_alive()
        entry = change(store, {f"u{number}": 100 for number in range(10)})
        store.parts.background.wait()
    assert store.parts.background.adopt(entry) is not None


@pytest.mark.usefixtures("real_threads")
def test_a_checkpoint_folds_no_changes_that_a_compaction_is_folding(
    tmp_path: Path, go_on: threading.Event
) -> None:
    """Its result would not match any more, and the work would be lost; but the backlog is bounded.

    Without a compaction under way, as many changes as rows would be too many.
    """
    store = opened(tmp_path, CompactionRule(merge_layers=10, share=0.01))
    full(store)
    expected = dict(ROWS)
    for number in range(20):
        changed = {f"u{(number * 3 + index) % 40}": number for index in range(3)}
        expected |= changed
        assert len(change(store, changed).layers) == number + 1
    go_on.set()
    store.parts.background.wait()
    go_on.clear()
    entry = change(store, {"u0": 0})
    assert [layer.checkpoint_id for layer in entry.layers] == list(range(3, 23))
    assert content(store) == expected | {"u0": 0}
    for number in range(40):  # the next compaction does not end, and 120 changes are the bound
        entry = change(store, {f"u{number}": number, "u38": number, "u39": number})
        assert entry.changed_rows <= 6 * 0.5 * len(ROWS) + 3
    assert len(entry.layers) < 40
    go_on.set()
    store.parts.background.wait()


@pytest.mark.usefixtures("real_threads")
def test_a_checkpoint_with_too_many_changes_waits_for_the_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go_on: threading.Event
) -> None:
    """It waits at most as long as it has written, and adopts the result at once."""
    store = opened(tmp_path, CompactionRule(share=0.01, most_share=0.05))  # overdue: 5 rows of 40
    full(store)
    change(store, {"u1": 100})  # the thread begins to fold it
    assert len(change(store, {f"u{number}": 200 for number in range(4)}).layers) == 2
    monkeypatch.setattr(Measuring, "write_seconds", lambda *_: 120)
    threading.Timer(0.2, go_on.set).start()
    entry = change(store, {"u9": 900})
    assert [layer.checkpoint_id for layer in entry.layers] == [3, 4]
    assert content(store) == ROWS | {f"u{number}": 200 for number in range(4)} | {"u9": 900}
    store.parts.background.wait()


@pytest.mark.usefixtures("real_threads")
def test_a_compaction_that_a_checkpoint_waits_for_pauses_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "WORK_SHARE", 1e-9)
    monkeypatch.setattr(Measuring, "write_seconds", lambda *_: 15)
    store = opened(tmp_path, CompactionRule(share=0.01, most_share=0.1))  # overdue: 9 rows of 40
    full(store)
    with open_snapshot(store):
        change(store, {"u1": 100})
        entry = change(store, {f"u{number}": 200 for number in range(10)})
        assert [layer.checkpoint_id for layer in entry.layers] == [3]
    store.parts.background.wait()
    assert content(store) == ROWS | {f"u{number}": 200 for number in range(10)}


@pytest.mark.long
@pytest.mark.usefixtures("real_threads")
def test_a_checkpoint_waits_no_longer_than_its_changes_took_to_write(
    tmp_path: Path, go_on: threading.Event
) -> None:
    """The time of a state that is written in full does not count."""

    def slowly() -> Iterator[pa.RecordBatch]:
        time.sleep(3)
        yield from table(ROWS).to_batches()

    store = opened(tmp_path, CompactionRule(share=0.01, most_share=0.05))
    full(store)
    change(store, {"u1": 100})
    rows = pa.RecordBatchReader.from_batches(table(ROWS).schema, slowly())
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "t", rows, key="k", max_parallelism=16)
        checkpoint.write_changes("u", "s", table({f"u{number}": 200 for number in range(4)}))
    go_on.set()
    assert checkpoint.manifest.metrics is not None
    assert checkpoint.manifest.metrics.phases.write_ms >= 3000
    assert checkpoint.manifest.metrics.phases.wait_ms < 2000
    store.parts.background.wait()


@pytest.mark.usefixtures("real_threads")
def test_a_compaction_does_not_wait_forever_for_a_snapshot(tmp_path: Path) -> None:
    store = opened(tmp_path)
    full(store)
    with open_snapshot(store):
        entry = change(store, {"u1": 100})
        store.parts.background.wait()
        assert store.parts.background.adopt(entry) is not None


@pytest.mark.parametrize("how", ["full", "drop", "compact", "base"])
def test_an_outdated_result_is_deleted(tmp_path: Path, how: str) -> None:
    """The state was rewritten, dropped, compacted by a command, or built on an older checkpoint."""
    store = opened(tmp_path)
    full(store)
    change(store, {"u1": 100})
    assert dead(store, tmp_path)
    expected = ROWS | {"u1": 100, "u2": 200}
    if how == "full":
        full(store, ROWS)
        expected = dict(ROWS)
    elif how == "drop":
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.drop("u", "s")
        assert dead(store, tmp_path) == set()
        return
    elif how == "compact":
        store.maintenance.compact(everything=True)
        change(store, {"u2": 200})
    else:
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_changes("u", "s", table({"u2": 200}), base=1)
        expected = ROWS | {"u2": 200}
    assert content(store) == expected
    first = {
        name for name in dead(store, tmp_path) if "/0000000002-" in f"/{name.rpartition('/')[2]}"
    }
    assert first == set()
    assert store.maintenance.verify(deep=True).is_intact


def test_a_checkpoint_of_another_process_during_a_compaction(tmp_path: Path) -> None:
    """It added a layer, but the compacted layers are still the oldest ones."""
    store = opened(tmp_path)
    full(store)
    change(store, {"u1": 100})
    change(opened(tmp_path, None), {"u2": 200})
    again = opened(tmp_path)
    again.parts.background._tasks |= store.parts.background._tasks
    entry = change(again, {"u3": 300})
    assert [layer.checkpoint_id for layer in entry.layers] == [3, 4]
    assert content(again) == ROWS | {"u1": 100, "u2": 200, "u3": 300}


class Quiet(CheckpointListener):
    """A listener that does not request metrics of compactions."""

    def on_committed(self, event: CheckpointCommitted) -> None:
        pass

    def on_failed(self, event: CheckpointFailed) -> None:
        pass

    def on_restored(self, event: CheckpointRestored) -> None:
        pass


def test_a_failure_is_logged_and_the_compaction_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    apply_policy = Compactor.apply_policy

    def failing(self: Compactor, *given: Any) -> KeyedEntry:
        apply_policy(self, *given)
        raise StorageError("the disk is full")

    class Ears(Quiet, CompactionListener):
        def on_compaction_failed(self, event: CompactionFailed) -> None:
            heard.append(event)
            raise RuntimeError("a listener breaks nothing")

    heard: list[CompactionFailed] = []
    store = opened(tmp_path)
    store.add_listener(Ears())
    store.add_listener(Quiet())
    full(store)
    with monkeypatch.context() as patched:
        patched.setattr(Compactor, "apply_policy", failing)
        change(store, {"u1": 100})
        store.parts.background.wait()
    [event] = heard
    assert (event.operator, event.state, event.checkpoint_id) == ("u", "s", 2)
    assert event.store == str(tmp_path / "store")
    assert str(event.error) == "the disk is full"
    assert "the compaction of state 's' of operator 'u'" in caplog.text
    [line] = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "the disk is full" in line.getMessage()
    assert line.exc_info is None  # the text says what happened, without a traceback
    assert dead(store, tmp_path) == set()
    assert len(change(store, {"u2": 200}).layers) == 2
    assert [layer.checkpoint_id for layer in change(store, {"u3": 300}).layers] == [4]
    assert content(store) == ROWS | {"u1": 100, "u2": 200, "u3": 300}


def test_a_result_with_missing_files_is_not_adopted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    full(store)
    change(store, {"u1": 100})
    for name in dead(store, tmp_path):
        (tmp_path / "store" / name).unlink()
    assert len(change(store, {"u2": 200}).layers) == 2
    assert "was discarded" in caplog.text
    # compacted again
    assert [layer.checkpoint_id for layer in change(store, {"u3": 300}).layers] == [4]
    assert content(store) == ROWS | {"u1": 100, "u2": 200, "u3": 300}


def test_a_result_that_is_too_old_is_not_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A garbage collection may be about to delete its files."""
    store = opened(tmp_path)
    full(store)
    change(store, {"u1": 100})
    monkeypatch.setattr(background, "ADOPTABLE_MS", -1)
    assert len(change(store, {"u2": 200}).layers) == 2
    assert content(store) == ROWS | {"u1": 100, "u2": 200}


def test_a_failed_checkpoint_leaves_the_result_to_the_next_one(tmp_path: Path) -> None:
    store = opened(tmp_path)
    full(store)
    change(store, {"u1": 100})
    before = stored(tmp_path)
    with pytest.raises(NullKeyError):
        change(store, {"u2": 200, None: 3})  # type: ignore[dict-item]
    assert stored(tmp_path) == before
    assert len(change(store, {"u2": 200}).layers) == 1


def test_after_a_put_with_an_unknown_result_no_file_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    full(store)
    change(store, {"u1": 100})
    commit = type(store.parts.catalog()).commit

    def lost(self: Any, manifest: Any) -> None:
        commit(self, manifest)
        raise StorageError("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr("statestore.catalog.catalog.Catalog.commit", lost)
        with pytest.raises(StorageError, match="lost"):
            change(store, {"u2": 200})
    assert content(store) == ROWS | {"u1": 100, "u2": 200}  # it is visible, with the new files
    change(store, {"u3": 300})
    assert content(store) == ROWS | {"u1": 100, "u2": 200, "u3": 300}
    assert store.maintenance.verify(deep=True).is_intact


class Never:
    """A thread of a process that ends before the thread has done anything."""

    def __init__(self, **given: Any) -> None:
        pass

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ranged", pytest.param("partitioned", marks=pytest.mark.long)])
@pytest.mark.usefixtures("real_threads")
def test_the_number_of_layers_is_bounded_if_the_process_ends_after_each_snapshot(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "Thread", Never)
    rule = CompactionRule()
    full(opened(tmp_path, rule), layout=layout)
    expected, most_layers, most_share = dict(ROWS), 0, 0.0
    for number in range(80):
        changed = {f"u{(number * 3 + one) % 50}": number for one in range(3)}
        expected |= changed
        entry = change(opened(tmp_path, rule), changed)
        most_layers = max(most_layers, len(entry.layers))
        base = entry.rows - entry.changed_rows
        most_share = max(most_share, entry.changed_rows / base)
    assert content(opened(tmp_path)) == expected
    assert most_layers <= 2 * rule.merge_layers + 8
    assert most_share < 4 * rule.most_share
    assert opened(tmp_path).maintenance.verify(deep=True).is_intact


def test_a_forked_process_does_not_inherit_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    full(store)
    entry = change(store, {"u1": 100})
    assert store.parts.background.adopt(entry)
    before = stored(tmp_path)
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert store.parts.background.adopt(entry) is None
    assert stored(tmp_path) == before


_JOB = """
import sys, pyarrow as pa
from statestore import StateStore
from statestore.format.layers import CompactionRule

store = StateStore.open(sys.argv[1], table_format="parquet", compaction=CompactionRule(share=0.001))
def rows(first, stop, value):
    return pa.table({"k": range(first, stop), "v": [value] * (stop - first)})
with store.snapshot(parallelism=2) as checkpoint:
    checkpoint.write_keyed("u", "s", rows(0, 400_000, 0), key="k", layout="partitioned")
with store.snapshot(parallelism=2) as checkpoint:
    checkpoint.write_changes("u", "s", rows(0, 1000, 1))
"""


@pytest.mark.slow
def test_exit_does_not_wait_and_leaves_no_permanent_files(tmp_path: Path) -> None:
    job = subprocess.run(
        [sys.executable, "-c", _JOB, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert job.stderr == ""
    store = opened(tmp_path)
    assert store.maintenance.verify().is_intact
    restored = store.restore(parallelism=1).keyed("u", "s").to_arrow(0)
    assert (restored.num_rows, sum(restored.column("v").to_pylist())) == (400_000, 1000)
    store.maintenance.gc(minimum_age="0")
    assert dead(store, tmp_path) == set()
