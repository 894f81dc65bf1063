"""Changes of a keyed state: what an incremental checkpoint stores instead of all rows.

A change is a row that comes (an *upsert*: it takes the place of the one with its identity) or a
mark that rows go. A mark names the first columns of the identity: the key alone deletes all rows of
the key, a map key with it one entry. Within a layer deletes come first, so that a key can be
cleared and written anew in one checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from statestore.errors import InvalidArgumentError
from statestore.keys.groups import KeyGroupRange
from statestore.model.manifest import KeyedEntry, Layer
from statestore.model.schema import Field, Schema
from statestore.model.state import KeyedState, Layout, StateKind

__all__ = ["MARK", "change_state", "delete_widths", "live_rows", "live_without", "widened_spans"]

MARK = "__deleted__"
"""The column of changes that says what a row is: 0 for one that comes, else how many columns of the
identity, from the first on, the rows that go have in common with it."""


def change_state(state: KeyedState) -> KeyedState:
    """Return the state that the changes of a state are stored as.

    It has the mark behind the columns of the identity, as part of it: one key may have a delete and
    a row that comes. A time to live is the state's own: the rows of a layer never expire alone,
    because one that has may stand in front of an older row. InvalidArgumentError when a column has
    the mark's name.
    """
    if MARK in (name.lower() for name in state.schema.names):
        raise InvalidArgumentError(
            f"{state} has a column named like the store's own {MARK!r}; rename it to take "
            "incremental checkpoints"
        )
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
    """Return how many columns of the identity a delete may name: the key, with its namespace, or
    all of them.
    """
    key, namespace = len(state.key), len(state.key) + len(state.namespace)
    return tuple(sorted({key, namespace, len(state.identity)}))


def widened_spans(entry: KeyedEntry) -> tuple[KeyGroupRange, ...]:
    """Return the key groups of each base file, with those that have no file put to the one before
    them: all key groups, in order, each once.
    """
    starts = [handle.key_groups.first for handle in entry.handles]
    starts[:1] = [0]
    stops = [*starts[1:], entry.state.max_parallelism]
    return tuple(KeyGroupRange(first, stop - 1) for first, stop in zip(starts, stops, strict=True))


def live_without(layer: Layer, folded: Iterable[KeyGroupRange]) -> Layer | None:
    """Return the layer without the key groups whose changes are in the base now, None when nothing
    of it is left.
    """
    live: list[KeyGroupRange] = list(layer.live)
    for gone in folded:
        live = [piece for one in live for piece in _without(one, gone)]
    kept = replace(layer, live=tuple(live))
    return (
        kept if live_rows(kept, KeyGroupRange(0, layer.entry.state.max_parallelism - 1)) else None
    )


def live_rows(layer: Layer, key_groups: KeyGroupRange) -> int:
    """Return how many of a layer's rows in these key groups still count."""
    common = (one.intersect(key_groups) for one in layer.live)
    return sum(
        handle.rows_of(groups)
        for groups in common
        if groups is not None
        for handle in layer.entry.handles
        if handle.key_groups.intersect(groups) is not None
    )


def _without(one: KeyGroupRange, gone: KeyGroupRange) -> list[KeyGroupRange]:
    common = one.intersect(gone)
    if common is None:
        return [one]
    before = [KeyGroupRange(one.first, common.first - 1)] if one.first < common.first else []
    after = [KeyGroupRange(common.last + 1, one.last)] if common.last < one.last else []
    return before + after
