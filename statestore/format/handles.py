"""Where the bytes of a state lie: one value per data file, as the manifest names it.

A plan reads and makes these by the hundred thousand. So most are structs, which are made quickly
and which no collection of garbage looks at (they refer to nothing that refers to them), and
dataclasses to whoever replaces a member of one.

Paths are relative to the table's folder, so a store can be moved or copied as a whole. A file is
referred to by its exact length and the SHA-256 of its bytes, never by name or time alone.

On a restore a handle is *cut* to the key groups that a subtask owns, as Flink's
``KeyGroupsStateHandle.getIntersection`` cuts the offsets of one; a handle that does not know where
its key groups begin is passed on whole, as ``IncrementalRemoteKeyedStateHandle`` is, and its reader
skips what is not its own.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from struct import unpack_from
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from statestore.keys.groups import MAX_PARALLELISM, KeyGroupAssignment, KeyGroupRange

__all__ = [
    "FileRanges",
    "Footer",
    "GroupIndex",
    "Handle",
    "KeyedStateHandle",
    "KeyedStateSlice",
    "OperatorStateHandle",
    "assign",
    "file_ranges",
    "reassign",
]

_U64 = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Footer:
    """The end of a data file, which says where everything else lies: its bytes, Parquet's length
    and mark behind it included, and the first 32 hex digits of their SHA-256.
    """

    size_bytes: int
    sha256: str


@dataclass(frozen=True, init=False, repr=False, eq=False, match_args=False)
class GroupIndex(Struct, frozen=True, gc=False):
    """Rows and digest of each key group of a file, in order: 64-bit little-endian integers.

    Packed, because a state may have 32,768 key groups and a checkpoint hundreds of states.
    """

    rows: bytes
    digests: bytes

    @classmethod
    def of(cls, rows: Iterable[int], digests: Iterable[int]) -> GroupIndex:
        """Return the index of these numbers, each in 0..2**64 - 1."""
        return cls(_packed(rows), _packed(digests))

    def __len__(self) -> int:
        """Return the number of key groups."""
        return len(self.rows) // 8

    def rows_in(self, first: int, stop: int) -> int:
        """Return the rows of the key groups from place ``first`` up to but not ``stop``."""
        return sum(unpack_from(f"<{stop - first}Q", self.rows, 8 * first))

    def digest_in(self, first: int, stop: int) -> int:
        """Return the digest of the rows of these key groups."""
        return _sum(self.digests[8 * first : 8 * stop]) & _U64

    def row_counts(self) -> Sequence[int]:
        """Return the rows of every key group."""
        return _unpacked(self.rows)


@dataclass(frozen=True, init=False, repr=False, eq=False, match_args=False)
class KeyedStateHandle(Struct, frozen=True, eq=False, gc=False):
    """A data file of a keyed state: the rows of ``key_groups`` (closed range), sorted by key group
    and entry.

    ``index`` says what lies in which key group; a file of one key group needs none. ``host`` is the
    name of the machine whose local cache got a copy when the file was written, empty when there was
    no cache. ``footer`` is None of a file that an older release wrote. ``statistics`` are for a
    Delta log, from who has just written the file; no manifest has them, and two handles that differ
    in nothing else are equal.
    """

    path: str
    key_groups: KeyGroupRange
    rows: int
    size_bytes: int
    row_groups: int
    digest: int
    sha256: str
    host: str = ""
    index: GroupIndex | None = None
    footer: Footer | None = None
    statistics: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyedStateHandle) and self._stored() == other._stored()

    def __hash__(self) -> int:
        return hash(self._stored())

    def _stored(self) -> tuple[Any, ...]:
        """Return what a manifest has of it."""
        return astuple(self)[:-1]

    def cut(self, key_groups: KeyGroupRange) -> KeyedStateSlice | None:
        """Return the part that belongs to ``key_groups``, None when there is none.

        Without an index that is the whole file, whose reader skips the other key groups.
        """
        common = self.key_groups.intersect(key_groups)
        return None if common is None else self.part(common)

    def part(self, key_groups: KeyGroupRange) -> KeyedStateSlice:
        """Return the part that has ``key_groups``, all of which are the file's own."""
        own, index = self.key_groups, self.index
        if index is None or key_groups is own:
            return KeyedStateSlice(self, own, self.rows)
        first, stop = key_groups.first - own.first, key_groups.last + 1 - own.first
        return KeyedStateSlice(self, key_groups, index.rows_in(first, stop))

    def group_bytes(self) -> list[int]:
        """Return each key group's share of the file's bytes; without an index each has it all."""
        if self.index is None:
            return [self.size_bytes] * len(self.key_groups)
        size_bytes, rows = self.size_bytes, max(self.rows, 1)
        return [-(-size_bytes * own // rows) for own in self.index.row_counts()]

    def group_rows(self) -> Sequence[int]:
        """Return the rows of each key group; without an index the first one has them all."""
        if self.index is None:
            return [self.rows, *[0] * (len(self.key_groups) - 1)]
        return self.index.row_counts()


Cuts = tuple[tuple[int, KeyGroupRange], ...]


class FileRanges:
    """The key groups of some files, in ascending order.

    The states of a job are cut into files alike, so :func:`file_ranges` makes it once for all of
    them. ``cuts(first, last)`` returns which files have some of these key groups, by their place,
    and which of them each has; it looks once for what a subtask reads.
    """

    def __init__(self, firsts: tuple[int, ...], lasts: tuple[int, ...]) -> None:
        """Take the first and the last key group of each file."""
        self.key_groups = tuple(map(KeyGroupRange, firsts, lasts))
        found = partial(_cuts, self.key_groups, array("H", lasts))
        # Of these files alone: what was found goes when nobody has them any more.
        self.cuts = lru_cache(maxsize=MAX_PARALLELISM)(found)

    def __reduce__(self) -> tuple[Any, ...]:
        """Of copies too there is one for all states: each process has its own."""
        firsts = tuple([one.first for one in self.key_groups])
        return file_ranges, (firsts, tuple([one.last for one in self.key_groups]))


# The states of a job are cut in few ways, with those of their layers.
@lru_cache(maxsize=64)
def file_ranges(firsts: tuple[int, ...], lasts: tuple[int, ...]) -> FileRanges:
    """Return the key groups of files, by the first and the last one of each."""
    return FileRanges(firsts, lasts)


def _cuts(key_groups: Sequence[KeyGroupRange], lasts: array[int], first: int, last: int) -> Cuts:
    wanted, found = KeyGroupRange(first, last), []
    for at in range(bisect_left(lasts, first), len(lasts)):
        common = key_groups[at].intersect(wanted)
        if common is None:
            break
        found.append((at, common))
    return tuple(found)


class KeyedStateSlice(Struct, frozen=True, gc=False):
    """A part of a data file: the ``rows`` rows of ``key_groups``, which lie together.

    A plan makes, and asks, hundreds of thousands: hence no call more than there must be.
    """

    handle: KeyedStateHandle
    key_groups: KeyGroupRange
    rows: int

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the file."""
        return self.key_groups == self.handle.key_groups

    @property
    def first_row(self) -> int:
        """The place of its first row in the file."""
        index = self.handle.index
        return 0 if index is None else index.rows_in(0, self._first)

    @property
    def digest(self) -> int:
        """The digest of its rows."""
        index = self.handle.index
        return self.handle.digest if index is None else index.digest_in(self._first, self._stop)

    @property
    def size_bytes(self) -> int:
        """Its share of the file's bytes, by rows; of all of them its length."""
        handle = self.handle
        return -(-handle.size_bytes * self.rows // (handle.rows or 1))

    @property
    def row_groups(self) -> int:
        """How many row groups hold some of its rows: of a file that is cut its share, and the one
        that is cut as well.
        """
        handle = self.handle
        if self.rows == handle.rows:
            return handle.row_groups
        share = handle.row_groups * self.rows // handle.rows + 1
        return share if share < handle.row_groups else handle.row_groups

    @property
    def _first(self) -> int:
        return self.key_groups.first - self.handle.key_groups.first

    @property
    def _stop(self) -> int:
        return self.key_groups.last + 1 - self.handle.key_groups.first


@dataclass(frozen=True, slots=True)
class OperatorStateHandle:
    """The data file of an operator state: elements ordered by old subtask and position."""

    path: str
    rows: int
    size_bytes: int
    row_groups: int
    digest: int
    sha256: str
    footer: Footer | None = None
    statistics: str = field(default="", compare=False, repr=False)


Handle = KeyedStateHandle | OperatorStateHandle


def assign(
    handles: Iterable[KeyedStateHandle], key_groups: KeyGroupRange
) -> tuple[KeyedStateSlice, ...]:
    """Return what a subtask that owns ``key_groups`` reads of the handles, in their order."""
    cut = [handle.cut(key_groups) for handle in handles]
    return tuple([part for part in cut if part is not None])


def reassign(
    old: Sequence[Sequence[KeyedStateHandle]], max_parallelism: int, parallelism: int
) -> tuple[tuple[KeyedStateSlice, ...], ...]:
    """Return, for each new subtask, what it reads of the handles of the old ones, in their order.

    Follows Flink's ``StateAssignmentOperation.reAssignSubKeyedStates``: at the old parallelism
    every subtask gets its own handles as they are, whatever their ranges. A store does not need
    that case, because its subtasks write the ranges that they own. Raises ParallelismError.
    """
    assignment = KeyGroupAssignment(max_parallelism=max_parallelism, parallelism=parallelism)
    if len(old) == parallelism:
        return tuple(tuple(KeyedStateSlice(h, h.key_groups, h.rows) for h in own) for own in old)
    handles = [handle for own in old for handle in own]
    return tuple(assign(handles, key_groups) for key_groups in assignment.ranges())


def _sum(raw: bytes) -> int:
    """Return the sum of packed numbers, faster than one by one: as a single number of them all,
    with as many bits to spare beside each, one half of which is added to the other.
    """
    every_other, halves = _halves(len(raw) // 8)
    number = int.from_bytes(raw, "little")
    number = (number & every_other) + (number >> 64 & every_other)
    for bits, low in halves:
        number = (number >> bits) + (number & low)
    return number


@lru_cache(maxsize=16)
def _halves(count: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the mask of every other of so many numbers, and how often what is left is halved: by
    how many bits, and which stay.
    """
    left = (count + 1) // 2
    every_other = int.from_bytes((b"\xff" * 8 + bytes(8)) * left, "little")
    halves = []
    while left > 1:
        left = (left + 1) // 2
        halves.append((128 * left, (1 << 128 * left) - 1))
    return every_other, halves


def _packed(numbers: Iterable[int]) -> bytes:
    packed = array("Q", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpacked(raw: bytes) -> Sequence[int]:
    numbers = array("Q")
    numbers.frombytes(raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
