"""What the store knows of a state from the checkpoints before: the newest one that has it (I3).

Nearly always that is the newest checkpoint. A state that it lacks may have been left out for a
while, so older checkpoints are asked too, but only where the operator has files in the store: a
state that is new costs one listing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from statestore.catalog.catalog import Catalog
from statestore.errors import CheckpointNotFoundError, MalformedManifestError
from statestore.flink.operators import Operators
from statestore.format.manifest import Entry, KeyedEntry, Manifest
from statestore.format.names import operator_folder
from statestore.format.state import KeyedState, OperatorState

__all__ = ["History"]


class History:
    """The checkpoints of a store as they were when a snapshot began, read when they are needed."""

    def __init__(self, catalog: Catalog, operators: Operators) -> None:
        """Look which checkpoints there are; ``operators`` are those of the job that asks."""
        self._catalog, self._operators = catalog, operators
        self._unread = list(catalog.checkpoint_ids())
        self._newest = self._unread[-1] if self._unread else None
        self._read: list[Manifest] = []

    def newest(self) -> Manifest | None:
        """Return the newest checkpoint, None when there is none; MalformedManifestError when it
        cannot be read.
        """
        return None if self._newest is None else self._catalog.load(self._newest)

    def before(self) -> Manifest | None:
        """Return the newest checkpoint that can be read, None when there is none."""
        return next(self._manifests(), None)

    def keyed(self, uid: str, name: str) -> KeyedState | None:
        """Return a keyed state as the newest checkpoint that has it stored it."""
        for entry in self._entries(uid):
            if entry.state.name == name and isinstance(entry.state, KeyedState):
                return entry.state
        return None

    def newest_keyed(self, uid: str, name: str) -> KeyedEntry | None:
        """Return a keyed state as the newest checkpoint has it, None when that lacks it.

        Raises MalformedManifestError when the newest manifest cannot be read.
        """
        manifest, ids = self.newest(), self._operators.ids_of(uid)
        if manifest is None:
            return None
        for entry in manifest.keyed:
            known = manifest.operators.id_of(entry.state.uid) in ids
            if known and entry.state.name == name:
                return entry
        return None

    def rows(self, uid: str, name: str) -> int | None:
        """Return the rows of a keyed state in the newest checkpoint that has it; with changes, of
        its base.
        """
        for entry in self._entries(uid):
            if entry.state.name == name and isinstance(entry, KeyedEntry):
                return entry.rows - entry.changed_rows
        return None

    def operator(self, uid: str, name: str) -> OperatorState | None:
        """Return an operator state as the newest checkpoint that has it stored it."""
        for entry in self._entries(uid):
            if entry.state.name == name and isinstance(entry.state, OperatorState):
                return entry.state
        return None

    def max_parallelism(self, uid: str) -> int | None:
        """Return the number of key groups of an operator, None when it has no keyed state."""
        for entry in self._entries(uid):
            if isinstance(entry.state, KeyedState):
                return entry.state.max_parallelism
        return None

    def _entries(self, uid: str) -> Iterator[Entry]:
        """Yield an operator's states, newest checkpoint first; operator ids tell who is who."""
        ids = self._operators.ids_of(uid)
        for number, manifest in enumerate(self._manifests()):
            for entry in manifest.entries:
                if manifest.operators.id_of(entry.state.uid) in ids:
                    yield entry
            if number or self._operators.graph is not None:
                continue  # in a graph an operator may have another label than before
            if not self._catalog.storage.list(operator_folder(uid)):
                return

    def _manifests(self) -> Iterator[Manifest]:
        yield from self._read
        while self._unread:
            manifest = self._load(self._unread.pop())
            if manifest is not None:
                self._read.append(manifest)
                yield manifest

    def _load(self, checkpoint_id: int) -> Manifest | None:
        """Return a manifest; a damaged one, or one that was just expired, must not keep a job from
        its next checkpoint.
        """
        try:
            return self._catalog.load(checkpoint_id)
        except CheckpointNotFoundError:
            return None
        except MalformedManifestError as error:
            warnings.warn(f"{error}; going by the checkpoint before it", stacklevel=8)
            return None
