"""Parse texts as values of a column type: each text is exactly one value, or it is refused.

Arrow's cast accepts more: ``0x10`` as 16, ``1`` as true, and ``1e-400`` as 0. So it converts only
texts of a form that it converts exactly. All other texts are parsed one by one.
"""

from __future__ import annotations

import re
from binascii import unhexlify
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from struct import pack, unpack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.parsing import nearest_double, nearest_float, parse_number
from statestore.rows.lossless_cast import UnfitError, exact_converter
from statestore.rows.time_text import far_time

_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
# With more than 38 digits, Arrow's cast returns another number.
_DECIMAL = r"^[+-]?([0-9]{1,38}|[0-9]{1,19}\.[0-9]{1,19})$"
# A decimal number of 15 digits is one double, and of 6 digits one float.
_DOUBLE = r"^[+-]?([0-9]{1,15}|[0-9]{1,9}\.[0-9]{1,6}|0\.[0-9]{1,15})([eE][+-]?[0-9]{1,2})?$"
_FLOAT = r"^[+-]?([0-9]{1,6}|[0-9]{1,3}\.[0-9]{1,3}|0\.[0-9]{1,6})$"


def parse_texts(texts: pa.Array, data_type: pa.DataType) -> pa.Array | None:
    """Return texts as values of a type; None if one of them is not a value of the type.

    Args:
        texts: the texts; null stays null.
        data_type: the type of a stored column without parts.
    """
    if pa.types.is_string(data_type):
        return texts
    form, parse = _form_of(data_type)
    is_plain = pc.match_substring_regex(texts, form)
    others = np.asarray(pc.fill_null(pc.invert(is_plain), False))
    try:
        values = pc.if_else(is_plain, texts, None) if others.any() else texts
        if pa.types.is_decimal(data_type):
            # Arrow's cast of text does not notice that a number overflows with its new scale.
            values = pc.cast(values, pa.decimal256(76, data_type.scale))
        values = pc.cast(values, data_type)
        if not others.any():
            return values
        if parse is None:
            return None
        parsed = pa.array(map(parse, texts.filter(pa.array(others)).to_pylist()), data_type)
    except (pa.ArrowInvalid, OverflowError, UnfitError, ValueError):
        return None
    return pc.replace_with_mask(values, pa.array(others), parsed)


def _form_of(data_type: pa.DataType) -> tuple[str, Callable[[str], Any] | None]:
    """Return the texts that Arrow's cast converts exactly, and the parser of all other texts."""
    types = pa.types
    if types.is_integer(data_type):
        return r"^-?[0-9]+$", None
    if types.is_decimal(data_type):
        convert = exact_converter(data_type)
        return _DECIMAL, lambda text: convert(_exact_number(text))
    if types.is_boolean(data_type):
        return r"^(?i:true|false)$", None
    if types.is_binary(data_type):
        return r"^$", unhexlify
    if types.is_float64(data_type):
        return _DOUBLE, _parse_double
    if types.is_float32(data_type):
        return _FLOAT, _parse_float
    form = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}($|[T ][0-9].*$)"
    return form, partial(_parse_far_time, data_type=data_type)


def _parse_double(text: str) -> float:
    number = float(text)
    if repr(number) == text or _NOT_FINITE.fullmatch(text):
        return number
    return nearest_double(_exact_number(text))


def _parse_float(text: str) -> float:
    number = float(text)
    if _NOT_FINITE.fullmatch(text):
        return number
    if repr(number) == text and unpack("<f", pack("<f", number)) == (number,):
        return number
    return nearest_float(_exact_number(text))


def _parse_far_time(text: str, data_type: pa.DataType) -> int:
    far = far_time(text, data_type)
    if far is None:
        raise ValueError("the text is no date or time")
    return far.number


def _exact_number(text: str) -> int | Decimal:
    if text != text.strip():
        raise ValueError("there are blanks around the number")
    return parse_number(text)
