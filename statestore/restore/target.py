"""The target of a restore, and its plan for a whole checkpoint or the selected states.

A target is a parallelism, an automatic choice of it, or a job by its graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from statestore.errors import InvalidArgumentError, StateNotFoundError
from statestore.format.manifest import KeyedEntry, Manifest, OperatorEntry
from statestore.jobgraph.adaptive import BYTES_PER_TASK
from statestore.jobgraph.graph import JobGraph
from statestore.jobgraph.matching import Matching, StoredOperator, check_parallelism, match
from statestore.jobgraph.operators import label_of
from statestore.jobgraph.parallelism import KeyGroupDecision, decide_for_key_groups
from statestore.keys.groups import RangeAssignment
from statestore.restore.byte_sizes import AUTO, bytes_of
from statestore.restore.key_group_weights import Weight, weights_of
from statestore.restore.plan import (
    OperatorPlan,
    ParallelismChoice,
    RestorePlan,
    plan_restore,
    redistribution_of,
)


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


def keyed_entries(manifest: Manifest, uid: str | None, name: str | None) -> tuple[KeyedEntry, ...]:
    """Return the keyed states of an operator, of a name, or all of them.

    Raises StateNotFoundError, which lists the existing ones, if none has the operator and name.
    """
    if uid is not None and name is not None:
        return (manifest.keyed_entry(uid, name),)
    entries = tuple(
        entry
        for entry in manifest.keyed
        if uid in (None, entry.state.uid) and name in (None, entry.state.name)
    )
    if entries or (uid is None and name is None):
        return entries
    known = ", ".join(sorted({e.state.uid if uid else e.state.name for e in manifest.keyed}))
    missing = f"operator {uid!r} has no keyed state" if uid else f"no keyed state {name!r}"
    raise StateNotFoundError(
        f"{missing} in checkpoint {manifest.checkpoint_id}; the checkpoint has {known or 'none'}"
    )


@dataclass(frozen=True, kw_only=True)
class RestoreTarget:
    """The target of a restore: a ``parallelism``, or the operators of a ``graph``.

    ``parallelism`` None keeps the checkpoint's parallelism. ``"auto"`` chooses it so that a subtask
    gets about ``bytes_per_task`` bytes of keyed state (None: Flink's 16 MiB). An operator whose max
    parallelism is 1 in the checkpoint's own graph stays at 1. A graph defines the parallelism of
    each operator. Stored state that none of its operators claims is refused unless
    ``allow_non_restored_state``. ``balance`` cuts key groups into ranges by their bytes or rows
    instead of by their number. Raises InvalidArgumentError for contradictory options.
    """

    parallelism: int | Literal["auto"] | None = None
    max_parallelism: int | None = None
    bytes_per_task: int | None = None
    graph: JobGraph | None = None
    allow_non_restored_state: bool = False
    balance: Weight | str | None = None

    def __post_init__(self) -> None:
        """Refuse contradictory options."""
        if self.balance is not None:
            Weight(self.balance)
            if self.graph is not None or self.max_parallelism is not None:
                raise InvalidArgumentError(
                    "balance divides the stored key groups for one parallelism; remove the "
                    "job graph and max_parallelism"
                )
        if isinstance(self.parallelism, str) and self.parallelism != AUTO:
            raise InvalidArgumentError(
                f"parallelism must be a number or {AUTO!r}, not {self.parallelism!r}"
            )
        if self.bytes_per_task is not None and self.parallelism != AUTO:
            raise InvalidArgumentError(
                f"bytes_per_task requires parallelism {AUTO!r}, but a number is set; remove "
                "one of the two"
            )
        if self.bytes_per_task is not None and bytes_of(self.bytes_per_task) != self.bytes_per_task:
            raise InvalidArgumentError(
                f"bytes_per_task must be a number of bytes, not {self.bytes_per_task!r}; pass "
                f"{bytes_of(self.bytes_per_task)} instead"
            )
        if self.graph is not None and not isinstance(self.graph, JobGraph):
            raise InvalidArgumentError(f"graph must be a JobGraph, not {type(self.graph).__name__}")
        if self.graph is not None and (self.parallelism, self.max_parallelism) != (None, None):
            raise InvalidArgumentError(
                "the job graph has the parallelism and max parallelism of each operator; "
                "pass either the graph or these numbers"
            )
        if self.graph is None and self.allow_non_restored_state:
            raise InvalidArgumentError(
                "allow_non_restored_state (--allow-non-restored-state) requires a job graph "
                "(--graph); without a graph no state is refused"
            )


def plan_target(
    manifest: Manifest, target: RestoreTarget, local: Collection[str] = frozenset()
) -> RestorePlan:
    """Return the plan of a restore; unclaimed state is in its ``matching``, not yet refused.

    Raises ParallelismError, which names the operator, or InvalidArgumentError. See
    :func:`~statestore.restore.plan.plan_restore` for ``local``.
    """
    if target.graph is not None:
        return _plan_graph(manifest, target.graph, local)
    choices: tuple[ParallelismChoice, ...] = ()
    wanted: int
    if target.parallelism == AUTO:
        per_task = BYTES_PER_TASK if target.bytes_per_task is None else target.bytes_per_task
        choices = parallelism_choices(manifest, per_task)
        wanted = max((c.decision.parallelism for c in choices), default=manifest.parallelism)
    else:
        wanted = manifest.parallelism if target.parallelism is None else target.parallelism
    parallelism: int | Mapping[str, int] = wanted
    known, single = manifest.operators, _single_subtask_operators(manifest)
    if target.parallelism is None:
        parallelism = {uid: known.parallelism_of(uid) for uid in manifest.uids}
    elif single and target.max_parallelism is None:
        parallelism = {uid: 1 if uid in single else wanted for uid in manifest.uids}
    balance = None if target.balance is None else Weight(target.balance)
    as_taken = target.parallelism != AUTO and balance is None and target.max_parallelism is None
    plan = plan_restore(
        manifest,
        parallelism,
        target.max_parallelism,
        balance=balance,
        ranges=manifest.ranges if as_taken else None,
        local=local,
    )
    return replace(plan, parallelism=wanted, choices=choices)


def _single_subtask_operators(manifest: Manifest) -> set[str]:
    """Return the operators that the job graph limits to one subtask.

    Flink's planner does that with an aggregate over all rows (``setMaxParallelism(1)``).
    """
    known = manifest.operators
    return {uid for uid in manifest.uids if known.max_parallelism_of(uid) == 1}


def parallelism_choices(manifest: Manifest, bytes_per_task: int) -> tuple[ParallelismChoice, ...]:
    """Return, for each operator with keyed state, the parallelism that fits its bytes.

    No parallelism is above the smallest max parallelism in the checkpoint. The job runs at the
    largest of them, and every operator must be able to run at it, except operators that the job
    graph limits to 1.
    """
    single = _single_subtask_operators(manifest)
    others = [entry for entry in manifest.keyed if entry.state.uid not in single]
    limit = min((entry.state.max_parallelism for entry in others), default=1)
    return tuple(
        ParallelismChoice(uid, _choose_parallelism(entries, bytes_per_task, limit))
        for uid in manifest.uids
        if (entries := [entry for entry in manifest.keyed if entry.state.uid == uid])
    )


def _choose_parallelism(
    entries: list[KeyedEntry], bytes_per_task: int, limit: int
) -> KeyGroupDecision:
    """Choose a parallelism from the bytes of each key group, over all states of the operator."""
    sizes = weights_of(entries)
    return decide_for_key_groups(sizes, bytes_per_task=bytes_per_task, max_parallelism=limit)


def matching_of(manifest: Manifest, graph: JobGraph) -> Matching:
    """Return which operator of a job takes over which stored operator; see ``matching.py``."""
    return match([_stored_operator(manifest, uid) for uid in manifest.uids], graph, manifest.graph)


def _stored_operator(manifest: Manifest, uid: str) -> StoredOperator:
    entries = [entry for entry in manifest.entries if entry.state.uid == uid]
    keyed = [entry for entry in entries if isinstance(entry, KeyedEntry)]
    has_uid = manifest.operators.has_uid(uid)
    return StoredOperator(
        operator_id=manifest.operators.id_of(uid),
        uid=uid if has_uid else None,
        name=manifest.operators.name_of(uid),
        states=tuple(entry.state.name for entry in entries),
        rows=sum(entry.rows for entry in entries),
        size_bytes=sum(entry.size_bytes for entry in entries),
        max_parallelism=keyed[0].state.max_parallelism if keyed else None,
        parallelism=manifest.operators.parallelism_of(uid),
    )


def _plan_graph(manifest: Manifest, graph: JobGraph, local: Collection[str]) -> RestorePlan:
    matching = matching_of(manifest, graph)
    check_parallelism(matching, graph)
    uids = {manifest.operators.id_of(uid): uid for uid in manifest.uids}
    claimants = {
        uids[match.stored.operator_id]: match.node
        for match in matching.nodes
        if match.stored is not None
    }
    parallelism = {uid: node.parallelism for uid, node in claimants.items()}
    plan = plan_restore(manifest, parallelism, local=local)
    operators = tuple(
        replace(part, operator=label_of(claimants[part.operator])) for part in plan.operators
    )
    most = max((node.parallelism for node in graph.nodes), default=1)
    return replace(plan, parallelism=most, operators=operators, matching=matching)
