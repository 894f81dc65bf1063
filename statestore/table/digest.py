"""The digest of ``model/digest.py`` on Arrow columns: the same numbers, a column at a time in
numpy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.model import digest as rule

__all__ = ["hash_array", "row_hashes", "rows_digest"]

U64Array = npt.NDArray[np.uint64]

_STEP = np.uint64(rule.STEP)
_NULL_HASH = np.uint64(rule.mix(rule.NULL))


def rows_digest(rows: pa.RecordBatch | pa.Table) -> int:
    """Return the digest of all rows; columns count by name."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    return rule.combine(int(row_hashes(batch).sum(dtype=np.uint64)) for batch in batches)


def row_hashes(batch: pa.RecordBatch) -> U64Array:
    """Return the 64-bit hash of each row of a batch."""
    return _hash_fields(batch.schema.names, batch.columns, batch.num_rows)


def hash_array(array: pa.Array) -> U64Array:
    """Return the 64-bit hash of each value of a column; TypeError for a type that is never
    stored.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        return hash_array(array.dictionary_decode())
    hashes = _hash_values(array, kind)
    if array.null_count:
        hashes[np.asarray(array.is_null())] = _NULL_HASH
    return hashes


def _hash_values(array: pa.Array, kind: pa.DataType) -> U64Array:
    types = pa.types
    if types.is_floating(kind):
        return _mix(_double_bits(array) + _STEP)
    if types.is_decimal(kind):
        return _hash_decimals(array, kind)
    if types.is_string(kind) or types.is_binary(kind) or _is_large(kind):
        return _hash_bytes(array)
    if types.is_map(kind):
        return _hash_maps(array)
    if types.is_list(kind) or types.is_large_list(kind):
        offsets = np.asarray(array.offsets).astype(np.int64)
        # A slice keeps all values behind it; hashing them for every slice would be quadratic.
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        ends = offsets - offsets[0]
        return _hash_sequences(hash_array(values), ends, np.diff(ends).view(np.uint64))
    if types.is_struct(kind):
        return _hash_fields([field.name for field in kind], array.flatten(), len(array))
    return _mix(_as_int64(array, kind).view(np.uint64) + _STEP)


def _hash_fields(names: list[str], columns: list[pa.Array], rows: int) -> U64Array:
    total = np.zeros(rows, np.uint64)
    for name, column in zip(names, columns, strict=True):
        total += _mix(hash_array(column) + np.uint64(rule.column_seed(name)))
    return _mix(total)


def _hash_bytes(array: pa.Array) -> U64Array:
    """Hash strings as sequences of zero-padded little-endian words."""
    wide = array.cast(pa.large_binary())
    _, offset_buffer, data = wide.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    lengths = np.diff(offsets)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(wide) else (0, 0)
    padded = np.zeros(last - first + 8, np.uint8)
    if last > first:
        padded[:-8] = np.frombuffer(data, np.uint8)[first:last]
    word_ends = np.concatenate(([0], np.cumsum((lengths + 7) // 8)))
    index = _index_in_row(word_ends)
    row = np.repeat(np.arange(len(wide)), np.diff(word_ends))
    # One unaligned word at every byte; the bytes of the next string are then masked off.
    every_word = np.ndarray((len(padded) - 7,), np.dtype("<u8"), padded.data, strides=(1,))
    words = every_word[(offsets[:-1] - first)[row] + 8 * index]
    left = lengths[row] - 8 * index
    short = left < 8
    words[short] &= (np.uint64(1) << (8 * left[short]).astype(np.uint64)) - np.uint64(1)
    return _hash_sequences(words, word_ends, lengths.view(np.uint64))


def _hash_sequences(words: U64Array, ends: npt.NDArray[np.int64], lengths: U64Array) -> U64Array:
    """Hash row i's words, which lie at ``ends[i]:ends[i + 1]``."""
    first, last = int(ends[0]), int(ends[-1])
    steps = (_index_in_row(ends) + 1).astype(np.uint64) * _STEP
    mixed = _mix(words[first:last] + steps)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)))
    return _mix(lengths * _STEP + sums[ends[1:] - first] - sums[ends[:-1] - first])


def _hash_decimals(array: pa.Array, kind: pa.DataType) -> U64Array:
    wide = array.cast(pa.decimal128(38, kind.scale))
    data = np.frombuffer(wide.buffers()[1], np.uint64)
    words = data[2 * wide.offset : 2 * (wide.offset + len(wide))]
    scales = np.full(len(wide), kind.scale, np.int64).view(np.uint64)
    return _hash_sequences(words, np.arange(0, 2 * len(wide) + 1, 2), scales)


def _hash_maps(array: pa.Array) -> U64Array:
    offsets = np.asarray(array.offsets).astype(np.int64)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(array) else (0, 0)
    count = last - first
    keys, items = array.keys.slice(first, count), array.items.slice(first, count)
    pairs = _mix(hash_array(keys) + _mix(hash_array(items)))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(pairs, dtype=np.uint64)))
    total = sums[offsets[1:] - first] - sums[offsets[:-1] - first]
    return _mix(np.diff(offsets).view(np.uint64) * _STEP + total)


def _double_bits(array: pa.Array) -> U64Array:
    doubles = np.array(pc.fill_null(array.cast(pa.float64()), 0.0))
    bits: U64Array = doubles.view(np.uint64)
    bits[np.isnan(doubles)] = np.uint64(rule.NAN_BITS)
    return bits


def _as_int64(array: pa.Array, kind: pa.DataType) -> npt.NDArray[np.int64]:
    if pa.types.is_date32(kind):
        array = array.view(pa.int32())
    elif pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
    elif pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif not pa.types.is_integer(kind):
        raise TypeError(f"no digest is defined for {kind}")
    return np.array(pc.fill_null(array.cast(pa.int64()), 0))


def _index_in_row(ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    counts = np.diff(ends)
    return np.arange(ends[0], ends[-1]) - np.repeat(ends[:-1], counts)


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _mix(x: U64Array) -> U64Array:
    """Apply ``model.digest.mix`` to each element, in place; wrapping is what unsigned arrays do."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x
