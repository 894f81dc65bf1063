"""Plan: what a restore would read, for all of a checkpoint or for what is selected of it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.format.manifest import KeyedEntry, Manifest, OperatorEntry
from statestore.keys.ranges import RangeAssignment
from statestore.model.plan import OperatorPlan, RestorePlan, plan_restore, redistribution_of
from statestore.model.target import RestoreTarget, plan_target

__all__ = ["plan", "select", "selected"]


def plan(
    manifest: Manifest,
    target: RestoreTarget,
    uid: str | None = None,
    name: str | None = None,
    local: Container[str] = frozenset(),
) -> RestorePlan:
    """Return the plan of restoring the selected states; raises as :func:`select` and a plan.

    A parallelism is chosen, and a job graph is matched, for the checkpoint as a whole.
    """
    whole = plan_target(manifest, target, local)
    if uid is None and name is None:
        return whole
    operators = selected(whole, manifest, uid, name, local)
    return replace(whole, operators=operators)


def selected(
    whole: RestorePlan,
    manifest: Manifest,
    uid: str | None,
    name: str | None,
    local: Container[str] = frozenset(),
) -> tuple[OperatorPlan, ...]:
    """Return what is selected of a plan, by the names that its operators have there.

    Raises StateNotFoundError naming those that exist, InvalidArgumentError for a state without uid.
    """
    if uid is None:
        select(manifest, uid, name)
        return whole.operators
    planned = whole.operator(uid)
    part = select(manifest, planned.stored_uid, name)
    wanted = {planned.stored_uid: len(planned.subtasks)}
    own = planned.assignment
    ranges = {planned.stored_uid: own} if isinstance(own, RangeAssignment) else None
    most = planned.max_parallelism if part.keyed else None
    (operator,) = plan_restore(part, wanted, most, ranges=ranges, local=local).operators
    if name is not None and part.operator:
        # Who gets a remainder depends on all states of the operator, so the whole of it is dealt.
        operator = _dealt(manifest, operator, name)
    return (replace(operator, uid=uid),)


def select(manifest: Manifest, uid: str | None, name: str | None) -> Manifest:
    """Return the manifest with the states of one operator, or one state of it, only.

    Raises StateNotFoundError naming those that exist, InvalidArgumentError for a state without uid.
    """
    if uid is None:
        if name is not None:
            raise InvalidArgumentError(
                f"state {name!r} needs its operator: states of two operators may share a name"
            )
        return manifest
    if name is not None:
        entry = manifest.find(uid, name)
        keyed = (entry,) if isinstance(entry, KeyedEntry) else ()
        operator = (entry,) if isinstance(entry, OperatorEntry) else ()
        return replace(manifest, keyed=keyed, operator=operator)
    if uid not in manifest.uids:
        raise StateNotFoundError(
            f"no operator {uid!r} in checkpoint {manifest.checkpoint_id}; it has "
            f"{', '.join(map(repr, manifest.uids)) or 'none'}"
        )
    return replace(
        manifest,
        keyed=tuple(entry for entry in manifest.keyed if entry.state.uid == uid),
        operator=tuple(entry for entry in manifest.operator if entry.state.uid == uid),
    )


def _dealt(manifest: Manifest, plan: OperatorPlan, name: str) -> OperatorPlan:
    dealt = redistribution_of(manifest, plan.stored_uid, len(plan.subtasks))
    return replace(
        plan,
        subtasks=tuple(
            replace(
                subtask,
                elements=sum(run.stop - run.first for run in dealt.runs(subtask.subtask)[name]),
            )
            for subtask in plan.subtasks
        ),
    )
