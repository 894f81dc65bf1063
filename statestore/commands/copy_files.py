"""The data files of a checkpoint on their way to another store: checked, linked or copied.

A file that the target has already, with the right length and SHA-256, is not copied again. One with
other bytes was left half-written; it is replaced, unless a checkpoint of the target names it. Bytes
are hashed while they are copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from threading import Lock

from statestore.catalog import Catalog
from statestore.errors import (
    DamagedFileError,
    MalformedManifestError,
    MissingFileError,
    StateStoreError,
)
from statestore.model.manifest import Manifest
from statestore.storage import Storage
from statestore.storage.base import named
from statestore.storage.links import can_link, link

__all__ = ["DataFile", "FileCopy", "Progress", "data_files"]

_CHUNK_BYTES = 2**20
_COPIERS = 4
_SYNC_FILES = 64

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class DataFile:
    """A data file: its name in both stores, and what it must be."""

    name: str
    size_bytes: int
    sha256: str


def data_files(manifest: Manifest) -> tuple[DataFile, ...]:
    """Return the data files that a checkpoint names, each once."""
    found = {
        f"{entry.table.path}/{handle.path}": (handle.size_bytes, handle.sha256)
        for entry in manifest.parts
        for handle in entry.handles
    }
    return tuple(DataFile(name, *facts) for name, facts in found.items())


@dataclass
class FileCopy:
    """Files on their way from one storage to another, and how far they are."""

    source: Storage
    target: Storage
    progress: Progress
    total: int
    copied_files: int = 0
    copied_bytes: int = 0
    linked: bool = False
    _done: int = 0
    _named: frozenset[str] | None = None
    _lock: Lock = field(default_factory=Lock)

    def refuse_named(self, target: Catalog) -> None:
        """Learn which files the checkpoints of the target name: these are never replaced.

        Where one cannot be read nobody knows, and none is.
        """
        numbers = {*target.checkpoint_ids(), *(s.checkpoint_id for s in target.holds.savepoints())}
        try:
            entries = [entry for number in numbers for entry in target.manifest(number).parts]
        except MalformedManifestError:
            self._named = None
            return
        self._named = frozenset(f"{e.table.path}/{h.path}" for e in entries for h in e.handles)

    def look(self, files: tuple[DataFile, ...]) -> None:
        """Count what would be copied; of a file that is there only its length is looked at."""
        if self.linked and can_link(self.source, self.target):
            return
        for file in files:
            if self._length(file) != file.size_bytes:
                self.copied_files += 1
                self.copied_bytes += file.size_bytes

    def copy(self, files: tuple[DataFile, ...]) -> None:
        """Copy what the target lacks, some files side by side, and make it durable."""
        self.progress(0, self.total)
        with ThreadPoolExecutor(max_workers=_COPIERS) as pool:
            under_way = [pool.submit(self._copy, file) for file in files]
            try:
                self.copied_files = sum(one.result() for one in under_way)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        # Those that were there may be of a copy that was killed before it made them durable.
        names = [file.name for file in files]
        for start in range(0, len(names), _SYNC_FILES):
            self.target.sync(names[start : start + _SYNC_FILES])

    def _copy(self, file: DataFile) -> bool:
        """Copy a file unless the target has it; return whether it was copied."""
        length = self._length(file)
        if length is not None:
            if length == file.size_bytes and self._sha256(file.name) == file.sha256:
                self._advance(file.size_bytes)
                return False
            if self._named is None or file.name in self._named:
                raise DamagedFileError(
                    f"{self.target.url}/{file.name} is not the file of that name in "
                    f"{self.source.url}, and a checkpoint of {self.target.url} names it, or "
                    "one whose manifest cannot be read; verify both, and copy to another store"
                )
            self.target.delete(file.name)
        if self.linked and self._linked(file):
            return False
        try:
            self._write(file)
        except BaseException:
            # An object store shows what was written until then, as soon as the file is closed.
            with suppress(StateStoreError):
                self.target.delete(file.name)
            raise
        return True

    def _linked(self, file: DataFile) -> bool:
        """Share a file with the source; its length is looked at, and no byte is read."""
        try:
            if not link(self.source, self.target, file.name):
                return False
        except FileNotFoundError as error:
            raise _missing(self.source, file.name) from error
        if self._length(file) != file.size_bytes:
            self.target.delete(file.name)
            return False  # the copy says what is wrong with it
        self._advance(file.size_bytes)
        return True

    def _write(self, file: DataFile) -> None:
        """Stream a file to the target; DamagedFileError unless what was read is what it must be."""
        sha256, size = hashlib.sha256(), 0
        chunks = self._chunks(file.name)
        chunk = next(chunks, b"")  # what the source lacks is found before a file is begun
        with (
            named("write", f"{self.target.url}/{file.name}"),
            closing(self.target.open_write(file.name)) as out,
        ):
            while chunk:
                out.write(chunk)
                sha256.update(chunk)
                size += len(chunk)
                self._advance(len(chunk), copied=True)
                chunk = next(chunks, b"")
        if (size, sha256.hexdigest()) != (file.size_bytes, file.sha256):
            raise DamagedFileError(
                f"{self.source.url}/{file.name} holds other bytes than were written: {size} of "
                f"SHA-256 {sha256.hexdigest()[:16]}…, the manifest says {file.size_bytes} of "
                f"{file.sha256[:16]}…; copy another checkpoint, or salvage this one"
            )

    def _chunks(self, name: str) -> Iterator[bytes]:
        try:
            with (
                named("read", f"{self.source.url}/{name}"),
                closing(self.source.open_read(name)) as file,
            ):
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
        except FileNotFoundError as error:
            raise _missing(self.source, name) from error

    def _length(self, file: DataFile) -> int | None:
        try:
            return self.target.size(file.name)
        except FileNotFoundError:
            return None

    def _sha256(self, name: str) -> str:
        sha256 = hashlib.sha256()
        with (
            named("read", f"{self.target.url}/{name}"),
            closing(self.target.open_read(name)) as file,
        ):
            while chunk := file.read(_CHUNK_BYTES):
                sha256.update(chunk)
        return sha256.hexdigest()

    def _advance(self, count: int, *, copied: bool = False) -> None:
        with self._lock:
            self._done += count
            self.copied_bytes += count if copied else 0
            self.progress(self._done, self.total)


def _missing(source: Storage, name: str) -> MissingFileError:
    return MissingFileError(
        f"{source.url}/{name} is missing, and the manifest names it; copy another checkpoint, or "
        "salvage this one"
    )
