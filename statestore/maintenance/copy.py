"""Copy a checkpoint or savepoint to another store, with verification and resume after a kill.

Data files get new names in the target. A file that the target already has, with the right length
and SHA-256, is not copied again: an earlier copy, complete or killed, left it there. Bytes are
hashed while they are copied, and the target's manifest is put last. So a checkpoint that the target
shows has exactly the bytes that the source's manifest promises.

The new checkpoint has the target's next id. Its ``origin`` names the source's store, checkpoint and
writer, so that a second copy finds the first one. Store and checkpoint id alone are not enough: if
a store was copied as files or restored from a backup, both instances may have continued, and have
different checkpoints under one id. Tables get the target's format, and a Delta log of their own.

Each file gets a name that was never used before. A file that a kept checkpoint of the target names
keeps its name there. A file that an interrupted copy left there is only given the new name. Nothing
is deleted: ``gc`` removes the files that no checkpoint names.

**New names.** No two attempts ever use the same file name. A collection deletes by name, possibly
long after it has listed the file as old. It deletes the name even if the file under it was written
again meanwhile. A failed attempt may also delete the files that it wrote. So an attempt that finds
files of an earlier attempt, or of another store, never uses their names. It gives the bytes a new
name of its own, which counts as young. ``gc`` removes the names that no manifest uses in the end.

The new name contains part of the SHA-256, so that the next attempt can find the file.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from statestore.catalog.catalog import Catalog, CheckpointRef
from statestore.catalog.holds import Savepoint, check_savepoint_name
from statestore.errors import (
    CheckpointNotFoundError,
    DamagedFileError,
    InvalidArgumentError,
    MalformedManifestError,
    MissingFileError,
    ParallelismError,
    SchemaMismatchError,
    StoreNotFoundError,
)
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Entry, KeyedEntry, Manifest, TableRef
from statestore.format.names import operator_file, partition_file, ranged_file
from statestore.listeners import Progress, ignore_progress
from statestore.maintenance.derive import DerivedReport, Deriver, Source
from statestore.maintenance.store_context import HasContext, StoreContext
from statestore.snapshot.pending_checkpoint import PriorCheckpoints
from statestore.storage import Storage, open_storage
from statestore.storage.base import report_os_errors
from statestore.storage.local import can_link, link

_DIGITS = 16  # hex digits of the SHA-256 in a file name
_NEW_NAME = re.compile(rf"[0-9]{{10}}-.*?([0-9a-f]{{{_DIGITS}}})-[0-9a-f]{{16}}\.parquet")


def new_name(handle: Handle, checkpoint_id: int) -> str:
    """Return a name inside the table for a data file's bytes that was never used before."""
    token = f"{handle.sha256[:_DIGITS]}-{uuid.uuid4().hex[:16]}"
    if not isinstance(handle, KeyedStateHandle):
        return operator_file(checkpoint_id, token)
    in_folder = "/" in handle.path
    name = partition_file if in_folder else ranged_file
    return name(checkpoint_id, handle.key_groups.first, token)


class StoredFileIndex:
    """Files of a store indexed by content, as told by their names or by kept checkpoints."""

    def __init__(self, storage: Storage, tables: Iterable[str]) -> None:
        """List the tables whose data files may be reused."""
        self._sizes = {item.name: item.size_bytes for t in tables for item in storage.listed(t)}
        self._left: dict[tuple[str, str], list[str]] = {}
        self._kept: dict[tuple[str, str], str] = {}
        for name in self._sizes:
            folder, _, last = name.rpartition("/")
            if match := _NEW_NAME.fullmatch(last):
                self._left.setdefault((folder, match[1]), []).append(name)

    def add_kept(self, manifest: Manifest) -> None:
        """Add the files of a visible checkpoint."""
        for entry in manifest.parts:
            for handle in entry.handles:
                name = entry.table.name_of(handle)
                self._kept[_place(name, handle)] = name

    def find_kept(self, name: str, handle: Handle) -> str | None:
        """Return a kept checkpoint's file with the same folder, hash and length, or None."""
        kept = self._kept.get(_place(name, handle))
        return kept if kept and self._sizes.get(kept) == handle.size_bytes else None

    def find_leftovers(self, name: str, handle: Handle) -> list[str]:
        """Return the files with the same content that earlier attempts may have left."""
        names = self._left.get(_place(name, handle), [])
        return [each for each in names if self._sizes[each] == handle.size_bytes]


def _place(name: str, handle: Handle) -> tuple[str, str]:
    return name.rpartition("/")[0], handle.sha256[:_DIGITS]


_CHUNK_BYTES = 2**20
_COPIERS = 4
_SYNC_FILES = 64


@dataclass(frozen=True)
class CopiedFile:
    """A data file of the source: its table's folder, and the handle that describes it."""

    table: str
    handle: Handle

    @property
    def name(self) -> str:
        """The file's name in the source."""
        return f"{self.table}/{self.handle.path}"


def data_files(manifest: Manifest) -> tuple[CopiedFile, ...]:
    """Return the data files that a checkpoint names, each once."""
    files = [
        CopiedFile(part.table.path, handle) for part in manifest.parts for handle in part.handles
    ]
    return tuple({file.name: file for file in files}.values())


@dataclass
class FileCopy:
    """A transfer of files from one storage to another, with its progress."""

    source: Storage
    target: Storage
    progress: Progress
    files: tuple[CopiedFile, ...]
    copied_files: int = 0
    copied_bytes: int = 0
    linked: bool = False
    touches: bool = True
    _done: int = 0
    _target_files: StoredFileIndex = field(init=False)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """List the target folders of the files."""
        tables = [] if self._can_link else sorted({file.table for file in self.files})
        self._target_files = StoredFileIndex(self.target, tables)

    @property
    def total(self) -> int:
        """The total size of all files."""
        return sum(file.handle.size_bytes for file in self.files)

    @property
    def _can_link(self) -> bool:
        return self.linked and can_link(self.source, self.target)

    def index_kept_files(self, target: Catalog) -> None:
        """Record which files the target's checkpoints name, so that they are named again."""
        for number in () if self._can_link else target.checkpoint_ids():
            try:
                self._target_files.add_kept(target.manifest(number))
            except (CheckpointNotFoundError, MalformedManifestError):
                continue  # its files are copied

    def count_missing(self) -> None:
        """Count the files that would be copied.

        For a file that is already there, only the length is compared.
        """
        for file in () if self._can_link else self.files:
            kept_copy = self._target_files.find_kept(file.name, file.handle)
            if kept_copy is None and not self._target_files.find_leftovers(file.name, file.handle):
                self.copied_files += 1
                self.copied_bytes += file.handle.size_bytes

    def copy(self, number: int) -> Mapping[str, str]:
        """Bring the files to the target, several in parallel, and make them durable.

        Returns each file's path in its target table by its name in the source. New names carry the
        checkpoint id ``number``.
        """
        self.progress(0, self.total)
        with ThreadPoolExecutor(max_workers=_COPIERS) as pool:
            under_way = [pool.submit(self._copy_file, file, number) for file in self.files]
            try:
                names = [transfer.result() for transfer in under_way]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        # Existing files may be from a copy that was killed before it made them durable.
        for start in range(0, len(names), _SYNC_FILES):
            self.target.sync(names[start : start + _SYNC_FILES])
        return {
            file.name: name.removeprefix(f"{file.table}/")
            for file, name in zip(self.files, names, strict=True)
        }

    def _copy_file(self, file: CopiedFile, number: int) -> str:
        """Bring one file; return its name in the target."""
        if self.linked and (shared := self._link_file(file, number)):
            return shared
        kept = self._target_files.find_kept(file.name, file.handle)
        if kept is not None and self._has_same_content(kept, file):
            self._advance(file.handle.size_bytes)
            return kept
        for left in self._target_files.find_leftovers(file.name, file.handle):
            if renewed := self._renew_file(left, file, number):
                self._advance(file.handle.size_bytes)
                return renewed
        return self._stream_file(file, number)

    def _link_file(self, file: CopiedFile, number: int) -> str | None:
        """Hard-link a file of the source; check its length only, and read no byte."""
        name = _new_path(file, number)
        try:
            shared = link(self.source, file.name, self.target, name, touches=self.touches)
        except FileNotFoundError as error:
            raise _missing_file_error(self.source, file.name) from error
        try:
            if not shared or self.target.size(name) != file.handle.size_bytes:
                return None  # the copy reports the reason
        except FileNotFoundError:
            return None  # a collection with a minimum age of 0 removed it
        self._advance(file.handle.size_bytes)
        return name

    def _renew_file(self, left: str, file: CopiedFile, number: int) -> str | None:
        """Give the file of an earlier copy a new name.

        Return None if its bytes differ or it is gone.
        """
        name = _new_path(file, number)
        try:
            return (
                name
                if self._has_same_content(left, file) and self.target.renew(left, name)
                else None
            )
        except FileNotFoundError:
            return None

    def _stream_file(self, file: CopiedFile, number: int) -> str:
        """Stream a file to the target; another thread hashes a chunk while it is written.

        Raises DamagedFileError if its length or SHA-256 is wrong.
        """
        name, sha256, size = _new_path(file, number), hashlib.sha256(), 0
        with closing(self._chunks(file.name)) as chunks, ThreadPoolExecutor(1) as hasher:
            chunk = next(chunks, b"")  # a missing source fails before a target file is created
            with (
                report_os_errors("write", f"{self.target.url}/{name}"),
                self.target.open_write(name) as out,
            ):
                while chunk:
                    hashed = hasher.submit(sha256.update, chunk)
                    out.write(chunk)
                    size += len(chunk)
                    self._advance(len(chunk), copied=True)
                    chunk = next(chunks, b"")
                    hashed.result()
        if (size, sha256.hexdigest()) != (file.handle.size_bytes, file.handle.sha256):
            raise DamagedFileError(
                f"{self.source.url}/{file.name} has changed since it was written: it has {size} "
                f"bytes with SHA-256 {sha256.hexdigest()[:16]}…, but the manifest says "
                f"{file.handle.size_bytes} bytes with {file.handle.sha256[:16]}…; copy "
                "another checkpoint, or salvage this one"
            )
        with self._lock:
            self.copied_files += 1
        return name

    def _chunks(self, name: str) -> Generator[bytes]:
        try:
            with (
                report_os_errors("read", f"{self.source.url}/{name}"),
                closing(self.source.open_read(name)) as file,
            ):
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except FileNotFoundError as error:
            raise _missing_file_error(self.source, name) from error

    def _has_same_content(self, name: str, file: CopiedFile) -> bool:
        """Return whether a file of the target has the expected SHA-256."""
        sha256 = hashlib.sha256()
        try:
            with (
                report_os_errors("read", f"{self.target.url}/{name}"),
                closing(self.target.open_read(name)) as target_file,
            ):
                while chunk := target_file.read(_CHUNK_BYTES):
                    sha256.update(chunk)
        except FileNotFoundError:
            return False  # a collection removed it
        return sha256.hexdigest() == file.handle.sha256

    def _advance(self, count: int, *, copied: bool = False) -> None:
        with self._lock:
            self._done += count
            self.copied_bytes += count if copied else 0
            self.progress(self._done, self.total)


def _new_path(file: CopiedFile, number: int) -> str:
    return f"{file.table}/{new_name(file.handle, number)}"


def _missing_file_error(source: Storage, name: str) -> MissingFileError:
    return MissingFileError(
        f"{source.url}/{name} is missing, but the manifest references it; copy another "
        "checkpoint, or salvage this one"
    )


@dataclass(frozen=True, kw_only=True)
class CopiedCheckpoint(DerivedReport):
    """The result of a copy, or of a dry run.

    ``new_checkpoint_id`` is the checkpoint in the target. ``found`` is True if an earlier copy had
    made it, also in a dry run. ``copied_files`` and ``copied_bytes`` count only the files that the
    target lacked; a linked copy shares the other files.
    """

    target: str
    found: bool
    savepoint: str | None
    files: int
    size_bytes: int
    copied_files: int
    copied_bytes: int


def copy(
    store: HasContext,
    checkpoint: CheckpointRef,
    target: HasContext | str,
    *,
    linked: bool = False,
    touch: bool = True,
    after: int | None = None,
    as_savepoint: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> CopiedCheckpoint:
    """Copy a checkpoint, or a savepoint by its name, to another store.

    The copy gets the next id there. If it is copied again, the first copy is found. Files that
    the target already has are not copied, so a killed copy can resume. Tables have the target's
    format.

    A linked copy is a new store that shares the files of this one. On one file system they are
    hard-linked and nothing is copied: a file has a name in each store, and is deleted when both
    stores have released it. Files are never changed in place, so neither store sees the other's
    writes, but damage of a file damages both. Files are copied to and from a bucket, and to another
    disk.

    Args:
        checkpoint: as in :meth:`savepoint`.
        target: an open store, or the path or URL of one. It is created if it does not exist. A
            new store records the table format and layout that it was opened with, or this
            store's.
        linked: makes a new store that shares the files, instead of copying them.
        touch: gives linked files the current time, which both stores see, so that a garbage
            collection of the target during the copy keeps them. Without it, nothing of this store
            changes, and nobody may collect the target before the copy has ended.
        after: the newest checkpoint that the target must still have when the copy is committed.
        as_savepoint: the name of the savepoint in the target. By default a savepoint keeps its
            name, and other checkpoints get none.
        storage_options: options for fsspec, if ``target`` is a path or URL.
        dry_run: reports what would be copied, and changes nothing.
        on_progress: called with the number of copied bytes and the total.

    Returns:
        The copied checkpoint.

    Raises:
        CheckpointNotFoundError: if the checkpoint does not exist.
        InvalidArgumentError: for this store itself, for a savepoint name that the target uses
            for another checkpoint, or for a table format that is not the target's. For a linked
            copy, also if ``target`` has a checkpoint, or other files than a store's.
        ParallelismError or SchemaMismatchError: for a state with another key in the target.
        MissingFileError or DamagedFileError: for a missing or damaged file of this store.
        CommitConflictError or StorageError: the copy can be run again.
    """
    source = store.parts.catalog()
    other = _target_context(store.parts, target, storage_options, linked=linked)
    storage = other.storage
    if as_savepoint is not None:
        check_savepoint_name(as_savepoint)
    found = source.checkpoint(checkpoint)
    manifest, name = found.manifest, as_savepoint or found.name
    making = _open_target(source, other, dry_run)
    new_id = None if making is None else _first_copy(making.catalog, manifest)
    is_copied = new_id is not None
    if making is not None:
        _refuse_taken_name(making.catalog, name, new_id)
        if not is_copied:
            _refuse_other_keys(making.catalog, manifest)
    files = data_files(manifest)
    work = FileCopy(
        source.storage,
        storage,
        on_progress or ignore_progress,
        () if is_copied else files,
        linked=linked,
        touches=touch,
    )
    if making is not None and not is_copied:
        work.index_kept_files(making.catalog)
    if dry_run:
        work.count_missing()
    elif making is not None:
        if new_id is None:
            new_id = _copy_and_commit(making, Source(manifest, after), work, name)
        if name is not None:
            _put_savepoint(making.catalog, name, new_id)
    return CopiedCheckpoint(
        store=source.storage.url,
        target=storage.url,
        dry_run=dry_run,
        checkpoint_id=manifest.checkpoint_id,
        new_checkpoint_id=new_id,
        found=is_copied,
        savepoint=name,
        files=len(files),
        size_bytes=sum(file.handle.size_bytes for file in files),
        copied_files=work.copied_files,
        copied_bytes=work.copied_bytes,
        left_out=manifest.left_out,
    )


def _target_context(
    source: StoreContext,
    target: HasContext | str,
    storage_options: Mapping[str, Any] | None,
    *,
    linked: bool,
) -> StoreContext:
    """Open the target; refuse the source itself, and for a linked copy a place in use."""
    if isinstance(target, str):
        storage = open_storage(target, storage_options, of_store=True)
        other = StoreContext.on(storage, parquet=source.parquet)
    else:
        other = target.parts
    if linked:
        _refuse_used(other.storage)
    if is_same_place(source.storage, other.storage):
        raise InvalidArgumentError(
            f"{other.storage.url} is the store itself; choose another target"
        )
    return other


def _open_target(source: Catalog, target: StoreContext, dry_run: bool) -> Deriver | None:
    """Open the target, and create it unless this is a dry run.

    Return None if a dry run finds no store.
    """
    try:
        catalog = Catalog.open(
            target.storage,
            create=not dry_run,
            table_format=target.table_format or source.table_format(None),
            layout=target.layout or source.layout(None),
        )
    except StoreNotFoundError:
        if not dry_run:
            raise
        return None
    if target.table_format is not None:
        catalog.table_format(target.table_format)
    return target.deriver_of(catalog)


def _copy_and_commit(
    deriver: Deriver, source: Source, work: FileCopy, savepoint: str | None
) -> int:
    """Copy the files that the target lacks, and commit; return the id of the new checkpoint."""
    command, manifest = "fork" if work.linked else "copy", source.manifest
    with deriver.derive(source, command, dry_run=False) as draft:
        names = work.copy(draft.files.checkpoint_id)
        table_format = deriver.catalog.table_format(None)
        for entry in manifest.entries:
            draft.put(_relocate_entry(entry, names, table_format), new=())
        draft.record(
            store=manifest.store_id,
            writer=manifest.writer.token,
            created_at_ms=manifest.created_at_ms,
            **({"savepoint": savepoint} if savepoint else {}),
        )
    number: int = draft.facts["new_checkpoint_id"]
    return number


def _relocate_entry(entry: Entry, names: Mapping[str, str], table_format: str) -> Entry:
    """Return a state as the target stores it.

    Its files have their new names. It has no table version yet, and no copies in a local cache.
    """
    table = TableRef(table_format, entry.table.path)
    if not isinstance(entry, KeyedEntry):
        handles = (replace(handle, path=names[table.name_of(handle)]) for handle in entry.handles)
        return replace(entry, table=table, handles=tuple(handles))
    layers = (replace(layer, entry=_rename_files(layer.entry, names)) for layer in entry.layers)
    return replace(_rename_files(entry, names), table=table, layers=tuple(layers))


def _rename_files(entry: KeyedEntry, names: Mapping[str, str]) -> KeyedEntry:
    folder = entry.table.path
    handles = (replace(h, path=names[f"{folder}/{h.path}"], host="") for h in entry.handles)
    return replace(entry, handles=tuple(handles))


def _first_copy(target: Catalog, manifest: Manifest) -> int | None:
    """Return the target's checkpoint that was copied from this one, or None.

    Raises InvalidArgumentError if the only copy comes from a different checkpoint with the same id.
    """
    others = []
    for number in reversed(target.kept_ids()):
        try:
            origin = target.load_header(number).origin or {}
        except (CheckpointNotFoundError, MalformedManifestError):
            continue  # collected since it was listed, or unreadable
        source_id = (origin.get("store"), origin.get("checkpoint"))
        brought = origin.get("command") in ("copy", "fork")
        if brought and source_id == (manifest.store_id, manifest.checkpoint_id):
            if _is_copy_of(manifest, origin):
                return number
            others.append((number, origin))
    if others:
        raise _other_source_error(target, manifest, *others[0])
    return None


def _is_copy_of(manifest: Manifest, origin: Mapping[str, Any]) -> bool:
    """Return whether the copied checkpoint is this one.

    Older releases did not record the writer.
    """
    writer = origin.get("writer", manifest.writer.token)
    recorded = writer, origin.get("created_at_ms")
    return recorded == (manifest.writer.token, manifest.created_at_ms)


def _other_source_error(
    target: Catalog, manifest: Manifest, number: int, origin: Mapping[str, Any]
) -> InvalidArgumentError:
    which, where = f"checkpoint {manifest.checkpoint_id}", target.storage.url
    return InvalidArgumentError(
        f"{where} already has a copy of another {which} of store {manifest.store_id}: its "
        f"checkpoint {number} was copied from the {which} that writer "
        f"{origin.get('writer', 'unknown')} made at {_time_text(origin.get('created_at_ms'))}, but "
        f"the one to copy was made by writer {manifest.writer.token} ({manifest.writer.name}) "
        f"at {_time_text(manifest.created_at_ms)}. The store's files were probably copied or "
        "restored from a backup, and both stores were then written. Copy to another store, "
        f"or remove the existing copy first (expire checkpoint {number} of {where}, and "
        "delete the savepoints that keep it)"
    )


def _time_text(at_ms: object) -> str:
    if not isinstance(at_ms, int):
        return "an unknown time"
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _refuse_taken_name(target: Catalog, name: str | None, first: int | None) -> None:
    for savepoint in target.holds.savepoints() if name is not None else ():
        if savepoint.name == name and savepoint.checkpoint_id != first:
            raise InvalidArgumentError(
                f"{target.storage.url} already has a savepoint {name!r}, of checkpoint "
                f"{savepoint.checkpoint_id}; choose another name with as_savepoint "
                "(--as-savepoint), or delete that savepoint first"
            )


def _refuse_other_keys(target: Catalog, manifest: Manifest) -> None:
    """Refuse a state with another max parallelism or key; these never change in a store (I3)."""
    history = PriorCheckpoints(target, manifest.operators)
    for entry in manifest.keyed:
        state, known = entry.state, history.stored(entry.state.uid, entry.state.name)
        stored, groups = known.state, known.max_parallelism
        if groups is not None and groups != state.max_parallelism:
            raise ParallelismError(
                f"operator {state.uid!r} has max parallelism {groups} in {target.storage.url}, but "
                f"{state.max_parallelism} in the checkpoint to copy; use another target store"
            )
        if stored is None:
            continue
        for attribute in ("kind", "key", "key_types", "namespace", "entry", "hash_scheme"):
            old, new = getattr(stored, attribute), getattr(state, attribute)
            if old != new:
                raise SchemaMismatchError(
                    f"{state} has {attribute.replace('_', ' ')} {old} in {target.storage.url}, but "
                    f"{new} in the checkpoint to copy; use another target store"
                )


def _put_savepoint(target: Catalog, name: str, number: int) -> None:
    savepoint = Savepoint(name, number, time.time_ns() // 1_000_000)
    if number not in {s.checkpoint_id for s in target.holds.savepoints() if s.name == name}:
        target.holds.put_savepoint(savepoint, visible=lambda: target.check_visible(number))


def is_same_place(first: Storage, second: Storage) -> bool:
    """Return whether two storages are the same folder, by URL or by real path."""
    paths = [storage.native_path("") for storage in (first, second)]
    real = [None if path is None else Path(path).resolve() for path in paths]
    return first.url == second.url or (real[0] is not None and real[0] == real[1])


def _refuse_used(target: Storage) -> None:
    """Refuse a target that is in use.

    A store without a checkpoint is an interrupted linked copy, and is allowed.
    """
    if target.is_empty():
        return
    advice = "choose a path that does not exist yet for the linked copy"
    try:
        numbers = Catalog.open(target, create=False).checkpoint_ids()
    except StoreNotFoundError as error:
        raise InvalidArgumentError(
            f"{target.url} is not a store but contains files; {advice}"
        ) from error
    if numbers:
        raise InvalidArgumentError(
            f"{target.url} is already a store, with checkpoints "
            f"{', '.join(map(str, numbers))}; {advice}, or copy without links"
        )
