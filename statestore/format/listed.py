"""Data files of a keyed state whose list stands in a document of its own, which manifests name.

A manifest names all files of a checkpoint, whatever changed since the one before. Where a state has
very many, their list is put once, under a name that no other attempt has, like a data file; each
checkpoint that takes the state over names it again, by its length and SHA-256. Who needs no more
than the numbers of files, rows and bytes never reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from statestore.format.digest import combine
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.lazy import LazySequence

__all__ = ["FileList", "ListedFiles", "Totals", "list_of", "listed_bytes", "read_all", "totals_of"]

_AT_ONCE = 8
_FILE_BYTES, _KEY_GROUP_BYTES = 250, 22


class Totals(NamedTuple):
    """What some data files are together; ``digest`` is the order-free one of their rows (I7)."""

    files: int
    rows: int
    size_bytes: int
    digest: int


@dataclass(frozen=True)
class FileList:
    """A list of data files: its name in the store, length and SHA-256, and what its files are."""

    path: str
    size_bytes: int
    sha256: str
    totals: Totals


class ListedFiles(LazySequence[KeyedStateHandle]):
    """The files of a list, which is read when one of them is asked for."""

    def __init__(
        self, file_list: FileList, read: Callable[[], tuple[KeyedStateHandle, ...]]
    ) -> None:
        """Take the list, and what reads it; that raises MalformedManifestError or StorageError."""
        super().__init__(file_list.totals.files, read)
        self.file_list, self.read = file_list, read

    @classmethod
    def of(cls, file_list: FileList, handles: Sequence[KeyedStateHandle]) -> ListedFiles:
        """Return the files of a list that was just written."""
        known = tuple(handles)
        found = cls(file_list, lambda: known)
        found._items = known
        return found

    def __eq__(self, other: object) -> bool:
        """Return whether these are the same files: by their list, or each by itself."""
        same = isinstance(other, ListedFiles) and self.file_list == other.file_list
        return same or super().__eq__(other)

    __hash__ = LazySequence.__hash__

    def __repr__(self) -> str:
        return f"ListedFiles({self.file_list!r})"


def read_all(listed: Iterable[Sequence[Handle]]) -> None:
    """Read the lists that were not yet, side by side; MalformedManifestError for one that cannot
    be.
    """
    unread = [one for one in listed if isinstance(one, ListedFiles) and not one.is_known]
    if len(unread) < 2:
        deque(map(tuple, unread), maxlen=0)
        return
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        deque(pool.map(tuple, unread), maxlen=0)


def totals_of(handles: Sequence[Handle]) -> Totals:
    """Return what some files are together; their list is not read for it."""
    if isinstance(handles, ListedFiles):
        return handles.file_list.totals
    return Totals(
        len(handles),
        sum(handle.rows for handle in handles),
        sum(handle.size_bytes for handle in handles),
        combine(handle.digest for handle in handles),
    )


def list_of(handles: Sequence[Handle]) -> str | None:
    """Return the name of the list that files are in, None of those that a manifest names itself."""
    return handles.file_list.path if isinstance(handles, ListedFiles) else None


def listed_bytes(handles: Sequence[KeyedStateHandle]) -> int:
    """Return about how many bytes a list of these files has."""
    key_groups = sum(len(handle.index) for handle in handles if handle.index is not None)
    return _FILE_BYTES * len(handles) + _KEY_GROUP_BYTES * key_groups
