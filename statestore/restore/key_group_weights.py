"""The weight of each key group of an operator: bytes or rows, summed over all its keyed states.

Changes that a restore reads are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from operator import add

from statestore.errors import unknown_choice
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry


class Weight(StrEnum):
    """The measure by which key-group ranges are balanced."""

    BYTES = "bytes"
    ROWS = "rows"

    @classmethod
    def _missing_(cls, value: object) -> Weight:
        raise unknown_choice("weight of ranges", value, cls)


def weights_of(entries: Sequence[KeyedEntry], weight: Weight = Weight.BYTES) -> list[int]:
    """Return the weight of each key group, for one or more states of the same operator."""
    weights = [0] * entries[0].state.max_parallelism
    for entry in entries:
        for handle in entry.handles:
            _add(weights, handle, weight)
        for layer in entry.layers:
            changed = [0] * len(weights)
            for handle in layer.entry.handles:
                _add(changed, handle, weight)
            for group in {group for span in layer.live for group in span}:
                weights[group] += changed[group]
    return weights


def _add(weights: list[int], handle: KeyedStateHandle, weight: Weight) -> None:
    own = slice(handle.key_groups.first, handle.key_groups.last + 1)
    added = handle.group_bytes() if weight is Weight.BYTES else handle.group_rows()
    weights[own] = map(add, weights[own], added)
