"""A value that its type does not have is refused on write, with its column, row and value."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import StateStore, key_groups
from statestore.engines.given_rows import read_rows
from statestore.engines.rows import ArrowRows
from statestore.errors import InvalidArgumentError
from statestore.rows.fit_columns import refuse_invalid_values
from tests.support.examples import examples

BAD = pa.array([b"ok", b"caf\xe9"], pa.binary()).view(pa.string())
DIGITS = pa.array([Decimal("1.50"), Decimal("1000001.50")]).cast(pa.decimal128(5, 2), safe=False)


def _nested(name: str, values: pa.Array) -> dict[str, pa.Array]:
    ends = pa.array([0, 1, 2], pa.int32())
    return {
        name: values,
        f"list of {name}": pa.ListArray.from_arrays(ends, values),
        f"struct of {name}": pa.StructArray.from_arrays([values], ["a"]),
        f"map to {name}": pa.MapArray.from_arrays(ends, pa.array(["x", "y"]), values),
        f"map from {name}": pa.MapArray.from_arrays(ends, values, pa.array([1, 2])),
        f"dictionary of {name}": pa.DictionaryArray.from_arrays(pa.array([0, 1]), values),
    }


def _built(data_type: pa.DataType, offsets: list[int], *rest: pa.Buffer, **more: Any) -> pa.Array:
    buffers = [None, pa.array(offsets, pa.int32()).buffers()[1], *rest]
    return pa.Array.from_buffers(data_type, len(offsets) - 1, buffers, **more)


NESTED = {
    "large": pa.array([b"ok", b"caf\xe9"], pa.large_binary()).view(pa.large_string()),
    "view": pa.array([b"ok", b"caf\xe9"], pa.binary_view()).view(pa.string_view()),
    **_nested("text", BAD),
    **_nested("decimal", DIGITS),
    "offsets of text": _built(pa.string(), [0, 1, 9, 3], pa.py_buffer(b"abc")),
    # Slicing a table at such a value crashes the process.
    "offsets of a list": _built(
        pa.list_(pa.string()), [0, 1, 2**28, 3], children=[pa.array(["x", "y", "z"])]
    ),
    "index": pa.DictionaryArray.from_arrays(pa.array([0, 7]), pa.array(["x"]), safe=False),
    "index in a list": pa.ListArray.from_arrays(
        pa.array([0, 1, 2]),
        pa.DictionaryArray.from_arrays(pa.array([0, 7]), pa.array(["x"]), safe=False),
    ),
}
"""Columns of which the second value is invalid."""


@pytest.mark.parametrize("values", NESTED.values(), ids=NESTED)
@pytest.mark.parametrize("as_changes", [False, True])
def test_it_is_refused_at_any_depth(store: StateStore, values: pa.Array, as_changes: bool) -> None:
    rows = pa.table({"k": ["a", "b", "c"][: len(values)], "v": values})
    first = pa.table({"k": ["a"], "v": pa.nulls(1, values.type)})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", first, key="k")
    checkpoint = store.snapshot(parallelism=1).__enter__()
    write = checkpoint.write_changes if as_changes else checkpoint.write_keyed
    with pytest.raises(InvalidArgumentError, match=r"row 1 of .* in the column 'v' of type"):
        write("u", "s", rows, key="k")
    checkpoint.__exit__(RuntimeError, RuntimeError(), None)
    assert store.checkpoints() == (1,)


def test_a_key_is_refused(store: StateStore) -> None:
    rows = pa.table({"k": BAD, "v": [1, 2]})
    for key in ("k", ["v", "k"]):
        with (
            pytest.raises(InvalidArgumentError, match=r"row 1 of .* is not UTF-8"),
            store.snapshot(parallelism=1) as new,
        ):
            new.write_keyed("u", "s", rows, key=key)


def _reader(rows: pa.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches())


def _pandas(rows: pa.Table) -> Any:
    return rows.to_pandas(types_mapper=pd.ArrowDtype)


SOURCES = {
    "reader": _reader,
    "batches": lambda rows: iter(rows.to_batches()),
    "pandas": _pandas,
    "polars": pl.from_arrow,
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("column", ["k", "v"])
def test_it_is_refused_from_every_source(
    store: StateStore, source: Callable[[pa.Table], Any], column: str
) -> None:
    rows = pa.table({"k": ["a", "b"], "v": ["a", "b"]}).set_column(
        ["k", "v"].index(column), column, DIGITS
    )
    with (
        pytest.raises(
            InvalidArgumentError, match=rf"row 1 of .*1000001.50.* in the column '{column}'"
        ),
        store.snapshot(parallelism=1) as new,
    ):
        new.write_keyed("u", "s", source(rows), key="k")
    assert store.checkpoints() == ()


def test_a_later_batch_of_a_stream_is_refused_with_its_row() -> None:
    fine = pa.record_batch({"k": ["a", "b"], "v": DIGITS.take(pa.array([0, 0]))})
    wrong = pa.record_batch({"k": ["c", "d"], "v": DIGITS})
    rows = read_rows(iter([fine, fine, wrong]), "rows", most_bytes=fine.nbytes)
    assert isinstance(rows, ArrowRows)
    assert rows.table is None
    with pytest.raises(InvalidArgumentError, match=r"row 5 of .*1000001.50"):
        rows.read_all()


def test_keys_to_hash_are_refused() -> None:
    for rows in (pa.table({"k": DIGITS}), pa.table({"k": NESTED["index"]})):
        with pytest.raises(InvalidArgumentError, match=r"row 1 of the rows .* column 'k'"):
            key_groups(rows, "k", max_parallelism=8)


def test_a_slice_without_the_invalid_value_is_accepted(store: StateStore) -> None:
    sliced = {name: values.slice(0, 1) for name, values in NESTED.items()}
    with store.snapshot(parallelism=1) as new:
        for name, values in sliced.items():
            new.write_keyed("u", name, pa.table({"k": ["a"], "v": values}), key="k")
    for name, values in sliced.items():
        stored = store.restore().keyed("u", name).to_arrow()["v"]
        assert stored.to_pylist() == values.to_pylist(), name


HIDES, ENDS = pa.array([False, True]), pa.array([0, 1, 2], pa.int32())
HAS_TEXT = pa.struct([("a", pa.dictionary(pa.int32(), pa.string()))])


@pytest.mark.parametrize(
    "values",
    [
        # pa.array gives such a null the index 0 of an empty dictionary.
        pa.array([None, {"a": None}], HAS_TEXT),
        pa.array([[None], [{"a": None}]], pa.list_(HAS_TEXT)),
        pa.array([[(1, None)], None], pa.map_(pa.int32(), HAS_TEXT)),
        pa.array([{"b": None}, None], pa.struct([("b", HAS_TEXT)])),
        *(
            build
            for values in (DIGITS, BAD)
            for build in (
                pa.StructArray.from_arrays([values], ["a"], mask=HIDES),
                pa.ListArray.from_arrays(ENDS, values, mask=HIDES),
                pa.LargeListArray.from_arrays(ENDS.cast(pa.int64()), values, mask=HIDES),
                pa.MapArray.from_arrays(ENDS, pa.array(["x", "y"]), values, mask=HIDES),
            )
        ),
    ],
    ids=lambda values: str(values.type),
)
def test_what_is_under_a_null_is_no_value(store: StateStore, values: pa.Array) -> None:
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", pa.table({"k": [1, 2], "v": values}), key="k")
    rows = store.restore(parallelism=1).keyed("u", "s").to_arrow(0).sort_by("k")
    assert rows["v"].to_pylist() == values.to_pylist()


def test_the_widest_decimal_is_accepted_and_a_wider_one_is_not(store: StateStore) -> None:
    most = 10**38 - 1
    with store.snapshot(parallelism=1) as new:
        new.write_keyed("u", "s", _huge(most), key="k")
    assert store.restore().keyed("u", "s").get("a")[0]["v"] == Decimal(most)
    with (
        pytest.raises(InvalidArgumentError, match=rf"row 0 of .*{most + 1}.*\(at most 38\)"),
        store.snapshot(parallelism=1) as new,
    ):
        new.write_keyed("u", "s", _huge(most + 1), key="k")


def _huge(number: int) -> pa.Table:
    return duckdb.connect().sql(f"SELECT 'a' AS k, {number}::HUGEINT AS v").to_arrow_table()


@pytest.mark.parametrize("mode", ["split", "union", "broadcast"])
def test_an_element_is_refused(store: StateStore, mode: str) -> None:
    place = {} if mode == "broadcast" else {"subtask": [0, 0], "position": [0, 1]}
    elements = pa.table({**place, "x": BAD})
    with (
        pytest.raises(InvalidArgumentError, match=r"row 1 of .*b'caf\\xe9' in the column 'x'"),
        store.snapshot(parallelism=1) as checkpoint,
    ):
        getattr(checkpoint, f"write_{mode}")("u", "e", elements)


@examples(100)
@given(st.lists(st.binary(max_size=6), min_size=1, max_size=30), st.integers(0, 3))
def test_only_bytes_that_python_decodes_are_accepted(values: list[bytes], skipped: int) -> None:
    column = pa.array(values, pa.binary()).view(pa.string()).slice(min(skipped, len(values) - 1))
    batch = pa.record_batch({"n": pa.array(range(len(column))), "v": column})
    left = values[len(values) - len(column) :]
    wrong = [place for place, value in enumerate(left) if not _is_text(value)]
    if not wrong:
        refuse_invalid_values(batch, "rows", key=["n"])
        return
    first = rf"^the row with n={wrong[0]} of rows has b['\x22]"  # as Python quotes the bytes
    with pytest.raises(InvalidArgumentError, match=first):
        refuse_invalid_values(batch, "rows", key=["n"])


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
