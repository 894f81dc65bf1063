"""The digest of ``format/digest.py`` for Arrow columns: the same numbers, computed with numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.format import digest as rule

Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]
U64Array = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]

_STEP = np.uint64(rule.STEP)
_ALL_BITS, _WORD_BITS = np.uint64(2**64 - 1), np.uint64(64)
# Longer strings use another algorithm: otherwise one long string would cost a pass per word.
_SHORT_BYTES = 512
_WORDS_AT_ONCE = 2**18
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 16_384, 2 * 2**20
_NULL_HASH = np.uint64(rule.mix(rule.NULL))


def rows_digest(rows: pa.RecordBatch | pa.Table) -> int:
    """Return the digest of all rows; columns are identified by name."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    return rule.combine([int(row_hashes(batch).sum(dtype=np.uint64)) for batch in batches])


def row_hashes(batch: pa.RecordBatch, columns: pa.Schema | None = None) -> U64Array:
    """Return the 64-bit hash of each row of a batch.

    With ``columns``, the values are hashed as if they had these wider types.
    """
    if columns is None:
        columns = batch.schema
    return _hash_fields(columns.names, batch.columns, columns.types, batch.num_rows)


def hash_array(array: pa.Array, wider: pa.DataType | None = None) -> U64Array:
    """Return the 64-bit hash of each value of a column, optionally as of a ``wider`` type.

    Raises TypeError for a type that is never stored.
    """
    data_type = array.type if wider is None else wider
    if pa.types.is_dictionary(array.type):
        same = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
        return hash_array(array.dictionary_decode(), same)
    hashes = _hash_values(array, data_type)
    if array.null_count:
        hashes[np.asarray(array.is_null())] = _NULL_HASH
    return hashes


def _hash_values(array: pa.Array, data_type: pa.DataType) -> U64Array:
    types = pa.types
    if array.type != data_type and not types.is_nested(data_type):
        # A cast to a wider type is lossless, except for dates beyond the range of timestamps.
        array = array.cast(data_type, safe=False)
    if types.is_floating(data_type):
        return _mix(double_bits(array) + _STEP)
    if types.is_decimal(data_type):
        return _hash_decimals(array, data_type)
    if (
        types.is_string(data_type)
        or types.is_binary(data_type)
        or types.is_large_string(data_type)
        or types.is_large_binary(data_type)
    ):
        return _hash_bytes(array)
    if types.is_map(data_type):
        return _hash_maps(array, data_type)
    if types.is_list(data_type) or types.is_large_list(data_type):
        offsets = np.asarray(array.offsets).astype(np.int64)
        # A slice keeps all later values; hashing them for every slice would be quadratic.
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        ends = offsets - offsets[0]
        hashes = hash_array(values, data_type.value_type)
        return _hash_sequences(hashes, ends, np.diff(ends).view(np.uint64))
    if types.is_struct(data_type):
        fields = dict(zip(array.type.names, array.flatten(), strict=True))
        columns = [
            fields[field.name] if field.name in fields else pa.nulls(len(array), field.type)
            for field in data_type
        ]
        return _hash_fields(
            data_type.names, columns, [field.type for field in data_type], len(array)
        )
    return _mix(int64_values(array).view(np.uint64) + _STEP)


def _hash_fields(
    names: list[str], columns: list[pa.Array], kinds: list[pa.DataType], rows: int
) -> U64Array:
    """Hash rows by their fields, some values at a time.

    This needs several times the memory of these values, which then stays in the CPU cache. Fields
    of one type that have few rows are hashed together: a call for each would cost more than its
    values.
    """
    total = np.zeros(rows, np.uint64)
    seeds = np.array([rule.column_seed(name) for name in names], np.uint64)
    for places in _small_sets(columns, kinds, rows):
        data_type = kinds[places[0]]
        if len(places) > 1:
            values = pa.concat_arrays([columns[place] for place in places])
            hashes = hash_array(values, data_type).reshape(len(places), rows)
            total += _mix(hashes + seeds[places, np.newaxis]).sum(axis=0, dtype=np.uint64)
            continue
        [place] = places
        step = max(min(_ROWS_AT_ONCE, _BYTES_AT_ONCE * rows // (columns[place].nbytes + 1)), 1)
        for start in range(0, rows, step):
            hashes = hash_array(columns[place].slice(start, step), data_type)
            hashes += seeds[place]
            total[start : start + step] += _mix(hashes)
    return _mix(total)


def _small_sets(
    columns: list[pa.Array], kinds: list[pa.DataType], rows: int
) -> Iterator[list[int]]:
    """Yield sets of columns of one type with few values, by position; others are alone."""
    alike: dict[tuple[pa.DataType, pa.DataType], list[int]] = {}
    for place, column in enumerate(columns):
        alike.setdefault((column.type, kinds[place]), []).append(place)
    for (own, _), places in alike.items():
        most = 1 if pa.types.is_dictionary(own) else max(_ROWS_AT_ONCE // max(rows, 1), 1)
        together, size = list[int](), 0
        for place in places:
            more = columns[place].nbytes if most > 1 else 0
            if together and (len(together) == most or size + more > _BYTES_AT_ONCE):
                yield together
                together, size = [], 0
            together.append(place)
            size += more
        yield together


def _hash_bytes(array: pa.Array) -> U64Array:
    """Hash strings as sequences of zero-padded little-endian words."""
    if not len(array):  # an empty array may have no buffers, or buffers of any length
        return np.zeros(0, np.uint64)
    wide = array.cast(pa.large_binary())
    _, offset_buffer, data = wide.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    lengths = np.diff(offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    if last > first and last + 8 <= data.size:
        padded = np.frombuffer(data, np.uint8)[first : last + 8]
    else:
        padded = np.zeros(last - first + 8, np.uint8)
        if last > first:
            padded[:-8] = np.frombuffer(data, np.uint8)[first:last]
    # One unaligned word at every byte; bytes of the next string are masked off later.
    every_word = np.ndarray((len(padded) - 7,), np.dtype("<u8"), padded.data, strides=(1,))
    starts = offsets[:-1] - first
    if int(lengths.max()) <= _SHORT_BYTES:
        return _hash_short(every_word, starts, lengths)
    return _hash_long(every_word, starts, lengths)


def _hash_short(every_word: U64Array, starts: Int64Array, lengths: Int64Array) -> U64Array:
    """Hash strings of few words, one word of all strings at a time: most keys are this short."""
    total = np.zeros(len(lengths), np.uint64)
    shortest, longest = int(lengths.min()), int(lengths.max())
    for number, done in enumerate(range(0, longest, 8), start=1):
        rows: Any = slice(None) if shortest > done else np.flatnonzero(lengths > done)
        if shortest == longest:  # the words are at equal distances: no lookup per row is needed
            words = every_word[done::longest][: len(lengths)].copy()
        else:
            words = every_word[starts[rows] + done]
        if shortest < done + 8:
            left = np.minimum(lengths[rows] - done, 8).view(np.uint64)
            words &= _ALL_BITS >> (_WORD_BITS - np.uint64(8) * left)
        words += np.uint64(number * rule.STEP % 2**64)
        total[rows] += _mix(words)
    return _mix(lengths.view(np.uint64) * _STEP + total)


def _hash_long(every_word: U64Array, starts: Int64Array, lengths: Int64Array) -> U64Array:
    """Hash strings of any length, a limited number of words at a time.

    While a word is hashed, it needs several times its size in memory.
    """
    word_ends = np.concatenate(([0], np.cumsum((lengths + 7) // 8)))
    sums = np.zeros(len(lengths), np.uint64)
    for first in range(0, int(word_ends[-1]), _WORDS_AT_ONCE):
        stop = min(first + _WORDS_AT_ONCE, int(word_ends[-1]))
        begin = int(np.searchsorted(word_ends, first, "right")) - 1
        end = int(np.searchsorted(word_ends, stop, "left"))
        ends = np.clip(word_ends[begin : end + 1], first, stop)
        counts, number = np.diff(ends), np.arange(first, stop)
        words = every_word[
            np.repeat(starts[begin:end] - 8 * word_ends[begin:end], counts) + 8 * number
        ]
        # Only the last word of a string can be short.
        last = np.flatnonzero(
            (lengths[begin:end] % 8 != 0) & (word_ends[begin + 1 : end + 1] <= stop)
        )
        bits = (8 * (lengths[begin:end][last] % 8)).astype(np.uint64)
        words[ends[1:][last] - 1 - first] &= (np.uint64(1) << bits) - np.uint64(1)
        before = word_ends[begin:end].astype(np.uint64) * _STEP
        words += (number + 1).astype(np.uint64) * _STEP - np.repeat(before, counts)
        sums[begin:end] += np.add.reduceat(_mix(words), ends[:-1] - first) * (counts > 0)
    return _mix(lengths.view(np.uint64) * _STEP + sums)


def _hash_sequences(words: U64Array, ends: npt.NDArray[np.int64], lengths: U64Array) -> U64Array:
    """Hash each row's words; row i has ``words[ends[i]:ends[i + 1]]``."""
    first, last = int(ends[0]), int(ends[-1])
    steps = (_index_in_row(ends) + 1).astype(np.uint64) * _STEP
    mixed = _mix(words[first:last] + steps)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)))
    return _mix(lengths * _STEP + sums[ends[1:] - first] - sums[ends[:-1] - first])


def _hash_decimals(array: pa.Array, decimal_type: pa.DataType) -> U64Array:
    words = decimal_words(array.cast(pa.decimal128(38, decimal_type.scale)))
    scales = np.full(len(array), decimal_type.scale, np.int64).view(np.uint64)
    return _hash_sequences(words, np.arange(0, 2 * len(array) + 1, 2), scales)


def _hash_maps(array: pa.Array, map_type: pa.MapType) -> U64Array:
    offsets = np.asarray(array.offsets).astype(np.int64)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(array) else (0, 0)
    count = last - first
    keys, items = array.keys.slice(first, count), array.items.slice(first, count)
    pairs = _mix(hash_array(keys, map_type.key_type) + _mix(hash_array(items, map_type.item_type)))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(pairs, dtype=np.uint64)))
    total = sums[offsets[1:] - first] - sums[offsets[:-1] - first]
    return _mix(np.diff(offsets).view(np.uint64) * _STEP + total)


def decimal_words(array: pa.Array) -> U64Array:
    """Return the low and the high word of each 128-bit decimal, in turn; undefined for null."""
    if not len(array):  # an empty array may have no buffers, or buffers of any length
        return np.zeros(0, np.uint64)
    return np.frombuffer(array.buffers()[1], np.uint64, 2 * len(array), 16 * array.offset)


def double_bits(array: pa.Array) -> U64Array:
    """Return floats as the bits of doubles, with one bit pattern for NaN; null becomes 0."""
    doubles = np.array(_without_nulls(array.cast(pa.float64())))
    bits: U64Array = doubles.view(np.uint64)
    bits[np.isnan(doubles)] = np.uint64(rule.NAN_BITS)
    return bits


def int64_values(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return integers, booleans, days and microseconds of timestamps as int64; null becomes 0.

    Raises TypeError for a type that is never stored.
    """
    data_type = array.type
    if pa.types.is_date32(data_type):
        array = array.view(pa.int32())
    elif pa.types.is_timestamp(data_type):
        array = array.cast(pa.timestamp("us", data_type.tz)).view(pa.int64())
    elif pa.types.is_boolean(data_type):
        array = array.cast(pa.int8())
    elif not pa.types.is_integer(data_type):
        raise TypeError(f"no digest is defined for {data_type}")
    return np.asarray(_without_nulls(array.cast(pa.int64())))


def _without_nulls(numbers: pa.Array) -> pa.Array:
    return pc.fill_null(numbers, 0) if numbers.null_count else numbers


def _index_in_row(ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    counts = np.diff(ends)
    return np.arange(ends[0], ends[-1]) - np.repeat(ends[:-1], counts)


def _mix(x: U64Array) -> U64Array:
    """Apply ``format.digest.mix`` to each element, in place; unsigned arrays wrap around."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x
