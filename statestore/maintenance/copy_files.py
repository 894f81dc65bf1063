"""The data files of a checkpoint on their way to another store: checked, linked or copied.

Each gets a name in the target that no file has had (``derive.py``). What a copy that was ended
has left there, with the right length and SHA-256, is given the new name as well, and is not copied
again; a file that a kept checkpoint of the target names is named again. Bytes are hashed while they
are copied. Nothing is deleted: what nobody names is left to ``gc``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping
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
from statestore.format.handles import Handle
from statestore.format.manifest import Manifest
from statestore.maintenance.derive import Holding, new_name
from statestore.storage import Storage
from statestore.storage.base import named
from statestore.storage.local import can_link, link

__all__ = ["DataFile", "FileCopy", "Progress", "data_files"]

_CHUNK_BYTES = 2**20
_COPIERS = 4
_SYNC_FILES = 64

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class DataFile:
    """A data file of the source: its table's folder, and what it must be."""

    table: str
    handle: Handle

    @property
    def name(self) -> str:
        """Its name in the source."""
        return f"{self.table}/{self.handle.path}"


def data_files(manifest: Manifest) -> tuple[DataFile, ...]:
    """Return the data files that a checkpoint names, each once."""
    found = [DataFile(part.table.path, one) for part in manifest.parts for one in part.handles]
    return tuple({file.name: file for file in found}.values())


@dataclass
class FileCopy:
    """Files on their way from one storage to another, and how far they are."""

    source: Storage
    target: Storage
    progress: Progress
    files: tuple[DataFile, ...]
    copied_files: int = 0
    copied_bytes: int = 0
    linked: bool = False
    _done: int = 0
    _there: Holding = field(init=False)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        """Look at what lies where the files go."""
        tables = [] if self._shares else sorted({file.table for file in self.files})
        self._there = Holding(self.target, tables)

    @property
    def total(self) -> int:
        """The bytes of all files."""
        return sum(file.handle.size_bytes for file in self.files)

    @property
    def _shares(self) -> bool:
        return self.linked and can_link(self.source, self.target)

    def learn(self, target: Catalog) -> None:
        """Learn which files the checkpoints of the target name: these are named again."""
        for number in () if self._shares else target.checkpoint_ids():
            try:
                self._there.add_kept(target.manifest(number))
            except (CheckpointNotFoundError, MalformedManifestError):
                continue  # what it names is copied

    def look(self) -> None:
        """Count what would be copied; of a file that is there only its length is looked at."""
        for file in () if self._shares else self.files:
            there = self._there.kept(file.name, file.handle)
            if there is None and not self._there.left(file.name, file.handle):
                self.copied_files += 1
                self.copied_bytes += file.handle.size_bytes

    def copy(self, number: int) -> Mapping[str, str]:
        """Bring the files to the target, some side by side, and make them durable; return by name
        where each lies in its table, named for checkpoint ``number``.
        """
        self.progress(0, self.total)
        with ThreadPoolExecutor(max_workers=_COPIERS) as pool:
            under_way = [pool.submit(self._bring, file, number) for file in self.files]
            try:
                names = [one.result() for one in under_way]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        # Those that were there may be of a copy that was killed before it made them durable.
        for start in range(0, len(names), _SYNC_FILES):
            self.target.sync(names[start : start + _SYNC_FILES])
        return {
            file.name: name.removeprefix(f"{file.table}/")
            for file, name in zip(self.files, names, strict=True)
        }

    def _bring(self, file: DataFile, number: int) -> str:
        """Return the name under which the target has a file now."""
        if self.linked and (shared := self._linked(file, number)):
            return shared
        kept = self._there.kept(file.name, file.handle)
        if kept is not None and self._holds(kept, file):
            self._advance(file.handle.size_bytes)
            return kept
        for left in self._there.left(file.name, file.handle):
            if renewed := self._renewed(left, file, number):
                self._advance(file.handle.size_bytes)
                return renewed
        return self._written(file, number)

    def _linked(self, file: DataFile, number: int) -> str | None:
        """Share a file with the source; its length is looked at, and no byte is read."""
        name = _new(file, number)
        try:
            shared = link(self.source, file.name, self.target, name)
        except FileNotFoundError as error:
            raise _missing(self.source, file.name) from error
        try:
            if not shared or self.target.size(name) != file.handle.size_bytes:
                return None  # the copy says what is wrong with it
        except FileNotFoundError:
            return None  # a collection that spares no young file took it
        self._advance(file.handle.size_bytes)
        return name

    def _renewed(self, left: str, file: DataFile, number: int) -> str | None:
        """Give what an earlier copy left a new name; None when it is not the file, or gone."""
        name = _new(file, number)
        try:
            return name if self._holds(left, file) and self.target.renew(left, name) else None
        except FileNotFoundError:
            return None

    def _written(self, file: DataFile, number: int) -> str:
        """Stream a file to the target; DamagedFileError unless what was read is what it must be."""
        name, sha256, size = _new(file, number), hashlib.sha256(), 0
        with closing(self._chunks(file.name)) as chunks:
            chunk = next(chunks, b"")  # what the source lacks is found before a file is begun
            with named("write", f"{self.target.url}/{name}"), self.target.open_write(name) as out:
                while chunk:
                    out.write(chunk)
                    sha256.update(chunk)
                    size += len(chunk)
                    self._advance(len(chunk), copied=True)
                    chunk = next(chunks, b"")
        if (size, sha256.hexdigest()) != (file.handle.size_bytes, file.handle.sha256):
            raise DamagedFileError(
                f"{self.source.url}/{file.name} holds other bytes than were written: {size} of "
                f"SHA-256 {sha256.hexdigest()[:16]}…, the manifest says {file.handle.size_bytes} "
                f"of {file.handle.sha256[:16]}…; copy another checkpoint, or salvage this one"
            )
        with self._lock:
            self.copied_files += 1
        return name

    def _chunks(self, name: str) -> Generator[bytes]:
        try:
            with (
                named("read", f"{self.source.url}/{name}"),
                closing(self.source.open_read(name)) as file,
            ):
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except FileNotFoundError as error:
            raise _missing(self.source, name) from error

    def _holds(self, name: str, file: DataFile) -> bool:
        """Return whether a file of the target has the bytes that it is to have."""
        sha256 = hashlib.sha256()
        try:
            with (
                named("read", f"{self.target.url}/{name}"),
                closing(self.target.open_read(name)) as there,
            ):
                while chunk := there.read(_CHUNK_BYTES):
                    sha256.update(chunk)
        except FileNotFoundError:
            return False  # a collection took it
        return sha256.hexdigest() == file.handle.sha256

    def _advance(self, count: int, *, copied: bool = False) -> None:
        with self._lock:
            self._done += count
            self.copied_bytes += count if copied else 0
            self.progress(self._done, self.total)


def _new(file: DataFile, number: int) -> str:
    return f"{file.table}/{new_name(file.handle, number)}"


def _missing(source: Storage, name: str) -> MissingFileError:
    return MissingFileError(
        f"{source.url}/{name} is missing, and the manifest names it; copy another checkpoint, or "
        "salvage this one"
    )
