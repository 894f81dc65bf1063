"""Commit a checkpoint: its files become visible as a whole, or are deleted (I5).

Tables are published first, and the manifest is put last. An error before the put deletes the
written files. After the manifest PUT is issued, no file is deleted, even if the PUT seemed to fail:
a reader may have seen the checkpoint, and a writer may have named its files again. ``gc`` deletes
the files if they turn out to be dead.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from statestore.errors import CommitConflictError, InvalidArgumentError, ParallelismError
from statestore.format.batches import with_batch
from statestore.format.left_out import LeftOutState, still_left_out
from statestore.format.listed import list_of, listed_bytes, read_all
from statestore.format.manifest import Entry, KeyedEntry, Manifest, OperatorEntry, TableRef
from statestore.format.manifest_json import manifest_to_json
from statestore.format.metrics import CheckpointMetrics
from statestore.format.names import file_list_path
from statestore.keys.ranges import RangeAssignment
from statestore.parquet.file_checks import check_sizes
from statestore.snapshot.pending_checkpoint import PendingCheckpoint

__all__ = ["Commit"]

_PUBLISHERS = 4
_PUBLISH_TRIES = 8


class Commit:
    """The end of one attempt; ``manifest`` and ``metrics`` are set once it is committed."""

    def __init__(self, collected: PendingCheckpoint) -> None:
        """Prepare to commit the collected states."""
        self._collected, self._attempt = collected, collected.attempt
        self._published: frozenset[str] = frozenset()
        self._lists = itertools.count()
        self.origin: Mapping[str, Any] | None = None
        self.command: str | None = None
        self.replaced: Manifest | None = None
        self.left_out: tuple[LeftOutState, ...] = ()
        self.inherits_left_out = True
        self.manifest: Manifest | None = None
        self.metrics: CheckpointMetrics | None = None

    @property
    def outline(self) -> Manifest:
        """The manifest without its states, times and batches."""
        attempt = self._attempt
        return Manifest(
            store_id=attempt.catalog.store_id,
            checkpoint_id=attempt.checkpoint_id,
            parallelism=attempt.operators.parallelism,
            started_at_ms=attempt.started_at_ms,
            created_at_ms=attempt.started_at_ms,
            writer=replace(attempt.writer, command=self.command),
            keyed=(),
            operator=(),
            graph=attempt.operators.graph,
            origin=self.origin,
            left_out=self.left_out,
        )

    def record(self, **members: Any) -> None:
        """Set some of the public attributes; InvalidArgumentError if no reader could read them."""
        before = {name: getattr(self, name) for name in members}
        vars(self).update(members)
        try:
            manifest_to_json(replace(self.outline, graph=None))  # checked at the beginning
        except BaseException:
            vars(self).update(before)
            raise

    def run(self) -> None:
        """Commit all states, or delete the written files and raise.

        A fenced writer is stopped before it publishes tables, and again right before it puts the
        manifest. The docstring of ``fence.py`` explains why that is enough.
        """
        attempt, measuring = self._attempt, self._attempt.measuring
        try:
            self._collected.settle()
            with measuring.phase("check"):
                attempt.fence.check()
                attempt.catalog.refuse_taken(attempt.checkpoint_id, attempt.observed_newest_id)
            manifest = self._manifest()
        except BaseException as failure:
            self.fail(failure)
            raise
        # Two snapshots of one process share one claim. So the second one must look for the newest
        # checkpoint after the first one was put. Compactions that do not match the first one are
        # deleted before a later one is put, because they may match that one.
        with attempt.fence.one_commit:
            self.manifest = manifest = self._put(manifest)
            if attempt.background is not None:
                attempt.background.committed(manifest)
        self._collected.delete_merged(manifest)
        self.metrics = measuring.committed(manifest)

    def _put(self, manifest: Manifest) -> Manifest:
        """Check again that this checkpoint may be committed, and put its manifest.

        Returns the manifest with its metrics.
        """
        attempt, measuring = self._attempt, self._attempt.measuring
        try:
            with measuring.phase("check"):
                attempt.fence.check()
                attempt.catalog.refuse_taken(attempt.checkpoint_id, attempt.observed_newest_id)
            manifest = replace(manifest, metrics=measuring.metrics(manifest))
        except BaseException as failure:
            self.fail(failure)
            raise
        # Before the put: after it, a snapshot in another thread may already build on the manifest.
        if attempt.background is not None:
            attempt.background.give_away(self._collected.adopted)
        try:
            with measuring.phase("put"):
                attempt.catalog.commit(manifest)
                attempt.fence.check_after_put(manifest.checkpoint_id)
        except InvalidArgumentError as refused:  # nothing was put
            self.fail(refused)
            raise
        except BaseException as unknown:
            measuring.failed(attempt.checkpoint_id, unknown)
            raise
        return manifest

    def fail(self, reason: BaseException) -> None:
        """Delete the written files, and notify the listeners."""
        self._collected.abandon(reason, self._published)
        self._attempt.measuring.failed(self._attempt.checkpoint_id, reason)

    def _manifest(self) -> Manifest:
        attempt, entries = self._attempt, self._collected.entries
        with attempt.measuring.phase("check"):
            # A log needs every file, so an unreadable list must fail before the first table is
            # published.
            logged = [entry for entry in entries if entry.table.format == "delta"]
            read_all([entry.handles for entry in logged if len(entry.parts) == 1])
            check_sizes(attempt.catalog.storage, entries, but=attempt.kept_files(entries))
        with attempt.measuring.phase("publish"):
            left_out = self._left_out()
            published = self._with_lists(self._publish(entries, left_out))
        timed = self.replaced
        return replace(
            self.outline,
            started_at_ms=timed.started_at_ms if timed else attempt.started_at_ms,
            created_at_ms=timed.created_at_ms if timed else time.time_ns() // 1_000_000,
            keyed=tuple(entry for entry in published if isinstance(entry, KeyedEntry)),
            operator=tuple(entry for entry in published if isinstance(entry, OperatorEntry)),
            ranges=self._ranges(entries),
            left_out=left_out,
            batches=with_batch(attempt.inherited_batches, attempt.batch, attempt.checkpoint_id),
        )

    def _left_out(self) -> tuple[LeftOutState, ...]:
        """Return the records of the source's state that this checkpoint lacks (I16).

        Inherited records that this checkpoint does not resolve come first, then its own records.
        """
        attempt, collected = self._attempt, self._collected
        before = attempt.made_of or attempt.history.before()
        bases = [before, *collected.bases.values()] if self.inherits_left_out else []
        inherited = (
            record
            for base in bases
            if base is not None and base.left_out
            for record in self._inherited(base)
        )
        return tuple(dict.fromkeys((*inherited, *self.left_out)))

    def _inherited(self, base: Manifest) -> tuple[LeftOutState, ...]:
        """Return the records of a checkpoint that still apply to this one, with this job's labels.

        An operator's label may have changed since, but its operator id has not.
        """
        operators, collected = self._attempt.operators, self._collected

        def label(uid: str) -> str:
            return operators.label_of_id(base.operators.id_of(uid), uid) or uid

        return still_left_out(
            [replace(record, operator=label(record.operator)) for record in base.left_out],
            stored={(label(entry.state.uid), entry.state.name) for entry in base.entries},
            present=collected.names,
            rewritten=collected.rewritten,
        )

    def _with_lists(self, entries: Sequence[Entry]) -> list[Entry]:
        """Put each new, long list of files into a document of its own, in parallel."""
        return _each(entries, self._has_long_list, self._with_list)

    def _has_long_list(self, entry: Entry) -> bool:
        return isinstance(entry, KeyedEntry) and any(map(self._is_long, entry.parts))

    def _is_long(self, entry: KeyedEntry) -> bool:
        """Return whether a list of files is long, and not yet a document of its own."""
        is_known = list_of(entry.handles) is not None
        return not is_known and listed_bytes(entry.handles) > self._attempt.parquet.list_bytes

    def _with_list(self, entry: Entry) -> Entry:
        assert isinstance(entry, KeyedEntry)
        layers = (replace(layer, entry=self._listed(layer.entry, True)) for layer in entry.layers)
        return replace(self._listed(entry, False), layers=tuple(layers))

    def _listed(self, entry: KeyedEntry, packed: bool) -> KeyedEntry:
        attempt = self._attempt
        if not self._is_long(entry):
            return entry
        path = file_list_path(attempt.checkpoint_id, attempt.writer.token, next(self._lists))
        self._collected.add_list(path)
        return attempt.catalog.put_list(path, entry, packed=packed)

    def _ranges(self, entries: Sequence[Entry]) -> Mapping[str, RangeAssignment]:
        """Return the ranges that differ from Flink's.

        Raises ParallelismError unless they fit their states.
        """
        for entry in entries:
            own = self._attempt.ranges.get(entry.state.uid)
            if own is None or not isinstance(entry, KeyedEntry):
                continue
            parallelism = self._attempt.operators.parallelism_of(entry.state.uid)
            if (own.max_parallelism, own.parallelism) != (entry.state.max_parallelism, parallelism):
                raise ParallelismError(
                    f"the ranges of operator {entry.state.uid!r} are for parallelism "
                    f"{own.parallelism} and max parallelism {own.max_parallelism}, but the "
                    f"operator has parallelism {parallelism} and max parallelism "
                    f"{entry.state.max_parallelism}; pass ranges that fit, or none"
                )
        return self._attempt.ranges

    def _publish(self, entries: Sequence[Entry], left_out: Sequence[LeftOutState]) -> list[Entry]:
        """Publish the tables of all states without changes; return the states with their tables.

        A Delta log has no entries for changes. Publishing is mostly waiting, so it runs in threads.
        """

        def is_logged(entry: Entry) -> bool:
            return not (isinstance(entry, KeyedEntry) and entry.layers)

        self._published = frozenset(
            entry.table.path
            for entry in entries
            if entry.table.format == "delta" and is_logged(entry)
        )
        return _each(
            entries,
            is_logged,
            lambda entry: replace(entry, table=self._publish_one(entry, left_out)),
        )

    def _publish_one(self, entry: Entry, left_out: Sequence[LeftOutState]) -> TableRef:
        table, number = self._attempt.table, self._attempt.checkpoint_id
        for _ in range(_PUBLISH_TRIES - 1):
            try:
                return table.publish(entry, number, left_out)
            except CommitConflictError:
                # A writer that passed its check just before it was fenced may still add one
                # version. It will not commit, and must not prevent the newest writer from
                # publishing.
                self._attempt.fence.check()
        return table.publish(entry, number, left_out)


def _each(
    entries: Sequence[Entry],
    is_concerned: Callable[[Entry], bool],
    change: Callable[[Entry], Entry],
) -> list[Entry]:
    """Change the selected states in threads, and return all states in their order.

    If no state is selected, no thread starts, because a thread costs more than a small state.
    """
    concerned = [entry for entry in entries if is_concerned(entry)]
    with ThreadPoolExecutor(max_workers=_PUBLISHERS) as pool:
        changed = pool.map(change, concerned)
        return [next(changed) if is_concerned(entry) else entry for entry in entries]
