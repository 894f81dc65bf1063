"""A wider type is not a difference: rows with changed columns are compared by value."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.testing.reference import canonical
from tests.support.examples import examples
from tests.support.strategies import STRINGS, Kind, arrays, decimals, integers, maps, nullable

Values = list[Any]


@dataclass(frozen=True)
class Widening:
    """A type, a wider type, and the conversion of a value."""

    old: Kind
    new: Kind
    convert: Callable[[Any], Any]


def _integer(bits: int) -> Kind:
    kinds = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
    return Kind(kinds[bits], st.integers(-3, 3) | integers(bits))


DOUBLES = Kind(pa.float64(), st.sampled_from([0.0, -0.0, 1.0, 0.1, 5e-324]) | st.floats())
FLOATS = Kind(pa.float32(), st.sampled_from([0.0, -0.0, 0.5]) | st.floats(width=32))
DATES = Kind(pa.date32(), st.dates(date(1969, 1, 1), date(1971, 1, 1)) | st.dates())
NAIVE = Kind(pa.timestamp("us"), st.datetimes())
PLAIN = [
    Widening(_integer(8), _integer(64), int),
    Widening(_integer(32), _integer(64), int),
    Widening(_integer(32), DOUBLES, float),
    Widening(_integer(32), decimals(12, 2), Decimal),
    Widening(_integer(64), decimals(20, 0), Decimal),
    Widening(FLOATS, DOUBLES, float),
    Widening(DATES, NAIVE, lambda day: datetime.combine(day, time())),
    Widening(decimals(5, 2), decimals(9, 4), Decimal),
    Widening(STRINGS, STRINGS, str),
]


def _array(inner: Widening) -> Widening:
    each = _or_null(inner.convert)
    return Widening(
        arrays(inner.old), arrays(inner.new), lambda values: [each(value) for value in values]
    )


def _map(inner: Widening) -> Widening:
    each = _or_null(inner.convert)
    return Widening(
        maps(STRINGS, inner.old),
        maps(STRINGS, inner.new),
        lambda pairs: [(key, each(value)) for key, value in pairs],
    )


def _struct(inner: Widening) -> Widening:
    """A struct with one field, or with two in the new type."""
    more = _integer(32)
    old = Kind(
        pa.struct([("f", inner.old.type)]),
        st.fixed_dictionaries({"f": nullable(inner.old).values}),
    )
    new = Kind(
        pa.struct([("more", more.type), ("f", inner.new.type)]),
        st.fixed_dictionaries({"more": st.none() | more.values, "f": nullable(inner.new).values}),
    )
    each = _or_null(inner.convert)
    return Widening(old, new, lambda value: {"more": None, "f": each(value["f"])})


def _or_null(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


widenings = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: inner.map(_array) | inner.map(_map) | inner.map(_struct),
    max_leaves=3,
)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Widening, Values, Values, bool]:
    """A widening, the old and new values of some keys, and whether a column is added too."""
    widening = draw(widenings)
    before = draw(st.lists(nullable(widening.old).values, min_size=1, max_size=8))
    convert = _or_null(widening.convert)
    after = [
        draw(nullable(widening.new).values) if draw(st.booleans()) else convert(value)
        for value in before
    ]
    return widening, before, after, draw(st.booleans())


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return an object that is equal for equal values; the entries of a map have no order."""
    if value is None or not pa.types.is_nested(kind):
        return canonical(value)
    if pa.types.is_map(kind):
        return frozenset((key, _plain(item, kind.item_type)) for key, item in value)
    if pa.types.is_list(kind):
        return tuple(_plain(one, kind.value_type) for one in value)
    return tuple((field.name, _plain(value[field.name], field.type)) for field in kind)


def _table(values: Values, kind: pa.DataType, is_new: bool) -> pa.Table:
    columns = {"k": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, kind)}
    return pa.table(columns | ({"new": pa.nulls(len(values), pa.string())} if is_new else {}))


@pytest.mark.slow
@examples(40)
@given(_cases(), st.booleans())
def test_rows_are_compared_by_value(
    case: tuple[Widening, Values, Values, bool], is_layered: bool
) -> None:
    widening, before, after, has_new = case
    old, new = widening.old.type, widening.new.type
    convert = _or_null(widening.convert)
    wanted = {
        key
        for key, (one, other) in enumerate(zip(before, after, strict=True))
        if _plain(convert(one), new) != _plain(other, new)
    }
    with tempfile.TemporaryDirectory() as folder:
        store = StateStore.open(folder, table_format="parquet", compaction=None)
        with store.snapshot(parallelism=1) as checkpoint:
            rows = _table(before, old, False)
            state = checkpoint.write_keyed("u", "s", rows.slice(0, 0), key="k", max_parallelism=4)
        with store.snapshot(parallelism=1) as checkpoint:
            if is_layered:
                checkpoint.write_changes("u", "s", rows, key="k")
            else:
                checkpoint.write_keyed("u", "s", rows, key="k")
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "s", _table(after, new, has_new), key="k")
        assert state.state.schema.names == ("k", "v")
        for a, b in ((2, 3), (3, 2)):
            (found,) = store.inspect.diff(a, b, keys=100).states
            assert {example.identity["k"] for example in found.examples} == wanted
            assert (found.added, found.removed, found.changed) == (0, 0, len(wanted))
            if not has_new:
                groups = {key_group.key_group for key_group in found.key_groups}
                assert found.key_groups_differing == len(groups)
            joined = store.inspect.as_of(a, b, "u", "s").read_all()
            changes = dict(zip(joined["k"].to_pylist(), joined["change"].to_pylist(), strict=True))
            assert {key for key, change in changes.items() if change == "changed"} == wanted
            assert len(changes) == len(before)
        history = [store.inspect.history(key, "u", "s") for key in range(len(before))]
        assert {key for key, known in enumerate(history) if known[2].is_changed} == wanted
        assert all(known[1].is_changed for known in history)


@pytest.mark.slow
@examples(40)
@given(_cases())
def test_elements_are_compared_by_value(
    case: tuple[Widening, Values, Values, bool],
) -> None:
    """Operator state keeps its columns, but two stores can have different ones."""
    widening, before, after, _ = case
    convert = _or_null(widening.convert)
    wanted = sum(
        _plain(convert(one), widening.new.type) != _plain(other, widening.new.type)
        for one, other in zip(before, after, strict=True)
    )
    with tempfile.TemporaryDirectory() as folder:
        stores = []
        for name, values, kind in (
            ("a", before, widening.old.type),
            ("b", after, widening.new.type),
        ):
            store = StateStore.open(f"{folder}/{name}", table_format="parquet")
            with store.snapshot(parallelism=1) as checkpoint:
                checkpoint.write_split("u", "e", _table(values, kind, False))
            stores.append(store)
        (found,) = stores[0].inspect.diff(1, stores[1].checkpoint(1)).states
        assert (found.added, found.removed, found.changed) == (0, 0, wanted)


def test_minus_zero_is_a_change_for_every_reader(store: StateStore) -> None:
    for value in (0.0, -0.0, float("nan"), float("nan")):
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "s", pa.table({"k": [1], "v": [value]}), key="k")
    assert [one.is_changed for one in store.inspect.history(1, "u", "s")] == [
        True,
        True,
        True,
        False,
    ]
    for a, b, changed in ((1, 2, 1), (2, 3, 1), (3, 4, 0)):
        assert store.inspect.diff(a, b).states[0].changed == changed
        assert (
            store.inspect.as_of(a, b, "u", "s").read_all()["change"][0].as_py() == "changed"
        ) == changed
