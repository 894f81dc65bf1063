"""The bytes of text and binary columns, and the hashes of bytes that Java and Flink compute.

The UUIDs and integers that text columns contain have exactly one accepted text each: another
spelling would be another key of the same key group. :func:`absorb` and :func:`finish` are
Murmur3-x86-32, by Austin Appleby, in the public domain: one step per 32-bit word, for all rows
together. The caller supplies the seed, and mixes in the length in bytes before :func:`finish`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.keys.arrow_types import is_text

Hashes: TypeAlias = npt.NDArray[np.uint32]

_13, _15, _16, _17, _19 = (np.uint32(bits) for bits in (13, 15, 16, 17, 19))
_C1: Final = np.uint32(0xCC9E2D51)
_C2: Final = np.uint32(0x1B873593)
_F1: Final = np.uint32(0x85EBCA6B)
_F2: Final = np.uint32(0xC2B2AE35)
_STEP: Final = np.uint32(0xE6546B64)


def absorb(h: Hashes, word: Hashes) -> Hashes:
    """Return the hash state after one more word."""
    k = word * _C1
    h = h ^ (k << _15 | k >> _17) * _C2
    return (h << _13 | h >> _19) * np.uint32(5) + _STEP


def finish(h: Hashes) -> Hashes:
    """Return the final hash of a state into which the length was mixed."""
    h = (h ^ h >> _16) * _F1
    h = (h ^ h >> _13) * _F2
    return h ^ h >> _16


_31_INVERSE: Final = pow(31, -1, 1 << 32)

_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_HYPHENS: Final = (8, 13, 18, 23)


def byte_spans(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the bytes of a string or binary array, and the offsets of its elements in them."""
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
    """Return the 16 bytes of each UUID, concatenated; zeros for null.

    Raises InvalidArgumentError for another number of bytes, and for text that Java would not write.
    """
    if not is_text(array.type):
        zeros = pa.scalar(bytes(16), pa.large_binary())
        raw = pc.fill_null(array.cast(pa.large_binary()), zeros)
        refuse_texts(raw, pc.equal(pc.binary_length(raw), 16), "UUID: it must have 16 bytes")
        content, _ = byte_spans(raw)
        return np.ascontiguousarray(content)
    texts = pc.fill_null(array.cast(pa.large_string()), "00000000-0000-0000-0000-000000000000")
    plain = "UUID: write it as Java does, 36 characters with hyphens, in lower case"
    refuse_texts(texts, pc.match_substring_regex(texts, _UUID), plain)
    content, _ = byte_spans(texts)
    digits = np.delete(content.reshape(-1, 36), _HYPHENS, axis=1)
    nibbles = np.where(digits >= ord("a"), digits - (ord("a") - 10), digits - ord("0"))
    pairs = (nibbles[:, ::2] << 4 | nibbles[:, 1::2]).astype(np.uint8)
    return np.ascontiguousarray(pairs).reshape(-1)


def strings(array: pa.Array) -> Hashes:
    """Return ``String.hashCode()`` of UTF-8 texts; InvalidArgumentError for invalid UTF-8."""
    content, ends = byte_spans(array)
    if len(content) and content.max() >= 0x80:
        units, ends = utf16(content, ends)
        return polynomials(units.astype(np.uint32), ends)
    return polynomials(content.astype(np.uint32), ends)


def byte_arrays(array: pa.Array) -> Hashes:
    """Return ``Arrays.hashCode(byte[])``: it reads signed bytes and starts with 1."""
    content, ends = byte_spans(array)
    hashes = polynomials(content.view(np.int8).astype(np.uint32), ends)
    lengths = np.diff(ends)
    return hashes + powers(int(lengths.max(initial=0)) + 1)[0][lengths]


def polynomials(units: Hashes, ends: npt.NDArray[np.int64]) -> Hashes:
    """Return ``sum(unit * 31 ** (units after it))`` of every span.

    31 has an inverse modulo 2**32, so one running sum of ``unit / 31 ** position`` serves all
    spans. The difference of two running sums, times a power of 31, is a span's hash. It needs no
    loop over lengths.
    """
    rising, inverses = powers(len(units) + 1)
    sums = np.zeros(len(units) + 1, np.uint32)
    np.cumsum(units * inverses[: len(units)], out=sums[1:])
    bounds = sums[ends]
    # An empty span at the front reads rising[-1], but its difference is 0.
    return (bounds[1:] - bounds[:-1]) * rising[ends[1:] - 1]


def powers(count: int) -> tuple[Hashes, Hashes]:
    """Return at least ``count`` powers of 31, from exponent 0, and their inverses, modulo 2**32."""
    return _power_tables(max(1 << 16, 1 << count.bit_length()))


@lru_cache(maxsize=8)
def _power_tables(count: int) -> tuple[Hashes, Hashes]:
    """Return 31 ** i and its inverse, modulo 2**32, for i below ``count``."""
    tables = []
    for base in (31, _31_INVERSE):
        factors = np.full(count, base, np.uint32)
        factors[0] = 1
        tables.append(np.multiply.accumulate(factors, dtype=np.uint32))
    return tables[0], tables[1]


def utf16(
    content: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """Convert UTF-8 to UTF-16 code units; return them and the offsets of the elements in them."""
    try:
        text = content.tobytes().decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"a key is not valid UTF-8: {error.reason}") from error
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")
    # Every first byte of a character counts one unit, and two if the character has four bytes.
    width = ((content & 0xC0) != 0x80).astype(np.int64) + (content >= 0xF0)
    before = np.zeros(len(content) + 1, np.int64)
    np.cumsum(width, out=before[1:])
    return units, before[ends]


def refuse_texts(values: pa.Array, good: pa.BooleanArray, problem: str) -> None:
    """Raise InvalidArgumentError with ``problem`` for the first value that is not ``good``."""
    wrong = np.flatnonzero(~np.asarray(good))
    if len(wrong):
        raise InvalidArgumentError(
            f"{values[int(wrong[0])].as_py()!r:.80} is not a valid {problem}"
        )
