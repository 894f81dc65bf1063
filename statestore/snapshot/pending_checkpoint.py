"""A checkpoint that is being taken: its fixed values, and the states that it has so far."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Fence
from statestore.delta.state_table import StateTable
from statestore.errors import InvalidArgumentError
from statestore.format.compaction_policy import CompactionRule
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Batch, Entry, KeyedEntry, Manifest, TableRef, Writer
from statestore.format.metrics import CheckpointMetrics
from statestore.format.names import file_list_path, keyed_table
from statestore.format.state import KeyedState
from statestore.jobgraph.operators import Operators
from statestore.keys.groups import KeyGroupAssignment
from statestore.keys.ranges import Assignment, RangeAssignment
from statestore.parquet.keyed_writer import CheckpointFiles, KeyedTarget
from statestore.parquet.writer import ParquetOptions, UncommittedFiles
from statestore.snapshot.background_compaction import BackgroundCompaction
from statestore.snapshot.measurement import Measuring
from statestore.snapshot.prior_checkpoints import PriorCheckpoints
from statestore.snapshot.subtask_writer import AttemptId, PendingSubtasks
from statestore.snapshot.taken_names import Name, TakenNames, name_of

USED = (
    "the 'with' block of this snapshot has already begun; take another snapshot: store.snapshot(…)"
)
NOT_ENTERED = (
    "a snapshot requires a 'with' block and is committed when the block ends; write 'with "
    "store.snapshot(…) as checkpoint:'"
)


@dataclass(eq=False)
class PendingCheckpoint:
    """One attempt to take a checkpoint: its fixed values, and the states that it has so far.

    Attributes:
        layout: the store's layout for keyed states; None if it has no setting.
        now_ms: the TTL clock: the last use of rows written without a time, and the time for expiry
            during compaction.
        background: the store's background compaction, whose results jobs adopt. None for commands.
        made_of: the checkpoint that this one is derived from; None if it follows the newest one.
        observed_newest_id: the newest id at the time when ``made_of`` was read. If a later
            checkpoint exists when this one is committed, the commit fails. None if the source is in
            another store, where later checkpoints do not matter.
        batch: the batch that the checkpoint contains; None if the caller gave none.
        origin: how this checkpoint was derived from another one, for its manifest.
        command: the command that took the checkpoint, with state from outside of the store.
        replaced: the checkpoint whose times this one keeps.
        left_out: state of the source that this checkpoint lacks.
        inherits_left_out: whether the same records of the previous checkpoint still apply.
        dropped: the states that are left out on purpose.
        rest_of: the checkpoint whose other states are carried when the block ends; None for none.
        entered: whether the ``with`` block has begun; ``left`` says whether it has ended.
        written: the states that were written in full in this process.
        awaited: the states that subtasks write.
        carried: the states that have files of another checkpoint.
        changed: the carried states for which changes were written.
        rewritten: the states that the job wrote with all of their rows.
        bases: checkpoints, by id, from which states are taken over.
        adopted: by table, the files of background compactions that this checkpoint adopts.
        new_files: writes files of stored states, and names all written files. They are deleted if
            the attempt fails.
        new_lists: the written lists of files, in the same way.
        unsynced: the written files that are not durable yet.
        published: the Delta tables whose logs may reference the new files.
        manifest: the committed manifest; None before the commit.
        metrics: the metrics of the committed checkpoint, including the put of its manifest.
    """

    catalog: Catalog
    fence: Fence
    table: StateTable
    parquet: ParquetOptions
    operators: Operators
    checkpoint_id: int
    history: PriorCheckpoints
    writer: Writer
    started_at_ms: int
    now_ms: int
    measuring: Measuring
    layout: str | None = None
    compaction: CompactionRule | None = None
    background: BackgroundCompaction | None = None
    ranges: Mapping[str, RangeAssignment] = field(default_factory=dict)
    made_of: Manifest | None = None
    observed_newest_id: int | None = None
    batch: Batch | None = None

    def __post_init__(self) -> None:
        """Start with no states."""
        self.origin: Mapping[str, Any] | None = None
        self.command: str | None = None
        self.replaced: Manifest | None = None
        self.left_out: tuple[LeftOutState, ...] = ()
        self.inherits_left_out = True
        self.dropped: set[Name] = set()
        self.rest_of: int | str | None = None
        self.entered = self.left = False
        self.written: list[Entry] = []
        self.awaited: dict[Name, PendingSubtasks] = {}
        self.carried: list[Entry] = []
        self.changed: set[Name] = set()
        self.rewritten: set[Name] = set()
        self.bases: dict[int, Manifest] = {}
        self.adopted: dict[str, list[str]] = {}
        self.new_files = CheckpointFiles(self.catalog.storage, self.checkpoint_id, self.parquet)
        self.new_lists = UncommittedFiles(self.catalog.storage)
        self.unsynced: list[str] = []
        self.published: frozenset[str] = frozenset()
        self.manifest: Manifest | None = None
        self.metrics: CheckpointMetrics | None = None
        self._list_numbers = itertools.count()
        self._taken: TakenNames | None = None

    @property
    def id(self) -> AttemptId:
        """The id that distinguishes this attempt from all others, in every store."""
        return AttemptId(self.catalog.store_id, self.checkpoint_id, self.writer.token)

    @property
    def parent(self) -> Manifest | None:
        """The checkpoint that this one is derived from or follows, or None."""
        return self.made_of or self.history.before()

    @property
    def before(self) -> Manifest | None:
        """The checkpoint of this store that this one is derived from or follows, or None."""
        if self.made_of is not None and self.made_of.store_id == self.catalog.store_id:
            return self.made_of
        return self.history.before()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All states, with the files known so far."""
        awaited = (awaited.entry for awaited in self.awaited.values())
        return (*self.written, *awaited, *self.carried)

    @property
    def keyed(self) -> tuple[KeyedEntry, ...]:
        """The keyed states that are written for this checkpoint."""
        written = (entry for entry in self.written if isinstance(entry, KeyedEntry))
        return (*written, *(awaited.entry for awaited in self.awaited.values()))

    @property
    def names(self) -> set[Name]:
        """Operator uid and name of all states."""
        return {name_of(entry) for entry in self.entries}

    @property
    def taken(self) -> TakenNames:
        """The names in use: those of this checkpoint's states, and the previous checkpoint's."""
        if self._taken is None:
            stored = () if self.before is None else self.before.entries
            self._taken = TakenNames(map(name_of, stored))
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
        self.operators.check(uid)
        self.taken.refuse(uid, name, table)

    def entry_of(self, state: KeyedState) -> KeyedEntry:
        """Return the manifest entry of a state, without files."""
        return KeyedEntry(
            state, TableRef(self.table.format, keyed_table(state.uid, state.name)), ()
        )

    def owners_of(self, state: KeyedState) -> Assignment:
        """Return the key groups of each subtask for a state.

        Use the ranges given for this checkpoint if they fit, or Flink's even ranges.
        """
        assignment = self.ranges.get(state.uid)
        parallelism = self.operators.parallelism_of(state.uid)
        if assignment and (assignment.parallelism, assignment.max_parallelism) == (
            parallelism,
            state.max_parallelism,
        ):
            return assignment
        return KeyGroupAssignment(max_parallelism=state.max_parallelism, parallelism=parallelism)

    def target_of(self, state: KeyedState, *, co_located: bool) -> KeyedTarget:
        """Return the location and options for writing the state."""
        folder = keyed_table(state.uid, state.name)
        return KeyedTarget(
            self.catalog.storage,
            folder,
            self.checkpoint_id,
            state,
            self.parquet,
            co_located=co_located,
            logged=self.table.format == "delta",
        )

    def expect(self, declared: PendingSubtasks) -> None:
        """Add a state that its subtasks will write."""
        self.awaited[name_of(declared.entry)] = declared
        self.taken.add(declared.entry)

    def add_written(self, entry: Entry) -> None:
        """Add a state that was written in full."""
        self.written.append(entry)
        self.taken.add(entry)
        self.new_files.add(entry.table.path, entry.handles)
        self.measuring.wrote(entry)

    def add_changed(
        self, entry: KeyedEntry, new: Sequence[str], *, unsynced: Sequence[str] = ()
    ) -> None:
        """Add a state with changes, and the names of the files that were written for it.

        ``unsynced`` names the files that are not durable yet. The commit syncs the files of all
        states together, because these share most folders.
        """
        self.new_files.names += new
        self.carry(entry, new)
        self.unsynced += unsynced
        self.changed.add(name_of(entry))

    def name_list(self) -> str:
        """Return the name of a list of files that is about to be put."""
        name = file_list_path(self.checkpoint_id, self.writer.token, next(self._list_numbers))
        self.new_lists.names.append(name)
        return name

    def carry(self, entry: Entry, new: Collection[str] = (), *, compacted: bool = False) -> None:
        """Add a state of another checkpoint of this store, with its files.

        The files are not copied, only referenced again. ``new`` has the names of the files that
        were written for the state, or by compaction of it: only these are measured. An error
        deletes the files that :attr:`new_files` names, and no others. Raises InvalidArgumentError
        for a state that this checkpoint already has.
        """
        self.refuse_twice(*name_of(entry), entry.table.path)
        self.carried.append(entry)
        self.taken.add(entry)
        (self.measuring.compacted if compacted else self.measuring.wrote)(entry, new)
