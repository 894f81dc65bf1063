"""Bring a checkpoint's data files to another store: check, link or copy them, under new names.

Each file gets a name in the target that was never used before. A file that a kept checkpoint of the
target names keeps its name there. A file that an interrupted copy left there, with the right length
and SHA-256, is only given the new name. All others are copied, and hashed on the way. Nothing is
deleted: ``gc`` removes the files that no checkpoint names.

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
import uuid
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from threading import Lock

from statestore.catalog.catalog import Catalog
from statestore.errors import (
    CheckpointNotFoundError,
    DamagedFileError,
    MalformedManifestError,
    MissingFileError,
)
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Manifest
from statestore.format.names import operator_file, partition_file, ranged_file
from statestore.listeners import Progress
from statestore.storage import Storage
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
            shared = link(self.source, file.name, self.target, name)
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
