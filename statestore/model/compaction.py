"""When layers of changes are merged, and when they are folded into the base: the stated rule.

Layers are merged as in a counter of base ``merge_layers``: as many neighbours of one depth become
one layer of the next. After n checkpoints there are at most ``(merge_layers - 1)`` layers of each
depth, of which there are about ``log(n) / log(merge_layers)``, and a change was written as often.

A *span* (the key groups of one base file) is folded when its changes are more than ``share`` of its
base rows: those with the greatest share first, about ``bytes_per_checkpoint`` of base files at a
time, so that no checkpoint pays for all; and at once when they are more than ``most_share``. So a
restore never reads more than ``1 + most_share`` times the rows of the bases, and one checkpoint's
changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from statestore.errors import InvalidArgumentError
from statestore.keys.groups import KeyGroupRange
from statestore.model.changes import live_rows, widened_spans
from statestore.model.manifest import KeyedEntry

__all__ = ["CompactionRule", "Span", "layers_to_merge", "spans_of", "spans_to_fold"]


@dataclass(frozen=True)
class CompactionRule:
    """How changes are compacted; shares are change rows to base rows of a span."""

    merge_layers: int = 4
    share: float = 0.25
    most_share: float = 0.5
    bytes_per_checkpoint: int = 64 * 2**20

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for what is out of bounds."""
        if type(self.merge_layers) is not int or self.merge_layers < 2:
            raise InvalidArgumentError(
                f"merge_layers is a number from 2 on, not {self.merge_layers!r}"
            )
        if not 0 <= self.share <= self.most_share:
            raise InvalidArgumentError(
                f"share lies between 0 and most_share ({self.most_share}), not {self.share!r}"
            )
        if type(self.bytes_per_checkpoint) is not int or self.bytes_per_checkpoint < 0:
            raise InvalidArgumentError(
                f"bytes_per_checkpoint is 0 or more, not {self.bytes_per_checkpoint!r}"
            )


class Span(NamedTuple):
    """Some key groups, the rows and bytes of their base file, and the rows of their changes."""

    key_groups: KeyGroupRange
    rows: int
    size_bytes: int
    changed_rows: int

    @property
    def share(self) -> float:
        """Rows of changes for each row of the base."""
        return self.changed_rows / max(self.rows, 1)


def layers_to_merge(entry: KeyedEntry, rule: CompactionRule) -> int:
    """Return how many of the newest layers become one, 0 for none.

    Newest first, ``merge_layers`` of one depth are merged, then as many of the next with what
    comes of them.
    """
    depths = [layer.depth for layer in entry.layers]
    merged = 0
    while len(depths) >= rule.merge_layers:
        tail = depths[-rule.merge_layers :]
        if len(set(tail)) > 1:
            break
        merged = max(merged, 1) + rule.merge_layers - 1
        depths[-rule.merge_layers :] = [tail[0] + 1]
    return merged


def spans_of(entry: KeyedEntry) -> tuple[Span, ...]:
    """Return the spans of a state: all key groups in order, each once."""
    if not entry.handles:
        everything = KeyGroupRange(0, entry.state.max_parallelism - 1)
        changed = sum(live_rows(layer, everything) for layer in entry.layers)
        return (Span(everything, 0, 0, changed),)
    return tuple(
        Span(
            key_groups,
            handle.rows,
            handle.size_bytes,
            sum(live_rows(layer, key_groups) for layer in entry.layers),
        )
        for key_groups, handle in zip(widened_spans(entry), entry.handles, strict=True)
    )


def spans_to_fold(entry: KeyedEntry, rule: CompactionRule) -> tuple[KeyGroupRange, ...]:
    """Return the key groups whose changes are folded into the base now, in order."""
    wanted, left = [], rule.bytes_per_checkpoint
    for span in sorted(spans_of(entry), key=lambda span: (-span.share, span.key_groups.first)):
        if not span.changed_rows or span.share <= rule.share:
            break
        if span.share <= rule.most_share and left <= 0:
            break
        wanted.append(span.key_groups)
        left -= span.size_bytes
    return tuple(sorted(wanted, key=lambda key_groups: key_groups.first))
