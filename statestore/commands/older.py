"""What older checkpoints still know of a state that a newer one has lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from statestore.catalog.catalog import Catalog
from statestore.errors import CheckpointNotFoundError, CorruptionError, FormatVersionError
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry, Manifest, OperatorEntry
from statestore.format.schema import same_type
from statestore.format.state import KeyedState
from statestore.storage import Storage
from statestore.table.salvage import is_whole, whole_groups

__all__ = ["FoundElements", "FoundGroups", "OlderCheckpoints", "Source"]


@dataclass(frozen=True)
class Source:
    """Where a checkpoint has a key group whole, in how many rows; ``handle`` is the file that has
    all of it, None with changes, or without rows.
    """

    checkpoint_id: int
    entry: KeyedEntry
    handle: KeyedStateHandle | None
    rows: int


@dataclass
class FoundGroups:
    """Per lost key group who knows it: (checkpoint, keys), and from where it can be filled."""

    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    sources: dict[int, Source] = field(default_factory=dict)
    keys: list[dict[str, Any]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


@dataclass
class FoundElements:
    """Which checkpoint has an operator state whole, and its entry there."""

    checkpoint_id: int | None = None
    entry: OperatorEntry | None = None
    reasons: list[str] = field(default_factory=list)


class OlderCheckpoints:
    """The checkpoints before one, newest first: visible ones, and those that a savepoint keeps."""

    def __init__(self, catalog: Catalog, storage: Storage, below: int) -> None:
        """List them; no manifest is read yet."""
        kept = {one.checkpoint_id for one in catalog.holds.savepoints()}
        self.ids = sorted(
            (i for i in {*catalog.checkpoint_ids(), *kept} if i < below), reverse=True
        )
        self._catalog, self._storage = catalog, storage
        self._loaded: dict[int, Manifest | None] = {}

    def groups(
        self,
        entry: KeyedEntry,
        lost: Collection[int],
        damaged: Collection[str],
        *,
        fill: bool,
        limit: int,
    ) -> FoundGroups:
        """Return what the newest checkpoints that have the lost key groups whole know of them.

        With ``fill`` also where from they can be filled: from a checkpoint in which the state has
        the same key groups and columns. ``limit`` is how many keys are shown.
        """
        found = FoundGroups()
        for manifest, older in self._keyed(entry):
            unfilled = set(lost) - found.sources.keys() if fill else set()
            unknown = set(lost) - found.known.keys()
            if not unfilled and not unknown:
                break
            other_keys, other_columns = _differences(older.state, entry.state)
            if other_keys or other_columns:
                why = ", ".join((*other_keys, *other_columns))
                found.reasons.append(f"checkpoint {manifest.checkpoint_id} has it with {why}")
                unfilled = set()
            if other_keys:
                continue
            room = limit - len(found.keys)
            wanted = unknown | unfilled
            for one in whole_groups(self._storage, older, wanted, damaged, room):
                if one.group in unknown:
                    found.known[one.group] = manifest.checkpoint_id, one.keys
                    found.keys += one.examples
                if one.group in unfilled:
                    source = Source(manifest.checkpoint_id, older, one.handle, one.rows)
                    found.sources[one.group] = source
        return found

    def elements(self, entry: OperatorEntry) -> FoundElements:
        """Return the newest checkpoint that has an operator state whole, in the same form."""
        found = FoundElements()
        for manifest in self._manifests():
            for older in manifest.operator:
                if (older.state.uid, older.state.name) != (entry.state.uid, entry.state.name):
                    continue
                why = _other_elements(older, entry)
                if why is not None:
                    found.reasons.append(f"checkpoint {manifest.checkpoint_id} has it with {why}")
                elif is_whole(self._storage, older, older.handles):
                    return FoundElements(manifest.checkpoint_id, older, found.reasons)
        return found

    def _keyed(self, entry: KeyedEntry) -> Iterator[tuple[Manifest, KeyedEntry]]:
        for manifest in self._manifests():
            for older in manifest.keyed:
                if (older.state.uid, older.state.name) == (entry.state.uid, entry.state.name):
                    yield manifest, older

    def _manifests(self) -> Iterator[Manifest]:
        for checkpoint_id in self.ids:
            if checkpoint_id not in self._loaded:
                self._loaded[checkpoint_id] = self._load(checkpoint_id)
            manifest = self._loaded[checkpoint_id]
            if manifest is not None:
                yield manifest

    def _load(self, checkpoint_id: int) -> Manifest | None:
        try:
            return self._catalog.manifest(checkpoint_id)
        except (CheckpointNotFoundError, CorruptionError, FormatVersionError):
            return None  # this one knows nothing any more, older ones may


def _differences(old: KeyedState, new: KeyedState) -> tuple[list[str], list[str]]:
    """Return what makes key groups of two states different ones, and what else differs."""
    of_keys = [
        f"{what} {before}"
        for what, before, now in (
            ("max parallelism", old.max_parallelism, new.max_parallelism),
            ("hash scheme", old.hash_scheme, new.hash_scheme),
            ("the key", ", ".join(old.key), ", ".join(new.key)),
            ("key types", ", ".join(old.key_types), ", ".join(new.key_types)),
        )
        if before != now
    ]
    same = (old.kind, old.namespace, old.entry) == (new.kind, new.namespace, new.entry)
    columns = old.schema.names == new.schema.names and all(
        same_type(field.type, new.schema.type_of(field.name)) for field in old.schema.fields
    )
    return of_keys, [] if same and columns else [f"the columns ({old.schema})"]


def _other_elements(old: OperatorEntry, new: OperatorEntry) -> str | None:
    if old.state.mode is not new.state.mode:
        return f"mode {old.state.mode.value}"
    if str(old.state.schema) != str(new.state.schema):
        return f"the columns ({old.state.schema})"
    if len(old.counts) != len(new.counts):
        return f"parallelism {len(old.counts)}"
    return None
