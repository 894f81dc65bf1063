"""Plan: the reads of a restore, for a whole checkpoint or the selected states."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.format.manifest import KeyedEntry, Manifest, OperatorEntry
from statestore.keys.ranges import RangeAssignment
from statestore.restore.plan import (
    OperatorPlan,
    RestorePlan,
    plan_restore,
    redistribution_of,
)
from statestore.restore.target import RestoreTarget, plan_target


def plan(
    manifest: Manifest,
    target: RestoreTarget,
    uid: str | None = None,
    name: str | None = None,
    local: Collection[str] = frozenset(),
) -> RestorePlan:
    """Return the plan of restoring the selected states; raises the errors of :func:`select`.

    A parallelism is chosen, and a job graph is matched, for the whole checkpoint.
    """
    whole = plan_target(manifest, target, local)
    if uid is None and name is None:
        return whole
    operators = select_operators(whole, manifest, uid, name, local)
    return replace(whole, operators=operators)


def select_operators(
    whole: RestorePlan,
    manifest: Manifest,
    uid: str | None,
    name: str | None,
    local: Collection[str] = frozenset(),
) -> tuple[OperatorPlan, ...]:
    """Return the selected operators of a plan, by their names in that plan.

    Raises StateNotFoundError, which lists the existing ones; InvalidArgumentError for a state
    without a uid.
    """
    if uid is None:
        select(manifest, uid, name)
        return whole.operators
    planned = whole.operator(uid)
    part = select(manifest, planned.stored_operator, name)
    wanted = {planned.stored_operator: len(planned.subtasks)}
    own = planned.assignment
    ranges = {planned.stored_operator: own} if isinstance(own, RangeAssignment) else None
    most = planned.max_parallelism if part.keyed else None
    (operator,) = plan_restore(part, wanted, most, ranges=ranges, local=local).operators
    if name is not None and part.operator:
        # All states of the operator determine who gets a remainder, so all are redistributed
        # together.
        operator = _select_subtasks(manifest, operator, name)
    return (replace(operator, operator=uid),)


def select(manifest: Manifest, uid: str | None, name: str | None) -> Manifest:
    """Return a manifest with only the states of one operator, or only one of its states.

    Raises StateNotFoundError, which lists the existing ones; InvalidArgumentError for a state
    without a uid.
    """
    if uid is None:
        if name is not None:
            raise InvalidArgumentError(
                f"state {name!r} requires its operator, because states of two operators can "
                "have the same name"
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


def _select_subtasks(manifest: Manifest, plan: OperatorPlan, name: str) -> OperatorPlan:
    dealt = redistribution_of(manifest, plan.stored_operator, len(plan.subtasks))
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
