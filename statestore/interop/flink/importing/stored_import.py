"""The store's earlier import, and the operators that another import would leave as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from statestore.durations import Duration
from statestore.errors import InvalidArgumentError
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import KeyedEntry
from statestore.format.rescale_proof import RowSet
from statestore.format.ttl import TimeToLive
from statestore.interop.flink.columns.state_columns import StateColumns
from statestore.interop.flink.importing.import_plan import PlannedOperator
from statestore.interop.flink.importing.import_record import (
    ImportedOperator,
    ImportedState,
    SavepointRecord,
)
from statestore.interop.flink.importing.left_out_state import COMMAND, has_state
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.writer import CheckpointWriter


@dataclass(frozen=True)
class StoredImport:
    """The newest checkpoint of the store and its record, both None if there is none.

    ``same`` are the operators that an import would store as they are: those that the record has
    with the same content, read with the same options (I14).
    """

    checkpoint: RestoredCheckpoint | None
    record: SavepointRecord | None
    same: frozenset[str] = frozenset()

    def keyed(self, uid: str, state: str) -> KeyedEntry | None:
        """Return a keyed state of the checkpoint; None if it lacks the state."""
        entries = () if self.checkpoint is None else self.checkpoint.manifest.keyed
        names = ((entry.state.uid, entry.state.name) for entry in entries)
        return dict(zip(names, entries, strict=True)).get((uid, state))

    def compare(
        self,
        digest: str,
        planned: Collection[PlannedOperator],
        left_out: Iterable[LeftOutState],
        ttl: Mapping[str, Duration],
    ) -> StoredImport:
        """Find the operators that are the same, if ``_metadata`` has this digest."""
        if self.checkpoint is None or self.record is None or self.record.digest != digest:
            return self
        before, now = (
            {(one.operator, one.state) for one in records if one.state and one.command == COMMAND}
            for records in (self.checkpoint.manifest.left_out, left_out)
        )
        others = {uid for uid, _ in before ^ now}
        for operator in planned:
            for columns, *_ in operator.states:
                wanted = time_to_live(ttl, operator.name, columns)
                entry = self.keyed(operator.name, columns.state.name)
                if wanted is not None and entry is not None and entry.state.ttl != wanted:
                    others.add(operator.name)
        known = {_identity(operator) for operator in self.record.operators}
        identities = {operator.name: _identity(imported_operator(operator)) for operator in planned}
        same = (name for name, one in identities.items() if one in known and name not in others)
        return replace(self, same=frozenset(same))

    def carry(self, checkpoint: CheckpointWriter, uid: str) -> Iterator[ImportedState]:
        """Carry all states of an operator that is the same, and yield their records."""
        assert self.checkpoint is not None, "only the operators of a checkpoint can be the same"
        assert self.record is not None, "the checkpoint was imported"
        for entry in self.checkpoint.manifest.entries:
            if entry.state.uid == uid:
                checkpoint.carry(uid, entry.state.name)
        yield from (state for state in self.record.states if state.operator == uid)

    def refuse_undoing(self, digest: str, planned: Iterable[PlannedOperator]) -> None:
        """Refuse to import a savepoint again over states that were changed since (I18)."""
        if self.record is None or self.record.digest != digest:
            return
        names = {one.name for one in planned if one.content is not None} - self.same
        for state in self.record.states:
            entry = self.keyed(state.operator, state.state)
            if state.operator not in names or entry is None:
                continue
            if entry.contents not in (None, RowSet(state.rows, state.digest)):
                raise InvalidArgumentError(
                    f"state {state.state!r} of operator {state.operator} was changed in the store "
                    "since this savepoint was imported, and another import would undo that: "
                    "import the savepoint into a separate store"
                )


def _identity(operator: ImportedOperator) -> ImportedOperator:
    """Return what identifies an imported operator: everything but the text of its problem."""
    return replace(operator, problem=None)


def time_to_live(ttl: Mapping[str, Duration], uid: str, columns: StateColumns) -> TimeToLive | None:
    """Return the TTL that the user gave for a state; None if there is none."""
    name = columns.state.name
    lives = ttl.get(f"{uid}/{name}", ttl.get(name))
    if lives is None or columns.last_access is None:
        return None
    return TimeToLive(lives, columns.last_access)


def imported_operator(planned: PlannedOperator) -> ImportedOperator:
    """Return the record of a planned operator."""
    data = planned.operator.metadata
    header = planned.header
    return ImportedOperator(
        operator=planned.name,
        id=data.id,
        uid=data.uid,
        name=data.name,
        parallelism=data.parallelism,
        max_parallelism=data.max_parallelism,
        is_finished=data.is_finished,
        is_compressed=header is not None and header.is_compressed,
        is_imported=planned.problem is None and (planned.is_wanted or not has_state(data)),
        finished_subtasks=tuple(subtask.index for subtask in data.subtasks if subtask.is_finished),
        coordinator_name=None if data.coordinator is None else data.coordinator.name,
        coordinator=None if data.coordinator is None else data.coordinator.data,
        problem=planned.problem,
        content=planned.content,
    )
