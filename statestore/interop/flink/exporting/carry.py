"""Operators that an export copies unchanged from the imported savepoint.

The import could not read them, so the store does not have their rows. Their handles and files are
still complete: Flink redistributes the state at the restore, as it would with that savepoint. This
works only with the same max parallelism, because another one requires the state of each key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from statestore.errors import (
    IncompatibleStateError,
    InvalidArgumentError,
    MissingFileError,
    ParallelismError,
    StateNotFoundError,
)
from statestore.format.left_out import LeftOutState
from statestore.interop.flink.importing.import_record import SavepointRecord
from statestore.interop.flink.metadata.handles import (
    EmptyHandle,
    FileHandle,
    OperatorHandle,
    OperatorHandles,
    RelativeHandle,
    SavepointMetadata,
    SegmentHandle,
    StreamHandle,
    Subtask,
)
from statestore.interop.flink.metadata.metadata_file import read_metadata
from statestore.interop.flink.options import SavepointAccess
from statestore.interop.flink.read.refusals import Refused, unread_parts
from statestore.interop.flink.read.savepoint_files import (
    METADATA,
    ByteSource,
    SavepointFiles,
    open_source,
    read_metadata_file,
)
from statestore.interop.flink.types.base import replace_parts
from statestore.interop.flink.write import SavepointWriter
from statestore.storage import open_storage

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
        places.refuse_others(operator)
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
