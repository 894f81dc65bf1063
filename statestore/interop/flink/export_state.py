"""``statestore flink export``: a checkpoint of a store becomes a savepoint that Flink restores.

Files of state come first. What is in them is read back then and compared with the store, and only
after that ``_metadata`` is put, whole or not at all: without it a folder is no savepoint, to Flink
as well. Whatever fails deletes what was written; what a crash leaves has no ``_metadata``.

Memory does not depend on the size of a key group or state
(:mod:`statestore.interop.flink.export_keyed`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any

from statestore.errors import InvalidArgumentError
from statestore.format.digest import RowSet
from statestore.interop.flink.canonical_writer import SavepointWriter
from statestore.interop.flink.carry import operators_to_carry
from statestore.interop.flink.entries import key_group_bytes
from statestore.interop.flink.export_keyed import ExportedKeyed
from statestore.interop.flink.export_operator import SubtaskLists, lists_of, written_subtask
from statestore.interop.flink.export_plan import groups_of, plan_export
from statestore.interop.flink.export_proof import prove_keyed, prove_operator
from statestore.interop.flink.export_types import ExportPlan, LeftOut, OperatorPlan
from statestore.interop.flink.metadata import (
    InlineHandle,
    KeyGroupsHandle,
    OperatorState,
    RelativeHandle,
    SavepointMetadata,
    Subtask,
)
from statestore.interop.flink.metadata_writer import metadata_v3
from statestore.interop.flink.record import RECORD, ImportedOperator, SavepointRecord
from statestore.interop.flink.savepoint import savepoint_of
from statestore.interop.flink.streams import Places
from statestore.interop.flink.types import name_of
from statestore.keys.groups import KeyGroupRange
from statestore.restore.restored import RestoredCheckpoint
from statestore.storage import open_storage
from statestore.store import StateStore

__all__ = [
    "ExportedOperator",
    "ExportedSavepoint",
    "ExportedState",
    "export_savepoint",
]

Progress = Callable[[float, float], None]


@dataclass(frozen=True, kw_only=True)
class ExportedState:
    """A state: what it is called in Flink and of which types, and its rows.

    ``columns`` are those of its values, in the order of their fields in Flink, which have no names
    there.
    """

    name: str
    flink_name: str
    kind: str
    key_type: str | None
    value_type: str
    columns: tuple[str, ...]
    rows: int


@dataclass(frozen=True, kw_only=True)
class ExportedOperator:
    """An operator: its id, and by new subtask its rows and bytes."""

    uid: str
    id: str
    parallelism: int
    max_parallelism: int
    states: tuple[ExportedState, ...]
    rows: tuple[int, ...]
    size_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ExportedSavepoint:
    """What was written for Flink, or with ``dry_run`` what would be, and what was left out.

    ``carried`` are the operators that were copied unchanged from the savepoint that was imported.
    """

    store: str
    checkpoint_id: int
    savepoint: str
    operators: tuple[ExportedOperator, ...]
    left_out: tuple[LeftOut, ...]
    dry_run: bool
    carried: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the savepoint has all state of the checkpoint, and that all of its source."""
        return all(one.is_written_elsewhere for one in self.left_out)


def export_savepoint(
    store: StateStore,
    place: str,
    *,
    checkpoint: int | str = "latest",
    operators: Collection[str] | None = None,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    leave_out: Collection[str | tuple[str, str]] = (),
    carry: Collection[str] = (),
    moved: Mapping[str, str] | None = None,
    allow: Collection[str] = (),
    tuples: Collection[tuple[str, str]] = (),
    dry_run: bool = False,
    options: Mapping[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> ExportedSavepoint:
    """Make a canonical savepoint of a checkpoint, from which Flink restores.

    All rows are read back before there is a savepoint, and compared with those of the store by
    number, digest and key group.

    Args:
        store: the store.
        place: a folder that is empty or not there, as a path or URL.
        checkpoint: the id, ``latest``, or a savepoint's name.
        operators: the uids whose states are written; by default all.
        parallelism: among how many subtasks the state is shared; by default as stored. A restore
            may be at any other.
        max_parallelism: the number of key groups, 1 to 32768; by default as stored. An operator
            that was imported with one key group keeps it, as its job allows no other.
        leave_out: what the savepoint lacks on purpose: an operator, ``operator/state``, or a pair
            of these. State that the checkpoint lacks of its source has to be named here. Operators
            go by uid, name or operator id.
        carry: operators that the import left out, by uid, name or operator id. Their state is
            copied unchanged from the savepoint that was imported, which must still be there.
        moved: where folders are now that this savepoint names by absolute paths, as for the import.
        allow: folders and files elsewhere that this savepoint may name, as for the import.
        tuples: states, as such pairs, whose values of several columns are a tuple in the job; by
            default they are a ``Row``.
        dry_run: says what each subtask would get; nothing is written.
        options: for the file system of the savepoint, as of ``open_storage``.
        on_progress: is told how many rows are written, and of how many.

    Returns:
        What was written.

    Raises:
        UnsupportedTypeError: for what Flink cannot have, by operator, state and column: before
            anything is written where types tell it, else when the value is found.
        InvalidArgumentError: for a place that is not empty, or within the store, and when the
            savepoint to carry from is another one by now.
        LeftOutStateError: for state that the checkpoint lacks of its source, since its import or
            a salvage left it out, and that neither ``leave_out`` nor ``carry`` names.
        StateNotFoundError: for an operator or a state that there is not.
        ParallelismError: for a parallelism that there cannot be, and for operators to carry that
            have another number of key groups than ``max_parallelism``.
        MissingFileError: when the savepoint to carry from was deleted.
        IncompatibleStateError: for an operator to carry with records in flight or a changelog.
        CorruptionError: when the rows of the store are not those that were stored, or what was
            written is not read back as them. Nothing is left then.
        StateStoreError: as ``store.restore``, and when the place cannot be written.
    """
    restored = store.restore(checkpoint=checkpoint)
    uids = {one.state.uid for one in restored.manifest.operator}
    record = SavepointRecord.of(restored) if RECORD in uids else None
    plan = plan_export(
        restored.manifest,
        record,
        operators=operators,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        leave_out=leave_out,
        carry=carry,
        tuples=tuples,
    )
    target = open_storage(place, options)
    if f"{target.url}/".startswith(f"{store.url.rstrip('/')}/"):
        raise InvalidArgumentError(
            f"{target.url} is within {store.url}: a savepoint is written to a folder of its own"
        )
    carried = None
    if plan.carried and record is not None:
        carried = operators_to_carry(
            plan.carried, record, max_parallelism, moved=moved, allow=allow, options=options
        )
    writer = _Counting(target) if dry_run else SavepointWriter(target)
    told = _Told(on_progress, restored, plan)
    try:
        memory_bytes = store.parts.parquet.memory_bytes
        written = [_write(restored, one, writer, memory_bytes, told) for one in plan.operators]
        others = (_stateless(one, max_parallelism) for one in plan.others)
        copied = () if carried is None else carried.write(writer)
        made = (*(one.metadata for one in written), *others, *copied)
        number = restored.checkpoint_id if carried is None else carried.checkpoint
        metadata = SavepointMetadata(3, number, made)
        if not dry_run:
            _prove(metadata, written, Places(target, options))
            writer.finish(metadata)
    except BaseException:
        writer.discard()
        raise
    return ExportedSavepoint(
        store=store.url,
        checkpoint_id=restored.checkpoint_id,
        savepoint=target.url,
        operators=tuple(one.result for one in written),
        left_out=plan.left_out,
        dry_run=dry_run,
        carried=tuple(one.operator for one in plan.carried),
    )


class _Counting(SavepointWriter):
    """Writes nothing, and says how many bytes there would be."""

    def file(self, data: Iterator[bytes] | Sequence[bytes]) -> RelativeHandle:  # type: ignore[override]
        return RelativeHandle("", sum(map(len, data)))


class _Told:
    """Tells how far it is, by rows."""

    def __init__(
        self, tell: Progress | None, restored: RestoredCheckpoint, plan: ExportPlan
    ) -> None:
        self._tell, self._done = tell, 0
        states = [(one, state) for one in plan.operators for state in one.keyed]
        self._total = sum(
            restored.keyed(one.uid, state.state.name).entry.rows for one, state in states
        )

    def __call__(self, rows: int) -> None:
        self._done += rows
        if self._tell is not None:
            self._tell(self._done, max(self._total, self._done))


@dataclass(frozen=True)
class _Written:
    """An operator that was written, and what has to be read back of it."""

    plan: OperatorPlan
    metadata: OperatorState
    result: ExportedOperator
    keyed: tuple[RowSet, ...]
    lists: tuple[SubtaskLists, ...]


def _write(
    restored: RestoredCheckpoint,
    plan: OperatorPlan,
    writer: SavepointWriter,
    memory_bytes: int,
    told: _Told,
) -> _Written:
    lists = lists_of(restored, plan)
    most = plan.share.max_parallelism
    subtasks, rows, sizes = [], [], []
    with ExitStack() as stack:
        keyed = ExportedKeyed(restored, plan, memory_bytes, told)
        groups = key_group_bytes(keyed.runs(stack), most) if plan.keyed else None
        for index, part in enumerate(plan.share.ranges()):
            handle, size = _written_keyed(groups, plan, part, writer)
            own = written_subtask(lists, index, writer)
            if handle is not None or own is not None:
                operator = None if own is None else own[0]
                subtasks.append(Subtask(index, operator=operator, keyed=handle))
            rows.append(keyed.rows_of(part) + sum(len(one.lists[index]) for one in lists))
            sizes.append(size + (0 if own is None else own[1]))
        found = keyed.done()
    known = plan.imported
    if known is not None and known.parallelism == plan.share.parallelism:
        there = {one.index for one in subtasks}
        gone = [at for at in known.finished_subtasks if at not in there]
        subtasks = sorted(
            [*subtasks, *(Subtask(at, is_finished=True) for at in gone)], key=lambda one: one.index
        )
    metadata = OperatorState(
        plan.id, plan.share.parallelism, most, tuple(subtasks), _coordinator(known)
    )
    result = ExportedOperator(
        uid=plan.uid,
        id=plan.id,
        parallelism=plan.share.parallelism,
        max_parallelism=most,
        states=_states(plan, found, lists),
        rows=tuple(rows),
        size_bytes=tuple(sizes),
    )
    return _Written(plan, metadata, result, found, lists)


def _coordinator(known: ImportedOperator | None) -> InlineHandle | None:
    if known is None or known.coordinator is None:
        return None
    return InlineHandle(known.coordinator_name or "", known.coordinator)


def _stateless(known: ImportedOperator, most: int | None) -> OperatorState:
    """Return an operator that was imported, of which there are no rows."""
    groups = groups_of(known, most) or known.max_parallelism
    return OperatorState(
        known.id,
        min(known.parallelism, groups) if groups > 0 else known.parallelism,
        groups,
        (),
        _coordinator(known),
        is_finished=known.is_finished,
    )


def _written_keyed(
    groups: Iterator[Iterator[bytes]] | None,
    plan: OperatorPlan,
    part: KeyGroupRange,
    writer: SavepointWriter,
) -> tuple[KeyGroupsHandle | None, int]:
    """Write the next key groups, those of a subtask; return its handle, and its bytes."""
    if groups is None:
        return None, 0
    handle = writer.keyed(plan.header, part.first, islice(groups, len(part)))
    assert isinstance(handle.stream, RelativeHandle)
    return handle, handle.stream.size


def _states(
    plan: OperatorPlan, found: Sequence[RowSet], lists: Sequence[SubtaskLists]
) -> tuple[ExportedState, ...]:
    keyed = [
        ExportedState(
            name=one.state.name,
            flink_name=one.flink.name,
            kind=one.flink.kind,
            key_type=name_of(one.flink.key),
            value_type=name_of(one.flink.value),
            columns=one.value.names,
            rows=rows.rows,
        )
        for one, rows in zip(plan.keyed, found, strict=True)
    ]
    operator = [
        ExportedState(
            name=one.plan.state.name,
            flink_name=one.plan.name,
            kind=one.plan.mode,
            key_type=None if one.plan.key is None else name_of(one.plan.key.kind),
            value_type=name_of(one.plan.value.kind),
            columns=one.plan.value.names,
            rows=one.contents.rows,
        )
        for one in lists
    ]
    return (*keyed, *operator)


def _prove(metadata: SavepointMetadata, written: Sequence[_Written], places: Places) -> None:
    """Read back what was written, before it is a savepoint."""
    found = savepoint_of(metadata_v3(metadata), places)
    for operator, one in zip(found.operators, written, strict=False):  # others have no rows
        prove_keyed(operator, one.plan, one.keyed)
        prove_operator(operator, one.lists)
