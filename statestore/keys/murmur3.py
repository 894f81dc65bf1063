"""Murmur3-x86-32 over arrays: one step per 32-bit word, for all rows together.

The algorithm is Austin Appleby's, in the public domain. The caller supplies the seed, and mixes
in the length in bytes before it calls :func:`finish`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Hashes", "absorb", "finish"]


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
