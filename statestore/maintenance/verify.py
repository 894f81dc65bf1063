"""Verify that checkpoints are unchanged since they were written, and report every deviation.

``statestore.json``, the newest writer's claim and the manifest are checked first, each by its own
SHA-256. Then every file that the manifest names is checked, several in parallel
(``verify_file.py``). The run continues after a broken file, so that one run finds all of them. A
file that several checkpoints name, as with changes, is checked once, and reported for each of them.
Data files that no manifest names are *stray files*: a crashed writer left them, or an active writer
has not committed them yet. They are listed, but are not damage. A verification of one checkpoint
looks for them in the tables of its states, and one of all checkpoints in the whole store. ``gc``
deletes the same files when they have the minimum age.

A shallow check costs two small reads per file, and reads no data. A deep check reads all bytes once
and decodes all rows. The search for stray files lists the tables, and may read every manifest of
the store.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from statestore.catalog.catalog import Catalog, CheckpointRef, refuse_plain_file
from statestore.catalog.fence import claim_from_json, read_newest
from statestore.catalog.holds import publication_of
from statestore.display import NotebookBar, bars, counted, figure, size, table, text
from statestore.errors import (
    CorruptionError,
    FormatVersionError,
    MalformedManifestError,
    MissingFileError,
    StoreNotFoundError,
)
from statestore.format.handles import Handle, list_of
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Entry, KeyedEntry, Manifest
from statestore.format.manifest_json import manifest_from_json
from statestore.format.names import (
    CHECKPOINTS,
    STORE_FILE,
    changes_table,
    checkpoint_id_of,
    folder_of,
    is_data_file,
    manifest_path,
    writer_path,
)
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance.store_context import HasContext
from statestore.maintenance.verify_file import BrokenFile, FileCheck, Flaws, check_files, checks_of
from statestore.rows.dataframes import as_pandas, as_polars, table_of
from statestore.storage import Storage

ALL = "all"


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
    it. ``changed_rows`` of ``rows`` are changes. ``left_out`` lists, by checkpoint, the state of
    its source that it lacks, which is not damage. ``iceberg_tables`` lists, by checkpoint, the
    published tables that read its files.
    """

    store: str
    checkpoints: tuple[int, ...]
    deep: bool
    files: int
    rows: int
    changed_rows: int
    size_bytes: int
    broken: tuple[BrokenFile, ...]
    strays: tuple[str, ...]
    left_out: Mapping[int, tuple[LeftOutState, ...]] = field(default_factory=dict)
    iceberg_tables: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    json_properties: ClassVar[tuple[str, ...]] = ("is_intact", "is_complete")

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

    to_pandas = as_pandas
    to_polars = as_polars

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for broken in self.broken:
            own = broken.key_groups
            ends = (own.first, own.last) if own else (None, None)
            whose = (broken.checkpoint_id, broken.operator, broken.state)
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
        strays = f"{counted(len(self.strays), 'stray file')}, which is not damage"
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
    store: HasContext,
    checkpoint: CheckpointRef = "latest",
    deep: bool = False,
    on_progress: Progress | None = None,
) -> VerifyReport:
    """Return whether a checkpoint is intact.

    The manifest is checked, and the length, rows, row groups and columns of every file. One
    length and one footer are read per file. The report lists everything that is broken; no
    error is raised for it.

    Args:
        checkpoint: the id, ``latest``, or ``all``.
        deep: reads every byte and row, and checks SHA-256, digests, key groups, order,
            duplicates and null keys.
        on_progress: called with the number of checked files and the total.

    Returns:
        The report.

    Raises:
        StoreNotFoundError or CheckpointNotFoundError: if the store or checkpoint does not
            exist.
        FormatVersionError: for a store of a newer release.
        StorageError: if a file could not be read.
    """
    storage = store.parts.storage
    run = _Run(storage, deep, on_progress or ignore_progress)
    with refuse_plain_file(storage):
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
        changed_rows=run.changed_rows,
        size_bytes=run.size_bytes,
        broken=tuple(run.broken),
        strays=_stray_files(storage, run, set(ids), everywhere=checkpoint == ALL),
        left_out=left_out,
        iceberg_tables=_published_tables(catalog, ids),
    )


def _published_tables(catalog: Catalog, ids: Collection[int]) -> dict[int, tuple[str, ...]]:
    """Return the tables that show checkpoints, by checkpoint, as far as savepoints are readable."""
    tables: dict[int, tuple[str, ...]] = {}
    for savepoint in catalog.holds.readable():
        publication = publication_of(savepoint.name)
        if publication is not None and savepoint.checkpoint_id in ids:
            number = savepoint.checkpoint_id
            tables[number] = (*tables.get(number, ()), publication.table)
    return dict(sorted(tables.items()))


@dataclass
class _Run:
    """One verification run: its findings, and the files that were already checked."""

    storage: Storage
    deep: bool
    progress: Progress
    broken: list[BrokenFile] = field(default_factory=list)
    tables: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    unreadable: set[int] = field(default_factory=set)
    untold: set[str] = field(default_factory=set)
    checked: dict[Hashable, Flaws | None] = field(default_factory=dict)
    files: int = 0
    rows: int = 0
    changed_rows: int = 0
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
        generation, raw = read_newest(self.storage)
        if not generation:
            return
        name = writer_path(generation)
        try:
            claim_from_json(raw, name=name, generation=generation)
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
        for (subject, check), flaws in zip(new.items(), check_files(new.values()), strict=True):
            self.checked[subject] = flaws
            self.files += 1
            self.rows += check.handle.rows
            state, path = check.entry.state, check.entry.table.path
            if path == changes_table(state.uid, state.name):
                self.changed_rows += check.handle.rows
            self.size_bytes += check.handle.size_bytes
            self.progress(self.files, expected)
        for check in checks:
            if (flaws := self.checked[check.subject]) is not None:
                self.broken.append(check.broken(flaws, manifest.checkpoint_id))

    def _checks(self, manifest: Manifest) -> Iterator[FileCheck]:
        for entry in manifest.parts:
            self.tables.add(entry.table.path)
            if isinstance(entry, KeyedEntry):
                self.tables.add(changes_table(entry.state.uid, entry.state.name))
            handles = self._handles(entry, manifest.checkpoint_id)
            self.named.update(map(entry.table.name_of, handles))
            yield from checks_of(self.storage, entry, handles, deep=self.deep)

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
                    operator=entry.state.uid,
                    state=entry.state.name,
                )
            )
            return ()

    def _record_error(self, error: CorruptionError, name: str, checkpoint_id: int | None) -> None:
        deviation = str(error).removeprefix(f"{self.storage.url}/").removeprefix(f"{name} ")
        self.broken.append(
            BrokenFile(file=name, kind=error.kind, what=(deviation,), checkpoint_id=checkpoint_id)
        )


def _stray_files(
    storage: Storage, run: _Run, manifest_ids: set[int], *, everywhere: bool
) -> tuple[str, ...]:
    """Return the data files that no manifest names: in the checked tables, or in the whole store.

    ``run`` has the names of the files that the checked manifests name. The files of an unreadable
    manifest are unknown, so its checkpoint's files are not reported, and only the checked tables
    are searched. Tables with an unreadable list of files have no reported stray files either.
    """
    places = [""] if everywhere and not run.unreadable else sorted(run.tables)
    untold = tuple(f"{table}/" for table in run.untold)
    strays = {
        name
        for place in places
        for name in storage.list(place)
        if is_data_file(name) and not name.startswith(untold)
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
    lists = {*filter(None, [list_of(entry.handles)])}
    try:
        return lists | {entry.table.name_of(handle) for handle in entry.handles}
    except MalformedManifestError:
        return lists | {name for name in files if folder_of(name) == entry.table.path}
