"""Search a store for a subject, to prove that it is gone.

Every existing file is decoded, whoever left it:

* Rows of data files, whether or not a manifest names them, by every key that the state ever had.
* Statistics, partition values and text in entries and checkpoints of Delta logs; see
  ``erase_search_values.py``.
* Text in manifests (origins, left-out state, batches), savepoints and pins. By the format, all
  other members of documents are names, files and numbers. Each document is parsed anyway.

A file that cannot be decoded is reported, and the subject does not count as gone. This includes
files of crashed writers, and files that do not belong to the store. A symbolic link is refused or
followed, depending on the storage.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from statestore.catalog.catalog import Catalog
from statestore.display import counted
from statestore.errors import (
    CheckpointNotFoundError,
    FormatVersionError,
    MalformedManifestError,
    StateStoreError,
)
from statestore.format.handles import Handle, list_of, read_all
from statestore.format.manifest import Entry, KeyedEntry, Manifest
from statestore.format.names import (
    CHECKPOINTS,
    OPERATORS,
    STORE_FILE,
    checkpoint_id_of,
    folder_of,
    generation_of,
    is_data_file,
    is_file_list,
    is_pin,
    is_savepoint,
)
from statestore.format.schema import Schema
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance.erase_files import FileRows, count_selected
from statestore.maintenance.erase_search_values import IsClean, ValueSearch, json_lines
from statestore.maintenance.erase_subject import (
    OperatorKey,
    OtherState,
    Selection,
    Subject,
    refuse_unknown,
    selections_in_folders,
    subject_of,
)
from statestore.maintenance.store_context import HasContext
from statestore.storage import Listed, Storage

DELTA_LOG = "/_delta_log/"
_HADOOP_CHECKSUM = b"crc\0"

DATA_FILES, LOG_FILES, DOCUMENTS = "data_files", "log_files", "documents"
NO_VALUES, OTHER_STATES = "no_values", "other_states"
"""The sorts of files that a search counts: checksums and empty files hold no values, and data files
of other states no rows of the subject."""


@dataclass(frozen=True)
class SubjectTrace:
    """A file that shows the subject, and where; ``rows`` is set for a data file."""

    file: str
    what: str
    rows: int | None

    @property
    def advice(self) -> str:
        """The command that removes the trace."""
        if is_savepoint(self.file) or is_pin(self.file):
            return (
                "its text contains the key: delete the savepoint or pin, and create it with "
                "another text"
            )
        return "collect garbage after the removal: 'statestore gc' deletes old files"


@dataclass(frozen=True)
class UnsearchedFile:
    """A file or folder that could not be searched, and the reason."""

    file: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class KeySearch:
    """The result of a search: the findings, the number of searched files, and the unsearched files.

    The subject is a key of ``operator``, or values of ``columns``; the other one is None or empty.
    ``searched`` has the number of files by category. ``others`` are states that have a column of
    the subject but are not changed, because it does not identify their rows. File names are
    relative to the store.
    """

    store: str
    operator: str | None
    columns: tuple[str, ...]
    files: int
    size_bytes: int
    searched: Mapping[str, int]
    found: tuple[SubjectTrace, ...]
    unsearched: tuple[UnsearchedFile, ...]
    others: tuple[OtherState, ...] = ()

    json_properties: ClassVar[tuple[str, ...]] = ("is_gone",)

    @property
    def is_gone(self) -> bool:
        """Whether all files were searched and nothing was found."""
        return not self.found and not self.unsearched

    @property
    def problem(self) -> StateStoreError | None:
        """The error that explains why the subject does not count as gone, or None."""
        if self.found:
            return StateStoreError(
                f"the key is still in {counted(len(self.found), 'file')} of {self.store}, first in "
                f"{self.found[0].file}; {self.found[0].advice}"
            )
        if self.unsearched:
            first = self.unsearched[0]
            return StateStoreError(
                f"the key was not found, but {counted(len(self.unsearched), 'file')} of "
                f"{self.store} could not be searched, first {first.file}: {first.reason}. Remove "
                "the file, or search it in another way"
            )
        return None


def readable_manifests(
    catalog: Catalog, known: Mapping[int, Manifest] | None = None
) -> tuple[Manifest, ...]:
    """Return every readable manifest, including expired checkpoints, oldest first.

    Manifests in ``known`` are not read again. The manifest of an expired checkpoint may name file
    lists that a collection has already deleted.
    """
    known = known or {}
    identities = filter(None, map(checkpoint_id_of, catalog.storage.list(CHECKPOINTS)))
    numbers = sorted(number for number, is_tombstone in identities if not is_tombstone)
    manifests = (known.get(number) or _load_if_readable(catalog, number) for number in numbers)
    return tuple(manifest for manifest in manifests if manifest is not None)


def _load_if_readable(catalog: Catalog, number: int) -> Manifest | None:
    """Return a manifest, also if file lists of an expired checkpoint were collected before it."""
    try:
        manifest = catalog.load_header(number)
        read_all(part.handles for part in manifest.parts)
    except (CheckpointNotFoundError, FormatVersionError):
        return None  # a search reports the document as unsearched
    except MalformedManifestError:
        return _load_without_lists(catalog, number) if catalog.is_expired(number) else None
    return manifest


def _load_without_lists(catalog: Catalog, number: int) -> Manifest | None:
    try:
        manifest = catalog.load_header(number)
        left = [p for p in manifest.parts if not _is_list_deleted(catalog.storage, p)]
        read_all(part.handles for part in left)
    except (CheckpointNotFoundError, MalformedManifestError):
        return None
    return manifest


def _is_list_deleted(storage: Storage, part: Entry) -> bool:
    """Return whether the files are in a separate list that no longer exists.

    A collection deletes the file lists of an expired checkpoint before its manifest. The data files
    that are left are searched by their folders.
    """
    name = list_of(part.handles)
    if name is None:
        return False
    try:
        storage.size(name)
    except FileNotFoundError:
        return True
    return False


def find_subject(
    store: HasContext,
    subject: Mapping[str, Any] | OperatorKey,
    *,
    on_progress: Progress | None = None,
) -> KeySearch:
    """Search all files of the store for a subject, whether or not a checkpoint names them.

    Every file is decoded: rows of data files, statistics and partition values of Delta logs,
    and text of documents. A file that cannot be decoded is reported, and then the subject does
    not count as gone.

    Args:
        subject: as in :meth:`forget`.
        on_progress: called with the number of searched bytes and the total.

    Returns:
        The searched files and the findings.

    Raises:
        StateNotFoundError: if no state has these columns, or if the state does not exist.
        InvalidArgumentError: for a key that does not fit.
        StorageError: if the store cannot be read.
    """
    catalog, progress = store.parts.catalog(), on_progress or ignore_progress
    manifests = readable_manifests(catalog)
    wanted = subject_of(subject)(manifests)
    refuse_unknown(catalog, wanted, manifests)
    search = _Search(catalog.storage, wanted, manifests)
    listing = [item for item in catalog.storage.listed("") if not item.name.endswith("/")]
    total, done = sum(item.size_bytes for item in listing), 0
    for item in sorted(listing, key=lambda item: (not is_data_file(item.name), item.name)):
        progress(done, total)
        search.add(item)
        done += item.size_bytes
    progress(total, total)
    return KeySearch(
        store=catalog.storage.url,
        operator=wanted.operator,
        columns=wanted.columns,
        files=len(listing),
        size_bytes=total,
        searched=dict(search.searched),
        found=tuple(search.traces),
        unsearched=tuple(search.unsearched),
        others=wanted.others,
    )


def selections_for_file(
    subject: Subject, folder: str, selections: tuple[Selection, ...] | None
) -> Callable[[Schema], tuple[Selection, ...] | None]:
    """Return a function that returns the subject's selections for the columns of a file.

    ``selections`` apply to the state that has the file; None if no manifest names it.
    """
    if selections is None:
        return lambda schema: subject.selections_of_file(folder, schema)
    return lambda schema: selections


class LogReader:
    """Reads the files of Delta logs, and checks whether they show a subject."""

    def __init__(self, storage: Storage, subject: Subject, manifests: Sequence[Manifest]) -> None:
        """Prepare for all tables of a store."""
        self._storage = storage
        folders = selections_in_folders(subject, manifests)
        every = [selection for selections in folders.values() for selection in selections]
        self._subject = subject
        self._by_folder = {folder: ValueSearch(known) for folder, known in folders.items()}
        self._unknown = ValueSearch(every)
        self._known = {part.table.path for manifest in manifests for part in manifest.parts}

    def search_of(self, folder: str) -> ValueSearch | None:
        """Return the search for the log of a table; None if the table cannot have the subject."""
        if folder in self._by_folder:
            return self._by_folder[folder]
        if folder in self._known or not self._subject.owns_folder(folder):
            return None
        return self._unknown

    def shows(self, name: str, is_clean: IsClean) -> bool:
        """Return whether a file of a log shows the subject.

        Raises FileNotFoundError, StorageError, or ValueError or ArrowException for a file that
        cannot be decoded.
        """
        search = self.search_of(name.partition(DELTA_LOG)[0])
        return search is not None and search.in_log(self._values(name), is_clean)

    def shows_if_whole(self, name: str, is_clean: IsClean) -> bool:
        """Return the result of :meth:`shows`, or False for a file that is undecodable or gone."""
        try:
            return self.shows(name, is_clean)
        except (FileNotFoundError, pa.ArrowException, LookupError, ValueError):
            return False  # the search reports the file

    def _values(self, name: str) -> Iterator[Any]:
        raw = self._storage.read(name)
        if not name.endswith(".parquet"):
            yield from json_lines(raw)
            return
        try:
            with pq.ParquetFile(pa.BufferReader(raw)) as file:
                for batch in file.iter_batches(use_threads=False):
                    yield from batch.to_pylist()
        except OSError as error:  # Arrow's error for damaged metadata; nothing is read here
            raise ValueError(str(error)) from error


@dataclass
class _Search:
    """Searches one file after another; data files come first."""

    storage: Storage
    subject: Subject
    manifests: Sequence[Manifest]
    searched: Counter[str] = field(default_factory=Counter)
    traces: list[SubjectTrace] = field(default_factory=list)
    unsearched: list[UnsearchedFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._named: dict[str, tuple[Handle, tuple[Selection, ...] | None]] = {}
        for manifest in self.manifests:
            for entry in manifest.entries:
                self._record_selections(manifest, entry)
        self._logs = LogReader(self.storage, self.subject, self.manifests)
        folders = selections_in_folders(self.subject, self.manifests)
        self._text = ValueSearch(
            [selection for known in folders.values() for selection in known],
            _names_in(self.manifests),
        )
        self._clean: set[str] = set()
        self._numbers = {manifest.checkpoint_id for manifest in self.manifests}

    def _record_selections(self, manifest: Manifest, entry: Entry) -> None:
        """Record the subject's selections for the files of a state; () if there can be no rows."""
        selections: tuple[Selection, ...] = ()
        if isinstance(entry, KeyedEntry):
            selections = self.subject.selections(manifest, entry.state)
        for part in entry.parts:
            try:
                handles: tuple[Handle, ...] = tuple(part.handles)
            except MalformedManifestError:
                continue  # the list was deleted; the files that are left belong to no checkpoint
            for handle in handles:
                self._named[part.table.name_of(handle)] = handle, selections

    def add(self, item: Listed) -> None:
        """Search a file."""
        name = item.name
        try:
            if name.startswith(f"{OPERATORS}/") and DELTA_LOG in name:
                self._add_log(item)
            elif is_data_file(name) and not is_file_list(name):
                self._add_rows(name)
            elif item.size_bytes == 0:
                self.searched[NO_VALUES] += 1
            elif _is_document(name):
                self._add_document(name)
            elif self._is_checksum(name):
                self.searched[NO_VALUES] += 1
            else:
                self._skip(name, "it does not belong to the store, or its writer was interrupted")
        except FileNotFoundError:
            return  # collected after the listing

    def _skip(self, name: str, reason: str) -> None:
        self.unsearched.append(UnsearchedFile(name, reason))

    def _add_rows(self, name: str) -> None:
        folder = folder_of(name)
        handle, selections = self._named.get(name, (None, None))
        if selections == () or (selections is None and not self.subject.owns_folder(folder)):
            self.searched[OTHER_STATES] += 1
            self._clean.add(name)
            return
        file_rows: FileRows = count_selected(
            self.storage, name, handle, selections_for_file(self.subject, folder, selections)
        )
        if file_rows.rows is None:
            self._skip(name, file_rows.reason)
            return
        self.searched[DATA_FILES] += 1
        if file_rows.rows:
            self.traces.append(SubjectTrace(name, "rows of the key", file_rows.rows))
        else:
            self._clean.add(name)

    def _add_log(self, item: Listed) -> None:
        name = item.name
        folder = name.partition(DELTA_LOG)[0]
        if item.size_bytes == 0 or self._is_checksum(name):
            self.searched[NO_VALUES] += 1
            return
        try:
            shows = self._logs.shows(name, lambda path: f"{folder}/{path}" in self._clean)
        except (pa.ArrowException, LookupError, ValueError) as error:
            self._skip(name, f"it cannot be decoded: {error}")
            return
        self.searched[LOG_FILES] += 1
        if shows:
            self.traces.append(SubjectTrace(name, "statistics of a Delta log", None))

    def _add_document(self, name: str) -> None:
        try:
            document = json.loads(self.storage.read(name))
        except ValueError as error:
            self._skip(name, f"it is not JSON: {error}")
            return
        identity = checkpoint_id_of(name)
        if identity is not None and not identity[1] and identity[0] not in self._numbers:
            self._skip(name, "it is not a readable manifest")
            return
        self.searched[DOCUMENTS] += 1
        if self._text.in_text(_free_text(name, document), exclude=_COMMAND_WORDS):
            self.traces.append(SubjectTrace(name, "text of a document", None))

    def _is_checksum(self, name: str) -> bool:
        """Return whether a file is one of Hadoop's checksums, which hold no values."""
        base = name.rpartition("/")[2]
        return (
            base.startswith(".")
            and base.endswith(".crc")
            and self.storage.read_range(name, 0, len(_HADOOP_CHECKSUM)) == _HADOOP_CHECKSUM
        )


_COMMAND_WORDS = ("command", "by", "hash_scheme", "writer")
"""Members of origins that have words of the store's own."""


def _is_document(name: str) -> bool:
    return (
        name == STORE_FILE
        or checkpoint_id_of(name) is not None
        or generation_of(name) is not None
        or is_savepoint(name)
        or is_pin(name)
        or is_file_list(name)
    )


def _free_text(name: str, document: Any) -> Any:
    """Return the members of a document that contain users' text; see docs/FORMAT.md."""
    members: tuple[str, ...] = ()
    if checkpoint_id_of(name) is not None:
        members = ("origin", "left_out", "batches")
    elif is_savepoint(name):
        members = ("name",)
    elif is_pin(name):
        members = ("holder", "token")
    return {member: document[member] for member in members if member in document}


def _names_in(manifests: Sequence[Manifest]) -> frozenset[str]:
    """Return the names of operators, states, columns and jobs, which are not values."""
    names: set[str] = set()
    for manifest in manifests:
        names |= set(manifest.batches or ())
        for entry in manifest.entries:
            names |= {entry.state.uid, entry.state.name, *entry.state.schema.names}
    return frozenset(names)
