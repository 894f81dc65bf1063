"""Hashes of Scala 2.12: ``hashCode`` of a case class, and ``##`` of numbers.

A case class hashes its fields with MurmurHash3 (``ScalaRunTime._hashCode``). A number has the same
``##`` in all types that hold it: a ``Long`` of 1 is hashed like an ``Int`` and a ``Double`` of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.interop.flink.types.key_hash import (
    HashCodes,
    KeyHash,
    hash_column,
    plain_hash,
)
from statestore.keys.java_scalars import string_hash
from statestore.keys.murmur3 import absorb, finish

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
