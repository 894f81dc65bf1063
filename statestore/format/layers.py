"""Changes of a keyed state: the rows that an incremental checkpoint stores instead of all rows.

A change is an *upsert*, which adds a row or replaces the row with the same identity, or a *delete
marker*. A marker names the first columns of the identity: the key alone deletes all rows of the
key, key and map key delete one entry. Within a layer deletes are applied first, so one checkpoint
can clear a key and write new rows for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from operator import add

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
