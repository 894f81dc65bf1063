"""The files that hold a key, and the same files without it: each is read once and written once.

Base and layers of changes are looked at as what lies in files: a layer may hold rows of the key, or
deletes of it, whether or not they count. Checkpoints that are layers over one base share most of
their files, so what is known of one, and what has taken its place, is kept for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from statestore.errors import StorageError
from statestore.files.keyed import KeyedTarget
from statestore.files.lookup import key_batch, key_group_of, table_of_key
from statestore.files.writer import ParquetOptions
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry
from statestore.format.state import KeyedState
from statestore.storage import Storage
from statestore.table.rewrite import changes_of, rewrite

__all__ = ["Hit", "KeyFinder", "KeyRewriter"]

File = tuple[str, KeyedStateHandle]


@dataclass(frozen=True)
class Hit:
    """A state of a checkpoint that holds a key: where, in how many rows, and in which files."""

    entry: KeyedEntry
    key: Any
    key_group: int
    rows: int
    files: frozenset[File]


class KeyFinder:
    """Looks a key up in the files of many checkpoints."""

    def __init__(self, storage: Storage) -> None:
        """Begin with nothing known."""
        self._storage = storage
        self._known: dict[File, int] = {}

    def hits(
        self, entries: Iterable[KeyedEntry], key_of: Callable[[KeyedState], Any]
    ) -> tuple[Hit, ...]:
        """Return those of the states of a checkpoint that hold the key.

        Raises InvalidArgumentError for a key that does not fit, or CorruptionError.
        """
        return tuple(hit for hit in (self._hit(one, key_of(one.state)) for one in entries) if hit)

    def _hit(self, entry: KeyedEntry, key: Any) -> Hit | None:
        group = key_group_of(entry.state, key_batch(entry.state, key))
        found = {
            (part.table.path, handle): rows
            for part in entry.parts
            for handle in part.handles
            if group in handle.key_groups and (rows := self._rows(part, handle, key))
        }
        return Hit(entry, key, group, sum(found.values()), frozenset(found)) if found else None

    def _rows(self, part: KeyedEntry, handle: KeyedStateHandle, key: Any) -> int:
        file = part.table.path, handle
        if file not in self._known:
            alone = replace(part, handles=(handle,))
            self._known[file] = table_of_key(self._storage, alone, key).num_rows
        return self._known[file]


class KeyRewriter:
    """Writes files anew without a key, and knows what has taken the place of which."""

    def __init__(self, storage: Storage, options: ParquetOptions) -> None:
        """Begin with nothing written."""
        self._storage, self._options = storage, options
        self._done: dict[File, tuple[KeyedStateHandle, ...]] = {}

    def without_key(self, hit: Hit, checkpoint_id: int) -> tuple[KeyedEntry, list[str]]:
        """Return the state without the key, and the names of the files that were written for it;
        a layer of which nothing is left is gone.

        Raises MissingFileError, DamagedFileError or StorageError; then nothing that this call has
        written stays.
        """
        new: list[str] = []
        try:
            base, *changes = [
                self._without(part, hit, checkpoint_id, new) for part in hit.entry.parts
            ]
        except BaseException as error:
            self._forget(new, error)
            raise
        layers = zip(hit.entry.layers, changes, strict=True)
        left = tuple(replace(layer, entry=part) for layer, part in layers if part.handles)
        return replace(hit.entry, handles=base.handles, layers=left), new

    def _without(
        self, part: KeyedEntry, hit: Hit, checkpoint_id: int, new: list[str]
    ) -> KeyedEntry:
        handles: list[KeyedStateHandle] = []
        folder = part.table.path
        for handle in part.handles:
            file = folder, handle
            if file not in hit.files:
                handles.append(handle)
                continue
            if file not in self._done:
                alone = replace(part, handles=(handle,))
                target = KeyedTarget(
                    self._storage, folder, checkpoint_id, part.state, self._options
                )
                gone = changes_of(part.state, [hit.key], ())
                done = rewrite(self._storage, alone, gone, target)
                self._done[file] = done.new
                new += [f"{folder}/{one.path}" for one in done.new]
            handles += self._done[file]
        return replace(part, handles=tuple(handles))

    def _forget(self, names: Iterable[str], reason: BaseException) -> None:
        for name in names:
            try:
                self._storage.delete(name)
            except StorageError as error:
                reason.add_note(f"its file stays behind: {error}")
