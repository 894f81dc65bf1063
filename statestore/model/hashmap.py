"""The order in which Java's ``HashMap`` gives back the names it holds.

Flink keeps the states of an operator in such maps and deals them in this order; it decides only
which subtask gets a remainder. From 64 buckets on Java makes a tree, in another order, of a bucket
with 8 names: not followed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

from statestore.keys.hashing import key_hash

__all__ = ["grouping_order", "stored_order"]

# A smaller HashMap doubles where a bucket is crowded; from this capacity on it makes a tree of it.
_TREES_FROM = 64


def stored_order(names: Iterable[str]) -> list[str]:
    """The iteration order of one old subtask's states: a HashMap sized for them, filled by put."""
    stored = list(names)
    needed = -(-len(stored) * 4 // 3)
    buckets: list[list[str]] = [[] for _ in range(1 << (needed - 1).bit_length())]
    for name in stored:
        bucket = _bucket_of(name, buckets)
        bucket.append(name)
        if len(bucket) > 8 and len(buckets) < _TREES_FROM:
            buckets = _doubled(buckets)
    return list(chain.from_iterable(buckets))


def grouping_order(look_ups: Iterable[str]) -> list[str]:
    """The iteration order of the HashMap in which states are grouped by computeIfAbsent.

    It checks the size on the way in, so the table grows one look-up late, even if that look-up
    adds nothing; and unlike put it counts the new name into a crowded bucket, at its front.
    """
    buckets: list[list[str]] = [[] for _ in range(16)]
    size = 0
    for name in look_ups:
        if size > len(buckets) * 3 // 4:
            buckets = _doubled(buckets)
        bucket = _bucket_of(name, buckets)
        if name in bucket:
            continue
        bucket.insert(0, name)
        size += 1
        if len(bucket) >= 8 and len(buckets) < _TREES_FROM:
            buckets = _doubled(buckets)
    return list(chain.from_iterable(buckets))


def _doubled(buckets: list[list[str]]) -> list[list[str]]:
    """The buckets of a table of twice the size; names of one bucket keep their order."""
    doubled: list[list[str]] = [[] for _ in range(2 * len(buckets))]
    for name in chain.from_iterable(buckets):
        _bucket_of(name, doubled).append(name)
    return doubled


def _bucket_of(name: str, buckets: list[list[str]]) -> list[str]:
    return buckets[_spread_hash(name) & (len(buckets) - 1)]


@lru_cache(maxsize=4096)
def _spread_hash(name: str) -> int:
    """HashMap's view of a name: Java's string hash with its upper half folded into the lower."""
    code = key_hash(name, key_type="string", hash_scheme="java") & 0xFFFFFFFF
    return code ^ code >> 16
