"""What a subtask reads of a keyed state: slices of files, in order of key group (I8)."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from statestore.format.handles import KeyedStateSlice
from statestore.format.manifest import KeyedEntry
from statestore.keys.groups import (
    KeyGroupAssignment,
    KeyGroupRange,
    effective_max_parallelism,
)
from statestore.keys.ranges import Assignment, ceiling_of

__all__ = [
    "KeptGroups",
    "KeyedPlan",
    "LayerReads",
    "ReadSlices",
    "Slices",
    "assignment_of",
    "reads_of",
    "slices_of",
]

Slices = tuple[KeyedStateSlice, ...]
"""What is read of a state, or of a layer of it."""


@dataclass(frozen=True)
class LayerReads:
    """What is read of a layer of changes; only rows of key groups in ``live`` count."""

    entry: KeyedEntry
    slices: Slices
    live: tuple[KeyGroupRange, ...]


@dataclass(frozen=True)
class KeptGroups:
    """Key groups of another max parallelism than the stored one: of the rows that are read, those
    in ``own`` are kept, and get their key group among ``max_parallelism``.
    """

    own: KeyGroupRange
    max_parallelism: int


class ReadSlices(Struct, frozen=True, gc=False):
    """What a subtask reads of a state: slices of its base, and of its layers, oldest first, and
    which of their rows it keeps, None for all.
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
        """Return the files in the store of which something is read, in order of :attr:`slices`."""
        own = [(entry, part) for part in self.base]
        own += [(layer.entry, part) for layer in self.layers for part in layer.slices]
        return tuple([entry.table.name_of(part.handle) for entry, part in own])


@dataclass(frozen=True)
class KeyedPlan:
    """What is read of a keyed state, by whom: a plan counts these slices, and a restore reads them.

    They are found anew each time: a job may have a hundred states and thousands of subtasks.
    """

    entry: KeyedEntry
    owners: Assignment

    def of_groups(self, key_groups: KeyGroupRange) -> ReadSlices:
        """Return what is read for some key groups, whoever owns them."""
        return reads_of(self.entry, key_groups, self.owners.max_parallelism)

    def of_all(self) -> tuple[ReadSlices, ...]:
        """Return what each subtask reads, in order."""
        return tuple([self.of_groups(key_groups) for key_groups in self.owners.ranges()])


def assignment_of(
    entry: KeyedEntry, parallelism: int, max_parallelism: int | None = None
) -> KeyGroupAssignment:
    """Return who owns which key groups of a stored state, or of as many as are asked for: a
    multiple of the stored ones, or a divisor. ParallelismError names the operator.
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
    """Return what of a state's base a subtask that owns ``key_groups`` reads, in order.

    A file in which it has no row is not among it.
    """
    handles, ranges = entry.by_key_group
    cuts = ranges.cuts(key_groups.first, key_groups.last)
    return tuple([part for at, own in cuts if (part := handles[at].part(own)).rows])


def reads_of(
    entry: KeyedEntry, key_groups: KeyGroupRange, max_parallelism: int | None = None
) -> ReadSlices:
    """Return all that the owner of ``key_groups`` reads, of base and changes.

    With a ``max_parallelism`` they are of so many, else of the stored ones. Of another one than
    that it is the stored key groups in which its rows lie, and of a file of several what lies
    between them too, so that it is opened once.
    """
    stored = entry.state.max_parallelism
    if max_parallelism is None or max_parallelism == stored:
        layers = _layer_reads(entry, key_groups) if entry.layers else ()
        return ReadSlices(slices_of(entry, key_groups), layers)
    ceiling = ceiling_of(stored, max_parallelism)
    assert ceiling is not None  # they differ
    spans = ceiling.stored_groups(key_groups)
    base = _once([part for span in spans for part in slices_of(entry, span)])
    kept = KeptGroups(key_groups, max_parallelism)
    return ReadSlices(base, _layer_reads(entry, *spans), kept)


def _once(slices: list[KeyedStateSlice]) -> Slices:
    """Return slices of which each file has one, from its first to its last key group."""
    found: dict[str, KeyedStateSlice] = {}
    for part in slices:
        before = found.get(part.handle.path)
        if before is not None:
            hull = KeyGroupRange(before.key_groups.first, part.key_groups.last)
            cut = part.handle.cut(hull)
            assert cut is not None  # it meets what it was cut from
            part = cut
        found[part.handle.path] = part
    return tuple(found.values())


def _layer_reads(entry: KeyedEntry, *spans: KeyGroupRange) -> tuple[LayerReads, ...]:
    """Return the reads of layers of which something is read: what lies between two live ranges is
    read too, so that a file is opened once.
    """
    found = []
    for layer in entry.layers:
        pairs = ((own, span) for own in layer.live for span in spans)
        common = [one for one in (own.intersect(span) for own, span in pairs) if one is not None]
        if not common:
            continue
        slices = slices_of(layer.entry, KeyGroupRange(common[0].first, common[-1].last))
        if slices:
            found.append(LayerReads(layer.entry, slices, tuple(common)))
    return tuple(found)
