"""A result that was written as CSV comes back equal if its columns get their types."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.format.schema import Field, Schema
from statestore.interop.tables import open_table
from statestore.restore.row_files import write_result
from statestore.rows.column_types import arrow_schema

EDGES = ["", '"', '""', "\r", "\n", "\r\n", ",", " ", "null", "\0", "\ufeff", "é"]


def integers(bits: int) -> st.SearchStrategy[int]:
    most = 2 ** (bits - 1)
    edges = st.sampled_from([-most, 1 - most, -1, 0, 1, most - 1])
    return edges | st.integers(-most, most - 1)


def decimals(digits: int) -> st.SearchStrategy[int]:
    return st.sampled_from([1 - 10**digits, 0, 1]) | st.integers(1 - 10**digits, 10**digits - 1)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.lists(st.sampled_from(EDGES) | st.text(max_size=3), max_size=4).map("".join),
    "long": integers(64),
    "integer": integers(32),
    "short": integers(16),
    "byte": integers(8),
    "double": st.floats(),
    "float": st.floats(width=32),
    "boolean": st.booleans(),
    "binary": st.binary(max_size=5),
    "date": integers(32) | st.integers(-800_000, 3_000_000),
    "timestamp": integers(64) | st.integers(-(10**17), 10**18),
    "timestamp_ntz": integers(64) | st.integers(-(10**17), 10**18),
    "decimal(38,0)": decimals(38),
    "decimal(38,38)": decimals(38),
    "decimal(10,2)": decimals(10),
}


def column(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """Return values as a column; times and decimals are the integers that Arrow stores."""
    if pa.types.is_decimal(data_type):
        whole = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in values)
        valid = pa.array([value is not None for value in values], pa.bool_())
        bits = valid.buffers()[1]
        return pa.Array.from_buffers(data_type, len(values), [bits, pa.py_buffer(whole)])
    if pa.types.is_temporal(data_type):
        return pa.array(values, pa.int32() if data_type.bit_width == 32 else pa.int64()).view(
            data_type
        )
    return pa.array(values, data_type)


def plain(array: pa.Array) -> list[str]:
    """Return values as texts that differ if the values do, as 0.0 and -0.0."""
    stored = array
    if pa.types.is_temporal(array.type):
        stored = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return [repr(value) for value in stored.to_pylist()]


@pytest.mark.long_cases(
    "integer",
    "short",
    "byte",
    "float",
    "boolean",
    "date",
    "timestamp_ntz",
    "decimal(38,0)",
    "decimal(10,2)",
)
@pytest.mark.parametrize("name", VALUES)
@given(st.data())
def test_each_value_of_a_type_comes_back(name: str, data: st.DataObject) -> None:
    (field,) = arrow_schema(Schema((Field("\ufeffv", name),)))
    values = data.draw(st.lists(st.none() | VALUES[name], max_size=8))
    rows = pa.record_batch([column(values, field.type)], names=[field.name])
    with TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        write_result(pa.RecordBatchReader.from_batches(rows.schema, [rows]), "csv", path, 0)
        table = open_table(str(path), types={field.name: name})
        found = pa.Table.from_batches(list(table.batches()), table.schema)
    assert table.schema == pa.schema([field])
    assert plain(found.column(0).combine_chunks()) == plain(rows.column(0))


def test_nested_values_come_back_as_their_json(tmp_path: Path) -> None:
    rows = pa.record_batch(
        {"k": ["a", None], "v": pa.array([[{"n": 1, "t": 'x,"'}], []]), "w": [b"\0\xff", b""]}
    )
    path = tmp_path / "t.csv"
    write_result(pa.RecordBatchReader.from_batches(rows.schema, [rows]), "csv", path, 0)
    table = open_table(str(path), types={"w": "binary"})
    assert pa.Table.from_batches(list(table.batches())).to_pylist() == [
        {"k": "a", "v": '[{"n": 1, "t": "x,\\""}]', "w": b"\0\xff"},
        {"k": None, "v": "[]", "w": b""},
    ]
