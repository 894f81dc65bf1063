"""What a restore will do, as a value: who reads which files, before any of them is read.

A keyed state's subtask reads the files whose key-group range meets its own, each once, in order of
key group (I8). Nothing is rewritten and nothing is exchanged, at any parallelism up to max
parallelism.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from operator import add
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from statestore.display import MOST_BARS, Bar, amount, bars, figure, size, spans, strips, table
from statestore.errors import StateNotFoundError
from statestore.files.frames import as_pandas, as_polars, table_of
from statestore.flink.matching import Matching
from statestore.flink.operators import label_of
from statestore.flink.parallelism import KeyGroupDecision
from statestore.flink.redistribution import (
    RedistributionMode,
    RedistributionPlan,
    check_parallelism,
    plan_redistribution,
)
from statestore.format.handles import KeyedStateHandle
from statestore.format.lazy import LazySequence
from statestore.format.left_out import LeftOutState
from statestore.format.listed import read_all, totals_of
from statestore.format.manifest import KeyedEntry, Manifest, OperatorEntry
from statestore.format.slices import KeyedPlan, assignment_of
from statestore.format.state import unknown_choice
from statestore.keys.groups import KeyGroupRange
from statestore.keys.ranges import Assignment, RangeAssignment, balanced

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "OperatorPlan",
    "ParallelismChoice",
    "RestorePlan",
    "SubtaskPlan",
    "Weight",
    "owners_of",
    "plan_restore",
    "redistribution_of",
    "weights_of",
]


# The weight of each key group of an operator: its bytes or rows, of all its keyed states together.
#
# With changes those that count are added: it is what a restore reads.


class Weight(StrEnum):
    """What ranges of key groups are balanced by."""

    BYTES = "bytes"
    ROWS = "rows"

    @classmethod
    def _missing_(cls, value: object) -> Weight:
        raise unknown_choice("weight of ranges", value, cls)


def weights_of(entries: Sequence[KeyedEntry], by: Weight = Weight.BYTES) -> list[int]:
    """Return the weight of each key group of states of one operator; one state at least."""
    weights = [0] * entries[0].state.max_parallelism
    for entry in entries:
        for handle in entry.handles:
            _add(weights, handle, by)
        for layer in entry.layers:
            changed = [0] * len(weights)
            for handle in layer.entry.handles:
                _add(changed, handle, by)
            for group in {group for one in layer.live for group in one}:
                weights[group] += changed[group]
    return weights


def _add(weights: list[int], handle: KeyedStateHandle, by: Weight) -> None:
    own = slice(handle.key_groups.first, handle.key_groups.last + 1)
    added = handle.group_bytes() if by is Weight.BYTES else handle.group_rows()
    weights[own] = map(add, weights[own], added)


@dataclass(frozen=True, init=False, repr=False, eq=False, match_args=False)
class SubtaskPlan(Struct, frozen=True, gc=False):
    """What one subtask of an operator reads; ``elements`` counts its operator state.

    ``rows`` are those read, ``changed_rows`` of them changes, which are merged into the others.
    ``requests`` is what an object store would be asked: per file its length and its footer, and one
    read per Parquet row group. ``local_bytes`` lie in the local cache of this host already, as far
    as their length tells.
    """

    subtask: int
    key_groups: KeyGroupRange | None
    rows: int
    size_bytes: int
    files: int
    requests: int
    elements: int
    local_bytes: int = 0
    changed_rows: int = 0


_COLUMNS = {
    "operator": "string",
    "subtask": "int64",
    "first_key_group": "int64",
    "last_key_group": "int64",
    "rows": "int64",
    "size_bytes": "int64",
    "files": "int64",
    "requests": "int64",
    "elements": "int64",
    "local_bytes": "int64",
    "changed_rows": "int64",
}
_MOST_PICTURES = 5  # of operators


@dataclass(frozen=True)
class OperatorPlan:
    """What the subtasks of one operator read; ``max_parallelism`` is None without keyed state.

    ``uid`` is the operator that is restored, ``stored_uid`` the one whose state it takes over: of
    another name only with a job graph. Of each of its keyed states ``keyed`` has what is read:
    ``subtasks`` counts it, and a restore reads it. ``owners_before`` are those of the checkpoint.
    """

    uid: str
    max_parallelism: int | None
    states: tuple[str, ...]
    subtasks: Sequence[SubtaskPlan]
    stored_uid: str
    keyed: tuple[KeyedPlan, ...] = field(default=(), repr=False)
    owners_before: Assignment | None = field(default=None, repr=False)

    def keyed_state(self, name: str) -> KeyedPlan:
        """Return what is read of a keyed state, which there must be."""
        return next(plan for plan in self.keyed if plan.entry.state.name == name)

    @property
    def assignment(self) -> Assignment | None:
        """Who owns which key groups, None without keyed state."""
        return self.keyed[0].owners if self.keyed else None

    @property
    def base_rows(self) -> int:
        """Rows of keyed state, changes left out."""
        return sum(totals_of(plan.entry.handles).rows for plan in self.keyed)

    @property
    def largest(self) -> SubtaskPlan:
        """The subtask with the most bytes: the restore takes as long as this one."""
        return max(self.subtasks, key=lambda subtask: (subtask.size_bytes, -subtask.subtask))

    @property
    def read_amplification(self) -> float | None:
        """Rows read for each row of the bases, None when it is one: no changes, and no other max
        parallelism than the stored one.
        """
        return _amplification(self.subtasks, self.base_rows)


@dataclass(frozen=True)
class ParallelismChoice:
    """The parallelism that the bytes of one operator's keyed state ask for, and how that came."""

    uid: str
    decision: KeyGroupDecision


@dataclass(frozen=True)
class RestorePlan:
    """The plan of a whole checkpoint at a new parallelism: the largest of any operator.

    ``choices`` says how a parallelism was chosen, if it was. With a job graph ``matching`` says
    which operator takes over which state. ``left_out`` is what the checkpoint lacks of its source.
    """

    checkpoint_id: int
    old_parallelism: int
    parallelism: int
    operators: tuple[OperatorPlan, ...]
    choices: tuple[ParallelismChoice, ...] = ()
    matching: Matching | None = None
    left_out: tuple[LeftOutState, ...] = ()

    def operator(self, uid: str) -> OperatorPlan:
        """Return the plan of an operator.

        Args:
            uid: the operator; with a job graph, an operator of the graph.

        Returns:
            The plan.

        Raises:
            StateNotFoundError: naming the operators that there are.
        """
        for operator in self.operators:
            if operator.uid == uid:
                return operator
        where = f"checkpoint {self.checkpoint_id}"
        known = ", ".join(repr(operator.uid) for operator in self.operators) or "none"
        if self.matching is None:
            raise StateNotFoundError(f"no operator {uid!r} in {where}; it has {known}")
        labels = [label_of(found.node) for found in self.matching.nodes]
        if uid in labels:
            raise StateNotFoundError(
                f"operator {uid!r} finds no state in {where}: it starts empty; restored.matching "
                "says why"
            )
        raise StateNotFoundError(
            f"the job graph has no operator {uid!r}; it has {', '.join(map(repr, labels))}"
        )

    @property
    def size_bytes(self) -> int:
        """Bytes read by all subtasks together."""
        return sum(subtask.size_bytes for subtask in self._subtasks())

    @property
    def local_bytes(self) -> int:
        """Of these bytes, those that this host has in its local cache."""
        return sum(subtask.local_bytes for subtask in self._subtasks())

    @property
    def files(self) -> int:
        """Files opened by all subtasks together; a file of two subtasks counts twice."""
        return sum(subtask.files for subtask in self._subtasks())

    @property
    def read_amplification(self) -> float | None:
        """That of all operators together, as :attr:`OperatorPlan.read_amplification`."""
        return _amplification([*self._subtasks()], sum(plan.base_rows for plan in self.operators))

    def _subtasks(self) -> Iterator[SubtaskPlan]:
        """Yield the subtasks of all operators; what is not known of files is read side by side."""
        keyed = (plan.entry for operator in self.operators for plan in operator.keyed)
        read_all(part.handles for entry in keyed for part in entry.parts)
        for operator in self.operators:
            yield from operator.subtasks

    def to_arrow(self) -> pa.Table:
        """Return a row for each subtask of each operator, with what it reads."""
        return table_of(_COLUMNS, self._rows())

    to_pandas, to_polars = as_pandas, as_polars

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for plan in self.operators:
            for one in plan.subtasks:
                own = one.key_groups
                ends = (own.first, own.last) if own else (None, None)
                read = (one.rows, one.size_bytes, one.files, one.requests, one.elements)
                yield plan.uid, one.subtask, *ends, *read, one.local_bytes, one.changed_rows

    def __repr__(self) -> str:
        return f"RestorePlan({self._summary()})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the key groups before and now, and who reads how much."""
        drawn = (part for one in self.operators[:_MOST_PICTURES] for part in _picture(one))
        columns = ("operator", "states", "subtasks", "rows", "size_bytes", "files", "requests")
        rows = ((one.uid, ", ".join(one.states), *_totals(one.subtasks)) for one in self.operators)
        return figure(self._summary(), *drawn, table(columns, rows))

    def _summary(self) -> str:
        return (
            f"checkpoint {self.checkpoint_id}: parallelism {self.old_parallelism} → "
            f"{self.parallelism}, reads {amount(self.size_bytes, self.files)}"
        )

    def __str__(self) -> str:
        """Return a table, one line per operator and subtask."""
        lines = [
            (
                f"checkpoint {self.checkpoint_id}: parallelism {self.old_parallelism} -> "
                f"{self.parallelism}"
            )
        ]
        for plan in self.operators:
            lines.append(f"{plan.uid} ({', '.join(plan.states)})")
            lines.extend(f"  {_line(subtask)}" for subtask in plan.subtasks)
        return "\n".join(lines)


def _amplification(subtasks: Sequence[SubtaskPlan], base_rows: int) -> float | None:
    rows = sum(subtask.rows for subtask in subtasks)
    return rows / base_rows if base_rows and rows != base_rows else None


def _totals(subtasks: Sequence[SubtaskPlan]) -> tuple[int, ...]:
    """Return how many subtasks there are, and what they read together."""
    read = ((one.rows, one.size_bytes, one.files, one.requests) for one in subtasks)
    return len(subtasks), *map(sum, zip(*read, strict=True))


def _picture(plan: OperatorPlan) -> Iterator[str]:
    """Yield the key groups by subtask, as stored and as planned, and the bytes of each subtask."""
    if plan.assignment is not None and plan.owners_before is not None:
        owners = (("before", plan.owners_before), ("now", plan.assignment))
        yield strips(
            [
                (f"{plan.uid}, {when}: {one.parallelism}", one.max_parallelism, one.ranges())
                for when, one in owners
            ]
        )
    drawn = []
    for span in spans(len(plan.subtasks), MOST_BARS):
        largest = max(plan.subtasks[at].size_bytes for at in span)
        each = f"subtask {span[0]}" if len(span) == 1 else f"largest of {span[0]}–{span[-1]}"
        drawn.append(Bar(f"{plan.uid}, {each}", ((largest, "plain"),), size(largest)))
    yield bars(drawn)


def _line(plan: SubtaskPlan) -> str:
    groups = f"key groups {plan.key_groups}" if plan.key_groups else "no keyed state"
    changes = f" ({plan.changed_rows} of them changes)" if plan.changed_rows else ""
    return (
        f"subtask {plan.subtask}: {groups}, {plan.rows} rows{changes}, {plan.size_bytes} bytes, "
        f"{plan.files} files, {plan.requests} requests, {plan.elements} elements"
    )


def plan_restore(
    manifest: Manifest,
    parallelism: int | Mapping[str, int],
    max_parallelism: int | None = None,
    *,
    balance: Weight | None = None,
    ranges: Mapping[str, RangeAssignment] | None = None,
    local: Collection[str] = frozenset(),
) -> RestorePlan:
    """Return the plan of restoring a checkpoint at ``parallelism``, one for all operators or each.

    Operators that a mapping does not name are left out. ``local`` holds the names of the files of
    which this host has a copy. Raises ParallelismError, naming the operator, when parallelism is
    out of bounds or above the max parallelism, or when ``max_parallelism`` is given and is neither
    a multiple nor a divisor of the stored one. With ``balance`` the key groups of each operator are
    cut by their weight, and those of operators in ``ranges`` as it says.
    """
    wanted = (
        parallelism
        if isinstance(parallelism, Mapping)
        else dict.fromkeys(manifest.uids, check_parallelism(parallelism))
    )
    plans = tuple(
        _plan_operator(
            manifest,
            uid,
            _assignment(manifest, uid, wanted[uid], max_parallelism, balance, ranges or {}),
            check_parallelism(wanted[uid]),
            local,
        )
        for uid in manifest.uids
        if uid in wanted
    )
    most = parallelism if isinstance(parallelism, int) else max(wanted.values(), default=1)
    return RestorePlan(
        manifest.checkpoint_id, manifest.parallelism, most, plans, left_out=manifest.left_out
    )


def redistribution_of(manifest: Manifest, uid: str, parallelism: int) -> RedistributionPlan:
    """Return who gets which elements of an operator's states: together, for their remainders
    spread.

    Broadcast state is stored once, so it counts as reported by old subtask 0 alone.
    """
    subtasks = manifest.operators.parallelism_of(uid)
    old: list[dict[str, tuple[RedistributionMode, int]]] = [{} for _ in range(subtasks)]
    for entry in manifest.operator:
        if entry.state.uid == uid:
            for states, count in zip(old, entry.counts, strict=False):
                states[entry.state.name] = (entry.state.mode, count)
    return plan_redistribution(old, parallelism)


def owners_of(manifest: Manifest, uid: str, parallelism: int | None = None) -> Assignment:
    """Return who owns which key groups of an operator with keyed state, at a parallelism or as the
    checkpoint was taken: by the ranges that it recorded at this parallelism, else Flink's even
    ones. Raises ParallelismError, naming the operator.
    """
    stored = manifest.operators.parallelism_of(uid)
    wanted = stored if parallelism is None else check_parallelism(parallelism)
    assignment = _assignment(manifest, uid, wanted, None, None, manifest.ranges)
    assert assignment is not None  # it has keyed state
    return assignment


def _assignment(
    manifest: Manifest,
    uid: str,
    parallelism: int,
    max_parallelism: int | None,
    balance: Weight | None,
    ranges: Mapping[str, RangeAssignment],
) -> Assignment | None:
    """Return who owns which key groups of an operator, None without keyed state."""
    keyed = [entry for entry in manifest.keyed if entry.state.uid == uid]
    if not keyed:
        return None
    even: Assignment = assignment_of(keyed[0], parallelism, max_parallelism)
    if balance is not None:
        return balanced(weights_of(keyed, balance), parallelism)
    stored = ranges.get(uid)
    return even if stored is None or stored.parallelism != parallelism else stored


def _plan_operator(
    manifest: Manifest,
    uid: str,
    assignment: Assignment | None,
    parallelism: int,
    local: Collection[str],
) -> OperatorPlan:
    entries = [entry for entry in manifest.entries if entry.state.uid == uid]
    operator = [entry for entry in entries if isinstance(entry, OperatorEntry)]
    dealt = redistribution_of(manifest, uid, parallelism) if operator else None
    keyed: tuple[KeyedPlan, ...] = ()
    ranges: Sequence[KeyGroupRange | None] = [None] * parallelism
    if assignment is not None:
        keyed = tuple(KeyedPlan(e, assignment) for e in entries if isinstance(e, KeyedEntry))
        ranges = _ranges_of(assignment)

    def subtasks() -> tuple[SubtaskPlan, ...]:
        each = enumerate(ranges)
        return tuple([_plan_subtask(keyed, operator, own, at, dealt, local) for at, own in each])

    names = tuple(entry.state.name for entry in entries)
    most = assignment.max_parallelism if assignment else None
    # Counted when one is looked at: who restores some states need not know what there is of others.
    return OperatorPlan(
        uid,
        most,
        names,
        LazySequence(parallelism, subtasks),
        stored_uid=uid,
        keyed=keyed,
        owners_before=owners_of(manifest, uid) if keyed else None,
    )


@lru_cache(maxsize=8)
def _ranges_of(assignment: Assignment) -> tuple[KeyGroupRange, ...]:
    """The ranges of all subtasks: most operators of a job have the same."""
    return assignment.ranges()


def _plan_subtask(
    keyed: tuple[KeyedPlan, ...],
    operator: list[OperatorEntry],
    key_groups: KeyGroupRange | None,
    subtask: int,
    dealt: RedistributionPlan | None,
    local: Collection[str],
) -> SubtaskPlan:
    rows = changed_rows = size_bytes = files = requests = local_bytes = 0
    # One pass, and no sum per number: a job may have a hundred states and a thousand subtasks.
    for plan in keyed:
        assert key_groups is not None  # it has keyed state
        reads = plan.of_groups(key_groups)
        for part in reads.slices:
            rows += part.rows
            size_bytes += part.size_bytes
            files += 1
            requests += 2 + part.row_groups
        if reads.layers:
            changed_rows += sum(part.rows for part in reads.changes)
        if local:
            named = zip(reads.names(plan.entry), reads.slices, strict=True)
            local_bytes += sum(part.size_bytes for name, part in named if name in local)
    for entry in operator:  # every subtask reads the whole files of these
        for handle in entry.handles:
            size_bytes += handle.size_bytes
            files += 1
            requests += 2 + handle.row_groups
            name = entry.table.name_of(handle)
            local_bytes += handle.size_bytes if name in local else 0
    return SubtaskPlan(
        subtask=subtask,
        key_groups=key_groups,
        rows=rows,
        size_bytes=size_bytes,
        files=files,
        requests=requests,
        elements=0 if dealt is None else _elements(dealt, subtask),
        local_bytes=local_bytes,
        changed_rows=changed_rows,
    )


def _elements(dealt: RedistributionPlan, subtask: int) -> int:
    return sum(run.stop - run.first for runs in dealt.runs(subtask).values() for run in runs)
