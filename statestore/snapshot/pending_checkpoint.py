"""Collect the states of one checkpoint, each once, with the files that were written for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from itertools import chain

from statestore.errors import InvalidArgumentError, ParallelismError, StorageError
from statestore.format.compaction_policy import CompactionRule, is_overdue
from statestore.format.handles import Handle
from statestore.format.listed import ListedFiles
from statestore.format.manifest import Entry, KeyedEntry, Manifest, OperatorEntry
from statestore.format.names import folder_of
from statestore.format.state import KeyedState
from statestore.layers.compaction import Compactor
from statestore.parquet.uncommitted_files import UncommittedFiles
from statestore.snapshot.checkpoint_context import CheckpointContext
from statestore.snapshot.subtask_writer import PendingSubtasks
from statestore.snapshot.taken_names import Name, TakenNames

__all__ = ["NOT_ENTERED", "USED", "PendingCheckpoint"]

_log = logging.getLogger(__name__)
USED = (
    "the 'with' block of this snapshot has already begun; take another snapshot: store.snapshot(…)"
)
NOT_ENTERED = (
    "a snapshot requires a 'with' block and is committed when the block ends; write 'with "
    "store.snapshot(…) as checkpoint:'"
)


class PendingCheckpoint:
    """The states of a pending checkpoint: written, declared or carried."""

    def __init__(self, attempt: CheckpointContext) -> None:
        """Start with no states."""
        self.attempt = attempt
        self.awaited: dict[Name, PendingSubtasks] = {}
        self.entered = self.left = False
        self.rewritten: set[Name] = set()
        """States that the job wrote with all of their rows."""
        self.bases: dict[int, Manifest] = {}
        """Checkpoints, by id, from which states are taken over."""
        self._keyed: list[KeyedEntry] = []
        self._operator: list[OperatorEntry] = []
        self._carried: list[Entry] = []
        self._changed: set[Name] = set()
        self.adopted: dict[str, list[str]] = {}
        self._written = UncommittedFiles(attempt.catalog.storage)
        self._lists = UncommittedFiles(attempt.catalog.storage)
        self._unsynced: list[str] = []
        self._taken: TakenNames | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All states, with the files known so far."""
        return (*self.keyed, *self._operator, *self._carried)

    @property
    def keyed(self) -> tuple[KeyedEntry, ...]:
        """The keyed states that are written for this checkpoint."""
        return (*self._keyed, *(awaited.entry for awaited in self.awaited.values()))

    @property
    def names(self) -> set[Name]:
        """Operator uid and name of all states."""
        return {_name(entry) for entry in self.entries}

    @property
    def taken(self) -> TakenNames:
        """The names of all states, in addition to the previous checkpoint's names."""
        if self._taken is None:
            self._taken = TakenNames(self.attempt.stored_names())
        return self._taken

    def refuse_twice(self, uid: str, name: str, table: str | None = None) -> None:
        """Refuse a state that cannot be added.

        Raises InvalidArgumentError outside of the ``with`` block, for an unknown operator, and as
        :meth:`TakenNames.refuse`.
        """
        if self.left:
            raise InvalidArgumentError(USED)
        if not self.entered:
            raise InvalidArgumentError(NOT_ENTERED)
        self.attempt.operators.check(uid)
        self.taken.refuse(uid, name, table)

    def expect(self, declared: PendingSubtasks) -> None:
        """Add a state that its subtasks will write."""
        self.awaited[_name(declared.entry)] = declared
        self.taken.add(declared.entry)

    def add_keyed(self, entry: KeyedEntry) -> None:
        """Add a keyed state that was written in full."""
        self._keyed.append(entry)
        self.taken.add(entry)
        self._written.add(entry.table.path, entry.handles)
        self.attempt.measuring.wrote(entry)

    def add_operator(self, entry: OperatorEntry) -> None:
        """Add an operator state that was written."""
        self._operator.append(entry)
        self.taken.add(entry)
        self._written.add(entry.table.path, entry.handles)
        self.attempt.measuring.wrote(entry)

    def add_changed(
        self, entry: KeyedEntry, new: Sequence[str], *, unsynced: Sequence[str] = ()
    ) -> None:
        """Add a state with changes, and the names of the files that were written for it.

        ``unsynced`` names the files that are not durable yet. :meth:`settle` syncs the files of all
        states together, because these share most folders.
        """
        self.carry_written([entry], new)
        self._unsynced += unsynced
        self._changed.add(_name(entry))

    def add_list(self, name: str) -> None:
        """Add the name of a list of files that is about to be put."""
        self._lists.names.append(name)

    def carry_entry(self, entry: Entry, new: Sequence[Handle] = ()) -> None:
        """Add a state of another checkpoint of this store, with its files.

        The files are not copied, only named again. An error in the block does not delete them,
        except the ones in ``new``, which were written for this checkpoint. Raises
        InvalidArgumentError for a state that this checkpoint already has.
        """
        self.refuse_twice(*_name(entry), entry.table.path)
        self._carried.append(entry)
        self.taken.add(entry)
        self.attempt.measuring.wrote(entry, self._written.add(entry.table.path, new))

    def carry_written(
        self,
        entries: Sequence[KeyedEntry],
        new: Sequence[str],
        *,
        compacted: bool = False,
        kept: bool = False,
    ) -> None:
        """Add states as :meth:`carry_entry` does.

        ``new`` are the names, relative to the store, of the files written for them, or by
        compaction of them. An error does not delete these files if ``kept`` is True, so that
        another attempt can resume.
        """
        for entry in entries:
            self.refuse_twice(*_name(entry), entry.table.path)
            self._carried.append(entry)
            self.taken.add(entry)
        self._written.names += () if kept else new
        measuring = self.attempt.measuring
        for entry in entries:
            (measuring.compacted if compacted else measuring.wrote)(entry, new)

    def settle(self) -> None:
        """Finish the states: check them, sync all files, and adopt compactions.

        If the backlog of changes of a state is too large, it is reduced. Raises
        InvalidArgumentError if a subtask has not answered, ParallelismError for an operator whose
        states have different max parallelisms, StorageError, and the errors of compaction.
        """
        for awaited in self.awaited.values():
            awaited.refuse_missing()
            self.attempt.measuring.wrote(awaited.entry)
        self._refuse_mixed()
        with self.attempt.measuring.phase("publish"):
            self.attempt.catalog.storage.sync(self._unsynced)
        with self.attempt.measuring.phase("wait"):
            latest = time.monotonic() + self.attempt.measuring.write_seconds(self._changed)
            self._carried = [self._compacted(entry, latest) for entry in self._carried]

    def _compacted(self, entry: Entry, latest: float) -> Entry:
        """Return a state with the result of its background compaction.

        If too many changes wait, a compaction under way is awaited until the monotonic time
        ``latest``, or a part of them is folded.
        """
        background, policy = self.attempt.background, self.attempt.compaction
        if not isinstance(entry, KeyedEntry) or not entry.layers or background is None:
            return entry
        is_changed = policy is not None and _name(entry) in self._changed
        if policy is not None and is_changed and is_overdue(entry, policy):
            background.wait_for(entry, latest)
        adoption = background.adopt(entry)
        if adoption is not None:
            entry, self.adopted[entry.table.path] = adoption
            self.attempt.measuring.compacted(entry, self.adopted[entry.table.path])
        if policy is None or not is_changed:
            return entry
        # After an adoption the next compaction starts at the commit, with all layers.
        layers = background.compacting_layers(entry) if adoption is None else len(entry.layers)
        return self._with_less_backlog(entry, policy, layers)

    def _with_less_backlog(
        self, entry: KeyedEntry, policy: CompactionRule, compacting: int | None
    ) -> KeyedEntry:
        attempt = self.attempt
        own = (layer for layer in entry.layers if layer.checkpoint_id == attempt.checkpoint_id)
        compactor = Compactor(
            attempt.catalog.storage, attempt.checkpoint_id, attempt.parquet, attempt.now_ms
        )
        try:
            changed_rows = sum(layer.entry.rows for layer in own)
            entry = compactor.reduce_backlog(entry, policy, changed_rows, compacting)
        finally:
            self._written.names += compactor.new.names
        if compactor.new.names:
            attempt.measuring.compacted(entry, compactor.new.names)
        return entry

    def _refuse_mixed(self) -> None:
        """Refuse different max parallelisms among the states of one operator."""
        known: dict[str, KeyedState] = {}
        for entry in self.entries:
            if not isinstance(entry, KeyedEntry):
                continue
            other = known.setdefault(entry.state.uid, entry.state)
            if other.max_parallelism != entry.state.max_parallelism:
                raise ParallelismError(
                    f"{other} has max parallelism {other.max_parallelism}, but {entry.state} "
                    f"has {entry.state.max_parallelism}, and all states of an operator must "
                    "have the same: write all of its keyed states with "
                    "regroup=True and the new max parallelism"
                )

    def delete_merged(self, manifest: Manifest) -> None:
        """Delete files that were written or adopted here, but compacted before the commit.

        Files that cannot be deleted are left to ``gc``.
        """
        written = {*self._written.names, *chain.from_iterable(self.adopted.values())}
        tables = set(map(folder_of, written))  # tables without such files are skipped
        named = {
            part.table.name_of(handle)
            for part in manifest.parts
            if part.table.path in tables
            # A list that was not even read has no files of this checkpoint.
            and not (isinstance(part.handles, ListedFiles) and not part.handles.is_known)
            for handle in part.handles
        }
        for name in sorted(written - named):
            try:
                self._written.storage.delete(name)
            except StorageError as error:
                _log.warning(
                    "a merged file could not be deleted; 'statestore gc' deletes it later: %s",
                    error,
                )

    def abandon(self, reason: BaseException, published: Collection[str]) -> None:
        """End the attempt, and delete the written files.

        Failed deletions are added as notes to ``reason``. The logs of the ``published`` tables may
        name their files already. These files stay, so that the tables remain readable.
        """
        self._lists.delete(reason)
        for awaited in self.awaited.values():
            self._written.add(awaited.entry.table.path, awaited.entry.handles)
        own = [name for name in self._written.names if folder_of(name) not in published]
        if len(own) < len(self._written.names):
            reason.add_note(
                "its files were kept because the newest table versions may reference them"
            )
        UncommittedFiles(self._written.storage, own).delete(reason)


def _name(entry: Entry) -> Name:
    return entry.state.uid, entry.state.name
