"""The plan of a restore, as a value: which subtask reads which files. No data file is read.

A keyed state's subtask reads the files whose key-group range overlaps its own, once each, in order
of key group (I8). No file is rewritten and no row is shuffled, at any parallelism up to max
parallelism.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from statestore.display import (
    MOST_BARS,
    NotebookBar,
    bars,
    figure,
    size,
    size_and_files,
    spans,
    strips,
    table,
)
from statestore.errors import StateNotFoundError
from statestore.format.handles import LazySequence, read_all, totals_of
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import KeyedEntry, Manifest, OperatorEntry
from statestore.format.slices import KeyedPlan, assignment_of
from statestore.jobgraph.matching import Matching
from statestore.jobgraph.operators import label_of
from statestore.jobgraph.parallelism import KeyGroupDecision
from statestore.jobgraph.redistribution import (
    RedistributionMode,
    RedistributionPlan,
    plan_redistribution,
)
from statestore.keys.groups import (
    Assignment,
    KeyGroupRange,
    RangeAssignment,
    balance_ranges,
    check_parallelism,
)
from statestore.restore.key_group_weights import Weight, weights_of
from statestore.rows.dataframes import as_pandas, as_polars, table_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, init=False, repr=False, eq=False, match_args=False)
class SubtaskPlan(Struct, frozen=True, gc=False):
    """The reads of one subtask of an operator; ``elements`` counts its operator state.

    ``rows`` counts all rows read, of which ``changed_rows`` are changes that are merged into the
    base. ``requests`` is the number of requests to an object store: per file its length and its
    footer, and one read per Parquet row group. ``local_bytes`` are already in the local cache of
    this host, judging by file length.
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
_MOST_PICTURES = 5  # the most operators with a picture


@dataclass(frozen=True)
class OperatorPlan:
    """The reads of one operator's subtasks; ``max_parallelism`` is None without keyed state.

    ``operator`` is the restored operator, ``stored_operator`` the operator whose state it takes
    over. They differ only with a job graph. ``keyed`` has the plan of each keyed state, which
    ``subtasks`` summarizes and a restore executes. ``owners_before`` is the assignment in the
    checkpoint. ``read_amplification`` is the number of rows read for each row of the bases; None if
    there are no changes to read and the max parallelism is the same.
    """

    operator: str
    max_parallelism: int | None
    states: tuple[str, ...]
    subtasks: Sequence[SubtaskPlan]
    stored_operator: str
    keyed: tuple[KeyedPlan, ...] = field(default=(), repr=False)
    owners_before: Assignment | None = field(default=None, repr=False)

    json_properties: ClassVar[tuple[str, ...]] = ("read_amplification",)

    def keyed_state(self, name: str) -> KeyedPlan:
        """Return the plan of a keyed state, which must exist."""
        return next(plan for plan in self.keyed if plan.entry.state.name == name)

    @property
    def assignment(self) -> Assignment | None:
        """The owner of each key group; None without keyed state."""
        return self.keyed[0].owners if self.keyed else None

    @property
    def base_rows(self) -> int:
        """The rows of keyed state without changes."""
        return sum(totals_of(plan.entry.handles).rows for plan in self.keyed)

    @property
    def largest(self) -> SubtaskPlan:
        """The subtask with the most bytes, which determines the duration of the restore."""
        return max(self.subtasks, key=lambda subtask: (subtask.size_bytes, -subtask.subtask))

    @property
    def read_amplification(self) -> float | None:
        """The rows read per row of the base files; None if the ratio is 1.

        It is 1 without changes and at the stored max parallelism.
        """
        return _amplification(self.subtasks, self.base_rows)


@dataclass(frozen=True)
class ParallelismChoice:
    """The parallelism chosen from the bytes of one operator's keyed state, and its explanation."""

    operator: str
    decision: KeyGroupDecision


@dataclass(frozen=True)
class RestorePlan:
    """The plan of a whole checkpoint; ``parallelism`` is the largest of its operators.

    ``choices`` explains an automatically chosen parallelism. With a job graph ``matching`` says
    which operator takes over which state. ``left_out`` lists the state that the checkpoint lacks.
    """

    checkpoint_id: int
    old_parallelism: int
    parallelism: int
    operators: tuple[OperatorPlan, ...]
    choices: tuple[ParallelismChoice, ...] = ()
    matching: Matching | None = None
    left_out: tuple[LeftOutState, ...] = ()

    json_properties: ClassVar[tuple[str, ...]] = (
        "size_bytes",
        "local_bytes",
        "files",
        "read_amplification",
    )

    def operator(self, operator: str) -> OperatorPlan:
        """Return the plan of an operator.

        Args:
            operator: the operator's uid; with a job graph, an operator of the graph.

        Returns:
            The plan.

        Raises:
            StateNotFoundError: if the operator is not in the plan; it lists the existing ones.
        """
        for plan in self.operators:
            if plan.operator == operator:
                return plan
        where = f"checkpoint {self.checkpoint_id}"
        known = ", ".join(repr(plan.operator) for plan in self.operators) or "none"
        if self.matching is None:
            raise StateNotFoundError(f"no operator {operator!r} in {where}; it has {known}")
        labels = [label_of(node.node) for node in self.matching.nodes]
        if operator in labels:
            raise StateNotFoundError(
                f"operator {operator!r} has no state in {where} and starts empty; "
                "restored.matching gives the reason"
            )
        raise StateNotFoundError(
            f"the job graph has no operator {operator!r}; it has {', '.join(map(repr, labels))}"
        )

    @property
    def size_bytes(self) -> int:
        """The bytes that all subtasks read together."""
        return sum(subtask.size_bytes for subtask in self.subtasks)

    @property
    def local_bytes(self) -> int:
        """The part of these bytes that is in this host's local cache."""
        return sum(subtask.local_bytes for subtask in self.subtasks)

    @property
    def files(self) -> int:
        """The files that all subtasks open; a file that two subtasks read counts twice."""
        return sum(subtask.files for subtask in self.subtasks)

    @property
    def read_amplification(self) -> float | None:
        """The ratio of :attr:`OperatorPlan.read_amplification` over all operators."""
        return _amplification([*self.subtasks], sum(plan.base_rows for plan in self.operators))

    @property
    def subtasks(self) -> Iterator[SubtaskPlan]:
        """The subtasks of all operators."""
        keyed = (plan.entry for operator in self.operators for plan in operator.keyed)
        read_all(part.handles for entry in keyed for part in entry.parts)
        for operator in self.operators:
            yield from operator.subtasks

    def to_arrow(self) -> pa.Table:
        """Return one row per operator and subtask, with its reads."""
        return table_of(_COLUMNS, self._rows())

    to_pandas = as_pandas
    to_polars = as_polars

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        for plan in self.operators:
            for subtask in plan.subtasks:
                own = subtask.key_groups
                ends = (own.first, own.last) if own else (None, None)
                read = (
                    subtask.rows,
                    subtask.size_bytes,
                    subtask.files,
                    subtask.requests,
                    subtask.elements,
                )
                yield (
                    plan.operator,
                    subtask.subtask,
                    *ends,
                    *read,
                    subtask.local_bytes,
                    subtask.changed_rows,
                )

    def __repr__(self) -> str:
        return f"RestorePlan({self._summary()})"

    def _repr_html_(self) -> str:
        """Return the notebook view: key groups before and now, and the reads per operator."""
        drawn = (
            part for operator in self.operators[:_MOST_PICTURES] for part in _picture(operator)
        )
        columns = ("operator", "states", "subtasks", "rows", "size_bytes", "files", "requests")
        rows = (
            (operator.operator, ", ".join(operator.states), *_totals(operator.subtasks))
            for operator in self.operators
        )
        return figure(self._summary(), *drawn, table(columns, rows))

    def _summary(self) -> str:
        return (
            f"checkpoint {self.checkpoint_id}: parallelism {self.old_parallelism} → "
            f"{self.parallelism}, reads {size_and_files(self.size_bytes, self.files)}"
        )

    def __str__(self) -> str:
        """Return a table with one line per operator and subtask."""
        lines = [
            (
                f"checkpoint {self.checkpoint_id}: parallelism {self.old_parallelism} -> "
                f"{self.parallelism}"
            )
        ]
        for plan in self.operators:
            lines.append(f"{plan.operator} ({', '.join(plan.states)})")
            lines.extend(f"  {_line(subtask)}" for subtask in plan.subtasks)
        return "\n".join(lines)


def _amplification(subtasks: Sequence[SubtaskPlan], base_rows: int) -> float | None:
    rows = sum(subtask.rows for subtask in subtasks)
    return rows / base_rows if base_rows and rows != base_rows else None


def _totals(subtasks: Sequence[SubtaskPlan]) -> tuple[int, ...]:
    """Return the number of subtasks, and the totals of their reads."""
    read = (
        (subtask.rows, subtask.size_bytes, subtask.files, subtask.requests) for subtask in subtasks
    )
    return len(subtasks), *map(sum, zip(*read, strict=True))


def _picture(plan: OperatorPlan) -> Iterator[str]:
    """Yield pictures of the key groups by subtask, before and now, and of the subtasks' bytes."""
    if plan.assignment is not None and plan.owners_before is not None:
        owners = (("before", plan.owners_before), ("now", plan.assignment))
        yield strips(
            [
                (
                    f"{plan.operator}, {when}: {assignment.parallelism}",
                    assignment.max_parallelism,
                    assignment.ranges(),
                )
                for when, assignment in owners
            ]
        )
    drawn = []
    for span in spans(len(plan.subtasks), MOST_BARS):
        largest = max(plan.subtasks[subtask].size_bytes for subtask in span)
        each = f"subtask {span[0]}" if len(span) == 1 else f"largest of {span[0]}–{span[-1]}"
        drawn.append(NotebookBar(f"{plan.operator}, {each}", ((largest, "plain"),), size(largest)))
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
    """Return the plan of restoring a checkpoint at one parallelism, or at one per operator.

    A mapping leaves out the operators that it does not name. ``local`` has the names of the files
    with a copy on this host. With ``balance``, ranges of key groups are cut by their weight.
    ``ranges`` gives the ranges of single operators. Raises ParallelismError, which names the
    operator, if parallelism is out of bounds or above the max parallelism, or if
    ``max_parallelism`` is neither a multiple nor a divisor of the stored one.
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
    """Return the redistribution of the elements of all operator states of an operator.

    They are planned together, because their remainders are spread over the subtasks.

    Broadcast state is stored once, so it counts as reported by old subtask 0 only.
    """
    subtasks = manifest.operators.parallelism_of(uid)
    old: list[dict[str, tuple[RedistributionMode, int]]] = [{} for _ in range(subtasks)]
    for entry in manifest.operator:
        if entry.state.uid == uid:
            for states, count in zip(old, entry.counts, strict=False):
                states[entry.state.name] = (entry.state.mode, count)
    return plan_redistribution(old, parallelism)


def owners_of(manifest: Manifest, uid: str, parallelism: int | None = None) -> Assignment:
    """Return the owners of the key groups of an operator with keyed state.

    ``parallelism`` None stands for the parallelism in the checkpoint. The ranges recorded for this
    parallelism are used, or Flink's even ranges otherwise. Raises ParallelismError, which names the
    operator.
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
    """Return the owners of an operator's key groups; None without keyed state."""
    keyed = [entry for entry in manifest.keyed if entry.state.uid == uid]
    if not keyed:
        return None
    even: Assignment = assignment_of(keyed[0], parallelism, max_parallelism)
    if balance is not None:
        return balance_ranges(weights_of(keyed, balance), parallelism)
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
        return tuple(
            [_plan_subtask(keyed, operator, own, subtask, dealt, local) for subtask, own in each]
        )

    names = tuple(entry.state.name for entry in entries)
    most = assignment.max_parallelism if assignment else None
    # Computed on first access: a restore of some states need not read the lists of other states'
    # files.
    return OperatorPlan(
        uid,
        most,
        names,
        LazySequence(parallelism, subtasks),
        stored_operator=uid,
        keyed=keyed,
        owners_before=owners_of(manifest, uid) if keyed else None,
    )


@lru_cache(maxsize=8)
def _ranges_of(assignment: Assignment) -> tuple[KeyGroupRange, ...]:
    """Return the ranges of all subtasks; cached, because most operators share an assignment."""
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
    # A single pass instead of one sum per figure: a job may have 100 states and 1,000 subtasks.
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
