"""Hashes of Arrow arrays with numpy: Java's ``hashCode()`` as in ``keys.java``, and Murmur3.

All arithmetic is modulo 2**32 on unsigned integers, which gives the same bits as Java's int
arithmetic. Null is allowed only inside a struct, and hashes to 0 as in a Java Tuple. Integers and
decimals that are stored as text may have any length.

The UUIDs and integers that text columns contain have exactly one accepted text each: another
spelling would be another key of the same key group. :func:`absorb` and :func:`finish` are
Murmur3-x86-32, by Austin Appleby, in the public domain: one step per 32-bit word, for all rows
together. The caller supplies the seed, and mixes in the length in bytes before :func:`finish`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.keys.arrow_types import arrow_type_text, is_text
from statestore.keys.java import integer_of, string_hash
from statestore.keys.key_types import DECIMAL_TEXT, JavaType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        value = message_value(values[int(wrong[0])])
        raise InvalidArgumentError(f"{value!r:.80} is not a valid {problem}")


def message_value(value: pa.Scalar) -> Any:
    """Return a value for a message, also a text that is not valid UTF-8."""
    if not is_text(value.type):
        return value.as_py()
    return value.as_buffer().to_pybytes().decode(errors="backslashreplace")


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


Array: TypeAlias = npt.NDArray[Any]

_UNITS_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS_PER_DAY: Final = 86_400
_NANOS_PER_SECOND: Final = 10**9
_INTEGER_BITS: Final = {"Byte": 8, "Short": 16, "Integer": 32, "Long": 64}
_MOST_DAYS: Final = 365_241_780_471


def java_hashes(array: pa.Array, java_type: JavaType) -> Hashes:
    """Return ``hashCode()`` of every element as a Java type; 0 for null.

    Raises InvalidArgumentError for a value that the type cannot hold, and for text that is not
    valid UTF-8.
    """
    if pa.types.is_dictionary(array.type):
        return _decode_hashes(array, java_hashes(array.dictionary, java_type))
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return _zero_nulls(array, _RULES[java_type.name](array, java_type))


def deep_hashes(array: pa.Array, java_type: JavaType) -> Hashes:
    """Return what each element adds to the hash of a Flink ``Row``; 0 for null."""
    if pa.types.is_dictionary(array.type):
        return _decode_hashes(array, deep_hashes(array.dictionary, java_type))
    if java_type.name in ("List", "Array"):
        hashes = _lists(array, java_type, deep_hashes)
    elif java_type.name == "Map":
        hashes = _maps(array, java_type, deep_hashes) + np.uint32(1)
    else:
        return _zero_nulls(array, java_hashes(array, java_type) + np.uint32(31))
    return _zero_nulls(array, hashes)


def _zero_nulls(array: pa.Array, hashes: Hashes) -> Hashes:
    if not array.null_count:
        return hashes
    return np.where(array.is_null().to_numpy(zero_copy_only=False), np.uint32(0), hashes)


def tuple_hashes(fields: Sequence[Hashes]) -> Hashes:
    """Return the hash of a Java Tuple from its fields' hashes: 31 times the first, and so on."""
    h = fields[0]
    for field in fields[1:]:
        h = h * np.uint32(31) + field
    return h


def fixed_width(array: pa.Array, dtype: Any) -> Array:
    """Return the values of a fixed-width array without copying; null slots are arbitrary."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype)[array.offset : array.offset + len(array)]


def second_and_nano(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split every value into whole seconds (rounded down) and the remaining nanoseconds.

    The array holds timestamps, times or durations, or integers that are nanoseconds.
    """
    if pa.types.is_integer(array.type):  # nanoseconds
        array = array.cast(pa.int64()).view(pa.timestamp("ns"))
    units = _UNITS_PER_SECOND[array.type.unit]
    narrow = pa.types.is_time32(array.type)
    values = fixed_width(array, np.int32 if narrow else np.int64).astype(np.int64)
    seconds = values // units
    return seconds, (values - seconds * units) * (_NANOS_PER_SECOND // units)


def _longs(values: Array) -> Hashes:
    bits = values.view(np.uint64)
    return (bits ^ bits >> np.uint64(32)).astype(np.uint32)


def _integers(array: pa.Array, java_type: JavaType) -> Hashes:
    if java_type.name == "Long":
        return _longs(int64s(array))
    limit = 1 << _INTEGER_BITS[java_type.name] - 1
    return _check_range(array, java_type, -limit, limit - 1).astype(np.uint32)


def int64s(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the values of an integer array; a null slot has an arbitrary value."""
    return fixed_width(array, np.dtype(f"i{array.type.bit_width // 8}")).astype(np.int64)


def _check_range(
    array: pa.Array, java_type: JavaType, low: int, high: int
) -> npt.NDArray[np.int64]:
    values = int64s(array)
    outside = (values < low) | (values > high)
    if array.null_count:
        outside &= array.is_valid().to_numpy(zero_copy_only=False)
    if outside.any():
        raise InvalidArgumentError(
            f"{values[outside][0]} is out of range for type {java_type}: {low}..{high}"
        )
    return values


def _booleans(array: pa.Array) -> Hashes:
    values = array.fill_null(False).to_numpy(zero_copy_only=False)
    return np.where(values, np.uint32(1231), np.uint32(1237))


def _floats(array: pa.Array) -> Hashes:
    bits = fixed_width(array, np.uint32)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, np.uint32(0x7FC00000), bits)


def _doubles(array: pa.Array) -> Hashes:
    bits = fixed_width(array, np.uint64)
    nan = (bits & np.uint64((1 << 63) - 1)) > np.uint64(0x7FF << 52)
    return _longs(np.where(nan, np.uint64(0x7FF8 << 48), bits))


def _decimals(array: pa.Array, java_type: JavaType) -> Hashes:
    """Return ``BigDecimal.hashCode()``: 31 * ``BigInteger.hashCode()`` + scale."""
    if is_text(array.type):
        return decimal_texts(array)
    assert java_type.digits is not None
    if pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(19, 0))
    exact = decimals_of(array, java_type, *java_type.digits)
    scale = np.uint32(java_type.digits[1] & 0xFFFFFFFF)
    return _whole_decimals(exact) * np.uint32(31) + scale


def decimals_of(array: pa.Array, target_type: object, precision: int, scale: int) -> pa.Array:
    """Cast decimals to another precision and scale; InvalidArgumentError unless all fit."""
    wanted = pa.decimal128(precision, scale)
    if array.type == wanted:
        return array
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(
            f"a value of a column of type {arrow_type_text(array.type)} does not fit "
            f"{target_type}: {error}"
        ) from error


def _whole_decimals(array: pa.Array) -> Hashes:
    """Return ``BigInteger.hashCode()``; leading zero words of the magnitude add nothing."""
    words = fixed_width(array, np.dtype(("<u8", 2)))
    low, high = words[:, 0], words[:, 1]
    negative = high >> np.uint64(63) == 1
    low_magnitude = np.where(negative, -low, low)
    high_magnitude = np.where(negative, ~high + (low == 0), high)
    h = np.zeros(len(array), np.uint32)
    for half in (high_magnitude, low_magnitude):
        for word in (half >> np.uint64(32), half):
            h = h * np.uint32(31) + word.astype(np.uint32)
    return np.where(negative, -h, h)


def _big_integers(array: pa.Array, java_type: JavaType) -> Hashes:
    if is_text(array.type):
        return whole_texts(array)
    if pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(19, 0))
    return _whole_decimals(array)


def _uuids(array: pa.Array, java_type: JavaType) -> Hashes:
    raw = uuid_bytes(array)
    words: Hashes = np.bitwise_xor.reduce(raw.reshape(-1, 16).view(">u4"), axis=1).astype(np.uint32)
    return words


def _characters(array: pa.Array, java_type: JavaType) -> Hashes:
    if pa.types.is_integer(array.type):
        return _check_range(array, java_type, 0, 0xFFFF).astype(np.uint32)
    content, ends = byte_spans(array)
    units, ends = utf16(content, ends)
    wrong = np.diff(ends) != 1
    if array.null_count:
        wrong &= array.is_valid().to_numpy(zero_copy_only=False)
    if wrong.any():
        text = array[int(np.flatnonzero(wrong)[0])].as_py()
        raise InvalidArgumentError(f"{text!r} is not a Character: that is one UTF-16 code unit")
    padded = np.append(units, np.uint16(0)).astype(np.uint32)
    return padded[ends[:-1]]


def _days(days: Array) -> Hashes:
    dates = days.astype(np.int64).view("M8[D]")
    months = dates.astype("M8[M]")
    day = (dates - months).view(np.int64) + 1
    since_1970 = months.view(np.int64)
    year = since_1970 // 12 + 1970
    month = since_1970 % 12 + 1
    hashes: Hashes = (year & 0xFFFFF800 ^ (year << 11) + (month << 6) + day).astype(np.uint32)
    return hashes


def _local_dates(array: pa.Array, java_type: JavaType) -> Hashes:
    if pa.types.is_date32(array.type):
        return _days(fixed_width(array, np.int32))
    valid = np.where(_nulls(array), 0, _check_range(array, java_type, -_MOST_DAYS, _MOST_DAYS))
    return _days(valid)


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _local_times(array: pa.Array, java_type: JavaType) -> Hashes:
    if pa.types.is_integer(array.type):
        return _longs(_check_range(array, java_type, 0, _SECONDS_PER_DAY * _NANOS_PER_SECOND - 1))
    seconds, nanos = second_and_nano(array)
    return _longs(seconds * _NANOS_PER_SECOND + nanos)


def _local_datetimes(array: pa.Array, java_type: JavaType) -> Hashes:
    seconds, nanos = second_and_nano(array)
    days = seconds // _SECONDS_PER_DAY
    of_day = (seconds - days * _SECONDS_PER_DAY) * _NANOS_PER_SECOND + nanos
    return _days(days) ^ _longs(of_day)


def _instants(array: pa.Array, java_type: JavaType) -> Hashes:
    """Hash Instants and Durations: both are seconds and the nanoseconds after them."""
    seconds, nanos = second_and_nano(array)
    return _longs(seconds) + nanos.astype(np.uint32) * np.uint32(51)


def _sql_millis(array: pa.Array, java_type: JavaType) -> Hashes:
    if pa.types.is_integer(array.type):
        return _longs(int64s(array))
    seconds, nanos = second_and_nano(array)
    return _longs(seconds * 1000 + nanos // 1_000_000)


def _tuples(array: pa.Array, java_type: JavaType) -> Hashes:
    fields = [java_hashes(*field) for field in _fields(array, java_type)]
    return tuple_hashes(fields) if fields else np.zeros(len(array), np.uint32)


def _rows(array: pa.Array, java_type: JavaType) -> Hashes:
    """Return ``Row.hashCode()`` of fields by position: computed as for a list of the fields."""
    h = np.ones(len(array), np.uint32)
    for field in _fields(array, java_type):
        h = h * np.uint32(31) + deep_hashes(*field)
    return h


def _named_rows(array: pa.Array, java_type: JavaType) -> Hashes:
    h = np.ones(len(array), np.uint32)
    for (field, part), column in zip(_fields(array, java_type), array.type.fields, strict=True):
        h += np.uint32((31 + string_hash(column.name)) & 0xFFFFFFFF) ^ deep_hashes(field, part)
    return h


def _fields(array: pa.Array, java_type: JavaType) -> list[tuple[pa.Array, JavaType]]:
    """Return the fields of a struct, null where the struct is null, with their types."""
    return list(zip(array.flatten(), java_type.parts or (), strict=True))


Rule: TypeAlias = "Callable[[pa.Array, JavaType], Hashes]"


def _lists(array: pa.Array, java_type: JavaType, of_element: Rule = java_hashes) -> Hashes:
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        array = array.cast(pa.large_list(array.type.value_type))
    if java_type.primitive is not None:
        element = java_type.primitive
    else:
        assert java_type.parts is not None
        element = java_type.parts[0]
    ends, first, last = _spans(array)
    values = array.values.slice(first, last - first)
    if java_type.primitive is not None and values.null_count:
        raise InvalidArgumentError(
            f"an element of {java_type} is null, which this type does not allow"
        )
    hashes = polynomials(of_element(values, element), ends)
    lengths = np.diff(ends)
    return hashes + powers(int(lengths.max(initial=0)) + 1)[0][lengths]


def _maps(array: pa.Array, java_type: JavaType, of_element: Rule = java_hashes) -> Hashes:
    assert java_type.parts is not None
    ends, first, last = _spans(array)
    of_key, of_value = java_type.parts
    keys = of_element(array.keys.slice(first, last - first), of_key)
    sums = np.zeros(last - first + 1, np.uint32)
    items = of_element(array.items.slice(first, last - first), of_value)
    np.cumsum(keys ^ items, out=sums[1:])
    return sums[ends[1:]] - sums[ends[:-1]]


def _spans(array: pa.Array) -> tuple[npt.NDArray[np.int64], int, int]:
    """Return each element's offsets relative to the first value, and the first and last offset."""
    offsets = np.asarray(array.offsets).astype(np.int64)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    return offsets - first, first, last


def _decode_hashes(array: pa.Array, hashes: Hashes) -> Hashes:
    """Look up the hash of every row: each distinct value was hashed once."""
    if not len(hashes):
        return np.zeros(len(array), np.uint32)
    indices: npt.NDArray[np.int64] = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return _zero_nulls(array, hashes[indices])


_RULES: Final[dict[str, Rule]] = {
    "String": lambda array, java_type: strings(array),
    "byte[]": lambda array, java_type: byte_arrays(array),
    "Boolean": lambda array, java_type: _booleans(array),
    "Float": lambda array, java_type: _floats(array),
    "Double": lambda array, java_type: _doubles(array),
    **dict.fromkeys(_INTEGER_BITS, _integers),
    "Character": _characters,
    "BigDecimal": _decimals,
    "BigInteger": _big_integers,
    "UUID": _uuids,
    "LocalDate": _local_dates,
    "LocalTime": _local_times,
    "LocalDateTime": _local_datetimes,
    "Instant": _instants,
    "Duration": _instants,
    **dict.fromkeys(("java.sql.Timestamp", "java.sql.Date", "java.sql.Time"), _sql_millis),
    "Tuple": _tuples,
    "Row": _rows,
    "NamedRow": _named_rows,
    "List": _lists,
    "Map": _maps,
    **{f"{name}[]": _lists for name in ("boolean", "short", "int", "long", "float", "double")},
}
