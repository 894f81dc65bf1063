"""Layers: the changes of a keyed state, and the policy that merges and folds them.

An incremental checkpoint stores the changes of a state instead of all of its rows.
A change is an *upsert*, which adds a row or replaces the row with the same identity, or a *delete
marker*. A marker names the first columns of the identity: the key alone deletes all rows of the
key, key and map key delete one entry. Within a layer deletes are applied first, so one checkpoint
can clear a key and write new rows for it.

The compaction policy decides when layers are merged, and when changes are folded into the base.
Layers are merged like digits of a counter in base ``merge_layers``: that many neighbors of one
depth become one layer of the next depth. After n checkpoints there are at most ``(merge_layers -
1)`` layers of each depth, and about ``log(n) / log(merge_layers)`` depths. Each change was
written once per depth.

A *span* (the key groups of one base file) is folded if its changes are more than ``share`` of its
base rows. Spans with the greatest share and their neighbors are folded first, up to about
``bytes_per_checkpoint`` of base files at a time. A span above ``most_share`` is always folded.
Spans that would soon be folded are folded together with such a span: the rows that a fold leaves
behind in a layer are between live rows, and are read with these until the whole layer is gone.

A job compacts in the background. If the process ends after each checkpoint, changes become
*overdue*: the changes of a span whose share is above twice ``most_share``, and layers once four
times ``merge_layers`` of them wait for a first merge. Then each checkpoint folds about twice as
many change rows as it writes, so the backlog shrinks. An LSM tree stalls its writers for the same
reason. So a restore reads at most ``1 + 2 * most_share`` times the rows of the bases, plus the
changes that arrive until an overdue span is folded.

Small layers are overdue earlier: a checkpoint merges them once twice ``merge_layers`` of them wait,
also during a compaction, whose layers it leaves alone. To a restore such a layer costs more for its
file than for its rows, and a merge of a few rows costs a checkpoint little. So the number of layers
grows with the logarithm of the number of checkpoints, however slow the compaction is.

While a compaction of the state is under way, its result will replace most of the backlog, and a
checkpoint that folded the same changes would make that result useless. So a checkpoint with overdue
changes only waits for the compaction, at most as long as its changes took to write. It folds
changes itself above six times ``most_share``, and merges newer layers than those being compacted
once sixteen times ``merge_layers`` of them wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import add
from typing import NamedTuple

from statestore.errors import InvalidArgumentError
from statestore.format.handles import assign
from statestore.format.manifest import KeyedEntry, Layer
from statestore.format.names import MARK, refuse_reserved
from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState, Layout, StateKind
from statestore.keys.groups import KeyGroupRange


def are_changes(state: KeyedState) -> bool:
    """Return whether the rows of a state are changes, each marked as an upsert or a delete."""
    return MARK in state.entry


def change_state(state: KeyedState) -> KeyedState:
    """Return the state that describes how a state's changes are stored.

    The marker column follows the columns of the identity and is part of it, because a key may have
    a delete marker and an upsert. The stored changes have no TTL: a row of a layer never expires on
    its own, because an expired row may still replace an older one. InvalidArgumentError if a column
    has the marker's name.
    """
    refuse_reserved(state.schema.names, str(state))
    identity = [Field(name, state.schema.type_of(name)) for name in state.identity]
    values = [Field(name, state.schema.type_of(name)) for name in state.values]
    return replace(
        state,
        kind=state.kind if state.entry else StateKind.MAP,
        schema=Schema((*identity, Field(MARK, "long"), *values)),
        entry=(*state.entry, MARK),
        layout=Layout.RANGED,
        ttl=None,
    )


def delete_widths(state: KeyedState) -> tuple[int, ...]:
    """Return the numbers of identity columns that a delete may name.

    A delete names the key, the key and namespace, or the whole identity.
    """
    key, namespace = len(state.key), len(state.key) + len(state.namespace)
    return tuple(sorted({key, namespace, len(state.identity)}))


def widened_spans(entry: KeyedEntry) -> tuple[KeyGroupRange, ...]:
    """Return the base files' key-group ranges, widened to cover all key groups, in order.

    Key groups without a file are added to the range of the previous file.
    """
    starts = [handle.key_groups.first for handle in entry.handles]
    starts[:1] = [0]
    stops = [*starts[1:], entry.state.max_parallelism]
    return tuple(KeyGroupRange(first, stop - 1) for first, stop in zip(starts, stops, strict=True))


def live_without(layer: Layer, folded: Iterable[KeyGroupRange]) -> Layer | None:
    """Return the layer without the key groups whose changes were folded into the base.

    None if no rows are left in it.
    """
    live: list[KeyGroupRange] = list(layer.live)
    for gone in folded:
        live = [piece for span in live for piece in _subtract(span, gone)]
    kept = replace(layer, live=tuple(live))
    return kept if live_rows(kept, KeyGroupRange.every(layer.entry.state.max_parallelism)) else None


def live_rows(layer: Layer, key_groups: KeyGroupRange) -> int:
    """Return the number of a layer's rows in these key groups that are still live."""
    common = (span.intersect(key_groups) for span in layer.live)
    return sum(
        part.rows
        for groups in common
        if groups is not None
        for part in assign(layer.entry.handles, groups)
    )


def changed_rows_before(entry: KeyedEntry) -> tuple[int, ...]:
    """Return for each key group, and for the end, the live rows of the layers before it.

    So the changes of key groups ``first`` to ``last`` are ``result[last + 1] - result[first]``. The
    rows of a file without an index of its key groups count for its first key group.
    """
    changed = [0] * entry.state.max_parallelism
    for layer in entry.layers:
        for handle in layer.entry.handles:
            first, rows = handle.key_groups.first, handle.group_rows()
            for live in layer.live:
                common = live.intersect(handle.key_groups)
                if common is not None:
                    groups = slice(common.first, common.last + 1)
                    own = rows[common.first - first : common.last + 1 - first]
                    changed[groups] = map(add, changed[groups], own)
    return (0, *accumulate(changed))


def _subtract(span: KeyGroupRange, gone: KeyGroupRange) -> list[KeyGroupRange]:
    common = span.intersect(gone)
    if common is None:
        return [span]
    before = [KeyGroupRange(span.first, common.first - 1)] if span.first < common.first else []
    after = [KeyGroupRange(common.last + 1, span.last)] if common.last < span.last else []
    return before + after


@dataclass(frozen=True)
class CompactionRule:
    """The compaction policy; shares are the change rows per base row of a span."""

    merge_layers: int = 8
    share: float = 0.3
    most_share: float = 0.5
    bytes_per_checkpoint: int = 64 * 2**20

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for values out of bounds."""
        if type(self.merge_layers) is not int or self.merge_layers < 2:
            raise InvalidArgumentError(
                f"merge_layers must be an integer of at least 2, not {self.merge_layers!r}"
            )
        if not 0 <= self.share <= self.most_share:
            raise InvalidArgumentError(
                f"share must be between 0 and most_share ({self.most_share}), not {self.share!r}"
            )
        if type(self.bytes_per_checkpoint) is not int or self.bytes_per_checkpoint < 0:
            raise InvalidArgumentError(
                f"bytes_per_checkpoint must be at least 0, not {self.bytes_per_checkpoint!r}"
            )


class LayeredSpan(NamedTuple):
    """A span of key groups: rows and bytes of its base file, and the rows of its changes."""

    key_groups: KeyGroupRange
    rows: int
    size_bytes: int
    changed_rows: int

    @property
    def share(self) -> float:
        """The rows of changes per row of the base."""
        return self.changed_rows / max(self.rows, 1)


def layers_to_merge(entry: KeyedEntry, rule: CompactionRule) -> int:
    """Return how many of the newest layers are to be merged into one, 0 for none.

    Newest first, all layers of one depth are merged if there are at least ``merge_layers``. The
    merged layer then counts as one of the next depth.
    """
    depths = [layer.depth for layer in reversed(entry.layers)]
    merged = passed = waiting = depth = 0
    while True:
        while passed < len(depths) and depths[passed] <= depth:
            passed, waiting = passed + 1, waiting + 1
        if waiting < rule.merge_layers:
            return merged
        merged, waiting, depth = passed, 1, depth + 1


def spans_of(entry: KeyedEntry) -> tuple[LayeredSpan, ...]:
    """Return the spans of a state, which cover all key groups in order."""
    if not entry.handles:
        everything = KeyGroupRange.every(entry.state.max_parallelism)
        return (LayeredSpan(everything, 0, 0, changed_rows_before(entry)[-1]),)
    changed = changed_rows_before(entry)
    return tuple(
        LayeredSpan(
            key_groups,
            handle.rows,
            handle.size_bytes,
            changed[key_groups.last + 1] - changed[key_groups.first],
        )
        for key_groups, handle in zip(widened_spans(entry), entry.handles, strict=True)
    )


_SOON = 0.75


def spans_to_fold(entry: KeyedEntry, rule: CompactionRule) -> tuple[KeyGroupRange, ...]:
    """Return the key groups whose changes are to be folded into the base now, in order."""
    spans = spans_of(entry)
    if max(span.share for span in spans) <= rule.share:
        return ()
    chosen = _adjacent_spans(
        spans, _SOON * rule.share, rule.bytes_per_checkpoint, lambda span: span.size_bytes
    )
    chosen |= {number for number, span in enumerate(spans) if span.share > rule.most_share}
    changed = [spans[number] for number in sorted(chosen) if spans[number].changed_rows]
    return tuple(span.key_groups for span in changed)


def _adjacent_spans(
    spans: Sequence[LayeredSpan], share: float, budget: int, cost: Callable[[LayeredSpan], int]
) -> set[int]:
    """Return the numbers of spans to fold: those with most changes, and their neighbors.

    A pass over adjacent spans reads each layer once, but a pass over one span reads the same row
    groups of the layers. So each span is taken with its neighbors above ``share``, the one with
    more changes first, until the costs of all taken spans reach ``budget``.
    """
    left = {number for number, span in enumerate(spans) if span.share > share}
    due = sorted(left, key=lambda number: (-spans[number].share, number))
    for start in due:
        first = last = start
        neighbors = left & {start}
        while neighbors and budget > 0:
            number = max(neighbors, key=lambda number: spans[number].share)
            left.remove(number)
            budget -= cost(spans[number])
            first, last = min(first, number), max(last, number)
            neighbors = left & {first - 1, last + 1}
    return set(due) - left


# Above so many times most_share and merge_layers, checkpoints reduce the backlog themselves:
# without a compaction of the state under way, and with one.
_IDLE_SHARES, _IDLE_MERGES = 2, 4
_COMPACTING_SHARES, _COMPACTING_MERGES = 6, 16
# Layers that wait for a first merge are small if they have at most so many bytes together.
_SMALL_MERGES, _SMALL_BYTES = 2, 4 * 2**20


def needs_compaction(entry: KeyedEntry, rule: CompactionRule) -> bool:
    """Return whether there is anything to fold or merge."""
    return bool(entry.layers) and bool(spans_to_fold(entry, rule) or layers_to_merge(entry, rule))


def is_urgent(entry: KeyedEntry, rule: CompactionRule) -> bool:
    """Return whether a compaction should run without pauses: a span is above ``most_share``."""
    return any(span.share > rule.most_share for span in spans_of(entry))


def overdue_spans(
    entry: KeyedEntry, rule: CompactionRule, changed_rows: int, *, is_compacting: bool = False
) -> tuple[KeyGroupRange, ...]:
    """Return the overdue key groups that a checkpoint itself must fold, in order.

    Args:
        entry: the state, with the changes of the checkpoint.
        rule: the policy.
        changed_rows: the rows that the checkpoint wrote; about twice as many are folded.
        is_compacting: whether a compaction of the state is under way.

    Returns:
        The key groups with the greatest share of changes, and their neighbors; empty if none is
        overdue.
    """
    spans = spans_of(entry)
    overdue = rule.most_share * (_COMPACTING_SHARES if is_compacting else _IDLE_SHARES)
    if max(span.share for span in spans) <= overdue:
        return ()
    chosen = _adjacent_spans(
        spans, _SOON * overdue, max(2 * changed_rows, 1), lambda span: span.changed_rows
    )
    return tuple(spans[number].key_groups for number in sorted(chosen))


def overdue_layers(entry: KeyedEntry, rule: CompactionRule, compacting: int | None = None) -> int:
    """Return how many of the newest layers a checkpoint itself must merge, 0 for none.

    ``compacting`` is the number of the oldest layers that a compaction is folding or merging, and
    that therefore stay; None if no compaction of the state is under way.
    """
    newer = replace(entry, layers=entry.layers[compacting or 0 :])
    unmerged = [layer.entry.size_bytes for layer in newer.layers if layer.depth == 0]
    merges = _IDLE_MERGES if compacting is None else _COMPACTING_MERGES
    if len(unmerged) >= merges * rule.merge_layers:
        return layers_to_merge(newer, rule)
    if len(unmerged) >= _SMALL_MERGES * rule.merge_layers and sum(unmerged) <= _SMALL_BYTES:
        return layers_to_merge(replace(newer, layers=_newest_small(newer.layers)), rule)
    return 0


def _newest_small(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Return the newest layers that are small together: no large one is merged with them."""
    sizes = accumulate(layer.entry.size_bytes for layer in reversed(layers))
    few = sum(size <= _SMALL_BYTES for size in sizes)
    return layers[len(layers) - few :]


def is_overdue(entry: KeyedEntry, rule: CompactionRule, *, is_compacting: bool = False) -> bool:
    """Return whether a state has overdue changes, as :func:`overdue_spans` decides."""
    return bool(entry.layers) and bool(overdue_spans(entry, rule, 0, is_compacting=is_compacting))
