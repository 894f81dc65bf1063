"""Strategies for values: types, schemas, states, handles and manifests."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from statestore.format.digest import combine
from statestore.format.handles import Footer, GroupIndex, KeyedStateHandle, OperatorStateHandle
from statestore.format.manifest import (
    TABLE_FORMATS,
    KeyedEntry,
    Manifest,
    OperatorEntry,
    TableRef,
    Writer,
)
from statestore.format.metrics import Amount, CheckpointMetrics, PhaseTimes, StateMetrics
from statestore.format.names import (
    GREATEST_ID,
    keyed_table,
    operator_file,
    operator_table,
    partition_file,
    ranged_file,
)
from statestore.format.schema import PRIMITIVES, DataType, Field, Schema
from statestore.format.state import KeyedState, Layout, OperatorState, StateKind, TimeDomain
from statestore.jobgraph.graph import JobGraph, Node
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.groups import KeyGroupRange

texts = st.text(st.characters(codec="utf-8"), max_size=8)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
u64 = st.integers(0, 2**64 - 1)
counts = st.integers(0, 2**40)
ids = st.integers(1, GREATEST_ID)
tokens = st.text("0123456789abcdef", min_size=16, max_size=16)
sums = st.text("0123456789abcdef", min_size=64, max_size=64)

decimals = st.integers(1, 38).flatmap(
    lambda precision: st.integers(0, precision).map(lambda scale: f"decimal({precision},{scale})")
)
scalar_types: st.SearchStrategy[DataType] = st.sampled_from(sorted(PRIMITIVES)) | decimals


def _struct(types: list[DataType]) -> DataType:
    return Schema(tuple(Field(f"f{i}", one) for i, one in enumerate(types))).to_json()


def _array(element: DataType) -> DataType:
    return {"type": "array", "elementType": element, "containsNull": True}


def _map(key: DataType, value: DataType) -> DataType:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


data_types: st.SearchStrategy[DataType] = st.recursive(
    scalar_types,
    lambda inner: (
        inner.map(_array)
        | st.builds(_map, scalar_types, inner)
        | st.lists(inner, min_size=1, max_size=3).map(_struct)
    ),
    max_leaves=5,
)


def _columns(least: int) -> st.SearchStrategy[Schema]:
    fields = st.lists(
        st.builds(Field, names, data_types),
        min_size=least,
        max_size=4,
        unique_by=lambda field: field.name.lower(),
    )
    return fields.map(lambda given: Schema(tuple(given)))


schemas = _columns(0)


footers = st.none() | st.builds(Footer, st.integers(1, 2**40), tokens)
"""The footer of a file; None as in older releases."""


@st.composite
def keyed_handles(
    draw: st.DrawFn, max_parallelism: int, layout: Layout
) -> tuple[KeyedStateHandle, ...]:
    """Files sorted by key group: each has one group, or several if ranged."""
    borders = draw(st.lists(st.integers(0, max_parallelism - 1), max_size=6, unique=True))
    borders.sort()
    handles: list[KeyedStateHandle] = []
    for first, behind in pairwise([*borders, max_parallelism]):
        facts: list[Any] = [draw(counts), draw(counts), draw(counts), draw(u64), draw(sums)]
        facts.append(draw(st.sampled_from(["", "a", "b"])))
        last = first
        if layout is Layout.RANGED:
            last = draw(st.integers(first, min(behind - 1, first + 5)))
            rows = draw(st.lists(counts, min_size=last - first + 1, max_size=last - first + 1))
            digests = draw(st.lists(u64, min_size=len(rows), max_size=len(rows)))
            facts[0], facts[3] = sum(rows), combine(digests)
            facts.append(GroupIndex.of(rows, digests))
        number, token = draw(ids), draw(tokens)
        path = (
            ranged_file(number, first, f"{token}-{len(handles)}")
            if layout is Layout.RANGED
            else partition_file(number, first, token)
        )
        handle = KeyedStateHandle(path, KeyGroupRange(first, last), *facts)
        handles.append(replace(handle, footer=draw(footers)))
    return tuple(handles)


@st.composite
def keyed_entries(draw: st.DrawFn, uid: str, name: str) -> KeyedEntry:
    kind = draw(st.sampled_from(StateKind))
    max_parallelism = draw(st.sampled_from([1, 2, 128, 32_768]))
    roles: dict[str, DataType] = {"the key": draw(scalar_types), "the entry": "long"}
    rest = draw(_columns(0))
    fields = [field for field in rest.fields if field.name.lower() not in roles]
    fields += [Field(name, data_type) for name, data_type in roles.items()]
    has_entry = kind in (StateKind.LIST, StateKind.MAP, StateKind.TIMERS)
    state = KeyedState(
        uid=uid,
        name=name,
        kind=kind,
        schema=Schema(tuple(field for field in fields if field.name.lower() != "key_group")),
        key=("the key",),
        namespace=() if has_entry else draw(st.sampled_from([(), ("the entry",)])),
        entry=("the entry",) if has_entry else (),
        key_types=(draw(texts),),
        max_parallelism=max_parallelism,
        hash_scheme=draw(texts),
        time_domain=draw(st.sampled_from(TimeDomain)) if kind is StateKind.TIMERS else None,
        layout=draw(st.sampled_from(Layout)),
    )
    table = draw(_tables(keyed_table(uid, name)))
    return KeyedEntry(state, table, draw(keyed_handles(max_parallelism, state.layout)))


@st.composite
def operator_entries(draw: st.DrawFn, uid: str, name: str, parallelism: int) -> OperatorEntry:
    mode = draw(st.sampled_from(RedistributionMode))
    lists = 1 if mode is RedistributionMode.BROADCAST else parallelism
    per_subtask = draw(st.lists(st.integers(0, 9), min_size=lists, max_size=lists))
    columns = draw(_columns(0))
    fields = [f for f in columns.fields if f.name.lower() not in ("subtask", "position")]
    rows = sum(per_subtask)
    handles = [] if rows == 0 else [_handle(draw, rows)]
    state = OperatorState(uid=uid, name=name, mode=mode, schema=Schema(tuple(fields)))
    table = draw(_tables(operator_table(uid, name)))
    return OperatorEntry(state, table, tuple(per_subtask), tuple(handles))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    parallelism = draw(st.integers(1, 5))
    pairs = draw(st.lists(st.tuples(names, names), max_size=4, unique=True))
    keyed = [draw(keyed_entries(*pair)) for pair in pairs[::2]]
    operator = [draw(operator_entries(*pair, parallelism)) for pair in pairs[1::2]]
    return Manifest(
        store_id=draw(texts),
        checkpoint_id=draw(ids),
        parallelism=parallelism,
        started_at_ms=draw(counts),
        created_at_ms=draw(counts),
        writer=Writer(draw(texts), draw(texts), draw(texts), draw(counts), draw(st.none() | texts)),
        keyed=tuple(keyed),
        operator=tuple(operator),
        graph=draw(st.none() | _graphs(parallelism)),
        metrics=draw(st.none() | metrics),
    )


_amounts = st.builds(Amount, counts, counts, counts)
metrics = st.builds(
    CheckpointMetrics,
    duration_ms=counts,
    phases=st.builds(
        PhaseTimes,
        begin_ms=counts,
        write_ms=counts,
        compaction_ms=counts,
        wait_ms=counts,
        check_ms=counts,
        publish_ms=counts,
        put_ms=st.none() | counts,
    ),
    states=st.lists(
        st.builds(
            StateMetrics,
            operator=names,
            state=names,
            write_ms=counts,
            written=_amounts,
            base_rows=st.none() | counts,
        ),
        max_size=3,
    ).map(tuple),
    compaction=_amounts,
)
"""Arbitrary metrics of checkpoints."""


def _graphs(parallelism: int) -> st.SearchStrategy[JobGraph]:
    """Jobs in which all operators have this parallelism."""
    nodes = st.builds(Node, names, parallelism=st.just(parallelism))
    lists = st.lists(nodes, max_size=3, unique_by=lambda node: node.name)
    return lists.map(lambda given: JobGraph(tuple(given)))


def _tables(path: str) -> st.SearchStrategy[TableRef]:
    versions = st.none() | st.integers(0, 2**40)
    return st.builds(TableRef, st.sampled_from(TABLE_FORMATS), st.just(path), versions)


def _handle(draw: st.DrawFn, rows: int) -> OperatorStateHandle:
    facts: list[Any] = [rows, draw(counts), draw(counts), draw(u64), draw(sums)]
    path = operator_file(draw(ids), draw(tokens))
    return replace(OperatorStateHandle(path, *facts), footer=draw(footers))
