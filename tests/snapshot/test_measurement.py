"""Every checkpoint has metrics, and listeners are notified of them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointListener,
    CheckpointRestored,
    StateStore,
    key_group_of,
)
from statestore.errors import CommitConflictError, InvalidArgumentError, StorageError
from statestore.format.layers import CompactionRule
from statestore.format.metrics import Amount, CheckpointMetrics, StateMetrics
from statestore.listeners import Listeners
from statestore.snapshot.measurement import Measuring
from statestore.snapshot.state_spec import Changes
from statestore.storage import LocalStorage
from tests.servers.slow import SlowStorage
from tests.support.forms import Checkpoints, users
from tests.support.stores import opened
from tests.support.writers import ROWS, take

FOREGROUND = ("begin", "write", "wait", "check", "publish", "put")
KEYS = pa.table({"k": [f"k{i}" for i in range(100)], "v": list(range(100))})


class Ears(CheckpointListener):
    """A listener that records every event."""

    def __init__(self) -> None:
        self.committed: list[CheckpointCommitted] = []
        self.failed: list[CheckpointFailed] = []
        self.restored: list[CheckpointRestored] = []

    def on_committed(self, event: CheckpointCommitted) -> None:
        self.committed.append(event)

    def on_failed(self, event: CheckpointFailed) -> None:
        self.failed.append(event)

    def on_restored(self, event: CheckpointRestored) -> None:
        self.restored.append(event)

    @property
    def counts(self) -> tuple[int, int, int]:
        return len(self.committed), len(self.failed), len(self.restored)


class Deaf(CheckpointListener):
    """A listener that always fails."""

    def on_committed(self, event: CheckpointCommitted) -> None:
        raise RuntimeError("cannot hear")

    on_failed = on_restored = on_committed  # type: ignore[assignment]


@pytest.fixture
def ears() -> Ears:
    return Ears()


@pytest.fixture
def store(tmp_path: Path, ears: Ears) -> StateStore:
    return StateStore.open(
        str(tmp_path / "s"), table_format="parquet", layout="partitioned", listeners=[ears]
    )


def figures(store: StateStore) -> CheckpointMetrics:
    metrics = store.checkpoint().manifest.metrics
    assert metrics is not None
    return metrics


def test_only_the_first_failure_of_a_checkpoint_is_reported(ears: Ears) -> None:
    listeners = Listeners("here")
    listeners.add(ears)
    measuring = Measuring(listeners)
    for text in ("first", "second"):
        measuring.failed(1, StorageError(text))
    assert [str(event.error) for event in ears.failed] == ["first"]


def state_of(metrics: CheckpointMetrics, name: str) -> StateMetrics:
    (found,) = [state for state in metrics.states if state.state == name]
    return found


def fill(store: StateStore) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", KEYS, key="k", max_parallelism=16)
        checkpoint.write_split("o", "files", [[{"f": "a"}, {"f": "b"}], []])


def test_a_full_checkpoint_has_written_everything_it_references(
    store: StateStore, ears: Ears
) -> None:
    fill(store)
    manifest, metrics = store.checkpoint().manifest, figures(store)
    keyed, operator = manifest.keyed[0], manifest.operator[0]
    assert metrics.written == Amount(102, manifest.size_bytes, manifest.files)
    assert metrics.files_written == manifest.files
    assert state_of(metrics, "s").written == Amount(100, keyed.size_bytes, keyed.files)
    assert state_of(metrics, "s").changed_share == metrics.changed_share == 1
    assert state_of(metrics, "files").written == Amount(2, operator.size_bytes, operator.files)
    assert state_of(metrics, "files").changed_share is None
    assert metrics.phases.put_ms is None
    (event,) = ears.committed
    assert (event.store, event.checkpoint_id, event.manifest) == (store.url, 1, manifest)
    put = event.metrics.phases.put_ms
    assert put is not None
    assert event.metrics == replace(metrics, phases=replace(metrics.phases, put_ms=put))


def test_written_changes_are_measured_separately_from_carried_files(store: StateStore) -> None:
    fill(store)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes(
            "u",
            "s",
            Changes([{"k": "k1", "v": 5}, {"k": "new", "v": 5}], [{"k": "k2"}]),
            key="k",
            max_parallelism=16,
        )
        checkpoint.carry_rest()
    metrics, layer = figures(store), store.checkpoint().manifest.keyed[0].layers[0].entry
    assert metrics.written == Amount(3, layer.size_bytes, layer.files)
    assert metrics.changed_share == state_of(metrics, "s").changed_share == 0.03
    assert state_of(metrics, "files").written == Amount()
    assert metrics.files_written < store.checkpoint().manifest.files
    assert checkpoint.metrics is not None
    assert checkpoint.metrics.states == metrics.states


def test_background_compaction_is_measured_separately(tmp_path: Path) -> None:
    layered = Checkpoints(tmp_path, rule=CompactionRule(merge_layers=2))
    layered.full(users(60, entries=2))
    layered.change({("u001", 0): 5})
    layered.change({("u002", 0): 5})
    layered.change({("u003", 0): 5})
    manifest, metrics = layered.store.checkpoint().manifest, figures(layered.store)
    (entry,) = manifest.keyed
    layer, _ = entry.layers  # of the first two, which have been merged
    assert metrics.written.rows == 1
    assert metrics.compaction == Amount(2, layer.entry.size_bytes, layer.entry.files)
    assert metrics.changed_share == 1 / 120
    assert metrics.files_written == metrics.written.files + layer.entry.files


def test_a_compact_command_writes_nothing_else(tmp_path: Path, ears: Ears) -> None:
    layered = Checkpoints(tmp_path)
    layered.full(users(60))
    layered.change({("u001", 0): 5})
    layered.store.add_listener(ears)
    layered.store.maintenance.compact(everything=True)
    metrics, manifest = figures(layered.store), layered.store.checkpoint().manifest
    assert (metrics.written, metrics.changed_share) == (Amount(), 0)
    assert 0 < metrics.compaction.files <= manifest.files
    assert [event.checkpoint_id for event in ears.committed] == [3]
    assert ears.committed[0].manifest.origin is not None


def test_an_edit_reports_the_rewritten_key_group(store: StateStore) -> None:
    fill(store)
    edited = store.maintenance.edit("u", "s", delete=["k1"])
    metrics = figures(store)
    assert metrics.files_written == edited.files
    assert metrics.written.size_bytes == edited.size_bytes
    assert 0 < (metrics.changed_share or 0) < 1


def test_a_state_written_by_subtasks_is_measured_from_acknowledgements(store: StateStore) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        writer = checkpoint.declare_keyed("u", "s", KEYS.schema, key="k", max_parallelism=16)
        groups = [key_group_of(key, max_parallelism=16) for key in KEYS["k"].to_pylist()]
        for subtask in (writer.subtask(0), writer.subtask(1)):
            own = pa.array([group in subtask.key_groups for group in groups])
            checkpoint.acknowledge(subtask.write(KEYS.filter(own)))
    assert state_of(figures(store), "s").written.rows == 100
    assert state_of(figures(store), "s").base_rows == 100


@pytest.mark.slow
def test_every_phase_includes_its_requests(tmp_path: Path, ears: Ears) -> None:
    store = StateStore.open(
        SlowStorage(str(tmp_path / "s"), latency_seconds=0.03), table_format="parquet"
    )
    store.add_listener(ears)
    fill(store)
    (event,) = ears.committed
    phases = dict(event.metrics.phases.items())
    for name in ("begin", "check", "put"):
        assert phases[name] >= 30, name  # at least one request, which sleeps for 30 ms
    waited = sum(phases[name] for name in FOREGROUND) - phases["put"]
    assert waited <= event.metrics.duration_ms
    write_ms = sum(state.write_ms for state in event.metrics.states)
    assert write_ms <= phases["write"] <= write_ms + 1


def test_an_error_in_the_block_is_reported_with_the_metrics_so_far(
    store: StateStore, ears: Ears
) -> None:
    def write() -> None:
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("u", "s", KEYS, key="k", max_parallelism=16)
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        write()
    assert ears.counts == (0, 1, 0)
    (event,) = ears.failed
    assert (event.store, event.checkpoint_id, str(event.error)) == (store.url, 1, "no more")
    assert event.metrics.written.rows == 100


def test_a_replaced_writer_is_reported_once(tmp_path: Path, ears: Ears) -> None:
    first = StateStore.open(str(tmp_path), table_format="parquet", listeners=[ears])
    take(first)

    def write() -> None:
        with first.snapshot(parallelism=2) as checkpoint:
            take(opened(str(tmp_path)))
            checkpoint.write_keyed("u", "n", ROWS, key="k", max_parallelism=4)

    with pytest.raises(CommitConflictError):
        write()
    assert ears.counts == (1, 1, 0)
    with pytest.raises(CommitConflictError):
        first.snapshot(parallelism=2)
    assert [event.checkpoint_id for event in ears.failed] == [2, None]


class NoManifests(LocalStorage):
    """A storage that fails to put a manifest."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if name.startswith("checkpoints/"):
            raise StorageError("cannot put")
        return super().put_if_absent(name, data)


def test_a_failed_put_is_reported_with_its_duration(tmp_path: Path, ears: Ears) -> None:
    store = StateStore.open(NoManifests(str(tmp_path)), table_format="parquet")
    store.add_listener(ears)
    with pytest.raises(StorageError):
        take(store)
    (event,) = ears.failed
    assert isinstance(event.error, StorageError)
    assert event.metrics.phases.put_ms is not None


def test_a_retry_of_a_committed_checkpoint_is_not_reported(store: StateStore, ears: Ears) -> None:
    take(store, 7)
    again = take(store, 7)
    assert ears.counts == (1, 0, 0)
    assert again.metrics == store.checkpoint(7).manifest.metrics


def test_a_restore_is_reported_with_the_size_of_its_states(store: StateStore, ears: Ears) -> None:
    fill(store)
    restored = store.restore(parallelism=3)
    (event,) = ears.restored
    assert (event.checkpoint_id, event.parallelism, event.store) == (1, 3, store.url)
    stored = restored.manifest
    assert (event.files, event.size_bytes) == (stored.files, stored.size_bytes)
    assert event.seconds > 0


def test_a_failing_listener_has_no_effect_and_is_named(
    store: StateStore, ears: Ears, caplog: pytest.LogCaptureFixture
) -> None:
    store.remove_listener(ears)
    for listener in (Deaf(), ears):  # a failure does not affect the next listener
        store.add_listener(listener)
    with pytest.raises(ZeroDivisionError), store.snapshot(parallelism=1):
        _ = 1 / 0
    fill(store)
    store.restore()
    assert ears.counts == (1, 1, 1)
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [text.split(" of listener Deaf failed")[0] for text in said] == [
        "on_failed",
        "on_committed",
        "on_restored",
    ]


def test_a_removed_listener_is_not_notified(store: StateStore, ears: Ears) -> None:
    store.remove_listener(ears)
    fill(store)
    assert ears.counts == (0, 0, 0)


@pytest.mark.parametrize("wrong", [print, Ears, object(), None])
def test_an_object_that_is_not_a_listener_is_refused(store: StateStore, wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"derive its class from statestore\.Check"):
        store.add_listener(wrong)


def test_each_checkpoint_and_restore_is_logged_in_one_line(
    store: StateStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="statestore")
    fill(store)
    store.restore(parallelism=3)
    manifest = store.checkpoint().manifest
    committed, restored = [record.getMessage() for record in caplog.records]
    assert committed.startswith(f"checkpoint 1 of {store.url} committed in ")
    written = f"102 rows, {manifest.size_bytes} bytes in {manifest.files} files written"
    assert written in committed
    assert "changed share 1, slowest phase " in committed
    assert restored.startswith(f"checkpoint 1 of {store.url} restored at parallelism 3: planned in")


def test_the_library_does_not_configure_logging() -> None:
    assert logging.getLogger("statestore").handlers == []


def test_older_manifests_have_no_metrics() -> None:
    golden = Path(__file__).parent.parent / "golden" / "store_v1"
    assert StateStore.open(str(golden)).checkpoint().manifest.metrics is None
