"""One attempt to take a checkpoint, with the values that are fixed from its start."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Fence
from statestore.delta.state_table import StateTable
from statestore.errors import CheckpointNotFoundError, MalformedManifestError, ParallelismError
from statestore.format.batches import Batch, BatchRecord
from statestore.format.compaction_policy import CompactionRule
from statestore.format.listed import list_of
from statestore.format.manifest import Entry, KeyedEntry, Manifest, TableRef, Writer
from statestore.format.names import data_file_id, keyed_table, operator_folder
from statestore.format.state import KeyedState, OperatorState
from statestore.jobgraph.stored_operators import Operators
from statestore.keys.groups import KeyGroupAssignment
from statestore.keys.ranges import Assignment, RangeAssignment
from statestore.parquet.keyed_writer import KeyedTarget
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.background_compaction import BackgroundCompaction
from statestore.snapshot.measurement import Measuring
from statestore.snapshot.subtask_writer import AttemptId

__all__ = [
    "CheckpointContext",
    "PriorCheckpoints",
    "StoredFacts",
]


# The prior checkpoints' knowledge of a state, from the newest checkpoint that has it (I3).
#
# This is nearly always the newest checkpoint. A state that it lacks may have been left out for a
# while, so older checkpoints are searched too, but only if the operator has files in the store. So
# a new state costs one listing.


@dataclass(frozen=True)
class StoredFacts:
    """What the prior checkpoints know of a keyed state, from the newest one that has it.

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
    """The checkpoints of a store when a snapshot began; manifests are read on demand."""

    def __init__(self, catalog: Catalog, operators: Operators) -> None:
        """List the existing checkpoints; ``operators`` are the calling job's operators."""
        self._catalog, self._operators = catalog, operators
        visible, self.newest_id = catalog.visible_and_newest()
        self._unread = list(visible)
        self._newest = self._unread[-1] if self._unread else None
        self._read: list[Manifest] = []
        self._loaded: dict[int, Manifest] = {}

    def load(self, checkpoint: int | str) -> Manifest:
        """Return a checkpoint as :meth:`Catalog.load` does; one given by number is cached."""
        known = self._loaded.get(checkpoint) if type(checkpoint) is int else None
        if known is not None:
            return known
        manifest = self._catalog.load(checkpoint)
        return self._loaded.setdefault(manifest.checkpoint_id, manifest)

    def newest(self) -> Manifest | None:
        """Return the newest checkpoint, or None.

        Raises MalformedManifestError if it cannot be read.
        """
        return None if self._newest is None else self.load(self._newest)

    def before(self) -> Manifest | None:
        """Return the newest readable checkpoint, or None."""
        return next(self._manifests(), None)

    def stored(self, uid: str, name: str) -> StoredFacts:
        """Return what the newest checkpoint that has a keyed state knows of it."""
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

        States are matched by operator id, because labels can move: the operator may have had
        another label then, and another operator may have had this one.
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
        while self._unread:
            manifest = self._load(self._unread.pop())
            if manifest is not None:
                self._read.append(manifest)
                yield manifest

    def _load(self, checkpoint_id: int) -> Manifest | None:
        """Return a manifest, or None if it is damaged or just expired.

        Neither must keep a job from taking its next checkpoint.
        """
        try:
            return self.load(checkpoint_id)
        except CheckpointNotFoundError:
            return None
        except MalformedManifestError as error:
            warnings.warn(f"{error}; using the previous checkpoint instead", stacklevel=8)
            return None


@dataclass(frozen=True)
class CheckpointContext:
    """The values that are fixed for one attempt to take a checkpoint.

    ``layout`` is the store's layout for keyed states; None if it has no setting. ``now_ms`` is the
    TTL clock: the last use of rows written without a time, and the time for expiry during
    compaction. ``made_of`` is the checkpoint that this one is derived from; None if it follows the
    newest one. ``seen`` is the newest id at the time when that checkpoint was read. If a later
    checkpoint exists when this one is committed, the commit fails. ``seen`` is None if the source
    is in another store, where later checkpoints do not matter. ``batch`` is the batch that the
    checkpoint contains; None if the caller gave none. The attempts of a job have the store's
    ``background`` compaction, and adopt its results. The attempts of commands have None.
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
    seen: int | None = None
    batch: Batch | None = None

    def max_parallelism_of(self, uid: str, wanted: int | None) -> int | None:
        """Return the requested max parallelism, or the one in the job graph.

        None leaves the choice to the store.

        Raises ParallelismError if both are given and differ.
        """
        of_graph = self.operators.max_parallelism_of(uid)
        if None not in (wanted, of_graph) and wanted != of_graph:
            raise ParallelismError(
                f"operator {uid!r} has max parallelism {of_graph} in the job graph, like its "
                f"chain, but {wanted} is requested; set only one of them"
            )
        return of_graph if wanted is None else wanted

    @property
    def before(self) -> Manifest | None:
        """The checkpoint of this store that this one is derived from or follows, or None."""
        if self.made_of is not None and self.made_of.store_id == self.catalog.store_id:
            return self.made_of
        return self.history.before()

    @property
    def inherited_batches(self) -> Mapping[str, BatchRecord]:
        """The batch records of the checkpoint that this one is derived from or follows."""
        before = self.made_of or self.history.before()
        batches = (None if before is None else before.batches) or {}
        if before is None or before.store_id == self.catalog.store_id:
            return batches
        return {
            job: replace(record, checkpoint_id=self.checkpoint_id)
            for job, record in batches.items()
        }

    def stored_names(self) -> frozenset[tuple[str, str]]:
        """Return (operator uid, state name) of each state in the previous checkpoint."""
        entries = () if self.before is None else self.before.entries
        return frozenset((entry.state.uid, entry.state.name) for entry in entries)

    def kept_files(self, entries: Iterable[Entry]) -> frozenset[str]:
        """Return the names of the previous checkpoint's files, relative to the store.

        None of these has been collected. The result is empty if that checkpoint has expired. If
        a state in ``entries`` has the same list of files as before, only the list is returned.
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
            # The previous checkpoint cannot have files that this one has written.
            and any(data_file_id(one.path) != self.checkpoint_id for one in part.handles)
        }
        for part in before.parts:
            if part.table.path in tables:
                # If a list cannot be read, its files are checked one by one.
                with suppress(MalformedManifestError):
                    known.update(part.table.name_of(handle) for handle in part.handles)
        return frozenset(known)

    @property
    def id(self) -> AttemptId:
        """The id that distinguishes this attempt from all others, in every store."""
        return AttemptId(self.catalog.store_id, self.checkpoint_id, self.writer.token)

    def entry_of(self, state: KeyedState) -> KeyedEntry:
        """Return the manifest entry of a state, without files."""
        return KeyedEntry(
            state, TableRef(self.table.format, keyed_table(state.uid, state.name)), ()
        )

    def owners_of(self, state: KeyedState) -> Assignment:
        """Return the key groups of each subtask for a state.

        Use the ranges given for this checkpoint if they fit, or Flink's even ranges.
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
