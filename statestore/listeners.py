"""Report checkpoints: log a line for each one, and notify the listeners of the store.

As with Spark's ``StreamingQueryListener``, monitoring is attached to the store, and not to the code
that takes snapshots. A listener is called in the thread that committed or restored. A failed
background compaction is reported in the thread of the compaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from statestore.display import duration
from statestore.errors import InvalidArgumentError, StateStoreError
from statestore.format.manifest import Manifest
from statestore.format.metrics import CheckpointMetrics

_log = logging.getLogger("statestore")

Progress = Callable[[int, int], None]
"""Called by a long command with the amount that is done, and the total."""


def ignore_progress(done: int, total: int) -> None:
    """Do nothing: the caller does not show the progress of a command."""


@dataclass(frozen=True, kw_only=True)
class CheckpointCommitted:
    """A checkpoint became visible; ``metrics`` are those in its manifest, and ``put_ms``."""

    store: str
    checkpoint_id: int
    metrics: CheckpointMetrics
    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class CheckpointFailed:
    """A checkpoint was not committed; ``metrics`` has its cost until then.

    ``checkpoint_id`` is None if it failed before it got an id. If the put of the manifest failed,
    ``put_ms`` is set, and the checkpoint may be visible anyway.
    """

    store: str
    checkpoint_id: int | None
    error: BaseException
    metrics: CheckpointMetrics


@dataclass(frozen=True, kw_only=True)
class CheckpointRestored:
    """A checkpoint is ready to be restored at a parallelism, after ``seconds``.

    ``files`` and ``size_bytes`` cover all its states. Its subtasks read them later, in their own
    processes.
    """

    store: str
    checkpoint_id: int
    parallelism: int
    seconds: float
    files: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class CompactionFailed:
    """The background compaction of a checkpoint's state failed.

    No checkpoint fails because of it. The compaction is tried again after the next checkpoint.
    """

    store: str
    checkpoint_id: int
    operator: str
    state: str
    error: BaseException


@runtime_checkable
class CheckpointListener(Protocol):
    """Receives the events of a store's checkpoints.

    Derive from it, and override the methods you need.

    An exception in a listener is logged as a warning, and does not affect the checkpoint.
    """

    def on_committed(self, event: CheckpointCommitted) -> None:
        """Called after a job or a command of this store has made a checkpoint visible."""

    def on_failed(self, event: CheckpointFailed) -> None:
        """Called if a checkpoint was not committed; the error is raised afterwards."""

    def on_restored(self, event: CheckpointRestored) -> None:
        """Called when a checkpoint is ready to be read."""


@runtime_checkable
class CompactionListener(Protocol):
    """A checkpoint listener that also receives the failures of background compactions.

    Derive from it in addition to :class:`CheckpointListener`.
    """

    def on_compaction_failed(self, event: CompactionFailed) -> None:
        """Called in the thread of the compaction after it has failed."""


class Listeners:
    """The listeners of one store, in the order in which they were added."""

    def __init__(self, url: str) -> None:
        """Start without listeners, for the store at a URL."""
        self.url = url
        self._known: tuple[CheckpointListener, ...] = ()

    def add(self, listener: CheckpointListener) -> None:
        """Add a listener. Raises InvalidArgumentError for an object that is not a listener."""
        candidate: object = listener
        if isinstance(candidate, type) or not isinstance(candidate, CheckpointListener):
            listener_type = candidate if isinstance(candidate, type) else type(candidate)
            raise InvalidArgumentError(
                "a listener must have the methods on_committed, on_failed and on_restored, which "
                f"{listener_type.__name__} lacks; derive its class from "
                "statestore.CheckpointListener"
            )
        self._known = (*self._known, listener)

    def remove(self, listener: CheckpointListener) -> None:
        """Remove a listener; do nothing if it is unknown."""
        self._known = tuple(known for known in self._known if known is not listener)

    def committed(self, manifest: Manifest, metrics: CheckpointMetrics) -> None:
        """Report to all listeners that a checkpoint is visible."""
        number = manifest.checkpoint_id
        if _log.isEnabledFor(logging.INFO):
            _log.info("checkpoint %d of %s committed %s", number, self.url, _metrics_text(metrics))
        event = CheckpointCommitted(
            store=self.url, checkpoint_id=number, metrics=metrics, manifest=manifest
        )
        self._notify("on_committed", event)

    def failed(
        self, checkpoint_id: int | None, error: BaseException, metrics: CheckpointMetrics
    ) -> None:
        """Report to all listeners that a checkpoint was not committed."""
        event = CheckpointFailed(
            store=self.url, checkpoint_id=checkpoint_id, error=error, metrics=metrics
        )
        self._notify("on_failed", event)

    def restored(self, event: CheckpointRestored) -> None:
        """Report to all listeners that a checkpoint is ready to be read."""
        _log.info(
            "checkpoint %d of %s restored at parallelism %d: planned in %s, its states have "
            "%d bytes in %d files",
            event.checkpoint_id,
            event.store,
            event.parallelism,
            duration(1000 * event.seconds),
            event.size_bytes,
            event.files,
        )
        self._notify("on_restored", event)

    def compaction_failed(self, event: CompactionFailed) -> None:
        """Log a failed background compaction, and report it to the compaction listeners."""
        _log.warning(
            (
                "the compaction of state %r of operator %r of %s failed and will be retried "
                "after the next checkpoint: %s"
            ),
            event.state,
            event.operator,
            event.store,
            event.error,
            # The text of an error of ours says what happened; any other one needs its traceback.
            exc_info=None if isinstance(event.error, StateStoreError) else event.error,
        )
        self._notify("on_compaction_failed", event, CompactionListener)

    def _notify(self, what: str, event: Any, listener_type: type = object) -> None:
        for listener in self._known:
            if not isinstance(listener, listener_type):
                continue
            try:
                getattr(listener, what)(event)
            except Exception:  # noqa: BLE001 - whatever it is, the checkpoint stands
                _log.exception(
                    "%s of listener %s failed; checkpoint %s of %s is not affected",
                    what,
                    type(listener).__qualname__,
                    event.checkpoint_id,
                    event.store,
                )


def _metrics_text(metrics: CheckpointMetrics) -> str:
    written, compacted = metrics.written, metrics.compaction
    share = metrics.changed_share
    phase, spent = metrics.phases.slowest
    parts = [
        f"in {duration(metrics.took_ms)}",
        f"{written.rows} rows",
        f"{written.size_bytes} bytes in {written.files} files written",
    ]
    if compacted.files:
        parts.append(f"{compacted.size_bytes} bytes in {compacted.files} files by compaction")
    if share is not None:
        parts.append(f"changed share {share:.4g}")
    return ", ".join((*parts, f"slowest phase {phase} ({duration(spent)})"))
