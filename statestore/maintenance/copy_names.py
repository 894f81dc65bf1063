"""Give existing bytes a new name: no two attempts ever use the same file name.

A collection deletes by name, possibly long after it has listed the file as old. It deletes the
name even if the file under it was written again meanwhile. A failed attempt may also delete the
files that it wrote. So an attempt that finds files of an earlier attempt, or of another store,
never uses their names. It gives the bytes a new name of its own, which counts as young. ``gc``
removes the names that no manifest uses in the end.

The new name contains part of the SHA-256, so that the next attempt can find the file.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Manifest
from statestore.format.names import operator_file, partition_file, ranged_file
from statestore.storage import Storage

__all__ = ["StoredFileIndex", "new_name"]


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
