"""Compact in the background: a later checkpoint adopts the result.

A commit does not wait for it, unless checkpoints have left too many changes to compact.

After each commit one thread folds and merges the changes of the states that the policy selects. It
works on the committed checkpoint, and writes data files that no manifest names yet. The next
checkpoint that still begins with the same base files and layers names these files instead.

**Why a result is adopted only by a matching state.** A result is compared with the state by the
names and checksums of files. The files differ if the state was rewritten, dropped or compacted by
another process, or builds on an older checkpoint. In that case the result is deleted once that
state is committed.

**Why garbage collection does not break it.** The files are young when they are adopted: a result
that is older than :data:`ADOPTABLE_MS` is not used. Each file is looked up, with its size, right
before the commit. Files of a process that ended first are deleted by ``gc``, like every other file
that no checkpoint names.

**Why a fenced writer does no harm.** Its results become visible only by a commit of its own, and
the fence refuses that commit.

**Why it pauses.** Python runs one thread at a time, so a compaction would slow down a snapshot of
the same process. While a snapshot is open, it works for :data:`WORK_SHARE` of the time, a small
piece at a time. It does not wait for the end of the snapshot, because a job may have one open
nearly all of the time. It does not pause while a base file has more changes than ``most_share`` of
its rows. In that case, checkpoints would soon have to fold changes themselves, which takes longer.
Its thread does not have a low priority, because a thread that the operating system delays may hold
Python's lock.

**Why checkpoints rarely fold changes themselves.** A checkpoint that replaces the files that are
being compacted makes the result useless. So while a compaction of the state is under way, a
checkpoint with too large a backlog (``format/layers.py``) waits for the compaction
instead, at most as long as its changes took to write. The compaction is faster then: it no longer
pauses, and has Python's lock for itself.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from threading import Thread

from statestore.errors import StateStoreError, StorageError
from statestore.format.handles import list_of
from statestore.format.layers import (
    CompactionRule,
    is_overdue,
    is_urgent,
    needs_compaction,
)
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.layers.compaction import Compactor
from statestore.layers.expiry import MERGED_BYTES
from statestore.listeners import CompactionFailed, Listeners
from statestore.parquet.file_checks import check_sizes
from statestore.parquet.keyed_writer import CheckpointFiles
from statestore.parquet.writer import ParquetOptions
from statestore.storage import Storage

_log = logging.getLogger(__name__)

ADOPTABLE_MS = 6 * 3_600_000
"""A result may be adopted for so long: well below the minimum age of a garbage collection."""
WORK_SHARE = 0.1
"""The share of the time that a compaction works while a snapshot is open."""
_PIECE_BYTES = 2**20
_LOOK_S = 0.05


def rebased(source: KeyedEntry, result: KeyedEntry, current: KeyedEntry) -> KeyedEntry | None:
    """Return the current version of a state with the compaction of an earlier version applied.

    Args:
        source: the state that was compacted.
        result: the compacted form of ``source``.
        current: the state in the next checkpoint.

    Returns:
        ``current``, where the files of ``result`` replace the files of ``source``; newer layers
        stay. None unless ``current`` begins with the files of ``source``, unchanged.
    """
    count = len(source.layers)
    is_same = (
        replace(source.state, uid=current.state.uid) == current.state
        and _same_files(source, current)
        and len(current.layers) >= count
        and all(
            old.live == new.live and _same_files(old.entry, new.entry)
            for old, new in zip(source.layers, current.layers, strict=False)
        )
    )
    if not is_same:
        return None
    return replace(
        current,
        handles=result.handles,
        table=current.table
        if result.handles is source.handles
        else current.table.without_version(),
        layers=(*result.layers, *current.layers[count:]),
    ).recording(current.contents)


def _same_files(left: KeyedEntry, right: KeyedEntry) -> bool:
    if left.table.path != right.table.path or len(left.handles) != len(right.handles):
        return False
    if (file_list := list_of(left.handles)) and file_list == list_of(right.handles):
        return True
    pairs = zip(left.handles, right.handles, strict=True)
    return all(
        (before.path, before.sha256) == (after.path, after.sha256) for before, after in pairs
    )


class _CancelledError(Exception):
    """The result became useless, or the process is ending."""


def _refuse_cancelled(cancelled: threading.Event) -> None:
    """Raise if a task is cancelled or the main thread has ended, because exit must not wait."""
    if cancelled.is_set() or not threading.main_thread().is_alive():
        raise _CancelledError


class _OpenSnapshots:
    """The open snapshots of one opened store, in any thread."""

    def __init__(self) -> None:
        self._count, self._lock, self._none = 0, threading.Lock(), threading.Event()
        self._none.set()

    def add(self, count: int) -> None:
        with self._lock:
            # A forked process may end a snapshot that its parent began.
            self._count = max(self._count + count, 0)
            (self._none.clear if self._count else self._none.set)()

    def wait(self, seconds: float, should_end: Callable[[], bool]) -> None:
        """Wait at most ``seconds`` while a snapshot is open, until ``should_end`` returns True."""
        end = time.monotonic() + seconds
        while not should_end() and (left := end - time.monotonic()) > 0:
            if self._none.wait(min(left, _LOOK_S)):
                return


class _Pacer:
    """Pauses the compaction of a state to leave processor time to open snapshots."""

    def __init__(
        self, snapshots: _OpenSnapshots, cancelled: threading.Event, *, is_urgent: bool
    ) -> None:
        self._snapshots, self._cancelled = snapshots, cancelled
        self._worked_since = 0.0
        self.is_urgent = is_urgent
        """Whether there are no pauses; may change at any time."""

    def start(self) -> None:
        """Start to measure the work; raise if the compaction is cancelled."""
        _refuse_cancelled(self._cancelled)
        self._worked_since = time.monotonic()

    def pause(self) -> None:
        """Pause in proportion to the work since the last pause; raise if it is cancelled."""
        worked = time.monotonic() - self._worked_since
        self._snapshots.wait(worked * (1 / WORK_SHARE - 1), self._needs_no_pause)
        self._worked_since = time.monotonic()

    def _needs_no_pause(self) -> bool:
        _refuse_cancelled(self._cancelled)
        return self.is_urgent


@dataclass(eq=False)
class _Task:
    """The compaction of one state; ``result`` is None until it has succeeded."""

    source: KeyedEntry
    compactor: Compactor
    pacer: _Pacer
    cancelled: threading.Event
    begun_ms: int
    result: KeyedEntry | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class BackgroundCompaction:
    """The compactions of one opened store, of which at most one runs at a time."""

    def __init__(
        self,
        storage: Storage,
        parquet: ParquetOptions,
        policy: CompactionRule | None,
        listeners: Listeners,
    ) -> None:
        """Start without compactions; without a policy none is ever started.

        The listeners receive failures.
        """
        self._storage, self._parquet, self._policy = storage, parquet, policy
        self._listeners = listeners
        self._forget_all()

    def _forget_all(self) -> None:
        self._process = os.getpid()
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._tasks: dict[str, _Task] = {}
        self._thread: Thread | None = None
        self._open = _OpenSnapshots()

    def _own_tasks(self) -> dict[str, _Task]:
        """Return the tasks of this process; a forked process starts with none."""
        if self._process != os.getpid():
            self._forget_all()
        return self._tasks

    def snapshot_began(self) -> None:
        """Slow down compactions until :meth:`snapshot_ended` is called."""
        self._own_tasks()
        self._open.add(1)

    def snapshot_ended(self, manifest: Manifest | None, now_ms: int) -> None:
        """Stop slowing down compactions if no other snapshot is open, and start new ones.

        Args:
            manifest: the checkpoint; None if it was not committed.
            now_ms: the TTL clock.
        """
        self._own_tasks()
        self._open.add(-1)
        if manifest is not None and self._policy is not None:
            self._start(manifest, self._policy, now_ms)

    def compacting_layers(self, entry: KeyedEntry) -> int | None:
        """Return how many of the oldest layers of a state a compaction is folding or merging.

        None if no compaction is under way whose result this state can adopt.
        """
        task = self._task_under_way(entry)
        return None if task is None else len(task.source.layers)

    def wait_for(self, entry: KeyedEntry, latest: float) -> None:
        """Wait until the compaction of a state has ended, or until a monotonic time.

        It no longer pauses for open snapshots, because one of them waits for it.
        """
        task = self._task_under_way(entry)
        if task is not None:
            task.pacer.is_urgent = True
            task.ended.wait(max(latest - time.monotonic(), 0))

    def _task_under_way(self, entry: KeyedEntry) -> _Task | None:
        task = self._own_tasks().get(entry.table.path)
        if task is None or task.ended.is_set() or _is_old(task):
            return None
        return None if rebased(task.source, task.source, entry) is None else task

    def adopt(self, entry: KeyedEntry) -> tuple[KeyedEntry, list[str]] | None:
        """Return a state with the result of its compaction, and the names of the new files.

        The result stays here until :meth:`give_away` is called with it. So if a checkpoint fails,
        the next one can still adopt it. Returns None if no result matches. A result with a missing
        file is discarded, and the compaction is repeated after the commit. Its other files are left
        to ``gc``, because another open snapshot may have adopted them.
        """
        tasks = self._own_tasks()
        task = tasks.get(entry.table.path)
        if task is None or task.result is None or _is_old(task):
            return None
        adopted = rebased(task.source, task.result, entry)
        if adopted is None:
            return None
        if not self._exists(task):
            self.give_away([entry.table.path])
            return None
        return adopted, list(task.compactor.new.names)

    def _exists(self, task: _Task) -> bool:
        """Return whether all files of a result exist with the right sizes."""
        assert task.result is not None
        names = set(task.compactor.new.names)
        parts = [
            replace(part, handles=tuple(h for h in part.handles if part.table.name_of(h) in names))
            for part in task.result.parts
            if list_of(part.handles) is None
        ]
        try:
            check_sizes(self._storage, parts)
        except StateStoreError as error:
            _log.warning("the compaction of %s was discarded: %s", task.source.state, error)
            return False
        return True

    def give_away(self, adopted: Collection[str]) -> None:
        """Forget results, and never delete their files.

        It is called before a manifest that names the files is put. If the put fails, the manifest
        may still be visible, and otherwise ``gc`` deletes the files.

        Args:
            adopted: the folders of the states' tables.
        """
        tasks = self._own_tasks()
        for place in adopted:
            tasks.pop(place, None)

    def committed(self, manifest: Manifest) -> None:
        """Delete results that do not match the checkpoint that was just committed."""
        tasks = self._own_tasks()
        states = {entry.table.path: entry for entry in manifest.keyed}
        for place, task in list(tasks.items()):
            entry = states.get(place)
            fits = entry is not None and rebased(task.source, task.source, entry) is not None
            failed = task.ended.is_set() and task.result is None
            if failed or not fits or _is_old(task):
                tasks.pop(place, None)
                self._cancel(task)
            elif entry is not None and self._policy is not None:
                task.pacer.is_urgent |= is_urgent(entry, self._policy)

    def _start(self, manifest: Manifest, policy: CompactionRule, now_ms: int) -> None:
        """Compact the states that need it in a new thread, unless one is still running.

        Commits of several threads may call this at the same time, and only one starts a thread.
        """
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                return
            new = []
            for entry in manifest.keyed:
                if entry.table.path in self._tasks:
                    continue
                if is_overdue(entry, policy, is_compacting=True):
                    continue  # the following checkpoints fold changes themselves
                if needs_compaction(entry, policy):
                    new.append(self._task_of(entry, manifest.checkpoint_id, now_ms, policy))
            if new:
                self._tasks |= {task.source.table.path: task for task in new}
                self._thread = Thread(
                    target=self._run, args=(new, policy), name="statestore-compaction"
                )
                self._thread.start()

    def _task_of(
        self, entry: KeyedEntry, checkpoint_id: int, now_ms: int, policy: CompactionRule
    ) -> _Task:
        cancelled, hurries = threading.Event(), is_urgent(entry, policy)
        pacer = _Pacer(self._open, cancelled, is_urgent=hurries)
        compactor = Compactor(
            CheckpointFiles(self._storage, checkpoint_id, self._parquet),
            now_ms,
            piece_bytes=MERGED_BYTES if hurries else _PIECE_BYTES,
            before_batch=pacer.pause,
        )
        return _Task(entry, compactor, pacer, cancelled, time.time_ns() // 1_000_000)

    def _run(self, tasks: Sequence[_Task], policy: CompactionRule) -> None:
        for task in tasks:
            try:
                task.pacer.start()
                result = task.compactor.apply_policy(task.source, policy)
                with self._lock:
                    _refuse_cancelled(task.cancelled)
                    task.result = result
            except _CancelledError as error:
                task.compactor.new.delete(error)
            except Exception as error:  # noqa: BLE001 - listeners are notified, and it is retried
                task.compactor.new.delete(error)
                # When the process ends, Python closes all pools before it stops its main thread.
                if "cannot schedule new futures" not in str(error):
                    self._listeners.compaction_failed(
                        CompactionFailed(
                            store=self._listeners.url,
                            checkpoint_id=task.compactor.new.checkpoint_id,
                            operator=task.source.state.uid,
                            state=task.source.state.name,
                            error=error,
                        )
                    )
            finally:
                task.ended.set()

    def _cancel(self, task: _Task) -> None:
        """Cancel a task; delete the files of a result here, and leave other files to its thread."""
        with self._lock:
            task.cancelled.set()
        # Another snapshot may have adopted an old result when it was not old yet: gc deletes that.
        if task.result is None or _is_old(task):
            return
        for name in task.compactor.new.names:
            try:
                self._storage.delete(name)
            except StorageError as error:
                _log.warning(
                    (
                        "a file of a discarded compaction could not be deleted; 'statestore gc' "
                        "deletes it later: %s"
                    ),
                    error,
                )

    def wait(self) -> None:
        """Wait until no compaction is running."""
        self._own_tasks()
        if self._thread is not None:
            self._thread.join()


def _is_old(task: _Task) -> bool:
    return time.time_ns() // 1_000_000 - task.begun_ms > ADOPTABLE_MS
