"""Find the damage of a checkpoint, the parts still readable, and older copies of the rest.

The readable key groups of damaged files and of older checkpoints are copied into new files.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.catalog.catalog import Catalog
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    DamagedFileError,
    FormatVersionError,
)
from statestore.format.handles import KeyedStateHandle, OperatorStateHandle
from statestore.format.manifest import Entry, KeyedEntry, Manifest, OperatorEntry
from statestore.format.schema import same_type
from statestore.format.state import KeyedState
from statestore.layers.intact_key_groups import Rows, group_digests, intact_elements
from statestore.layers.key_group_contents import (
    exact_groups,
    group_rows,
    intact_groups,
    live_parts,
    read_groups,
)
from statestore.listeners import Progress
from statestore.maintenance.verify_file import BrokenFile, check_file, check_files, checks_of
from statestore.parquet.keyed_writer import CheckpointFiles
from statestore.parquet.operator_elements import write_elements
from statestore.parquet.reader import add_key_group, restored_schema
from statestore.rows.equality import first_of_equals
from statestore.rows.python_values import display_rows
from statestore.rows.sorting import key_group_pieces
from statestore.storage import Storage


@dataclass(frozen=True)
class SalvageSource:
    """An intact key group of a checkpoint: its number of rows and keys, and some keys as examples.

    ``handle`` is the file that holds all of it; None if the key group has changes, or no rows. A
    whole operator state is a source too, without a handle and keys.
    """

    checkpoint_id: int
    entry: Entry
    handle: KeyedStateHandle | None
    rows: int
    keys: int | None = None
    examples: tuple[dict[str, Any], ...] = ()


Sources = dict[int | None, SalvageSource]
"""Sources by key group; None for a whole operator state."""


def readable_groups(
    storage: Storage, entry: KeyedEntry, handle: KeyedStateHandle
) -> frozenset[int]:
    """Return the key groups of a damaged file that are still intact."""
    every = range(entry.state.max_parallelism)
    alone = replace(entry, handles=(handle,))
    return intact_groups(storage, alone, every)


def are_elements_intact(storage: Storage, entry: OperatorEntry) -> bool:
    """Return whether the elements of a state can be read although its file is damaged."""
    return intact_elements(storage, entry) is not None


def is_whole(storage: Storage, entry: KeyedEntry | OperatorEntry, handles: Collection[Any]) -> bool:
    """Return whether every byte of these files of a state is unchanged."""
    checks = checks_of(storage, entry, entry.handles, deep=True)
    return all(check_file(check) is None for check in checks if check.handle in handles)


def whole_groups(
    storage: Storage,
    checkpoint_id: int,
    entry: KeyedEntry,
    wanted: Collection[int],
    damaged: Collection[str],
    limit: int,
) -> Iterator[tuple[int, SalvageSource]]:
    """Yield the wanted key groups that are intact in a checkpoint, including empty ones.

    Files named in ``damaged`` are skipped. ``limit`` bounds the number of example keys over all key
    groups together.
    """
    handles = {
        group: handle
        for handle in (() if entry.layers else entry.handles)
        for group, _, _ in group_digests(handle)
    }
    empty = set(wanted) - group_rows(entry).keys()
    groups = read_groups(storage, entry, wanted, damaged="skip", unread=damaged)
    for group, pieces in groupby(groups, key=itemgetter(0)):
        count, keys, examples = _keys((rows for _, rows in pieces), entry.state.key, limit)
        if not count:  # its changes deleted all rows
            empty.add(group)
            continue
        limit -= len(examples)
        handle = handles.get(group)
        yield group, SalvageSource(checkpoint_id, entry, handle, count, keys, examples)
    for group in sorted(empty):
        yield group, SalvageSource(checkpoint_id, entry, None, 0, 0, ())


def copy_groups(
    storage: Storage,
    sources: Sequence[tuple[KeyedEntry, Collection[int]]],
    entry: KeyedEntry,
    new: CheckpointFiles,
) -> tuple[KeyedStateHandle, ...]:
    """Write key groups of several states, merged with their changes, as new files of one state.

    Raises StorageError, or DamagedFileError if rows no longer match their digest.
    """
    streams = [exact_groups(storage, source, frozenset(own)) for source, own in sources]
    schema, options = restored_schema(entry.state.schema), new.options
    with ExitStack() as stack:
        for stream in streams:  # if writing fails, their files are closed here and now
            stack.callback(stream.close)
        merged = heapq.merge(*streams, key=itemgetter(0))
        rows = (add_key_group(rows, group, schema) for group, rows in merged)
        pieces = key_group_pieces(rows, entry.state, options.run_bytes, options.memory_bytes)
        return new.write(entry, pieces)


def rewrite_elements(
    storage: Storage, entry: OperatorEntry, checkpoint_id: int
) -> tuple[OperatorStateHandle, ...]:
    """Write the readable elements of a damaged file to a new file.

    Raises StorageError, or DamagedFileError if they can no longer be read.
    """
    elements = intact_elements(storage, entry)
    if elements is None:
        raise DamagedFileError(
            f"the elements of {entry.state} were readable a moment ago and no longer are; run "
            "salvage again"
        )
    return write_elements(elements, entry.state, storage, entry.table.path, checkpoint_id)


def _keys(
    batches: Iterable[pa.RecordBatch], key: Sequence[str], limit: int
) -> tuple[int, int, tuple[dict[str, Any], ...]]:
    """Count the rows and keys in the sorted batches of a key group, and return its first keys."""
    rows, keys = 0, 0
    examples: list[dict[str, Any]] = []
    before: Rows = []
    for batch in batches:
        own = batch.select(list(key))
        begins = first_of_equals(pa.Table.from_batches([*before, own]))[len(before) :]
        places = np.flatnonzero(begins)
        examples += display_rows(own.take(pa.array(places[: max(limit - len(examples), 0)])))
        rows, keys = rows + batch.num_rows, keys + len(places)
        before = [own.slice(own.num_rows - 1)] if own.num_rows else before
    return rows, keys, tuple(examples)


@dataclass
class GroupCopies:
    """For each lost key group, its newest intact copy; None stands for a whole operator state.

    ``known`` has (checkpoint, number of keys), and ``sources`` the copies that it can be filled
    from.
    """

    known: dict[int | None, tuple[int, int | None]] = field(default_factory=dict)
    sources: Sources = field(default_factory=dict)
    keys: list[dict[str, Any]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


class OlderCheckpoints:
    """The checkpoints older than a given one, newest first.

    Includes the visible ones and the ones that a savepoint holds.
    """

    def __init__(self, catalog: Catalog, storage: Storage, below: int) -> None:
        """List their ids. No manifest is read yet."""
        self.ids = [number for number in reversed(catalog.kept_ids()) if number < below]
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
            number, wanted = manifest.checkpoint_id, unknown | unfilled
            for group, source in whole_groups(self._storage, number, older, wanted, damaged, room):
                if group in unknown:
                    copies.known[group] = number, source.keys
                    copies.keys += source.examples
                if group in unfilled:
                    copies.sources[group] = source
        return copies

    def elements(self, entry: OperatorEntry, *, fill: bool) -> GroupCopies:
        """Find the newest intact copy of an operator state; with ``fill``, also to fill it from."""
        copies = GroupCopies()
        for manifest in self._older_manifests():
            for older in manifest.operator:
                if (older.state.uid, older.state.name) != (entry.state.uid, entry.state.name):
                    continue
                why = _elements_difference(older, entry)
                if why is not None:
                    copies.reasons.append(
                        f"checkpoint {manifest.checkpoint_id} stores the state with {why}"
                    )
                elif _is_left_out(manifest, older):
                    copies.reasons.append(
                        f"checkpoint {manifest.checkpoint_id} also lacks the state"
                    )
                elif is_whole(self._storage, older, older.handles):
                    source = SalvageSource(manifest.checkpoint_id, older, None, older.rows)
                    copies.known[None] = source.checkpoint_id, None
                    copies.sources |= {None: source} if fill else {}
                    return copies
        return copies

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


@dataclass(frozen=True)
class DamagedFile:
    """A damaged file: the state, its base or layer of changes, the handle, and the reasons."""

    entry: Entry
    part: Entry
    handle: KeyedStateHandle | OperatorStateHandle
    broken: BrokenFile


@dataclass
class DamagedKeyed:
    """A keyed state with damaged files, its readable key groups, and copies of the lost ones."""

    entry: KeyedEntry
    readable: dict[KeyedStateHandle, frozenset[int]] = field(default_factory=dict)
    copies: GroupCopies = field(default_factory=GroupCopies)

    @property
    def damaged_files(self) -> int:
        """The number of damaged files."""
        return len(self.readable)

    def lost_groups(self) -> dict[int, int]:
        """Return the rows of each lost key group, in order.

        With changes, these are the rows in its files.

        A key group is lost if its base or one layer of its changes is lost. Damage to rows of a
        layer that were folded into the base loses nothing.
        """
        lost = {
            group
            for part, live in live_parts(self.entry)
            for handle in part.handles
            if handle in self.readable
            for group, _, _ in group_digests(handle)
            if group in live and group not in self.readable[handle]
        }
        rows = group_rows(self.entry)
        return {group: rows[group] for group in sorted(lost)}

    def kept_groups(self) -> frozenset[int]:
        """Return the key groups that have rows and are not lost."""
        return frozenset(group_rows(self.entry).keys() - self.lost_groups().keys())


@dataclass
class DamagedElements:
    """An operator state with a damaged file: whether it is still readable, and an older copy."""

    entry: OperatorEntry
    readable: bool
    copies: GroupCopies = field(default_factory=GroupCopies)

    @property
    def damaged_files(self) -> int:
        """The number of damaged files."""
        return len(self.entry.handles)

    def lost_groups(self) -> dict[int | None, int]:
        """Return the lost elements, which belong to no key group."""
        return {} if self.readable else {None: self.entry.rows}


Damage = DamagedKeyed | DamagedElements


def damaged_files(storage: Storage, manifest: Manifest, progress: Progress) -> list[DamagedFile]:
    """Check every byte and row of every file, several in parallel; return the damaged files."""
    owned = [
        (entry, check)
        for entry in manifest.entries
        for part in entry.parts
        for check in checks_of(storage, part, part.handles, deep=True)
    ]
    damaged: list[DamagedFile] = []
    progress(0, len(owned))
    results = zip(owned, check_files(check for _, check in owned), strict=True)
    for done, ((owner, check), flaws) in enumerate(results, start=1):
        progress(done, len(owned))
        if flaws is not None:
            broken = check.broken(flaws, manifest.checkpoint_id)
            damaged.append(DamagedFile(owner, check.entry, check.handle, broken))
    return damaged


def assess_damage(
    storage: Storage,
    damaged: list[DamagedFile],
    older: OlderCheckpoints,
    *,
    fill: bool,
    keys: int,
) -> list[Damage]:
    """For each damaged state, find the readable parts and the copies in older checkpoints."""
    states: dict[tuple[str, str], Damage] = {}
    for one_file in damaged:
        entry, part, handle = one_file.entry, one_file.part, one_file.handle
        name = entry.state.uid, entry.state.name
        if isinstance(entry, OperatorEntry):
            if name not in states:
                states[name] = DamagedElements(entry, are_elements_intact(storage, entry))
            continue
        assert isinstance(part, KeyedEntry)
        assert isinstance(handle, KeyedStateHandle)
        keyed_damage = states.setdefault(name, DamagedKeyed(entry))
        assert isinstance(keyed_damage, DamagedKeyed)
        keyed_damage.readable[handle] = readable_groups(storage, part, handle)
    files = frozenset(one_file.broken.file for one_file in damaged)
    for damage in states.values():
        if isinstance(damage, DamagedKeyed):
            lost = damage.lost_groups()
            damage.copies = older.groups(damage.entry, lost, files, fill=fill, limit=keys)
        elif not damage.readable:
            damage.copies = older.elements(damage.entry, fill=fill)
    return [*states.values()]
