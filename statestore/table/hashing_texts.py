"""The bytes of text and binary columns, and UUIDs and whole numbers that such columns carry.

One text stands for one value: another spelling of it would be another key of the same key group.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.table.hashing_murmur import Hashes
from statestore.table.hashing_types import is_text

__all__ = [
    "byte_arrays",
    "byte_spans",
    "polynomials",
    "powers",
    "strings",
    "utf16",
    "uuid_bytes",
    "whole_texts",
]

_31_INVERSE: Final = pow(31, -1, 1 << 32)

_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_WHOLE: Final = "^(0|-?[1-9][0-9]*)$"
_HYPHENS: Final = (8, 13, 18, 23)
_CHUNK: Final = 9  # decimal digits that fit 32 bits


def byte_spans(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the bytes of a string or binary array, and where in them its elements begin and
    end.
    """
    types = pa.types
    if types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    elif types.is_binary_view(array.type) or types.is_fixed_size_binary(array.type):
        array = array.cast(pa.large_binary())
    _, starts, data = array.buffers()
    if starts is None or len(array) == 0:
        return np.zeros(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    large = types.is_large_string(array.type) or types.is_large_binary(array.type)
    dtype = np.int64 if large else np.int32
    offsets = np.frombuffer(starts, dtype)[array.offset : array.offset + len(array) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[first:last]
    return content, offsets.astype(np.int64) - first


def uuid_bytes(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the 16 bytes of each UUID, one after another; zeros for null.

    Raises InvalidArgumentError for other bytes, and for text that is not as Java writes it.
    """
    if not is_text(array.type):
        zeros = pa.scalar(bytes(16), pa.large_binary())
        raw = pc.fill_null(array.cast(pa.large_binary()), zeros)
        _refuse(raw, pc.equal(pc.binary_length(raw), 16), "UUID: that has 16 bytes")
        content, _ = byte_spans(raw)
        return np.ascontiguousarray(content)
    texts = pc.fill_null(array.cast(pa.large_string()), "00000000-0000-0000-0000-000000000000")
    plain = "UUID: write it as Java does, 36 characters with hyphens, in lower case"
    _refuse(texts, pc.match_substring_regex(texts, _UUID), plain)
    content, _ = byte_spans(texts)
    digits = np.delete(content.reshape(-1, 36), _HYPHENS, axis=1)
    nibbles = np.where(digits >= ord("a"), digits - (ord("a") - 10), digits - ord("0"))
    pairs = (nibbles[:, ::2] << 4 | nibbles[:, 1::2]).astype(np.uint8)
    return np.ascontiguousarray(pairs).reshape(-1)


def whole_texts(array: pa.Array) -> Hashes:
    """Return ``BigInteger.hashCode()`` of whole numbers in decimal digits, of any length.

    Raises InvalidArgumentError for other text, also for a number with a plus or leading zeros.
    """
    texts = pc.fill_null(array.cast(pa.large_string()), "0")
    plain = "BigInteger: write it in decimal digits, without plus and leading zeros"
    _refuse(texts, pc.match_substring_regex(texts, _WHOLE), plain)
    negative = np.asarray(pc.starts_with(texts, "-"))
    content, ends = byte_spans(pc.utf8_trim(texts, characters="-"))
    chunks = -(-int(np.diff(ends).max(initial=0)) // _CHUNK)
    # The digits flush right, in as many chunks for every row; each limb has 32 bits, lowest first.
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
    return np.where(negative, -h, h)


def strings(array: pa.Array) -> Hashes:
    """Return ``String.hashCode()`` of UTF-8 texts; InvalidArgumentError for what is none."""
    content, ends = byte_spans(array)
    if len(content) and content.max() >= 0x80:
        units, ends = utf16(content, ends)
        return polynomials(units.astype(np.uint32), ends)
    return polynomials(content.astype(np.uint32), ends)


def byte_arrays(array: pa.Array) -> Hashes:
    """``Arrays.hashCode(byte[])``: signed bytes, and 1 to start with."""
    content, ends = byte_spans(array)
    hashes = polynomials(content.view(np.int8).astype(np.uint32), ends)
    lengths = np.diff(ends)
    return hashes + powers(int(lengths.max(initial=0)) + 1)[0][lengths]


def polynomials(units: Hashes, ends: npt.NDArray[np.int64]) -> Hashes:
    """Return ``sum(unit * 31 ** (units behind it))`` of every span.

    31 has an inverse modulo 2**32, so one running sum of ``unit / 31 ** position`` serves all
    spans: the difference of two of its values, times a power of 31, is a hash. No loop over
    lengths.
    """
    rising, inverses = powers(len(units) + 1)
    sums = np.zeros(len(units) + 1, np.uint32)
    np.cumsum(units * inverses[: len(units)], out=sums[1:])
    at = sums[ends]
    # An empty span at the front looks up rising[-1]; its difference is 0.
    return (at[1:] - at[:-1]) * rising[ends[1:] - 1]


def powers(count: int) -> tuple[Hashes, Hashes]:
    """Return at least ``count`` powers of 31 from 0 on, and their inverses, modulo 2**32."""
    return _power_tables(max(1 << 16, 1 << count.bit_length()))


@lru_cache(maxsize=8)
def _power_tables(count: int) -> tuple[Hashes, Hashes]:
    """31 ** i and its inverse, modulo 2**32, for i below ``count``."""
    tables = []
    for base in (31, _31_INVERSE):
        factors = np.full(count, base, np.uint32)
        factors[0] = 1
        tables.append(np.multiply.accumulate(factors, dtype=np.uint32))
    return tables[0], tables[1]


def utf16(
    content: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """Return UTF-8 as UTF-16 code units, and where the elements begin and end in these."""
    try:
        text = content.tobytes().decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"a key is not valid UTF-8: {error.reason}") from error
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")
    # Every byte that begins a character is one unit, and a second one where four bytes begin.
    width = ((content & 0xC0) != 0x80).astype(np.int64) + (content >= 0xF0)
    before = np.zeros(len(content) + 1, np.int64)
    np.cumsum(width, out=before[1:])
    return units, before[ends]


def _refuse(values: pa.Array, good: pa.BooleanArray, problem: str) -> None:
    wrong = np.flatnonzero(~np.asarray(good))
    if len(wrong):
        raise InvalidArgumentError(f"{values[int(wrong[0])].as_py()!r} is no {problem}")
