"""One attempt to take a checkpoint, with the values that are fixed from its start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Fence
from statestore.delta.state_table import StateTable
from statestore.errors import MalformedManifestError
from statestore.format.batches import Batch, BatchRecord
from statestore.format.compaction_policy import CompactionRule
from statestore.format.listed import list_of
from statestore.format.manifest import Entry, KeyedEntry, Manifest, TableRef, Writer
from statestore.format.names import data_file_id, keyed_table
from statestore.format.state import KeyedState
from statestore.jobgraph.stored_operators import Operators
from statestore.keys.groups import KeyGroupAssignment
from statestore.keys.ranges import Assignment, RangeAssignment
from statestore.parquet.keyed_writer import KeyedTarget
from statestore.parquet.writer import ParquetOptions
from statestore.snapshot.acknowledgement import AttemptId
from statestore.snapshot.background_compaction import BackgroundCompaction
from statestore.snapshot.measurement import Measuring
from statestore.snapshot.prior_checkpoints import PriorCheckpoints

__all__ = ["CheckpointContext"]


@dataclass(frozen=True)
class CheckpointContext:
    """The values that are fixed for one attempt to take a checkpoint.

    ``layout`` is the store's layout for keyed states; None if it has no setting. ``now_ms`` is the
    TTL clock: the last use of rows written without a time, and the time for expiry during
    compaction. ``made_of`` is the checkpoint that this one is derived from; None if it follows the
    newest one. ``observed_newest_id`` is the newest id at the time when that checkpoint was read.
    If a later checkpoint exists when this one is committed, the commit fails.
    ``observed_newest_id`` is None if the source is in another store, where later checkpoints do not
    matter. ``batch`` is the batch that the checkpoint contains; None if the caller gave none. The
    attempts of a job have the store's ``background`` compaction, and adopt its results. The
    attempts of commands have None.
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
            and any(data_file_id(handle.path) != self.checkpoint_id for handle in part.handles)
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
