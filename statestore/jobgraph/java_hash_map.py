"""The iteration order of Java's ``HashMap``.

Flink keeps an operator's states in such maps and redistributes them in this order. It only
determines which subtask gets a remainder. From 64 buckets on, Java converts a bucket with 8 names
to a tree, which has another order. That order is not implemented.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from typing import TypeVar

from statestore.keys.hashing import key_hash

__all__ = ["T", "grouping_order", "stored_order"]


# A smaller HashMap doubles if a bucket is crowded; from this capacity on the bucket becomes a tree.
_TREES_FROM = 64


def stored_order(names: Iterable[str]) -> list[str]:
    """Return the iteration order of one old subtask's states: a HashMap filled by put."""
    stored = list(names)
    needed = -(-len(stored) * 4 // 3)
    buckets: list[list[str]] = [[] for _ in range(1 << (needed - 1).bit_length())]
    for name in stored:
        bucket = _bucket_of(name, buckets)
        bucket.append(name)
        if len(bucket) > 8 and len(buckets) < _TREES_FROM:
            buckets = _double_buckets(buckets)
    return list(chain.from_iterable(buckets))


def grouping_order(look_ups: Iterable[str]) -> list[str]:
    """Return the iteration order of the HashMap in which computeIfAbsent groups states.

    computeIfAbsent checks the size before it inserts, so the table grows one look-up late, even if
    that look-up adds nothing. Unlike put, it counts the new name as part of a crowded bucket, and
    inserts it at the bucket's front.
    """
    buckets: list[list[str]] = [[] for _ in range(16)]
    size = 0
    for name in look_ups:
        if size > len(buckets) * 3 // 4:
            buckets = _double_buckets(buckets)
        bucket = _bucket_of(name, buckets)
        if name in bucket:
            continue
        bucket.insert(0, name)
        size += 1
        if len(bucket) >= 8 and len(buckets) < _TREES_FROM:
            buckets = _double_buckets(buckets)
    return list(chain.from_iterable(buckets))


def _double_buckets(buckets: list[list[str]]) -> list[list[str]]:
    """Return the buckets of a table of twice the size; names of one bucket keep their order."""
    doubled: list[list[str]] = [[] for _ in range(2 * len(buckets))]
    for name in chain.from_iterable(buckets):
        _bucket_of(name, doubled).append(name)
    return doubled


def _bucket_of(name: str, buckets: list[list[str]]) -> list[str]:
    return buckets[_spread_hash(name) & (len(buckets) - 1)]


@lru_cache(maxsize=4096)
def _spread_hash(name: str) -> int:
    """Return HashMap's hash of a name: Java's string hash, with its upper half folded in."""
    code = key_hash(name, key_type="string", hash_scheme="java") & 0xFFFFFFFF
    return code ^ code >> 16


T = TypeVar("T")
