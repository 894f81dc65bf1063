"""Java's ``hashCode()`` of Arrow arrays, by numpy; the vectorised twin of ``model.javahash``.

The contract is ``model.javascalars``. All arithmetic is modulo 2**32 on unsigned integers, which is
what Java's int arithmetic does bit for bit. A null, allowed inside a struct only, hashes to 0 as it
does in a Java Tuple.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.table.hashing_murmur import Hashes
from statestore.table.hashing_types import java_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["byte_spans", "fixed_width", "java_hashes", "second_and_nano", "tuple_hashes"]

Array: TypeAlias = npt.NDArray[Any]

_UNITS_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS_PER_DAY: Final = 86_400
_NANOS_PER_SECOND: Final = 10**9
_INTEGER_BITS: Final = {"Byte": 8, "Short": 16, "Integer": 32, "Long": 64}
_31_INVERSE: Final = pow(31, -1, 1 << 32)


def java_hashes(array: pa.Array, name: str) -> Hashes:
    """Return ``hashCode()`` of every element as the Java type ``name``; 0 for null.

    Raises InvalidArgumentError for an integer out of the range of ``name``, and for text that is
    not valid UTF-8.
    """
    if pa.types.is_dictionary(array.type):
        hashes = _dictionary(array, name)
    elif name.startswith("Tuple"):
        hashes = _struct(array)
    elif name in _INTEGER_BITS:
        hashes = _integers(array, name)
    else:
        hashes = _HASHES[name.partition("(")[0]](array)
    if array.null_count:
        hashes = np.where(array.is_null().to_numpy(zero_copy_only=False), np.uint32(0), hashes)
    return hashes


def tuple_hashes(fields: Sequence[Hashes]) -> Hashes:
    """Return the hash of a Java Tuple from those of its fields: 31 times the first, and so on."""
    h = fields[0]
    for field in fields[1:]:
        h = h * np.uint32(31) + field
    return h


def fixed_width(array: pa.Array, dtype: Any) -> Array:
    """Return the values of a fixed-width array without copying; a null slot holds anything."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype)[array.offset : array.offset + len(array)]


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


def second_and_nano(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return whole seconds (rounded down) and the nanoseconds left, of a timestamp or time
    array.
    """
    units = _UNITS_PER_SECOND[array.type.unit]
    narrow = pa.types.is_time32(array.type)
    values = fixed_width(array, np.int32 if narrow else np.int64).astype(np.int64)
    seconds = values // units
    return seconds, (values - seconds * units) * (_NANOS_PER_SECOND // units)


def _longs(values: Array) -> Hashes:
    bits = values.view(np.uint64)
    return (bits ^ bits >> np.uint64(32)).astype(np.uint32)


def _integers(array: pa.Array, name: str) -> Hashes:
    values = fixed_width(array, np.dtype(f"i{array.type.bit_width // 8}")).astype(np.int64)
    if name == "Long":
        return _longs(values)
    limit = 1 << _INTEGER_BITS[name] - 1
    outside = (values < -limit) | (values >= limit)
    if array.null_count:
        outside &= array.is_valid().to_numpy(zero_copy_only=False)
    if outside.any():
        raise InvalidArgumentError(
            f"{values[outside][0]} is out of range for type {name}: {-limit}..{limit - 1}"
        )
    return values.astype(np.uint32)


def _strings(array: pa.Array) -> Hashes:
    content, ends = byte_spans(array)
    if len(content) and content.max() >= 0x80:
        units, ends = _utf16(content, ends)
        return _polynomials(units.astype(np.uint32), ends)
    return _polynomials(content.astype(np.uint32), ends)


def _byte_arrays(array: pa.Array) -> Hashes:
    """``Arrays.hashCode(byte[])``: signed bytes, and 1 to start with."""
    content, ends = byte_spans(array)
    hashes = _polynomials(content.view(np.int8).astype(np.uint32), ends)
    lengths = np.diff(ends)
    powers, _ = _powers(int(lengths.max(initial=0)) + 1)
    return hashes + powers[lengths]


def _polynomials(units: Hashes, ends: npt.NDArray[np.int64]) -> Hashes:
    """Return ``sum(unit * 31 ** (units behind it))`` of every span.

    31 has an inverse modulo 2**32, so one running sum of ``unit / 31 ** position`` serves all
    spans: the difference of two of its values, times a power of 31, is a hash. No loop over
    lengths.
    """
    powers, inverses = _powers(len(units) + 1)
    sums = np.zeros(len(units) + 1, np.uint32)
    np.cumsum(units * inverses[: len(units)], out=sums[1:])
    at = sums[ends]
    # An empty span at the front looks up powers[-1]; its difference is 0.
    return (at[1:] - at[:-1]) * powers[ends[1:] - 1]


def _powers(count: int) -> tuple[Hashes, Hashes]:
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


def _utf16(
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


def _decimals(array: pa.Array) -> Hashes:
    """31 * ``BigInteger.hashCode()`` + scale; leading zero words of the magnitude add nothing."""
    words = fixed_width(array, np.dtype(("<u8", 2)))
    low, high = words[:, 0], words[:, 1]
    negative = high >> np.uint64(63) == 1
    low_magnitude = np.where(negative, -low, low)
    high_magnitude = np.where(negative, ~high + (low == 0), high)
    h = np.zeros(len(array), np.uint32)
    for half in (high_magnitude, low_magnitude):
        for word in (half >> np.uint64(32), half):
            h = h * np.uint32(31) + word.astype(np.uint32)
    h = np.where(negative, -h, h)
    return h * np.uint32(31) + np.uint32(array.type.scale & 0xFFFFFFFF)


def _days(days: Array) -> Hashes:
    dates = days.astype(np.int64).view("M8[D]")
    months = dates.astype("M8[M]")
    day = (dates - months).view(np.int64) + 1
    since_1970 = months.view(np.int64)
    year = since_1970 // 12 + 1970
    month = since_1970 % 12 + 1
    hashes: Hashes = (year & 0xFFFFF800 ^ (year << 11) + (month << 6) + day).astype(np.uint32)
    return hashes


def _local_times(array: pa.Array) -> Hashes:
    seconds, nanos = second_and_nano(array)
    return _longs(seconds * _NANOS_PER_SECOND + nanos)


def _local_datetimes(array: pa.Array) -> Hashes:
    seconds, nanos = second_and_nano(array)
    days = seconds // _SECONDS_PER_DAY
    of_day = (seconds - days * _SECONDS_PER_DAY) * _NANOS_PER_SECOND + nanos
    return _days(days) ^ _longs(of_day)


def _instants(array: pa.Array) -> Hashes:
    seconds, nanos = second_and_nano(array)
    return _longs(seconds) + nanos.astype(np.uint32) * np.uint32(51)


def _struct(array: pa.Array) -> Hashes:
    fields = [
        java_hashes(array.field(i), java_name(field.type, nested=True))
        for i, field in enumerate(array.type)
    ]
    return tuple_hashes(fields) if fields else np.zeros(len(array), np.uint32)


def _dictionary(array: pa.Array, name: str) -> Hashes:
    """Hash every distinct value once."""
    hashes = java_hashes(array.dictionary, name)
    if not len(hashes):
        return np.zeros(len(array), np.uint32)
    indices: npt.NDArray[np.int64] = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
    return hashes[indices]


_HASHES: Final[dict[str, Callable[[pa.Array], Hashes]]] = {
    "String": _strings,
    "byte[]": _byte_arrays,
    "Boolean": _booleans,
    "Float": _floats,
    "Double": _doubles,
    "BigDecimal": _decimals,
    "LocalDate": lambda array: _days(fixed_width(array, np.int32)),
    "LocalTime": _local_times,
    "LocalDateTime": _local_datetimes,
    "Instant": _instants,
}
