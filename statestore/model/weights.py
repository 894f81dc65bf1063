"""How heavy each key group of an operator is: its bytes or rows, of all its keyed states together.

With changes those that count are added: it is what a restore reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry
from statestore.format.state import unknown_choice

__all__ = ["Weight", "weights_of"]


class Weight(StrEnum):
    """What ranges of key groups are balanced by."""

    BYTES = "bytes"
    ROWS = "rows"

    @classmethod
    def _missing_(cls, value: object) -> Weight:
        raise unknown_choice("weight of ranges", value, cls)


def weights_of(entries: Sequence[KeyedEntry], by: Weight = Weight.BYTES) -> list[int]:
    """Return the weight of each key group of states of one operator; one state at least."""
    weights = [0] * entries[0].state.max_parallelism
    for entry in entries:
        for group, weight in _of_files(entry.handles, by):
            weights[group] += weight
        for layer in entry.layers:
            live = {group for one in layer.live for group in one}
            for group, weight in _of_files(layer.entry.handles, by):
                weights[group] += weight if group in live else 0
    return weights


def _of_files(handles: Iterable[KeyedStateHandle], by: Weight) -> Iterator[tuple[int, int]]:
    for handle in handles:
        yield from handle.group_bytes() if by is Weight.BYTES else _rows(handle)


def _rows(handle: KeyedStateHandle) -> Iterator[tuple[int, int]]:
    if handle.index is None:
        yield handle.key_groups.first, handle.rows
    else:
        yield from zip(handle.key_groups, handle.index.row_counts(), strict=True)
