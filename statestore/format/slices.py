"""What a subtask reads of a keyed state: slices of files, in order of key group (I8)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from statestore.format.handles import KeyedStateHandle, KeyedStateSlice, assign
from statestore.format.manifest import KeyedEntry, Layer
from statestore.keys.groups import (
    KeyGroupAssignment,
    KeyGroupRange,
    effective_max_parallelism,
)
from statestore.keys.ranges import ceiling_of

__all__ = [
    "KeptGroups",
    "LayerReads",
    "Slices",
    "StateReads",
    "assignment_of",
    "handles_of",
    "reads_of",
    "reads_within",
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


@dataclass(frozen=True)
class StateReads:
    """What a subtask reads of a state: slices of its base, and of its layers, oldest first, and
    which of their rows it keeps, None for all.
    """

    base: Slices
    layers: tuple[LayerReads, ...] = ()
    kept: KeptGroups | None = None

    @property
    def slices(self) -> Slices:
        """All slices."""
        return (*self.base, *(part for layer in self.layers for part in layer.slices))


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


def reads_within(entry: KeyedEntry, key_groups: KeyGroupRange, max_parallelism: int) -> StateReads:
    """Return what the owner of ``key_groups``, of ``max_parallelism``, reads; else as
    :func:`reads_of`.

    Of another max parallelism than the stored one that is the stored key groups in which its rows
    lie, and of a file of several what lies between them too, so that it is opened once.
    """
    ceiling = ceiling_of(entry.state.max_parallelism, max_parallelism)
    if ceiling is None:
        return reads_of(entry, key_groups)
    spans = ceiling.stored_groups(key_groups)
    layers = (_layer_reads(layer, *spans) for layer in entry.layers)
    return StateReads(
        _once([part for span in spans for part in slices_of(entry, span)]),
        tuple(layer for layer in layers if layer.slices),
        KeptGroups(key_groups, max_parallelism),
    )


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


def _layer_reads(layer: Layer, *spans: KeyGroupRange) -> LayerReads:
    """Return the reads of a layer: what lies between two live ranges is read too, so that a file is
    opened once.
    """
    pairs = ((own, span) for own in layer.live for span in spans)
    common = [one for one in (own.intersect(span) for own, span in pairs) if one is not None]
    if not common:
        return LayerReads(layer.entry, (), ())
    hull = KeyGroupRange(common[0].first, common[-1].last)
    return LayerReads(layer.entry, slices_of(layer.entry, hull), tuple(common))
