"""Handles: the data files of a state, one value per file, and long lists of them.

A plan reads and creates hundreds of thousands of them. So most are structs: they are created
quickly, and Python's garbage collector skips them (they cannot be part of a reference cycle). They
are also dataclasses, so that ``replace`` works.

Paths are relative to the table's folder, so a store can be moved or copied as a whole. A file is
identified by its exact length and the SHA-256 of its bytes, never by name or time alone.

On a restore a handle is *cut* to the key groups that a subtask owns, as Flink's
``KeyGroupsStateHandle.getIntersection`` cuts the offsets of a handle. A handle without an index of
its key groups is used as a whole, like an ``IncrementalRemoteKeyedStateHandle``, and its reader
skips the other key groups.

A manifest names all files of a checkpoint, even if few changed since the previous one. If a state
has very many files, their list is a separate document: it is written once, like a data file, under
a name that no other attempt uses, and is read on first access. Each checkpoint that carries the
state references the same list, by its length and SHA-256. A reader that needs only the totals never
reads the list.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from struct import unpack_from
from threading import Lock
from typing import Any, NamedTuple, TypeVar, overload

from msgspec import Struct
from msgspec.structs import astuple

from statestore.format.digest import combine
from statestore.keys.groups import MAX_PARALLELISM, KeyGroupAssignment, KeyGroupRange

_U64 = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a data file, which locates everything else in it.

    ``size_bytes`` includes Parquet's length field and magic bytes. ``sha256`` has the first 32 hex
    digits of the footer's SHA-256.
    """

    size_bytes: int
    sha256: str


@dataclass(frozen=True, init=False, repr=False, eq=False, match_args=False)
class GroupIndex(Struct, frozen=True, gc=False):
    """Rows and digest of each key group of a file, in order, as 64-bit little-endian integers.

    They are packed, because a state may have 32,768 key groups and a checkpoint hundreds of states.
    """

    rows: bytes
    digests: bytes

    @classmethod
    def of(cls, rows: Iterable[int], digests: Iterable[int]) -> GroupIndex:
        """Create an index from the rows and digests of all key groups, each in 0..2**64 - 1."""
        return cls(_pack(rows), _pack(digests))

    def __len__(self) -> int:
        """Return the number of key groups."""
        return len(self.rows) // 8

    def rows_in(self, first: int, stop: int) -> int:
        """Return the rows of the key groups from index ``first`` to ``stop`` - 1."""
        return sum(unpack_from(f"<{stop - first}Q", self.rows, 8 * first))

    def digest_in(self, first: int, stop: int) -> int:
        """Return the digest of the rows of the key groups from index ``first`` to ``stop`` - 1."""
        return _sum(self.digests[8 * first : 8 * stop]) & _U64

    def row_counts(self) -> Sequence[int]:
        """Return the rows of every key group."""
        return _unpack(self.rows)


@dataclass(frozen=True, init=False, repr=False, eq=False, match_args=False)
class KeyedStateHandle(Struct, frozen=True, eq=False, gc=False):
    """A data file of a keyed state: the rows of ``key_groups``, sorted by key group and entry.

    ``index`` has the figures of each key group; a file of one key group needs none. ``host`` is the
    machine whose local cache got a copy when the file was written, empty without a cache.
    ``footer`` is None for a file that an older release wrote. ``statistics`` are for a Delta log.
    Only the process that wrote the file has them: they are not in a manifest, and are ignored when
    handles are compared.
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
        """Return the members that a manifest stores."""
        return astuple(self)[:-1]

    def cut(self, key_groups: KeyGroupRange) -> KeyedStateSlice | None:
        """Return the part that belongs to ``key_groups``, None without a common key group.

        Without an index that is the whole file, and its reader skips the other key groups.
        """
        common = self.key_groups.intersect(key_groups)
        return None if common is None else self.part(common)

    def part(self, key_groups: KeyGroupRange) -> KeyedStateSlice:
        """Return the part with ``key_groups``, all of which must be in the file."""
        own, index = self.key_groups, self.index
        if index is None or key_groups is own:
            return KeyedStateSlice(self, own, self.rows)
        first, stop = key_groups.first - own.first, key_groups.last + 1 - own.first
        return KeyedStateSlice(self, key_groups, index.rows_in(first, stop))

    def group_bytes(self) -> list[int]:
        """Return each key group's share of the file's bytes; all bytes without an index."""
        if self.index is None:
            return [self.size_bytes] * len(self.key_groups)
        size_bytes, rows = self.size_bytes, max(self.rows, 1)
        return [-(-size_bytes * own // rows) for own in self.index.row_counts()]

    def group_rows(self) -> Sequence[int]:
        """Return the rows of each key group; without an index, the first one has them all."""
        if self.index is None:
            return [self.rows, *[0] * (len(self.key_groups) - 1)]
        return self.index.row_counts()


Cuts = tuple[tuple[int, KeyGroupRange], ...]


class FileRanges:
    """The key groups of some files, in ascending order.

    The states of a job are usually cut into files in the same way, so :func:`file_ranges` shares
    one instance among them. ``cuts(first, last)`` returns the indexes of the files with some of
    these key groups, and the common key groups of each. Its results are cached.
    """

    def __init__(self, firsts: tuple[int, ...], lasts: tuple[int, ...]) -> None:
        """Take the first and the last key group of each file."""
        self.key_groups = tuple(map(KeyGroupRange, firsts, lasts))
        cuts = partial(_cuts, self.key_groups, array("H", lasts))
        # The cache belongs to this instance, so it is freed together with it.
        self.cuts = lru_cache(maxsize=MAX_PARALLELISM)(cuts)

    def __reduce__(self) -> tuple[Any, ...]:
        """Restore through :func:`file_ranges`, so that each process shares one instance."""
        firsts = tuple([key_group.first for key_group in self.key_groups])
        return file_ranges, (firsts, tuple([key_group.last for key_group in self.key_groups]))


# A job's states and their layers are cut in only a few different ways.
@lru_cache(maxsize=64)
def file_ranges(firsts: tuple[int, ...], lasts: tuple[int, ...]) -> FileRanges:
    """Return the shared ranges of files, given the first and the last key group of each."""
    return FileRanges(firsts, lasts)


def _cuts(key_groups: Sequence[KeyGroupRange], lasts: array[int], first: int, last: int) -> Cuts:
    wanted, cuts = KeyGroupRange(first, last), []
    for index in range(bisect_left(lasts, first), len(lasts)):
        common = key_groups[index].intersect(wanted)
        if common is None:
            break
        cuts.append((index, common))
    return tuple(cuts)


class KeyedStateSlice(Struct, frozen=True, gc=False):
    """A part of a data file: the ``rows`` rows of ``key_groups``, which are contiguous.

    A plan creates and queries hundreds of thousands of them, so the code avoids function calls.
    """

    handle: KeyedStateHandle
    key_groups: KeyGroupRange
    rows: int

    @property
    def is_whole(self) -> bool:
        """True if it is the whole file."""
        return self.key_groups == self.handle.key_groups

    @property
    def first_row(self) -> int:
        """The index of its first row in the file."""
        index = self.handle.index
        return 0 if index is None else index.rows_in(0, self._first)

    @property
    def digest(self) -> int:
        """The digest of its rows."""
        index = self.handle.index
        return self.handle.digest if index is None else index.digest_in(self._first, self._stop)

    @property
    def size_bytes(self) -> int:
        """Its share of the file's bytes by rows; the file's length for the whole file."""
        handle = self.handle
        return -(-handle.size_bytes * self.rows // (handle.rows or 1))

    @property
    def row_groups(self) -> int:
        """The number of row groups with some of its rows.

        For a part of a file it is the proportional share, plus one for a row group that is cut.
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
    """Return the parts of the handles that the owner of ``key_groups`` reads, in their order."""
    cut = [handle.cut(key_groups) for handle in handles]
    return tuple([part for part in cut if part is not None])


def reassign(
    old: Sequence[Sequence[KeyedStateHandle]], max_parallelism: int, parallelism: int
) -> tuple[tuple[KeyedStateSlice, ...], ...]:
    """Return, for each new subtask, the parts of the old subtasks' handles to read, in their order.

    It follows Flink's ``StateAssignmentOperation.reAssignSubKeyedStates``: at an unchanged
    parallelism every subtask keeps its own handles, whatever their ranges. A store does not need
    that case, because its subtasks write the ranges that they own. Raises ParallelismError.
    """
    assignment = KeyGroupAssignment(max_parallelism=max_parallelism, parallelism=parallelism)
    if len(old) == parallelism:
        return tuple(tuple(KeyedStateSlice(h, h.key_groups, h.rows) for h in own) for own in old)
    handles = [handle for own in old for handle in own]
    return tuple(assign(handles, key_groups) for key_groups in assignment.ranges())


def _sum(raw: bytes) -> int:
    """Return the sum of packed numbers.

    It is faster than a loop: all numbers form one large integer with spare bits between them, and
    one half of it is repeatedly added to the other half.
    """
    every_other, halves = _halves(len(raw) // 8)
    number = int.from_bytes(raw, "little")
    number = (number & every_other) + (number >> 64 & every_other)
    for bits, low in halves:
        number = (number >> bits) + (number & low)
    return number


@lru_cache(maxsize=16)
def _halves(count: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the mask of every other packed number, and the steps that add the upper half to the
    lower.

    Each step is the number of bits to shift by, and the mask of the bits that stay.
    """
    left = (count + 1) // 2
    every_other = int.from_bytes((b"\xff" * 8 + bytes(8)) * left, "little")
    halves = []
    while left > 1:
        left = (left + 1) // 2
        halves.append((128 * left, (1 << 128 * left) - 1))
    return every_other, halves


def _pack(numbers: Iterable[int]) -> bytes:
    packed = array("Q", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack(raw: bytes) -> Sequence[int]:
    numbers = array("Q")
    numbers.frombytes(raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


T = TypeVar("T", covariant=True)


class LazySequence(Sequence[T]):
    """Items that are loaded together, once, and then cached; thread-safe.

    Loading errors are raised by the first operation that needs an item: iteration, comparison,
    hashing or pickling. Pickling converts it to a tuple.
    """

    def __init__(self, length: int, find: Callable[[], tuple[T, ...]]) -> None:
        """Take the number of items, and the function that loads them."""
        self._length, self._find = length, find
        self._items: tuple[T, ...] | None = None
        self._finding = Lock()

    @property
    def is_known(self) -> bool:
        """True if the items are already loaded."""
        return self._items is not None

    @property
    def items(self) -> tuple[T, ...]:
        """The items."""
        if self._items is not None:  # a fast path: a plan calls this hundreds of thousands of times
            return self._items
        # functools.cached_property has one lock for all instances in Python 3.11. Loading may read
        # a file, and other instances must not wait for that, so each instance has its own lock.
        with self._finding:
            if self._items is None:
                self._items = self._find()
            return self._items

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self.items[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | LazySequence) and self.items == tuple(other)

    def __hash__(self) -> int:
        return hash(self.items)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._length})"

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.items,)


_AT_ONCE = 8
_FILE_BYTES, _KEY_GROUP_BYTES = 250, 22


class Totals(NamedTuple):
    """The totals of some data files; ``digest`` is independent of their order (I7)."""

    files: int
    rows: int
    size_bytes: int
    digest: int


@dataclass(frozen=True)
class FileList:
    """A list of data files: its name in the store, length and SHA-256, and its files' totals."""

    path: str
    size_bytes: int
    sha256: str
    totals: Totals


class ListedFiles(LazySequence[KeyedStateHandle]):
    """The files of a separate list, which is read on the first access to one of them."""

    def __init__(
        self, file_list: FileList, read: Callable[[], tuple[KeyedStateHandle, ...]]
    ) -> None:
        """Take the list and its reader, which raises MalformedManifestError or StorageError."""
        super().__init__(file_list.totals.files, read)
        self.file_list, self.read = file_list, read

    @classmethod
    def of(cls, file_list: FileList, handles: Sequence[KeyedStateHandle]) -> ListedFiles:
        """Return the files of a list that was just written."""
        known = tuple(handles)
        listed = cls(file_list, lambda: known)
        listed._items = known
        return listed

    def __eq__(self, other: object) -> bool:
        """Return whether both contain the same files; files of the same list are not compared."""
        same = isinstance(other, ListedFiles) and self.file_list == other.file_list
        return same or super().__eq__(other)

    __hash__ = LazySequence.__hash__

    def __repr__(self) -> str:
        return f"ListedFiles({self.file_list!r})"


def read_all(listed: Iterable[Sequence[Handle]]) -> None:
    """Read the lists that are not loaded yet, in parallel.

    Raises MalformedManifestError for a list that cannot be read.
    """
    unread = [files for files in listed if isinstance(files, ListedFiles) and not files.is_known]
    if len(unread) < 2:
        deque(map(tuple, unread), maxlen=0)
        return
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        deque(pool.map(tuple, unread), maxlen=0)


def totals_of(handles: Sequence[Handle]) -> Totals:
    """Return the totals of some files; a separate list is not read."""
    if isinstance(handles, ListedFiles):
        return handles.file_list.totals
    return Totals(
        len(handles),
        sum([handle.rows for handle in handles]),
        sum([handle.size_bytes for handle in handles]),
        combine([handle.digest for handle in handles]),
    )


def list_of(handles: Sequence[Handle]) -> str | None:
    """Return the name of the files' separate list; None if the manifest itself lists them."""
    return handles.file_list.path if isinstance(handles, ListedFiles) else None


def listed_bytes(handles: Sequence[KeyedStateHandle]) -> int:
    """Return the approximate size in bytes of a list of these files."""
    key_groups = sum(len(handle.index) for handle in handles if handle.index is not None)
    return _FILE_BYTES * len(handles) + _KEY_GROUP_BYTES * key_groups
