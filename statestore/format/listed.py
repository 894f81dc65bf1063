"""Data files of a keyed state whose list is a separate document, which is read on first access.

A manifest names all files of a checkpoint, even if few changed since the previous one. If a state
has very many files, their list is written once, like a data file, under a name that no other
attempt uses. Each checkpoint that carries the state references the same list, by its length and
SHA-256. A reader that needs only the totals never reads the list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple, TypeVar, overload

from statestore.format.digest import combine
from statestore.format.handles import Handle, KeyedStateHandle

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
        sum(handle.rows for handle in handles),
        sum(handle.size_bytes for handle in handles),
        combine([handle.digest for handle in handles]),
    )


def list_of(handles: Sequence[Handle]) -> str | None:
    """Return the name of the files' separate list; None if the manifest itself lists them."""
    return handles.file_list.path if isinstance(handles, ListedFiles) else None


def listed_bytes(handles: Sequence[KeyedStateHandle]) -> int:
    """Return the approximate size in bytes of a list of these files."""
    key_groups = sum(len(handle.index) for handle in handles if handle.index is not None)
    return _FILE_BYTES * len(handles) + _KEY_GROUP_BYTES * key_groups
