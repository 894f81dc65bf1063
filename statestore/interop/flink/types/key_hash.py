"""Hash the keys of a Flink type: by a type that the store can hash, or as Scala 2.12 does.

A case class of Scala hashes its fields with MurmurHash3 (``ScalaRunTime._hashCode``). A number has
the same ``##`` in all types that hold it: a ``Long`` of 1 is hashed like an ``Int`` and a
``Double`` of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.keys.arrow import key_groups, key_groups_of_hashes, key_hashes
from statestore.keys.arrow_java import absorb, finish
from statestore.keys.java import string_hash

GroupFunction: TypeAlias = Callable[[int], npt.NDArray[np.int32]]
"""A function from the max parallelism to key groups."""

HashCodes: TypeAlias = npt.NDArray[np.int32]
"""Java's ``hashCode`` of each value."""


@dataclass(frozen=True, slots=True)
class KeyHash:
    """The hashed type of keys, and a function that converts their column to it.

    ``is_column`` is true if a column of a store can have the hashed type. ``is_plain`` is true if
    ``convert`` returns the column itself.
    """

    key_type: str
    convert: Callable[[pa.Array], pa.Array]
    is_column: bool = True
    is_plain: bool = False


def plain_hash(key_type: str) -> KeyHash:
    """Return the hash of keys whose column already has the hashed type."""
    return KeyHash(key_type, lambda column: column, is_plain=True)


def column_groups(key_hash: KeyHash, column: pa.Array) -> GroupFunction:
    """Return the key groups of the keys of a column."""
    converted = key_hash.convert(column)
    return lambda most: key_groups([converted], max_parallelism=most, key_types=[key_hash.key_type])


def groups_of_hashes(hashes: HashCodes) -> GroupFunction:
    """Return the key groups of keys with the given hashes."""
    return lambda most: key_groups_of_hashes(hashes, most)


def hash_column(key_hash: KeyHash, column: pa.Array) -> HashCodes:
    """Return the hash of each value of a column; 0 for a null."""

    def hash_known(known: pa.Array) -> HashCodes:
        return key_hashes([key_hash.convert(known)], key_types=[key_hash.key_type])

    return hash_valid(column, hash_known)


def hash_valid(column: pa.Array, hash_known: Callable[[pa.Array], HashCodes]) -> HashCodes:
    """Apply a hash function to the values of a column that are not null; a null has the hash 0."""
    hashes = np.zeros(len(column), np.int32)
    is_valid = column.is_valid()
    hashes[is_valid.to_numpy(zero_copy_only=False)] = hash_known(column.filter(is_valid))
    return hashes


def struct_hash(name: str, parts: Sequence[KeyHash]) -> KeyHash:
    """Return the hash of a tuple or row whose fields ``f0``, ``f1``, … have the given hashes."""
    names = [f"f{index}" for index in range(len(parts))]

    def convert(column: pa.Array) -> pa.Array:
        fields = zip(parts, names, strict=True)
        columns = [part.convert(column.field(field)) for part, field in fields]
        return pa.StructArray.from_arrays(columns, names)

    key_type = f"{name}<{', '.join(part.key_type for part in parts)}>"
    return KeyHash(key_type, convert, is_column=all(part.is_column for part in parts))


NONE_HASH = string_hash("None")
"""The hash of the empty ``Option``."""

_SEED = np.uint32(0xCAFEBABE)
_LEAST_LONG, _END_OF_LONG = -(2.0**63), 2.0**63


def hash_product(fields: Sequence[HashCodes]) -> HashCodes:
    """Return the hashes of values of a case class, given the hashes of each field."""
    state = np.full(len(fields[0]), _SEED)
    for field in fields:
        state = absorb(state, field.astype(np.int32).view(np.uint32))
    return finish(state ^ np.uint32(len(fields))).view(np.int32)


def _hash_longs(column: pa.Array) -> HashCodes:
    """Hash longs (``Statics.longHash``): an ``Int`` if the value is one."""
    return _hash_whole(column.to_numpy())


def _hash_whole(numbers: npt.NDArray[np.int64]) -> HashCodes:
    small = numbers.astype(np.int32)
    java = hash_column(plain_hash("Long"), pa.array(numbers, pa.int64()))
    return np.where(small == numbers, small, java)


def _make_float_hash(key_hash: KeyHash) -> Callable[[pa.Array], HashCodes]:
    """Return a function for ``Statics.doubleHash`` or ``floatHash``.

    A whole number is hashed as a ``Long``, and a ``Double`` that is a ``Float`` as a ``Float``.
    """

    def hash_floats(column: pa.Array) -> HashCodes:
        numbers = column.to_numpy()
        codes = hash_column(key_hash, column)
        with np.errstate(over="ignore", invalid="ignore"):
            floats = numbers.astype(np.float32)
            as_float = hash_column(plain_hash("Float"), pa.array(floats, pa.float32()))
            codes = np.where(floats == numbers, as_float, codes)
            # Java's cast to a long gives the greatest long for 2 ** 63, which is equal to it.
            is_long = (numbers >= _LEAST_LONG) & (numbers <= _END_OF_LONG)
            is_greatest = numbers == _END_OF_LONG
            whole = np.where(is_long & ~is_greatest, numbers, 0).astype(np.int64)
            whole[is_greatest] = np.iinfo(np.int64).max
            is_whole = is_long & (is_greatest | (whole == numbers))
        return np.where(is_whole, _hash_whole(whole), codes)

    return hash_floats


SCALA_NUMBERS: Mapping[str, Callable[[pa.Array], HashCodes]] = {
    "Long": _hash_longs,
    "Float": _make_float_hash(plain_hash("Float")),
    "Double": _make_float_hash(plain_hash("Double")),
}
"""The functions for ``##`` of the types in which it differs from ``hashCode``."""
