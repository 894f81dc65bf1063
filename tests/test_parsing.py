"""Numbers in text come back equal, or are refused."""

from __future__ import annotations

import json
import math
import struct
import tomllib
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.parsing import (
    nearest_double,
    nearest_float,
    parse_integer,
    parse_json,
    parse_number,
    parse_toml,
    whole_number,
)

decimals = st.decimals(allow_nan=False, allow_infinity=False)


@given(st.recursive(st.integers() | st.booleans() | st.text(), st.lists, max_leaves=20))
def test_json_comes_back_equal(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@given(decimals)
def test_a_number_is_read_exactly(number: Decimal) -> None:
    found = parse_json(str(number))
    assert found == number
    assert Decimal(found).is_signed() == number.is_signed()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_that_was_printed_comes_back(number: float) -> None:
    for text in (repr(number), f"{number:.17g}", f"{number:.25e}"):
        found = nearest_double(parse_number(text))
        assert struct.pack("<d", found) == struct.pack("<d", number)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_every_float_that_was_printed_comes_back(number: float) -> None:
    for text in (repr(number), f"{number:.9g}"):
        found = nearest_float(parse_number(text))
        assert struct.pack("<f", found) == struct.pack("<f", number)


@given(decimals)
def test_a_double_has_every_digit_that_was_given(number: Decimal) -> None:
    """The double that is taken has the digits that were given; other numbers are refused."""
    try:
        found = nearest_double(number)
    except ValueError:
        assert len(number.as_tuple().digits) > 15 or not 1e-300 < abs(number) < 1e308
        return
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    assert found == float(number)
    assert abs(Fraction(found) - Fraction(number)) <= Fraction(10) ** exponent / 2


@given(st.integers())
def test_a_double_takes_whole_numbers_that_it_holds(number: int) -> None:
    try:
        assert int(nearest_double(number)) == number
    except ValueError:
        assert abs(number) > 2**53
        assert int(float(number)) != number


@given(decimals)
def test_a_whole_number_is_equal(number: Decimal) -> None:
    try:
        assert whole_number(number) == number
    except ValueError:
        assert number != number.to_integral_value() or number.adjusted() > 400


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.1", 0.1),
        ("0.10000000000000001", 0.1),
        ("1e23", 1e23),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("4.9e-324", 5e-324),
        ("9007199254740992.0", 2.0**53),
        ("7", 7.0),
    ],
)
def test_numbers_that_a_double_takes(text: str, found: float) -> None:
    assert nearest_double(parse_number(text)) == found


@pytest.mark.parametrize("text", ["-0.0", "-0", "-0e5"])
def test_a_negative_zero_keeps_its_sign(text: str) -> None:
    assert math.copysign(1, nearest_double(parse_number(text))) == -1
    assert math.copysign(1, nearest_double(parse_json(text))) == -1
    assert whole_number(parse_number(text)) == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9007199254740993", "would become 9007199254740992.0"),
        ("9007199254740993.0", "would become 9007199254740992.0"),
        ("9007199254740993.5", "would become 9007199254740994.0"),
        ("123456789012345678.0", "would become"),
        ("0.1234567890123456789", "would become 0.12345678901234568"),
        ("3e-324", "would become 5e-324"),
        ("1e400", "larger than the largest double"),
        ("-1e400", "larger than the largest double"),
        ("1e999999999", "larger than the largest double"),
        ("1e-400", "smaller than the smallest double"),
        ("1e-999999999", "smaller than the smallest double"),
    ],
)
def test_numbers_that_a_double_does_not_hold(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        nearest_double(parse_number(text))


@pytest.mark.parametrize("text", ["16777217", "16777217.0", "1e39", "1e-60", "0.1234567891"])
def test_numbers_that_a_float_does_not_hold(text: str) -> None:
    with pytest.raises(ValueError, match=r"float"):
        nearest_float(parse_number(text))


@pytest.mark.parametrize("text", ["0.5", "1e-999999999", "1e999999999", "7.000001"])
def test_numbers_that_are_not_whole(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        whole_number(parse_number(text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"n": 1, "n": 2}', "the member 'n' occurs twice"),
        ('[{"a": {"n": 1, "m": 1, "n": 1}}]', "the member 'n' occurs twice"),
        ("[NaN]", "JSON has no NaN"),
        ("-Infinity", "JSON has no -Infinity"),
        ("1" * 4301, "4,301 digits, more than 4,300"),
        (f"[1.{'0' * 4300}]", "digits, more than 4,300"),
        ("1e9999999999999999999999", "exponent"),
        ("[" * 100_000, "nested too deeply"),
        ("01", "Extra data"),
    ],
)
def test_json_that_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


@pytest.mark.parametrize(
    "text", ["", "x", "1_000", "٣", "0x10", "1e", ".", "1 2", "nan", "1" * 4301]
)
def test_text_that_is_not_a_number(text: str) -> None:
    for parse in (parse_number, parse_integer):
        with pytest.raises(ValueError, match=r"number|integer|digits"):
            parse(text)


def test_toml_floats_are_doubles() -> None:
    found = parse_toml("a = 0.1\nb = 1_000.5\nc = -inf\nd = nan\ne = 7")
    assert (found["a"], found["b"], found["c"], found["e"]) == (0.1, 1000.5, -math.inf, 7)
    assert math.isnan(found["d"])
    assert type(found["e"]) is int


@pytest.mark.parametrize(
    "text", ["a = 1e400", "a = 9007199254740993.0", f"a = {'1' * 5000}", "a = " + "[" * 10_000]
)
def test_toml_that_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"double|digits|nested") as caught:
        parse_toml(text)
    assert not isinstance(caught.value, tomllib.TOMLDecodeError)
