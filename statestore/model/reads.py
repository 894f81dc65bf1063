"""What a subtask reads of a keyed state: slices of files, in order of key group (I8)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from statestore.model.handles import KeyedStateHandle, KeyedStateSlice, assign
from statestore.model.keygroups import (
    KeyGroupAssignment,
    KeyGroupRange,
    effective_max_parallelism,
)
from statestore.model.manifest import KeyedEntry, Layer

__all__ = [
    "LayerReads",
    "Slices",
    "StateReads",
    "assignment_of",
    "handles_of",
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
class StateReads:
    """What a subtask reads of a state: slices of its base, and of its layers, oldest first."""

    base: Slices
    layers: tuple[LayerReads, ...] = ()

    @property
    def slices(self) -> Slices:
        """All slices."""
        return (*self.base, *(part for layer in self.layers for part in layer.slices))


def assignment_of(
    entry: KeyedEntry, parallelism: int, max_parallelism: int | None = None
) -> KeyGroupAssignment:
    """Return who owns which key groups of a stored state; ParallelismError names the operator."""
    try:
        effective = effective_max_parallelism(
            entry.state.max_parallelism, parallelism, max_parallelism
        )
        return KeyGroupAssignment(max_parallelism=effective, parallelism=parallelism)
    except ValueError as error:
        error.add_note(f"while planning {entry.state}")
        raise


def handles_of(entry: KeyedEntry, key_groups: KeyGroupRange) -> tuple[KeyedStateHandle, ...]:
    """Return the handles of a state's base that meet ``key_groups``, in order of key group."""
    first = bisect_left(entry.last_key_groups, key_groups.first)
    stop = bisect_left(entry.last_key_groups, key_groups.last, first)
    meets = stop < len(entry.handles) and entry.handles[stop].key_groups.first <= key_groups.last
    return entry.handles[first : stop + meets]


def slices_of(entry: KeyedEntry, key_groups: KeyGroupRange) -> Slices:
    """Return what of a state's base a subtask that owns ``key_groups`` reads, in order.

    A file in which it has no row is not among it.
    """
    parts = assign(handles_of(entry, key_groups), key_groups)
    return tuple([part for part in parts if part.rows])


def reads_of(entry: KeyedEntry, key_groups: KeyGroupRange) -> StateReads:
    """Return all that a subtask that owns ``key_groups`` reads, of base and changes."""
    layers = (_layer_reads(layer, key_groups) for layer in entry.layers)
    used = tuple(layer for layer in layers if layer.slices)
    return StateReads(slices_of(entry, key_groups), used)


def _layer_reads(layer: Layer, key_groups: KeyGroupRange) -> LayerReads:
    """Return the reads of a layer: what lies between two live ranges is read too, so that a file is
    opened once.
    """
    common = [one for one in (own.intersect(key_groups) for own in layer.live) if one is not None]
    if not common:
        return LayerReads(layer.entry, (), ())
    hull = KeyGroupRange(common[0].first, common[-1].last)
    return LayerReads(layer.entry, slices_of(layer.entry, hull), tuple(common))
