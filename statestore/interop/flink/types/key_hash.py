"""Hash the keys of a Flink type, as values of a type that the store can hash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.keys.arrow import key_groups, key_groups_of_hashes, key_hashes

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
