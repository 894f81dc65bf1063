"""Parse JSON, TOML and numbers from users without changing a number.

A number in text is a decimal number. ``parse_json`` and ``parse_number`` return it exactly: as int
if it has neither a point nor an exponent, and as Decimal otherwise. Each column type then has one
rule:

* A whole-number type accepts each number that is equal to a whole number: ``7.0`` is ``7``.
* A decimal type accepts each number that it can hold with all digits.
* A double or float takes the nearest value, provided that none of the given digits is lost: the two
  differ by at most half a unit of the last digit. So ``0.1`` and ``1e23`` are accepted, as is each
  double that was printed. ``9007199254740993.0`` (not a double), ``1e400`` (beyond the largest) and
  ``1e-400`` (smaller than the smallest) are refused. The sign of ``-0.0`` is kept.

TOML's own floats are doubles under the same rule.
"""

from __future__ import annotations

import json
import math
import re
import struct
import tomllib
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Final

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_MOST_DIGITS: Final = 4300
"""Python converts no longer text to an integer, because the time is quadratic."""
_MOST_EXPONENT: Final = 400
"""No stored type holds a number of more digits before the point, or of so many zeros after it."""
_SHOWN: Final = 40


def parse_json(text: str) -> Any:
    """Return a JSON value with exact numbers: int or Decimal, but no float.

    Raises:
        ValueError: The text is not JSON, an object has a member twice, a number is NaN, infinite or
            has more than 4,300 digits, or the value is nested too deeply.
    """
    try:
        return json.loads(
            text,
            parse_int=parse_number,
            parse_float=parse_number,
            parse_constant=_refuse_constant,
            object_pairs_hook=_object,
        )
    except json.JSONDecodeError as error:
        reason = f"it is not JSON: {error.msg}"
        raise json.JSONDecodeError(reason, error.doc, error.pos) from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return a TOML document; each float in it is the double that its text stands for.

    Raises:
        tomllib.TOMLDecodeError: The text is not TOML.
        ValueError: A float is not a double (see the module), an integer has more than 4,300 digits,
            or the document is nested too deeply.
    """
    try:
        return tomllib.loads(text, parse_float=_toml_float)
    except RecursionError:
        raise ValueError("the TOML is nested too deeply") from None


def parse_integer(text: str) -> int:
    """Parse an integer in ASCII digits. Raises ValueError for any other text."""
    if not _INTEGER.fullmatch(text.strip()):
        raise ValueError(f"{text!r:.80} is not an integer")
    return int(_refuse_long(text.strip()))


def parse_number(text: str) -> int | Decimal:
    """Parse a number exactly; the result is an int only for digits without a point.

    Raises:
        ValueError: The text is not a number, or has more than 4,300 digits.
    """
    digits = _refuse_long(text.strip())
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f"{text!r:.80} is not a number")
    try:
        number = Decimal(digits)
    except InvalidOperation:
        raise ValueError(f"the exponent of {digits[:_SHOWN]} is out of range") from None
    if number.is_zero() and number.is_signed():
        return number  # an int has no negative zero
    return int(digits) if _INTEGER.fullmatch(digits) else number


def whole_number(number: int | Decimal) -> int:
    """Return the integer that is equal to a number. Raises ValueError if there is none."""
    if isinstance(number, int):
        return number
    if number and number.adjusted() > _MOST_EXPONENT:
        raise ValueError(f"{_shorten(number)} is larger than the largest whole number of a column")
    # A number far below one has a huge power of ten as its denominator.
    if (number and number.adjusted() < 0) or number != int(number):
        raise ValueError(f"{_shorten(number)} is not a whole number")
    return int(number)


def nearest_double(number: int | Decimal) -> float:
    """Return the double that a number in text stands for.

    Raises ValueError if digits would be lost.
    """
    return _nearest(number, float(number) if _is_in_range(number) else math.inf, "double")


def nearest_float(number: int | Decimal) -> float:
    """Return the 32-bit float that a number in text stands for, as a Python float.

    Raises ValueError if digits would be lost.
    """
    try:
        single = float(number) if _is_in_range(number) else math.inf
        (single,) = struct.unpack("<f", struct.pack("<f", single))
    except OverflowError:
        single = math.inf
    return _nearest(number, single, "float")


def _nearest(number: int | Decimal, nearest: float, name: str) -> float:
    if not math.isfinite(nearest):
        raise ValueError(f"{_shorten(number)} is larger than the largest {name}")
    exact = Decimal(number)
    if exact and not nearest:
        raise ValueError(f"{_shorten(number)} is smaller than the smallest {name}")
    if exact:
        _, _, exponent = exact.as_tuple()
        assert isinstance(exponent, int)
        unit = Fraction(10) ** exponent
        if abs(Fraction(nearest) - Fraction(exact)) > unit / 2:
            raise ValueError(
                f"{_shorten(number)} cannot be represented as {name}: it would become {nearest!r}"
            )
    return nearest


def _is_in_range(number: int | Decimal) -> bool:
    """Return False for numbers beyond the range of doubles, which Python refuses to convert."""
    return not number or Decimal(number).adjusted() < _MOST_EXPONENT


def _toml_float(text: str) -> float:
    digits = text.replace("_", "")
    if digits.lstrip("+-") in ("inf", "nan"):
        return float(digits)
    return nearest_double(parse_number(digits))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}; for a double or float column pass it as text, {name!r}")


def _object(members: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in members:
        if name in result:
            raise ValueError(f"the member {name!r:.80} occurs twice")
        result[name] = value
    return result


def _refuse_long(text: str) -> str:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"{text[:_SHOWN]}… has {len(text):,} digits, more than {_MOST_DIGITS:,}")
    return text


def _shorten(number: int | Decimal) -> str:
    text = str(number)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
