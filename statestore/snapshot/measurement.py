"""Measure a checkpoint while it is taken: the times of its phases, and the written amounts.

One object accompanies an attempt from its start. It also notifies the listeners once of the
outcome.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from statestore.format.handles import list_of
from statestore.format.manifest import Entry, KeyedEntry, Manifest, StateName, name_of
from statestore.format.metrics import (
    Amount,
    CheckpointMetrics,
    PhaseTimes,
    StateMetrics,
    amount_of,
)
from statestore.listeners import Listeners

K = TypeVar("K", str, StateName)


class Measuring:
    """The stopwatch of one attempt; it is thread-safe.

    Phases have the names of the fields of :class:`~statestore.format.metrics.PhaseTimes`, without
    ``_ms``. The attempt starts when this object is created.
    """

    def __init__(self, listeners: Listeners) -> None:
        """Start the stopwatch."""
        self._listeners = listeners
        self._started = time.monotonic_ns()
        self._phases: dict[str, int] = {}
        self._writes: dict[StateName, int] = {}
        self._written: dict[StateName, Amount] = {}
        self._bases: dict[StateName, int | None] = {}
        self._compacted = Amount()
        self._declared: dict[StateName, int] = {}
        self._is_reported = False
        self._lock = threading.Lock()

    @contextmanager
    def telling(self, checkpoint_id: int | None) -> Iterator[None]:
        """End the phase ``begin`` after the block; report an error in it to the listeners."""
        try:
            yield
        except BaseException as error:
            self._begun()
            self.failed(checkpoint_id, error)
            raise
        self._begun()

    def _begun(self) -> None:
        self._add(self._phases, "begin", time.monotonic_ns() - self._started)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a block to a phase, even if the block fails."""
        started = time.monotonic_ns()
        try:
            yield
        finally:
            self._add(self._phases, name, time.monotonic_ns() - started)

    @contextmanager
    def writing(self, uid: str, name: str) -> Iterator[None]:
        """Add the time of a block to the write time of a state."""
        started = time.monotonic_ns()
        try:
            yield
        finally:
            self._add(self._writes, (uid, name), time.monotonic_ns() - started)

    def write_seconds(self, names: Collection[StateName]) -> float:
        """Return the seconds that some states took to write so far, in total."""
        with self._lock:
            return sum(self._writes.get(name, 0) for name in names) / 1e9

    def declared(self, uid: str, name: str) -> None:
        """Start the write time of a state that its subtasks write in other processes."""
        self._declared[uid, name] = time.monotonic_ns()

    def answered(self, uid: str, name: str) -> None:
        """Record the answer of a subtask: the state's write time is the time since ``declared``."""
        with self._lock:
            self._writes[uid, name] = time.monotonic_ns() - self._declared[uid, name]

    def wrote(self, entry: Entry, new: Collection[str] | None = None) -> None:
        """Record the written amount of a state.

        It counts all files, or only the files in ``new``, by their names relative to the store.
        """
        written = amount_of(entry.handles) if new is None else _amount(entry, new)
        with self._lock:
            self._written[name_of(entry)] = written
            self._bases[name_of(entry)] = _base_rows(entry)

    def compacted(self, entry: Entry, new: Collection[str]) -> None:
        """Record the amount that compaction has written of a state, by the names of its files."""
        with self._lock:
            self._compacted += _amount(entry, new)
            self._written.setdefault(name_of(entry), Amount())
            self._bases.setdefault(name_of(entry), _base_rows(entry))

    def metrics(self, manifest: Manifest | None = None) -> CheckpointMetrics:
        """Return the metrics so far, for all attempted states, or for the states of a manifest."""
        with self._lock:
            names = {**self._written, **self._writes}
            if manifest is not None:
                kept = {name_of(entry) for entry in manifest.entries}
                names = {name: spent for name, spent in names.items() if name in kept}
            spent = {f"{name}_ms": _ms(nanoseconds) for name, nanoseconds in self._phases.items()}
            put = spent.get("put_ms", 0)
            return CheckpointMetrics(
                duration_ms=_ms(time.monotonic_ns() - self._started) - put,
                phases=PhaseTimes(write_ms=_ms(sum(self._writes.values())), **spent),
                states=tuple(map(self._state, names)),
                compaction=self._compacted,
            )

    def _state(self, name: StateName) -> StateMetrics:
        return StateMetrics(
            operator=name[0],
            state=name[1],
            write_ms=_ms(self._writes.get(name, 0)),
            written=self._written.get(name, Amount()),
            base_rows=self._bases.get(name),
        )

    def committed(self, manifest: Manifest) -> CheckpointMetrics:
        """Notify the listeners that the checkpoint is visible; return its complete metrics."""
        assert manifest.metrics is not None, "its own metrics are those before the put"
        phases = replace(manifest.metrics.phases, put_ms=_ms(self._phases["put"]))
        metrics = replace(manifest.metrics, phases=phases)
        self._is_reported = True
        self._listeners.committed(manifest, metrics)
        return metrics

    def failed(self, checkpoint_id: int | None, error: BaseException) -> None:
        """Notify the listeners of a failed checkpoint; only the first call has an effect."""
        if not self._is_reported:
            self._is_reported = True
            self._listeners.failed(checkpoint_id, error, self.metrics())

    def _add(self, watch: dict[K, int], name: K, spent: int) -> None:
        with self._lock:
            watch[name] = watch.get(name, 0) + spent


def _amount(entry: Entry, new: Collection[str]) -> Amount:
    if not new:
        return Amount()
    names = frozenset(new)
    # Files in a list of their own were written by an earlier checkpoint.
    written = [part for part in entry.parts if list_of(part.handles) is None]
    parts = [(part.table.path, handle) for part in written for handle in part.handles]
    return amount_of([handle for path, handle in parts if f"{path}/{handle.path}" in names])


def _base_rows(entry: Entry) -> int | None:
    return entry.rows - entry.changed_rows if isinstance(entry, KeyedEntry) else None


def _ms(nanoseconds: int) -> int:
    return nanoseconds // 1_000_000
