"""One attempt to take a checkpoint: what is fixed from its beginning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from statestore.catalog.catalog import Catalog
from statestore.catalog.fence import Fence
from statestore.commands.history import History
from statestore.commands.measuring import Measuring
from statestore.errors import ParallelismError
from statestore.files.keyed import KeyedTarget
from statestore.files.table import StateTable
from statestore.files.writer import ParquetOptions
from statestore.flink.operators import Operators
from statestore.format.layers import CompactionRule
from statestore.format.manifest import KeyedEntry, Manifest, TableRef, Writer
from statestore.format.names import keyed_table
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupAssignment
from statestore.keys.ranges import Assignment, RangeAssignment
from statestore.model.acknowledgement import Attempted

__all__ = ["Attempt"]


@dataclass(frozen=True)
class Attempt:
    """What is fixed for one attempt to take a checkpoint.

    ``now_ms`` is the clock of times to live: when what is written without a time was used last, and
    what compaction goes by. ``made_of`` is the checkpoint that this one is made of, None where it
    follows the newest, and ``seen`` the newest id when that was looked at.
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
    compaction: CompactionRule | None = None
    ranges: Mapping[str, RangeAssignment] = field(default_factory=dict)
    made_of: Manifest | None = None
    seen: int | None = None

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

    def stored_names(self) -> frozenset[tuple[str, str]]:
        """Return the (operator uid, state) of what the checkpoint before has, in this store."""
        before = self.made_of
        if before is None or before.store_id != self.catalog.store_id:
            before = self.history.before()
        entries = () if before is None else before.entries
        return frozenset((one.state.uid, one.state.name) for one in entries)

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

    def target_of(self, state: KeyedState, *, placed: bool) -> KeyedTarget:
        """Return where the state is written, and how."""
        folder = keyed_table(state.uid, state.name)
        storage, number = self.catalog.storage, self.checkpoint_id
        return KeyedTarget(storage, folder, number, state, self.parquet, placed=placed)
