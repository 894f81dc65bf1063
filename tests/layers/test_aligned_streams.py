"""Merges in aligned pieces equal merges of complete key groups, for any piece size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import copysign, isnan
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import DamagedFileError
from statestore.format.names import KEY_GROUP, MARK
from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState, StateKind
from statestore.layers.aligned_streams import align_streams, sorted_tables
from statestore.layers.merge import _merge_layers, _merge_pieces, merged_rows
from statestore.rows.key_group_runs import sort_groups
from tests.support.examples import examples

NAN = float("nan")
STATE = KeyedState(
    uid="u",
    name="s",
    kind=StateKind.MAP,
    schema=Schema((Field("k", "double"), Field("m", "double"), Field("v", "string"))),
    key=("k",),
    entry=("m",),
    key_types=("Double",),
    max_parallelism=4,
    hash_scheme="java",
)
LAYER = replace(
    STATE,
    schema=Schema((*STATE.schema.fields[:2], Field(MARK, "long"), STATE.schema.fields[2])),
    entry=("m", MARK),
)
SCHEMA = pa.schema(
    [(KEY_GROUP, pa.int32()), ("k", pa.float64()), ("m", pa.float64()), ("v", pa.string())]
)
LAYER_SCHEMA = SCHEMA.insert(3, pa.field(MARK, pa.int64()))


def group_of(key: float | None) -> int:
    """Return the key group of a key. Each group has several keys."""
    return int(key is not None and not isnan(key) and key >= 0)


Entry = tuple[int, float | None, float | None]
floats = st.sampled_from([None, NAN, -0.0, 0.0, -1.5, 2.5])
entries = st.tuples(floats, floats).map(lambda one: (group_of(one[0]), *one))
writers = st.tuples(st.booleans(), st.booleans())
"""How a writer sorts floats: whether 0.0 precedes -0.0, and whether NaN precedes all numbers."""


def rank(value: float | None, writer: tuple[bool, bool]) -> tuple[float, ...]:
    zero_first, nan_first = writer
    if value is None:
        return (0,)
    if isnan(value):
        return (1,) if nan_first else (3,)
    sign = copysign(1, value)
    return (2, value, -sign if zero_first else sign)


def named(entry: Entry) -> tuple[Any, ...]:
    """Return an entry in a form in which NaN equals NaN and 0.0 differs from -0.0."""
    return (entry[0], *map(str, entry[1:]))


def batches_of(
    rows: Sequence[dict[str, Any]], schema: pa.Schema, writer: tuple[bool, bool], size: int
) -> Iterator[pa.RecordBatch]:
    """Yield rows in the order of this writer's file, in batches of ``size`` rows."""

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        key = (rank(row["k"], writer), rank(row["m"], writer))
        return row[KEY_GROUP], *key, row.get(MARK, 0)

    yield from pa.Table.from_pylist(sorted(rows, key=place), schema).to_batches(max_chunksize=size)


@st.composite
def stored(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    found = draw(st.lists(entries, max_size=14, unique_by=named))
    return [{KEY_GROUP: g, "k": k, "m": m, "v": f"{at}" * at} for at, (g, k, m) in enumerate(found)]


@st.composite
def changed(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Return the rows of a layer: upserts, deletes of entries, and deletes of keys."""
    rows = draw(stored())
    for row in rows:
        row[MARK] = draw(st.sampled_from([0, 0, 2]))
    keys = {named((row[KEY_GROUP], row["k"], None)): row for row in rows}
    for row in keys.values():
        if draw(st.booleans()):
            rows.append({**row, "m": None, MARK: 1})
    return [row if row[MARK] == 0 else {**row, "v": None} for row in rows]


def stream_of(
    rows: list[dict[str, Any]],
    state: KeyedState,
    writer: tuple[bool, bool],
    sizes: tuple[int, int],
) -> Iterator[pa.Table]:
    schema = SCHEMA if state is STATE else LAYER_SCHEMA
    batch_rows, table_bytes = sizes
    return sorted_tables(batches_of(rows, schema, writer, batch_rows), state, table_bytes)


sizes = st.tuples(st.integers(1, 9), st.sampled_from([1, 100, 300, 10**6]))


@pytest.mark.slow
@examples(100)
@given(st.lists(st.tuples(stored(), writers, sizes), min_size=1, max_size=4))
def test_no_identity_is_in_two_pieces_and_no_row_is_lost(files: Any) -> None:
    streams = [stream_of(rows, STATE, writer, size) for rows, writer, size in files]
    pieces = [*align_streams(streams, STATE.identity)]
    for at, (rows, *_) in enumerate(files):
        parts = [piece.rows[at] for piece in pieces]
        found = [row for part in parts if part is not None for row in part.to_pylist()]
        assert [row["v"] for row in found] == [
            row["v"]
            for batch in batches_of(rows, SCHEMA, (False, False), 99)
            for row in batch.to_pylist()
        ]
    seen: set[tuple[Any, ...]] = set()
    for piece in pieces:
        own = [row for part in piece.rows if part is not None for row in part.to_pylist()]
        identities = {named((row[KEY_GROUP], row["k"], row["m"])) for row in own}
        assert identities
        assert not identities & seen
        seen |= identities
    assert [piece.following is None for piece in pieces[:-1]] == [False] * len(pieces[:-1])


@pytest.mark.slow
@examples(100)
@given(stored(), writers, sizes, st.lists(st.tuples(changed(), writers, sizes), max_size=4))
def test_a_merge_in_pieces_equals_one_of_whole_key_groups(
    base: Any, writer: Any, size: Any, layers: Any
) -> None:
    """A delete of a key applies to its rows in all later pieces, from older layers and the base."""
    changes = [stream_of(rows, LAYER, own, sizes) for rows, own, sizes in layers]
    pieces = align_streams([*changes, stream_of(base, STATE, writer, size)], STATE.identity)
    merged = _merge_pieces(pieces, len(changes), STATE)
    found = pa.concat_tables([SCHEMA.empty_table(), *merged]).to_pylist()
    whole = [pa.Table.from_pylist(rows, LAYER_SCHEMA) for rows, *_ in layers]
    expected = merged_rows(pa.Table.from_pylist(base, SCHEMA), whole, STATE)
    if expected.num_rows:
        expected = sort_groups(expected, STATE)
    assert list(map(str, found)) == list(map(str, expected.to_pylist()))


@pytest.mark.slow
@examples(100)
@given(st.lists(st.tuples(changed(), writers, sizes), min_size=1, max_size=4))
def test_merged_layers_have_the_effect_of_the_layers(layers: Any) -> None:
    """This also holds for a base that has rows of all keys."""
    base = [
        {KEY_GROUP: group_of(k), "k": k, "m": m, "v": "old"}
        for k in (None, NAN, -0.0, 0.0, -1.5, 2.5)
        for m in (None, NAN, -0.0, 0.0, -1.5, 2.5)
    ]
    changes = [stream_of(rows, LAYER, own, sizes) for rows, own, sizes in layers]
    one = pa.concat_tables([LAYER_SCHEMA.empty_table(), *_merge_layers(changes, STATE)])
    whole = [pa.Table.from_pylist(rows, LAYER_SCHEMA) for rows, *_ in layers]
    table = pa.Table.from_pylist(base, SCHEMA)
    assert str(merged_rows(table, [one], STATE).to_pylist()) == str(
        merged_rows(table, whole, STATE).to_pylist()
    )
    if one.num_rows:
        names = [KEY_GROUP, *STATE.identity]
        assert str(sort_groups(one, STATE).select(names)) == str(one.combine_chunks().select(names))


@pytest.mark.parametrize("table_bytes", [1, 10_000])
def test_rows_that_are_not_sorted_are_refused(table_bytes: int) -> None:
    rows = [{KEY_GROUP: 0, "k": k, "m": None, "v": ""} for k in (1.0, 3.0, 2.0)]
    batches = pa.Table.from_pylist(rows, SCHEMA).to_batches(max_chunksize=2)
    with pytest.raises(DamagedFileError, match=r"rows of key group 0 of .* are not sorted"):
        list(sorted_tables(batches, STATE, table_bytes))


@pytest.mark.slow
def test_a_piece_does_not_grow_with_a_key_group() -> None:
    """One key group of 100,000 rows, in two streams."""
    rows = pa.table(
        {KEY_GROUP: [0] * 100_000, "k": range(100_000), "m": [None] * 100_000, "v": ["x"] * 100_000}
    ).cast(SCHEMA)
    streams = [sorted_tables(rows.to_batches(999), STATE, 10_000) for _ in range(2)]
    pieces = [piece.rows for piece in align_streams(streams, STATE.identity)]
    assert max(part.nbytes for parts in pieces for part in parts if part is not None) < 30_000
    assert sum(part.num_rows for parts in pieces for part in parts if part is not None) == 200_000


def test_a_stream_is_not_read_ahead_of_its_pieces() -> None:
    """One table is taken, one row of the next bounds it, and one table is read ahead."""
    read = []

    def tables() -> Iterator[pa.Table]:
        for group in range(9):
            read.append(group)
            yield pa.table({KEY_GROUP: pa.array([group], pa.int32()), "k": [0.5]})

    (rows,) = next(align_streams([tables()], ["k"])).rows
    assert rows is not None
    assert len(rows) == 1
    assert read == [0, 1, 2]


def test_rows_before_a_bound_are_taken_from_all_tables_of_a_stream() -> None:
    """Otherwise an identity would be in two pieces."""

    def stream(*tables: list[float]) -> Iterator[pa.Table]:
        for keys in tables:
            groups = pa.array([0] * len(keys), pa.int32())
            yield pa.table({KEY_GROUP: groups, "k": keys})

    streams = [stream([0.0], [1.0, 2.0, 3.0], [9.0]), stream([0.0, 1.0, 2.0, 2.5], [9.0])]
    piece = next(align_streams(streams, ["k"]))
    assert [part and part["k"].to_pylist() for part in piece.rows] == [[0.0, 1.0, 2.0]] * 2
