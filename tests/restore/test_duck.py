"""Batches passed to DuckDB start at offset 0 in memory, whichever slices they come from."""

from __future__ import annotations

import tempfile
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.format.state import Layout
from statestore.restore.duck import copy_slices
from statestore.rows.digests import row_hashes, rows_digest
from statestore.snapshot.state_spec import Changes
from tests.support.examples import examples
from tests.support.strategies import Kind, structs, value_kinds

pytestmark = pytest.mark.slow

CONNECTION = duckdb.connect(":memory:", config={"threads": 1})
CONNECTION.execute("SET TimeZone = 'UTC'")

nested = st.lists(value_kinds, min_size=1, max_size=2).map(structs).map(lambda one: structs([one]))


@st.composite
def sliced_batches(draw: st.DrawFn) -> pa.RecordBatch:
    """A batch with a nested column, sliced from a longer one at each level of structs."""
    kind: Kind = draw(nested | value_kinds)
    rows = draw(st.lists(kind.values, min_size=1, max_size=12))
    array = _cut(draw, pa.array(rows, kind.type))
    return _part(draw, pa.record_batch([array], ["v"]))


def _part(draw: st.DrawFn, rows: Any) -> Any:
    first = draw(st.integers(0, len(rows)))
    return rows.slice(first, draw(st.integers(0, len(rows) - first)))


def _cut(draw: st.DrawFn, array: pa.Array) -> pa.Array:
    """Return an array whose fields are slices too."""
    if not pa.types.is_struct(array.type):
        return _part(draw, array)
    fields = [_cut(draw, array.field(at)) for at in range(array.type.num_fields)]
    rows = min(map(len, fields))
    nulls = pa.array([draw(st.booleans()) for _ in range(rows)], pa.bool_())
    cut = [field.slice(len(field) - rows) for field in fields]
    return pa.StructArray.from_arrays(cut, fields=[*array.type], mask=nulls)


def offsets(array: pa.Array) -> set[int]:
    """Return the memory offsets of an array and of its nested arrays."""
    kind = array.type
    if pa.types.is_struct(kind):
        inner = [array.field(at) for at in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        inner = [array.keys, array.items]
    else:
        inner = [array.values] if pa.types.is_nested(kind) else []
    return {array.offset}.union(*map(offsets, inner))


@examples(100)
@given(sliced_batches())
def test_a_batch_starts_at_offset_zero(batch: pa.RecordBatch) -> None:
    """At each level, and the batch keeps its values."""
    [given_] = copy_slices([batch])
    assert given_.schema.equals(batch.schema)
    assert row_hashes(given_).tolist() == row_hashes(batch).tolist()  # NaN equals NaN here
    assert set().union(*map(offsets, given_.columns)) == {0}


def test_a_batch_without_slices_is_not_copied() -> None:
    """Nothing is copied without need."""
    batch = pa.record_batch([pa.array([{"a": {"b": [1]}}, None])], ["v"])
    [given_] = copy_slices([batch])
    assert given_.column(0).field(0).field(0).values.buffers()[1].address == (
        batch.column(0).field(0).field(0).values.buffers()[1].address
    )


@examples(100)
@given(sliced_batches())
def test_duckdb_reads_the_values_that_it_receives(batch: pa.RecordBatch) -> None:
    """Compare each value."""
    CONNECTION.register("given", pa.Table.from_batches(copy_slices([batch])))
    found = CONNECTION.sql("SELECT * FROM given").to_arrow_table().cast(batch.schema)
    assert rows_digest(found) == rows_digest(batch)
    assert found.num_rows == batch.num_rows


@pytest.mark.long
@examples(8)
@given(st.data(), st.sampled_from(Layout))
def test_a_query_and_an_edit_have_the_rows_of_a_restore(
    data: st.DataObject, layout: Layout
) -> None:
    """Nested structs, sliced by key group, with changes that apply to them."""
    kind: Kind = data.draw(nested)
    values = data.draw(st.lists(kind.values, min_size=1, max_size=30))
    rows = pa.table([pa.array(range(len(values))), pa.array(values, kind.type)], ["k", "v"])
    with tempfile.TemporaryDirectory() as folder:
        store = StateStore.open(folder, table_format="parquet")
        options: dict[str, Any] = {"key": "k", "max_parallelism": 4, "layout": layout.value}
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("u", "n", rows, **options)
        with store.snapshot(parallelism=2) as checkpoint:
            changed = rows.slice(data.draw(st.integers(1, len(rows))))
            checkpoint.write_changes(
                "u", "n", Changes(changed, pa.table({"k": pa.array([0], pa.int64())})), **options
            )
        expected = store.restore(parallelism=1).keyed("u", "n").to_arrow(0)
        found = store.query("SELECT * FROM n").read_all().cast(expected.schema)
        assert rows_digest(found) == rows_digest(expected)
        for group in range(4):
            part = store.query(f"SELECT v FROM n WHERE key_group = {group}").read_all()
            own = [row["v"] for row in expected.to_pylist() if row["key_group"] == group]
            assert rows_digest(part) == rows_digest(pa.table([pa.array(own, kind.type)], ["v"]))
        store.maintenance.edit("u", "n", sql="SELECT * FROM state")
        again = store.restore(parallelism=1).keyed("u", "n").to_arrow(0)
        assert rows_digest(again) == rows_digest(expected)
        assert again.num_rows == expected.num_rows
