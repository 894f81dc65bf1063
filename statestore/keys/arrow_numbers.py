"""Java's hashes of integers and decimals that are stored as text, of any length."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.keys.big_numbers import integer_of
from statestore.keys.key_types import DECIMAL_TEXT
from statestore.keys.murmur3 import Hashes
from statestore.keys.text_bytes import byte_spans, polynomials, refuse_texts

__all__ = ["decimal_texts", "whole_texts"]

_WHOLE: Final = "^(0|-?[1-9][0-9]*)$"
_CHUNK: Final = 9  # decimal digits that fit 32 bits
_LONG: Final = 300  # digits above which a number is hashed on its own


def whole_texts(array: pa.Array) -> Hashes:
    """Return ``BigInteger.hashCode()`` of integers in decimal digits, of any length.

    Raises InvalidArgumentError for other text, including numbers with a plus or leading zeros.
    """
    texts = pc.fill_null(array.cast(pa.large_string()), "0")
    plain = "BigInteger: write it in decimal digits, without plus and leading zeros"
    refuse_texts(texts, pc.match_substring_regex(texts, _WHOLE), plain)
    negative = np.asarray(pc.starts_with(texts, "-"))
    magnitudes = pc.utf8_trim(texts, characters="-")
    is_long = pc.greater(pc.binary_length(magnitudes), _LONG)
    content, ends = byte_spans(pc.if_else(is_long, "0", magnitudes))
    chunks = -(-int(np.diff(ends).max(initial=0)) // _CHUNK)
    # Align the digits to the right, with the same number of chunks in every row. Each limb has 32
    # bits, lowest first.
    places = ends[1:, None] - np.arange(chunks * _CHUNK, 0, -1)
    digits = np.where(places >= ends[:-1, None], content[np.maximum(places, 0)] - ord("0"), 0)
    powers = 10 ** np.arange(_CHUNK - 1, -1, -1, dtype=np.uint64)
    parts = (digits.reshape(len(texts), chunks, _CHUNK).astype(np.uint64) * powers).sum(axis=2)
    limbs = np.zeros((len(texts), chunks), np.uint64)
    for chunk in range(chunks):
        carry = parts[:, chunk]
        for limb in range(chunk + 1):
            grown = limbs[:, limb] * np.uint64(10**_CHUNK) + carry
            limbs[:, limb], carry = grown & np.uint64(0xFFFFFFFF), grown >> np.uint64(32)
    h = np.zeros(len(texts), np.uint32)
    for limb in range(chunks - 1, -1, -1):
        h = h * np.uint32(31) + limbs[:, limb].astype(np.uint32)
    long = magnitudes.filter(is_long).to_pylist()
    h[np.asarray(is_long)] = [_long_hash(digits) for digits in long]
    return np.where(negative, -h, h)


def _long_hash(digits: str) -> int:
    """Return the hash of one number. The loop for many numbers is quadratic in the digits."""
    number = integer_of(digits)
    words = np.frombuffer(number.to_bytes((number.bit_length() + 31) // 32 * 4, "big"), ">u4")
    return int(polynomials(words.astype(np.uint32), np.array([0, len(words)]))[0])


def decimal_texts(array: pa.Array) -> Hashes:
    """Return ``BigDecimal.hashCode()`` of numbers as Java writes them, each with its own scale.

    Raises InvalidArgumentError for other text, including other spellings of a number.
    """
    texts = pc.fill_null(array.cast(pa.large_string()), "0")
    plain = "BigDecimal: write it as Java does, such as 1.50, -0.5 or 1E+3"
    refuse_texts(texts, pc.match_substring_regex(texts, DECIMAL_TEXT), plain)
    mantissa = pc.replace_substring_regex(texts, "E.*", "")
    power = pc.replace_substring_regex(texts, "^[^E]*(E[+]?)?", "")
    exponent = pc.if_else(pc.equal(power, ""), "0", power).cast(pa.int64())
    fraction = pc.utf8_length(pc.replace_substring_regex(mantissa, "^[^.]*[.]?", ""))
    scale = pc.subtract(fraction.cast(pa.int64()), exponent)
    refuse_texts(texts, pc.equal(pc.less(scale, 0), pc.match_substring(texts, "E+")), plain)
    digits = pc.replace_substring(mantissa, ".", "")
    unscaled = pc.replace_substring_regex(digits, "^(-?)0+([0-9])", r"\1\2")
    scales: Hashes = scale.to_numpy().astype(np.uint32)
    return whole_texts(unscaled) * np.uint32(31) + scales
