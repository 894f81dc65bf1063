"""Key hashes equal Flink's in all three schemes (golden/flink/hashcodes, bulk_keys, sqlkeys)."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, NullKeyError, UnsupportedTypeError
from statestore.keys.groups import key_group_of_hash
from statestore.keys.hashing import key_group_of, key_hash, sql_key_bytes
from statestore.keys.java import string_hash
from statestore.keys.key_types import HASH_SCHEMES, RawBits, Row, Typed
from tests.support.vectors import cases, key_cases, key_of, sql_value

LONGS = st.integers(-(2**63), 2**63 - 1)


def test_java_keys() -> None:
    """I1: every Java key of the vectors has Flink's hash and key group."""
    known = [*key_cases()]
    assert len(known) == 442
    for tagged, maximum, hashed, group in known:
        key = key_of(tagged)
        found = key_hash(key), key_group_of(key, max_parallelism=maximum)
        assert found == (hashed, group), tagged


@pytest.mark.parametrize(
    "case", cases("bulk_keys"), ids=lambda c: f"{c['in']['type']}-{c['in']['max']}"
)
def test_many_keys(case: Any) -> None:
    """I1: thousands of strings, ints and longs get Flink's key groups."""
    kind, maximum = case["in"]["type"], case["in"]["max"]
    keys = case["in"]["keys"]
    assert [key_group_of(k, max_parallelism=maximum, key_type=kind) for k in keys] == case["out"]


def test_sql_keys() -> None:
    """I1: BinaryRowData bytes, hash and key group of Table and SQL keys, NULLs included."""
    known = cases("sqlkeys")
    assert len(known) == 159
    for case in known:
        types = [name for name, _ in case["in"]["fields"]]
        key = tuple(sql_value(name, value) for name, value in case["in"]["fields"])
        asked: Any = {"key_type": types, "hash_scheme": "flink-sql"}
        found = {
            "bytes": sql_key_bytes(key, key_type=types).hex(),
            "hash": key_hash(key, **asked),
            "group": key_group_of(key, max_parallelism=case["in"]["max"], **asked),
        }
        assert {name: case["out"][name] for name in found} == found, case["in"]


def test_pyflink_keys() -> None:
    """The vectors contain PyFlink's one-field rows. Here the plain key is passed."""
    rows = [row for row in key_cases() if row[0]["t"] == "row" and len(row[0]["v"]) == 1]
    tested = 0
    for tagged, maximum, hashed, group in rows:
        key = key_of(tagged["v"][0])
        if "kind" in tagged or key is None:
            continue
        tested += 1
        assert key_hash(key, hash_scheme="pyflink") == hashed
        assert key_group_of(key, max_parallelism=maximum, hash_scheme="pyflink") == group
    assert tested >= 30
    pickled = pickle.dumps("hello", protocol=4)
    assert key_group_of(pickled, max_parallelism=128, hash_scheme="pyflink") == 44


def test_schemes_place_one_key_differently() -> None:
    """The schemes are not interchangeable: "hello" has three hashes."""
    assert len({key_hash("hello", hash_scheme=scheme) for scheme in HASH_SCHEMES}) == 3


@pytest.mark.parametrize(
    ("key", "key_type"),
    [
        ("hello", "string"),
        (-5, "long"),
        (True, "boolean"),
        (-0.5, "double"),
        (Decimal("1.10"), "decimal"),
        (date(1969, 2, 28), "date"),
        (time(23, 59, 59, 999_999), "time"),
        (datetime(1, 1, 1, 12), "datetime"),
        (datetime(1960, 1, 1, tzinfo=timezone(timedelta(hours=5))), "instant"),
        (timedelta(microseconds=-1), "duration"),
        (UUID(int=2**127 + 5), "uuid"),
        (("a", 1), ("string", "long")),
        (("a", ("b", -1)), ("string", ("string", "long"))),
    ],
)
def test_the_python_value_determines_the_type(key: Any, key_type: Any) -> None:
    """Without key_type the documented Java type applies, also inside a tuple and in pyflink."""
    for scheme in ("java", "pyflink"):
        typed = key_hash(key, key_type=key_type, hash_scheme=scheme)
        assert key_hash(key, hash_scheme=scheme) == typed


@pytest.mark.parametrize(
    ("key", "key_type"),
    [
        ("hello", "STRING"),
        (-5, "BIGINT"),
        (True, "BOOLEAN"),
        (0.5, "DOUBLE"),
        (b"12345678", "BYTES"),
        (date(1969, 1, 1), "DATE"),
        (time(1, 2, 3, 4000), "TIME(3)"),
        (datetime(1960, 1, 1, 0, 0, 0, 1), "TIMESTAMP(6)"),
        (datetime(1960, 1, 1, tzinfo=UTC), "TIMESTAMP_LTZ(6)"),
        (("a", 1), ("VARCHAR(3)", "BIGINT NOT NULL")),
    ],
)
def test_the_python_value_determines_the_sql_type(key: Any, key_type: Any) -> None:
    """Without key_type the documented SQL type applies. A tuple has several columns."""
    assert sql_key_bytes(key) == sql_key_bytes(key, key_type=key_type)


def test_typed_declares_a_type_at_any_depth() -> None:
    """Inside tuples, lists and rows, Typed overrides the type of the Python value."""
    assert key_hash(("a", Typed("int", -1))) == key_hash(("a", -1), key_type=("string", "int"))
    assert key_hash(Typed("int", -1)) == -1
    assert key_hash([Typed("int", -1)]) == 31 - 1
    assert key_hash(Row([Typed("int", -1)])) == 31 + 31 - 1
    assert key_hash(Typed("float", RawBits(0xFFFFFFFF))) == 0x7FC00000


def test_numpy_values_are_keys() -> None:
    """A numpy integer, float or string hashes like the equal Python value."""
    assert key_hash(np.int32(-7)) == key_hash(-7)
    assert key_hash(np.float64(0.1)) == key_hash(0.1)
    assert key_hash(np.str_("a")) == key_hash("a")


@given(st.text(st.characters()))
def test_string_hash_is_the_polynomial_over_utf16(text: str) -> None:
    """The definition is applied unit by unit, to any text with surrogates of both kinds."""
    data = text.encode("utf-16-be", "surrogatepass")
    total = 0
    for high, low in zip(data[::2], data[1::2], strict=True):
        total = total * 31 + (high << 8 | low)
    assert string_hash(text) & 0xFFFFFFFF == total % 2**32
    assert -(2**31) <= string_hash(text) < 2**31


@given(LONGS, st.sampled_from(HASH_SCHEMES))
def test_one_column_of_a_sequence_is_a_column(key: int, scheme: str) -> None:
    """A Tuple1 hashes like its field, and one SQL column like a row of one column."""
    assert key_hash((key,), hash_scheme=scheme) == key_hash(key, hash_scheme=scheme)


@given(LONGS, st.integers(1, 32768))
def test_the_group_follows_from_the_hash(key: int, maximum: int) -> None:
    """I1: the key group is the mixed hash modulo max parallelism, in every scheme."""
    for scheme in HASH_SCHEMES:
        expected = key_group_of_hash(key_hash(key, hash_scheme=scheme), maximum)
        assert key_group_of(key, max_parallelism=maximum, hash_scheme=scheme) == expected


@given(st.dictionaries(st.text(), LONGS))
def test_maps_have_no_order(entries: dict[str, int]) -> None:
    """The order of a map's entries, and of a named row's fields, does not matter."""
    backwards = dict(reversed(entries.items()))
    assert key_hash(entries) == key_hash(backwards)
    assert key_hash(Row(entries)) == key_hash(Row(backwards))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=0, max_value=10**9))
def test_the_scale_of_a_decimal_matters(value: Decimal) -> None:
    """BigDecimal 1.0 and 1.00 are two keys. In SQL the declared scale determines the hash."""
    longer = Decimal(f"{value:f}0")
    assert key_hash(longer) - key_hash(value) != 0
    by_type = [sql_key_bytes(v, key_type="DECIMAL(20, 5)") for v in (value, longer)]
    assert by_type[0] == by_type[1]


@pytest.mark.parametrize("scheme", ["java", "pyflink"])
@pytest.mark.parametrize("key", [None, Typed("string", None)])
def test_null_keys_are_refused(key: Any, scheme: str) -> None:
    """A null key has no key group, as in Flink. Inside a tuple null hashes to 0."""
    with pytest.raises(NullKeyError):
        key_group_of(key, max_parallelism=128, hash_scheme=scheme)
    assert key_hash((None, "a")) == key_hash("a")


def test_an_untyped_sql_null_is_refused() -> None:
    """The bytes of NULL depend on its type, so the type must be declared. Then it is an ordinary
    key.
    """
    with pytest.raises(InvalidArgumentError, match="give key_type"):
        key_hash(None, hash_scheme="flink-sql")
    assert len(sql_key_bytes(None, key_type="TIMESTAMP(6)")) == 24
    assert len(sql_key_bytes(None, key_type="TIMESTAMP(3)")) == 16


class Color(Enum):
    RED = 1


class Level(IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    "key",
    [b"bytes", bytearray(b"x"), ("a", b"b"), [b"x"], Color.RED, Level.LOW, ("a", Level.LOW),
     Typed("array", [1]), {1, 2}, object(), tuple(range(26))],
    ids=lambda key: repr(key).partition(" at 0x")[0],
)  # fmt: skip
def test_keys_without_a_stable_hash_are_refused(key: Any) -> None:
    """Arrays, enums and unknown objects are refused, alone or in a tuple, as in Flink."""
    with pytest.raises(UnsupportedTypeError):
        key_hash(key)


@pytest.mark.parametrize(
    ("key", "key_type"),
    [
        (2**31, "int"), (-(2**15) - 1, "short"), (128, "byte"), (2**63, None), (1.5, "long"),
        (True, "int"), ("1", "long"), (1, "string"), (Decimal("NaN"), None), (1e300, "float"),
        (datetime(2020, 1, 1), "instant"), (datetime(2020, 1, 1, tzinfo=UTC), "datetime"),
        (datetime(2020, 1, 1), "date"), (time(1, tzinfo=UTC), None), (86_400 * 10**9, "time"),
        (("a",), ("string", "long")), ("a", "text"), ("ab", "char"), (1, "uuid"), ("a", "list"),
    ],
)  # fmt: skip
def test_values_outside_their_type_are_refused(key: Any, key_type: Any) -> None:
    """A value that the declared Java type cannot hold is an error and never wraps around."""
    with pytest.raises(InvalidArgumentError):
        key_hash(key, key_type=key_type)


@pytest.mark.parametrize(
    ("key", "key_type"),
    [
        (2**31, "INT"), (1, "STRING"), ("abcd", "VARCHAR(3)"), (b"ab", "BINARY(1)"),
        (Decimal("1.234"), "DECIMAL(10, 2)"), (Decimal(100), "DECIMAL(2, 0)"),
        (Decimal("1E+999999"), "DECIMAL(38, 0)"), (Decimal("1E-999999"), "DECIMAL(38, 0)"),
        (Decimal("1.5"), None), (datetime(2020, 1, 1, 0, 0, 0, 1), "TIMESTAMP(3)"),
        (datetime(2020, 1, 1), "TIMESTAMP_LTZ(3)"), (time(0, 0, 0, 1), "TIME(3)"),
        ("\ud800", "STRING"), (1, "ARRAY<INT>"), (1, "DECIMAL(39, 0)"), (1, "TIMESTAMP(10)"),
        ((1, 2), ("INT",)), (1, "BOOLEAN"), (True, "INT"), ("a", "DOUBLE"), (1, "DATE(1) X"),
    ],
)  # fmt: skip
def test_sql_values_are_never_rounded(key: Any, key_type: Any) -> None:
    """A value beyond the declared precision, scale, length or range is an error."""
    with pytest.raises(InvalidArgumentError):
        key_hash(key, key_type=key_type, hash_scheme="flink-sql")


def test_unknown_schemes_are_refused() -> None:
    """The message lists the available schemes."""
    with pytest.raises(InvalidArgumentError, match="java, flink-sql, pyflink"):
        key_hash("a", hash_scheme="spark")
    with pytest.raises(InvalidArgumentError, match=r"\+I, -U, \+U, -D"):
        Row([1], kind="I")
