"""Integers of any length are read from a savepoint, stored as text, and written again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import StateStore
from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink import export_savepoint, import_savepoint
from statestore.interop.flink.metadata.java_binary import i32
from statestore.interop.flink.read.savepoint import open_savepoint
from statestore.interop.flink.types.byte_cursor import Spans
from statestore.interop.flink.types.column_bytes import decode_values
from statestore.interop.flink.types.java_types import Scalar
from statestore.keys.arrow_java import whole_texts
from statestore.keys.java import digits_of, integer_of
from tests.interop.flink.written import written_savepoint

INTEGER, DECIMAL = Scalar("BigInteger"), Scalar("BigDecimal")
LONG_ONE = f"{'123456789' * 1_000}7"
integers = st.builds(
    lambda number, bits: (number << bits) + number, st.integers(), st.integers(0, 60_000)
)


@given(integers)
def test_the_digits_of_a_number_parse_to_it(number: int) -> None:
    digits = digits_of(number)
    assert integer_of(digits) == number
    assert number == 0 or digits.lstrip("-")[0] != "0"
    if len(digits) > 4_001:
        assert int(digits[-4_000:]) == abs(number) % 10**4_000


@pytest.mark.parametrize("power", [3_999, 4_000, 4_299, 4_300, 4_301, 100_000])
def test_digits_of_powers_of_ten(power: int) -> None:
    assert digits_of(10**power) == "1" + "0" * power
    assert digits_of(-(10**power) + 1) == "-" + "9" * power


@pytest.mark.parametrize(
    "text", ["9" * 5_000 + "x", "9" * 5_000 + " ", "-" * 5_000, "1.5"], ids=len
)
def test_other_text_is_not_a_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        integer_of(text)
    with pytest.raises(InvalidArgumentError, match="is not a BigInteger"):
        INTEGER.write(pa.array([text]))


@pytest.mark.parametrize("text", ["x", "NaN", "1E+9999999999", "9" * 5_000 + "x"], ids=len)
def test_other_text_is_not_a_decimal(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a BigDecimal"):
        DECIMAL.write(pa.array([text]))


@pytest.mark.parametrize(
    "text",
    [f"{LONG_ONE}.5", f"-{LONG_ONE}", f"0.{LONG_ONE}", f"{LONG_ONE[0]}.{LONG_ONE[1:]}E+9100"],
)
def test_decimals_of_any_length_are_written_and_read(text: str) -> None:
    values = pa.array([text, None, "1.50"])
    assert decode_values(DECIMAL, Spans.from_values(DECIMAL.write(values).to_pylist(), "v")).equals(
        values
    )


def test_a_number_that_would_take_hours_is_refused() -> None:
    count = (4 << 20) + 1
    with pytest.raises(UnsupportedTypeError, match=rf"v has a number of {count} bytes"):
        decode_values(INTEGER, Spans.from_values([i32(count + 4) + bytes(count)], "v"))


@pytest.mark.parametrize("kind", [INTEGER, DECIMAL])
def test_long_numbers_survive_a_round_trip_through_a_store(tmp_path: Path, kind: Scalar) -> None:
    texts = [LONG_ONE, f"-{LONG_ONE}", "0", "-1", LONG_ONE[:4_300], LONG_ONE[:4_301]]
    keys = pa.array(range(len(texts)), pa.int64())
    source = written_savepoint(
        tmp_path / "from", Scalar("Long"), keys, pa.array(texts), value_type=kind
    )
    store = StateStore.open(str(tmp_path / "store"))
    assert not import_savepoint(str(source), store).not_read
    done = export_savepoint(store, str(tmp_path / "to"), max_parallelism=64)
    found: dict[int, str] = {}
    for row in open_savepoint(done.savepoint).operator("big").rows("count"):
        assert row.value is not None
        found |= dict(zip(row.key.to_pylist(), row.value.to_pylist(), strict=True))
    assert found == dict(enumerate(texts))


def test_long_numbers_are_keys(tmp_path: Path) -> None:
    texts = [LONG_ONE, f"-{LONG_ONE}", "17"]
    source = written_savepoint(tmp_path / "from", INTEGER, pa.array(texts), [1, 2, 3])
    store = StateStore.open(str(tmp_path / "store"))
    assert not import_savepoint(str(source), store).not_read
    done = export_savepoint(store, str(tmp_path / "to"), max_parallelism=64)
    keys = [
        key
        for row in open_savepoint(done.savepoint).operator("big").rows("count")
        for key in row.key.to_pylist()
    ]
    assert sorted(keys) == sorted(texts)


@given(integers, integers)
def test_the_hash_of_a_long_key_equals_javas(number: int, other: int) -> None:
    """``BigInteger.hashCode`` depends on its 32-bit words and its sign."""

    def java_hash(value: int) -> int:
        found, magnitude = 0, abs(value)
        for word in range((magnitude.bit_length() + 31) // 32 - 1, -1, -1):
            found = 31 * found + (magnitude >> 32 * word & 0xFFFFFFFF)
        return (found if value > 0 else -found) & 0xFFFFFFFF

    texts = pa.array([digits_of(number), "17", None, digits_of(other)])
    expected = [java_hash(one) for one in (number, 17, 0, other)]
    assert whole_texts(texts).tolist() == expected
