"""State of a savepoint that an import or a repack leaves out (I16)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Manifest
from statestore.interop.flink.importing.import_plan import PlannedOperator
from statestore.interop.flink.importing.import_record import SavepointRecord
from statestore.interop.flink.metadata.handles import OperatorHandles
from statestore.interop.flink.read.refusals import unread_parts
from statestore.interop.flink.read.savepoint import FlinkOperator, FlinkSavepoint

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
