"""Look up a state in the prior checkpoints: in the newest checkpoint that has it (I3).

This is nearly always the newest checkpoint. A state that it lacks may have been left out for a
while, so older checkpoints are searched too, but only if the operator has files in the store. So
a new state costs one listing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from statestore.catalog.catalog import Catalog
from statestore.errors import CheckpointNotFoundError, MalformedManifestError
from statestore.format.manifest import Entry, KeyedEntry, Manifest
from statestore.format.names import operator_folder
from statestore.format.state import KeyedState, OperatorState
from statestore.jobgraph.operators import Operators


@dataclass(frozen=True)
class StoredFacts:
    """The facts about a keyed state, from the newest prior checkpoint that has it.

    ``entry`` is None for a new state. ``max_parallelism`` is the operator's, and None if no
    checkpoint has a keyed state of the operator.
    """

    entry: KeyedEntry | None
    max_parallelism: int | None

    @property
    def state(self) -> KeyedState | None:
        """The state as it is stored."""
        return None if self.entry is None else self.entry.state

    @property
    def base_rows(self) -> int | None:
        """The number of rows of its base, without the rows of its changes."""
        return None if self.entry is None else self.entry.rows - self.entry.changed_rows


class PriorCheckpoints:
    """The checkpoints of a store when they are first listed; manifests are read on demand."""

    def __init__(self, catalog: Catalog, operators: Operators) -> None:
        """Read nothing yet; ``operators`` are the calling job's operators."""
        self._catalog, self._operators = catalog, operators
        self._read: list[Manifest] = []
        self._loaded: dict[int, Manifest] = {}

    @cached_property
    def _listed(self) -> tuple[tuple[int, ...], int]:
        return self._catalog.visible_and_newest()

    @cached_property
    def _unread(self) -> list[int]:
        return list(self._listed[0])

    @property
    def newest_id(self) -> int:
        """The greatest id ever used, 0 if there is none; the first call lists the checkpoints."""
        return self._listed[1]

    def load(self, checkpoint: int | str) -> Manifest:
        """Return a manifest as :meth:`Catalog.checkpoint` does; one given by number is cached."""
        known = self._loaded.get(checkpoint) if type(checkpoint) is int else None
        if known is not None:
            return known
        manifest = self._catalog.checkpoint(checkpoint).manifest
        return self._loaded.setdefault(manifest.checkpoint_id, manifest)

    def _load_listed(self, checkpoint_id: int) -> Manifest:
        """Return the manifest of a listed checkpoint, which is not looked up again."""
        if checkpoint_id not in self._loaded:
            self._loaded[checkpoint_id] = self._catalog.load_header(checkpoint_id)
        return self._loaded[checkpoint_id]

    def newest(self) -> Manifest | None:
        """Return the newest checkpoint, or None.

        Raises MalformedManifestError if it cannot be read.
        """
        visible = self._listed[0]
        return self._load_listed(visible[-1]) if visible else None

    def before(self) -> Manifest | None:
        """Return the newest readable checkpoint, or None."""
        return self._read[0] if self._read else next(self._manifests(), None)

    def stored(self, uid: str, name: str) -> StoredFacts:
        """Return the facts about a keyed state from the newest checkpoint that has it."""
        max_parallelism = None
        for entry in self._entries(uid):
            if not isinstance(entry, KeyedEntry):
                continue
            if max_parallelism is None:
                max_parallelism = entry.state.max_parallelism
            if entry.state.name == name:
                return StoredFacts(entry, max_parallelism)
        return StoredFacts(None, max_parallelism)

    def newest_keyed(self, uid: str, name: str) -> KeyedEntry | None:
        """Return a keyed state of the newest checkpoint, or None.

        Raises MalformedManifestError if the newest manifest cannot be read.
        """
        manifest = self.newest()
        return None if manifest is None else self.keyed_in(manifest, uid, name)

    def keyed_in(self, manifest: Manifest, uid: str, name: str) -> KeyedEntry | None:
        """Return a keyed state of a checkpoint, or None.

        States are matched by operator id, because labels can move: in that checkpoint the operator
        may have had another label, and another operator may have had its current label.
        """
        ids = self._operators.ids_of(uid)
        for entry in manifest.keyed:
            known = manifest.operators.id_of(entry.state.uid) in ids
            if known and entry.state.name == name:
                return entry
        return None

    def operator(self, uid: str, name: str) -> OperatorState | None:
        """Return an operator state as it is stored in the newest checkpoint that has it."""
        for entry in self._entries(uid):
            if entry.state.name == name and isinstance(entry.state, OperatorState):
                return entry.state
        return None

    def _entries(self, uid: str) -> Iterator[Entry]:
        """Yield an operator's states, newest checkpoint first, matched by operator id."""
        ids = self._operators.ids_of(uid)
        for number, manifest in enumerate(self._manifests()):
            for entry in manifest.entries:
                if manifest.operators.id_of(entry.state.uid) in ids:
                    yield entry
            if number or self._operators.graph is not None:
                continue  # in a job graph, an operator can have a new label
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
        """Return a manifest, or None if it is damaged, or was collected since the listing.

        Such a checkpoint must not keep a job from taking its next checkpoint.
        """
        try:
            return self._load_listed(checkpoint_id)
        except CheckpointNotFoundError:
            return None
        except MalformedManifestError as error:
            warnings.warn(f"{error}; using the previous checkpoint instead", stacklevel=8)
            return None
