"""Committing a checkpoint: what was written becomes visible as a whole, or is deleted (I5).

:class:`Commit` holds the states of one checkpoint and ends its ``with`` block: tables are published
first, the manifest is put last. An exception in the block deletes what was written and commits
nothing. Once the put of the manifest was asked for, nobody deletes, whatever came of it: somebody
may have seen the checkpoint, and have named its files again. What is dead then is for ``gc``.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from statestore.errors import InvalidArgumentError, ParallelismError, StorageError
from statestore.files.reader import check_sizes
from statestore.format.handles import Handle
from statestore.format.manifest import Entry, KeyedEntry, Manifest, OperatorEntry, TableRef, Writer
from statestore.format.metrics import CheckpointMetrics
from statestore.format.state import KeyedState
from statestore.keys.ranges import RangeAssignment
from statestore.snapshot.attempt import Attempt
from statestore.snapshot.changes import ChangeWriter
from statestore.snapshot.compaction import Compactions
from statestore.snapshot.states import refuse_folded
from statestore.snapshot.subtasks import Acknowledged

__all__ = ["USED", "Commit"]

_PUBLISHERS = 4
_log = logging.getLogger(__name__)
USED = "the 'with' block of this snapshot has begun already; take another one: store.snapshot(…)"
_NOT_ENTERED = (
    "a snapshot is taken in a 'with' block, and committed when that ends; write 'with "
    "store.snapshot(…) as checkpoint:'"
)


class Commit:
    """The states of one checkpoint, committed together when its block ends.

    ``already_committed`` says that an earlier attempt had committed this id, and nothing is written
    now.
    """

    already_committed = False

    def __init__(self, attempt: Attempt) -> None:
        """Start with no states; see ``StateStore.snapshot``."""
        self._attempt = attempt
        self._keyed: list[KeyedEntry] = []
        self._operator: list[OperatorEntry] = []
        self._acknowledged: dict[tuple[str, str], Acknowledged] = {}
        self._carried: list[Entry] = []
        self._rewritten: list[str] = []
        self._changing: list[ChangeWriter] = []
        self._compactions = Compactions(attempt)
        self._origin: Mapping[str, Any] | None = None
        self._committed: Manifest | None = None
        self._metrics: CheckpointMetrics | None = None
        self._stored: frozenset[tuple[str, str]] | None = None
        self._entered = self._left = self._published = False

    @property
    def id(self) -> int:
        """The checkpoint's number, known once it is committed; InvalidArgumentError before."""
        return self.manifest.checkpoint_id

    @property
    def planned(self) -> tuple[int, Writer]:
        """The number that the checkpoint gets, and its writer; known before it is committed.

        Who never hears whether the commit was done finds out by asking again for this number: the
        checkpoint is this one if its manifest names the same writer.
        """
        fixed = self._committed or self._attempt
        return fixed.checkpoint_id, fixed.writer

    @property
    def manifest(self) -> Manifest:
        """The committed manifest; InvalidArgumentError before the block has ended."""
        if self._committed is None:
            raise InvalidArgumentError(
                "the checkpoint is committed when its 'with' block ends, not before"
            )
        return self._committed

    @property
    def metrics(self) -> CheckpointMetrics | None:
        """What the checkpoint cost, that of its manifest's put too; what the manifest says when it
        was committed before. InvalidArgumentError before the block has ended.
        """
        return self.manifest.metrics if self._metrics is None else self._metrics

    def carry_entry(self, entry: Entry, new: Sequence[Handle] = ()) -> None:
        """Take a state over as another checkpoint of this store has it, with its files.

        The files are not copied, only named again; an error in the block does not delete them, but
        those in ``new``, which were written for this checkpoint. Raises InvalidArgumentError for a
        state that is in this checkpoint already.
        """
        self._refuse_twice(entry.state.uid, entry.state.name)
        self._carried.append(entry)
        names = [f"{entry.table.path}/{handle.path}" for handle in new]
        self._rewritten += names
        self._attempt.measuring.wrote(entry, names)

    def carry_written(
        self,
        entries: Sequence[KeyedEntry],
        new: Sequence[str],
        *,
        compacted: bool = False,
        kept: bool = False,
    ) -> None:
        """Take states over as :meth:`carry_entry` does; ``new`` are the names of the files that
        were written for them, below the store, or by compaction of them. An error does not delete
        them if they are ``kept``, for another attempt to go on from.
        """
        for entry in entries:
            self._refuse_twice(entry.state.uid, entry.state.name)
        self._carried += entries
        self._rewritten += () if kept else new
        measuring = self._attempt.measuring
        for entry in entries:
            (measuring.compacted if compacted else measuring.wrote)(entry, new)

    @contextmanager
    def compacting(self) -> Iterator[None]:
        """Count the time of a block to the compaction of states that are carried."""
        with self._attempt.measuring.phase("compaction"):
            yield

    def _add_changed(self, entry: KeyedEntry, new: Sequence[str]) -> None:
        """Take a state with changes, and the names of the files that were written for it."""
        self.carry_written([entry], new)
        self._compactions.begin(entry)

    def _take_compacted(self) -> None:
        with self._attempt.measuring.phase("wait"):
            compacted = self._compactions.finish()
        for entry, new in compacted:
            self._attempt.measuring.compacted(entry, new)
        known = {_name(entry): entry for entry, _ in compacted}
        self._carried = [known.get(_name(entry), entry) for entry in self._carried]
        self._rewritten += [name for _, new in compacted for name in new]

    def say_origin(self, origin: Mapping[str, Any]) -> None:
        """Say of which checkpoint, and how, this one is made; plain JSON values, for the
        manifest.
        """
        self._origin = origin

    def give_up(self) -> None:
        """Take no checkpoint after all; nothing was written yet. InvalidArgumentError within the
        block.
        """
        if self._entered and not self._left:
            raise InvalidArgumentError("within its 'with' block, a snapshot ends by an exception")
        self._entered = self._left = True

    def __del__(self) -> None:
        """Warn of a checkpoint whose block was never entered: nothing of it was committed."""
        used = self.already_committed or getattr(self, "_entered", True) or self._left
        if not used:
            warnings.warn(
                f"checkpoint {self._attempt.checkpoint_id} of {self._attempt.catalog.storage.url} "
                f"was begun and never taken: {_NOT_ENTERED}",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def __enter__(self) -> Self:
        """Return the writer; InvalidArgumentError when it was used before."""
        if self._entered:
            raise InvalidArgumentError(USED)
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or after an exception delete what was written.

        A writer that was replaced meanwhile is stopped before it publishes tables, and again right
        before it puts the manifest; ``fence.py`` says why that is enough.
        """
        self._left = True
        if error is not None:
            self._fail(error)
            return
        measuring = self._attempt.measuring
        try:
            for awaited in self._acknowledged.values():
                awaited.refuse_missing()
                measuring.wrote(awaited.entry)
            self._refuse_unused()
            self._refuse_mixed()
            self._take_compacted()
            with measuring.phase("check"):
                self._attempt.fence.check()
                attempt = self._attempt
                attempt.catalog.refuse_taken(attempt.checkpoint_id, attempt.seen)
            manifest = self._manifest()
            with measuring.phase("check"):
                self._attempt.fence.check()
            manifest = replace(manifest, metrics=measuring.metrics(manifest))
        except BaseException as failure:
            self._fail(failure)
            raise
        try:
            with measuring.phase("put"):
                self._attempt.catalog.commit(manifest)
                self._attempt.fence.check_after_put(manifest.checkpoint_id)
        except BaseException as unknown:
            measuring.failed(self._attempt.checkpoint_id, unknown)
            raise
        self._committed = manifest
        self._delete_merged(manifest)
        self._metrics = measuring.committed(manifest)

    def _refuse_twice(self, uid: str, name: str) -> None:
        if self._left:
            raise InvalidArgumentError(USED)
        if not self._entered:
            raise InvalidArgumentError(_NOT_ENTERED)
        self._attempt.operators.check(uid)
        for written in self._entries():
            if (written.state.uid, written.state.name) == (uid, name):
                raise InvalidArgumentError(
                    f"{written.state} is in this checkpoint already; name it once"
                )
        if self._stored is None:
            self._stored = self._attempt.stored_names()
        names = ((one.state.uid, one.state.name) for one in self._entries())
        refuse_folded((uid, name), names, self._stored)

    def _refuse_unused(self) -> None:
        for writer in self._changing:
            if not writer.is_used:
                raise InvalidArgumentError(
                    f"{writer} was named without rows, and no changes of it were given; call "
                    ".changes(…) or .changes_against(…), or give its rows"
                )

    def _refuse_mixed(self) -> None:
        """Refuse states of one operator with different numbers of key groups."""
        known: dict[str, KeyedState] = {}
        for entry in self._entries():
            if not isinstance(entry, KeyedEntry):
                continue
            other = known.setdefault(entry.state.uid, entry.state)
            if other.max_parallelism != entry.state.max_parallelism:
                raise ParallelismError(
                    f"{other} has max parallelism {other.max_parallelism} and {entry.state} has "
                    f"{entry.state.max_parallelism}; an operator has one: write all of its keyed "
                    "states with regroup=True and the new one"
                )

    def _manifest(self) -> Manifest:
        attempt = self._attempt
        with attempt.measuring.phase("check"):
            check_sizes(attempt.catalog.storage, self._entries())
        with attempt.measuring.phase("publish"):
            tables = self._publish()
        published = [
            replace(entry, table=table)
            for entry, table in zip(self._entries(), tables, strict=True)
        ]
        return Manifest(
            store_id=attempt.catalog.store_id,
            checkpoint_id=attempt.checkpoint_id,
            parallelism=attempt.operators.parallelism,
            graph=attempt.operators.graph,
            started_at_ms=attempt.started_at_ms,
            created_at_ms=time.time_ns() // 1_000_000,
            writer=attempt.writer,
            keyed=tuple(entry for entry in published if isinstance(entry, KeyedEntry)),
            operator=tuple(entry for entry in published if isinstance(entry, OperatorEntry)),
            origin=self._origin,
            ranges=self._ranges(),
        )

    def _ranges(self) -> Mapping[str, RangeAssignment]:
        """Return the ranges that are not Flink's; ParallelismError unless they fit their states."""
        for entry in self._entries():
            own = self._attempt.ranges.get(entry.state.uid)
            if own is None or not isinstance(entry, KeyedEntry):
                continue
            parallelism = self._attempt.operators.parallelism_of(entry.state.uid)
            if (own.max_parallelism, own.parallelism) != (entry.state.max_parallelism, parallelism):
                raise ParallelismError(
                    f"the ranges of operator {entry.state.uid!r} are {own.parallelism} of "
                    f"{own.max_parallelism} key groups, and it has parallelism {parallelism} and "
                    f"max parallelism {entry.state.max_parallelism}"
                )
        return self._attempt.ranges

    def _publish(self) -> Sequence[TableRef]:
        """Publish all tables, side by side: a table's commit is mostly waiting."""
        self._published = self._attempt.table.keeps_log
        with ThreadPoolExecutor(max_workers=_PUBLISHERS) as pool:
            return [*pool.map(self._publish_one, self._entries())]

    def _publish_one(self, entry: Entry) -> TableRef:
        """Publish a state's table; a log knows nothing of changes, so with some it stays behind."""
        if isinstance(entry, KeyedEntry) and entry.layers:
            return entry.table
        return self._attempt.table.publish(entry, self._attempt.checkpoint_id)

    def _entries(self) -> tuple[Entry, ...]:
        return (*self._written(), *self._carried)

    def _written(self) -> tuple[Entry, ...]:
        return (*self._all_keyed(), *self._operator)

    def _all_keyed(self) -> tuple[KeyedEntry, ...]:
        return (*self._keyed, *(awaited.entry for awaited in self._acknowledged.values()))

    def _delete_merged(self, manifest: Manifest) -> None:
        """Delete what was written for this checkpoint and compacted before it was committed; what
        cannot be deleted is left to ``gc``.
        """
        named = {f"{e.table.path}/{handle.path}" for e in manifest.parts for handle in e.handles}
        for name in sorted(set(self._rewritten) - named):
            try:
                self._attempt.catalog.storage.delete(name)
            except StorageError as error:
                _log.warning("a file that was merged stays behind, until gc: %s", error)

    def _fail(self, reason: BaseException) -> None:
        """Delete what was written, and tell the listeners."""
        self._discard(reason)
        self._attempt.measuring.failed(self._attempt.checkpoint_id, reason)

    def _discard(self, reason: BaseException) -> None:
        """Delete what was written; what cannot be deleted is noted on the reason, and left.

        Files that a table's log may name already stay: without them the table could not be read.
        """
        self._compactions.abandon(reason)
        if self._published:
            reason.add_note("its files stay behind: the tables' newest versions name them")
            return
        written = [f"{e.table.path}/{handle.path}" for e in self._written() for handle in e.handles]
        for name in (*written, *self._rewritten):
            try:
                self._attempt.catalog.storage.delete(name)
            except StorageError as error:
                reason.add_note(f"its file stays behind: {error}")


def _name(entry: Entry) -> tuple[str, str]:
    return entry.state.uid, entry.state.name
