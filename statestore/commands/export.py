"""Restore into a directory: a checkpoint's rows as files, one folder per subtask, without Spark.

::

    DIR/<uid>/<state>/subtask=00003/part-0.parquet

Uids and states are written as in the store. Every subtask has its file, also an empty one, so that
a reader needs no special case. The files are written aside and moved to their names when all are
complete and :class:`RescaleProof` holds for every state: the rows written are those of which the
manifest states the digest (I7). Of a state with changes, or with a time to live that hides rows, it
states none: that is read once more, whole and against its SHA-256, and must have the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.commands.export_folder import appearing
from statestore.commands.plan import selected
from statestore.commands.restore import RestoredCheckpoint
from statestore.errors import (
    DamagedFileError,
    InvalidArgumentError,
    StateStoreError,
)
from statestore.files.elements import element_digests
from statestore.files.writer import ParquetOptions
from statestore.flink.redistribution import RedistributionMode
from statestore.format.digest import RescaleProof, RowSet
from statestore.format.manifest import Entry, KeyedEntry, OperatorEntry
from statestore.format.names import escape
from statestore.model.plan import OperatorPlan, redistribution_of
from statestore.table.export import EXPORT_FORMATS, elements_reader, write_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ExportedCheckpoint", "ExportedState", "Progress", "export"]

Progress = Callable[[int, int], None]
"""Hears how many rows are written, and of how many."""

Contents = Mapping[tuple[str, str], RowSet]


@dataclass(frozen=True)
class ExportedState:
    """One state as written, all subtasks together: union and broadcast count once per subtask.

    The digests of ``proof`` are of the state's own columns.
    """

    uid: str
    name: str
    rows: int
    size_bytes: int
    files: int
    proof: RescaleProof


@dataclass(frozen=True)
class ExportedCheckpoint:
    """What was written where."""

    checkpoint_id: int
    parallelism: int
    directory: Path
    form: str
    states: tuple[ExportedState, ...]


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
    """Write the selected states to ``directory``, which is empty or does not exist.

    Nothing of it is left there after an error, and what is somebody else's is never deleted. Raises
    InvalidArgumentError for a directory that is not empty or an unknown format, StateNotFoundError,
    CorruptionError, or StorageError.
    """
    if form not in EXPORT_FORMATS:
        raise InvalidArgumentError(f"no format {form!r}; there is {' and '.join(EXPORT_FORMATS)}")
    operators = selected(restored.plan, restored.manifest, uid, name)
    with appearing(directory) as folder:
        keyed = {
            (operator.uid, entry.state.name): _contents(restored, operator.uid, entry)
            for operator in operators
            for entry in _entries(restored, operator)
            if isinstance(entry, KeyedEntry)
        }
        total = _total(restored, operators, keyed)
        writing = _Export(restored, form, options, progress, keyed, total)
        states = tuple(
            writing.write(operator.uid, entry, folder)
            for operator in operators
            for entry in _entries(restored, operator)
        )
    return ExportedCheckpoint(restored.checkpoint_id, restored.parallelism, directory, form, states)


class _Export:
    """One export under way: what is the same for every state, and how far it is."""

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
        progress(0, total)

    def write(self, uid: str, entry: Entry, folder: Path) -> ExportedState:
        """Write a state, as that of operator ``uid`` of the job that restores it."""
        state = folder / escape(uid) / escape(entry.state.name)
        files = [
            write_rows(
                state / f"subtask={subtask:05}",
                rows,
                form=self._form,
                options=self._options,
                advance=self._advance,
            )
            for subtask, rows in enumerate(self._readers(uid, entry))
        ]
        rows = sum(file.rows for file in files)
        proof = RescaleProof(
            self._stored(uid, entry),
            tuple(RowSet(file.rows, file.digest) for file in files),
            copies=isinstance(entry, OperatorEntry)
            and entry.state.mode is not RedistributionMode.SPLIT,
        )
        if not proof.holds:
            raise DamagedFileError(
                f"the files of {entry.state} hold other rows than its manifest says (I7); restore "
                "an older checkpoint"
            )
        return ExportedState(
            uid=uid,
            name=entry.state.name,
            rows=rows,
            size_bytes=sum(file.size_bytes for file in files),
            files=len(files),
            proof=proof,
        )

    def _stored(self, uid: str, entry: Entry) -> RowSet:
        """Return what the manifest states, or was read; of elements, without the columns of their
        old place.
        """
        if isinstance(entry, KeyedEntry):
            return self._keyed[uid, entry.state.name]
        lists = self._restored.operator(uid, entry.state.name).per_old_subtask()
        bare, placed = element_digests(lists, entry.state.schema)
        if placed != entry.digest:
            raise DamagedFileError(
                f"the file of {entry.state} holds other elements than its manifest says (I7); "
                "restore an older checkpoint"
            )
        return RowSet(entry.rows, bare)

    def _readers(self, uid: str, entry: Entry) -> Iterator[pa.RecordBatchReader]:
        restored, name = self._restored, entry.state.name
        parallelism = restored.parallelism_of(uid)
        if isinstance(entry, KeyedEntry):
            keyed = restored.keyed(uid, name)
            yield from (keyed.subtask(i) for i in range(parallelism))
            return
        # The file is small and is read once, not once per subtask.
        lists = restored.operator(uid, name).per_old_subtask()
        dealt = redistribution_of(restored.manifest, entry.state.uid, parallelism)
        for subtask in range(parallelism):
            runs = dealt.runs(subtask)[name]
            elements = [e for run in runs for e in lists[run.subtask][run.first : run.stop]]
            yield elements_reader(elements, entry.state.schema)

    def _advance(self, rows: int) -> None:
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
    """Return how many rows and elements are written, by all subtasks together."""
    total = 0
    for operator in operators:
        parallelism = len(operator.subtasks)
        for entry in _entries(restored, operator):
            if isinstance(entry, KeyedEntry):
                total += keyed[operator.uid, entry.state.name].rows
                continue
            dealt = redistribution_of(restored.manifest, operator.stored_uid, parallelism)
            for subtask in range(parallelism):
                runs = dealt.runs(subtask)[entry.state.name]
                total += sum(run.stop - run.first for run in runs)
    return total


def _entries(restored: RestoredCheckpoint, operator: OperatorPlan) -> tuple[Entry, ...]:
    """Return the states of an operator that its plan names."""
    return tuple(
        entry
        for entry in restored.manifest.entries
        if entry.state.uid == operator.stored_uid and entry.state.name in operator.states
    )
