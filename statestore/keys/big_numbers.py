"""Convert between integers of any length and their decimal digits.

``str`` and ``int`` refuse more than 4,300 digits, because they take quadratic time. This module
splits a number in halves and joins the halves by fast multiplication: Decimal's to write digits,
Python's own to read them.
"""

from __future__ import annotations

from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact, localcontext
from typing import Final

__all__ = ["digits_of", "integer_of"]

_DIGITS: Final = 4_000
_BITS: Final = 1_024
_EXACT: Final = Context(MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact])


def digits_of(number: int) -> str:
    """Return an integer in decimal digits, with a minus sign if it is negative."""
    if abs(number) < 10**_DIGITS:
        return str(number)
    powers: dict[int, Decimal] = {}

    def power(bits: int) -> Decimal:
        result = powers.get(bits)
        if result is None:
            half = bits // 2
            result = Decimal(1 << bits) if bits <= _BITS else power(half) * power(bits - half)
            powers[bits] = result
        return result

    def decimal(part: int, bits: int) -> Decimal:
        if bits <= _BITS:
            return Decimal(part)
        low = bits // 2
        high = decimal(part >> low, bits - low)
        return high * power(low) + decimal(part & (1 << low) - 1, low)

    with localcontext(_EXACT):
        digits = str(decimal(abs(number), number.bit_length()))
    return f"-{digits}" if number < 0 else digits


def integer_of(text: str) -> int:
    """Return the integer that a text of decimal digits represents, with or without a sign.

    Raises ValueError for any other text.
    """
    if len(text) <= _DIGITS:
        return int(text)
    digits = text[1:] if text[0] in "+-" else text
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{text[:20]}… is not a whole number")

    def integer(start: int, stop: int) -> int:
        if stop - start <= _DIGITS:
            return int(digits[start:stop])
        middle = (start + stop) // 2
        behind = stop - middle
        power: int = 5**behind
        return (integer(start, middle) * power << behind) + integer(middle, stop)

    number = integer(0, len(digits))
    return -number if text[0] == "-" else number
