"""Search older checkpoints for state that a newer one has lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from statestore.catalog.catalog import Catalog
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
)
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry, Manifest, OperatorEntry
from statestore.format.schema import same_type
from statestore.format.state import KeyedState
from statestore.maintenance.salvage_readable import (
    is_whole,
    whole_groups,
)
from statestore.storage import Storage

__all__ = ["ElementsCopy", "GroupCopies", "OlderCheckpoints", "SalvageSource"]


@dataclass(frozen=True)
class SalvageSource:
    """A checkpoint's intact copy of a key group.

    ``handle`` is the file that holds all of it; None if the key group has changes, or no rows.
    """

    checkpoint_id: int
    entry: KeyedEntry
    handle: KeyedStateHandle | None
    rows: int


@dataclass
class GroupCopies:
    """For each lost key group, its newest intact copy.

    ``known`` has (checkpoint, number of keys), and ``sources`` the copies that it can be filled
    from.
    """

    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    sources: dict[int, SalvageSource] = field(default_factory=dict)
    keys: list[dict[str, Any]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


@dataclass
class ElementsCopy:
    """The newest checkpoint with an intact copy of an operator state, and its entry there."""

    checkpoint_id: int | None = None
    entry: OperatorEntry | None = None
    reasons: list[str] = field(default_factory=list)


class OlderCheckpoints:
    """The checkpoints older than a given one, newest first.

    Includes the visible ones and the ones that a savepoint holds.
    """

    def __init__(self, catalog: Catalog, storage: Storage, below: int) -> None:
        """List their ids. No manifest is read yet."""
        kept = {savepoint.checkpoint_id for savepoint in catalog.holds.savepoints()}
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
    ) -> GroupCopies:
        """Find the newest intact copy of each lost key group.

        With ``fill``, also find a copy to fill it from. That must be a checkpoint in which the
        state has the same key groups and columns. ``limit`` bounds the number of example keys.
        """
        copies = GroupCopies()
        for manifest, older in self._older_entries(entry):
            unfilled = set(lost) - copies.sources.keys() if fill else set()
            unknown = set(lost) - copies.known.keys()
            if not unfilled and not unknown:
                break
            other_keys, other_columns = _differences(older.state, entry.state)
            if other_keys or other_columns:
                why = ", ".join((*other_keys, *other_columns))
                copies.reasons.append(
                    f"checkpoint {manifest.checkpoint_id} stores the state with {why}"
                )
                unfilled = set()
            if other_keys:
                continue
            missing = {group for group in lost if _is_left_out(manifest, older, group)}
            if missing & (unknown | unfilled):
                copies.reasons.append(
                    f"checkpoint {manifest.checkpoint_id} also lacks some of these key groups"
                )
            unknown, unfilled = unknown - missing, unfilled - missing
            room = limit - len(copies.keys)
            wanted = unknown | unfilled
            for whole_group in whole_groups(self._storage, older, wanted, damaged, room):
                if whole_group.group in unknown:
                    copies.known[whole_group.group] = manifest.checkpoint_id, whole_group.keys
                    copies.keys += whole_group.examples
                if whole_group.group in unfilled:
                    source = SalvageSource(
                        manifest.checkpoint_id, older, whole_group.handle, whole_group.rows
                    )
                    copies.sources[whole_group.group] = source
        return copies

    def elements(self, entry: OperatorEntry) -> ElementsCopy:
        """Return the newest checkpoint with an intact, compatible copy of an operator state."""
        copy = ElementsCopy()
        for manifest in self._older_manifests():
            for older in manifest.operator:
                if (older.state.uid, older.state.name) != (entry.state.uid, entry.state.name):
                    continue
                why = _elements_difference(older, entry)
                if why is not None:
                    copy.reasons.append(
                        f"checkpoint {manifest.checkpoint_id} stores the state with {why}"
                    )
                elif _is_left_out(manifest, older):
                    copy.reasons.append(f"checkpoint {manifest.checkpoint_id} also lacks the state")
                elif is_whole(self._storage, older, older.handles):
                    return ElementsCopy(manifest.checkpoint_id, older, copy.reasons)
        return copy

    def _older_entries(self, entry: KeyedEntry) -> Iterator[tuple[Manifest, KeyedEntry]]:
        for manifest in self._older_manifests():
            for older in manifest.keyed:
                if (older.state.uid, older.state.name) == (entry.state.uid, entry.state.name):
                    yield manifest, older

    def _older_manifests(self) -> Iterator[Manifest]:
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
            return None  # unreadable; older ones may still help


def _is_left_out(
    manifest: Manifest, entry: KeyedEntry | OperatorEntry, key_group: int | None = None
) -> bool:
    """Return whether a checkpoint left out a state of its source, or a key group of it (I16)."""
    state = entry.state
    return any(part.lacks(state.uid, state.name, key_group) for part in manifest.left_out)


def _differences(old: KeyedState, new: KeyedState) -> tuple[list[str], list[str]]:
    """Return two states' differences: those that change the key groups, and all others."""
    of_keys = [
        f"{property_name} {before}"
        for property_name, before, now in (
            ("max parallelism", old.max_parallelism, new.max_parallelism),
            ("hash scheme", old.hash_scheme, new.hash_scheme),
            ("another key", ", ".join(old.key), ", ".join(new.key)),
            ("key types", ", ".join(old.key_types), ", ".join(new.key_types)),
        )
        if before != now
    ]
    same = (old.kind, old.namespace, old.entry) == (new.kind, new.namespace, new.entry)
    columns = old.schema.names == new.schema.names and all(
        same_type(field.type, new.schema.type_of(field.name)) for field in old.schema.fields
    )
    return of_keys, [] if same and columns else [f"the columns ({old.schema})"]


def _elements_difference(old: OperatorEntry, new: OperatorEntry) -> str | None:
    if old.state.mode is not new.state.mode:
        return f"mode {old.state.mode.value}"
    if str(old.state.schema) != str(new.state.schema):
        return f"the columns ({old.state.schema})"
    if len(old.counts) != len(new.counts):
        return f"parallelism {len(old.counts)}"
    return None
