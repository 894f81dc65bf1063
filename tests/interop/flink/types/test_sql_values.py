"""Any value of any SQL type is written and read back equal, in a row and outside of one."""

from __future__ import annotations

import json
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.errors import DamagedFileError, InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, i32
from statestore.interop.flink.metadata.logical_types import LogicalType, key_logical_type, sql_type
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.binary_rows import encode_rows
from statestore.interop.flink.types.byte_cursor import Spans
from statestore.interop.flink.types.column_bytes import decode_values
from statestore.interop.flink.types.internal_types import StreamElementType
from statestore.interop.flink.types.java_types import Scalar
from statestore.interop.flink.types.serializer_snapshots import read_snapshot
from statestore.interop.flink.types.sql_types import (
    DecimalDataType,
    RowDataType,
    SqlCollection,
    TimestampDataType,
)
from statestore.keys.arrow import words_hashes
from statestore.keys.sql import sql_row_hash
from tests.interop.flink.types import row_writer
from tests.support.examples import examples

_SCALARS = tuple(
    map(
        key_logical_type,
        (
            *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE"),
            *("TIME(3)", "CHAR(9)", "STRING", "BYTES", "DECIMAL(18, 3)", "DECIMAL(38, 10)"),
            *("TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)"),
            *("TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(6)", "TIMESTAMP_LTZ(9)"),
        ),
    )
)
_RAW = tuple(LogicalType(name, b"", name) for name in ("RAW", "VARIANT", "BITMAP"))


def composite(
    root: str, children: tuple[LogicalType, ...], names: tuple[str, ...] = ()
) -> LogicalType:
    return LogicalType(root, b"", root, children=children, names=names)


def composites(inner: st.SearchStrategy[LogicalType]) -> st.SearchStrategy[LogicalType]:
    some = st.lists(inner, max_size=3).map(tuple)
    return st.one_of(
        some.map(lambda children: composite("ROW", children)),
        some.map(
            lambda children: composite(
                "STRUCTURED_TYPE", children, tuple(f"name_{at}" for at in range(len(children)))
            )
        ),
        inner.map(lambda element: composite("ARRAY", (element,))),
        inner.map(lambda element: composite("MULTISET", (element,))),
        st.tuples(inner, inner).map(lambda pair: composite("MAP", pair)),
    )


columns = st.recursive(st.sampled_from((*_SCALARS, *_RAW)), composites, max_leaves=5)


def whole_numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def scalars(column: LogicalType, data_type: pa.DataType) -> st.SearchStrategy[Any]:
    """Return what a column of a type without children can have, as Arrow takes it."""
    types = pa.types
    if types.is_boolean(data_type):
        return st.booleans()
    if types.is_floating(data_type):
        return st.floats(width=32 if data_type.bit_width == 32 else 64, allow_nan=False)
    if types.is_decimal(data_type):
        unscaled = st.integers(1 - 10**column.precision, 10**column.precision - 1)
        exact = Context(prec=80)
        return unscaled.map(lambda number: Decimal(number).scaleb(-column.scale, exact))
    if types.is_string(data_type):
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    if types.is_binary(data_type):
        return st.binary(max_size=12)
    if types.is_time(data_type):
        return st.integers(0, 86_399_999)
    if types.is_struct(data_type):  # an instant with nanoseconds
        nanos = st.integers(0, 999_999_999)
        return st.fixed_dictionaries({"second": whole_numbers(50), "nano": nanos})
    return whole_numbers(60 if types.is_timestamp(data_type) else data_type.bit_width)


def repr_of_key(entry: tuple[Any, Any]) -> str:
    """Return a text that differs for different keys of a map, in any order of a row's fields."""
    return json.dumps(entry[0], sort_keys=True, default=repr)


def values_of(column: LogicalType) -> st.SearchStrategy[Any]:
    """Return the values of a column except null."""
    data_type = sql_type(column)
    if column.root in ("ROW", "STRUCTURED_TYPE"):
        _, *fields = data_type
        inner = {
            field.name: st.none() | values_of(child)
            for field, child in zip(fields, column.children, strict=True)
        }
        return st.fixed_dictionaries({"row_kind": st.integers(0, 3)} | inner)
    if column.root == "ARRAY":
        return st.lists(st.none() | values_of(column.children[0]), max_size=4)
    if column.root == "MULTISET":
        counted = st.tuples(values_of(column.children[0]), whole_numbers(32))
        return st.lists(counted, max_size=3, unique_by=repr_of_key)
    if column.root == "MAP":
        key, value = column.children
        entries = st.tuples(values_of(key), st.none() | values_of(value))
        return st.lists(entries, max_size=3, unique_by=repr_of_key)
    return scalars(column, data_type)


def storage_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type with integers in place of dates and times, all of which Arrow can build."""
    types = pa.types
    if types.is_temporal(data_type):
        return pa.int32() if data_type.bit_width == 32 else pa.int64()
    if types.is_struct(data_type):
        return pa.struct([field.with_type(storage_type(field.type)) for field in data_type])
    if types.is_map(data_type):
        return pa.map_(storage_type(data_type.key_type), storage_type(data_type.item_type))
    if types.is_list(data_type):
        return pa.list_(storage_type(data_type.value_type))
    return data_type


def survives(flink_type: FlinkType, values: list[Any]) -> None:
    """Write and read values; the length of each is found, and a part of the column is the same."""
    data_type = flink_type.arrow_type()
    array = pa.array(values, storage_type(data_type)).cast(data_type)
    raw = flink_type.write(array).to_pylist()
    found = decode_values(flink_type, Spans.from_values(raw, "values"))
    found.validate(full=True)
    assert found.equals(array)
    assert flink_type.write(found).to_pylist() == raw
    assert flink_type.write(array.slice(1)).to_pylist() == raw[1:]
    for value in raw:
        reader = Reader(value + b"more", "a value")
        flink_type.skipper()(reader)
        assert reader.remaining == 4


@pytest.mark.slow
@examples(300)
@given(data=st.data())
def test_rows_of_any_types_survive(data: st.DataObject) -> None:
    row = data.draw(st.lists(columns, max_size=4).map(lambda some: composite("ROW", tuple(some))))
    values = data.draw(st.lists(values_of(row), max_size=4))
    survives(RowDataType(row.children, (Scalar("Long"),) * len(row.children)), values)


@examples(100)
@given(data=st.data(), are_keys=st.booleans())
def test_rows_written_together_have_the_bytes_and_hashes_of_single_rows(
    data: st.DataObject, are_keys: bool
) -> None:
    row = data.draw(st.lists(columns, max_size=4).map(lambda some: composite("ROW", tuple(some))))
    values = data.draw(st.lists(values_of(row), max_size=4))
    array = pa.array(values, storage_type(sql_type(row))).cast(sql_type(row))
    single_rows = row_writer.encode_rows(row.children, array, are_keys=are_keys)
    encoded = encode_rows(row.children, array, are_keys=are_keys)
    assert encoded.to_pylist() == single_rows
    spans = Spans.from_array(encoded, "rows")
    hashes = words_hashes(spans.data, spans.starts, spans.ends - spans.starts)
    assert hashes.tolist() == [sql_row_hash(single_row) for single_row in single_rows]


@pytest.mark.long
@pytest.mark.slow
@settings(max_examples=200)
@given(data=st.data())
def test_arrays_and_maps_outside_of_rows_survive(data: st.DataObject) -> None:
    root, count = data.draw(st.sampled_from([("ARRAY", 1), ("MAP", 2)]))
    column = composite(root, tuple(data.draw(columns) for _ in range(count)))
    values = data.draw(st.lists(values_of(column), max_size=4))
    survives(SqlCollection(column, 1, b""), values)


@given(data=st.data())
def test_stream_elements_survive(data: st.DataObject) -> None:
    column = data.draw(columns)
    row = composite("ROW", (column,))
    timed = st.fixed_dictionaries(
        {"timestamp": st.none() | whole_numbers(64), "value": values_of(row)}
    )
    watermark = st.fixed_dictionaries({"timestamp": whole_numbers(64), "value": st.none()})
    values = data.draw(st.lists(timed | watermark, max_size=4))
    survives(StreamElementType(RowDataType((column,), (Scalar("Long"),))), values)


@given(data=st.data(), precision=st.integers(1, 38))
def test_decimals_outside_of_rows_survive(data: st.DataObject, precision: int) -> None:
    column = key_logical_type(f"DECIMAL({precision}, {precision // 2})")
    values = data.draw(st.lists(values_of(column), max_size=4))
    survives(DecimalDataType(precision, precision // 2), values)


@given(data=st.data(), precision=st.integers(0, 9))
def test_timestamps_outside_of_rows_survive(data: st.DataObject, precision: int) -> None:
    values = data.draw(st.lists(values_of(key_logical_type(f"TIMESTAMP({precision})")), max_size=4))
    survives(TimestampDataType(precision), values)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_decimal_keeps_all_of_its_38_digits(sign: int) -> None:
    column = key_logical_type("DECIMAL(38, 10)")
    number = Decimal(sign * int("1234567890" * 3 + "12345678")).scaleb(-10, Context(prec=38))
    survives(SqlCollection(composite("ARRAY", (column,)), 1, b""), [[number, None], []])


def stream_element() -> FlinkType:
    return StreamElementType(Scalar("Long"))


def test_a_stream_element_of_another_sort_is_refused() -> None:
    status = bytes([4]) + bytes(8)
    message = "a stream element of kind 4 is neither a record nor a watermark"
    with pytest.raises(UnsupportedTypeError, match=message):
        decode_values(stream_element(), Spans.from_values([status], "values"))
    with pytest.raises(UnsupportedTypeError, match=message):
        stream_element().skipper()(Reader(status, "values"))


def test_a_watermark_without_a_time_is_refused() -> None:
    elements = pa.array([{"timestamp": None, "value": None}], stream_element().arrow_type())
    with pytest.raises(InvalidArgumentError, match="a value is null, which Flink's serializer"):
        stream_element().write(elements)


def int_array(size: int, count: int) -> bytes:
    """Return an array that says it has ``count`` numbers of four bytes."""
    return i32(size) + count.to_bytes(4, "little", signed=True) + bytes(size - 4)


MAP = composite("MAP", (key_logical_type("INT"), key_logical_type("INT")))
ARRAY = composite("ARRAY", (key_logical_type("INT"),))
NULL_KEY = b"\1\0\0\0\1\0\0\0" + bytes(4)


@pytest.mark.parametrize(
    ("column", "raw", "error", "message"),
    [
        (ARRAY, int_array(16, 3), DamagedFileError, "an array does not fit its column"),
        (ARRAY, int_array(16, -1), DamagedFileError, "an array does not fit its column"),
        (MAP, i32(4) + b"\x09\0\0\0", DamagedFileError, "the keys exceed their map"),
        (
            MAP,
            i32(28) + b"\x0c\0\0\0" + NULL_KEY + NULL_KEY,
            UnsupportedTypeError,
            "a map has a null key, which a map column cannot store",
        ),
    ],
)
def test_a_damaged_array_or_map_is_named(
    column: LogicalType, raw: bytes, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        decode_values(SqlCollection(column, 1, b""), Spans.from_values([raw], "values"))


@pytest.mark.parametrize(
    ("flink_type", "raw", "message"),
    [
        (DecimalDataType(2, 0), bytes(7) + b"\x64", "a decimal has too many digits"),
        (DecimalDataType(38, 0), i32(9) + bytes(8), "a count is too large"),
        (TimestampDataType(6), bytes(8) + i32(1_000_000), "does not have this nanosecond"),
    ],
)
def test_a_damaged_decimal_or_timestamp_is_named(
    flink_type: FlinkType, raw: bytes, message: str
) -> None:
    with pytest.raises(DamagedFileError, match=message):
        decode_values(flink_type, Spans.from_values([raw], "values"))


@pytest.mark.parametrize("flink_type", [DecimalDataType(39, 0), TimestampDataType(10)])
def test_a_type_with_too_many_digits_is_damaged(flink_type: FlinkType) -> None:
    with pytest.raises(DamagedFileError, match=r"a type of Flink SQL cannot have (39|10) digits"):
        read_snapshot(Reader(i32(2) + flink_type.snapshot(), "a snapshot"))


def test_a_null_array_outside_of_a_row_is_refused() -> None:
    flink_type = SqlCollection(ARRAY, 1, b"")
    with pytest.raises(InvalidArgumentError, match="a value is null, which Flink's serializer"):
        flink_type.write(pa.array([[1], None], flink_type.arrow_type()))
