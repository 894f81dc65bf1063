"""Restore into a directory: a checkpoint's rows as files, one folder per subtask, without Spark.

::

    DIR/<uid>/<state>/subtask=00003/part-0.parquet

Uids and states are written as in the store. Every subtask has a file, even if it is empty, so
readers need no special case. The files are written to a temporary folder. They are moved to their
names when all are complete and :class:`RescaleProof` holds for every state: the written rows have
the digest in the manifest (I7). The manifest has no digest for a state with changes, or with a TTL
that hides rows. Such a state is read a second time, completely and with SHA-256 checks, and both
reads must give the same rows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from statestore.errors import DamagedFileError, InvalidArgumentError, StateStoreError
from statestore.format.digest import RescaleProof, RowSet
from statestore.format.left_out import LeftOutState, left_out_of
from statestore.format.manifest import Entry, KeyedEntry, OperatorEntry
from statestore.format.names import escape
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.listeners import Progress
from statestore.parquet.operator_elements import element_digests
from statestore.parquet.writer import ParquetOptions
from statestore.restore.plan import OperatorPlan
from statestore.restore.row_files import (
    EXPORT_FORMATS,
    Contents,
    elements_reader,
    publish_folder,
    write_rows,
)
from statestore.restore.target import select_operators

if TYPE_CHECKING:
    from statestore.restore.restored import RestoredCheckpoint

CLOCK: Callable[[], float] = time.monotonic
"""The clock of the time that a subtask takes, in seconds."""


@dataclass(frozen=True)
class ExportedState:
    """One written state, all subtasks together: union and broadcast state count once per subtask.

    The digests of ``proof`` cover the state's own columns.
    """

    operator: str
    state: str
    rows: int
    size_bytes: int
    files: int
    proof: RescaleProof


@dataclass(frozen=True)
class ExportedCheckpoint:
    """The result of an export; ``left_out`` is the state that the checkpoint itself lacks.

    ``seconds`` has the time to read and write the state of each subtask, by operator and subtask.
    """

    checkpoint_id: int
    parallelism: int
    directory: Path
    format: str
    states: tuple[ExportedState, ...]
    left_out: tuple[LeftOutState, ...] = ()
    seconds: Mapping[tuple[str, int], float] = field(default_factory=dict, repr=False)

    json_properties: ClassVar[tuple[str, ...]] = ("rows", "size_bytes", "files")

    @property
    def rows(self) -> int:
        """The rows of all states."""
        return sum(state.rows for state in self.states)

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(state.size_bytes for state in self.states)

    @property
    def files(self) -> int:
        """The number of all files."""
        return sum(state.files for state in self.states)


def export(
    restored: RestoredCheckpoint,
    directory: Path,
    *,
    form: str,
    uid: str | None,
    name: str | None,
    options: ParquetOptions,
    progress: Progress,
) -> ExportedCheckpoint:
    """Write the selected states to ``directory``, which must be empty or not exist.

    After an error, none of its files are left, and files of others are never deleted. Raises
    InvalidArgumentError if the directory is not empty or the format is unknown, StateNotFoundError,
    CorruptionError, or StorageError.
    """
    if form not in EXPORT_FORMATS:
        raise InvalidArgumentError(
            f"unknown format {form!r}; the formats are {' and '.join(EXPORT_FORMATS)}"
        )
    operators = select_operators(restored.plan, restored.manifest, uid, name)
    with publish_folder(directory) as folder:
        keyed = {
            (operator.operator, entry.state.name): _contents(restored, operator.operator, entry)
            for operator in operators
            for entry in _entries(restored, operator)
            if isinstance(entry, KeyedEntry)
        }
        total = _total(restored, operators, keyed)
        writing = _Export(restored, form, options, progress, keyed, total)
        states = tuple(
            writing.write(operator.operator, entry, folder)
            for operator in operators
            for entry in _entries(restored, operator)
        )
    return ExportedCheckpoint(
        restored.checkpoint_id,
        restored.parallelism,
        directory,
        form,
        states,
        left_out_of(restored.manifest.left_out, uid, name),
        dict(writing.seconds),
    )


class _Export:
    """An export in progress: the settings that all states share, and the progress."""

    def __init__(
        self,
        restored: RestoredCheckpoint,
        form: str,
        options: ParquetOptions,
        progress: Progress,
        keyed: Contents,
        total: int,
    ) -> None:
        self._restored, self._form, self._options = restored, form, options
        self._keyed = keyed
        self._progress, self._total, self._done = progress, total, 0
        self.seconds: defaultdict[tuple[str, int], float] = defaultdict(float)
        progress(0, total)

    def write(self, uid: str, entry: Entry, folder: Path) -> ExportedState:
        """Write a state for operator ``uid`` of the restoring job."""
        state = folder / escape(uid) / escape(entry.state.name)
        files = []
        began = CLOCK()
        for subtask, rows in enumerate(self._readers(uid, entry)):
            file = write_rows(
                state / f"subtask={subtask:05}",
                rows,
                form=self._form,
                options=self._options,
                advance=self._report_progress,
            )
            files.append(file)
            ended = CLOCK()
            self.seconds[uid, subtask] += ended - began
            began = ended
        rows = sum(file.rows for file in files)
        proof = RescaleProof(
            self._expected_rows(uid, entry),
            tuple(RowSet(file.rows, file.digest) for file in files),
            copies=isinstance(entry, OperatorEntry)
            and entry.state.mode is not RedistributionMode.SPLIT,
        )
        if not proof.holds:
            raise DamagedFileError(
                f"the files of {entry.state} contain other rows than the manifest says (I7); "
                "restore an older checkpoint"
            )
        return ExportedState(
            operator=uid,
            state=entry.state.name,
            rows=rows,
            size_bytes=sum(file.size_bytes for file in files),
            files=len(files),
            proof=proof,
        )

    def _expected_rows(self, uid: str, entry: Entry) -> RowSet:
        """Return the expected rows and digest: from the manifest, or from a second read.

        For operator state, the digest excludes the columns of the elements' old positions.
        """
        if isinstance(entry, KeyedEntry):
            return self._keyed[uid, entry.state.name]
        lists = self._restored.operator_state(uid, entry.state.name).per_old_subtask()
        bare, placed = element_digests(lists, entry.state.schema)
        if placed != entry.digest:
            raise DamagedFileError(
                f"the file of {entry.state} contains other elements than the manifest says "
                "(I7); restore an older checkpoint"
            )
        return RowSet(entry.rows, bare)

    def _readers(self, uid: str, entry: Entry) -> Iterator[pa.RecordBatchReader]:
        restored, name = self._restored, entry.state.name
        if isinstance(entry, KeyedEntry):
            keyed = restored.keyed(uid, name)
            yield from (keyed.to_batches(i) for i in range(restored.parallelism_of(uid)))
            return
        for elements in restored.operator_state(uid, name).subtasks():
            yield elements_reader(elements, entry.state.schema)

    def _report_progress(self, rows: int) -> None:
        self._done += rows
        self._progress(self._done, self._total)


def _contents(restored: RestoredCheckpoint, uid: str, entry: KeyedEntry) -> RowSet:
    try:
        return restored.keyed(uid, entry.state.name).contents(verify=True)
    except StateStoreError as error:
        error.add_note(f"while reading {entry.state}")
        raise


def _total(
    restored: RestoredCheckpoint, operators: tuple[OperatorPlan, ...], keyed: Contents
) -> int:
    """Return the number of rows and elements that all subtasks write together."""
    total = 0
    for operator in operators:
        for entry in _entries(restored, operator):
            if isinstance(entry, KeyedEntry):
                total += keyed[operator.operator, entry.state.name].rows
            else:
                total += restored.operator_state(operator.operator, entry.state.name).count()
    return total


def _entries(restored: RestoredCheckpoint, operator: OperatorPlan) -> tuple[Entry, ...]:
    """Return the states of an operator that are in its plan."""
    return tuple(
        entry
        for entry in restored.manifest.entries
        if entry.state.uid == operator.stored_operator and entry.state.name in operator.states
    )
