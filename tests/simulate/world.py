"""The world of one run: hosts with clocks, stores on a disk or in a bucket, and the promises.

The product's modules run unchanged. During a run, their ``time``, ``uuid`` and ``socket`` modules
are replaced, and their thread pools run each task when it is submitted.
"""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from statestore import CompactionRule, ParquetOptions
from statestore.storage import Storage
from statestore.store import StateStore
from tests.simulate.bucket import Bucket, SimulatedS3, Stored
from tests.simulate.check import Checker, Raw, Seen
from tests.simulate.disk import Disk, SimulatedLocal
from tests.simulate.history import OperationLog
from tests.simulate.scheduler import Event, Scheduler, Task

__all__ = ["Backup", "Image", "World"]

MEMORY = Path("/dev/shm")
PROCESS = 1
COPIES = "statestore.maintenance.copy"  # also ``copy_files``, of release 0.1.0
CHUNK = "_CHUNK_BYTES"
LISTS = tuple(f"/.incomplete/.statestore{end}" for end in ("", ".new"))
# Changes of a few rows stay in layers for a while, and are sometimes merged.
COMPACTION = CompactionRule(merge_layers=2, share=1.5, most_share=2)


@dataclass(frozen=True)
class Backup:
    """The files of a store by name: objects, or bytes with their time in ns."""

    objects: dict[str, Stored]
    files: dict[str, tuple[bytes, int]]


@dataclass(frozen=True)
class Image:
    """All stored files at a moment, and the promises about them."""

    now_ms: int
    count: int
    objects: dict[str, Stored]
    files: tuple[tuple[str, bytes, int], ...]
    stores: dict[str, Seen]

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each object and each file by name, but for a restore's list.

        That list has the times of new files, which are of the real clock.
        """
        data = {name: stored.data for name, stored in self.objects.items()}
        data |= {name: content for name, content, _ in self.files if not name.endswith(LISTS)}
        return {name: hashlib.sha256(content).hexdigest() for name, content in data.items()}


class World:
    """All parts of one run; ``kind`` is ``local`` or ``s3``."""

    def __init__(self, kind: str, decide: Callable[[Task, str, str], Event | None]) -> None:
        """Create an empty disk or an empty bucket."""
        self.kind = kind
        self.scheduler = Scheduler(decide)
        self.folder = Path(tempfile.mkdtemp(prefix="simulate-", dir=_memory()))
        self.disk = Disk(self.folder, self.scheduler)
        self.bucket = Bucket(self.scheduler)
        self.log = OperationLog(lambda: self.scheduler.current)
        self.checker = Checker(self.scheduler, self._raw, self.log)
        self.checker.whole_files = kind == "s3"
        self.disk.changed = lambda path: self._changed(str(path)[len(str(self.folder)) + 1 :])
        self.bucket.changed = self._changed
        self.scheduler.power_is_lost = self._lose_power
        self.scheduler.time_passes = lambda minutes: self.disk.settle() if minutes > 10 else None
        self.writing = 0  # the number of jobs' checkpoints that are being taken
        self._count = 0

    def storage(self, name: str) -> Storage:
        """Return a store's storage, as a new process opens it."""
        if self.kind == "s3":
            return SimulatedS3(name, self.bucket)
        return SimulatedLocal(str(self.folder / name), self.disk, self.scheduler)

    def store(self, name: str = "a") -> StateStore:
        """Return a store as a new process opens it; in a bucket it has separate file lists."""
        open_store = getattr(StateStore, "from_storage", StateStore.open)  # of older releases
        return open_store(
            self.storage(name),
            table_format="parquet",
            compaction=COMPACTION,
            parquet=ParquetOptions(list_bytes=1) if self.kind == "s3" else None,
        )

    def clone(self, source: str, target: str) -> None:
        """Copy a store file by file, as ``cp -r`` does, in one step."""
        with self.scheduler.quietly():
            if self.kind == "s3":
                for key, stored in list(self.bucket.objects.items()):
                    if key.startswith(f"{source}/"):
                        self.bucket.objects[f"{target}/{key[len(source) + 1 :]}"] = stored
            elif not (self.folder / target).exists():
                shutil.copytree(self.folder / source, self.folder / target)
        self.checker.look_again()

    def copy_of(self, store: str) -> Backup:
        """Return all files of a store, as a backup."""
        with self.scheduler.quietly():
            objects = {
                name: stored
                for name, stored in self.bucket.objects.items()
                if name.startswith(f"{store}/")
            }
            paths = [path for path in (self.folder / store).rglob("*") if path.is_file()]
            files = {
                str(path.relative_to(self.folder)): (path.read_bytes(), path.stat().st_mtime_ns)
                for path in paths
            }
            return Backup(objects, files)

    def bring_back(self, store: str, backup: Backup) -> None:
        """Replace a store with a backup of it, in one step."""
        self.log.is_judgeable = False
        with self.scheduler.quietly():
            for name in [name for name in self.bucket.objects if name.startswith(f"{store}/")]:
                del self.bucket.objects[name]
            self.bucket.objects.update(backup.objects)
            shutil.rmtree(self.folder / store, ignore_errors=True)
            for name, (data, time_ns) in backup.files.items():
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                os.utime(path, ns=(time_ns, time_ns))
        self.checker.brought_back(store)

    def image(self) -> Image:
        """Return all stored files."""
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        files = [(path, path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(paths)]
        named = tuple((str(path.relative_to(self.folder)), *rest) for path, *rest in files)
        stores = copy.deepcopy(self.checker.stores)
        objects = dict(self.bucket.objects)
        return Image(self.scheduler.now_ms, self._count, objects, named, stores)  # type: ignore[arg-type]

    def bring(self, image: Image) -> None:
        """Store the files of an image."""
        self.scheduler.now_ms, self._count = image.now_ms, image.count
        self.bucket.objects.update(image.objects)
        for name, data, time_ns in image.files:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            os.utime(path, ns=(time_ns, time_ns))
        self.checker.stores = copy.deepcopy(image.stores)
        self.checker.look_again()

    def flip(self, name: str) -> None:
        """Change a byte of a file, if it exists."""
        with self.scheduler.quietly():
            if self.kind == "s3":
                if name in self.bucket.objects:
                    old = self.bucket.objects[name]
                    self.bucket.objects[name] = replace(old, data=_flipped(old.data))
            elif (path := self.folder / name).exists():
                path.write_bytes(_flipped(path.read_bytes()))
            self.checker.changed(name)

    def time_ns(self) -> int:
        """Return the time of the current host, as ``time.time_ns`` does."""
        return self.scheduler.host_ms() * 1_000_000

    def new_uuid(self) -> uuid.UUID:
        """Return an id that is unique in this run and the same in a repeated run."""
        self._count += 1
        return uuid.UUID(hashlib.md5(str(self._count).encode()).hexdigest())

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Replace the dependencies on the real world; restore them at the end."""
        with self.replaced(), self.disk.calls():
            yield

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Replace the clocks, ids and threads of the product's modules."""
        host = lambda: self.scheduler.current.name if self.scheduler.current else "host"  # noqa: E731
        others = {
            "time": (
                time,
                _like(
                    time,
                    time_ns=self.time_ns,
                    time=lambda: self.time_ns() / 1e9,
                    monotonic_ns=self.time_ns,  # of the durations in a manifest
                ),
            ),
            "uuid": (uuid, _like(uuid, uuid4=self.new_uuid)),
            "socket": (socket, _like(socket, gethostname=host)),
            "ThreadPoolExecutor": (ThreadPoolExecutor, AtOnce),
            "Thread": (threading.Thread, partial(SimulatedThread, self.scheduler)),
        }
        changed = []
        for path, module in [*sys.modules.items()]:
            if not path.startswith("statestore."):
                continue
            for name, (real, other) in others.items():
                if getattr(module, name, None) is real:
                    setattr(module, name, other)
                    changed.append((module, name, real))
            # The simulator's files are small, but they are copied in several pieces.
            if path.startswith(COPIES) and hasattr(module, CHUNK):
                changed.append((module, CHUNK, getattr(module, CHUNK)))
                setattr(module, CHUNK, 150)
        try:
            with (
                patch.object(os, "getpid", lambda: PROCESS),  # claims contain it
                patch.dict(os.environ, STATESTORE_ACTOR="someone"),  # and manifests this
                patch.object(cached_property, "__get__", _without_lock),
            ):
                yield
        finally:
            for module, name, real in changed:
                setattr(module, name, real)

    def close(self) -> None:
        """Delete the files on the disk."""
        self.disk.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _raw(self) -> Raw:
        """Return the checker's access: every file by name, without the product's code."""
        if self.kind == "s3":
            objects = self.bucket.objects
            return Raw(lambda: list(objects), lambda name: objects[name].data)
        root = str(self.folder)

        def names() -> list[str]:
            walk = os.walk(root)
            return sorted(
                f"{parent}/{name}"[len(root) + 1 :] for parent, _, some in walk for name in some
            )

        return Raw(names, lambda name: Path(root, name).read_bytes())

    def _changed(self, name: str) -> None:
        with self.scheduler.quietly():
            self.checker.changed(name)

    def _lose_power(self, event: Event) -> None:
        self.log.is_judgeable = False
        self.disk.lose_power(event.draw)
        self.checker.look_again(power_was_lost=True)


class SimulatedThread:
    """A thread of an actor's process: an actor of its own, with the process's clock."""

    def __init__(
        self, scheduler: Scheduler, *, target: Callable[..., Any], args: Sequence[Any], name: str
    ) -> None:
        """Take the arguments of a thread."""
        self._scheduler, self._run, self._name = scheduler, partial(target, *args), name
        self._task: Task | None = None

    def start(self) -> None:
        """Add the actor; it runs when the scheduler selects it."""
        of, at_ms = self._scheduler.current, self._scheduler.now_ms
        number = len(self._scheduler.tasks)
        name = f"{of.name if of else 'host'}'s {self._name} {number}"
        skew_ms = of.skew_ms if of else 0
        self._task = self._scheduler.spawn(name, self._run, at_ms=at_ms, skew_ms=skew_ms)
        self._task.doing = f"compaction by {name}"

    def is_alive(self) -> bool:
        """Return True until it has ended."""
        return self._task is not None and not self._task.ended


class AtOnce:
    """A pool that runs each task when it is submitted, one at a time."""

    def __init__(self, *sizes: Any, **options: Any) -> None:
        """Take the arguments of a thread pool."""

    def submit(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Future[Any]:
        """Call the function; the future has its result or its error."""
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - it comes out where it is asked for
            future.set_exception(error)
        return future

    def map(self, call: Callable[..., Any], *lists: Any) -> Iterator[Any]:
        """Call the function for all arguments; an error is raised at its position."""
        futures = [self.submit(call, *each) for each in zip(*lists, strict=False)]
        return (future.result() for future in futures)

    def shutdown(self, **options: Any) -> None:
        """Do nothing: no task is running."""

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def _without_lock(self: cached_property[Any], instance: Any, owner: Any = None) -> Any:
    """Compute a cached property as Python 3.12 does. Python 3.11 has one lock for all instances, so
    an actor that stalls in it would block the others.
    """
    if instance is None:
        return self
    if self.attrname not in instance.__dict__:
        instance.__dict__[self.attrname] = self.func(instance)
    return instance.__dict__[self.attrname]


def _like(module: Any, **others: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(module), **others})


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def _memory() -> Path | None:
    return MEMORY if os.access(MEMORY, os.W_OK) else None
