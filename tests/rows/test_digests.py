"""The digest of Arrow columns equals the definition in ``format/digest.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from statestore.format.digest import combine, hash_value
from statestore.rows import digests as digest
from statestore.rows.column_types import schema_of_arrow
from statestore.rows.digests import hash_array, row_hashes, rows_digest
from statestore.testing import reference
from tests.support.examples import examples
from tests.support.strategies import KEY_KINDS, Kind, nullable, table, value_kinds


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    kinds: list[Kind] = draw(st.lists(value_kinds.map(nullable), min_size=1, max_size=3))
    rows = draw(st.lists(st.tuples(*(kind.values for kind in kinds)), max_size=8))
    return table([f"c{index}" for index in range(len(kinds))], kinds, rows)


def by_definition(rows: pa.Table) -> int:
    return reference.rows_digest(rows.to_pylist(), schema_of_arrow(rows.schema))


@pytest.mark.slow
@examples(200)
@given(tables())
def test_columns_have_the_digest_of_the_definition(rows: pa.Table) -> None:
    """I7: for every type, with null at every level."""
    assert rows_digest(rows) == by_definition(rows)


@given(tables(), st.data())
def test_slices_and_chunks_have_the_digest_of_their_rows(rows: pa.Table, data: Any) -> None:
    """I7: the digest is additive, for any slicing of the rows and any buffer layout."""
    ends = st.integers(0, rows.num_rows)
    first, last = sorted(data.draw(st.tuples(ends, ends)))
    parts = [rows.slice(0, first), rows.slice(first, last - first), rows.slice(last)]
    for part in parts:
        assert rows_digest(part) == by_definition(part)
    assert rows_digest(pa.concat_tables(parts)) == combine(map(rows_digest, parts))
    assert combine(map(rows_digest, parts)) == rows_digest(rows)


@given(tables(), st.randoms())
def test_the_order_of_rows_and_columns_does_not_matter(rows: pa.Table, random: Any) -> None:
    """I7: the name of the first column does not matter either."""
    order = random.sample(range(rows.num_rows), rows.num_rows)
    columns = random.sample(rows.column_names, rows.num_columns)
    assert rows_digest(rows.take(pa.array(order, pa.int64())).select(columns)) == rows_digest(rows)


@given(tables(), st.data())
def test_it_changes_when_any_one_value_changes(rows: pa.Table, data: Any) -> None:
    """I7: to another value, or to or from null."""
    assume(rows.num_rows > 0)
    column = data.draw(st.integers(0, rows.num_columns - 1))
    at, other = (data.draw(st.integers(0, rows.num_rows - 1)) for _ in range(2))
    values = rows.column(column).to_pylist()
    replaced = [values[other] if i == at else value for i, value in enumerate(values)]
    field = rows.schema.field(column)
    changed = rows.set_column(column, field, pa.array(replaced, field.type))
    same = reference.canonical(values[at]) == reference.canonical(values[other])
    assert (rows_digest(changed) == rows_digest(rows)) == same


@given(tables(), st.integers(2, 40))
def test_many_columns_have_the_digest_of_the_definition(rows: pa.Table, times: int) -> None:
    """I7: columns of one type are hashed together, and each counts with its own name."""
    columns = {
        f"{name}-{number}": pa.concat_arrays(
            [*column.slice(place).chunks, *column.slice(0, place).chunks]
        )
        for name, column in zip(rows.column_names, rows.columns, strict=True)
        for number in range(times)
        for place in [number % max(rows.num_rows, 1)]
    }
    wide = pa.table(columns) if rows.num_rows else pa.table(rows)
    assert rows_digest(wide) == by_definition(wide)
    assert rows_digest(wide.slice(1)) == by_definition(wide.slice(1))


def test_the_cost_of_few_rows_does_not_grow_with_the_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call for each column would cost more than its values."""
    calls: list[int] = []
    mix = digest._mix

    def counting(values: Any) -> Any:
        calls.append(values.size)
        return mix(values)

    monkeypatch.setattr(digest, "_mix", counting)
    for count in (10, 500):
        row_hashes(pa.record_batch({f"c{number}": [number, 1, 2] for number in range(count)}))
    assert len(calls) == 6


@pytest.mark.parametrize("kind", KEY_KINDS, ids=lambda kind: str(kind.type))
def test_other_forms_of_one_column_have_one_digest(kind: Kind) -> None:
    """Dictionary encoding, 64-bit offsets and views represent the same values."""
    values = pa.nulls(3, kind.type)
    forms: list[pa.Array] = [values.dictionary_encode()]
    if pa.types.is_string(kind.type):
        values = pa.array(["", None, "x" * 20], kind.type)
        forms = [values.dictionary_encode(), values.cast(pa.large_string())]
    for form in forms:
        assert hash_array(form).tolist() == hash_array(values).tolist()


def test_no_rows_have_the_digest_zero() -> None:
    """This holds for any type, and for an empty slice of a nonempty column."""
    for kind in (pa.string(), pa.binary(), pa.list_(pa.int8()), pa.map_(pa.string(), pa.int8())):
        assert rows_digest(pa.table({"a": pa.array([], kind)})) == 0
        assert rows_digest(pa.table({"a": pa.nulls(3, kind)}).slice(1, 0)) == 0
    assert rows_digest(pa.table({"a": pa.array([], pa.decimal128(5, 2))})) == 0


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string()])
def test_strings_of_every_length(kind: pa.DataType) -> None:
    """Texts of few or many words, equal or different, whose last word is full or has one byte."""
    lengths = [0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 503, 504, 505, 511, 512, 513, 520, 4000]
    texts = [("0123456789abcdef" * 300)[length % 5 :][:length] for length in lengths]
    for some in ([*texts, None], *([text, text] for text in texts), texts[:13], texts[:16]):
        rows = pa.table({"a": pa.array(some).cast(kind)})
        assert rows_digest(rows) == by_definition(rows)
        assert rows_digest(rows.slice(1)) == by_definition(rows.slice(1))


def test_values_under_a_null_do_not_count() -> None:
    """The buffers of a null list, struct or number can contain any bytes."""
    hidden = pa.ListArray.from_arrays([0, 2, 3], [1, 2, 3], mask=pa.array([True, False]))
    assert hash_array(hidden).tolist() == hash_array(pa.array([None, [3]])).tolist()
    numbers = pa.array([1, 2], mask=np.array([True, False]))
    assert hash_array(numbers).tolist() == hash_array(pa.array([None, 2])).tolist()
    structs = pa.StructArray.from_arrays([[1, 2]], names=["a"], mask=pa.array([True, False]))
    assert hash_array(structs).tolist() == hash_array(pa.array([None, {"a": 2}])).tolist()


def test_a_slice_of_lists_costs_its_own_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is hashed one key group at a time. Each group hashes only its own values."""
    mixed: list[int] = []
    mix = digest._mix

    def counting(values: Any) -> Any:
        mixed.append(len(values))
        return mix(values)

    monkeypatch.setattr(digest, "_mix", counting)
    batch = pa.record_batch({"a": pa.array([[number] * 20 for number in range(600)])})
    row_hashes(batch)
    whole = sum(mixed)
    for start in range(0, 600, 2):
        row_hashes(batch.slice(start, 2))
    assert sum(mixed) == 2 * whole


def test_a_type_that_is_never_stored_is_refused() -> None:
    """Such a type has no defined digest."""
    with pytest.raises(TypeError, match="no digest is defined for duration"):
        hash_array(pa.array([1], pa.duration("us")))


def test_long_texts_are_hashed_a_few_words_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is the same for any division of the words, also within a text."""
    texts = [bytes(range(1, 1 + size)) * 4 for size in (0, 200, 1, 2, 250, 0, 130)]
    column = pa.array([*texts, b"x" * 513, b""], pa.binary())
    expected = [hash_value(value) for value in column.to_pylist()]
    for words in (1, 7, 64, 10_000):
        monkeypatch.setattr(digest, "_WORDS_AT_ONCE", words)
        assert hash_array(column).tolist() == expected
