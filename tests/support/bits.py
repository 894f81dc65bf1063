"""Arrow columns as bits, and random columns of every type that a state can have."""

from __future__ import annotations

from decimal import Context, Decimal
from itertools import accumulate
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

__all__ = ["NAN_32", "NAN_64", "RAW", "bits", "columns", "kinds"]

INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
RAW = {
    pa.float32(): pa.int32(),
    pa.float64(): pa.int64(),
    pa.date32(): pa.int32(),
    pa.timestamp("us", "UTC"): pa.int64(),
    pa.timestamp("us"): pa.int64(),
}
"""Types whose values are built from the bits of integers: any NaN, and any year."""
CONTEXT = Context(prec=38)
NAN_32, NAN_64 = 0x7FC00123, 0x7FF8000000000123
"""Quiet NaNs with a payload."""


def bits(column: pa.Array | pa.ChunkedArray) -> Any:
    """Return the bits, lengths and nulls of a column, which distinguish it from all others."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if kind in RAW:
        return column.view(RAW[kind]).to_pylist()
    if pa.types.is_struct(kind):
        return column.is_valid().to_pylist(), [bits(field) for field in column.flatten()]
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
        nulls = column.is_null()
        column = pa.ListArray.from_arrays(column.offsets, entries, mask=nulls)
    if pa.types.is_list(column.type):
        return column.value_lengths().to_pylist(), bits(column.flatten())
    return column.to_pylist()


def kinds(levels: int = 2) -> st.SearchStrategy[pa.DataType]:
    """Draw a type that a state can have."""
    plain = st.sampled_from(
        [*INTEGERS, *RAW, pa.bool_(), pa.string(), pa.binary(), pa.decimal128(38, 6)]
    )
    if not levels:
        return plain
    inner = kinds(levels - 1)
    return plain | st.one_of(
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        st.tuples(inner, inner).map(lambda two: pa.struct([("a", two[0]), ("b", two[1])])),
        st.tuples(plain, inner).map(lambda two: pa.map_(*two)),
    )


@st.composite
def columns(draw: Any, kind: pa.DataType, length: int, *, nulls: bool = True) -> pa.Array:
    """Draw a column of a type, by default with nulls at every level."""
    is_null = draw(st.lists(st.booleans(), min_size=length, max_size=length))
    is_null = [one and nulls for one in is_null]
    mask = pa.array(is_null, pa.bool_())
    if pa.types.is_struct(kind):
        fields = [draw(columns(field.type, length)) for field in kind]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        sizes = draw(st.lists(st.integers(0, 2), min_size=length, max_size=length))
        sizes = [0 if null else size for null, size in zip(is_null, sizes, strict=True)]
        offsets = pa.array([0, *accumulate(sizes)], pa.int32())
        if pa.types.is_list(kind):
            values = draw(columns(kind.value_type, sum(sizes)))
            return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)
        keys = draw(columns(kind.key_type, sum(sizes), nulls=False))
        items = draw(columns(kind.item_type, sum(sizes)))
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    values = draw(st.lists(_values(kind), min_size=length, max_size=length))
    raw = pa.array(values, RAW.get(kind, kind), mask=mask.to_numpy(zero_copy_only=False))
    return raw.view(kind) if kind in RAW else raw


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_string(kind):
        return st.text(st.characters(codec="utf-8"), max_size=6)
    if pa.types.is_binary(kind):
        return st.binary(max_size=6)
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-kind.scale, CONTEXT))
    width = INTEGERS.get(kind) or RAW[kind].bit_width
    special = {pa.float32(): [NAN_32, 1 << 31], pa.float64(): [NAN_64, 1 << 63]}.get(kind, [])
    signed = [n - (1 << width) if n >> (width - 1) else n for n in special]
    numbers = st.integers(-(1 << width - 1), (1 << width - 1) - 1)
    return numbers | st.sampled_from(signed) if signed else numbers
