"""The reads of a subtask from a keyed state: slices of files, in order of key group (I8)."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from statestore.format.handles import KeyedStateSlice
from statestore.format.manifest import KeyedEntry
from statestore.keys.groups import (
    Assignment,
    KeyGroupAssignment,
    KeyGroupRange,
    ceiling_of,
    effective_max_parallelism,
)

Slices = tuple[KeyedStateSlice, ...]
"""The slices to read from a state, or from one of its layers."""


@dataclass(frozen=True)
class LayerReads:
    """The reads from a layer of changes; only rows of key groups in ``live`` apply."""

    entry: KeyedEntry
    slices: Slices
    live: tuple[KeyGroupRange, ...]


@dataclass(frozen=True)
class KeptGroups:
    """A filter for key groups of another max parallelism than the stored one.

    Rows in ``own`` are kept, and get their key group out of ``max_parallelism``.
    """

    own: KeyGroupRange
    max_parallelism: int


class ReadSlices(Struct, frozen=True, gc=False):
    """The slices that a subtask reads from the base and from its layers, oldest layer first.

    ``kept`` filters the rows by key group; None keeps all rows.
    """

    base: Slices
    layers: tuple[LayerReads, ...] = ()
    kept: KeptGroups | None = None

    @property
    def changes(self) -> Slices:
        """The slices of all layers."""
        return tuple([part for layer in self.layers for part in layer.slices])

    @property
    def slices(self) -> Slices:
        """All slices."""
        return (*self.base, *self.changes) if self.layers else self.base

    def names(self, entry: KeyedEntry) -> tuple[str, ...]:
        """Return the names of the files to read, in the order of :attr:`slices`."""
        own = [(entry, part) for part in self.base]
        own += [(layer.entry, part) for layer in self.layers for part in layer.slices]
        return tuple([entry.table.name_of(part.handle) for entry, part in own])


@dataclass(frozen=True)
class KeyedPlan:
    """The reads of a keyed state by owner: a plan summarizes the slices, a restore reads them.

    They are computed on each call, because a job may have a hundred states and thousands of
    subtasks.
    """

    entry: KeyedEntry
    owners: Assignment

    def of_groups(self, key_groups: KeyGroupRange) -> ReadSlices:
        """Return the reads for some key groups, whatever subtask owns them."""
        return reads_of(self.entry, key_groups, self.owners.max_parallelism)

    def of_all(self) -> tuple[ReadSlices, ...]:
        """Return the reads of each subtask, in order."""
        return tuple([self.of_groups(key_groups) for key_groups in self.owners.ranges()])


def assignment_of(
    entry: KeyedEntry, parallelism: int, max_parallelism: int | None = None
) -> KeyGroupAssignment:
    """Return the owners of the key groups of a stored state.

    ``max_parallelism`` may be a multiple or a divisor of the stored one. ParallelismError names the
    operator.
    """
    try:
        stored = entry.state.max_parallelism
        if max_parallelism is None:
            max_parallelism = effective_max_parallelism(stored, parallelism, None)
        ceiling_of(stored, max_parallelism)
        return KeyGroupAssignment(max_parallelism=max_parallelism, parallelism=parallelism)
    except ValueError as error:
        error.add_note(f"while planning {entry.state}")
        raise


def slices_of(entry: KeyedEntry, key_groups: KeyGroupRange) -> Slices:
    """Return, in order, the base-file slices that the owner of ``key_groups`` must read.

    Files without rows in these key groups are omitted.
    """
    handles, ranges = entry.by_key_group
    cuts = ranges.cuts(key_groups.first, key_groups.last)
    return tuple([part for index, own in cuts if (part := handles[index].part(own)).rows])


def reads_of(
    entry: KeyedEntry, key_groups: KeyGroupRange, max_parallelism: int | None = None
) -> ReadSlices:
    """Return the slices that the owner of ``key_groups`` must read, of the base and its changes.

    ``key_groups`` are numbered within ``max_parallelism``, or within the stored one if it is None.
    If the two differ, the slices cover the stored key groups that contain these rows. A file with
    several of them is read from the first to the last one, so that it is opened only once.
    """
    stored = entry.state.max_parallelism
    if max_parallelism is None or max_parallelism == stored:
        layers = _layer_reads(entry, key_groups) if entry.layers else ()
        return ReadSlices(slices_of(entry, key_groups), layers)
    ceiling = ceiling_of(stored, max_parallelism)
    assert ceiling is not None  # they differ
    spans = ceiling.stored_groups(key_groups)
    base = _merge_same_file([part for span in spans for part in slices_of(entry, span)])
    kept = KeptGroups(key_groups, max_parallelism)
    return ReadSlices(base, _layer_reads(entry, *spans), kept)


def _merge_same_file(slices: list[KeyedStateSlice]) -> Slices:
    """Merge slices of the same file into one slice, from its first to its last key group."""
    slices_by_path: dict[str, KeyedStateSlice] = {}
    for part in slices:
        before = slices_by_path.get(part.handle.path)
        if before is not None:
            hull = KeyGroupRange(before.key_groups.first, part.key_groups.last)
            cut = part.handle.cut(hull)
            assert cut is not None  # it meets what it was cut from
            part = cut
        slices_by_path[part.handle.path] = part
    return tuple(slices_by_path.values())


def _layer_reads(entry: KeyedEntry, *spans: KeyGroupRange) -> tuple[LayerReads, ...]:
    """Return the reads of the layers that have rows to read.

    Rows between two live ranges are read too, so that a file is opened only once.
    """
    reads = []
    for layer in entry.layers:
        pairs = ((own, span) for own in layer.live for span in spans)
        common = [
            common_range
            for common_range in (own.intersect(span) for own, span in pairs)
            if common_range is not None
        ]
        if not common:
            continue
        slices = slices_of(layer.entry, KeyGroupRange(common[0].first, common[-1].last))
        if slices:
            reads.append(LayerReads(layer.entry, slices, tuple(common)))
    return tuple(reads)
