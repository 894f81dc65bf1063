"""One attempt to take a checkpoint: what is fixed from its beginning."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Fence
from statestore.errors import CheckpointNotFoundError, MalformedManifestError, ParallelismError
from statestore.files.keyed import KeyedTarget
from statestore.files.table import StateTable
from statestore.files.writer import ParquetOptions
from statestore.flink.operators import Operators
from statestore.format.batches import Batch, BatchRecord
from statestore.format.layers import CompactionRule
from statestore.format.listed import list_of
from statestore.format.manifest import Entry, KeyedEntry, Manifest, TableRef, Writer
from statestore.format.names import data_file_id, keyed_table, operator_folder
from statestore.format.state import KeyedState, OperatorState
from statestore.keys.groups import KeyGroupAssignment
from statestore.keys.ranges import Assignment, RangeAssignment
from statestore.snapshot.background import BackgroundCompaction
from statestore.snapshot.metrics import Measuring
from statestore.snapshot.subtasks import Attempted

__all__ = [
    "Attempt",
    "History",
]


# What the store knows of a state from the checkpoints before: the newest one that has it (I3).
#
# Nearly always that is the newest checkpoint. A state that it lacks may have been left out for a
# while, so older checkpoints are asked too, but only where the operator has files in the store: a
# state that is new costs one listing.


class History:
    """The checkpoints of a store as they were when a snapshot began, read when they are needed."""

    def __init__(self, catalog: Catalog, operators: Operators) -> None:
        """Look which checkpoints there are; ``operators`` are those of the job that asks."""
        self._catalog, self._operators = catalog, operators
        visible, self.newest_id = catalog.visible_and_newest()
        self._unread = list(visible)
        self._newest = self._unread[-1] if self._unread else None
        self._read: list[Manifest] = []
        self._loaded: dict[int, Manifest] = {}

    def load(self, checkpoint: int | str) -> Manifest:
        """Return a checkpoint as :meth:`Catalog.load` does; one by its number is read once."""
        known = self._loaded.get(checkpoint) if type(checkpoint) is int else None
        if known is not None:
            return known
        manifest = self._catalog.load(checkpoint)
        return self._loaded.setdefault(manifest.checkpoint_id, manifest)

    def newest(self) -> Manifest | None:
        """Return the newest checkpoint, None when there is none; MalformedManifestError when it
        cannot be read.
        """
        return None if self._newest is None else self.load(self._newest)

    def before(self) -> Manifest | None:
        """Return the newest checkpoint that can be read, None when there is none."""
        return next(self._manifests(), None)

    def keyed(self, uid: str, name: str) -> KeyedState | None:
        """Return a keyed state as the newest checkpoint that has it stored it."""
        for entry in self._entries(uid):
            if entry.state.name == name and isinstance(entry.state, KeyedState):
                return entry.state
        return None

    def newest_keyed(self, uid: str, name: str) -> KeyedEntry | None:
        """Return a keyed state as the newest checkpoint has it, None when that lacks it.

        Raises MalformedManifestError when the newest manifest cannot be read.
        """
        manifest = self.newest()
        return None if manifest is None else self.keyed_in(manifest, uid, name)

    def keyed_in(self, manifest: Manifest, uid: str, name: str) -> KeyedEntry | None:
        """Return a keyed state as a checkpoint has it, None when that lacks it.

        Operator ids tell whose state it is: the operator may have had another label then, and
        another operator may have had this one.
        """
        ids = self._operators.ids_of(uid)
        for entry in manifest.keyed:
            known = manifest.operators.id_of(entry.state.uid) in ids
            if known and entry.state.name == name:
                return entry
        return None

    def rows(self, uid: str, name: str) -> int | None:
        """Return the rows of a keyed state in the newest checkpoint that has it; with changes, of
        its base.
        """
        for entry in self._entries(uid):
            if entry.state.name == name and isinstance(entry, KeyedEntry):
                return entry.rows - entry.changed_rows
        return None

    def operator(self, uid: str, name: str) -> OperatorState | None:
        """Return an operator state as the newest checkpoint that has it stored it."""
        for entry in self._entries(uid):
            if entry.state.name == name and isinstance(entry.state, OperatorState):
                return entry.state
        return None

    def max_parallelism(self, uid: str) -> int | None:
        """Return the number of key groups of an operator, None when it has no keyed state."""
        for entry in self._entries(uid):
            if isinstance(entry.state, KeyedState):
                return entry.state.max_parallelism
        return None

    def _entries(self, uid: str) -> Iterator[Entry]:
        """Yield an operator's states, newest checkpoint first; operator ids tell who is who."""
        ids = self._operators.ids_of(uid)
        for number, manifest in enumerate(self._manifests()):
            for entry in manifest.entries:
                if manifest.operators.id_of(entry.state.uid) in ids:
                    yield entry
            if number or self._operators.graph is not None:
                continue  # in a graph an operator may have another label than before
            if not self._catalog.storage.list(operator_folder(uid)):
                return

    def _manifests(self) -> Iterator[Manifest]:
        yield from self._read
        while self._unread:
            manifest = self._load(self._unread.pop())
            if manifest is not None:
                self._read.append(manifest)
                yield manifest

    def _load(self, checkpoint_id: int) -> Manifest | None:
        """Return a manifest; a damaged one, or one that was just expired, must not keep a job from
        its next checkpoint.
        """
        try:
            return self.load(checkpoint_id)
        except CheckpointNotFoundError:
            return None
        except MalformedManifestError as error:
            warnings.warn(f"{error}; going by the checkpoint before it", stacklevel=8)
            return None


@dataclass(frozen=True)
class Attempt:
    """What is fixed for one attempt to take a checkpoint.

    ``layout`` is the store's own for keyed states, None where nobody said one. ``now_ms`` is the
    clock of times to live: when what is written without a time was used last, and what compaction
    goes by. ``made_of`` is the checkpoint that this one is made of, None where it
    follows the newest, and ``seen`` the newest id when that was looked at: if there is another one
    when this one is committed, the commit fails. ``seen`` is None if that is no matter: if the
    checkpoint is made of one of another store. ``batch`` is what it is taken for, None if the
    caller did not say. A job's attempts have the store's ``background`` compaction, whose results
    they adopt; those of commands have none.
    """

    catalog: Catalog
    fence: Fence
    table: StateTable
    parquet: ParquetOptions
    operators: Operators
    checkpoint_id: int
    history: History
    writer: Writer
    started_at_ms: int
    now_ms: int
    measuring: Measuring
    layout: str | None = None
    compaction: CompactionRule | None = None
    background: BackgroundCompaction | None = None
    ranges: Mapping[str, RangeAssignment] = field(default_factory=dict)
    made_of: Manifest | None = None
    seen: int | None = None
    batch: Batch | None = None

    def max_parallelism_of(self, uid: str, wanted: int | None) -> int | None:
        """Return what the caller asks for, or else the job's graph; None leaves it to the store.

        Raises ParallelismError when both speak and differ.
        """
        of_graph = self.operators.max_parallelism_of(uid)
        if None not in (wanted, of_graph) and wanted != of_graph:
            raise ParallelismError(
                f"operator {uid!r} has max parallelism {of_graph} in the job graph, as its chain "
                f"has, and {wanted} is asked for; name one of them only"
            )
        return of_graph if wanted is None else wanted

    @property
    def before(self) -> Manifest | None:
        """The checkpoint of this store that this one is made of or follows; None when it is the
        first.
        """
        if self.made_of is not None and self.made_of.store_id == self.catalog.store_id:
            return self.made_of
        return self.history.before()

    @property
    def inherited_batches(self) -> Mapping[str, BatchRecord]:
        """What the checkpoint that this one is made of or follows says of the batches of jobs."""
        before = self.made_of or self.history.before()
        batches = (None if before is None else before.batches) or {}
        if before is None or before.store_id == self.catalog.store_id:
            return batches
        return {
            job: replace(record, checkpoint_id=self.checkpoint_id)
            for job, record in batches.items()
        }

    def stored_names(self) -> frozenset[tuple[str, str]]:
        """Return the (operator uid, state) of what the checkpoint before has."""
        entries = () if self.before is None else self.before.entries
        return frozenset((one.state.uid, one.state.name) for one in entries)

    def kept_files(self, entries: Iterable[Entry]) -> frozenset[str]:
        """Return the names of the files that the checkpoint before has, below the store, if it is
        visible still: none of them has been collected. Of states in ``entries`` whose list of files
        is the same it is the list alone.
        """
        before = self.before
        if before is None or self.catalog.is_expired(before.checkpoint_id):
            return frozenset()
        known = {name for part in before.parts if (name := list_of(part.handles))}
        parts = [part for entry in entries for part in entry.parts]
        tables = {
            part.table.path
            for part in parts
            if list_of(part.handles) not in known
            # What this checkpoint has written is not in the one before.
            and any(data_file_id(one.path) != self.checkpoint_id for one in part.handles)
        }
        for part in before.parts:
            if part.table.path in tables:
                # A list that cannot be read says nothing: then the files are asked for.
                with suppress(MalformedManifestError):
                    known.update(part.table.name_of(handle) for handle in part.handles)
        return frozenset(known)

    @property
    def id(self) -> Attempted:
        """What tells this attempt from every other one, in every store."""
        return Attempted(self.catalog.store_id, self.checkpoint_id, self.writer.token)

    def entry_of(self, state: KeyedState) -> KeyedEntry:
        """Return what the manifest will say of a state, with no files yet."""
        return KeyedEntry(
            state, TableRef(self.table.format, keyed_table(state.uid, state.name)), ()
        )

    def owners_of(self, state: KeyedState) -> Assignment:
        """Return which subtask owns which key groups of a state: by the ranges that the checkpoint
        is taken with, else by Flink's even ones.
        """
        given = self.ranges.get(state.uid)
        parallelism = self.operators.parallelism_of(state.uid)
        if given and (given.parallelism, given.max_parallelism) == (
            parallelism,
            state.max_parallelism,
        ):
            return given
        return KeyGroupAssignment(max_parallelism=state.max_parallelism, parallelism=parallelism)

    def target_of(self, state: KeyedState, *, co_located: bool) -> KeyedTarget:
        """Return where the state is written, and how."""
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
