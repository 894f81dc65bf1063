"""New names for bytes that are there already: no two attempts ever name one file.

A collection deletes by name, and may do so long after it has listed a file as old: however young
the file is by then, the name goes. And who fails may delete what it has written. So whoever finds
what an attempt before it has left, or what lies in another store, gives these bytes a name of its
own, which is young, and never takes a name over. What nobody names in the end is left to ``gc``.

The new name says what its file is to hold, so that the next attempt finds it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable

from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Manifest
from statestore.format.names import operator_file, partition_file, ranged_file
from statestore.storage import Storage

__all__ = ["Holding", "new_name"]

_DIGITS = 16  # of the SHA-256
_NEW_NAME = re.compile(rf"[0-9]{{10}}-.*?([0-9a-f]{{{_DIGITS}}})-[0-9a-f]{{16}}\.parquet")


def new_name(handle: Handle, checkpoint_id: int) -> str:
    """Return a name for the bytes of a data file, inside its table, that no file has had."""
    token = f"{handle.sha256[:_DIGITS]}-{uuid.uuid4().hex[:16]}"
    if not isinstance(handle, KeyedStateHandle):
        return operator_file(checkpoint_id, token)
    in_folder = "/" in handle.path
    name = partition_file if in_folder else ranged_file
    return name(checkpoint_id, handle.key_groups.first, token)


class Holding:
    """Files of a store by what they hold, as far as their names or kept checkpoints tell."""

    def __init__(self, storage: Storage, tables: Iterable[str]) -> None:
        """List the tables, whose data files may be wanted."""
        self._sizes = {item.name: item.size_bytes for t in tables for item in storage.listed(t)}
        self._left: dict[tuple[str, str], list[str]] = {}
        self._kept: dict[tuple[str, str], str] = {}
        for name in self._sizes:
            folder, _, last = name.rpartition("/")
            if match := _NEW_NAME.fullmatch(last):
                self._left.setdefault((folder, match[1]), []).append(name)

    def add_kept(self, manifest: Manifest) -> None:
        """Add the files of a checkpoint that is visible."""
        for entry in manifest.parts:
            for handle in entry.handles:
                name = f"{entry.table.path}/{handle.path}"
                self._kept[_place(name, handle)] = name

    def kept(self, name: str, handle: Handle) -> str | None:
        """Return the file of a kept checkpoint that is to hold the same in the same folder, and
        has its length; None when there is none.
        """
        found = self._kept.get(_place(name, handle))
        return found if found and self._sizes.get(found) == handle.size_bytes else None

    def left(self, name: str, handle: Handle) -> list[str]:
        """Return the files that attempts before this one may have left for it."""
        found = self._left.get(_place(name, handle), [])
        return [each for each in found if self._sizes[each] == handle.size_bytes]


def _place(name: str, handle: Handle) -> tuple[str, str]:
    return name.rpartition("/")[0], handle.sha256[:_DIGITS]
