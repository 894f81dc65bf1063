"""Verify that checkpoints are unchanged since they were written, and report every deviation.

``statestore.json``, the newest writer's claim and the manifest are checked first, each by its own
SHA-256. Then every file that the manifest names is checked, several in parallel, as the table below
describes. The run continues after a broken file, so that one run finds all of them. A file that
several checkpoints name, as with changes, is checked once, and reported for each of them. Files in
the tables of the checkpoint's states that no manifest names are *strays*: a crashed writer left
them, or an active writer has not committed them yet. Strays are listed, but are not damage.

A shallow check costs two small reads per file, and reads no data. A deep check reads all bytes once
and decodes all rows. The search for strays lists the tables, and may read every manifest of the
store.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.catalog.catalog import Catalog
from statestore.display import NotebookBar, bars, counted, figure, size, table, text
from statestore.errors import (
    CorruptionError,
    FormatVersionError,
    MalformedManifestError,
    MissingFileError,
    StoreNotFoundError,
)
from statestore.format.claim_documents import claim_from_json
from statestore.format.digest import digest_text
from statestore.format.handles import GroupIndex, Handle, KeyedStateHandle
from statestore.format.layers import MARK
from statestore.format.left_out import LeftOutState
from statestore.format.listed import list_of
from statestore.format.manifest import Entry, KeyedEntry, Manifest, OperatorEntry
from statestore.format.manifest_json import manifest_from_json
from statestore.format.names import (
    CHECKPOINTS,
    KEY_GROUP,
    STORE_FILE,
    WRITERS,
    changes_table,
    checkpoint_id_of,
    folder_of,
    generation_of,
    manifest_path,
    writer_path,
)
from statestore.format.state import KeyedState, Layout, StateKind
from statestore.keys.groups import KeyGroupRange
from statestore.parquet.keyed_writer import file_schema
from statestore.parquet.operator_elements import misplaced, stored_schema
from statestore.parquet.reader import DataFile, open_data
from statestore.rows.dataframes import as_pandas, as_polars, table_of
from statestore.rows.delete_markers import are_changes, count_invalid_marks, upserts_of
from statestore.rows.digests import row_hashes, rows_digest
from statestore.rows.key_group_runs import RowOrder, key_groups_of, null_keys
from statestore.storage import Storage

__all__ = [
    "ALL",
    "BrokenFile",
    "FileCheck",
    "Flaws",
    "VerifyReport",
    "check_file",
    "verify",
]


# Checks a data file against its manifest, and describes the deviations.
#
# ===========  ==============================================  ====================================
# level        reads                                           finds
# ===========  ==============================================  ====================================
# shallow      the file's length, and its footer, every byte   missing, cut short, replaced by
#                                                                another file, another footer
# deep         every byte, and every row of every column       also any other byte, rows of another
#                                                                key group, out of order, twice, or
#                                                                without a key, another digest
# ===========  ==============================================  ====================================
#
# One row group is in memory at a time. A file of up to 32 MiB is read once, as a whole; a larger
# one is read twice.


@dataclass(frozen=True)
class FileCheck:
    """One file to check; ``first_row`` is the number of its state's elements in earlier files."""

    storage: Storage
    entry: Entry
    handle: Handle
    first_row: int
    deep: bool

    @property
    def subject(self) -> Hashable:
        """The identity of the check: two checks with the same subject have the same result."""
        elements = (
            (self.entry.counts, self.first_row) if isinstance(self.entry, OperatorEntry) else ()
        )
        return self.entry.table.path, self.handle, elements


@dataclass(frozen=True)
class Flaws:
    """The deviations of a file: the kind of error that a restore would raise, and the reasons."""

    kind: str
    what: tuple[str, ...]


def check_file(check: FileCheck) -> Flaws | None:
    """Return the deviations of a file, or None if it matches the manifest.

    Raises StorageError if the file could not be read, which proves nothing about its content.
    """
    folder, handle = check.entry.table.path, check.handle
    try:
        with open_data(check.storage, folder, handle, verify=check.deep) as file:
            reasons = tuple(_flaws(file, check))
    except CorruptionError as error:
        where = f"{check.storage.url}/{folder}/{handle.path} "
        what = str(error).removeprefix(where).partition("; restore an older")[0]
        return Flaws(error.kind, (what,))
    return Flaws("damaged-file", reasons) if reasons else None


def _flaws(file: DataFile, check: FileCheck) -> Iterator[str]:
    entry = check.entry
    schema = (
        file_schema(entry.state)
        if isinstance(entry, KeyedEntry)
        else stored_schema(entry.state.schema)
    )
    names = file.parquet.schema_arrow.names
    if names != schema.names:
        columns = ", ".join(names)
        yield f"has the columns ({columns}), but the manifest says ({', '.join(schema.names)})"
    elif check.deep:
        yield from _row_flaws(file, schema, check)


def _row_flaws(file: DataFile, schema: pa.Schema, check: FileCheck) -> Iterator[str]:
    entry, handle = check.entry, check.handle
    rows: _KeyedRows | _ElementRows
    if isinstance(entry, KeyedEntry):
        assert isinstance(handle, KeyedStateHandle)
        rows = _KeyedRows(entry.state, handle)
    else:
        rows = _ElementRows(entry.counts, check.first_row)
    digest = 0
    for batch in file.batches(range(handle.row_groups), schema):
        digest = (digest + rows.see(batch)) % 2**64
    yield from rows.flaws()
    if digest != handle.digest:
        yield (
            f"its rows have the digest {digest_text(digest)}, but the manifest says "
            f"{digest_text(handle.digest)}"
        )


class _KeyedRows:
    """Checks the rows of one file of keyed state.

    They must belong to its key groups, in order, without duplicates or null keys (I1, I7).
    """

    def __init__(self, state: KeyedState, handle: KeyedStateHandle) -> None:
        self._state, self._handle = state, handle
        placed = (KEY_GROUP,) if state.layout is Layout.RANGED else ()
        self._order = RowOrder((*placed, *state.identity))
        self._elsewhere = self._null_keys = self._null_entries = self._unmarked = 0
        self._counts = np.zeros(len(handle.key_groups), np.int64)
        self._digests = np.zeros(len(handle.key_groups), np.uint64)

    def see(self, batch: pa.RecordBatch) -> int:
        """Check rows; return their digest, without the columns that the store has added."""
        hashes = row_hashes(batch.select(self._state.schema.names))
        self._check_rows(batch, hashes)
        return int(hashes.sum(dtype=np.uint64))

    def _check_rows(self, batch: pa.RecordBatch, hashes: npt.NDArray[np.uint64]) -> None:
        state, own = self._state, self._handle.key_groups
        self._order.see(batch)
        without_key = null_keys(batch, state)
        self._null_keys += without_key
        comes = self._upserted_rows(batch)
        if state.kind in (StateKind.LIST, StateKind.TIMERS):
            entry = (name for name in state.entry if name != MARK)
            self._null_entries += sum(comes.column(name).null_count for name in entry)
        if without_key:  # rows with a null key have no key group
            return
        groups = key_groups_of(batch, state)
        wrong = (groups < own.first) | (groups > own.last)
        if state.layout is Layout.RANGED:
            named = batch.column(KEY_GROUP)
            wrong |= np.asarray(pc.fill_null(named, -1)) != groups
        self._elsewhere += int(wrong.sum())
        places = groups[~wrong] - own.first
        self._counts += np.bincount(places, minlength=len(own))
        np.add.at(self._digests, places, hashes[~wrong])

    def _upserted_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are not deletes; a delete has null outside of its identity."""
        state = self._state
        if not are_changes(state):
            return batch
        self._unmarked += count_invalid_marks(batch, state)
        return upserts_of(batch)

    def flaws(self) -> Iterator[str]:
        if self._null_keys:
            yield f"{self._null_keys} of its rows have a null key"
        if self._null_entries:
            yield f"{self._null_entries} of its rows have a null entry column"
        if self._unmarked:
            yield f"{self._unmarked} of its rows are neither an upsert nor a delete"
        if self._elsewhere:
            yield f"{self._elsewhere} of its rows belong to other key groups by their key's hash"
        if not self._order.is_sorted:
            yield "its rows are not sorted"
        if self._order.duplicates:
            yield f"{self._order.duplicates} of its rows have the same identity as the previous row"
        index = self._handle.index
        if index is not None and not np.array_equal(self._counts, index.row_counts()):
            yield "its key groups have other row counts than the manifest says"
        elif index is not None and index != GroupIndex.of(self._counts, self._digests):
            yield "its key groups have other digests than the manifest says"


class _ElementRows:
    """Checks the elements of one file of operator state.

    Each subtask must have its number of elements, in order (I7, I11).
    """

    def __init__(self, counts: tuple[int, ...], first_row: int) -> None:
        self._counts, self._at = counts, first_row
        self._wrong = 0

    def see(self, batch: pa.RecordBatch) -> int:
        """Check elements; return their digest."""
        self._wrong += misplaced(batch, self._counts, self._at)
        self._at += batch.num_rows
        return rows_digest(batch)

    def flaws(self) -> Iterator[str]:
        if self._wrong:
            yield f"{self._wrong} of its elements have another subtask or position than recorded"


ALL = "all"
_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class BrokenFile:
    """A broken file, its owner, and its deviations.

    ``kind`` is the kind of error that reading it would raise. ``checkpoint_id`` is None for
    ``statestore.json``. Operator, state and key groups are None if a file has none.
    """

    file: str
    kind: str
    what: tuple[str, ...]
    checkpoint_id: int | None = None
    uid: str | None = None
    state: str | None = None
    key_groups: KeyGroupRange | None = None


_COLUMNS = {
    "file": "string",
    "kind": "string",
    "checkpoint": "int64",
    "operator": "string",
    "state": "string",
    "first_key_group": "int64",
    "last_key_group": "int64",
    "what": "string",
}


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """The result of a verification; file names are relative to the store.

    ``files``, ``rows`` and ``size_bytes`` count each file once, even if several checkpoints name
    it. ``left_out`` lists, by checkpoint, the state that it lacks of its source, which is not
    damage.
    """

    store: str
    checkpoints: tuple[int, ...]
    deep: bool
    files: int
    rows: int
    size_bytes: int
    broken: tuple[BrokenFile, ...]
    strays: tuple[str, ...]
    left_out: Mapping[int, tuple[LeftOutState, ...]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether no checkpoint lacks state that its source had (I16)."""
        return not self.left_out

    @property
    def is_intact(self) -> bool:
        """Whether everything that was checked is unchanged."""
        return not self.broken

    def to_arrow(self) -> pa.Table:
        """Return one row for each broken file of each checkpoint."""
        return table_of(_COLUMNS, self._rows())

    to_pandas, to_polars = as_pandas, as_polars

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for broken in self.broken:
            own = broken.key_groups
            ends = (own.first, own.last) if own else (None, None)
            whose = (broken.checkpoint_id, broken.uid, broken.state)
            yield broken.file, broken.kind, *whose, *ends, "; ".join(broken.what)

    def __repr__(self) -> str:
        return f"VerifyReport({self._summary()})"

    def _repr_html_(self) -> str:
        """Return the notebook view: how much is intact, and each broken file."""
        data = {broken.file for broken in self.broken if broken.state is not None}
        others = {broken.file for broken in self.broken} - data
        intact, label = max(self.files - len(data), 0), f"{counted(len(data), 'file')} broken"
        drawn = [
            NotebookBar("data files", ((intact, "good"), (len(data), "bad")), label, bad=bool(data))
        ]
        if others:
            label = f"{counted(len(others), 'file')} broken"
            drawn.append(
                NotebookBar("manifests and others", ((len(others), "bad"),), label, bad=True)
            )
        strays = f"{counted(len(self.strays), 'stray')}, which is not damage"
        lines = [text(strays)] if self.strays else []
        return figure(self._summary(), bars(drawn), *lines, table([*_COLUMNS], self._rows()))

    def _summary(self) -> str:
        broken = len({broken.file for broken in self.broken})
        intact = "intact" if self.is_complete else "intact, but some state of its source is missing"
        verdict = intact if self.is_intact else f"{counted(broken, 'broken file')}"
        checked = f"{counted(self.files, 'file')}, {counted(self.rows, 'row')}"
        depth = "every byte" if self.deep else "lengths and footers"
        whose = counted(len(self.checkpoints), "checkpoint")
        return f"{verdict}: {whose}, {checked}, {size(self.size_bytes)}, {depth} checked"

    @property
    def problem(self) -> CorruptionError | None:
        """The error that reports the broken files, or None."""
        if self.is_intact:
            return None
        number = len({broken.file for broken in self.broken})
        files = "1 file is" if number == 1 else f"{number} files are"
        ids = sorted(
            {broken.checkpoint_id for broken in self.broken if broken.checkpoint_id is not None}
        )
        whose = f" of checkpoint {', '.join(map(str, ids))}" if ids else ""
        return CorruptionError(
            f"{files} broken in {self.store}, first {self.broken[0].file}{whose}. Restore an "
            "intact checkpoint, recover the files from a backup, or make a checkpoint of the "
            f"readable part: statestore --store {self.store} salvage "
            f"{ids[-1] if ids else 'latest'}"
        )


def verify(
    storage: Storage,
    *,
    checkpoint: int | str,
    deep: bool,
    progress: Callable[[int, int], None],
) -> VerifyReport:
    """Verify a checkpoint, given by id or ``latest``, or ``all`` checkpoints.

    ``progress`` is called with the number of checked files and the total, which for ``all`` is an
    estimate until the last checkpoint. Raises StoreNotFoundError, CheckpointNotFoundError,
    FormatVersionError, or StorageError if a file could not be read.
    """
    run = _Run(storage, deep, progress)
    catalog = run.open()
    run.check_claim()
    ids = catalog.checkpoint_ids() if checkpoint == ALL else (catalog.resolve(checkpoint),)
    left_out = {}
    for number, checkpoint_id in enumerate(ids):
        manifest = run.load(catalog, checkpoint_id)
        if manifest is not None:
            if manifest.left_out:
                left_out[checkpoint_id] = manifest.left_out
            run.check(manifest, checkpoints_left=len(ids) - number)
    return VerifyReport(
        store=storage.url,
        checkpoints=ids,
        deep=deep,
        files=run.files,
        rows=run.rows,
        size_bytes=run.size_bytes,
        broken=tuple(run.broken),
        strays=_stray_files(storage, run, set(ids)),
        left_out=left_out,
    )


@dataclass
class _Run:
    """One verification run: its findings, and what was checked so far."""

    storage: Storage
    deep: bool
    progress: Callable[[int, int], None]
    broken: list[BrokenFile] = field(default_factory=list)
    tables: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    unreadable: set[int] = field(default_factory=set)
    untold: set[str] = field(default_factory=set)
    checked: dict[Hashable, Flaws | None] = field(default_factory=dict)
    files: int = 0
    rows: int = 0
    size_bytes: int = 0

    def open(self) -> Catalog:
        """Return the catalog, with an empty store id if the store's own file is broken."""
        try:
            return Catalog.open(self.storage, create=False)
        except MalformedManifestError as error:
            self._record_error(error, STORE_FILE, None)
        except StoreNotFoundError:
            if not Catalog(self.storage, "").checkpoint_ids():
                raise
            self._record_error(MissingFileError("is missing"), STORE_FILE, None)
        return Catalog(self.storage, "")

    def check_claim(self) -> None:
        """Check that the newest claim is readable, because the next writer depends on it."""
        generation = max(filter(None, map(generation_of, self.storage.list(WRITERS))), default=0)
        if not generation:
            return
        name = writer_path(generation)
        try:
            claim_from_json(self.storage.read(name), name=name, generation=generation)
        except MalformedManifestError as error:
            self._record_error(error, name, None)

    def load(self, catalog: Catalog, checkpoint_id: int) -> Manifest | None:
        """Return a manifest, or None if it is broken."""
        name = manifest_path(checkpoint_id)
        try:
            manifest = catalog.load_header(checkpoint_id)
            if catalog.store_id and manifest.store_id != catalog.store_id:
                raise MalformedManifestError(f"is the manifest of store {manifest.store_id}")
            return manifest
        except MalformedManifestError as error:
            self._record_error(error, name, checkpoint_id)
            self.unreadable.add(checkpoint_id)
            return None

    def check(self, manifest: Manifest, *, checkpoints_left: int) -> None:
        """Check a checkpoint's unchecked files in parallel, and report the results in order."""
        checks = list(self._checks(manifest))
        new = {check.subject: check for check in checks if check.subject not in self.checked}
        expected = self.files + len(new) * checkpoints_left
        self.progress(self.files, expected)
        with ThreadPoolExecutor(max_workers=_THREADS) as pool:
            results = pool.map(check_file, new.values())
            for (subject, check), flaws in zip(new.items(), results, strict=True):
                self.checked[subject] = flaws
                self.files += 1
                self.rows += check.handle.rows
                self.size_bytes += check.handle.size_bytes
                self.progress(self.files, expected)
        for check in checks:
            self._report(check, self.checked[check.subject], manifest.checkpoint_id)

    def _report(self, check: FileCheck, flaws: Flaws | None, checkpoint_id: int) -> None:
        if flaws is None:
            return
        entry, handle = check.entry, check.handle
        self.broken.append(
            BrokenFile(
                file=entry.table.name_of(handle),
                kind=flaws.kind,
                what=flaws.what,
                checkpoint_id=checkpoint_id,
                uid=entry.state.uid,
                state=entry.state.name,
                key_groups=handle.key_groups if isinstance(handle, KeyedStateHandle) else None,
            )
        )

    def _checks(self, manifest: Manifest) -> Iterator[FileCheck]:
        for entry in manifest.parts:
            self.tables.add(entry.table.path)
            if isinstance(entry, KeyedEntry):
                self.tables.add(changes_table(entry.state.uid, entry.state.name))
            first_row = 0
            for handle in self._handles(entry, manifest.checkpoint_id):
                self.named.add(entry.table.name_of(handle))
                yield FileCheck(self.storage, entry, handle, first_row, self.deep)
                first_row += handle.rows

    def _handles(self, entry: Entry, checkpoint_id: int) -> Sequence[Handle]:
        """Return the files of a state; report a broken list of files, and return none."""
        path = list_of(entry.handles)
        if path is None:
            return entry.handles
        self.named.add(path)
        try:
            return tuple(entry.handles)
        except MalformedManifestError as error:
            self.untold.add(entry.table.path)
            self.broken.append(
                BrokenFile(
                    file=path,
                    kind=error.kind,
                    what=(str(error).removeprefix(f"{self.storage.url}/"),),
                    checkpoint_id=checkpoint_id,
                    uid=entry.state.uid,
                    state=entry.state.name,
                )
            )
            return ()

    def _record_error(self, error: CorruptionError, name: str, checkpoint_id: int | None) -> None:
        what = str(error).removeprefix(f"{self.storage.url}/").removeprefix(f"{name} ")
        self.broken.append(
            BrokenFile(file=name, kind=error.kind, what=(what,), checkpoint_id=checkpoint_id)
        )


def _stray_files(storage: Storage, run: _Run, manifest_ids: set[int]) -> tuple[str, ...]:
    """Return the data files of the checked tables that no manifest names.

    ``run`` has the names of the files that the checked manifests name. The files of an unreadable
    manifest are unknown, so its checkpoint's files are not reported. Tables with an unreadable list
    of files have no reported strays either.
    """
    strays = {
        name
        for table in run.tables - run.untold
        for name in storage.list(table)
        # Names that begin with an underscore are not data, such as Delta's log.
        if not any(part.startswith("_") for part in name.removeprefix(f"{table}/").split("/"))
    } - run.named
    unreadable = set(run.unreadable)
    identities = filter(None, map(checkpoint_id_of, storage.list(CHECKPOINTS)))
    others = {number for number, is_tombstone in identities if not is_tombstone} - manifest_ids
    for number in sorted(others, reverse=True):
        if not strays:
            break
        name = manifest_path(number)
        try:
            manifest = manifest_from_json(storage.read(name), name=name, read=storage.read)
            for entry in manifest.parts:
                strays -= _files_named_by(entry, strays)
        except FileNotFoundError:
            continue  # collected since it was listed
        except (CorruptionError, FormatVersionError):
            unreadable.add(number)
    unknown = tuple(f"{number:010}-" for number in unreadable)
    return tuple(sorted(n for n in strays if not n.rpartition("/")[2].startswith(unknown)))


def _files_named_by(entry: Entry, files: set[str]) -> set[str]:
    """Return which of the found files a state names; if its list is broken, all in its table."""
    try:
        return {entry.table.name_of(handle) for handle in entry.handles}
    except MalformedManifestError:
        return {name for name in files if folder_of(name) == entry.table.path}
