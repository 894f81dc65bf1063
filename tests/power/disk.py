"""What a disk may have after a power failure, computed from a log of calls.

Two kinds of file systems are modelled.

* The *ordered* one journals all changes of names in their order. An fsync of anything makes all
  earlier ones durable. Data of a file that was not synced may be there up to any byte.
* The *weak* one promises what POSIX does. An fsync of a file makes its bytes durable, and an fsync
  of a folder its names. Any other change may be there without the earlier ones. Parts of a write
  may be zeros or missing, and a rename may come before the data of its file. Only a single change
  of one folder is atomic.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tests.power.recording import Record, Recording

__all__ = ["Disk", "Image", "Tree", "UnknownCallError", "contents_of", "hash_of"]

_PAGE = 4096

Tree = dict[str, "bytes | None"]
"""The files of a folder by their path, with their bytes; None for a folder."""


class UnknownCallError(Exception):
    """The program made a call that the model does not describe."""


@dataclass
class _File:
    """A file: the bytes in memory, the durable ones, and the changes in between."""

    now: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: a new length

    def change(self, offset: int, data: bytes | None) -> None:
        _apply(self.now, offset, data)
        self.pending.append((offset, data))

    def sync(self) -> None:
        if self.pending:
            self.durable = bytes(self.now)
            self.pending.clear()


_Names = tuple[tuple[str, "int | None"], ...]  # new values of names; None removes a name


@dataclass
class _Folder:
    """A folder: the names in memory, the durable ones, and the numbered changes in between."""

    now: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[tuple[int, _Names]] = field(default_factory=list)

    def change(self, number: int, names: _Names) -> None:
        _rename(self.now, names)
        self.pending.append((number, names))

    def sync(self) -> None:
        self.durable = dict(self.now)
        self.pending.clear()


class Disk:
    """The state of a disk at one place in a log; ``play`` moves on by one record."""

    def __init__(self, recording: Recording) -> None:
        """Begin with an empty folder, whose own name is durable."""
        self._root = 1
        self._ids = {recording.root_inode: self._root, 0: 0}
        self._created = self._root
        self._files: dict[int, _File] = {}
        self._folders: dict[int, _Folder] = {self._root: _Folder()}
        self._numbers = 0
        self._journaled = 0  # the number of the last change of names that any fsync has committed

    def play(self, record: Record) -> bool:
        """Apply a record; return whether it can have changed the disk."""
        kind = record.kind
        if kind == "M":
            return False
        if kind == "?":
            raise UnknownCallError(f"the program called {record.name}")
        record = self._identified(record)
        if kind == "W":
            self._files[record.inode].change(record.offset, record.data)
        elif kind == "T":
            self._files[record.inode].change(record.offset, None)
        elif kind in "FS":
            self._sync(record)
        else:
            self._change_names(record)
        return True

    def _identified(self, record: Record) -> Record:
        """Return a record with ids instead of inodes: a deleted file's inode is used again."""
        if record.kind in "CD":
            self._created += 1
            self._ids[record.inode] = self._created
        inodes = record.inode, record.parent, record.to_parent
        inode, parent, to_parent = (self._ids[number] for number in inodes)
        return replace(record, inode=inode, parent=parent, to_parent=to_parent)

    def _sync(self, record: Record) -> None:
        items: list[_File | _Folder] = [*self._files.values(), *self._folders.values()]
        if record.kind == "F":
            inode = record.inode
            items = [self._folders.get(inode) or self._files[inode]]
        for item in items:
            item.sync()
        self._journaled = self._numbers

    def _change_names(self, record: Record) -> None:
        self._numbers += 1
        number, kind, parent = self._numbers, record.kind, record.parent
        if kind in "CD":
            if kind == "C":
                self._files[record.inode] = _File()
            else:
                self._folders[record.inode] = _Folder()
            if parent:  # a file without a name gets one with a link
                self._folders[parent].change(number, ((record.name, record.inode),))
        elif kind == "L":
            self._folders[record.to_parent].change(number, ((record.to_name, record.inode),))
        elif kind == "U":
            self._folders[parent].change(number, ((record.name, None),))
        elif kind == "R":
            self._rename(record, number)
        else:
            raise UnknownCallError(f"the log has a record of the unknown kind {kind!r}")

    def _rename(self, record: Record, number: int) -> None:
        source, target = self._folders[record.parent], self._folders[record.to_parent]
        inode = source.now[record.name]
        if target.now.get(record.to_name) == inode:
            return  # two names of one file: POSIX does nothing
        if source is target:
            source.change(number, ((record.name, None), (record.to_name, inode)))
        else:
            target.change(number, ((record.to_name, inode),))
            source.change(number, ((record.name, None),))

    # --- what may be left -------------------------------------------------------------------------

    def all_kept(self) -> Tree:
        """Return the files as programs see them: only processes have died."""
        return self._tree(lambda folder: folder.now, lambda file: bytes(file.now))

    def all_lost(self) -> Tree:
        """Return only what is durable."""
        return self._tree(lambda folder: folder.durable, lambda file: file.durable)

    def names_only(self) -> Tree:
        """Return all names, of files that have only their durable bytes."""
        return self._tree(lambda folder: folder.now, lambda file: file.durable)

    def journals(self) -> Iterator[Tree]:
        """Yield what an ordered file system may leave, for each end of its journal.

        The changes of names up to this end are kept. The data that was not synced is either kept
        or lost.
        """
        for last in range(self._journaled, self._numbers + 1):
            yield self._tree(_journal(last), lambda file: bytes(file.now))
            yield self._tree(_journal(last), lambda file: file.durable)

    def ordered(self, chance: Random) -> Tree:
        """Draw what an ordered file system may leave."""
        last = chance.randint(self._journaled, self._numbers)
        return self._tree(_journal(last), lambda file: _prefix(file, chance))

    def weak(self, chance: Random) -> Tree:
        """Draw what a weak file system may leave."""
        share = chance.choice((0.2, 0.5, 0.8))

        def names(folder: _Folder) -> dict[str, int]:
            left = dict(folder.durable)
            for _, change in folder.pending:
                if chance.random() < share:
                    _rename(left, change)
            return left

        return self._tree(names, lambda file: _torn(file, chance, share))

    def _tree(
        self, names: Callable[[_Folder], dict[str, int]], data: Callable[[_File], bytes]
    ) -> Tree:
        tree: Tree = {}
        known: dict[int, bytes] = {}  # all names of a file have the same bytes
        folders = [("", self._root, frozenset[int]())]
        while folders:
            path, inode, above = folders.pop()
            for name, child in sorted(names(self._folders[inode]).items()):
                if child in above:
                    continue  # a folder that a lost rename would put below itself
                if child in self._folders:
                    tree[path + name] = None
                    folders.append((f"{path}{name}/", child, above | {inode}))
                    continue
                if child not in known:
                    known[child] = data(self._files[child])
                tree[path + name] = known[child]
        return tree


def _journal(last: int) -> Callable[[_Folder], dict[str, int]]:
    """Return a function for the names in a folder after the changes up to a number."""

    def names(folder: _Folder) -> dict[str, int]:
        left = dict(folder.durable)
        for number, change in folder.pending:
            if number <= last:
                _rename(left, change)
        return left

    return names


def _rename(names: dict[str, int], change: _Names) -> None:
    for name, inode in change:
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    """Write into a file, or give it a new length; a gap has zeros."""
    size = offset if data is None else max(len(content), offset + len(data))
    if size > len(content):
        content.extend(bytes(size - len(content)))
    elif data is None:
        del content[size:]
    if data is not None:
        content[offset : offset + len(data)] = data


def _prefix(file: _File, chance: Random) -> bytes:
    """Return a file with some of the first changes; the last of them may be incomplete."""
    if not file.pending:
        return file.durable
    content = bytearray(file.durable)
    complete = chance.randint(0, len(file.pending))
    for offset, data in file.pending[:complete]:
        _apply(content, offset, data)
    for offset, data in file.pending[complete : complete + 1]:
        if data:
            _apply(content, offset, data[: chance.randrange(len(data))])
    return bytes(content)


def _torn(file: _File, chance: Random, share: float) -> bytes:
    """Return a file with any of the changes, of which pages may be missing or zeros."""
    if not file.pending:
        return file.durable
    content = bytearray(file.durable)
    for offset, data in file.pending:
        draw = chance.random()
        if draw < share / 2:
            _apply(content, offset, data)
        elif draw < share and data is not None:
            for start, page in _pages(data):
                if chance.random() < 0.5:
                    kept = page if chance.random() < 0.7 else bytes(len(page))
                    _apply(content, offset + start, kept)
    return bytes(content)


def _pages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of a write that can be lost alone, so that short ones have several, too."""
    size = min(_PAGE, max(len(data) // 3, 1))
    return ((start, data[start : start + size]) for start in range(0, len(data), size))


def contents_of(folder: Path) -> Tree:
    """Return the files of a real folder."""
    tree: Tree = {}
    for parent, folders, names in os.walk(folder):
        here = Path(parent)
        tree |= {(here / name).relative_to(folder).as_posix(): None for name in folders}
        for name in names:
            tree[(here / name).relative_to(folder).as_posix()] = (here / name).read_bytes()
    return tree


def hash_of(tree: Tree, prefixes: tuple[str, ...] = ("",)) -> bytes:
    """Return a hash of the files and folders whose paths begin with one of the prefixes."""
    digest = hashlib.blake2b(digest_size=16)
    for path, data in sorted(tree.items()):
        if path.startswith(prefixes):
            kind = b"folder" if data is None else hashlib.blake2b(data, digest_size=16).digest()
            digest.update(path.encode() + b"\0" + kind)
    return digest.digest()


class Image:
    """A real folder that gets one tree after another; only the differences are written."""

    def __init__(self, folder: Path) -> None:
        """Take the folder; anything in it will be deleted."""
        self.folder = folder
        self._tree: Tree | None = None

    def show(self, tree: Tree) -> None:
        """Make the folder contain exactly the files of a tree."""
        if self._tree is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
        before = self._tree or {}
        for path in sorted(before.keys() - tree.keys(), reverse=True):
            _remove(self.folder / path, is_folder=before[path] is None)
        for path, data in sorted(tree.items()):
            if path in before and before[path] == data:
                continue
            if path in before:
                _remove(self.folder / path, is_folder=before[path] is None)
            if data is None:
                (self.folder / path).mkdir()
            else:
                (self.folder / path).write_bytes(data)
        self._tree = tree

    def forget(self) -> None:
        """Say that something else has changed the folder: the next tree is written as a whole."""
        self._tree = None


def _remove(path: Path, *, is_folder: bool) -> None:
    path.rmdir() if is_folder else path.unlink()
