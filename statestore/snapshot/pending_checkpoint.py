"""A checkpoint that is being taken: its states so far, and the prior checkpoints (I3).

The stored form of a state is looked up in the newest checkpoint that has it. This is nearly always
the newest checkpoint. A state that it lacks may have been left out for a while, so older
checkpoints are searched too, but only if the operator has files in the store. So a new state costs
one listing.

The names of a checkpoint's states are unique, also after case folding. If a file system folds case,
the folders of two names that differ only in case or in Unicode normalization are the same folder. A
listing then has one spelling and a manifest the other, so a collection would treat the files of the
second name as dead. So a name that folds to another's is refused, on any storage, because a store
may be copied. Two such names that a store already has are accepted.
"""

from __future__ import annotations

import itertools
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Fence
from statestore.delta.state_table import StateTable
from statestore.errors import CheckpointNotFoundError, InvalidArgumentError, MalformedManifestError
from statestore.format.layers import CompactionRule
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import (
    Batch,
    Entry,
    KeyedEntry,
    Manifest,
    StateName,
    TableRef,
    Writer,
    name_of,
)
from statestore.format.manifest_json import manifest_to_json
from statestore.format.metrics import CheckpointMetrics
from statestore.format.names import (
    file_list_path,
    fold_name,
    keyed_table,
    operator_folder,
    operator_table,
)
from statestore.format.state import KeyedState, OperatorState
from statestore.jobgraph.operators import Operators
from statestore.keys.groups import Assignment, KeyGroupAssignment, RangeAssignment
from statestore.parquet.keyed_writer import CheckpointFiles
from statestore.parquet.writer import ParquetOptions, UncommittedFiles
from statestore.snapshot.background_compaction import BackgroundCompaction
from statestore.snapshot.measurement import Measuring
from statestore.snapshot.subtask_writer import AttemptId, PendingSubtasks


@dataclass(frozen=True)
class StoredFacts:
    """The facts about a keyed state, from the newest prior checkpoint that has it.

    ``entry`` is None for a new state. ``max_parallelism`` is the operator's, and None if no
    checkpoint has a keyed state of the operator.
    """

    entry: KeyedEntry | None
    max_parallelism: int | None

    @property
    def state(self) -> KeyedState | None:
        """The state as it is stored."""
        return None if self.entry is None else self.entry.state

    @property
    def base_rows(self) -> int | None:
        """The number of rows of its base, without the rows of its changes."""
        return None if self.entry is None else self.entry.rows - self.entry.changed_rows


class PriorCheckpoints:
    """The checkpoints of a store when they are first listed; manifests are read on demand."""

    def __init__(self, catalog: Catalog, operators: Operators) -> None:
        """Read nothing yet; ``operators`` are the calling job's operators."""
        self._catalog, self._operators = catalog, operators
        self._read: list[Manifest] = []
        self._loaded: dict[int, Manifest] = {}
        self._own: int | None = None
        self._unread: list[int] = []
        self._are_all_listed = False

    @cached_property
    def _listed(self) -> tuple[tuple[int, ...], int]:
        return self._catalog.visible_and_newest()

    def begin(self, token: str) -> None:
        """Find the newest checkpoint; ``token`` is of the store's newest claim, this writer's."""
        self._own = self._catalog.newest_own(token)
        self._unread = [] if self._own is None else [self._own]

    @property
    def newest_id(self) -> int:
        """The greatest id ever used, 0 if there is none.

        The first call lists the checkpoints, unless this writer committed the newest one.
        """
        return self._listed[1] if self._own is None else self._own

    def load(self, checkpoint: int | str) -> Manifest:
        """Return a manifest as :meth:`Catalog.checkpoint` does; one given by number is cached."""
        known = self._loaded.get(checkpoint) if type(checkpoint) is int else None
        if known is not None:
            return known
        manifest = self._catalog.checkpoint(checkpoint).manifest
        return self._loaded.setdefault(manifest.checkpoint_id, manifest)

    def _load_listed(self, checkpoint_id: int) -> Manifest:
        """Return the manifest of a listed checkpoint, which is not looked up again."""
        if checkpoint_id not in self._loaded:
            self._loaded[checkpoint_id] = self._catalog.load_header(checkpoint_id)
        return self._loaded[checkpoint_id]

    def newest(self) -> Manifest | None:
        """Return the newest checkpoint, or None.

        Raises MalformedManifestError if it cannot be read.
        """
        visible = self._listed[0] if self._own is None else (self._own,)
        return self._load_listed(visible[-1]) if visible else None

    def before(self) -> Manifest | None:
        """Return the newest readable checkpoint, or None."""
        return self._read[0] if self._read else next(self._manifests(), None)

    def stored(self, uid: str, name: str) -> StoredFacts:
        """Return the facts about a keyed state from the newest checkpoint that has it."""
        max_parallelism = None
        for entry in self._entries(uid):
            if not isinstance(entry, KeyedEntry):
                continue
            if max_parallelism is None:
                max_parallelism = entry.state.max_parallelism
            if entry.state.name == name:
                return StoredFacts(entry, max_parallelism)
        return StoredFacts(None, max_parallelism)

    def newest_keyed(self, uid: str, name: str) -> KeyedEntry | None:
        """Return a keyed state of the newest checkpoint, or None.

        Raises MalformedManifestError if the newest manifest cannot be read.
        """
        manifest = self.newest()
        return None if manifest is None else self.keyed_in(manifest, uid, name)

    def keyed_in(self, manifest: Manifest, uid: str, name: str) -> KeyedEntry | None:
        """Return a keyed state of a checkpoint, or None.

        States are matched by operator id, because labels can move: in that checkpoint the operator
        may have had another label, and another operator may have had its current label.
        """
        ids = self._operators.ids_of(uid)
        for entry in manifest.keyed:
            known = manifest.operators.id_of(entry.state.uid) in ids
            if known and entry.state.name == name:
                return entry
        return None

    def operator(self, uid: str, name: str) -> OperatorState | None:
        """Return an operator state as it is stored in the newest checkpoint that has it."""
        for entry in self._entries(uid):
            if entry.state.name == name and isinstance(entry.state, OperatorState):
                return entry.state
        return None

    def _entries(self, uid: str) -> Iterator[Entry]:
        """Yield an operator's states, newest checkpoint first, matched by operator id."""
        ids = self._operators.ids_of(uid)
        for number, manifest in enumerate(self._manifests()):
            for entry in manifest.entries:
                if manifest.operators.id_of(entry.state.uid) in ids:
                    yield entry
            if number or self._operators.graph is not None:
                continue  # in a job graph, an operator can have a new label
            if not self._catalog.storage.list(operator_folder(uid)):
                return

    def _manifests(self) -> Iterator[Manifest]:
        yield from self._read
        while self._unread or not self._are_all_listed:
            if not self._unread:
                self._unread = [number for number in self._listed[0] if number != self._own]
                self._are_all_listed = True
                continue
            manifest = self._load(self._unread.pop())
            if manifest is not None:
                self._read.append(manifest)
                yield manifest

    def _load(self, checkpoint_id: int) -> Manifest | None:
        """Return a manifest, or None if it is damaged, or was collected since the listing.

        Such a checkpoint must not keep a job from taking its next checkpoint.
        """
        try:
            return self._load_listed(checkpoint_id)
        except CheckpointNotFoundError:
            return None
        except MalformedManifestError as error:
            warnings.warn(f"{error}; using the previous checkpoint instead", stacklevel=8)
            return None


class TakenNames:
    """The states of one checkpoint by name and by table, and the names of its predecessor."""

    def __init__(self, stored: Iterable[StateName]) -> None:
        """Start with no states; ``stored`` names the states of the newest checkpoint."""
        self._stored = frozenset(stored)
        self._stored_operators = frozenset(uid for uid, _ in self._stored)
        self._states: dict[StateName, Entry] = {}
        self._owners: dict[str, StateName] = {}
        self._operators: defaultdict[str, set[str]] = defaultdict(set)
        self._of_operator: defaultdict[StateName, set[str]] = defaultdict(set)
        for name in self._stored:
            self._add_folded(name)

    def add(self, entry: Entry) -> None:
        """Add a state that was written, declared or carried."""
        name = name_of(entry)
        self._states[name] = entry
        self._owners[entry.table.path] = name
        self._add_folded(name)

    def refuse(self, uid: str, name: str, table: str | None = None) -> None:
        """Raise InvalidArgumentError for a state that conflicts with one of the others.

        Args:
            uid: the operator.
            name: the state.
            table: the folder of its table; None if the state will be written in full.
        """
        if (uid, name) in self._states:
            raise InvalidArgumentError(
                f"{self._states[uid, name].state} is already in this checkpoint; name it only once"
            )
        self._refuse_folded(uid, name)
        for path in (
            (keyed_table(uid, name), operator_table(uid, name)) if table is None else [table]
        ):
            if path in self._owners:
                self._refuse_shared(path, (uid, name), is_new=table is None)

    def _add_folded(self, name: StateName) -> None:
        self._operators[fold_name(name[0])].add(name[0])
        self._of_operator[name[0], fold_name(name[1])].add(name[1])

    def _refuse_folded(self, uid: str, name: str) -> None:
        for other in sorted(self._operators[fold_name(uid)] - {uid}):
            if not {uid, other} <= self._stored_operators:
                raise _clash("operators", other, uid)
        for other in sorted(self._of_operator[uid, fold_name(name)] - {name}):
            if not {(uid, name), (uid, other)} <= self._stored:
                raise _clash(f"states of operator {uid!r}", other, name)

    def _refuse_shared(self, table: str, name: StateName, *, is_new: bool) -> None:
        """Refuse a state whose table already belongs to another operator's carried state.

        That operator had another label when the table was written.
        """
        other = self._owners[table]
        written, carried = (name, other) if is_new else (other, name)
        raise InvalidArgumentError(
            f"state {written[1]!r} of operator {written[0]!r} would be written to the table "
            f"of state {carried[1]!r} of operator {carried[0]!r}, {table}, because that "
            f"operator was named {written[0]!r} when its state was written. Instead of "
            f"carrying or changing the state of {carried[0]!r}, write it in full in this "
            f"checkpoint: checkpoint.write_keyed({carried[0]!r}, {carried[1]!r}, …); or give the "
            "new operator another name"
        )


def _clash(label: str, name: str, other: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{label} {name!r} and {other!r} differ only in case or Unicode normalization: on a "
        "file system that ignores case, their files would be in the same folder and could "
        "not be distinguished; rename one"
    )


LATEST = "latest"
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
        self.dropped: set[StateName] = set()
        self.rest_of: int | str | None = None
        self.entered = self.left = False
        self.written: list[Entry] = []
        self.awaited: dict[StateName, PendingSubtasks] = {}
        self.carried: list[Entry] = []
        self.changed: set[StateName] = set()
        self.rewritten: set[StateName] = set()
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
        awaited = [awaited.entry for awaited in self.awaited.values()]
        return (*self.written, *awaited, *self.carried)

    @property
    def keyed(self) -> tuple[KeyedEntry, ...]:
        """The keyed states that are written for this checkpoint."""
        written = (entry for entry in self.written if isinstance(entry, KeyedEntry))
        return (*written, *(awaited.entry for awaited in self.awaited.values()))

    @property
    def names(self) -> set[StateName]:
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

    def outline(self) -> Manifest:
        """Return the manifest without its states, times and batches."""
        followed = None if self.made_of is not None else self.history.before()
        return Manifest(
            store_id=self.catalog.store_id,
            checkpoint_id=self.checkpoint_id,
            parallelism=self.operators.parallelism,
            started_at_ms=self.started_at_ms,
            created_at_ms=self.started_at_ms,
            writer=replace(self.writer, command=self.command),
            keyed=(),
            operator=(),
            graph=self.operators.graph,
            origin=self.origin,
            left_out=self.left_out,
            follows=None if followed is None else followed.checkpoint_id,
        )

    def record(self, *, left_out: Iterable[LeftOutState] = (), **members: Any) -> None:
        """Set attributes of this checkpoint that its manifest will have.

        Args:
            left_out: state of the source that it lacks, in addition to earlier records.
            **members: other attributes, such as ``origin`` and ``command``.

        Raises:
            InvalidArgumentError: for values that would not be read back equal.
        """
        members["left_out"] = (*self.left_out, *left_out)
        before = {name: getattr(self, name) for name in members}
        vars(self).update(members)
        try:
            manifest_to_json(replace(self.outline(), graph=None))  # checked at the beginning
        except BaseException:
            vars(self).update(before)
            raise

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
