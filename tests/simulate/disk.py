"""A local disk that can lose power: only synced data are sure to survive.

Stores are in a folder in memory, and ``LocalStorage`` itself writes them. Only the relevant system
calls are intercepted, such as ``link``, ``unlink`` and ``fsync``. A synced file has its bytes, and
a synced folder its names, as of that moment. A name that was not synced may disappear, or may
reappear with everything below it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, cast
from unittest.mock import patch

from statestore.storage import Listed, LocalStorage
from statestore.storage.base import NewFile
from statestore.storage.forwarding import ForwardingFile
from tests.simulate.scheduler import Killed, Scheduler

__all__ = ["Disk", "SimulatedLocal"]

Tree = dict[str, Any]  # by name: another tree, or bytes with their modification time


class Disk:
    """Intercept the system calls below one folder, and record the data that would survive."""

    def __init__(self, root: Path, scheduler: Scheduler) -> None:
        """Take a folder whose own existence is durable."""
        self.root, self._scheduler = root, scheduler
        self.changed: Callable[[Path], None] = lambda path: None
        self.remembers = False  # whether durable data are recorded, which costs a little
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, int]] = {}
        self._held: dict[int, int] = {}
        self._inner = 0

    @contextmanager
    def calls(self) -> Any:
        """Intercept the system calls of the actors."""
        names = ("link", "unlink", "rename", "replace", "mkdir", "rmdir")
        real = {name: getattr(os, name) for name in names}
        utime, fsync = os.utime, os.fsync

        def changing(name: str, point: bool) -> Callable[..., Any]:
            call = real[name]

            def change(*paths: Any, **options: Any) -> Any:
                if options.get("dir_fd") is not None:
                    self._alive()
                if not self._ours(paths[-1]):
                    return call(*paths, **options)
                self._alive()
                event = self._point(name, paths[-1]) if point else None
                if event is not None and event.kind == "fail":
                    raise OSError(5, "Input/output error (simulated)")
                done = call(*paths, **options)
                self.changed(Path(paths[-1]))
                if event is not None and event.kind == "lost":
                    raise OSError(5, "Input/output error (simulated, after it was done)")
                return done

            return change

        def synced(descriptor: int) -> None:
            where = str(Path(f"/proc/self/fd/{descriptor}").readlink())
            if not self._ours(where):
                return fsync(descriptor)
            if Path(where).name.startswith("."):  # a put in progress
                touched(where)
            self._point("fsync", where)
            return self.sync(descriptor)

        def touched(path: Any, times: Any = None, **options: Any) -> None:
            if times is None and not options.get("ns") and self._ours(path):
                options["ns"] = (self._scheduler.now_ms * 1_000_000,) * 2
            utime(path, times, **options) if "ns" not in options else utime(path, **options)

        with (
            patch.object(os, "link", changing("link", True)),
            patch.object(os, "unlink", changing("unlink", False)),
            patch.object(os, "remove", changing("unlink", False)),
            patch.object(os, "mkdir", changing("mkdir", False)),
            patch.object(os, "rmdir", changing("rmdir", False)),
            patch.object(os, "rename", changing("rename", True)),
            patch.object(os, "replace", changing("replace", True)),
            patch.object(os, "fsync", synced),
            patch.object(os, "utime", touched),
        ):
            yield

    @contextmanager
    def one_call(self) -> Any:
        """Make all system calls in this block one storage call, without scheduling points."""
        self._inner += 1
        try:
            yield
        finally:
            self._inner -= 1

    def sync(self, descriptor: int) -> None:
        """Record a file's bytes, or a folder's names, as durable."""
        if not self.remembers:
            return
        opened = Path(f"/proc/self/fd/{descriptor}")
        if not opened.readlink().is_relative_to(self.root):
            return
        status = os.fstat(descriptor)
        self._hold(status.st_ino, str(opened))
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(opened) as entries:
                names = {entry.name: (entry.inode(), entry.path) for entry in entries}
            for inode, path in names.values():
                self._hold(inode, path)
            self._folders[status.st_ino] = {name: inode for name, (inode, _) in names.items()}
        else:
            self._files[status.st_ino] = os.pread(descriptor, status.st_size, 0)

    def _hold(self, inode: int, path: str) -> None:
        """Keep a file open, so that no later file gets the number by which it is remembered."""
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)

    def close(self) -> None:
        """Forget what is durable."""
        self._files.clear()
        self._folders.clear()
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def settle(self) -> None:
        """Sync everything: so much time has passed that the system has done it by itself."""
        if not self.remembers:
            return
        for folder, _, names in os.walk(self.root):
            for path in (folder, *(f"{folder}/{name}" for name in names)):
                descriptor = os.open(path, os.O_RDONLY)
                self.sync(descriptor)
                os.close(descriptor)

    def lose_power(self, draw: int) -> None:
        """Simulate a power loss; everything that may be lost is lost, unless ``draw`` keeps it."""
        chance = Random(draw)
        known = {one.inode(): one for one in _walk(self.root)}
        inode = self.root.stat().st_ino
        left = self._left(inode, known, lambda: draw != 0 and chance.random() < 0.5)
        for entry in os.scandir(self.root):
            shutil.rmtree(entry.path) if entry.is_dir() else Path(entry.path).unlink()
        self.close()
        _grow(self.root, left)
        self.settle()

    def _left(self, folder: int, known: dict[int, Any], stays: Callable[[], bool]) -> Tree:
        there = known.get(folder)
        path = self.root if folder == self.root.stat().st_ino else there and Path(there.path)
        now = {one.name: one.inode() for one in os.scandir(path)} if path else {}
        durable = self._folders.get(folder, {})
        left: Tree = {}
        for name in sorted({*now, *durable}):
            inode = durable.get(name, -1)
            if now.get(name) != inode and (inode < 0 or name in now or stays()):
                # It is new, replaced or deleted, and the change was not synced.
                inode = now.get(name, -1) if stays() else inode
            if inode < 0:
                continue
            entry = known.get(inode)
            if inode in self._folders or (entry is not None and entry.is_dir()):
                left[name] = self._left(inode, known, stays)
            else:
                left[name] = self._bytes(inode, entry, stays)
        return left

    def _bytes(self, inode: int, entry: Any, stays: Callable[[], bool]) -> tuple[bytes, int]:
        time_ns = entry.stat().st_mtime_ns if entry else self._scheduler.now_ms * 1_000_000
        if inode in self._files:
            return self._files[inode], time_ns
        return (Path(entry.path).read_bytes() if entry and stays() else b""), time_ns

    def _ours(self, path: Any) -> bool:
        return self._scheduler.mine() is not None and str(path).startswith(str(self.root))

    def _alive(self) -> None:
        task = self._scheduler.mine()
        if task is not None and (task.dead or self._scheduler.stopped):
            raise Killed

    def _point(self, operation: str, path: Any) -> Any:
        if self._inner:
            self._alive()
            return None
        return self._scheduler.point(operation, str(path).removeprefix(str(self.root)).lstrip("/"))


def _walk(root: Path) -> Iterable[Any]:
    for entry in os.scandir(root):
        yield entry
        if entry.is_dir():
            yield from _walk(Path(entry.path))


def _grow(folder: Path, tree: Tree) -> None:
    for name, content in tree.items():
        path = folder / name
        if isinstance(content, dict):
            path.mkdir()
            _grow(path, content)
        else:
            path.write_bytes(content[0])
            os.utime(path, ns=(content[1], content[1]))


class SimulatedLocal(LocalStorage):
    """A folder on the disk; each call is a scheduling point, and files get the disk's time."""

    def __init__(self, url: str, disk: Disk, scheduler: Scheduler) -> None:
        """Take a folder below the disk's root."""
        super().__init__(url)
        self._disk, self._scheduler = disk, scheduler

    def read(self, name: str) -> bytes:
        self._met("read", name)
        return super().read(name)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        self._met("read", name)
        return super().read_range(name, start, stop)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._met("put", name)
        done = super().put_if_absent(name, data)
        if done:
            self._now(name)
        return done

    def list(self, folder: str) -> tuple[str, ...]:
        self._met("list", folder)
        return super().list(folder)

    def listed(self, folder: str) -> tuple[Listed, ...]:
        self._met("list", folder)
        return super().listed(folder)

    def is_empty(self) -> bool:
        self._met("list", "")
        return super().is_empty()

    def delete(self, name: str) -> None:
        lost = self._met("delete", name)
        with self._disk.one_call():
            super().delete(name)
        self._lose(lost)

    def size(self, name: str) -> int:
        self._met("size", name)
        return super().size(name)

    def open_write(self, name: str) -> NewFile:
        self._met("write", name)
        return cast(NewFile, _Written(super().open_write(name), self, name))

    def open_read(self, name: str) -> BinaryIO:
        self._met("read", name)
        return super().open_read(name)

    def sync(self, names: Iterable[str]) -> None:
        some = tuple(names)
        self._met("sync", ", ".join(some))
        with self._disk.one_call():
            super().sync(some)

    def native_path(self, name: str) -> str | None:
        self._met("open", name)
        return super().native_path(name)

    def _met(self, operation: str, name: str) -> bool:
        event = self._scheduler.point(operation, f"{self._root.name}/{name}")
        if event is not None and event.kind == "fail":
            with self._errors(operation, name):
                raise OSError(5, "Input/output error (simulated)")
        return event is not None and event.kind == "lost"

    def _errors(self, operation: str, name: str) -> Any:
        from statestore.storage.base import report_os_errors

        return report_os_errors(operation, f"{self.url}/{name}")

    def _lose(self, lost: bool) -> None:
        if lost:
            with self._errors("do", ""):
                raise OSError(5, "Input/output error (simulated, after it was done)")

    def _now(self, name: str) -> None:
        time_ns = self._scheduler.now_ms * 1_000_000
        with suppress(FileNotFoundError):  # another actor has deleted it
            os.utime(self._root / name, ns=(time_ns, time_ns))


class _Written(ForwardingFile):
    """A file being written; a dead actor's file never appears, and it removes nothing."""

    def __init__(self, file: Any, storage: SimulatedLocal, name: str) -> None:
        super().__init__(file)
        self._storage, self._name = storage, name

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        self.close() if error_type is None else self.abandon()

    def write(self, data: Any) -> int:
        self._alive()
        return cast(int, self._file.write(data))

    def close(self) -> None:
        if self._file.closed:
            return
        self._alive()
        with self._storage._disk.one_call():
            self._file.close()
        self._storage._now(self._name)

    def abandon(self) -> None:
        self._alive()
        self._file.abandon()

    def _alive(self) -> None:
        try:
            self._storage._disk._alive()
        except Killed:
            self._file._file.close()
            raise
