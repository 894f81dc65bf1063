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

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any

import pyarrow as pa

from statestore.catalog.catalog import refuse_inside_store
from statestore.errors import DamagedFileError, InvalidArgumentError, StateStoreError, StorageError
from statestore.format.digest import RescaleProof, RowSet
from statestore.format.left_out import LeftOutState, left_out_of
from statestore.format.manifest import Entry, KeyedEntry, OperatorEntry
from statestore.format.names import KEY_GROUP, escape
from statestore.format.schema import Schema
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.parquet.operator_elements import element_digests
from statestore.parquet.writer import FileWriter, ParquetOptions
from statestore.restore.plan import OperatorPlan
from statestore.restore.restored import RestoredCheckpoint
from statestore.restore.target import selected
from statestore.rows.column_types import arrow_schema
from statestore.rows.digests import rows_digest
from statestore.rows.python_values import shown
from statestore.storage import LocalStorage
from statestore.storage.base import named

__all__ = [
    "EXPORT_FORMATS",
    "ExportedCheckpoint",
    "ExportedFile",
    "ExportedState",
    "Progress",
    "appearing",
    "elements_reader",
    "export",
    "json_value",
    "write_rows",
]


# The output folder of a restore: its contents appear when they are complete, and files of others
# stay.
#
# ::
#
#     DIR/.incomplete/<uid>/…         during the restore
#     DIR/.incomplete/.statestore     the list of files to move: name, length and time
#
# A killed run leaves ``.incomplete``, and perhaps folders that it had already moved. The next run
# deletes the files in that list. If the folder, or ``.incomplete``, contains any other file, the
# next run refuses it without deleting anything.


INCOMPLETE = ".incomplete"
_IS_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
_LIST, _LIST_BEGUN = ".statestore", ".statestore.new"

Files = dict[str, list[int]]  # by name relative to the folder: length, and time in nanoseconds


@contextmanager
def appearing(directory: Path) -> Iterator[Path]:
    """Yield a folder inside ``directory`` whose contents are moved up at the end of the block.

    While the folder exists, the contents of the directory are incomplete. After an error, nothing
    of the block is left. Leftovers of a killed run are deleted first (I10). Raises
    InvalidArgumentError if the directory contains other files, is written by another process, or is
    inside a store; and StorageError.
    """
    folder = directory / INCOMPLETE
    refuse_inside_store(LocalStorage(str(directory)), "what is exported")
    with named("write", str(directory)), ExitStack() as held:
        directory.mkdir(parents=True, exist_ok=True)
        _lock(directory, held)
        _refuse_strangers(directory)
        _clear(directory)
        folder.mkdir()
        try:
            _note(folder, {})
            yield folder
            _move_up(directory)
        except BaseException:
            with suppress(OSError):
                _clear(directory)
            raise
        _clear_inside(folder)


def _move_up(directory: Path) -> None:
    """Write the list of the files to move, then move them."""
    folder = directory / INCOMPLETE
    _note(folder, {path.relative_to(folder).as_posix(): _facts(path) for path in _files(folder)})
    for path in sorted(folder.iterdir()):
        if path.name in (_LIST, _LIST_BEGUN):
            continue
        try:
            path.rename(directory / path.name)
        except OSError as error:
            if error.errno not in _IS_TAKEN:
                raise
            raise StorageError(
                f"cannot write {directory / path.name}: another process created it during "
                "this export, and it was not changed; choose a new or an empty directory"
            ) from error


def _refuse_strangers(directory: Path) -> None:
    """Refuse a directory that contains anything but leftovers of a killed run."""
    own = _noted(directory / INCOMPLETE)
    if own is None:
        others: Iterable[Path] = directory.iterdir()
    else:
        folders = _folders(own)
        others = (
            path
            for path in _below(directory)
            if (name := path.relative_to(directory)).parts[0] != INCOMPLETE
            and (name not in folders if _is_folder(path) else own.get(str(name)) != _facts(path))
        )
    stranger = next(iter(others), None)
    if stranger is not None:
        raise InvalidArgumentError(
            f"{directory} is not empty: it contains {stranger.relative_to(directory)}, which "
            "is not from an interrupted restore; choose a new or an empty directory"
        )


def _clear(directory: Path) -> None:
    """Delete the files in the list of the run that wrote it, and the list last."""
    folder = directory / INCOMPLETE
    own = _noted(folder)
    if own is None:
        return
    folders = _folders(own)
    for path in _below(directory):
        name = path.relative_to(directory)
        if name.parts[0] == INCOMPLETE:
            continue
        if not _is_folder(path):
            if own.get(str(name)) == _facts(path):
                path.unlink()
        elif name in folders:
            with suppress(OSError):  # another process has put something there
                path.rmdir()
    _clear_inside(folder)


def _clear_inside(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in (_LIST, _LIST_BEGUN):
            shutil.rmtree(path) if _is_folder(path) else path.unlink()
    for name in (_LIST_BEGUN, _LIST):
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _noted(folder: Path) -> Files | None:
    """Return the list of files; None for a folder that no restore created."""
    try:
        noted: Any = json.loads((folder / _LIST).read_text())
    except FileNotFoundError:
        begun = folder.is_dir() and {path.name for path in folder.iterdir()} <= {_LIST_BEGUN}
        return {} if begun else None
    except ValueError:  # not a restore's file, or lost in a power failure
        return None
    return noted if isinstance(noted, dict) else None


def _note(folder: Path, files: Files) -> None:
    (folder / _LIST_BEGUN).write_text(json.dumps(files))
    (folder / _LIST_BEGUN).replace(folder / _LIST)


def _below(directory: Path) -> Iterator[Path]:
    """Yield all paths below a directory, without following links; contents before folders."""
    for parent, folders, names in os.walk(directory, topdown=False):
        yield from (Path(parent, name) for name in sorted((*names, *folders)))


def _files(folder: Path) -> Iterator[Path]:
    own = (_LIST, _LIST_BEGUN)
    return (path for path in _below(folder) if path.is_file() and path.name not in own)


def _folders(files: Files) -> set[Path]:
    return {parent for name in files for parent in Path(name).parents}


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _facts(path: Path) -> list[int]:
    status = path.lstat()
    return [status.st_size, status.st_mtime_ns]


def _lock(directory: Path, held: ExitStack) -> None:
    """Lock the directory against other runs; the system unlocks it when this process ends."""
    descriptor = os.open(directory, os.O_RDONLY)
    held.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidArgumentError(
            f"another process is writing to {directory}; choose another directory"
        ) from None


# Restored rows as files for any reader: Parquet or JSON lines.
#
# The files are used outside of the store: they have no handles, and only Parquet and JSON define
# their format. :func:`json_value` converts values for which JSON has no type.


EXPORT_FORMATS = ("parquet", "jsonl")


@dataclass(frozen=True)
class ExportedFile:
    """A written file; ``digest`` covers the stored columns, without ``key_group``."""

    rows: int
    size_bytes: int
    digest: int


def write_rows(
    folder: Path,
    rows: pa.RecordBatchReader,
    *,
    form: str,
    options: ParquetOptions,
    advance: Callable[[int], None],
) -> ExportedFile:
    """Write rows as ``folder/part-0.<form>``, even for no rows at all; one row group is in memory.

    ``advance`` is called with the number of rows of every batch. Raises the errors of reading the
    rows, and StorageError if the file cannot be written.
    """
    path = folder / f"part-0.{form}"
    write = _write_parquet if form == "parquet" else _write_json_lines
    counted = _Counted(rows, advance)
    with _naming(path):
        folder.mkdir(parents=True, exist_ok=True)
    write(path, counted, rows.schema, options)
    return ExportedFile(counted.rows, path.stat().st_size, counted.digest)


def elements_reader(elements: Sequence[dict[str, Any]], schema: Schema) -> pa.RecordBatchReader:
    """Return elements of operator state as a stream of Arrow batches."""
    table = pa.Table.from_pylist(list(elements), arrow_schema(schema))
    return table.to_reader()


def json_value(value: Any) -> Any:
    """Return a column's value as JSON represents it, without loss.

    Decimals and times become strings (ISO 8601), bytes become hex digits, a map becomes a list of
    ``[key, value]``. The floats that JSON lacks become ``"NaN"``, ``"Infinity"`` and
    ``"-Infinity"``.
    """
    match value:
        case float() if not isfinite(value):
            return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case dict():
            return {name: json_value(item) for name, item in value.items()}
        case list() | tuple():
            return [json_value(item) for item in value]
    return value


class _Counted:
    """Iterates over batches that are written to a file, counting and digesting them."""

    def __init__(self, rows: pa.RecordBatchReader, advance: Callable[[int], None]) -> None:
        self._source, self._advance = rows, advance
        self.rows = self.digest = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._source:
            stored = [name for name in batch.schema.names if name != KEY_GROUP]
            self.digest = (self.digest + rows_digest(batch.select(stored))) % 2**64
            self.rows += batch.num_rows
            yield batch
            self._advance(batch.num_rows)


def _write_parquet(
    path: Path, batches: _Counted, schema: pa.Schema, options: ParquetOptions
) -> None:
    writer = FileWriter(LocalStorage(str(path.parent)), path.name, schema, options)
    try:
        for batch in batches:
            with _naming(path):
                writer.write(batch)
        with _naming(path):
            writer.close()
    except BaseException:
        # Close the writer if possible: Arrow prints a warning on stderr about an open writer.
        with suppress(StorageError, pa.ArrowException):
            writer.close()
        writer.abandon()
        raise


def _write_json_lines(
    path: Path, batches: _Counted, schema: pa.Schema, options: ParquetOptions
) -> None:
    with _naming(path):
        file = path.open("x", encoding="utf-8", newline="\n")
    with file:
        for batch in batches:
            lines = [json.dumps(json_value(row), ensure_ascii=False) + "\n" for row in shown(batch)]
            with _naming(path):
                file.writelines(lines)
        with _naming(path):
            file.flush()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


Progress = Callable[[int, int], None]
"""Called with the number of rows written so far, and the total."""

Contents = Mapping[tuple[str, str], RowSet]


@dataclass(frozen=True)
class ExportedState:
    """One written state, all subtasks together: union and broadcast state count once per subtask.

    The digests of ``proof`` cover the state's own columns.
    """

    uid: str
    name: str
    rows: int
    size_bytes: int
    files: int
    proof: RescaleProof


@dataclass(frozen=True)
class ExportedCheckpoint:
    """The result of an export; ``left_out`` is the state that the checkpoint itself lacks."""

    checkpoint_id: int
    parallelism: int
    directory: Path
    form: str
    states: tuple[ExportedState, ...]
    left_out: tuple[LeftOutState, ...] = ()


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
    return ExportedCheckpoint(
        restored.checkpoint_id,
        restored.parallelism,
        directory,
        form,
        states,
        left_out_of(restored.manifest.left_out, uid, name),
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
        progress(0, total)

    def write(self, uid: str, entry: Entry, folder: Path) -> ExportedState:
        """Write a state for operator ``uid`` of the restoring job."""
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
                f"the files of {entry.state} contain other rows than the manifest says (I7); "
                "restore an older checkpoint"
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
    """Return the number of rows and elements that all subtasks write together."""
    total = 0
    for operator in operators:
        for entry in _entries(restored, operator):
            if isinstance(entry, KeyedEntry):
                total += keyed[operator.uid, entry.state.name].rows
            else:
                total += restored.operator_state(operator.uid, entry.state.name).count()
    return total


def _entries(restored: RestoredCheckpoint, operator: OperatorPlan) -> tuple[Entry, ...]:
    """Return the states of an operator that are in its plan."""
    return tuple(
        entry
        for entry in restored.manifest.entries
        if entry.state.uid == operator.stored_uid and entry.state.name in operator.states
    )
