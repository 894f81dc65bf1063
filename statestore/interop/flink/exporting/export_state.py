"""``statestore flink export``: write a checkpoint of a store as a savepoint that Flink restores.

The export writes the state files first. Then it reads them back and compares them with the store.
Only after that does it write ``_metadata``, atomically. Without this file, Flink does not accept a
folder as a savepoint. If the export fails, it deletes its files. After a crash the files stay,
without ``_metadata``.

The memory that it needs does not depend on the size of a key group or state
(:mod:`statestore.interop.flink.exporting.export_keyed`).

Operators that the import could not read are copied unchanged from the imported savepoint, because
the store does not have their rows. Their handles and files are still complete: Flink redistributes
the state at the restore, as it would with that savepoint. This works only with the same max
parallelism, because another one requires the state of each key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

import pyarrow as pa

from statestore.catalog.catalog import CheckpointRef
from statestore.errors import (
    IncompatibleStateError,
    InvalidArgumentError,
    MissingFileError,
    ParallelismError,
    StateNotFoundError,
)
from statestore.format.digest import RowSet
from statestore.format.left_out import LeftOutState
from statestore.interop.flink.exporting.export_keyed import (
    ExportedKeyedStates,
    HashedKey,
    verify_keyed,
    verify_operator,
)
from statestore.interop.flink.exporting.export_operator import (
    SubtaskLists,
    redistribute_lists,
    write_subtask,
)
from statestore.interop.flink.exporting.export_plan import choose_key_groups, plan_export
from statestore.interop.flink.exporting.export_types import ExportPlan, LeftOut, OperatorExport
from statestore.interop.flink.exporting.kafka_source import coordinator_bytes
from statestore.interop.flink.importing.import_record import (
    RECORD,
    ImportedOperator,
    SavepointRecord,
)
from statestore.interop.flink.metadata.handles import (
    EmptyHandle,
    FileHandle,
    InlineHandle,
    KeyGroupsHandle,
    OperatorHandle,
    OperatorHandles,
    RelativeHandle,
    SavepointMetadata,
    SegmentHandle,
    StreamHandle,
    Subtask,
)
from statestore.interop.flink.metadata.metadata_file import metadata_v3, read_metadata
from statestore.interop.flink.options import (
    ACCESS,
    ANY_JOB,
    EVERYTHING,
    ExportSelection,
    FlinkTarget,
    SavepointAccess,
)
from statestore.interop.flink.read.refusals import Refused, unread_parts
from statestore.interop.flink.read.savepoint import parse_savepoint
from statestore.interop.flink.read.savepoint_files import (
    METADATA,
    ByteSource,
    SavepointFiles,
    open_source,
    read_metadata_file,
)
from statestore.interop.flink.types.base import replace_parts
from statestore.interop.flink.write import SavepointWriter, key_group_bytes
from statestore.interop.flink_plans.plan_file import read_plan_record
from statestore.keys.groups import KeyGroupRange
from statestore.restore.restored import RestoredCheckpoint
from statestore.storage import open_storage
from statestore.store import StateStore

Progress = Callable[[float, float], None]


@dataclass(frozen=True, kw_only=True)
class ExportedFlinkState:
    """A state: its name and types in Flink, and the number of its rows.

    ``key_type`` is the type of the keys, or of the keys of a broadcast map. ``key_hash`` is the
    recipe for the hash of keys that are a class of the job. ``key_example`` is one of these keys
    with its hash: compare it with the class's ``hashCode()``. ``columns`` are the columns of its
    values. They have the order of the value's fields in Flink, which have no names there.
    """

    state: str
    flink_name: str
    kind: str
    key_type: str | None
    value_type: str
    columns: tuple[str, ...]
    rows: int
    key_hash: str | None = None
    key_example: HashedKey | None = None


@dataclass(frozen=True, kw_only=True)
class ExportedOperator:
    """An operator: its id, and the number of rows and bytes of each new subtask."""

    operator: str
    operator_id: str
    parallelism: int
    max_parallelism: int
    states: tuple[ExportedFlinkState, ...]
    rows: tuple[int, ...]
    size_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ExportedSavepoint:
    """The written savepoint (with ``dry_run``, the savepoint that would be written).

    ``carried`` are the operators that were copied unchanged from the imported savepoint.
    """

    store: str
    checkpoint_id: int
    savepoint: str
    operators: tuple[ExportedOperator, ...]
    left_out: tuple[LeftOut, ...]
    dry_run: bool
    carried: tuple[str, ...] = ()

    json_properties: ClassVar[tuple[str, ...]] = ("is_complete",)

    @property
    def is_complete(self) -> bool:
        """Whether the savepoint has all state of the checkpoint and of the checkpoint's source."""
        return all(state.is_written_elsewhere for state in self.left_out)


def export_savepoint(
    store: StateStore,
    place: str,
    *,
    checkpoint: CheckpointRef = "latest",
    selection: ExportSelection = EVERYTHING,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    target: FlinkTarget = ANY_JOB,
    access: SavepointAccess = ACCESS,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> ExportedSavepoint:
    """Write a checkpoint as a canonical savepoint, from which Flink restores.

    Before the savepoint is completed, all rows are read back. Their number, digest and key groups
    are compared with the rows of the store.

    Args:
        store: the store.
        place: an empty or new folder, as a path or URL.
        checkpoint: the id, ``latest``, or a savepoint's name.
        selection: which state is written; by default all.
        parallelism: the number of subtasks that share the state; by default as stored. Flink can
            restore the savepoint with any other.
        max_parallelism: the number of key groups, 1 to 32768; by default as stored. An operator
            that was imported with one key group keeps it, because its job allows no other.
        target: the job that restores the savepoint: its version of Flink, and its tuples.
        access: how the files of a savepoint to carry from are found and read. The storage options
            also apply to the written savepoint.
        dry_run: report what each subtask would get, without writing anything.
        on_progress: a callback that receives the number of written rows, and the total.

    Returns:
        The written operators and states, and the ones that were left out.

    Raises:
        UnsupportedTypeError: for a type or value that Flink does not support, or that cannot be
            converted for the target, with the operator, state and column. A type is refused before
            anything is written.
        InvalidArgumentError: if the place is not empty or is inside of the store, if another
            savepoint is now in the place of the savepoint to carry from, or for a target that
            the state cannot be written for.
        LeftOutStateError: for state of the source that the checkpoint does not have, because its
            import or a salvage left it out, unless ``selection`` names it.
        StateNotFoundError: for an operator or a state that does not exist.
        ParallelismError: for an invalid parallelism, or if an operator to carry has another number
            of key groups than ``max_parallelism``.
        MissingFileError: if the savepoint to carry from was deleted.
        IncompatibleStateError: for an operator to carry with in-flight records, or from Flink 1 to
            Flink 2.
        CorruptionError: if the rows of the store do not match their recorded digest, or the written
            rows are read back differently. In both cases the written files are deleted.
        StateStoreError: as ``store.restore``, or if the place cannot be written.
    """
    restored = store.restore(checkpoint=checkpoint)
    uids = {entry.state.uid for entry in restored.manifest.operator}
    record = SavepointRecord.of(restored) if RECORD in uids else None
    plan = plan_export(
        restored.manifest,
        record,
        read_plan_record(restored),
        selection=selection,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        target=target,
    )
    storage = open_storage(place, access.storage_options)
    if f"{storage.url}/".startswith(f"{store.url.rstrip('/')}/"):
        raise InvalidArgumentError(
            f"{storage.url} is inside the store {store.url}; choose a folder outside the store"
        )
    carried = None
    if plan.carried and record is not None:
        carried = select_carried_operators(plan.carried, record, max_parallelism, access)
    writer = _DryRunWriter(storage) if dry_run else SavepointWriter(storage)
    reporter = _ProgressReporter(on_progress, restored, plan)
    try:
        memory_bytes = store.parts.parquet.memory_bytes
        written = [
            _write_operator(restored, operator, writer, memory_bytes, reporter)
            for operator in plan.operators
        ]
        others = (_build_stateless_operator(other, max_parallelism) for other in plan.others)
        copied = () if carried is None else carried.write(writer)
        handles = (*(operator.metadata for operator in written), *others, *copied)
        number = restored.checkpoint_id if carried is None else carried.checkpoint
        metadata = SavepointMetadata(3, number, handles)
        if not dry_run:
            _verify(metadata, written, SavepointFiles(storage, access.storage_options))
            writer.finish(metadata)
    except BaseException:
        writer.discard()
        raise
    return ExportedSavepoint(
        store=store.url,
        checkpoint_id=restored.checkpoint_id,
        savepoint=storage.url,
        operators=tuple(operator.result for operator in written),
        left_out=plan.left_out,
        dry_run=dry_run,
        carried=tuple(operator.operator for operator in plan.carried),
    )


class _DryRunWriter(SavepointWriter):
    """A writer for dry runs: it writes nothing and only counts bytes."""

    def write_file(self, data: Iterator[bytes] | Sequence[bytes]) -> RelativeHandle:  # type: ignore[override]
        return RelativeHandle("", sum(map(len, data)))


class _ProgressReporter:
    """Reports the progress in rows."""

    def __init__(
        self, callback: Progress | None, restored: RestoredCheckpoint, plan: ExportPlan
    ) -> None:
        self._callback, self._done = callback, 0
        states = [(operator, state) for operator in plan.operators for state in operator.keyed]
        self._total = sum(
            restored.keyed(operator.uid, state.state.name).entry.rows for operator, state in states
        )

    def __call__(self, rows: int) -> None:
        self._done += rows
        if self._callback is not None:
            self._callback(self._done, max(self._total, self._done))


@dataclass(frozen=True)
class _WrittenOperator:
    """An operator that was written, and the rows that must be read back."""

    plan: OperatorExport
    metadata: OperatorHandles
    result: ExportedOperator
    keyed: tuple[RowSet, ...]
    lists: tuple[SubtaskLists, ...]


def _write_operator(
    restored: RestoredCheckpoint,
    plan: OperatorExport,
    writer: SavepointWriter,
    memory_bytes: int,
    reporter: _ProgressReporter,
) -> _WrittenOperator:
    lists = redistribute_lists(restored, plan)
    most = plan.share.max_parallelism
    subtasks, rows, sizes = [], [], []
    with ExitStack() as stack:
        keyed = ExportedKeyedStates(restored, plan, memory_bytes, reporter)
        groups = key_group_bytes(keyed.runs(stack), most) if plan.keyed else None
        for index, part in enumerate(plan.share.ranges()):
            handle, size = _write_key_groups(groups, plan, part, writer)
            written_state = write_subtask(lists, index, writer)
            if handle is not None or written_state is not None:
                operator = None if written_state is None else written_state[0]
                subtasks.append(Subtask(index, operator=operator, keyed=handle))
            rows.append(
                keyed.count_rows(part) + sum(len(state_lists.lists[index]) for state_lists in lists)
            )
            sizes.append(size + (0 if written_state is None else written_state[1]))
        contents = keyed.check_totals()
    known = plan.imported
    if known is not None and known.parallelism == plan.share.parallelism:
        written_subtasks = {subtask.index for subtask in subtasks}
        finished = [
            subtask_index
            for subtask_index in known.finished_subtasks
            if subtask_index not in written_subtasks
        ]
        subtasks = sorted(
            [*subtasks, *(Subtask(subtask_index, is_finished=True) for subtask_index in finished)],
            key=lambda subtask: subtask.index,
        )
    metadata = OperatorHandles(
        plan.id, plan.share.parallelism, most, tuple(subtasks), _coordinator_handle(plan, lists)
    )
    result = ExportedOperator(
        operator=plan.uid,
        operator_id=plan.id,
        parallelism=plan.share.parallelism,
        max_parallelism=most,
        states=_describe_states(plan, contents, keyed.hash_examples, lists),
        rows=tuple(rows),
        size_bytes=tuple(sizes),
    )
    return _WrittenOperator(plan, metadata, result, contents, lists)


def _coordinator_handle(plan: OperatorExport, lists: Sequence[SubtaskLists]) -> InlineHandle | None:
    """Return the state of an operator's coordinator: of a Kafka source, or the imported state."""
    for state in lists:
        if state.plan.source_name is not None:
            offsets = pa.concat_tables(state.lists)
            return InlineHandle(plan.id, coordinator_bytes(offsets, str(state.plan.state)))
        if state.coordinator is not None:
            return InlineHandle(plan.id, state.coordinator)
    return None if plan.imported is None else _imported_coordinator(plan.imported)


def _imported_coordinator(known: ImportedOperator) -> InlineHandle | None:
    if known.coordinator is None:
        return None
    return InlineHandle(known.coordinator_name or "", known.coordinator)


def _build_stateless_operator(known: ImportedOperator, most: int | None) -> OperatorHandles:
    """Return an imported operator that has no rows."""
    groups = choose_key_groups(known, most) or known.max_parallelism
    return OperatorHandles(
        known.id,
        min(known.parallelism, groups) if groups > 0 else known.parallelism,
        groups,
        (),
        _imported_coordinator(known),
        is_finished=known.is_finished,
    )


def _write_key_groups(
    groups: Iterator[Iterator[bytes]] | None,
    plan: OperatorExport,
    part: KeyGroupRange,
    writer: SavepointWriter,
) -> tuple[KeyGroupsHandle | None, int]:
    """Write the next key groups, which belong to one subtask; return its handle and its size."""
    if groups is None:
        return None, 0
    handle = writer.write_keyed(plan.header, part.first, islice(groups, len(part)))
    assert isinstance(handle.stream, RelativeHandle)
    return handle, handle.stream.size


def _describe_states(
    operator_plan: OperatorExport,
    contents: Sequence[RowSet],
    examples: Sequence[HashedKey | None],
    lists: Sequence[SubtaskLists],
) -> tuple[ExportedFlinkState, ...]:
    keyed = [
        ExportedFlinkState(
            state=plan.state.name,
            flink_name=plan.flink.name,
            kind=plan.flink.kind,
            key_type=plan.flink.key.java_name,
            value_type=plan.flink.value.java_name,
            columns=plan.columns.names.get("value", ()),
            rows=rows.rows,
            key_hash=plan.flink.recipe,
            key_example=example,
        )
        for plan, rows, example in zip(operator_plan.keyed, contents, examples, strict=True)
    ]
    operator = [
        ExportedFlinkState(
            state=state.plan.state.name,
            flink_name=state.plan.name,
            kind=state.plan.mode,
            key_type=None if state.plan.key is None else state.plan.key.flink_type.java_name,
            value_type=state.plan.value.flink_type.java_name,
            columns=state.plan.value.names,
            rows=state.contents.rows,
        )
        for state in lists
    ]
    return (*keyed, *operator)


def _verify(
    metadata: SavepointMetadata, written: Sequence[_WrittenOperator], places: SavepointFiles
) -> None:
    """Read back and verify the written files, before ``_metadata`` completes the savepoint."""
    savepoint = parse_savepoint(metadata_v3(metadata), places)
    for operator, written_operator in zip(
        savepoint.operators, written, strict=False
    ):  # others have no rows
        verify_keyed(operator, written_operator.plan, written_operator.keyed)
        verify_operator(operator, written_operator.lists)


_PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class CarriedOperators:
    """Operators to copy, as they are in the imported savepoint.

    ``checkpoint`` is the savepoint's checkpoint id in Flink. Sinks compare it with ids in their
    state to decide which transactions to commit, so the copy must have the same id.
    """

    checkpoint: int
    operators: tuple[OperatorHandles, ...]
    places: SavepointFiles

    def write(self, writer: SavepointWriter) -> Iterator[OperatorHandles]:
        """Copy their files; yield each operator with handles of the copies.

        Args:
            writer: the savepoint that is being written.

        Raises:
            MissingFileError: if a file of their state was deleted.
            DamagedFileError: if the length of a file differs from the length in its handle.
        """
        for operator in self.operators:
            copies = _FileCopier(self.places, writer, operator)
            yield replace(operator, subtasks=tuple(map(copies.copy_subtask, operator.subtasks)))


def select_carried_operators(
    records: Sequence[LeftOutState],
    savepoint: SavepointRecord,
    max_parallelism: int | None,
    access: SavepointAccess,
) -> CarriedOperators:
    """Return the operators to copy, after the checks that need no file of their state.

    Args:
        records: the checkpoint's records of operators that were left out.
        savepoint: the savepoint that was imported.
        max_parallelism: the number of key groups of the export, None for the stored ones.
        access: how the savepoint's files are found and read.

    Raises:
        MissingFileError: if the savepoint was deleted.
        InvalidArgumentError: if another savepoint is now in its place, or the operators have files
            in places that may not be read.
        ParallelismError: if an operator has another number of key groups than the export.
        IncompatibleStateError: for in-flight records, which a savepoint cannot have.
        StateNotFoundError: for an operator that the savepoint does not have.
    """
    options = access.storage_options
    storage = open_storage(savepoint.place, options)
    places = SavepointFiles(storage, options, access.moved, tuple(access.allow))
    known = {operator.id: operator for operator in _read_unchanged(savepoint, places).operators}
    operators = tuple(
        _find_operator(record, known, savepoint, max_parallelism) for record in records
    )
    for operator in operators:
        places.refuse_outside_files(operator)
    return CarriedOperators(savepoint.checkpoint, operators, places)


def _find_operator(
    record: LeftOutState,
    known: Mapping[str, OperatorHandles],
    savepoint: SavepointRecord,
    max_parallelism: int | None,
) -> OperatorHandles:
    operator = known.get(record.id or "")
    if operator is None:
        raise StateNotFoundError(f"{savepoint.place} has no operator {record.operator!r}")
    if max_parallelism not in (None, operator.max_parallelism):
        raise ParallelismError(
            f"operator {record.operator!r} has {operator.max_parallelism} key groups and "
            f"cannot be carried to {max_parallelism}, because its state is copied unchanged. "
            "Export without --max-parallelism, or leave the operator out (--leave-out)"
        )
    for subtask in operator.subtasks:
        for part, text in unread_parts(subtask):
            if part is Refused.IN_FLIGHT:
                raise IncompatibleStateError(
                    f"operator {record.operator!r} cannot be carried: subtask {subtask.index} has "
                    f"{text}"
                )
    return operator


def _read_unchanged(savepoint: SavepointRecord, places: SavepointFiles) -> SavepointMetadata:
    try:
        data = read_metadata_file(places.storage)
    except FileNotFoundError:
        raise MissingFileError(
            f"{savepoint.place} no longer has {METADATA}, so nothing can be carried from it. "
            "Leave the operators out (--leave-out)"
        ) from None
    if hashlib.sha256(data).hexdigest() != savepoint.digest:
        raise InvalidArgumentError(
            f"{savepoint.place}/{METADATA} has changed since the import (its SHA-256 "
            "differs), so nothing can be carried from it. Import the savepoint again, or "
            "leave the operators out (--leave-out)"
        )
    return read_metadata(data, f"{savepoint.place}/{METADATA}")


class _FileCopier:
    """Copies of an operator's files; a file that several handles share is copied once."""

    def __init__(
        self, places: SavepointFiles, writer: SavepointWriter, operator: OperatorHandles
    ) -> None:
        self._places, self._writer = places, writer
        self._title = operator.uid or operator.name or operator.id
        self._copies: dict[StreamHandle, StreamHandle] = {}

    def copy_subtask(self, subtask: Subtask) -> Subtask:
        """Copy the state of a subtask."""
        own = replace(
            subtask,
            operator=_without_folders(subtask.operator),
            raw_operator=_without_folders(subtask.raw_operator),
        )
        return replace_parts(own, self._copy_file)

    def _copy_file(self, handle: object) -> StreamHandle:
        """Return the handle of a copy; None for what is no handle of a file."""
        if not isinstance(handle, FileHandle | RelativeHandle | SegmentHandle):
            return None
        if handle not in self._copies:
            source = open_source(handle, self._places, f"state of operator {self._title}")
            self._copies[handle] = self._writer.write_file(_read_pieces(source))
        return self._copies[handle]


def _without_folders(handle: OperatorHandle | None) -> OperatorHandle | None:
    """Return a handle without the folders of merged files, which belong to the source."""
    if handle is None or isinstance(handle.stream, EmptyHandle):
        return None
    return replace(handle, merged=None)


def _read_pieces(source: ByteSource) -> Iterator[bytes]:
    for start in range(0, source.size, _PIECE_BYTES):
        yield source.read(start, min(start + _PIECE_BYTES, source.size))
