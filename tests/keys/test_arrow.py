"""Hashing complete Arrow columns gives the hashes of Flink, and of the scalar engine."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from statestore.errors import (
    InvalidArgumentError,
    NullKeyError,
    UnsupportedTypeError,
)
from statestore.keys.arrow import key_groups, key_hashes
from statestore.keys.arrow_types import check_key_type
from statestore.keys.hashing import key_group_of, key_hash
from statestore.keys.key_types import HASH_SCHEMES, Typed
from tests.support.columns import Vectors, java_vectors, refused, sql_vectors

JAVA, SQL = java_vectors(), sql_vectors()

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pa.string(): st.text(),
    pa.large_string(): st.text(st.characters(codec="ascii")),
    pa.string_view(): st.text(max_size=20),
    pa.dictionary(pa.int8(), pa.string()): st.text(max_size=3),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.decimal128(12, 3): st.decimals(-(10**8), 10**8, places=3),
    pa.decimal128(38, 5): st.decimals(-(10**20), 10**20, places=5),
}
BINARIES = {pa.binary(): st.binary(), pa.binary(5): st.binary(min_size=5, max_size=5)}
JAVA_NAMES = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "int",
    pa.float32(): "float",
}
SQL_NAMES = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.float32(): "FLOAT",
    pa.decimal128(12, 3): "DECIMAL(12, 3)",
    pa.decimal128(38, 5): "DECIMAL(38, 5)",
}


def check(vectors: Vectors) -> None:
    options: Any = {"hash_scheme": vectors.hash_scheme, "key_types": vectors.key_types}
    if None not in vectors.hashes:
        assert key_hashes(vectors.columns, **options).tolist() == vectors.hashes
    for maximum in set(vectors.max_parallelism):
        groups = key_groups(vectors.columns, max_parallelism=maximum, **options).tolist()
        answers = zip(groups, vectors.groups, vectors.max_parallelism, strict=True)
        assert [group for group, _, m in answers if m == maximum] == [
            group
            for group, m in zip(vectors.groups, vectors.max_parallelism, strict=True)
            if m == maximum
        ]


def test_java_and_pyflink_vectors() -> None:
    """I1: every java or pyflink vector that a column can represent has Flink's hash and group."""
    for vectors in JAVA:
        check(vectors)


def test_sql_vectors() -> None:
    """I1: every flink-sql vector with a column has Flink's hash and group, NULLs included."""
    for vectors in SQL:
        check(vectors)


def test_the_vectors_are_many() -> None:
    """The tests above omit only values that no column can represent, which are few kinds."""
    assert sum(len(v.groups) for v in JAVA) == 6450
    assert sum(len(v.groups) for v in SQL) == 158
    assert refused("arrow") == {
        "text with lone surrogates, which is not UTF-8": 5,
        "decimals of a negative scale, which no stored column has": 2,
        "rows and tuples without fields, which no stored struct is": 2,
        "rows of another kind than +I": 6,
        "maps with a null key": 1,
        "lists whose elements have several types": 5,
        "nanoseconds outside the years 1677 to 2262": 1,
        "a key without columns": 1,
    }


@st.composite
def columns(draw: st.DrawFn, kinds: dict[Any, Any], most: int) -> tuple[list[Any], list[list[Any]]]:
    """Draw column types and rows of values for them."""
    types = draw(st.lists(st.sampled_from(list(kinds)), min_size=1, max_size=most))
    rows = draw(st.lists(st.tuples(*(kinds[kind] for kind in types)), max_size=6))
    return types, [[row[i] for row in rows] for i in range(len(types))]


def sliced(values: list[Any], data_type: pa.DataType) -> pa.ChunkedArray:
    """Put the values into two slices with an offset, in two chunks."""
    padding = values[:1] or [None]
    array = pa.array([*padding, *values, *padding], data_type).slice(1, len(values))
    middle = len(values) // 2
    return pa.chunked_array([array.slice(0, middle), array.slice(middle)], data_type)


@given(columns(VALUES, 3))
def test_columns_and_values_agree_in_java(drawn: tuple[list[Any], list[list[Any]]]) -> None:
    """I1: both engines agree on any values. One column is the plain key, and several are
    a tuple.
    """
    types, values = drawn
    arrays = [sliced(column, kind) for column, kind in zip(values, types, strict=True)]
    kinds = tuple(JAVA_NAMES.get(kind) for kind in types)
    rows = [tuple(row) for row in zip(*values, strict=True)]
    for scheme in ("java", "pyflink"):
        one = len(types) == 1
        expected = [
            key_hash(
                row[0] if one else row, key_type=kinds[0] if one else kinds, hash_scheme=scheme
            )
            for row in rows
        ]
        assert key_hashes(arrays, hash_scheme=scheme).tolist() == expected


@given(columns({kind: st.none() | v for kind, v in {**VALUES, **BINARIES}.items()}, 4))
def test_columns_and_values_agree_in_sql(drawn: tuple[list[Any], list[list[Any]]]) -> None:
    """I1: both engines agree on any SQL rows, with NULLs."""
    types, values = drawn
    assume(pa.time64("us") not in types)  # stored in milliseconds, so only the vectors cover it
    arrays = [sliced(column, kind) for column, kind in zip(values, types, strict=True)]
    names = [SQL_NAMES.get(kind) or check_key_type(kind, "flink-sql") for kind in types]
    expected = [
        key_hash(row, key_type=names, hash_scheme="flink-sql") for row in zip(*values, strict=True)
    ]
    assert key_hashes(arrays, hash_scheme="flink-sql").tolist() == expected


@given(st.lists(st.binary()))
def test_pyflink_hashes_bytes_by_content(values: list[bytes]) -> None:
    """Only the pyflink scheme supports a byte array as a key."""
    expected = [key_hash(value, hash_scheme="pyflink") for value in values]
    found = key_hashes([sliced(values, pa.large_binary())], hash_scheme="pyflink")
    assert found.tolist() == expected


@given(st.lists(st.tuples(st.none() | st.text(), st.none() | st.integers(-5, 5))))
def test_a_struct_is_a_tuple(rows: list[tuple[str | None, int | None]]) -> None:
    """A struct column hashes like the tuple of its fields. Null inside it hashes to 0."""
    kind = pa.struct([("a", pa.string()), ("b", pa.int16())])
    column = sliced([{"a": a, "b": b} for a, b in rows], kind)
    tuples = [(a, None if b is None else Typed("short", b)) for a, b in rows]
    assert key_hashes([column]).tolist() == [key_hash(row) for row in tuples]
    deep = pa.chunked_array([pa.StructArray.from_arrays([c], ["x"]) for c in column.chunks])
    nested = [key_hash((row,)) for row in tuples]
    assert key_hashes([deep]).tolist() == nested
    typed = check_key_type(deep.type)
    assert typed == "Tuple1<Tuple2<String, Short>>"


@pytest.mark.parametrize("scheme", ["java", "pyflink"])
def test_the_column_type_determines_the_java_type(scheme: str) -> None:
    """I1: an int column is an Integer, and a bigint column is a Long. -7 gets two different key
    groups.
    """
    names = {"byte": pa.int8(), "short": pa.int16(), "int": pa.int32(), "long": pa.int64()}
    for name, kind in names.items():
        found = key_hashes([pa.array([-7], kind)], hash_scheme=scheme)
        assert found.tolist() == [key_hash(-7, key_type=name, hash_scheme=scheme)]
    narrow, wide = (key_hashes([pa.array([-7], k)])[0] for k in (pa.int32(), pa.int64()))
    assert narrow != wide
    assert key_hash(-7, hash_scheme=scheme) == key_hash(-7, key_type="long", hash_scheme=scheme)


def test_the_order_of_rows_and_chunks_does_not_matter() -> None:
    """I1: a key's group is the same in a chunk, a slice, a dictionary or alone."""
    words = [f"üser-{i % 1000}" if i % 7 else f"user-{i}" for i in range(40_000)]
    column = pa.chunked_array([words[:17_001], words[17_001:]])
    groups = key_groups([column], max_parallelism=128)
    assert groups.dtype == np.int32
    assert groups.tolist() == key_groups([column.dictionary_encode()], max_parallelism=128).tolist()
    sample = range(0, 40_000, 997)
    alone = [key_group_of(words[i], max_parallelism=128) for i in sample]
    assert [int(groups[i]) for i in sample] == alone


def test_a_job_with_narrow_integers_declares_them() -> None:
    """key_types declares another integer type, or another precision of a SQL timestamp."""
    column = pa.array([-1], pa.int64())
    assert key_hashes([column], key_types=["Integer"]).tolist() == [-1]
    assert key_hashes([column]).tolist() == [0]
    sql = key_hashes([column], hash_scheme="flink-sql", key_types=["INT"])
    assert sql.tolist() == [key_hash(-1, key_type="INT", hash_scheme="flink-sql")]
    stamp = pa.array([1_700_000_000_123_000], pa.timestamp("us"))
    sql = key_hashes([stamp], hash_scheme="flink-sql", key_types=["TIMESTAMP(3)"])
    assert sql.tolist() == [-1285420957]


def test_values_outside_the_named_type_are_refused() -> None:
    """A number too large for the declared type, or a time too precise, is an error. Null is not."""
    with pytest.raises(InvalidArgumentError, match="128 is out of range for type Byte"):
        key_hashes([pa.array([1, 128])], key_types=["Byte"])
    with pytest.raises(InvalidArgumentError, match="does not fit"):
        key_hashes([pa.array([None, 2**31])], hash_scheme="flink-sql", key_types=["INT"])
    fine = pa.array([None, 1], pa.timestamp("us"))
    with pytest.raises(InvalidArgumentError, match="precision 3"):
        key_hashes([fine], hash_scheme="flink-sql", key_types=["TIMESTAMP(3)"])
    with pytest.raises(InvalidArgumentError, match="supports milliseconds"):
        key_hashes([pa.array([1], pa.time64("us"))], hash_scheme="flink-sql")


@pytest.mark.parametrize("scheme", ["java", "pyflink"])
def test_null_keys_are_counted(scheme: str) -> None:
    """The error counts the rows with a null in any key column. In the SQL scheme null is a key."""
    columns = [pa.array(["a", None, None, "b"]), pa.array([1, 2, None, None])]
    with pytest.raises(NullKeyError, match="3 of 4 rows"):
        key_groups(columns, max_parallelism=128, hash_scheme=scheme)
    hidden = pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", None]))
    with pytest.raises(NullKeyError, match="1 of 2 rows"):
        key_hashes([hidden], hash_scheme=scheme)
    assert len(key_hashes(columns, hash_scheme="flink-sql")) == 4


@pytest.mark.parametrize(
    ("data_type", "advice"),
    [
        (pa.uint32(), "unsigned"), (pa.null(), "no values"), (pa.date64(), "date32"),
        (pa.decimal256(50, 2), "decimal128"), (pa.float16(), "other key groups"),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("scheme", HASH_SCHEMES)
def test_unsupported_key_types_are_refused(data_type: Any, advice: str, scheme: str) -> None:
    """Unsigned and unknown types are refused. The error names a type that keeps the key group."""
    with pytest.raises(UnsupportedTypeError, match=advice):
        check_key_type(data_type, scheme)


@pytest.mark.parametrize(
    "data_type",
    [pa.list_(pa.int8()), pa.map_(pa.int8(), pa.int8()), pa.struct([("a", pa.int8())])],
    ids=str,
)
def test_nested_columns_are_not_sql_keys(data_type: Any) -> None:
    with pytest.raises(UnsupportedTypeError, match="separate key columns, which gives its keys"):
        check_key_type(data_type, "flink-sql")


def test_types_that_one_scheme_refuses() -> None:
    """Bytes are not a Java key, not even inside a tuple. A struct is not a SQL key."""
    with pytest.raises(UnsupportedTypeError, match=r"Pass key_types='UUID'"):
        check_key_type(pa.binary())
    with pytest.raises(UnsupportedTypeError, match="identity hash"):
        check_key_type(pa.struct([("a", pa.binary())]), "pyflink")
    both = [pa.array([b"a"]), pa.array([1])]
    with pytest.raises(UnsupportedTypeError, match="inside a tuple"):
        key_hashes(both, hash_scheme="pyflink")
    with pytest.raises(UnsupportedTypeError, match="separate key columns"):
        check_key_type(pa.struct([("a", pa.int8())]), "flink-sql")
    with pytest.raises(UnsupportedTypeError, match="at most 25"):
        key_hashes([pa.array([1])] * 26)
    with pytest.raises(UnsupportedTypeError, match="cannot be hashed as Integer"):
        check_key_type(pa.string(), "java", "Integer")


def test_the_names_of_types() -> None:
    """These names are recorded with a state."""
    names = {
        pa.string(): ("String", "STRING"),
        pa.int32(): ("Integer", "INT"),
        pa.int64(): ("Long", "BIGINT"),
        pa.decimal128(10, 2): ("BigDecimal(10,2)", "DECIMAL(10, 2)"),
        pa.timestamp("us"): ("LocalDateTime", "TIMESTAMP(6)"),
        pa.timestamp("ms", "UTC"): ("Instant", "TIMESTAMP_LTZ(3)"),
        pa.time64("ns"): ("LocalTime", "TIME(3)"),
        pa.dictionary(pa.int8(), pa.string()): ("String", "STRING"),
    }
    for data_type, expected in names.items():
        found = (check_key_type(data_type, "java"), check_key_type(data_type, "flink-sql"))
        assert found == expected
    assert check_key_type(pa.binary(), "pyflink") == "byte[]"


def test_invalid_columns_are_errors() -> None:
    """No column, columns of unequal length, and an invalid max parallelism are errors."""
    with pytest.raises(InvalidArgumentError, match="at least one"):
        key_hashes([])
    with pytest.raises(InvalidArgumentError, match="cannot be combined"):
        key_hashes([pa.array([1]), pa.array([1, 2])])
    with pytest.raises(InvalidArgumentError, match="2 key types"):
        key_hashes([pa.array([1])], key_types=["Long", "Long"])
    with pytest.raises(InvalidArgumentError):
        key_groups([pa.array([1])], max_parallelism=0)


@pytest.mark.parametrize(
    ("scheme", "key_type"),
    [
        *(("java", name) for name in ("String", "UUID", "BigInteger", "BigDecimal", "Character")),
        ("flink-sql", "CHAR(1)"),
    ],
)
def test_text_that_is_not_utf8_is_a_typed_error(scheme: str, key_type: str) -> None:
    text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xc3\xc3\xc3"]).buffers())
    with pytest.raises(InvalidArgumentError):
        key_hashes([text], hash_scheme=scheme, key_types=[key_type])


@pytest.mark.parametrize("kind", list(VALUES), ids=str)
def test_empty_columns_have_no_hashes(kind: Any) -> None:
    """No rows give no hashes, for any type."""
    for scheme in HASH_SCHEMES:
        assert key_hashes([pa.array([], kind)], hash_scheme=scheme).tolist() == []
