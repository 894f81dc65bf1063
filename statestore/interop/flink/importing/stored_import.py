"""The store's earlier import, and the state of a savepoint that an import or a repack leaves out.

No state is left out silently (I16). An import keeps the operators that the store
already has with the same content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from statestore.durations import Duration
from statestore.errors import InvalidArgumentError
from statestore.format.digest import RowSet
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.format.state import TimeToLive
from statestore.interop.flink.columns.state_columns import StateColumns
from statestore.interop.flink.importing.import_plan import PlannedOperator
from statestore.interop.flink.importing.import_record import (
    ImportedOperator,
    ImportedState,
    SavepointRecord,
)
from statestore.interop.flink.metadata.handles import OperatorHandles
from statestore.interop.flink.read.refusals import unread_parts
from statestore.interop.flink.read.savepoint import FlinkOperator, FlinkSavepoint
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.writer import CheckpointWriter

COMMAND = "flink import"
NOT_ASKED_FOR = "the import did not select it"


def has_state(operator: OperatorHandles) -> bool:
    """Return whether the subtasks of an operator have any state or in-flight records."""
    return any(
        subtask.operator or subtask.keyed or subtask.timers or any(unread_parts(subtask))
        for subtask in operator.subtasks
    )


def left_out_of(
    savepoint: FlinkSavepoint, planned: Iterable[PlannedOperator]
) -> Iterator[LeftOutState]:
    """Yield the state that an import leaves out.

    Args:
        savepoint: the savepoint.
        planned: the import plan of each of its operators.

    Yields:
        Operators that cannot be read or were not selected; for the others, the parts that the
        user dropped.
    """
    whole = {operator.id: operator for operator in savepoint.metadata.operators}
    for planned_operator in planned:
        data = whole[planned_operator.operator.metadata.id]
        if not has_state(data):
            continue
        reason = planned_operator.problem if planned_operator.is_wanted else NOT_ASKED_FOR
        if reason is not None:
            yield _build_record(planned_operator.name, data, None, reason)
            continue
        for part, dropped_reason in (
            *dropped_parts(data, planned_operator.operator),
            *((name, "dropped with --drop transactions") for name in planned_operator.dropped),
        ):
            yield _build_record(planned_operator.name, data, part, dropped_reason)
    for master in savepoint.metadata.master_states:
        yield LeftOutState(
            operator=master.name,
            state="master-state",
            reason="the state of a job's hook is not imported",
            command=COMMAND,
        )


def dropped_parts(whole: OperatorHandles, operator: FlinkOperator) -> Iterator[tuple[str, str]]:
    """Yield the name of each dropped part of an operator, and the reason.

    Args:
        whole: the operator in the savepoint.
        operator: the same operator without the dropped parts.
    """
    kinds = dict.fromkeys(
        refused for subtask in whole.subtasks for refused, _ in unread_parts(subtask)
    )
    for refused in kinds:
        yield refused.value, f"dropped with --drop {refused}"
    states = (
        info.name
        for part in operator.parts
        for info, state in zip(part.header.states, part.states, strict=True)
        if state is None
    )
    for name in dict.fromkeys(states):
        yield name, "dropped with --drop async"


def checkpoint_left_out(
    manifest: Manifest, record: SavepointRecord | None
) -> tuple[LeftOutState, ...]:
    """Return the state of a checkpoint's source that the checkpoint does not contain.

    States that were imported and dropped later are also missing. Only the import's own record has
    them.

    A manifest of an older release does not list left-out state. For it, the result has the
    operators that the import recorded but did not import, unless the checkpoint now has state of
    them.

    Args:
        manifest: the checkpoint.
        record: the checkpoint's import record, None if it has none.

    Returns:
        The state that is missing.
    """
    known = {*manifest.uids, *(left_out_state.operator for left_out_state in manifest.left_out)}
    operators = () if record is None else record.operators
    older = (
        LeftOutState(
            operator=operator.operator,
            state=None,
            reason=operator.problem or NOT_ASKED_FOR,
            command=COMMAND,
            id=operator.id,
            name=operator.name,
        )
        for operator in operators
        if not operator.is_imported and operator.operator not in known
    )
    return (*manifest.left_out, *older, *_find_dropped_later(manifest, record))


def _find_dropped_later(
    manifest: Manifest, record: SavepointRecord | None
) -> Iterator[LeftOutState]:
    """Yield the imported states that the checkpoint no longer has.

    An operator matches by its id or by its label, because a job graph may change the label.
    """
    if record is None:
        return
    ids = {operator.operator: operator.id for operator in record.operators}
    present = {
        (operator, entry.state.name)
        for entry in manifest.entries
        for operator in (entry.state.uid, manifest.operators.id_of(entry.state.uid))
    }
    recorded = {
        (left_out_state.operator, left_out_state.state) for left_out_state in manifest.left_out
    }
    for state in record.states:
        operator_id = ids.get(state.operator)
        if {(state.operator, state.state), (operator_id, state.state)} & (present | recorded):
            continue
        yield LeftOutState(
            operator=state.operator,
            state=state.state,
            reason="imported, but dropped later",
            command="snapshot",
            id=operator_id,
        )


def _build_record(name: str, data: OperatorHandles, state: str | None, reason: str) -> LeftOutState:
    return LeftOutState(
        operator=name, state=state, reason=reason, command=COMMAND, id=data.id, name=data.name
    )


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
        """Find the operators that the store imported unchanged from the same ``_metadata``."""
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
        """Carry all states of an unchanged operator, and yield their import records."""
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
